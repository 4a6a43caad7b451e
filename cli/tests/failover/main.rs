//! Three brokers and a real etcd: streams are made, written and read through any of them, and what one
//! owned goes on at another when it is gone.

#[path = "../common/mod.rs"]
mod common;

mod disks;
mod import;
mod init;
mod isolation;
mod listed;
mod memory;
mod prepared;
mod replaced;
mod restored;
mod secured;
mod stuck_lane;
mod synced;

use kera_testkit::{certificates, etcd};
use std::time::{Duration, Instant};

use kera_metadata::{
    Compare, EtcdOptions, EtcdStore, MetadataError, MetadataStore, StreamletRecord, Transaction,
    Write,
};
use kera_protocol::ids::{Epoch, StreamId};
use serde_json::Value;

use common::place::{Place, start_each};
use common::{Broker, Finished, PATIENCE, finish, kera};
use etcd::Etcd;

/// Brokers 1 to 3 and their etcd.
struct Trio {
    brokers: Vec<Broker>,
    etcd: Etcd,
    places: Vec<Place>,
}

impl Trio {
    /// `None`, and said so, where there is no etcd.
    fn start() -> Option<Self> {
        Self::with(&[])
    }

    /// Likewise, with more flags for each broker.
    fn with(flags: &[&str]) -> Option<Self> {
        Self::started(flags, |_, flags| Broker::with(flags))
    }

    /// Likewise; `start` gets a broker's number and all its flags.
    fn started(flags: &[&str], start: impl FnMut(usize, &[&str]) -> Broker) -> Option<Self> {
        let etcd = Etcd::start()?;
        let made = EtcdStore::init(&etcd.address(), EtcdOptions::default());
        made.expect("the cluster is made");
        let store = etcd.address();
        let more = [&["--cluster-lease", "2s"], flags].concat();
        let cluster = ["--cluster", &store];
        let (brokers, places) = start_each(3, cluster, &more, start);
        Some(Self {
            brokers,
            etcd,
            places,
        })
    }

    fn bootstrap(&self) -> String {
        Broker::bootstrap(&self.brokers)
    }

    /// Runs a client command that may ask any of the brokers, until it succeeds.
    #[expect(
        clippy::disallowed_methods,
        reason = "nobody tells when brokers have heard of each other"
    )]
    fn run(&self, bootstrap: &str, words: &[&str], input: &[u8]) -> Finished {
        let begin = Instant::now();
        loop {
            let mut command = kera();
            command.args(words).env("KERA_BOOTSTRAP", bootstrap);
            let finished = finish(command, input);
            if finished.status.success() {
                return finished;
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "kera {}: {} {}",
                words.join(" "),
                finished.text(),
                finished.stderr
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// `kera stream describe --groups` tells where the replicas of open groups are. At rest that `is_right`, of what is
    /// placed, what is flushed, and the group's end.
    fn positions_are_told(&self, stream: &str, is_right: impl Fn(&Value, &Value, &Value) -> bool) {
        let broker = &self.brokers[0];
        let describe = ["stream", "describe", stream];
        let replicas = |described: &Value| -> Vec<Value> {
            let lanes = described["lane_descriptions"].as_array().expect("lanes");
            let of = |lane: &Value| lane["replicas"].as_array().expect("replicas").clone();
            lanes.iter().flat_map(of).collect()
        };
        broker.until(&describe, |described| {
            let told = replicas(described);
            let right = |at: &Value| is_right(&at["placed"], &at["flushed"], &at["end"]);
            !told.is_empty() && told.len() % 3 == 0 && told.iter().all(right)
        });
        let text = broker.run(&["stream", "describe", stream, "--groups"]);
        let words = ["OPEN GROUP", "PLACED", "FLUSHED", "whole"];
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }

    fn consume(&self, bootstrap: &str, stream: &str) -> Vec<String> {
        let finished = self.run(bootstrap, &["consume", stream], b"");
        let mut lines: Vec<_> = finished.text().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

fn lines(range: std::ops::Range<usize>) -> Vec<String> {
    range
        .map(|n| format!("{n:08} {}", "x".repeat(90)))
        .collect()
}

fn text(lines: &[String]) -> Vec<u8> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    text.into_bytes()
}

/// Gives everything that `from` owns to the brokers in `to`, in turn, as the controller does, which may be
/// faster.
fn reassign(store: &EtcdStore, from: u32, to: &[u32]) {
    let image = store.load().expect("it can be read");
    let owned = image.streamlets.iter().filter(|s| s.owner == from);
    for (streamlet, owner) in owned.zip(to.iter().cycle()) {
        let compare = Compare::streamlet(streamlet);
        let next = StreamletRecord {
            owner: *owner,
            epoch: Epoch(streamlet.epoch.0 + 1),
            ..streamlet.clone()
        };
        let transaction = Transaction::new(vec![compare], vec![Write::PutStreamlet(next)]);
        match store.commit(transaction) {
            Ok(_) | Err(MetadataError::Conflict(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn an_owner_that_is_killed_is_followed_by_others_and_nothing_is_lost() {
    let Some(mut trio) = Trio::start() else {
        return;
    };
    let all = trio.bootstrap();
    let create = [
        "stream",
        "create",
        "clicks",
        // An attempt whose answer was lost may have made it.
        "--if-not-exists",
        "--streamlets",
        "6",
        "--replicas",
        "3",
        "--min-insync-replicas",
        "2",
        "--segment-size",
        "64KiB",
        "--segments-per-group",
        "2",
    ];
    let store = EtcdStore::open(&trio.etcd.address(), EtcdOptions::default());
    let store = store.expect("it opens");
    trio.run(trio.brokers[1].address(), &create, b"");
    let id: StreamId = store
        .stream_named("clicks")
        .expect("it is read")
        .expect("it is recorded");
    let owners = |store: &EtcdStore| {
        let image = store.load().expect("it can be read");
        let mut owners: Vec<_> = image.streamlets_of(id).iter().map(|s| s.owner).collect();
        owners.sort_unstable();
        owners
    };
    // As it begins; a lease that ends on a busy machine changes it.
    assert_eq!(owners(&store), [1, 1, 2, 2, 3, 3]);
    // Any broker tells where everything is.
    let (first, last) = (trio.brokers[0].address(), trio.brokers[2].address());
    let early = lines(0..3000);
    let produce = ["produce", "clicks", "--quiet", "--batch-size", "4KiB"];
    trio.run(first, &produce, &text(&early));
    assert_eq!(trio.consume(last, "clicks"), early);

    trio.brokers[1].kill();
    reassign(&store, 2, &[1, 3]);
    let late = lines(3000..6000);
    trio.run(&all, &produce, &text(&late));
    assert_eq!(trio.consume(&all, "clicks"), lines(0..6000));
    assert!(!owners(&store).contains(&2));

    // It comes back to what is still its own, which is nothing, and keeps copies again.
    trio.brokers[1].restart();
    let again = trio.brokers[1].address().to_owned();
    trio.run(&again, &produce, &text(&lines(6000..7000)));
    assert_eq!(trio.consume(&again, "clicks"), lines(0..7000));
}
