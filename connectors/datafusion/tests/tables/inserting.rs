//! `INSERT INTO`.

use std::sync::Arc;

use datafusion::arrow::array::builder::{
    ArrayBuilder, BinaryBuilder, ListBuilder, StringBuilder, StructBuilder,
};
use datafusion::arrow::array::{Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema};

use crate::House;

/// One row with these headers.
fn with_headers(headers: &[(Option<&str>, Option<&str>)]) -> RecordBatch {
    let fields = vec![
        Field::new("name", DataType::Utf8, true),
        Field::new("value", DataType::Binary, true),
    ];
    let builders: Vec<Box<dyn ArrayBuilder>> = vec![
        Box::new(StringBuilder::new()),
        Box::new(BinaryBuilder::new()),
    ];
    let mut lists = ListBuilder::new(StructBuilder::new(fields, builders));
    for (name, value) in headers {
        let header = lists.values();
        let names = header.field_builder::<StringBuilder>(0).unwrap();
        names.append_option(*name);
        let values = header.field_builder::<BinaryBuilder>(1).unwrap();
        values.append_option(*value);
        header.append(true);
    }
    lists.append(true);
    let lists = lists.finish();
    let field = Field::new("headers", lists.data_type().clone(), true);
    let schema = Arc::new(Schema::new(vec![field]));
    RecordBatch::try_new(schema, vec![Arc::new(lists)]).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_become_records_with_keys_headers_and_times() {
    let house = House::new();
    house.create_stream(&["s"]);
    house.plain("s", "").await;
    let given = [(Some("colour"), Some("red")), (Some("none"), None)];
    house
        .context
        .register_batch("given", with_headers(&given))
        .unwrap();
    let text = "INSERT INTO s (key, value, headers, timestamp) \
        SELECT 'ann', 'a hat', headers, '2026-02-03T04:05:06Z' FROM given";
    assert_eq!(house.rows(text).await, ["1"]);
    assert_eq!(
        house.rows("INSERT INTO s (key) VALUES ('bob')").await,
        ["1"]
    );
    let told = house.broker.run(&["consume", "s"]);
    assert!(told.contains("a hat"), "{told}");
    let text = "SELECT CAST(key AS VARCHAR), CAST(value AS VARCHAR), headers, timestamp, ordinal FROM s ORDER BY ordinal LIMIT 1";
    assert_eq!(
        house.rows(text).await,
        [
            "ann,a hat,[{name: colour, value: 726564}, {name: none, value: NULL}],2026-02-03T04:05:06Z,0"
        ]
    );
    let text = "SELECT value IS NULL, headers, timestamp > '2026-01-01T00:00:00Z' FROM s WHERE ordinal = 1";
    assert_eq!(house.rows(text).await, ["true,[],true"]);

    // From a table into another, whatever their order.
    house.create_stream(&["copies", "--lanes", "2"]);
    house.plain("copies", "'sink.compression' 'lz4'").await;
    let text = "INSERT INTO copies (timestamp, headers, value, key) SELECT timestamp, headers, value, key FROM s";
    assert_eq!(house.rows(text).await, ["2"]);
    let columns = "SELECT key, value, headers, timestamp";
    let found = house
        .rows(&format!("{columns} FROM copies ORDER BY key"))
        .await;
    assert_eq!(
        found,
        house.rows(&format!("{columns} FROM s ORDER BY key")).await
    );
    assert_eq!(
        house
            .rows("INSERT INTO s (value) SELECT value FROM s WHERE false")
            .await,
        ["0"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_one_key_keep_their_order() {
    let house = House::new();
    house.create_stream(&["s", "--streamlets", "2", "--lanes", "2"]);
    house.plain("s", "").await;
    let text = "INSERT INTO s (key, value) SELECT CAST(n % 10 AS VARCHAR), CAST(n AS VARCHAR) \
        FROM (SELECT * FROM generate_series(1, 5000) AS t(n) ORDER BY n)";
    assert_eq!(house.rows(text).await, ["5000"]);
    let text = "SELECT count(*) FROM (SELECT CAST(CAST(value AS VARCHAR) AS INT) AS n, \
        lag(CAST(CAST(value AS VARCHAR) AS INT)) OVER (PARTITION BY key ORDER BY ordinal) AS before, \
        lag(lane) OVER (PARTITION BY key ORDER BY ordinal) AS other, lane FROM s) \
        WHERE n < before OR lane <> other";
    assert_eq!(house.rows(text).await, ["0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_written_is_refused_with_words() {
    let house = House::new();
    house.create_stream(&["s", "--max-batch-bytes", "64KiB"]);
    house.plain("s", "").await;
    for (text, words) in [
        (
            "INSERT INTO s (value, ordinal) VALUES ('a', 7)",
            "column ordinal cannot be written to stream s: the broker sets it",
        ),
        (
            "INSERT INTO s SELECT * FROM s UNION ALL SELECT NULL, NULL, NULL, NULL, 1, 1, 1",
            "the broker sets it",
        ),
        (
            "INSERT OVERWRITE s (value) VALUES ('a')",
            "nothing in it is replaced",
        ),
        (
            "INSERT INTO s (value) VALUES (repeat('x', 100000))",
            "row 1 of the INSERT cannot be written to stream s: record of about",
        ),
        ("DELETE FROM s", "DELETE not supported"),
    ] {
        let error = house.refused(text).await;
        assert!(error.contains(words), "{text}: {error}");
    }
    assert_eq!(house.rows("SELECT count(*) FROM s").await, ["0"]);
    // By their names, where rows are not of SQL.
    let frame = house
        .context
        .sql("SELECT 'a' AS value, 1 AS other")
        .await
        .unwrap();
    let error = frame.write_table("s", Default::default()).await;
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("column other") || error.contains("other"),
        "{error}"
    );
    let frame = house.context.sql("SELECT 'a' AS value").await.unwrap();
    frame.write_table("s", Default::default()).await.unwrap();
    assert_eq!(
        house.rows("SELECT CAST(value AS VARCHAR) FROM s").await,
        ["a"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_row_that_is_refused_is_named_and_those_before_it_are_written() {
    let house = House::new();
    house.create_stream(&["s", "--max-batch-bytes", "64KiB"]);
    house.plain("s", "").await;
    // In the second batch of the query's.
    let text = "INSERT INTO s (value) SELECT value FROM (SELECT n, CASE n WHEN 10000 THEN repeat('x', 100000) ELSE 'x' END AS value \
        FROM generate_series(1, 12000) AS t(n)) ORDER BY n";
    let error = house.refused(text).await;
    assert!(
        error.contains("row 10000 of the INSERT cannot be written to stream s"),
        "{error}"
    );
    // They were sent, and nobody has waited for them.
    while house.rows("SELECT count(*) FROM s").await != ["9999"] {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_without_a_name_is_refused() {
    let house = House::new();
    house.create_stream(&["s"]);
    house.plain("s", "").await;
    let given = [(Some("colour"), Some("red")), (None, Some("b"))];
    house
        .context
        .register_batch("given", with_headers(&given))
        .unwrap();
    let text = "INSERT INTO s (value, headers) SELECT 'a', headers FROM given";
    let error = house.refused(text).await;
    assert!(
        error.contains("column headers cannot be written to stream s: a header has no name"),
        "{error}"
    );
    assert_eq!(house.rows("SELECT count(*) FROM s").await, ["0"]);
}
