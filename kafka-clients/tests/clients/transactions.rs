//! Transactions of real clients.

use serde_json::json;

use crate::common::Kind;
use crate::common::copying::{self, Copying, Moment, records};
use crate::common::until;
use crate::stage::{Stage, anyone, scenario};

fn open(stage: &mut Stage, producer: &str, timeout_ms: u32) {
    let id = format!("{}-id", stage.topic);
    let settings = json!({"transactional_id": id, "transaction_ms": timeout_ms, "linger_ms": 2});
    stage.client.producer(producer, settings);
}

/// A producer whose older instances are fenced.
fn begin(stage: &mut Stage, producer: &str, timeout_ms: u32) {
    open(stage, producer, timeout_ms);
    stage.client.transaction("init_transactions", producer);
}

fn reader(stage: &mut Stage, name: &str, topic: &str, isolation: &str) {
    stage.client.consumer(name, json!({"isolation": isolation}));
    let partitions = [0, 1];
    stage
        .client
        .assign(name, topic, &partitions, json!("beginning"));
}

/// Reads until there are `count` records, and a while more; sorted.
fn read(stage: &mut Stage, name: &str, count: usize) -> Vec<String> {
    let mut seen = Vec::new();
    copying::go_on(&mut stage.client, name, count, &mut seen);
    seen
}

fn texts(ids: impl IntoIterator<Item = usize>) -> Vec<String> {
    ids.into_iter().map(|n| n.to_string()).collect()
}

scenario!(
    what_is_open_or_aborted_is_not_read,
    PLAIN,
    anyone,
    |stage: &mut Stage| {
        let topic = stage.topic.clone();
        stage.client.create_topic(&topic, 2, &[]);
        begin(stage, "p", 60_000);
        let steps: [(&str, std::ops::Range<usize>); 4] = [
            ("commit_transaction", 0..20),
            ("abort_transaction", 20..40),
            ("commit_transaction", 40..60),
            ("abort_transaction", 60..80),
        ];
        for (end, ids) in steps {
            stage.client.transaction("begin_transaction", "p");
            stage.client.send("p", &topic, &records(ids));
            stage.client.transaction(end, "p");
        }
        // One that stays open, and records without a transaction behind it.
        stage.client.transaction("begin_transaction", "p");
        stage.client.send("p", &topic, &records(80..100));
        stage.client.producer("plain", json!({}));
        stage.client.send("plain", &topic, &records(100..120));
        reader(stage, "all", &topic, "read_uncommitted");
        assert_eq!(read(stage, "all", 120), texts(0..120));
        reader(stage, "committed", &topic, "read_committed");
        let counts = || (0..20).chain(40..60);
        assert_eq!(read(stage, "committed", 40), texts(counts()));
        stage.client.transaction("commit_transaction", "p");
        let rest = read(stage, "committed", 40);
        assert_eq!(
            rest,
            texts(80..120),
            "the rest, once the last one has ended"
        );
        // From the disk, after a restart of the broker, and in small fetches.
        stage.broker.kill();
        stage.broker.restart();
        reader(stage, "again", &topic, "read_committed");
        assert_eq!(read(stage, "again", 80), texts(counts().chain(80..120)));
    }
);

/// Clients that know Kafka's `transaction.version` 2.
fn knows_version_2(kind: Kind) -> bool {
    matches!(kind, Kind::Java | Kind::FranzGo)
}

scenario!(
    each_end_gives_another_epoch,
    PLAIN,
    knows_version_2,
    |stage: &mut Stage| {
        if !stage.broker.is_kera() {
            return;
        }
        let (topic, id) = (stage.topic.clone(), format!("{}-id", stage.topic));
        stage.client.create_topic(&topic, 2, &[]);
        begin(stage, "p", 60_000);
        let epoch = |stage: &Stage| {
            let words = ["transaction", "describe", &id, "--json"];
            let told = stage.broker.kera(&words, b"");
            let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
            told["epoch"].as_i64().expect("an epoch")
        };
        let mut epochs = Vec::new();
        for round in 0..6 {
            stage.client.transaction("begin_transaction", "p");
            let ids = round * 10..round * 10 + 10;
            stage.client.send("p", &topic, &records(ids));
            let end = ["commit_transaction", "abort_transaction"][round % 2];
            stage.client.transaction(end, "p");
            epochs.push(epoch(stage));
        }
        // franz-go hears of the feature during its first transaction.
        let rises = epochs.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(rises, "{epochs:?}");
        reader(stage, "c", &topic, "read_committed");
        let counts = (0..60).filter(|n| (n / 10) % 2 == 0);
        assert_eq!(read(stage, "c", 30), texts(counts));
    }
);

scenario!(
    another_instance_fences_the_one_before,
    PLAIN,
    anyone,
    |stage: &mut Stage| {
        let topic = stage.topic.clone();
        stage.client.create_topic(&topic, 2, &[]);
        begin(stage, "old", 60_000);
        stage.client.transaction("begin_transaction", "old");
        stage.client.send("old", &topic, &records(0..10));
        // Aborts what the old one has open.
        begin(stage, "new", 60_000);
        stage.client.transaction("begin_transaction", "new");
        stage.client.send("new", &topic, &records(10..20));
        let refused = stage.client.try_transaction("commit_transaction", "old");
        assert!(refused.is_err(), "the old instance commits");
        stage.client.transaction("commit_transaction", "new");
        reader(stage, "c", &topic, "read_committed");
        assert_eq!(read(stage, "c", 10), texts(10..20));
    }
);

