//! `/api/v1` of a broker: each field as docs/api.md has it, records as people look for them, bounds.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kera_producer::{Producer, Record};
use kera_protocol::batch::{HEADER_BYTES, crc32c};
use kera_protocol::frame::FrameKind;
use kera_protocol::v1;
use serde_json::{Value, json};

use crate::common::raw::{Raw, batch_of, frame_of, stream_id};
use crate::common::{Broker, PATIENCE, http};

/// The most that any answer may have.
const MOST_BYTES: usize = 1 << 20;

fn broker(flags: &[&str]) -> Broker {
    Broker::with(&[&["--http-listen", "127.0.0.1:0"], flags].concat())
}

/// Status and body.
fn ask(broker: &Broker, path: &str) -> (u16, Value) {
    let answer = http::get_as("localhost", broker.http(), &format!("/api/v1/{path}"));
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    assert!(body.len() <= MOST_BYTES, "{path} has {} bytes", body.len());
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = serde_json::from_str(body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"));
    (status.expect("a status"), body)
}

fn get(broker: &Broker, path: &str) -> Value {
    let (status, body) = ask(broker, path);
    assert_eq!(status, 200, "{path}: {body}");
    body
}

/// The names of all fields, at any depth.
pub fn names(value: &Value, all: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                all.insert(name.clone());
                names(value, all);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| names(value, all)),
        _ => {}
    }
}

/// A field of every record, as text.
fn data(records: &Value, of: &str) -> Vec<String> {
    let records = records["records"].as_array().expect("records");
    let data = records
        .iter()
        .map(|one| one[of]["data"].as_str().expect("data").to_owned());
    data.collect()
}

#[test]
fn every_field_is_documented_and_tells_what_the_command_line_tells() {
    let broker = broker(&[]);
    broker.json(&[
        "stream",
        "create",
        "clicks",
        "--streamlets",
        "2",
        "--lanes",
        "2",
    ]);
    broker.json(&["stream", "create", "quiet"]);
    broker.feed(
        &[
            "produce",
            "clicks",
            "--key-separator",
            ",",
            "--header",
            "source=web",
            "--quiet",
        ],
        b"k1,{\"a\":1}\nk2,text\nk3,more\n",
    );
    broker.run(&["consume", "clicks", "--group", "readers", "--max", "1"]);
    let mut all = BTreeSet::new();
    for path in [
        "overview",
        "streams",
        "streams/clicks",
        "streams/clicks/records",
        "groups",
        "groups/readers",
        "brokers",
        "brokers/1",
        "settings",
        "streams/none",
    ] {
        names(&ask(&broker, path).1, &mut all);
    }
    let document = include_str!("../../../docs/api.md");
    let known = |name: &&String| {
        document.contains(&format!("`{name}`")) || document.contains(&format!("\"{name}\""))
    };
    let unknown: Vec<_> = all.iter().filter(|name| !known(name)).collect();
    assert!(unknown.is_empty(), "docs/api.md does not have {unknown:?}");
    assert!(all.len() > 100, "few fields: {all:?}");

    let described = broker.json(&["stream", "describe", "clicks"]);
    let stream = get(&broker, "streams/clicks");
    for name in [
        "name",
        "streamlets",
        "partitions",
        "replicas",
        "ack",
        "lane_generation",
    ] {
        assert_eq!(stream[name], described[name], "{name}");
    }
    for name in [
        "id",
        "lanes",
        "lane_by",
        "segment_size",
        "max_batch_bytes",
        "timestamps",
        "validate",
    ] {
        assert_eq!(stream["settings"][name], described[name], "{name}");
    }
    assert_eq!(stream["records"], 3);
    assert_eq!(stream["lanes_total"], 4);
    let (status, own) = ask(&broker, "streams/_kera_groups");
    let told = own["message"].as_str().unwrap_or_default();
    assert!(status == 404 && told.contains("the broker's own"), "{own}");
    let group = get(&broker, "groups/readers");
    let told = broker.json(&["group", "describe", "readers"]);
    assert_eq!(
        (&group["lag"], &group["lag"]),
        (&told["lag"], &Value::from(2))
    );
    assert_eq!(group["falls_behind"], true);
    assert_eq!(group["why"], "it has no member, so nobody reads for it");
    let overview = get(&broker, "overview");
    assert_eq!(overview["health"]["state"], "attention");
    // The disk of the machine that runs this test may be nearly full. Then that is the first problem shown.
    let problems = overview["health"]["problems"].as_array();
    let of_disk = |one: &&Value| one["problem"].to_string().contains("of its disk free");
    let mut others = problems.expect("problems").iter().skip_while(of_disk);
    let lags = others.next().expect("a group that lags");
    assert_eq!(lags["object"], "group readers", "{overview}");
    let told = lags["problem"].as_str().expect("what it is");
    let wanted = "is behind by 2 records; it has no member";
    assert!(told.starts_with(wanted), "{overview}");
    assert_eq!(overview["streams"], 2);
    assert_eq!(
        overview["busiest_streams"][0]["groups"][0]["group"],
        "readers"
    );
}

