//! How sessions come by tables.

use std::sync::Arc;

use datafusion::catalog::{CatalogProvider, MemoryCatalogProvider};
use kera_datafusion::{Connection, KeraSchema};
use kera_testkit::Broker;

use crate::{House, session};

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_make_no_sense_are_refused_with_words() {
    let house = House::new();
    house.create_stream(&["s"]);
    let begin = "CREATE EXTERNAL TABLE t";
    for (begin, stream, options, words) in [
        (begin, "nothing", "'timeout' '5s'", "UNKNOWN_STREAM"),
        (begin, "", "", "names no stream"),
        (
            begin,
            "s",
            "'form' 'earliest'",
            "option form is not usable: there is none of this name; there are from, to",
        ),
        (begin, "s", "'from' 'now'", "2026-02-03T04:05:06Z"),
        (begin, "s", "'value.format' 'json'", "declare at least one"),
        (begin, "s", "'scan.memory-limit' '1KiB'", "below 64 KiB"),
        (begin, "s", "'scan.partitions' '0'", "at least 1"),
        (
            "CREATE EXTERNAL TABLE t (a INT)",
            "s",
            "",
            "set it to 'json', or leave the columns out",
        ),
        (
            "CREATE UNBOUNDED EXTERNAL TABLE t",
            "s",
            "'to' 'latest'",
            "an unbounded table has no end",
        ),
    ] {
        let error = house
            .try_table(begin, stream, options)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(words), "{options}: {error}");
    }
    let text = "CREATE EXTERNAL TABLE t STORED AS KERA LOCATION 'file:///s'";
    assert!(
        house
            .refused(text)
            .await
            .contains("kera://HOST:PORT/STREAM")
    );
    let text = "CREATE EXTERNAL TABLE t STORED AS KERA LOCATION 'kera://localhost/s'";
    assert!(house.refused(text).await.contains("localhost"));
}

#[tokio::test(flavor = "multi_thread")]
async fn all_streams_are_tables_of_a_schema() {
    let house = House::new();
    house.create_stream(&["orders"]);
    house.create_stream(&["a.b-C"]);
    let connection = Connection::to(house.broker.address());
    let schema = Arc::new(KeraSchema::open(connection).await.unwrap());
    let catalog = MemoryCatalogProvider::new();
    catalog.register_schema("streams", schema.clone()).unwrap();
    house.context.register_catalog("kera", Arc::new(catalog));
    house
        .rows("INSERT INTO kera.streams.orders (value) VALUES ('1')")
        .await;
    assert_eq!(
        house.rows("SELECT count(*) FROM kera.streams.orders").await,
        ["1"]
    );
    assert_eq!(
        house
            .rows("SELECT count(*) FROM kera.streams.\"a.b-C\"")
            .await,
        ["0"]
    );
    // One that is made later, and one that there is not.
    house.create_stream(&["later"]);
    assert_eq!(
        house.rows("SELECT count(*) FROM kera.streams.later").await,
        ["0"]
    );
    let error = house
        .refused("SELECT count(*) FROM kera.streams.never")
        .await;
    assert!(error.contains("not found"), "{error}");
    house.create_stream(&["listed"]);
    schema.refresh().await.unwrap();
    let mut names = datafusion::catalog::SchemaProvider::table_names(schema.as_ref());
    names.sort();
    assert_eq!(names, ["a.b-C", "later", "listed", "orders"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_log_in() {
    let mut broker = Broker::start();
    broker.feed(&["user", "create", "ann"], b"open sesame");
    assert!(broker.stop().success());
    broker.set_flags(&[
        "--auth-listeners",
        "native",
        "--auth-mechanisms",
        "SCRAM-SHA-512",
    ]);
    broker.restart();
    let context = session();
    let address = broker.address();
    let create = |options: &str| {
        format!(
            "CREATE EXTERNAL TABLE t STORED AS KERA LOCATION 'kera://{address}/s' OPTIONS ({options})"
        )
    };
    let error = context
        .sql(&create("'timeout' '5s', 'user' 'ann', 'password' 'wrong'"))
        .await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("ann"), "{error}");
    // Let in, and told that there is no such stream.
    let error = context
        .sql(&create("'user' 'ann', 'password' 'open sesame'"))
        .await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("UNKNOWN_STREAM"), "{error}");
}