scenario!(
    operators_see_and_end_what_is_open,
    PLAIN,
    anyone,
    |stage: &mut Stage| {
        if !stage.broker.is_kera() {
            return;
        }
        let (topic, id) = (stage.topic.clone(), format!("{}-id", stage.topic));
        stage.client.create_topic(&topic, 2, &[]);
        begin(stage, "p", 600_000);
        stage.client.transaction("begin_transaction", "p");
        stage.client.send("p", &topic, &records(0..10));
        stage.client.producer("plain", json!({}));
        stage.client.send("plain", &topic, &records(10..30));
        let told = |stage: &Stage, words: &[&str]| -> serde_json::Value {
            let told = stage.broker.kera(words, b"");
            serde_json::from_str(&told).expect("JSON")
        };
        let listed = told(stage, &["transaction", "list", "--json"]);
        let of_id = listed.as_array().expect("a list").iter();
        let of_id = of_id.filter(|one| one["transactional_id"] == id.as_str());
        let states: Vec<_> = of_id.map(|one| one["state"].clone()).collect();
        assert_eq!(states, ["Ongoing"], "{listed}");
        let described = told(stage, &["transaction", "describe", &id, "--json"]);
        let partitions = described["partitions"].as_array().expect("partitions");
        assert!(partitions.iter().all(|one| one["stream"] == topic.as_str()));
        let waiting = partitions.iter().map(|one| one["waiting_records"].as_u64());
        let waiting: u64 = waiting.map(|records| records.expect("a number")).sum();
        assert!((10..=30).contains(&waiting), "{described}");
        assert_eq!(described["timeout_ms"], 600_000);
        let aborted = ["transaction", "abort", &id, "--yes"];
        let aborted = stage.broker.kera(&aborted, b"");
        assert_eq!(aborted.trim(), format!("aborted: transaction of {id}"));
        // Nobody waits for it any more, and its producer is fenced.
        reader(stage, "committed", &topic, "read_committed");
        assert_eq!(read(stage, "committed", 20), texts(10..30));
        let refused = stage.client.try_transaction("commit_transaction", "p");
        assert!(refused.is_err(), "the producer commits what was aborted");
        until("each partition has its marker", || {
            let described = told(stage, &["transaction", "describe", &id, "--json"]);
            let ended = described["state"] == "CompleteAbort";
            (ended && described.get("open_ms").is_none()).then_some(())
        });
    }
);

scenario!(
    a_transaction_whose_time_is_over_is_aborted,
    PLAIN,
    anyone,
    |stage: &mut Stage| {
        let topic = stage.topic.clone();
        stage.client.create_topic(&topic, 2, &[]);
        begin(stage, "p", 1_500);
        stage.client.transaction("begin_transaction", "p");
        stage.client.send("p", &topic, &records(0..10));
        stage.client.producer("plain", json!({}));
        stage.client.send("plain", &topic, &records(10..20));
        // What is behind it is read once it was aborted.
        reader(stage, "c", &topic, "read_committed");
        assert_eq!(read(stage, "c", 10), texts(10..20));
        let refused = stage.client.try_transaction("commit_transaction", "p");
        assert!(refused.is_err(), "it commits what was aborted");
    }
);

scenario!(
    offsets_count_with_the_transaction,
    PLAIN,
    anyone,
    |stage: &mut Stage| {
        let (topic, group) = (stage.topic.clone(), stage.group.clone());
        stage.client.create_topic(&topic, 2, &[]);
        stage
            .client
            .consumer("c", json!({"group": group, "session_ms": 6_000}));
        stage.client.subscribe("c", &topic);
        until("the group is there", || {
            let polled = stage.client.try_poll("c", 200).ok()?;
            (polled.assignment.len() == 2).then_some(())
        });
        begin(stage, "p", 60_000);
        for (end, offset) in [("commit_transaction", 7), ("abort_transaction", 9)] {
            stage.client.transaction("begin_transaction", "p");
            stage.client.send("p", &topic, &records(0..4));
            let sent = stage
                .client
                .try_send_offsets("p", "c", &topic, &[(0, offset)]);
            sent.expect("offsets are sent with the transaction");
            stage.client.transaction(end, "p");
        }
        let offsets = until("what was committed", || {
            let offsets = stage.client.try_committed("c", &topic, &[0]).ok()?;
            (!offsets.is_empty()).then_some(offsets)
        });
        assert_eq!(offsets[0].offset, 7);
    }
);

scenario!(
    records_are_copied_once_over_kills,
    KILLED,
    anyone,
    |stage: &mut Stage| {
        let (from, group) = (stage.topic.clone(), stage.group.clone());
        let to = format!("{from}-copy");
        stage.client.create_topic(&from, 2, &[]);
        stage.client.create_topic(&to, 2, &[]);
        let total = 600;
        let ends = copying::fill(&mut stage.client, &from, total);
        let (mut transactions, mut kills) = (0, Vec::new());
        let broker = &mut stage.broker;
        let mut copying = Copying {
            client: &mut stage.client,
            from: &from,
            to: &to,
            group: &group,
            ends,
        };
        copying.run(|moment| {
            transactions += usize::from(moment == Moment::BeforeCommit);
            let wanted = match kills.len() % 2 {
                0 => Moment::BeforeCommit,
                _ => Moment::AfterCommit,
            };
            if kills.len() < 4 && moment == wanted {
                kills.push(moment);
                broker.kill();
                broker.restart();
            }
        });
        let copied = copying::read(&mut stage.client, "judge", &to, total);
        assert_eq!(copied, texts(0..total), "each once");
        assert!(!kills.is_empty(), "in {transactions} transactions");
    }
);
