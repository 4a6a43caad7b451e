//! Where queries begin and end.

use kera_producer::{Producer, Record};

use crate::House;

/// A lane with so many records of one batch each second, their ordinals their values.
async fn one_lane() -> House {
    let house = House::new();
    house.create_stream(&["s"]);
    house.plain("s", "").await;
    // Two batches; within each, times go up but for one record.
    for begin in [0, 50] {
        let text = format!(
            "INSERT INTO s (value, timestamp) SELECT CAST(n AS VARCHAR), \
             arrow_cast(CASE n WHEN 60 THEN 5000 ELSE 1000 * n END, 'Timestamp(Millisecond, Some(\"UTC\"))') \
             FROM generate_series({begin}, {}) AS t(n)",
            begin + 49
        );
        assert_eq!(house.rows(&text).await, ["50"]);
    }
    house
}

async fn ordinals(house: &House, name: &str, options: &str) -> Vec<u64> {
    house.plain_as(name, options).await;
    let found = house
        .rows(&format!("SELECT ordinal FROM {name} ORDER BY 1"))
        .await;
    found.iter().map(|text| text.parse().unwrap()).collect()
}

impl House {
    async fn plain_as(&self, name: &str, options: &str) {
        self.table(
            &format!("CREATE OR REPLACE EXTERNAL TABLE {name}"),
            "s",
            options,
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_reads_from_a_place_to_a_place() {
    let house = one_lane().await;
    let range = |from: u64, to: u64| (from..to).collect::<Vec<_>>();
    for (options, wanted) in [
        ("", range(0, 100)),
        ("'from' 'earliest', 'to' 'latest'", range(0, 100)),
        ("'from' 'latest'", vec![]),
        ("'to' 'earliest'", vec![]),
        ("'from' 'ordinal:30'", range(30, 100)),
        ("'to' 'ordinal:30'", range(0, 30)),
        ("'from' 'ordinal:20', 'to' 'ordinal:70'", range(20, 70)),
        ("'from' 'ordinal:70', 'to' 'ordinal:20'", vec![]),
        ("'from' 'ordinal:1000'", vec![]),
        ("'to' 'ordinal:1000'", range(0, 100)),
        ("'from' '1970-01-01T00:00:30Z'", range(30, 100)),
        ("'from' '1970-01-01T00:00:29.001Z'", range(30, 100)),
        ("'to' '1970-01-01T00:00:30Z'", range(0, 30)),
        (
            "'from' '1970-01-01T00:00:20Z', 'to' '1970-01-01T00:01:10Z'",
            range(20, 70),
        ),
        (
            "'from' '1970-01-01T00:01:10Z', 'to' '1970-01-01T00:00:20Z'",
            vec![],
        ),
        ("'from' 'ordinal:80', 'to' '1970-01-01T00:00:20Z'", vec![]),
        ("'from' '2026-01-01T00:00:00Z'", vec![]),
        ("'to' '2026-01-01T00:00:00Z'", range(0, 100)),
    ] {
        assert_eq!(ordinals(&house, "t", options).await, wanted, "{options}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_narrow_what_the_places_leave() {
    let house = one_lane().await;
    for (options, condition, wanted) in [
        ("'from' '1970-01-01T00:00:20Z'", "ordinal >= 95", 5),
        // Record 60 is earlier than those around it, and part of what the places leave.
        (
            "'from' '1970-01-01T00:00:20Z'",
            "ordinal BETWEEN 59 AND 61",
            3,
        ),
        ("'from' '1970-01-01T00:00:20Z'", "ordinal = 10", 0),
        ("'to' '1970-01-01T00:00:20Z'", "ordinal >= 60", 0),
        ("'to' '1970-01-01T00:01:10Z'", "ordinal >= 60", 10),
        (
            "'from' '1970-01-01T00:00:20Z'",
            "timestamp >= '1970-01-01T00:01:00Z'",
            39,
        ),
        (
            "'from' '1970-01-01T00:01:01Z'",
            "timestamp >= '1970-01-01T00:00:05Z'",
            39,
        ),
        (
            "'from' 'ordinal:55'",
            "timestamp <= '1970-01-01T00:00:05Z'",
            1,
        ),
    ] {
        house.plain_as("t", options).await;
        let found = house
            .rows(&format!("SELECT count(*) FROM t WHERE {condition}"))
            .await;
        assert_eq!(found, [wanted.to_string()], "{options} {condition}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_after_the_query_has_begun_is_not_part_of_it() {
    let house = one_lane().await;
    let plan = house.plan("SELECT ordinal FROM s").await;
    house.rows("INSERT INTO s (value) VALUES ('late')").await;
    assert_eq!(house.run(plan).await.len(), 100);
    // Lanes neither.
    let plan = house.plan("SELECT ordinal FROM s").await;
    house.broker.run(&["stream", "alter", "s", "--lanes", "4"]);
    let text = "INSERT INTO s (key, value) SELECT CAST(n AS VARCHAR), 'x' FROM generate_series(1, 100) AS t(n)";
    house.rows(text).await;
    assert_eq!(house.run(plan).await.len(), 101);
    let plan = house.explain("SELECT ordinal FROM s").await;
    assert!(plan.contains("partition_sizes=4"), "{plan}");
    assert_eq!(house.rows("SELECT count(*) FROM s").await, ["201"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bounded_query_ends_where_ordinals_jump() {
    let mut house = House::new();
    house.create_stream(&["s", "--ack", "memory"]);
    house.plain("s", "").await;
    house.rows("INSERT INTO s (value) VALUES ('kept')").await;
    assert!(house.broker.stop().success());
    house.broker.restart();
    house
        .rows("INSERT INTO s (value) VALUES ('lost with the broker')")
        .await;
    let before = house.plan("SELECT CAST(value AS VARCHAR) FROM s").await;
    house.broker.kill();
    house.broker.restart();
    let jump = 1_u64 << 32;
    // The lane ends behind the jump, and there is nothing there.
    assert_eq!(
        house.rows("SELECT CAST(value AS VARCHAR) FROM s").await,
        ["kept"]
    );
    assert_eq!(
        house.run(before).await,
        ["kept"],
        "its end is before the jump"
    );
    house.rows("INSERT INTO s (value) VALUES ('new')").await;
    let found = house
        .rows("SELECT CAST(value AS VARCHAR), ordinal FROM s ORDER BY ordinal")
        .await;
    assert_eq!(found.len(), 2);
    let ordinal: u64 = found[1].strip_prefix("new,").unwrap().parse().unwrap();
    assert!(ordinal >= jump, "{ordinal}");
    // Ends within the jump, and before and behind it.
    for (end, count) in [
        (1, 1),
        (7, 1),
        (jump - 1, 1),
        (ordinal, 1),
        (ordinal + 1, 2),
    ] {
        house.plain_as("t", &format!("'to' 'ordinal:{end}'")).await;
        assert_eq!(
            house.rows("SELECT count(*) FROM t").await,
            [count.to_string()],
            "{end}"
        );
        let text = format!("SELECT count(*) FROM s WHERE ordinal < {end}");
        assert_eq!(house.rows(&text).await, [count.to_string()], "{end}");
    }
    house.plain_as("t", "'from' 'ordinal:7'").await;
    assert_eq!(
        house.rows("SELECT CAST(value AS VARCHAR) FROM t").await,
        ["new"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_transactions_count_once_they_are_committed() {
    let house = House::new();
    house.create_stream(&["s"]);
    house.plain("s", "").await;
    let producer = Producer::builder()
        .bootstrap(house.broker.address())
        .stream("s")
        .transactional_id("t")
        .build()
        .await
        .unwrap();
    let counted = "SELECT count(*) FROM s";
    let transaction = producer.transaction().await.unwrap();
    transaction.append(&Record::of_value(b"one")).unwrap();
    producer.flush().await.unwrap();
    assert_eq!(house.rows(counted).await, ["0"], "it is open");
    transaction.commit().await.unwrap();
    // The lane's last ordinal is the marker's, which is no record.
    while house.rows(counted).await != ["1"] {}
    let transaction = producer.transaction().await.unwrap();
    transaction.append(&Record::of_value(b"two")).unwrap();
    producer.flush().await.unwrap();
    transaction.abort().await.unwrap();
    assert_eq!(house.rows(counted).await, ["1"]);
    producer.close().await.unwrap();
}
