//! A compacted stream with replicas: whoever is killed while groups are rewritten, the newest value of each key stays,
//! and every recorded replica has the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use crate::asking;
use crate::clock::Clock;
use crate::common::held_bytes::{digest, has_records};
use crate::common::holdings::settled;
use crate::common::machine::skip;
use crate::common::{PATIENCE, command, kera};
use crate::etcd::Etcd;
use crate::local::Local;
use crate::nodes::{BROKERS, LEASE};
use crate::rest::Recorded;

const KEYS: u64 = 300;
/// Records of a round.
const ROUND: u64 = 12_000;

/// A cluster with one compacted stream.
struct Keyed {
    cluster: Local,
    /// The last value of each key.
    last: BTreeMap<String, String>,
    written: u64,
}

impl Keyed {
    /// None, and said so, where there is no etcd.
    fn begin(name: &str) -> Option<Self> {
        if let Some(reason) = Etcd::lacking().or_else(Clock::lacking) {
            skip(name, &reason);
            return None;
        }
        let this = Self {
            cluster: Local::start(BROKERS, LEASE),
            last: BTreeMap::new(),
            written: 0,
        };
        let create = [
            ["stream", "create"],
            ["s", "--json"],
            ["--streamlets", "2"],
            ["--cleanup", "compact"],
            ["--replicas", "3"],
            ["--min-insync-replicas", "2"],
            ["--min-dirty-ratio", "0.01"],
            ["--segment-size", "64KiB"],
            ["--segments-per-group", "2"],
            ["--max-batch-bytes", "16KiB"],
        ];
        let made: Value = this.asked(&create.concat(), |text| serde_json::from_str(text).ok());
        assert_eq!(
            (&made["cleanup"], &made["replicas"]),
            (&"compact".into(), &3.into())
        );
        Some(this)
    }

    fn asked<T>(&self, words: &[&str], look: impl Fn(&str) -> Option<T>) -> T {
        asking::until(&self.cluster.bootstrap(), words, look)
    }

    /// Produces a round of records while `meanwhile` happens; all are acknowledged in the end.
    fn round(&mut self, meanwhile: impl FnOnce(&mut Local)) {
        let mut input = String::new();
        for n in self.written..self.written + ROUND {
            let key = format!("key{}", (n * n + n / 3) % KEYS);
            let value = format!("{n:08}-{}", "v".repeat((n % 90) as usize));
            input += &format!("{key},{value}\n");
            self.last.insert(key, value);
        }
        self.written += ROUND;
        let mut produce = kera();
        produce.args(["produce", "s", "-q", "--key-separator", ","]);
        produce
            .args(["--batch-size", "4KiB"])
            .env("KERA_BOOTSTRAP", self.cluster.bootstrap());
        let producing = std::thread::spawn(move || {
            command::run(produce, input.as_bytes(), 3 * PATIENCE);
        });
        meanwhile(&mut self.cluster);
        producing.join().expect("all was acknowledged");
    }

    fn records(&self) -> Vec<(String, String)> {
        let lines = self.asked(&["consume", "s", "--format", "jsonl"], |text| {
            let lines = text.lines().map(|line| serde_json::from_str(line).ok());
            lines.collect::<Option<Vec<Value>>>()
        });
        let text = |record: &Value, field: &str| record[field].as_str().expect("text").to_owned();
        let pairs = lines.iter();
        pairs
            .map(|record| (text(record, "key"), text(record, "value")))
            .collect()
    }

    fn last_is_there(&self, when: &str) {
        let found: BTreeMap<_, _> = self.records().into_iter().collect();
        assert!(
            found == self.last,
            "{when}: {} of {} keys",
            found.len(),
            self.last.len()
        );
    }

    fn compact(&self) {
        self.asked(&["stream", "compact", "s"], |_| Some(()));
    }

