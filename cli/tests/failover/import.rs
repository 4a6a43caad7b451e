//! `kera cluster import`: brokers that worked alone go on in a cluster, with all that was there.

use kera_broker::import::Import;
use kera_metadata::{
    Compare, Counter, EmbeddedOptions, EmbeddedStore, EtcdAccess, Key, MetadataError,
    MetadataStore, Replica, Transaction, Write,
};
use kera_protocol::ids::{BrokerId, Incarnation};
use serde_json::Value;
use uuid::Uuid;

use crate::common::place::Place;
use crate::common::{Broker, Finished, finish, kera};
use crate::etcd::Etcd;
use crate::{lines, text};

/// An etcd with an empty cluster in it; `None`, and said so, where there is none.
fn cluster() -> Option<Etcd> {
    let etcd = Etcd::start()?;
    let mut init = kera();
    init.args(["cluster", "init", "--cluster", &etcd.address()]);
    let made = finish(init, b"");
    assert!(made.status.success(), "{}", made.stderr);
    Some(etcd)
}

fn import(broker: &Broker, etcd: &Etcd, more: &[&str]) -> Finished {
    let mut command = kera();
    command
        .args(["cluster", "import", "--cluster", &etcd.address()])
        .arg("--data-dir")
        .arg(broker.data_dir())
        .args(more);
    finish(command, b"")
}

/// An import that must succeed, as JSON.
fn imported(broker: &Broker, etcd: &Etcd, more: &[&str]) -> Value {
    let finished = import(broker, etcd, &[&["--json"], more].concat());
    assert!(finished.status.success(), "{}", finished.stderr);
    serde_json::from_str(&finished.text()).expect("JSON")
}

/// What a broker that cannot start says.
fn start_refused(broker: &Broker) -> String {
    let finished = finish(broker.command(), b"");
    assert_eq!(finished.status.code(), Some(1), "{}", finished.text());
    finished.stderr
}

fn set_flags(broker: &mut Broker, flags: &[String]) {
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    broker.set_flags(&flags);
}

fn produce(broker: &Broker, stream: &str, lines: &[String]) {
    let words = ["produce", stream, "--quiet", "--batch-size", "4KiB"];
    broker.feed(&words, &text(lines));
}

/// Every record of a stream with its lane, ordinal and time, sorted.
fn records(broker: &Broker, stream: &str) -> Vec<String> {
    let text = broker.run(&["consume", stream, "--metadata"]);
    let mut records: Vec<_> = text.lines().map(str::to_owned).collect();
    records.sort();
    records
}

/// Makes the directory of a stopped broker that of one with `cluster.peers`, as versions before this one left
/// it: the same records in a new file, but `stream` with two replicas. Its closed groups have a second one, unless
/// broker `at` is `None`: then they lack it, as when that one was away.
fn had_a_peer(broker: &Broker, stream: &str, at: Option<u32>) {
    let path = broker.data_dir().join("metadata.redb");
    let open = || EmbeddedStore::open(&path, EmbeddedOptions::default()).expect("nobody has it");
    let old = open();
    let image = old.load().expect("it is read");
    old.close();
    drop(old);
    std::fs::remove_file(&path).expect("it is removed");
    let store = open();
    let commit = |compare, write| {
        let done = store.commit(Transaction::new(compare, vec![write]));
        done.expect("it is written");
    };
    for broker in image.brokers.iter().cloned() {
        let (id, revision) = (broker.id, 0);
        let compare = Compare::revision(Key::Broker(id), revision);
        commit(vec![compare], Write::PutBroker(broker));
    }
    for (counter, value) in &image.counters {
        if *counter == Counter::ProducerIds {
            let given = store.allocate_producer_ids(value - 1);
            given.expect("they are given out");
        }
    }
    let mut closed = 0;
    for record in &image.streams {
        let (mut new, streamlets) = (record.clone(), image.streamlets_of(record.id));
        let is_it = record.name == stream;
        if is_it {
            (new.config.replicas, new.config.min_insync_replicas) = (2, 1);
        }
        let made = store.create_stream(new, streamlets[0].owner);
        let (_, made) = made.expect("it is recorded");
        for (streamlet, made) in streamlets.iter().zip(made) {
            let compare = Compare::streamlet(&made);
            commit(vec![compare], Write::PutStreamlet(streamlet.clone()));
            for group in image.groups_of(streamlet.stream, streamlet.streamlet) {
                let mut group = group.clone();
                if is_it && group.is_closed() {
                    closed += 1;
                    group.copies.extend(at.map(of_a_peer));
                }
                let (key, revision) = (group.key(), 0);
                let compare = Compare::revision(Key::Group(key), revision);
                let epoch = Compare::epoch(streamlet);
                commit(vec![epoch, compare], Write::PutGroup(group));
            }
        }
    }
    assert!(closed > 0, "stream {stream} has closed groups");
    store.close();
}