#[test]
fn records_are_found_by_place_time_and_key_within_bounds() {
    let broker = broker(&["--api-mask", "orders:email"]);
    broker.json(&[
        "stream",
        "create",
        "orders",
        "--streamlets",
        "2",
        "--lanes",
        "2",
    ]);
    let lines: String = (0..500)
        .map(|at| {
            format!(
                "k{},{{\"at\":{at},\"email\":\"x{at}@example.com\"}}\n",
                at % 20
            )
        })
        .collect();
    let words = [
        "produce",
        "orders",
        "--key-separator",
        ",",
        "--quiet",
        "--batch-size",
        "1KiB",
    ];
    broker.feed(&words, lines.as_bytes());

    // All of it, page by page: each record once.
    let mut found = Vec::new();
    let mut path = "streams/orders/records?from=earliest&limit=70".to_owned();
    loop {
        let page = get(&broker, &path);
        let records = page["records"].as_array().expect("records");
        assert!(records.len() <= 70);
        for record in records {
            let place = (&record["streamlet"], &record["lane"], &record["ordinal"]);
            found.push(format!("{place:?}"));
        }
        assert_eq!(page["problems"], serde_json::json!([]));
        let next = page["next"].as_str().expect("next");
        if next.is_empty() {
            break;
        }
        path = format!("streams/orders/records?from=next&at={next}&limit=70");
    }
    assert_eq!(found.len(), 500);
    assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), 500);

    // Of one key: its 25 records, in order, from its one lane.
    let page = get(&broker, "streams/orders/records?from=earliest&key=k7");
    assert_eq!(page["lanes"], 1);
    assert_eq!(data(&page, "key"), vec!["k7"; 25]);
    let value = &data(&page, "value")[1];
    assert!(
        value.contains("\"at\":27") && !value.contains("example.com"),
        "{value}"
    );
    assert_eq!(page["records"][1]["value"]["masked"], true);

    // From an ordinal of a lane, and the newest.
    let record = &page["records"][5];
    let place = format!("streamlet={}&lane={}", record["streamlet"], record["lane"]);
    let at = record["ordinal"].as_u64().expect("an ordinal");
    let path = format!("streams/orders/records?from=ordinal&at={at}&{place}&limit=1");
    assert_eq!(get(&broker, &path)["records"][0], *record);
    let newest = get(&broker, &format!("streams/orders/records?{place}&limit=3"));
    assert_eq!(newest["records"].as_array().map(Vec::len), Some(3));
    assert_eq!(newest["next"], "");
    let later = get(
        &broker,
        "streams/orders/records?from=time&at=99999999999999",
    );
    assert_eq!(later["records"], serde_json::json!([]));
    let earlier = get(&broker, "streams/orders/records?from=time&at=0&limit=200");
    assert_eq!(earlier["records"].as_array().map(Vec::len), Some(200));

    for (query, word) in [
        ("limit=0", "1 to 200"),
        ("limit=201", "1 to 200"),
        ("from=here", "earliest"),
        ("from=time&at=now", "number"),
        ("from=next&at=1.2", "next"),
        ("streamlet=9", "no such lane"),
        ("other=1", "other"),
    ] {
        let (status, error) = ask(&broker, &format!("streams/orders/records?{query}"));
        let text = error["message"].as_str().unwrap_or_default();
        assert!(
            (400..500).contains(&status) && text.contains(word),
            "{query}: {error}"
        );
    }
}

