//! What earlier programs stored, kept as it lay on the disks after a kill: `scripts/stored.sh` makes it.

use std::path::Path;

use kera_metadata::{EtcdOptions, EtcdStore, MetadataStore};
use kera_testkit::etcd::Etcd;
use kera_testkit::{kafka, machine, namespaces};
use tempfile::TempDir;
use uuid::Uuid;

use crate::common::command::run;
use crate::common::holdings::{Directories, settled};
use crate::common::place::Place;
use crate::common::{Broker, PATIENCE, home};
use crate::{lines, read};

/// The newest cluster version.
const NEWEST: u64 = 7;

/// What is kept under this name, unpacked.
fn unpacked(name: &str) -> TempDir {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upgrade/stored");
    let home = home();
    let mut tar = std::process::Command::new("tar");
    tar.args(["--extract", "--file"])
        .arg(kept.join(format!("{name}.tar.gz")))
        .arg("--directory")
        .arg(home.path());
    run(tar, b"", PATIENCE);
    home
}

/// Records, positions, rules and users are there, more can be written, and all of it outlives a kill.
fn goes_on(broker: &mut Broker) {
    let clicks = |records: usize, broker: &Broker| {
        assert_eq!(read(broker, "clicks"), lines(0..records));
    };
    clicks(4_000, broker);
    assert_eq!(read(broker, "orders"), lines(0..3_000));
    // 1,000 were read and committed: the group goes on behind them.
    let consume = [
        "consume", "clicks", "--group", "counters", "--from", "earliest", "--max", "3000",
    ];
    assert_eq!(broker.run(&consume).lines().count(), 3_000);
    let group = broker.json(&["group", "describe", "counters"]);
    assert_eq!(group["lag"], 0, "{group}");
    let rules = broker.run(&["acl", "list"]);
    assert!(
        rules.contains("User:alice") && rules.contains("clicks"),
        "{rules}"
    );
    assert!(broker.run(&["user", "list"]).contains("alice"));
    let more: String = lines(4_000..4_500)
        .iter()
        .map(|line| format!("{line}\n"))
        .collect();
    let produce = ["produce", "clicks", "-q", "--key-separator", ","];
    broker.feed(&produce, more.as_bytes());
    broker.kill();
    broker.restart();
    clicks(4_500, broker);
}

/// Of each key the newest is there, wherever it was compacted.
fn tables_are_there(broker: &Broker) {
    let records = broker.run(&["consume", "tables", "--format", "jsonl"]);
    let mut newest = std::collections::BTreeMap::new();
    for line in records.lines() {
        let record: serde_json::Value = serde_json::from_str(line).expect("each line is JSON");
        let (key, value) = (record["key"].as_str(), record["value"].as_str());
        newest.insert(
            key.expect("text").to_owned(),
            value.expect("text").to_owned(),
        );
    }
    let newest: Vec<String> = newest
        .iter()
        .map(|(key, value)| format!("{key},{value}"))
        .collect();
    let mut expected = lines(2_993..3_000);
    expected.sort_unstable();
    assert_eq!(newest, expected);
}

#[test]
fn what_was_stored_before_cluster_versions_is_read() {
    let home = unpacked("before-cluster-versions");
    let mut broker = Broker::on(&home.path().join("data"), &[]);
    goes_on(&mut broker);
    let told = broker.json(&["cluster", "finalize", "--yes"]);
    assert_eq!(told["before"], 0);
}

/// What Kafka's listener answers: a request's API and version, correlation 7, no client id, no tags, and its body.
fn asked(broker: &Broker, [api, version]: [u8; 2], body: &[u8]) -> Vec<u8> {
    let head = [0, api, 0, version, 0, 0, 0, 7, 0xff, 0xff, 0];
    kafka::exchange(broker.kafka(), &[&head, body].concat())
}

