//! Something else at the store's address: another cluster's etcd, an empty one, an older state of it, and
//! one whose keys somebody removed. All are treated as an etcd that does not answer.
#![cfg(feature = "etcd")]

mod support;

use std::thread;
use std::time::Duration;

use kera_metadata::*;
use kera_protocol::ids::StreamletId;
use support::etcd::Etcd;
use support::*;
use tokio::sync::mpsc;

/// Short, so that what is refused is soon known to be.
const HASTY: EtcdOptions = EtcdOptions {
    timeout: Duration::from_secs(3),
    server_operations: 128,
    under_way: 16,
    queue_operations: 1 << 18,
};
/// For what is answered.
const PATIENT: EtcdOptions = EtcdOptions {
    timeout: Duration::from_secs(60),
    ..HASTY
};
const TTL: Duration = Duration::from_secs(2);

/// A cluster of which a broker has a place, one stream, and a watch from before that.
struct Known {
    etcd: Etcd,
    store: EtcdStore,
    seat: Membership,
    stream: StreamRecord,
    watch: mpsc::Receiver<Watched>,
}

impl Known {
    fn start() -> Option<Self> {
        let etcd = Etcd::start()?;
        EtcdStore::init(&etcd.address(), PATIENT).unwrap();
        let store = EtcdStore::open(&etcd.address(), HASTY).unwrap();
        let seat = store.join(live(1), TTL).unwrap();
        let (stream, _) = store.create_stream(stream("a"), 1).unwrap();
        let watch = store.watch(stream.revision);
        Some(Self {
            etcd,
            store,
            seat,
            stream,
            watch,
        })
    }

    /// Nothing is read from what is there now, and nothing written to it. What it was refused as.
    fn refused(&self) -> Stranger {
        // Each is tried for as long as it may be.
        let (store, id) = (&self.store, self.stream.id);
        let calls: [&(dyn Fn() -> Option<MetadataError> + Sync); 5] = [
            &|| store.load().err(),
            &|| store.streamlets().err(),
            &|| store.stream(id).err(),
            &|| store.load_streamlet(id, StreamletId(0)).err(),
            &|| store.create_stream(stream("strange"), 1).err(),
        ];
        let failed = thread::scope(|scope| {
            let calls = calls.map(|call| scope.spawn(call));
            calls.map(|call| call.join().unwrap())
        });
        let stranger = self.store.stranger().borrow().clone();
        let stranger = stranger.expect("it is known");
        let text = stranger.to_string();
        // How far an older state has come may have changed.
        let (text, _) = text.split_once("as of revision").unwrap_or((&text, ""));
        for error in failed {
            let error = error.expect("it is refused");
            assert!(
                matches!(error, MetadataError::Unavailable { .. }),
                "{error}"
            );
            assert!(error.to_string().contains(text), "{error}");
        }
        stranger
    }

    /// The store is there again, with all it had, and everything goes on.
    fn goes_on(&mut self) {
        let mut stranger = self.store.stranger();
        until(&mut stranger, Option::is_none);
        let mut valid = self.seat.valid();
        until(&mut valid, |valid| *valid);
        let (next, _) = self.store.create_stream(stream("next"), 1).unwrap();
        let streams = self.store.load().unwrap().streams;
        assert!(streams.iter().any(|s| s.id == self.stream.id));
        let mut told = Vec::new();
        loop {
            let changes = self.watch.blocking_recv().expect("the watch goes on");
            told.extend(changes.expect("nothing was missed").changes);
            if told.iter().any(|c| c.key == Key::Stream(next.id)) {
                break;
            }
        }
        // No word of anything but that.
        let of = |c: &Change| matches!(&c.record, Some(Record::Stream(s)) if s.id != next.id);
        assert!(!told.iter().any(of), "{told:?}");
        assert!(told.iter().all(|c| c.record.is_some()), "{told:?}");
    }
}

