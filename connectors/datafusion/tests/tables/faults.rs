//! Brokers that are killed, streams that change under a query.

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::{BinaryArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use futures::StreamExt;
use tokio::sync::{Mutex, mpsc};

use crate::{House, rows};

const MANY: usize = 200_000;

async fn many(house: &House) {
    house.create_stream(&["s", "--lanes", "2"]);
    house.plain("s", "'scan.memory-limit' '64KiB'").await;
    let text = format!(
        "INSERT INTO s (key, value) SELECT CAST(n AS VARCHAR), repeat('x', 100) FROM generate_series(1, {MANY}) AS t(n)"
    );
    assert_eq!(house.rows(&text).await, [MANY.to_string()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_goes_on_when_its_broker_is_back() {
    let mut house = House::new();
    many(&house).await;
    let frame = house
        .context
        .sql("SELECT lane, ordinal FROM s")
        .await
        .unwrap();
    let mut stream = frame.execute_stream().await.unwrap();
    let first = stream.next().await.unwrap().unwrap();
    house.broker.kill();
    // What is on its way may come, and far from all does.
    house.broker.restart();
    let mut found = rows(&[first]);
    while let Some(batch) = stream.next().await {
        found.extend(rows(&[batch.unwrap()]));
    }
    assert_eq!(found.len(), MANY);
    found.sort();
    found.dedup();
    assert_eq!(found.len(), MANY, "each record once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_whose_broker_stays_away_fails_with_words() {
    let mut house = House::new();
    many(&house).await;
    let options = "'scan.memory-limit' '64KiB', 'timeout' '2s'";
    house.table("CREATE EXTERNAL TABLE t", "s", options).await;
    let plan = house.plan("SELECT lane, ordinal FROM t").await;
    let frame = house
        .context
        .sql("SELECT lane, ordinal FROM t")
        .await
        .unwrap();
    let mut stream = frame.execute_stream().await.unwrap();
    stream.next().await.unwrap().unwrap();
    house.broker.kill();
    let error = loop {
        match stream.next().await {
            Some(Ok(_)) => {}
            Some(Err(error)) => break error.to_string(),
            None => panic!("a part passed for the whole"),
        }
    };
    assert!(
        error.contains("stream s could not be read for 2s (option timeout)"),
        "{error}"
    );
    // Nor does one begin.
    let error = house.try_run(plan).await.unwrap_err().to_string();
    assert!(error.contains("stream s cannot be read"), "{error}");
    let error = house.refused("SELECT count(*) FROM t").await;
    assert!(error.contains("stream s: "), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_are_deleted_before_they_are_read_are_missed() {
    let house = House::new();
    house.create_stream(&["s"]);
    house.plain("s", "").await;
    house
        .table("CREATE EXTERNAL TABLE t", "s", "'scan.on-data-loss' 'skip'")
        .await;
    house
        .rows("INSERT INTO s (value) VALUES ('1'), ('2'), ('3')")
        .await;
    let strict = house.plan("SELECT value FROM s").await;
    let lenient = house.plan("SELECT value FROM t").await;
    house.broker.run(&["stream", "trim", "s", "--everything", "--yes"]);
    house.rows("INSERT INTO s (value) VALUES ('4')").await;
    let error = house.try_run(strict).await.unwrap_err().to_string();
    assert!(
        error.contains("about 3 records of stream s were deleted")
            && error.contains("scan.on-data-loss"),
        "{error}"
    );
    assert!(house.run(lenient).await.is_empty());
    assert_eq!(
        house.rows("SELECT CAST(value AS VARCHAR) FROM s").await,
        ["4"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_cannot_be_read_fails_a_query_or_is_skipped() {
    let house = House::new();
    house.create_stream(&["s"]);
    house.plain("s", "'sink.compression' 'zstd'").await;
    // The second takes more than the limit when it is decompressed.
    for value in ["'1'", "repeat('x', 600000)", "'3'"] {
        house
            .rows(&format!("INSERT INTO s (value) VALUES ({value})"))
            .await;
    }
    for (name, skips) in [("strict", "false"), ("lenient", "true")] {
        let options = format!("'scan.memory-limit' '256KiB', 'scan.skip-damaged' '{skips}'");
        house
            .table(&format!("CREATE EXTERNAL TABLE {name}"), "s", &options)
            .await;
    }
    let text = "SELECT CAST(value AS VARCHAR) FROM strict ORDER BY ordinal";
    let error = house.refused(text).await;
    assert!(
        error.contains("stream s cannot be read") && error.contains("at ordinals 1 to 1"),
        "{error}"
    );
    let text = text.replace("strict", "lenient");
    assert_eq!(house.rows(&text).await, ["1", "3"]);
    // What lies behind it is read all the same, where nothing else is asked for.
    let text = "SELECT CAST(value AS VARCHAR) FROM strict WHERE ordinal = 2";
    assert_eq!(house.rows(text).await, ["3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_stream_of_the_name_is_not_read_in_its_place() {
    let house = House::new();
    house.create_stream(&["s"]);
    house.plain("s", "").await;
    house.rows("INSERT INTO s (value) VALUES ('1')").await;
    let plan = house.plan("SELECT value FROM s").await;
    house.broker.run(&["stream", "delete", "s", "--yes"]);
    house.create_stream(&["s"]);
    house.rows("INSERT INTO s (value) VALUES ('2')").await;
    let error = house.try_run(plan).await.unwrap_err().to_string();
    assert!(error.contains("another one has its name"), "{error}");
    assert_eq!(
        house.rows("SELECT CAST(value AS VARCHAR) FROM s").await,
        ["2"]
    );
}

/// A table whose rows the test hands out.
#[derive(Debug)]
struct Handed {
    schema: SchemaRef,
    batches: Arc<Mutex<mpsc::Receiver<RecordBatch>>>,
}

impl PartitionStream for Handed {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let batches = self.batches.clone();
        let stream = futures::stream::unfold(batches, async |batches| {
            let batch = batches.lock().await.recv().await?;
            Some((Ok(batch), batches))
        });
        Box::pin(RecordBatchStreamAdapter::new(
            self.schema.clone(),
            stream.boxed(),
        ))
    }
}

/// A table `handed` with a column `value`, and what hands out its rows.
fn handed(house: &House) -> mpsc::Sender<Vec<String>> {
    let field = Field::new("value", DataType::Binary, true);
    let schema = Arc::new(Schema::new(vec![field]));
    let (sender, mut texts) = mpsc::channel::<Vec<String>>(1);
    let (out, batches) = mpsc::channel(1);
    let of = schema.clone();
    tokio::spawn(async move {
        while let Some(texts) = texts.recv().await {
            let values: BinaryArray = texts.iter().map(|text| Some(text.as_bytes())).collect();
            let batch = RecordBatch::try_new(of.clone(), vec![Arc::new(values)]).unwrap();
            if out.send(batch).await.is_err() {
                return;
            }
        }
    });
    let partition = Arc::new(Handed {
        schema: schema.clone(),
        batches: Arc::new(Mutex::new(batches)),
    });
    let table = StreamingTable::try_new(schema, vec![partition]).unwrap();
    house
        .context
        .register_table("handed", Arc::new(table))
        .unwrap();
    sender
}

/// Waits until so many records are stored.
async fn stored(house: &House, count: usize) {
    let wanted = [count.to_string()];
    while house.rows("SELECT count(*) FROM s").await != wanted {}
}

fn texts(from: usize) -> Vec<String> {
    (from..from + 1_000).map(|n| n.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_insert_goes_on_when_its_broker_is_back() {
    let mut house = House::new();
    house.create_stream(&["s", "--lanes", "2"]);
    house.plain("s", "").await;
    let sender = handed(&house);
    let context = house.context.clone();
    let insert = tokio::spawn(async move {
        let frame = context
            .sql("INSERT INTO s (value) SELECT value FROM handed")
            .await
            .unwrap();
        rows(&frame.collect().await.unwrap())
    });
    sender.send(texts(0)).await.unwrap();
    stored(&house, 1_000).await;
    house.broker.kill();
    sender.send(texts(1_000)).await.unwrap();
    // What hands on takes two, so the third is taken once the INSERT has the first of them.
    sender.send(texts(2_000)).await.unwrap();
    sender.send(texts(3_000)).await.unwrap();
    assert!(!insert.is_finished());
    house.broker.restart();
    sender.send(texts(4_000)).await.unwrap();
    drop(sender);
    assert_eq!(insert.await.unwrap(), ["5000"]);
    // Counted once all are acknowledged, so they are there.
    let found = house
        .rows("SELECT count(*), count(DISTINCT value) FROM s")
        .await;
    assert_eq!(found, ["5000,5000"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_insert_whose_broker_stays_away_fails_with_words() {
    let mut house = House::new();
    house.create_stream(&["s"]);
    house.plain("s", "'timeout' '2s'").await;
    let sender = handed(&house);
    let context = house.context.clone();
    let insert = tokio::spawn(async move {
        let frame = context
            .sql("INSERT INTO s (value) SELECT value FROM handed")
            .await
            .unwrap();
        frame.collect().await.unwrap_err().to_string()
    });
    sender.send(texts(0)).await.unwrap();
    stored(&house, 1_000).await;
    house.broker.kill();
    sender.send(texts(1_000)).await.unwrap();
    drop(sender);
    let error = tokio::time::timeout(Duration::from_secs(60), insert).await;
    let error = error.expect("it ends").unwrap();
    assert!(
        error.contains("not all of the 2000 rows that were sent to stream s are acknowledged"),
        "{error}"
    );
    house.broker.restart();
    // What was acknowledged stays.
    let found = house.rows("SELECT count(*) >= 1000 FROM s").await;
    assert_eq!(found, ["true"]);
}