/// A copy in shared memory that nobody finds any more.
fn of_a_peer(broker: u32) -> Replica {
    Replica {
        broker: BrokerId(broker),
        incarnation: Incarnation {
            store_id: Uuid::from_u128(7),
            boot_id: Uuid::from_u128(8),
        },
    }
}

/// A broker alone that has replicas of `stream` elsewhere does not start, and says what to do.
fn needs_others(broker: &Broker, stream: &str) {
    let said = start_refused(broker);
    let data_dir = broker.data_dir().display().to_string();
    for part in [
        &format!("stream {stream} has replicas at other brokers"),
        "works alone",
        "kera cluster import --data-dir",
        &data_dir,
    ] {
        assert!(said.contains(part), "no `{part}` in: {said}");
    }
}

#[test]
fn a_broker_alone_goes_on_in_a_cluster_with_records_ordinals_and_commits() {
    let Some(etcd) = cluster() else { return };
    let mut broker = Broker::start();
    let small = ["--segment-size", "64KiB", "--segments-per-group", "2"];
    let create = ["stream", "create", "clicks", "--streamlets", "3"];
    broker.run(&[&create[..], &["--lanes", "2"], &small].concat());
    broker.run(&["stream", "create", "gone"]);
    produce(&broker, "clicks", &lines(0..3000));
    let read = ["consume", "clicks", "--group", "readers"];
    let first = broker.run(&[&read[..], &["--max", "1000"]].concat());
    assert_eq!(first.lines().count(), 1000);
    broker.run(&["stream", "delete", "gone", "--yes"]);
    let before = records(&broker, "clicks");

    // While it runs its directory is its own.
    let refused = import(&broker, &etcd, &[]);
    assert!(refused.stderr.contains("in use"), "{}", refused.stderr);
    // Killed, so that groups are left open.
    broker.kill();
    let dry = imported(&broker, &etcd, &["--dry-run"]);
    assert_eq!(dry["outcome"], "dry run");
    let streams = dry["streams"].as_array().expect("a list");
    let clicks = streams.iter().find(|s| s["name"] == "clicks");
    assert_eq!(clicks.expect("it is listed")["streamlets"], 3);
    assert!(streams.iter().any(|s| s["name"] == "_kera_groups"));
    // Nothing was changed: it may still go on alone.
    broker.restart();
    assert_eq!(records(&broker, "clicks"), before);
    broker.kill();

    // Ended in the middle, as by a crash: no broker starts there, alone or not, until the rest is done.
    let place = Place::new();
    let store = etcd.address();
    let half = Import::open(broker.data_dir(), &store, &EtcdAccess::default()).expect("it opens");
    let ended = half.run(&mut |progress| match progress.written {
        0 => Ok(()),
        _ => Err(MetadataError::Closed),
    });
    ended.expect_err("it was ended");
    drop(half);
    let says_so = |broker: &Broker| {
        let said = start_refused(broker);
        assert!(said.contains("was begun and did not end"), "{said}");
    };
    says_so(&broker);
    let together = place.flags(1, ["--cluster", &store]);
    set_flags(&mut broker, &together);
    says_so(&broker);
    let done = imported(&broker, &etcd, &[]);
    assert_eq!(done["outcome"], "imported", "{done:#}");
    assert_eq!(
        (&done["broker_id"], &done["resumed"]),
        (&1.into(), &true.into())
    );
    set_flags(&mut broker, &[]);
    let said = start_refused(&broker);
    assert!(said.contains("were imported into cluster"), "{said}");
    assert_eq!(imported(&broker, &etcd, &[])["outcome"], "imported before");

    set_flags(&mut broker, &together);
    broker.restart();
    assert_eq!(records(&broker, "clicks"), before);
    let rest = broker.run(&read);
    assert_eq!(rest.lines().count(), 2000, "the group goes on where it was");
    let mut both: Vec<_> = first.lines().chain(rest.lines()).collect();
    both.sort_unstable();
    assert_eq!(both, lines(0..3000));
    // And on: ordinals follow those that were.
    produce(&broker, "clicks", &lines(3000..3500));
    let after = records(&broker, "clicks");
    assert_eq!(after.len(), 3500);
    assert!(
        before
            .iter()
            .all(|record| after.binary_search(record).is_ok())
    );
    // Another one while the cluster is at work.
    let mut other = Broker::start();
    other.run(&["stream", "create", "late"]);
    other.kill();
    let refused = import(&other, &etcd, &[]).stderr;
    for part in [
        "nothing was imported",
        "broker 1 of the cluster is alive",
        "another broker 1",
    ] {
        assert!(refused.contains(part), "no `{part}` in: {refused}");
    }
    other.restart();
    assert_eq!(records(&other, "late"), [""; 0]);
}

