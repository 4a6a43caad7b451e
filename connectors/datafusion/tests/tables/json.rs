//! Values in JSON.

use crate::House;

const FLIGHTS: &str =
    "CREATE EXTERNAL TABLE flights (carrier VARCHAR, delay INT, at TIMESTAMP, stops VARCHAR[])";

async fn flights(options: &str) -> House {
    let house = House::new();
    house.create_stream(&["flights", "--lanes", "2"]);
    let options = format!("'value.format' 'json'{options}");
    house.table(FLIGHTS, "flights", &options).await;
    house
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_of_values_are_columns() {
    let house = flights("").await;
    let lines = r#"{"carrier": "LX", "delay": 7, "at": "2026-02-03T04:05:06", "stops": ["ZRH", "BRN"], "more": {"x": 1}}
{"carrier": "SR"}
"#;
    house.broker.feed(
        &[
            "produce", "flights", "--format", "jsonl", "--key", "carrier",
        ],
        lines.as_bytes(),
    );
    let text =
        "SELECT carrier, delay, at, stops, CAST(key AS VARCHAR) FROM flights ORDER BY carrier";
    assert_eq!(
        house.rows(text).await,
        [
            "LX,7,2026-02-03T04:05:06,[ZRH, BRN],LX",
            "SR,NULL,NULL,NULL,SR"
        ]
    );
    let text =
        "INSERT INTO flights (key, carrier, delay) VALUES ('AF', 'AF', 12), ('LX', 'LX', NULL)";
    assert_eq!(house.rows(text).await, ["2"]);
    let text =
        "SELECT carrier, sum(delay), count(*) FROM flights GROUP BY carrier ORDER BY carrier";
    assert_eq!(house.rows(text).await, ["AF,12,1", "LX,7,2", "SR,NULL,1"]);
    house
        .table("CREATE EXTERNAL TABLE raw", "flights", "")
        .await;
    let text = "SELECT CAST(value AS VARCHAR) FROM raw WHERE key = 'AF'";
    assert_eq!(house.rows(text).await, [r#"{"carrier":"AF","delay":12}"#]);
    // A record without a value.
    house.rows("INSERT INTO raw (key) VALUES ('SR')").await;
    let text = "SELECT count(*), count(carrier) FROM flights";
    assert_eq!(house.rows(text).await, ["5,4"]);
    // Only what is asked for is decoded.
    house.rows("INSERT INTO raw (key, value) VALUES ('XX', '{\"carrier\": \"XX\", \"delay\": \"late\"}')").await;
    assert_eq!(
        house.rows("SELECT count(carrier) FROM flights").await,
        ["5"]
    );
    assert_eq!(house.rows("SELECT count(*) FROM flights").await, ["6"]);
    let error = house.refused("SELECT max(delay) FROM flights").await;
    assert!(error.contains("does not fit the table"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_does_not_fit_is_named_or_null() {
    let house = flights("").await;
    let lines = "{\"carrier\": \"A\"}\nno json\n{\"carrier\": \"B\"}\n";
    house
        .broker
        .feed(&["produce", "flights", "--key-separator", "\t"], b"");
    house.broker.feed(&["produce", "flights"], lines.as_bytes());
    let error = house.refused("SELECT carrier FROM flights").await;
    assert!(
        error.contains("the value of record 1 in lane 0/")
            && error.contains("json.on-error = 'null'"),
        "{error}"
    );
    let options = "'value.format' 'json', 'json.on-error' 'null'";
    house
        .table(&FLIGHTS.replace("flights", "lenient"), "flights", options)
        .await;
    let text = "SELECT carrier FROM lenient ORDER BY ordinal";
    assert_eq!(house.rows(text).await, ["A", "NULL", "B"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_with_names_of_records_own_columns_need_a_prefix() {
    let house = House::new();
    house.create_stream(&["s"]);
    let begin = "CREATE EXTERNAL TABLE t (\"timestamp\" VARCHAR, \"key\" INT)";
    let error = house.try_table(begin, "s", "'value.format' 'json'").await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("metadata.prefix"), "{error}");
    house
        .table(
            begin,
            "s",
            "'value.format' 'json', 'metadata.prefix' 'kera_'",
        )
        .await;
    house
        .rows("INSERT INTO t (timestamp, key, kera_key) VALUES ('noon', 7, 'k')")
        .await;
    let text = "SELECT timestamp, key, CAST(kera_key AS VARCHAR), kera_ordinal FROM t WHERE kera_lane = 0 AND kera_ordinal < 5";
    assert_eq!(house.rows(text).await, ["noon,7,k,0"]);
}