/// How often the answer to ApiVersions names one of Kafka's features: once as known, and once more as in use.
fn named(broker: &Broker, feature: &str) -> usize {
    // Software and its version of one letter, no tags.
    let reply = asked(broker, [18, 3], &[2, b's', 2, b'1', 0]);
    let windows = reply.windows(feature.len());
    windows.filter(|found| *found == feature.as_bytes()).count()
}

/// With which code a broker answers a client that ends a transaction in the way of `transaction.version` 2.
fn end_code(broker: &Broker) -> u8 {
    // Id `t`, producer 5, epoch 1, a commit, no tags. Behind correlation, tags and throttle time comes the code.
    let body = [2, b't', 0, 0, 0, 0, 0, 0, 0, 5, 0, 1, 1, 0];
    asked(broker, [26, 5], &body)[10]
}

/// Waits while the coordinator still reads its state.
fn until_it_ends_with(broker: &Broker, code: u8) {
    let begin = std::time::Instant::now();
    loop {
        match end_code(broker) {
            14 => assert!(begin.elapsed() < PATIENCE, "it does not coordinate"),
            other => return assert_eq!(other, code),
        }
    }
}

#[test]
fn what_was_stored_under_cluster_version_1_is_read() {
    let home = unpacked("cluster-version-1");
    let data = home.path().join("data");
    let mut broker = Broker::on(&data, &["--kafka-listen", "127.0.0.1:0"]);
    goes_on(&mut broker);
    tables_are_there(&broker);
    // What came with a later version is known and not in use, however often the broker starts.
    assert_eq!(named(&broker, "group.version"), 2);
    assert_eq!(named(&broker, "transaction.version"), 1);
    // A client that heard of the feature from another broker is told to try again: COORDINATOR_LOAD_IN_PROGRESS.
    assert_eq!(end_code(&broker), 14);
    let finalize = ["cluster", "finalize", "--yes"];
    let told = broker.json(&finalize);
    assert_eq!(
        (&told["before"], &told["version"]),
        (&1.into(), &NEWEST.into())
    );
    for _ in 0..2 {
        assert_eq!(named(&broker, "transaction.version"), 2);
        // INVALID_PRODUCER_ID_MAPPING: the coordinator was asked.
        until_it_ends_with(&broker, 49);
        broker.kill();
        broker.restart();
    }
    let told = broker.json(&finalize);
    let settled = (&told["before"], &told["changed"]);
    assert_eq!(settled, (&NEWEST.into(), &false.into()));
}

#[test]
fn what_was_stored_under_cluster_version_2_is_read() {
    let home = unpacked("cluster-version-2");
    let data = home.path().join("data");
    let mut broker = Broker::on(&data, &["--kafka-listen", "127.0.0.1:0"]);
    goes_on(&mut broker);
    tables_are_there(&broker);
    // Of transactions, what was committed counts, and what was open is open, or over if its time is.
    let ledger = |broker: &Broker| broker.run(&["consume", "ledger"]);
    assert_eq!(ledger(&broker), "kept 0\nkept 1\nkept 2\n");
    let begin = std::time::Instant::now();
    while broker.json(&["transaction", "list"]) != serde_json::json!([]) {
        assert!(begin.elapsed() < PATIENCE, "it stays open");
        broker.attempt(&["transaction", "abort", "open", "--yes"], b"");
    }
    broker.feed(&["produce", "ledger", "-q"], b"after\n");
    assert_eq!(ledger(&broker), "kept 0\nkept 1\nkept 2\nafter\n");
    // It was in use, and stays so.
    assert_eq!(named(&broker, "transaction.version"), 2);
    until_it_ends_with(&broker, 49);
    // What came with a later version is refused, and its coordinators write nothing of it, until that is finalized.
    let by_key = ["consume", "clicks", "--group", "carts", "--order", "key"];
    let said = broker.refused(&by_key);
    assert!(said.contains("kera cluster finalize"), "{said}");
    let told = broker.json(&["cluster", "finalize", "--yes"]);
    assert_eq!(
        (&told["before"], &told["version"]),
        (&2.into(), &NEWEST.into())
    );
    for records in [4_500, 0] {
        assert_eq!(broker.run(&by_key).lines().count(), records);
        broker.kill();
        broker.restart();
    }
}