#[test]
fn a_pair_with_replicas_goes_on_in_a_cluster_and_one_follows_the_other() {
    let Some(etcd) = cluster() else { return };
    let places = [Place::new(), Place::new()];
    let numbers = ["1", "2"];
    let mut brokers = numbers.map(|number| Broker::with(&["--broker-id", number]));
    for (broker, stream) in brokers.iter_mut().zip(["one", "two"]) {
        let create = ["stream", "create", stream, "--streamlets", "2"];
        let small = ["--segment-size", "64KiB", "--segments-per-group", "2"];
        broker.run(&[&create[..], &small].concat());
        produce(broker, stream, &lines(0..1600));
        // So that groups are recorded as closed, and others as open.
        assert!(broker.stop().success());
        broker.restart();
        produce(broker, stream, &lines(1600..2000));
    }
    let before = [records(&brokers[0], "one"), records(&brokers[1], "two")];
    for (broker, stream) in brokers.iter_mut().zip(["one", "two"]) {
        broker.kill();
        had_a_peer(broker, stream, None);
        needs_others(broker, stream);
    }
    for broker in &brokers {
        let done = imported(broker, &etcd, &[]);
        assert_eq!(done["outcome"], "imported", "{done:#}");
        let streams = done["streams"].as_array().expect("a list");
        assert!(streams.iter().any(|s| s["replicas"] == 2), "{done:#}");
    }
    let store = etcd.address();
    for (number, (broker, place)) in (1..).zip(brokers.iter_mut().zip(&places)) {
        let mut flags = place.flags(number, ["--cluster", &store]);
        flags.extend(["--cluster-lease", "2s"].map(str::to_owned));
        flags.extend(["--cluster-repair-interval", "200ms"].map(str::to_owned));
        set_flags(broker, &flags);
        broker.restart();
    }
    let both = format!("{},{}", brokers[0].address(), brokers[1].address());
    let read = |stream: &str| {
        let mut command = kera();
        command
            .args(["consume", stream, "--metadata"])
            .env("KERA_BOOTSTRAP", &both);
        let finished = finish(command, b"");
        let mut records: Vec<_> = finished.text().lines().map(str::to_owned).collect();
        records.sort();
        records
    };
    for (stream, before) in ["one", "two"].iter().zip(&before) {
        wait_for(stream, before, &read);
    }
    // What had replicas without failover has it now, once all of them are whole.
    brokers[0].until(&["stream", "describe", "one"], |told| {
        told["under_replicated_groups"] == 0
    });
    brokers[0].kill();
    wait_for("one", &before[0], &read);
    brokers[1].until(&["stream", "list"], |listed| {
        let streams = listed.as_array().expect("a list");
        let one = streams
            .iter()
            .find(|s| s["name"] == "one")
            .expect("it is there");
        let owners = one["owners"].as_array().expect("a list");
        owners.iter().all(|o| o["owner"] == brokers[1].address())
    });
    produce(&brokers[1], "one", &lines(2000..2500));
    assert_eq!(read("one").len(), 2500);
}

#[test]
fn what_a_broker_had_with_a_replica_store_is_served_and_a_replica_store_gets_it_again() {
    let Some(etcd) = cluster() else { return };
    let places = [Place::new(), Place::new()];
    let mut broker = Broker::start();
    let small = ["--segment-size", "64KiB", "--segments-per-group", "2"];
    broker.run(&[&["stream", "create", "kept"][..], &small].concat());
    produce(&broker, "kept", &lines(0..2000));
    let before = records(&broker, "kept");
    // SIGTERM: what is open is closed while the other replica is there.
    assert!(broker.stop().success());
    had_a_peer(&broker, "kept", Some(2));
    needs_others(&broker, "kept");
    imported(&broker, &etcd, &[]);
    let address = etcd.address();
    let mut flags = places[0].flags(1, ["--cluster", &address]);
    flags.extend(["--cluster-repair-interval", "200ms"].map(str::to_owned));
    set_flags(&mut broker, &flags);
    broker.restart();
    let read = |stream: &str| records(&broker, stream);
    wait_for("kept", &before, &read);
    // With the number that it had.
    let kept = places[1].shared().display().to_string();
    let flags = [
        ["--cluster", &address],
        ["--broker-id", "2"],
        ["--replica-store-memory-bytes", "64MiB"],
        ["--replica-store-shared-dir", &kept],
    ];
    let store = Broker::backup(&flags.concat());
    // Once it is found that this one has none of them.
    let held = store.data_dir().join("backup");
    let has_some = || {
        let streams = held.read_dir().into_iter().flatten().flatten();
        streams.filter(|entry| entry.path().is_dir()).count() > 0
    };
    broker.until(&["stream", "describe", "kept"], |told| {
        told["under_replicated_groups"] == 0 && has_some()
    });
    wait_for("kept", &before, &read);
}

/// Reads until every record of a stream is there: streamlets recover while the broker serves.
fn wait_for(stream: &str, records: &[String], read: &impl Fn(&str) -> Vec<String>) {
    let begin = std::time::Instant::now();
    loop {
        let found = read(stream);
        if found == records {
            return;
        }
        assert!(
            begin.elapsed() < crate::PATIENCE,
            "{} records of {} of stream {stream}",
            found.len(),
            records.len()
        );
    }
}
