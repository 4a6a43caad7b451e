//! Lanes in parallel, and what reading leaves out.

use crate::House;

/// 6 lanes with 600 records, whose times go up and down, and a table in memory that has the same.
async fn six_lanes() -> House {
    let house = House::new();
    house.create_stream(&["s", "--streamlets", "2", "--lanes", "3"]);
    house.plain("s", "").await;
    let text = "INSERT INTO s (key, value, timestamp) \
        SELECT CAST(n AS VARCHAR), CAST(n * 2 AS VARCHAR), \
        arrow_cast(1000 * (n % 50), 'Timestamp(Millisecond, Some(\"UTC\"))') \
        FROM generate_series(1, 600) AS t(n)";
    assert_eq!(house.rows(text).await, ["600"]);
    house.rows("CREATE TABLE copy AS SELECT * FROM s").await;
    house
}

#[tokio::test(flavor = "multi_thread")]
async fn each_lane_is_a_partition_and_all_records_are_read_once() {
    let house = six_lanes().await;
    let plan = house.explain("SELECT value FROM s").await;
    assert!(plan.contains("partition_sizes=6"), "{plan}");
    assert!(plan.contains("projection=[value]"), "{plan}");
    let counted =
        "SELECT count(*), count(DISTINCT value), sum(CAST(CAST(value AS VARCHAR) AS INT)) FROM s";
    assert_eq!(house.rows(counted).await, ["600,600,360600"]);
    assert_eq!(house.rows("SELECT count(*) FROM s").await, ["600"]);
    let gaps = "SELECT streamlet, lane FROM s GROUP BY streamlet, lane \
        HAVING count(*) <> max(ordinal) + 1 OR min(ordinal) <> 0";
    assert!(house.rows(gaps).await.is_empty());
    let most = house.rows("SELECT value FROM s LIMIT 7").await;
    assert_eq!(most.len(), 7);

    // Fewer partitions than lanes.
    house
        .table("CREATE EXTERNAL TABLE few", "s", "'scan.partitions' '4'")
        .await;
    let plan = house.explain("SELECT value FROM few").await;
    assert!(plan.contains("partition_sizes=4"), "{plan}");
    assert_eq!(
        house.rows(&counted.replace("FROM s", "FROM few")).await,
        ["600,600,360600"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_on_places_and_times_are_kept_to_by_reading() {
    let house = six_lanes().await;
    let exact = [
        "lane = 1",
        "lane <> 1 AND streamlet = 0",
        "lane IN (0, 2)",
        "lane NOT IN (0, 1, 2, 3, 4)",
        "streamlet = 7",
        "ordinal < 10",
        "ordinal BETWEEN 20 AND 29",
        "ordinal NOT BETWEEN 20 AND 70",
        "5 < ordinal AND lane = 2",
        "(lane = 0 AND ordinal >= 40) OR (lane = 1 AND ordinal = 3)",
        "ordinal = 18446744073709551615",
        "timestamp >= '1970-01-01T00:00:30Z'",
        "timestamp > '1970-01-01T00:00:30Z' AND timestamp <= '1970-01-01T00:00:40Z'",
        "timestamp = '1970-01-01T00:00:49Z' OR ordinal = 0",
        "timestamp < '1970-01-01T00:00:01Z' AND ordinal > 50",
        "timestamp >= '2026-01-01T00:00:00Z'",
    ];
    for condition in exact {
        let text = format!("SELECT * FROM s WHERE {condition}");
        let plan = house.explain(&text).await;
        assert!(!plan.contains("FilterExec"), "{condition}: {plan}");
        let order = "ORDER BY streamlet, lane, ordinal";
        let found = house.rows(&format!("{text} {order}")).await;
        let wanted = format!("SELECT * FROM copy WHERE {condition} {order}");
        assert_eq!(found, house.rows(&wanted).await, "{condition}");
        let counted = house
            .rows(&format!("SELECT count(*) FROM s WHERE {condition}"))
            .await;
        assert_eq!(counted, [found.len().to_string()], "{condition}");
    }
    // Only lanes that have something are read.
    for (condition, partitions) in [
        ("lane = 1", 2),
        ("lane = 1 AND streamlet = 1", 1),
        ("ordinal < 5", 6),
    ] {
        let plan = house
            .explain(&format!("SELECT value FROM s WHERE {condition}"))
            .await;
        assert!(
            plan.contains(&format!("partition_sizes={partitions}")),
            "{plan}"
        );
    }
    let plan = house
        .explain("SELECT value FROM s WHERE streamlet = 7")
        .await;
    assert!(plan.contains("EmptyExec"), "{plan}");
    // With a condition of DataFusion's own beside.
    let both = "lane = 1 AND value > '5'";
    let plan = house
        .explain(&format!("SELECT ordinal FROM s WHERE {both}"))
        .await;
    assert!(
        plan.contains("FilterExec") && plan.contains("partition_sizes=2"),
        "{plan}"
    );
    let found = house
        .rows(&format!("SELECT count(*) FROM s WHERE {both}"))
        .await;
    assert_eq!(
        found,
        house
            .rows(&format!("SELECT count(*) FROM copy WHERE {both}"))
            .await
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn no_statistics_are_invented() {
    let house = six_lanes().await;
    let plan = house.plan("SELECT value FROM s").await;
    let known = plan.properties().output_partitioning().partition_count();
    assert_eq!(known, 6);
    let text = house
        .rows("EXPLAIN ANALYZE SELECT count(*) FROM s")
        .await
        .join("\n");
    assert!(
        text.contains("StreamingTableExec"),
        "counted by reading: {text}"
    );
}