/// With which code a broker answers a member that joins a share group.
fn share_code(broker: &Broker) -> u8 {
    // Group `s`, member `m`, epoch 0, no rack, topic `clicks`, no tags.
    let body = [2, b's', 2, b'm', 0, 0, 0, 0, 0, 2, 7];
    let body = [&body[..], b"clicks", &[0]].concat();
    asked(broker, [76, 1], &body)[10]
}

#[test]
fn what_was_stored_under_cluster_version_3_is_read() {
    let home = unpacked("cluster-version-3");
    let data = home.path().join("data");
    let mut broker = Broker::on(&data, &["--kafka-listen", "127.0.0.1:0"]);
    goes_on(&mut broker);
    tables_are_there(&broker);
    // Of a group with the order of keys 1,000 were read.
    let by_key = ["consume", "clicks", "--group", "carts", "--order", "key"];
    assert_eq!(broker.run(&by_key).lines().count(), 3_500);
    // UNSUPPORTED_VERSION: share groups are known and not in use until their version is finalized.
    assert_eq!(named(&broker, "share.version"), 1);
    assert_eq!(share_code(&broker), 35);
    let told = broker.json(&["cluster", "finalize", "--yes"]);
    assert_eq!(
        (&told["before"], &told["version"]),
        (&3.into(), &NEWEST.into())
    );
    for _ in 0..2 {
        assert_eq!(named(&broker, "share.version"), 2);
        let begin = std::time::Instant::now();
        loop {
            match share_code(&broker) {
                // Its coordinator still reads its state.
                14 => assert!(begin.elapsed() < PATIENCE, "it does not coordinate"),
                code => break assert_eq!(code, 0),
            }
        }
        let group = broker.json(&["group", "describe", "s"]);
        assert_eq!(group["kafka_type"], "share", "{group}");
        assert_eq!(broker.run(&by_key), "");
        broker.kill();
        broker.restart();
    }
}

/// With which code a broker answers a producer that wants to keep an open transaction (KIP-939).
fn keep_code(broker: &Broker) -> u8 {
    // Id `t`, a timeout of one second, no producer id nor epoch, and it keeps what is open; no tags.
    let mut body = vec![2, b't', 0, 0, 3, 232];
    body.extend([0xff; 10]);
    body.extend([0, 1, 0]);
    asked(broker, [22, 6], &body)[10]
}

/// The same once its coordinator has read its state.
fn loaded_keep_code(broker: &Broker) -> u8 {
    let begin = std::time::Instant::now();
    loop {
        match keep_code(broker) {
            14 | 15 => assert!(begin.elapsed() < PATIENCE, "it does not coordinate"),
            code => return code,
        }
    }
}

#[test]
fn what_was_stored_under_cluster_version_4_is_read() {
    let home = unpacked("cluster-version-4");
    let data = home.path().join("data");
    let mut broker = Broker::on(&data, &["--kafka-listen", "127.0.0.1:0"]);
    goes_on(&mut broker);
    tables_are_there(&broker);
    assert_eq!(named(&broker, "share.version"), 2);
    // UNSUPPORTED_VERSION: two-phase commit of Kafka's clients waits until its version is finalized.
    assert_eq!(keep_code(&broker), 35);
    let told = broker.json(&["cluster", "finalize", "--yes"]);
    assert_eq!(
        (&told["before"], &told["version"]),
        (&4.into(), &NEWEST.into())
    );
    for _ in 0..2 {
        assert_eq!(loaded_keep_code(&broker), 0);
        broker.kill();
        broker.restart();
    }
}

