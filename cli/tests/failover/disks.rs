//! Brokers whose disk is full, or stands still.

use std::path::Path;

use super::*;
use crate::common::machine::skip;
use crate::common::small_disk::SmallDisk;

/// Three brokers, of which the second has its data on `disk`.
fn trio_on(disk: &Path, flags: &[&str]) -> Option<Trio> {
    let data = disk.join("data");
    Trio::started(flags, |number, flags| match number {
        2 => Broker::on(&data, flags),
        _ => Broker::with(flags),
    })
}

impl Trio {
    /// A stream of six streamlets with three replicas, and records in it.
    fn create_and_fill(&self, records: &[String]) -> StreamId {
        let create = [
            "stream",
            "create",
            "clicks",
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
        self.run(self.brokers[0].address(), &create, b"");
        self.produce(&self.bootstrap(), records);
        let store = self.store();
        let named = store.stream_named("clicks").expect("it is read");
        named.expect("it is recorded")
    }

    fn produce(&self, bootstrap: &str, records: &[String]) {
        let words = ["produce", "clicks", "--quiet", "--batch-size", "4KiB"];
        self.run(bootstrap, &words, &text(records));
    }

    fn store(&self) -> EtcdStore {
        let store = EtcdStore::open(&self.etcd.address(), EtcdOptions::default());
        store.expect("it opens")
    }

    fn owners(&self, stream: StreamId) -> Vec<u32> {
        let image = self.store().load().expect("it can be read");
        image
            .streamlets_of(stream)
            .iter()
            .map(|s| s.owner)
            .collect()
    }
}

fn broker(status: &Value, number: u32) -> &Value {
    let brokers = status["brokers"].as_array().expect("brokers");
    let found = brokers.iter().find(|one| one["broker_id"] == number);
    found.expect("it is told")
}

#[test]
fn a_broker_whose_disk_is_full_owns_nothing_that_another_can_own() {
    let small = match SmallDisk::mount(64 << 20) {
        Ok(small) => small,
        Err(reason) => return skip("failover disks", &reason),
    };
    let Some(mut trio) = trio_on(small.path(), &[]) else {
        return;
    };
    let early = lines(0..3000);
    let stream = trio.create_and_fill(&early);
    small.fill();
    let status = ["cluster", "status"];
    trio.brokers[0].until(&status, |status| {
        broker(status, 2)["cannot_write"] == "its disk is full"
            && status["health"]["healthy"] == false
    });
    let said = trio.brokers[0].attempt(&status, b"").text();
    assert!(
        said.contains("broker 2 cannot write its own files"),
        "{said}"
    );

    // Nobody asks for it.
    trio.brokers[0].until(&status, |status| broker(status, 2)["streamlets"] == 0);
    let owners = trio.owners(stream);
    assert!(!owners.contains(&2), "{owners:?}");
    let all = trio.bootstrap();
    trio.produce(&all, &lines(3000..6000));

    trio.brokers[0].kill();
    let others = Broker::bootstrap(&trio.brokers[1..]);
    // All is served, by broker 3 alone.
    trio.brokers[2].until(&status, |status| broker(status, 3)["streamlets"] == 6);
    assert_eq!(trio.owners(stream), [3; 6]);
    trio.brokers[0].restart();
    assert_eq!(trio.consume(&others, "clicks"), lines(0..6000));
    trio.produce(&all, &lines(6000..6100));
    assert_eq!(trio.consume(&all, "clicks"), lines(0..6100));
}

#[test]
fn a_broker_whose_disk_stands_still_is_followed_by_others_and_comes_back() {
    let small = match SmallDisk::that_freezes(192 << 20) {
        Ok(small) => small,
        Err(reason) => return skip("failover disks", &reason),
    };
    let Some(trio) = trio_on(small.path(), &["--cluster-disk-timeout", "2s"]) else {
        return;
    };
    let early = lines(0..3000);
    let stream = trio.create_and_fill(&early);
    let frozen = small.freeze();
    let others = [&trio.brokers[0], &trio.brokers[2]]
        .map(Broker::address)
        .join(",");
    trio.brokers[0].until(&["cluster", "status"], |status| {
        broker(status, 2)["state"] == "GONE"
    });
    trio.produce(&others, &lines(3000..6000));
    assert_eq!(trio.consume(&others, "clicks"), lines(0..6000));
    let owners = trio.owners(stream);
    assert!(!owners.contains(&2), "{owners:?}");

    drop(frozen);
    trio.brokers[0].until(&["cluster", "status"], |status| {
        status["health"]["healthy"] == true
    });
    let all = trio.bootstrap();
    trio.produce(&all, &lines(6000..9000));
    assert_eq!(trio.consume(&all, "clicks"), lines(0..9000));
    let log = trio.brokers[1].log();
    assert!(log.contains("gives its lease back"), "{log}");
}