#[test]
fn a_look_on_has_what_was_written_to_lanes_that_were_added() {
    let broker = broker(&[]);
    broker.json(&["stream", "create", "grows"]);
    broker.feed(&["produce", "grows", "--quiet"], b"a\nb\nc\nd\n");
    let page = get(&broker, "streams/grows/records?from=earliest&limit=2");
    let next = page["next"].as_str().expect("next");
    assert_eq!(data(&page, "value"), ["a", "b"]);
    broker.json(&["stream", "alter", "grows", "--lanes", "4"]);
    let more: String = (0..40).map(|at| format!("k{at},{at}\n")).collect();
    let keyed = ["produce", "grows", "--quiet", "--key-separator", ","];
    broker.feed(&keyed, more.as_bytes());
    let path = format!("streams/grows/records?from=next&at={next}&limit=200");
    let rest = get(&broker, &path);
    assert_eq!((&rest["lanes"], &rest["next"]), (&4.into(), &"".into()));
    assert_eq!(data(&rest, "value").len(), 2 + 40);
}

/// Few bytes may be much to do: what is decompressed counts.
#[test]
fn a_look_at_what_is_well_compressed_ends_as_any_other() {
    let broker = broker(&[]);
    broker.json(&["stream", "create", "zeros"]);
    let lines = format!("{}\n", "0".repeat(900_000)).repeat(20);
    let words = [
        "produce",
        "zeros",
        "--quiet",
        "--compression",
        "zstd",
        "--batch-size",
        "1MiB",
    ];
    broker.feed(&words, lines.as_bytes());
    let mut path = "streams/zeros/records?from=earliest&key=none".to_owned();
    let (mut looks, mut bytes) = (0, 0);
    loop {
        let page = get(&broker, &path);
        assert_eq!(page["problems"], serde_json::json!([]));
        let looked_at = page["looked_at_bytes"].as_u64().expect("bytes");
        assert!(looked_at <= (8 << 20) + (1 << 20), "{looked_at}");
        (looks, bytes) = (looks + 1, bytes + looked_at);
        let next = page["next"].as_str().expect("next");
        if next.is_empty() {
            break;
        }
        path = format!("streams/zeros/records?from=next&at={next}&key=none");
    }
    assert!(
        looks >= 2 && bytes >= 20 * 900_000,
        "{looks} looks at {bytes} bytes"
    );
}

#[test]
fn a_group_with_a_long_name_is_found_by_what_its_stream_tells() {
    let broker = broker(&[]);
    broker.json(&["stream", "create", "s"]);
    broker.feed(&["produce", "s", "--quiet"], b"one\n");
    let long = "payments.".repeat(14);
    for end in ["blue", "green"] {
        let group = format!("{long}{end}");
        broker.run(&["consume", "s", "--group", &group, "--max", "1"]);
    }
    let page = get(&broker, "streams?filter=s");
    let told = page["items"][0]["groups"].as_array().expect("groups");
    assert_eq!(told.len(), 2);
    for group in told {
        let name = group["group"].as_str().expect("a name");
        assert_eq!(get(&broker, &format!("groups/{name}"))["group"], name);
    }
}

#[test]
fn many_batches_that_do_not_decode_are_told_in_few_words() {
    let broker = broker(&[]);
    let words = [
        "stream",
        "create",
        "junk",
        "--streamlets",
        "1",
        "--lanes",
        "1",
    ];
    broker.json(&words);
    let mut bad = batch_of(b"by hand");
    bad[HEADER_BYTES..].fill(0xff);
    let crc = crc32c(&bad[21..]);
    bad[17..21].copy_from_slice(&crc.to_be_bytes());
    let mut raw = Raw::open(&broker);
    let request = v1::AppendRequest {
        stream: stream_id(&broker, "junk"),
        ..Default::default()
    };
    for _ in 0..60 {
        raw.send(&frame_of(FrameKind::Append, 1, &request, &bad));
        assert_eq!(raw.append_answer().1.error, 0);
    }
    broker.feed(&["produce", "junk", "--quiet"], b"behind them\n");
    let page = get(&broker, "streams/junk/records?from=earliest");
    let problems = page["problems"].as_array().expect("problems");
    assert_eq!(problems.len(), 21, "{page}");
    assert_eq!(problems[20], "and 40 more such batches or lanes");
    assert_eq!(data(&page, "value"), ["behind them"]);
}