#[test]
fn what_was_stored_under_cluster_version_5_is_read() {
    let home = unpacked("cluster-version-5");
    let mut broker = Broker::on(
        &home.path().join("data"),
        &["--kafka-listen", "127.0.0.1:0"],
    );
    goes_on(&mut broker);
    tables_are_there(&broker);
    assert_eq!(loaded_keep_code(&broker), 0);
    // A broker of that version would not deny what a rule about a role denies.
    let early = [
        &["role", "create", "readers", "User:alice"][..],
        &[
            "acl",
            "add",
            "--deny",
            "Role:readers",
            "--operation",
            "read",
            "--stream",
            "clicks",
        ],
    ];
    for words in early {
        let told = broker.refused(words);
        assert!(told.contains("needs cluster version 6"), "{told}");
    }
    let told = broker.json(&["cluster", "finalize", "--yes"]);
    assert_eq!(
        (&told["before"], &told["version"]),
        (&5.into(), &NEWEST.into())
    );
    for words in early {
        broker.run(words);
    }
    broker.kill();
    broker.restart();
    let roles = broker.json(&["role", "list"]);
    assert_eq!(
        (
            &roles[0]["name"],
            &roles[0]["members"][0],
            &roles[0]["rules"]
        ),
        (&"readers".into(), &"User:alice".into(), &1.into())
    );
}

#[test]
fn what_was_stored_under_cluster_version_6_is_read() {
    let home = unpacked("cluster-version-6");
    let mut broker = Broker::on(
        &home.path().join("data"),
        &["--kafka-listen", "127.0.0.1:0"],
    );
    goes_on(&mut broker);
    tables_are_there(&broker);
    let roles = broker.json(&["role", "list"]);
    assert_eq!(roles[0]["name"], "readers");
    // A broker of that version would delete what a pin needs.
    let early = ["pin", "create", "clicks", "savepoint", "--policy", "wait"];
    let told = broker.refused(&early);
    assert!(told.contains("a pin needs cluster version 7"), "{told}");
    assert_eq!(broker.json(&["pin", "list"]), serde_json::json!([]));
    let told = broker.json(&["cluster", "finalize", "--yes"]);
    assert_eq!(
        (&told["before"], &told["version"]),
        (&6.into(), &NEWEST.into())
    );
    broker.run(&early);
    broker.kill();
    broker.restart();
    let pins = broker.json(&["pin", "list"]);
    assert_eq!(
        (&pins[0]["name"], &pins[0]["state"], &pins[1]),
        (
            &"savepoint".into(),
            &"kept".into(),
            &serde_json::Value::Null
        )
    );
}

/// Two brokers and a replica store over the directories that three of an earlier version left behind, and its etcd.
struct Cluster {
    brokers: Vec<Broker>,
    store: Broker,
    etcd: Etcd,
    places: Vec<Place>,
    _home: TempDir,
}

/// Begins processes on a machine that has this boot, as far as they can see. What was in memory counts in no other.
fn booted_as(boot: Uuid, home: &Path) -> Vec<String> {
    let file = home.join("boot_id");
    std::fs::write(&file, format!("{boot}\n")).expect("a file");
    let file = file.to_str().expect("a path is text");
    let mount = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
    ["unshare", "--mount", "--", "sh", "-c", mount, file]
        .map(str::to_owned)
        .to_vec()
}

impl Cluster {
    /// `None`, and said so, where there is no etcd, or no namespace can be made.
    fn unpacked(name: &str) -> Option<Self> {
        if let Some(reason) = namespaces::lacking() {
            machine::skip_this(&reason);
            return None;
        }
        let home = unpacked(name);
        let etcd = Etcd::on(&home.path().join("etcd"))?;
        let store = EtcdStore::open(&etcd.address(), EtcdOptions::default());
        let image = store.and_then(|store| store.load()).expect("it is read");
        // All of it was stored on one machine. What was flushed names no boot.
        let replicas = image.groups.iter().flat_map(|group| &group.copies);
        let mut boots = replicas.map(|replica| replica.incarnation.boot_id);
        let boot = boots
            .find(|boot| !boot.is_nil())
            .expect("replicas in memory");
        let within = booted_as(boot, home.path());
        let places: Vec<_> = (1..=3).map(|number| place(home.path(), number)).collect();
        let start = |number: usize, start: fn(Vec<String>, &Path, &[&str]) -> Broker| {
            let url = etcd.address();
            let mut flags = places[number - 1].flags(number, ["--cluster", &url]);
            flags.extend(["--cluster-repair-interval", "200ms"].map(str::to_owned));
            // The address of a replica store is its only one.
            if number == 3 {
                let at = flags.iter().position(|flag| flag == "--replication-listen");
                let at = at.expect("it is told where replicas come");
                flags.drain(at..at + 2);
            }
            let flags: Vec<_> = flags.iter().map(String::as_str).collect();
            let data = home.path().join(format!("broker{number}"));
            start(within.clone(), &data, &flags)
        };
        Some(Self {
            brokers: vec![start(1, Broker::on_within), start(2, Broker::on_within)],
            store: start(3, Broker::backup_on_within),
            etcd,
            places,
            _home: home,
        })
    }

