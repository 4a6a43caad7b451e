//! A stream with `ack = memory` and replicas: what an owner acknowledged before its file had it is at other brokers
//! when the owner's process is gone.

use std::collections::BTreeSet;
use std::fs;

use kera_metadata::{EtcdOptions, EtcdStore, GroupRecord, MetadataStore};

use super::{Trio, lines, text};

const CREATE: [&str; 13] = [
    "stream",
    "create",
    "clicks",
    "--streamlets",
    "3",
    "--replicas",
    "3",
    "--min-insync-replicas",
    "2",
    "--ack",
    "memory",
    "--segment-size",
    "64KiB",
];
const PRODUCE: [&str; 5] = ["produce", "clicks", "--quiet", "--batch-size", "4KiB"];

impl Trio {
    fn groups_of_clicks(&self) -> Vec<GroupRecord> {
        let store = EtcdStore::open(&self.etcd.address(), EtcdOptions::default());
        let image = store.expect("it opens").load().expect("it can be read");
        image.groups
    }

    /// The boots that records of open or closed groups name for a broker's replicas.
    fn boots_at(&self, broker: u32, closed: bool) -> BTreeSet<String> {
        let groups = self.groups_of_clicks();
        let groups = groups.iter().filter(|group| group.is_closed() == closed);
        let replicas = groups.flat_map(|group| group.copies.iter());
        let at = replicas.filter(|replica| replica.broker.0 == broker);
        at.map(|replica| replica.incarnation.boot_id.to_string())
            .collect()
    }
}

#[test]
fn what_is_acknowledged_from_memory_outlives_the_process_of_its_owner() {
    let Some(mut trio) = Trio::start() else {
        return;
    };
    let all = trio.bootstrap();
    trio.run(&all, &CREATE, b"");
    trio.run(&all, &PRODUCE, &text(&lines(0..3000)));
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("it can be read");
    let machine = BTreeSet::from([boot.trim().to_owned()]);
    for broker in 1..=3 {
        let boots = trio.boots_at(broker, false);
        // As another's replica it survives its process, as an owner it does not.
        assert!(boots.is_superset(&machine), "{boots:?}");
        assert_eq!(boots.len(), 2, "{boots:?}");
    }
    trio.positions_are_told("clicks", |placed, flushed, end| {
        placed == end && flushed.is_null()
    });
    for killed in 0..3 {
        trio.brokers[killed].kill();
        let at = 3000 + 500 * killed;
        trio.run(&all, &PRODUCE, &text(&lines(at..at + 500)));
        assert_eq!(trio.consume(&all, "clicks"), lines(0..at + 500));
        trio.brokers[killed].restart();
    }
    for broker in &trio.brokers {
        let log = broker.log();
        assert!(!log.contains("ordinals jump"), "{log}");
    }
    // What is closed lies in files: no record names a process.
    for broker in 1..=3 {
        assert_eq!(trio.boots_at(broker, true), machine);
    }
}