#[test]
fn large_values_and_many_streams_stay_within_the_bounds() {
    let broker = broker(&[]);
    for number in 0..60 {
        broker.json(&["stream", "create", &format!("s{number:02}")]);
    }
    let large = format!("{}\n", "\"\\".repeat(40_000)).repeat(60);
    broker.feed(&["produce", "s00", "--quiet"], large.as_bytes());
    let page = get(&broker, "streams/s00/records?from=earliest&limit=200");
    let records = page["records"].as_array().expect("records");
    assert!(!records.is_empty());
    for record in records {
        assert_eq!(record["value"]["bytes"], 80_000);
        assert_eq!(record["value"]["truncated"], true);
    }
    let first = get(&broker, "streams?limit=50");
    assert_eq!(
        (&first["total"], first["items"].as_array().map(Vec::len)),
        (&60.into(), Some(50))
    );
    let rest = get(&broker, "streams?limit=50&offset=50");
    assert_eq!(rest["items"].as_array().map(Vec::len), Some(10));
    let found = get(&broker, "streams?filter=S1&sort=bytes");
    assert_eq!(found["total"], 10);
    let largest = get(&broker, "streams?sort=bytes&limit=1");
    assert_eq!(largest["items"][0]["name"], "s00");
}

/// Asks until the answer is as wanted.
fn until(broker: &Broker, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (status, body) = ask(broker, path);
        if status == 200 && wanted(&body) {
            return body;
        }
        assert!(Instant::now() < deadline, "{path}: {body}");
        // The API keeps an answer for a moment.
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

#[test]
fn a_group_that_waits_for_a_transaction_says_so() {
    let broker = broker(&[]);
    let words = ["stream", "create", "s", "--streamlets", "1", "--lanes", "1"];
    broker.json(&words);
    broker.feed(&["produce", "s", "--quiet"], b"a\nb\nc\n");
    broker.run(&["consume", "s", "--group", "readers", "--max", "3"]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let producer = Producer::builder()
            .bootstrap(broker.address())
            .stream("s")
            .transactional_id("invoices");
        let producer = producer.build().await.expect("a producer");
        let transaction = producer.transaction().await.expect("a transaction");
        let appended = (0..5).map(|_| {
            let record = Record::of_value(b"held back");
            transaction.append(&record).expect("room")
        });
        for delivery in appended.collect::<Vec<_>>() {
            delivery.await.expect("acknowledged");
        }
        let is_told = |group: &Value| group["above_stable"] == 5;
        let group = until(&broker, "groups/readers", is_told);
        assert_eq!((&group["lag"], &group["falls_behind"]), (&json!(0), &json!(false)));
        let why = "it has consumed all before an open transaction; 5 records wait for that transaction to end";
        assert_eq!(group["why"], why);
        assert_eq!(group["lanes"][0]["above_stable"], 5);
        let why = "a transaction is open from ordinal 3 on: 5 records wait for that transaction to end";
        assert_eq!(group["lanes"][0]["why"], why);
        assert_eq!(get(&broker, "streams/s")["above_stable"], 5);
        transaction.commit().await.expect("committed");
        let group = until(&broker, "groups/readers", |group| group["lag"].as_u64() > Some(0));
        assert_eq!(group["why"], "it has no member, so nobody reads for it");
        until(&broker, "streams/s", |stream| stream["above_stable"] == 0);
    });
}

#[test]
fn where_rules_are_enforced_strangers_see_what_they_may() {
    let rules = ["--acl-enabled", "true", "--acl-super-users", "User:admin"];
    let broker = broker(&rules);
    for (path, right) in [
        ("overview", "describe"),
        ("settings", "describe"),
        ("streams/clicks", "describe"),
        ("streams/clicks/records", "read"),
        ("groups/readers", "describe"),
    ] {
        let (status, error) = ask(&broker, path);
        let text = error["message"].as_str().unwrap_or_default();
        assert_eq!(status, 403, "{path}: {error}");
        assert!(
            text.contains("ANONYMOUS") && text.contains(right),
            "{path}: {error}"
        );
    }
    assert_eq!(get(&broker, "streams")["total"], 0);
    assert_eq!(get(&broker, "groups")["total"], 0);
}