    /// Waits until what is recorded is what they hold; no recorded replica may lack its bytes.
    fn settles(&self) {
        let store = EtcdStore::open(&self.etcd.address(), EtcdOptions::default());
        let store = store.expect("it opens");
        let members = self.brokers.iter().chain([&self.store]).zip(&self.places);
        let directories = (1..)
            .zip(members)
            .map(|(broker, (member, place))| Directories {
                broker,
                kept: vec![place.shared().into(), member.data_dir().join("backup")],
                data: member.data_dir().into(),
                runs: true,
                harmed: false,
            });
        let directories: Vec<_> = directories.collect();
        settled(|| store.load().expect("it is read"), &directories);
    }
}

/// What the member with this number needs, with what it had in memory.
fn place(home: &Path, number: usize) -> Place {
    let place = Place::new();
    let mut copy = std::process::Command::new("cp");
    copy.arg("--archive")
        .arg(home.join(format!("memory{number}")).join("."))
        .arg(place.shared());
    run(copy, b"", PATIENCE);
    place
}

#[test]
fn what_a_cluster_stored_before_cluster_versions_is_read() {
    let Some(mut cluster) = Cluster::unpacked("before-cluster-versions-in-a-cluster") else {
        return;
    };
    cluster.settles();
    goes_on(&mut cluster.brokers[0]);
    cluster.settles();
    let told = cluster.brokers[1].json(&["cluster", "finalize", "--yes"]);
    assert_eq!(told["before"], 0);
}

/// What is stored under a name and a cluster version, with compacted streams in it.
fn a_cluster_is_read_with_tables(name: &str, version: u32) {
    let Some(mut cluster) = Cluster::unpacked(name) else {
        return;
    };
    cluster.settles();
    goes_on(&mut cluster.brokers[0]);
    tables_are_there(&cluster.brokers[1]);
    cluster.settles();
    let told = cluster.brokers[1].json(&["cluster", "finalize", "--yes"]);
    assert_eq!(told["before"], version);
}

#[test]
fn what_a_cluster_stored_under_cluster_version_1_is_read() {
    a_cluster_is_read_with_tables("cluster-version-1-in-a-cluster", 1);
}

#[test]
fn what_a_cluster_stored_under_cluster_version_2_is_read() {
    a_cluster_is_read_with_tables("cluster-version-2-in-a-cluster", 2);
}

#[test]
fn what_a_cluster_stored_under_cluster_version_3_is_read() {
    a_cluster_is_read_with_tables("cluster-version-3-in-a-cluster", 3);
}

#[test]
fn what_a_cluster_stored_under_cluster_version_4_is_read() {
    a_cluster_is_read_with_tables("cluster-version-4-in-a-cluster", 4);
}

#[test]
fn what_a_cluster_stored_under_cluster_version_5_is_read() {
    a_cluster_is_read_with_tables("cluster-version-5-in-a-cluster", 5);
}

#[test]
fn what_a_cluster_stored_under_cluster_version_6_is_read() {
    a_cluster_is_read_with_tables("cluster-version-6-in-a-cluster", 6);
}