#[test]
fn another_clusters_etcd_is_told_nothing_and_asked_nothing() {
    let Some(mut known) = Known::start() else {
        return;
    };
    known.etcd.become_state("other");
    let other = EtcdStore::init(&known.etcd.address(), PATIENT).unwrap();
    let theirs = EtcdStore::open(&known.etcd.address(), PATIENT).unwrap();
    // Further than the one that was there, so that no revision gives it away.
    for _ in 0..40 {
        theirs.allocate_producer_ids(1).unwrap();
    }
    theirs.create_stream(stream("theirs"), 1).unwrap();
    let stranger = known.refused();
    let named = matches!(&stranger, Stranger::Other { expected, found, .. }
        if *expected == known.store.cluster() && *found == other.to_string());
    assert!(named, "{stranger}");
    // Its lease ends, and it takes none there.
    let mut valid = known.seat.valid();
    until(&mut valid, |valid| !valid);
    assert_eq!(known.etcd.count("/kera/m/broker/"), 0);
    let image = theirs.load().unwrap();
    assert_eq!(image.streams.len(), 1, "{:?}", image.streams);
    drop(theirs);

    known.etcd.become_state("data");
    known.goes_on();
}

#[test]
fn an_empty_etcd_is_no_cluster_whose_streams_were_deleted() {
    let Some(mut known) = Known::start() else {
        return;
    };
    known.etcd.become_state("empty");
    let stranger = known.refused();
    let named = matches!(stranger, Stranger::Empty { expected, .. }
        if expected == known.store.cluster());
    assert!(named, "{stranger}");
    known.etcd.become_state("data");
    known.goes_on();
}

#[test]
fn an_older_state_of_the_store_is_refused_also_by_who_only_heard_of_a_newer_one() {
    let Some(mut known) = Known::start() else {
        return;
    };
    known.etcd.keep_state("old");
    for _ in 0..20 {
        known.store.allocate_producer_ids(1).unwrap();
    }
    let newest = known.store.load().unwrap().revision;
    known.etcd.become_state("old");
    let stranger = known.refused();
    let older = matches!(stranger, Stranger::Older { seen, found, .. }
        if seen >= newest && found < newest);
    assert!(older, "{stranger}");

    // Whoever opens it now is told by what it has kept.
    let late = EtcdStore::open(&known.etcd.address(), PATIENT).unwrap();
    late.require(late.load().unwrap().revision).unwrap();
    let refused = late.require(newest).unwrap_err();
    assert!(matches!(
        refused,
        MetadataError::Stranger(Stranger::Older { .. })
    ));
    drop(late);
    known.etcd.become_state("data");
    known.goes_on();
}

#[test]
fn a_cluster_that_is_wiped_under_its_brokers_deletes_nothing() {
    let Some(mut known) = Known::start() else {
        return;
    };
    let proof = known.etcd.address();
    // All streams go with it, in one transaction; that the cluster goes too is what is believed.
    known.etcd.wipe("/kera/");
    let stranger = known.refused();
    assert!(matches!(stranger, Stranger::Empty { .. }), "{stranger}");
    // A new cluster there is another one.
    EtcdStore::init(&proof, PATIENT).unwrap();
    let stranger = known.refused();
    assert!(matches!(stranger, Stranger::Other { .. }), "{stranger}");
    // The watch ended, or broke before it heard of it and is not opened there; it told of nothing that is gone.
    while let Ok(told) = known.watch.try_recv() {
        match told {
            Ok(told) => {
                let gone = told.changes.iter().filter(|c| c.record.is_none());
                assert_eq!(gone.count(), 0, "{told:?}");
            }
            Err(lost) => assert!(lost.to_string().contains("holds no cluster"), "{lost}"),
        }
    }
}

#[test]
fn a_cluster_that_is_exchanged_under_a_living_connection_gets_no_transaction() {
    let Some(known) = Known::start() else {
        return;
    };
    known.store.create_stream(stream("b"), 1).unwrap();
    // No connection ends, and every record is as it was.
    known.etcd.put("/kera/cluster", "something else");
    let refused = known.store.create_stream(stream("c"), 1).unwrap_err();
    assert!(
        matches!(refused, MetadataError::Unavailable { .. }),
        "{refused}"
    );
    assert!(
        refused.to_string().contains("holds something else"),
        "{refused}"
    );
    // Two streams with a name and a streamlet each.
    let streamlets = u64::from(known.stream.config.streamlets);
    let records = 2 * (2 + streamlets);
    assert_eq!(known.etcd.count("/kera/r/"), records);
}
