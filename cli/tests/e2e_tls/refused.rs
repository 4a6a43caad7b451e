//! A broker whose certificate the others refuse: they take its streamlets over while it lives, everybody says why, and
//! with a good certificate it serves again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use kera_metadata::{ClusterStore, EtcdOptions, EtcdStore};
use serde_json::Value;

use crate::certificates::{Authority, Identity};
use crate::cluster::{Trio, records};
use crate::common::{PATIENCE, http};
use crate::tells;

const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];
const STATUS: [&str; 3] = ["cluster", "status", "--json"];
/// The broker whose certificate changes, by its place and its number.
const BAD: usize = 2;
const BAD_NUMBER: u64 = 3;

/// What `kera cluster status` says of a broker.
fn broker(status: &Value, number: u64) -> Value {
    let brokers = status["brokers"].as_array();
    let mut brokers = brokers.into_iter().flatten();
    let found = brokers.find(|one| one["broker_id"] == number);
    found.cloned().unwrap_or_default()
}

fn owns(status: &Value, number: u64) -> u64 {
    broker(status, number)["streamlets"].as_u64().unwrap_or(0)
}

fn is_refused(status: &Value) -> bool {
    broker(status, BAD_NUMBER)["state"] == "REFUSED"
}

/// Records that were sent, and of these those that were acknowledged.
#[derive(Default)]
struct Sent {
    all: BTreeSet<String>,
    acknowledged: BTreeSet<String>,
}

impl Sent {
    /// Sends thirty more; true if all were acknowledged.
    fn send(&mut self, trio: &Trio) -> bool {
        let begin = self.all.len();
        let new: Vec<String> = (begin..begin + 30).map(|n| n.to_string()).collect();
        let text: String = new.iter().map(|value| format!("{value}\n")).collect();
        let done = trio.attempt(0, &["produce", "clicks", "-q"], text.as_bytes());
        self.all.extend(new.iter().cloned());
        let acknowledged = done.status.success();
        if acknowledged {
            self.acknowledged.extend(new);
        }
        acknowledged
    }

    /// Waits until every acknowledged record is read, and nothing that was not sent.
    fn are_there(&self, trio: &Trio) {
        trio.until(0, &["stream", "describe", "clicks", "--json"], |told| {
            records(told) >= self.acknowledged.len() as u64
        });
        let read = trio.run(0, &["consume", "clicks"], b"");
        let read: BTreeSet<String> = read.lines().map(str::to_owned).collect();
        let lost: Vec<_> = self.acknowledged.difference(&read).collect();
        assert!(lost.is_empty(), "lost: {lost:?}");
        assert!(read.is_subset(&self.all));
    }
}

fn trio_of(authority: &Authority, identity: impl Fn(usize) -> Identity) -> Option<Trio> {
    let flags = [
        ["--tls-client-auth", "requested"],
        ["--http-listen", "127.0.0.1:0"],
    ];
    let trio = Trio::with(authority, identity, "native,cluster", flags.as_flattened())?;
    let create = ["stream", "create", "clicks", "--streamlets", "6"];
    trio.until(0, &STATUS, |status| {
        status["brokers"]
            .as_array()
            .is_some_and(|all| all.len() == 3)
    });
    trio.run(0, &[&create[..], &["--replicas", "3"]].concat(), b"");
    trio.until(0, &STATUS, |status| owns(status, BAD_NUMBER) > 0);
    Some(trio)
}

#[test]
fn others_take_over_from_a_broker_with_a_bad_certificate_until_it_has_a_good_one() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let good = |_| ours.broker(&NAMES);
    let Some(mut trio) = trio_of(&ours, good) else {
        return;
    };
    let mut sent = Sent::default();
    let bad = [
        (ours.expired(&NAMES), "it has expired", false),
        (
            ours.broker(&["elsewhere.example"]),
            "it is not for the name in",
            false,
        ),
        (other.broker(&NAMES), "it is signed by an authority", true),
    ];
    for (identity, reason, starts_anew) in bad {
        while !sent.send(&trio) {}
        trio.put(BAD, &identity);
        if starts_anew {
            trio.brokers[BAD].kill();
            trio.brokers[BAD].restart();
        }
        // Nobody waits for the end of its lease, which is a minute away at the least.
        let begin = Instant::now();
        loop {
            sent.send(&trio);
            let status = trio.run(0, &STATUS, b"");
            let status: Value = serde_json::from_str(&status).expect("JSON");
            if is_refused(&status) && owns(&status, BAD_NUMBER) == 0 {
                let problems = status["health"]["problems"].as_array();
                let mut problems = problems.into_iter().flatten();
                let told = problems.find(|one| one["object"] == "broker 3");
                let told = told.and_then(|one| one["problem"].as_str());
                let told = told.unwrap_or_default();
                assert!(told.starts_with("serves nobody: its certificate"), "{told}");
                assert!(told.contains(reason), "{told}");
                break;
            }
            assert!(begin.elapsed() < PATIENCE, "{status:#}");
        }
        tells(
            &trio.brokers[BAD],
            "the other brokers refuse the certificate of this one",
        );
        let ready = http::get(trio.brokers[BAD].http(), "/readyz");
        assert!(ready.contains("certificate refused: "), "{ready}");
        while !sent.send(&trio) {
            assert!(begin.elapsed() < PATIENCE, "{}", trio.brokers[0].log());
        }
        sent.are_there(&trio);

        trio.put(BAD, &ours.broker(&NAMES));
        trio.until(0, &STATUS, |status| {
            !is_refused(status) && owns(status, BAD_NUMBER) > 0
        });
        sent.are_there(&trio);
    }
}

#[test]
fn a_broker_that_one_of_two_others_refuses_keeps_what_it_owns() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let trusted = Authority::new("neither").and(&old).and(&new);
    let identity = |number| match number {
        3 => old.broker(&NAMES),
        _ => new.broker(&NAMES),
    };
    let Some(trio) = trio_of(&trusted, identity) else {
        return;
    };
    let store = EtcdStore::open(&trio.store(), EtcdOptions::default()).expect("the store");
    let store: Arc<dyn ClusterStore> = Arc::new(store);
    // The old authority is taken out at the second broker, and not at the first.
    trio.write(1, "ca.pem", &new.pem);
    let begin = Instant::now();
    tells(&trio.brokers[1], "its certificate is refused here");
    let refuses = |number: u32| {
        let living = store.living();
        let living = living.borrow();
        let found = living.get(&number);
        found.is_some_and(|live| live.refuses.contains_key(&3))
    };
    while !refuses(2) {
        assert!(begin.elapsed() < PATIENCE, "{}", trio.brokers[1].log());
        std::thread::yield_now();
    }
    trio.until(0, &STATUS, |status| {
        assert!(!is_refused(status), "{status:#}");
        assert!(owns(status, BAD_NUMBER) > 0, "{status:#}");
        true
    });
    assert!(
        !trio.brokers[BAD]
            .log()
            .contains("refuse the certificate of this one")
    );
    // Two of two do.
    trio.write(0, "ca.pem", &new.pem);
    trio.until(0, &STATUS, |status| {
        is_refused(status) && owns(status, BAD_NUMBER) == 0
    });
    tells(&trio.brokers[BAD], "by=[1, 2]");
    trio.write(0, "ca.pem", &trusted.pem);
    trio.until(0, &STATUS, |status| {
        !is_refused(status) && owns(status, BAD_NUMBER) > 0
    });
}