    /// Every recorded replica of every group is there, with the same bytes; how many groups were rewritten.
    fn replicas_are_alike(&self) -> usize {
        let recorded = Recorded::at(&self.cluster.store.address());
        let directories = self.cluster.directories();
        settled(|| recorded.image(), &directories);
        let (image, stream) = (recorded.image(), recorded.stream("s"));
        let groups = image.groups.iter();
        let groups = groups.filter(|group| Some(group.stream) == stream && has_records(group));
        let mut rewritten = 0;
        for group in groups {
            let brokers = group.copies.iter().map(|copy| copy.broker.0);
            let at = |number: u32| &directories[number as usize - 1];
            let digests = brokers.map(|broker| digest(at(broker), group));
            let digests: Result<BTreeSet<_>, _> = digests.collect();
            let digests = digests.unwrap_or_else(|why| panic!("{}: {why}", group.key()));
            assert_eq!(digests.len(), 1, "replicas of {} differ", group.key());
            assert!(group.copies.len() >= 2, "{group:?}");
            rewritten += usize::from(group.generation > 0);
        }
        rewritten
    }
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "some moment in the middle of the work is what is wanted"
)]
fn a_compacted_stream_with_replicas_outlives_kills_of_whoever_rewrites_it() {
    let name = "a_compacted_stream_with_replicas";
    let Some(mut keyed) = Keyed::begin(name) else {
        return;
    };
    for round in 0..4_u64 {
        keyed.round(|cluster| {
            let owner = cluster.owner("s").0;
            // Who owns it is killed in the middle of whatever it does, and once who has replicas alone.
            let number = if round == 2 {
                owner % BROKERS + 1
            } else {
                owner
            };
            std::thread::sleep(Duration::from_millis(300 + 170 * round));
            cluster.broker(number).kill();
            cluster
                .broker(number)
                .restart_in_vain(Duration::from_millis(90 * round));
            // Others take over, and rewrite groups that it does not hear of.
            std::thread::sleep(LEASE + Duration::from_millis(500));
            cluster.broker(number).restart();
        });
        keyed.last_is_there(&format!("round {round}"));
    }
    keyed.compact();
    let left = keyed.records();
    assert_eq!(left.len(), keyed.last.len(), "one record of each key");
    keyed.last_is_there("at the end");
    assert!(keyed.replicas_are_alike() > 0, "nothing was rewritten");
    let logs: Vec<_> = keyed.cluster.brokers.iter().map(|b| b.log()).collect();
    let told = |what: &str| logs.iter().any(|log| log.contains(what));
    assert!(told("a lane was compacted"));
    assert!(
        !told("panicked") && !told("is damaged"),
        "{}",
        logs.join("\n")
    );
}

#[test]
fn a_broker_that_comes_back_with_what_was_replaced_serves_what_is_recorded() {
    let name = "a_broker_that_comes_back_with_what_was_replaced";
    let Some(mut keyed) = Keyed::begin(name) else {
        return;
    };
    keyed.round(|_| ());
    let owner = keyed.cluster.owner("s").0;
    let [away, other] = [owner % BROKERS + 1, (owner + 1) % BROKERS + 1];
    keyed.cluster.broker(away).kill();
    keyed.round(|_| ());
    keyed.compact();
    let left = keyed.records();
    assert_eq!(left.len(), keyed.last.len(), "one record of each key");
    // It has files of the generation that was replaced, under the names of groups that are recorded.
    keyed.cluster.broker(away).restart();
    assert!(keyed.replicas_are_alike() > 0, "nothing was rewritten");
    // Each of the others ends, and what it owned goes on at whoever is left.
    for number in [owner, other] {
        keyed.cluster.broker(number).kill();
        let left = keyed.records();
        assert_eq!(left.len(), keyed.last.len(), "an old value came back");
        keyed.last_is_there("after a kill");
        keyed.cluster.broker(number).restart();
        assert!(keyed.replicas_are_alike() > 0);
    }
}
