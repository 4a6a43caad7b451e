//! Tables without an end.

use std::time::Duration;

use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;

use crate::{House, rows};

async fn next(stream: &mut SendableRecordBatchStream, count: usize) -> Vec<String> {
    let mut found = Vec::new();
    while found.len() < count {
        let batch = tokio::time::timeout(Duration::from_secs(60), stream.next()).await;
        let batch = batch.unwrap_or_else(|_| panic!("only {found:?} came"));
        found.extend(rows(&[batch.unwrap().unwrap()]));
    }
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_without_end_gets_what_comes_also_in_lanes_that_are_added() {
    let house = House::new();
    house.create_stream(&["s", "--lanes", "2"]);
    house.plain("s", "").await;
    house
        .table("CREATE UNBOUNDED EXTERNAL TABLE f", "s", "")
        .await;
    house
        .table(
            "CREATE UNBOUNDED EXTERNAL TABLE late",
            "s",
            "'from' 'latest'",
        )
        .await;
    house
        .rows("INSERT INTO s (key, value) VALUES ('a', '1'), ('b', '2')")
        .await;
    let text = "SELECT CAST(value AS VARCHAR) FROM f";
    let plan = house.explain(text).await;
    assert!(plan.contains("infinite_source=true"), "{plan}");
    let frame = house.context.sql(text).await.unwrap();
    let mut all = frame.execute_stream().await.unwrap();
    let frame = house
        .context
        .sql(&text.replace("FROM f", "FROM late"))
        .await;
    let mut late = frame.unwrap().execute_stream().await.unwrap();
    assert_eq!(next(&mut all, 2).await, ["1", "2"]);
    house.rows("INSERT INTO s (value) VALUES ('3')").await;
    assert_eq!(next(&mut all, 1).await, ["3"]);
    assert_eq!(next(&mut late, 1).await, ["3"]);

    house.broker.run(&["stream", "alter", "s", "--lanes", "6"]);
    let text = "INSERT INTO s (key, value) SELECT CAST(n AS VARCHAR) AS key, CAST(n AS VARCHAR) AS value FROM generate_series(100, 199) AS t(n)";
    house.rows(text).await;
    let wanted: Vec<String> = (100..200).map(|n| n.to_string()).collect();
    assert_eq!(next(&mut all, 100).await, wanted);
    assert_eq!(next(&mut late, 100).await, wanted);
    let lanes = "SELECT count(DISTINCT lane) > 2 FROM s";
    assert_eq!(house.rows(lanes).await, ["true"], "new lanes have records");

    // And again, and over a restart.
    house.broker.run(&["stream", "alter", "s", "--lanes", "9"]);
    house.rows(text).await;
    assert_eq!(next(&mut all, 100).await, wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_without_end_ends_with_its_limit() {
    let house = House::new();
    house.create_stream(&["s", "--lanes", "2"]);
    house.plain("s", "").await;
    house
        .table("CREATE UNBOUNDED EXTERNAL TABLE f", "s", "")
        .await;
    house
        .rows("INSERT INTO s (key, value) VALUES ('a', '1'), ('b', '2')")
        .await;
    assert_eq!(house.rows("SELECT value FROM f LIMIT 2").await.len(), 2);
}
