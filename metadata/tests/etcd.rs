//! An etcd that ends, stalls, forgets or cannot be reached, and what becomes of what was asked of it.
#![cfg(feature = "etcd")]

mod support;

use std::time::{Duration, Instant};

use kera_metadata::*;
use kera_protocol::ids::*;
use kera_testkit::ports::Reserved;
use support::etcd::Etcd;
use support::proxy::{Proxy, Way};
use support::*;

/// Short, so that what cannot be reached is soon known to be so.
const HASTY: EtcdOptions = EtcdOptions {
    timeout: Duration::from_secs(3),
    server_operations: 128,
    under_way: 16,
    queue_operations: 1 << 18,
};
/// Long enough for whatever a test does meanwhile.
const PATIENT: EtcdOptions = EtcdOptions {
    timeout: Duration::from_secs(60),
    ..HASTY
};
/// Kept where a test means it to be kept, however busy the machine is.
const TTL: Duration = Duration::from_secs(5);

fn open(address: &str, options: EtcdOptions) -> EtcdStore {
    EtcdStore::open(address, options).unwrap()
}

/// As two brokers have it open.
fn open_twice(etcd: &Etcd) -> (EtcdStore, EtcdStore) {
    let open = || open(&etcd.address(), PATIENT);
    (open(), open())
}

/// The next changes of a watch.
fn next(watch: &mut tokio::sync::mpsc::Receiver<Watched>) -> Vec<Change> {
    loop {
        let told = watch.blocking_recv().expect("the watch goes on").unwrap();
        if !told.changes.is_empty() {
            return told.changes;
        }
    }
}

/// Waits until the stream `id` is told of.
fn told(watch: &mut tokio::sync::mpsc::Receiver<Watched>, id: StreamId) -> u64 {
    loop {
        let changes = next(watch);
        if let Some(change) = changes.iter().find(|c| c.key == Key::Stream(id)) {
            return change.revision;
        }
    }
}

fn create(store: &EtcdStore, name: &str) -> (StreamRecord, CommitFuture) {
    let record = stream(name);
    let (transaction, _) = creation(&record, 1, 0).unwrap();
    (record, store.commit_async(transaction))
}

#[test]
fn a_cluster_is_made_once_and_before_it_is_used() {
    let Some(etcd) = Etcd::start() else { return };
    let address = etcd.address();
    let missing = EtcdStore::open(&address, HASTY).err().unwrap();
    assert!(matches!(missing, MetadataError::NotInitialized { .. }));
    assert!(missing.to_string().contains("kera cluster init"));
    let id = EtcdStore::init(&address, PATIENT).unwrap();
    let again = EtcdStore::init(&address, HASTY).unwrap_err();
    assert!(matches!(again, MetadataError::Initialized { cluster, .. } if cluster == id));
    // Another prefix is another cluster, and neither sees the other's.
    let beside = format!("{address}/beside");
    assert_ne!(EtcdStore::init(&beside, PATIENT).unwrap(), id);
    let (store, other) = (open(&address, PATIENT), open(&beside, PATIENT));
    assert_eq!(store.cluster(), id);
    store.create_stream(stream("a"), 1).unwrap();
    assert!(other.load().unwrap().streams.is_empty());
    assert_eq!(store.load().unwrap().cluster, id);
}

#[test]
fn what_is_no_address_or_reaches_nobody_is_said() {
    let refused = EtcdStore::open("http://127.0.0.1:1", HASTY).err().unwrap();
    assert!(matches!(refused, MetadataError::Invalid(_)));
    let closed = Reserved::new();
    let address = format!("etcd://{}", closed.address());
    let nobody = EtcdStore::open(&address, HASTY).err().unwrap();
    assert!(matches!(nobody, MetadataError::Unavailable { .. }));
    assert!(nobody.is_definite());
    assert!(nobody.to_string().contains(&address), "{nobody}");
}

#[test]
fn a_store_is_open_where_one_member_of_several_answers() {
    let Some(etcd) = cluster() else { return };
    let closed = Reserved::new();
    let dead = closed.address();
    let store = open(&format!("etcd://{dead},{}", etcd.endpoint()), PATIENT);
    store.create_stream(stream("a"), 1).unwrap();
    assert_eq!(store.load().unwrap().streams.len(), 1);
}

#[test]
fn a_member_that_stalls_is_left_for_another() {
    let Some(etcd) = cluster() else { return };
    // Two ways to one etcd stand for two members.
    let (first, second) = (Proxy::to(&etcd.endpoint()), Proxy::to(&etcd.endpoint()));
    let address = format!("etcd://{},{}", first.address(), second.address());
    // Half of it is waited for the first, and the other half is left for the second.
    let options = EtcdOptions {
        timeout: Duration::from_secs(10),
        ..HASTY
    };
    let store = open(&address, options);
    store.create_stream(stream("a"), 1).unwrap();
    first.set(Way::Swallowed, Way::Swallowed);
    store.create_stream(stream("b"), 1).unwrap();
    assert_eq!(store.load().unwrap().streams.len(), 2);
}

#[test]
fn an_etcd_that_is_gone_refuses_soon_and_is_used_again_once_it_is_back() {
    let Some(etcd) = cluster() else { return };
    let store = open(&etcd.address(), HASTY);
    let (kept, _) = store.create_stream(stream("a"), 1).unwrap();
    let mut watch = store.watch(kept.revision);
    etcd.kill();
    let begun = Instant::now();
    let waiting: Vec<_> = (0..50)
        .map(|n| create(&store, &format!("w{n}")).1)
        .collect();
    for future in waiting {
        let error = future.wait().unwrap_err();
        // The connection may have been lost with the first of them under way.
        assert!(
            matches!(
                error,
                MetadataError::Unavailable { .. } | MetadataError::UnknownOutcome { .. }
            ),
            "{error}"
        );
    }
    // Bounded: all of them together, not each for itself.
    assert!(begun.elapsed() < HASTY.timeout * 25);
    assert!(store.read(&Key::Stream(kept.id)).is_err());
    assert!(store.load().is_err());
    let (_, refused) = create(&store, "b");
    assert!(matches!(
        refused.wait(),
        Err(MetadataError::Unavailable { .. })
    ));
    etcd.restart();
    let (new, _) = store.create_stream(stream("c"), 1).unwrap();
    let image = store.load().unwrap();
    assert_eq!(image.streams.len(), 2);
    assert!(image.streams.contains(&kept));
    // The watch goes on where it was.
    assert_eq!(told(&mut watch, new.id), new.revision);
}

#[test]
fn a_restart_of_etcd_is_waited_for() {
    let Some(etcd) = cluster() else { return };
    let store = open(&etcd.address(), PATIENT);
    store.create_stream(stream("a"), 1).unwrap();
    etcd.kill();
    let (record, future) = create(&store, "b");
    etcd.restart();
    let revision = future.wait().unwrap().revision;
    assert_eq!(store.stream(record.id).unwrap().unwrap().revision, revision);
}

#[test]
fn a_stalled_etcd_leaves_the_outcome_unknown_and_what_is_read_back_tells_it() {
    let Some(etcd) = cluster() else { return };
    let store = open(&etcd.address(), HASTY);
    store.create_stream(stream("a"), 1).unwrap();
    etcd.pause(true);
    let (record, future) = create(&store, "b");
    let error = future.wait().unwrap_err();
    assert!(!error.is_definite(), "{error}");
    // Nothing can be read meanwhile, and that is said as well.
    assert!(matches!(
        store.read(&Key::Stream(record.id)),
        Err(MetadataError::Unavailable { .. })
    ));
    etcd.pause(false);
    // The same transaction once more: it is there, or is written now, once.
    let (transaction, _) = creation(&record, 1, 0).unwrap();
    match store.commit(transaction) {
        Ok(_) | Err(MetadataError::Conflict(_)) => {}
        Err(error) => panic!("{error}"),
    }
    let image = store.load().unwrap();
    assert_eq!(image.streams.len(), 2);
    assert_eq!(image.streamlets_of(record.id).len(), 4);
}

#[test]
fn a_transaction_whose_answer_is_lost_is_found_to_be_committed() {
    let Some(etcd) = cluster() else { return };
    let direct = open(&etcd.address(), PATIENT);
    let proxy = Proxy::to(&etcd.endpoint());
    let store = open(&format!("etcd://{}", proxy.address()), PATIENT);
    let (_, streamlets) = store.create_stream(stream("a"), 1).unwrap();
    let mut watch = direct.watch(direct.load().unwrap().revision);
    proxy.set(Way::Open, Way::Swallowed);
    let (record, future) = create(&store, "b");
    // It took effect, and nobody told.
    let revision = told(&mut watch, record.id);
    proxy.mend();
    assert_eq!(future.wait(), Ok(Committed { revision }));
    assert_eq!(direct.load().unwrap().revision, revision, "and only once");

    // The same where others write beside: what was written is found by its number.
    let s = &streamlets[0];
    let group = open_group(s, 1, 0);
    proxy.set(Way::Open, Way::Swallowed);
    let future = store.commit_async(put_group(s, group.clone()));
    let changed = next(&mut watch)[0].revision;
    direct.commit(put_start(s, 3, 7)).unwrap();
    proxy.mend();
    assert_eq!(future.wait(), Ok(Committed { revision: changed }));
    assert_eq!(
        direct.group(group.key()).unwrap().map(|g| g.revision),
        Some(changed)
    );
}

#[test]
fn a_transaction_whose_answer_is_lost_and_that_was_overwritten_stays_unknown() {
    let Some(etcd) = cluster() else { return };
    let direct = open(&etcd.address(), PATIENT);
    let proxy = Proxy::to(&etcd.endpoint());
    let store = open(&format!("etcd://{}", proxy.address()), PATIENT);
    let (_, streamlets) = store.create_stream(stream("a"), 1).unwrap();
    let s = &streamlets[0];
    // From here on it is remembered, and nothing has to be read.
    store.commit(put_start(s, 0, 1)).unwrap();
    let mut watch = direct.watch(direct.load().unwrap().revision);
    proxy.set(Way::Open, Way::Swallowed);
    let future = store.commit_async(put_start(s, 0, 5));
    next(&mut watch);
    direct.commit(put_start(s, 0, 9)).unwrap();
    proxy.mend();
    assert!(!future.wait().unwrap_err().is_definite());
    // What is there is seen, and the store goes on.
    store.commit(put_start(s, 0, 11)).unwrap();
}

#[test]
fn a_transaction_that_was_lost_before_it_arrived_is_sent_again() {
    let Some(etcd) = cluster() else { return };
    let proxy = Proxy::to(&etcd.endpoint());
    let store = open(&format!("etcd://{}", proxy.address()), PATIENT);
    let before = store.load().unwrap().revision;
    proxy.set(Way::Swallowed, Way::Open);
    let (record, future) = create(&store, "a");
    // Another's change tells that time has passed; the first has not arrived.
    let direct = open(&etcd.address(), PATIENT);
    assert_eq!(direct.stream(record.id).unwrap(), None);
    proxy.mend();
    let revision = future.wait().unwrap().revision;
    assert_eq!(revision, before + 1);
}

#[test]
fn what_lost_to_another_while_its_answer_was_lost_is_refused_for_certain() {
    let Some(etcd) = cluster() else { return };
    let direct = open(&etcd.address(), PATIENT);
    let proxy = Proxy::to(&etcd.endpoint());
    let store = open(&format!("etcd://{}", proxy.address()), PATIENT);
    let (_, streamlets) = store.create_stream(stream("a"), 1).unwrap();
    let s = &streamlets[0];
    store.commit(put_start(s, 0, 1)).unwrap();
    proxy.set(Way::Swallowed, Way::Open);
    // Never arrives; its epoch ends meanwhile.
    let future = store.commit_async(put_start(s, 0, 2));
    direct.bump_epochs(1).unwrap();
    proxy.mend();
    assert!(matches!(
        future.wait(),
        Err(MetadataError::Conflict(Conflict::Epoch { .. }))
    ));
    let start = direct.load().unwrap().lane_starts[0];
    assert_eq!(start.ordinal, 1);
}

#[test]
fn transactions_take_effect_in_the_order_they_were_submitted() {
    let Some(etcd) = cluster() else { return };
    let store = open(&etcd.address(), PATIENT);
    let (_, streamlets) = store.create_stream(stream("a"), 1).unwrap();
    let s = &streamlets[0];
    // Each would be refused after the next.
    let futures: Vec<_> = (1..200)
        .map(|n| store.commit_async(put_start(s, 0, n)))
        .collect();
    let revisions: Vec<_> = futures.into_iter().map(|f| f.wait().unwrap()).collect();
    assert!(revisions.is_sorted_by(|a, b| a.revision < b.revision));
}

#[test]
fn transactions_with_nothing_in_common_do_not_wait_for_each_other() {
    let Some(etcd) = cluster() else { return };
    let direct = open(&etcd.address(), PATIENT);
    let proxy = Proxy::to(&etcd.endpoint());
    let store = open(&format!("etcd://{}", proxy.address()), PATIENT);
    let (_, streamlets) = store.create_stream(stream("a"), 1).unwrap();
    let mut watch = direct.watch(direct.load().unwrap().revision);
    proxy.set(Way::Open, Way::Swallowed);
    let futures: Vec<_> = streamlets
        .iter()
        .flat_map(|s| (1..3).map(move |n| (s, n)))
        .map(|(s, n)| {
            let raised = StreamletRecord {
                next_group: GroupId(n),
                ..s.clone()
            };
            store.commit_async(put_group(&raised, open_group(s, n, 0)))
        })
        .collect();
    // The first of every streamlet took effect, though nothing was answered.
    let mut written = std::collections::BTreeSet::new();
    while written.len() < streamlets.len() {
        for change in next(&mut watch) {
            if let Key::Group(key) = change.key {
                assert_eq!(key.group, GroupId(1));
                written.insert(key.streamlet);
            }
        }
    }
    proxy.mend();
    let revisions: Vec<_> = futures.into_iter().map(|f| f.wait().unwrap()).collect();
    assert!(
        revisions
            .chunks(2)
            .all(|two| two[0].revision < two[1].revision)
    );
}

#[test]
fn more_than_the_queue_holds_is_refused() {
    let Some(etcd) = cluster() else { return };
    let options = EtcdOptions {
        queue_operations: 8,
        ..PATIENT
    };
    let store = open(&etcd.address(), options);
    etcd.pause(true);
    let futures: Vec<_> = (0..40)
        .map(|_| store.commit_async(Transaction::default()))
        .collect();
    etcd.pause(false);
    let outcomes: Vec<_> = futures.into_iter().map(CommitFuture::wait).collect();
    let refused = |o: &Result<_, _>| matches!(o, Err(MetadataError::Overloaded { .. }));
    assert!(outcomes.iter().any(refused));
    assert!(outcomes.iter().all(|o| o.is_ok() || refused(o)));
    store.create_stream(stream("a"), 1).unwrap();
}

#[test]
fn a_transaction_of_too_many_operations_is_refused_by_name() {
    let Some(etcd) = cluster() else { return };
    let store = open(&etcd.address(), PATIENT);
    let (_, streamlets) = store.create_stream(stream("a"), 1).unwrap();
    let s = &streamlets[0];
    let keys = |n: u64| {
        let groups = (0..n).map(|n| open_group(s, n + 1, 0));
        let mut compare: Vec<_> = groups.map(|g| Compare::group(&g)).collect();
        compare.push(Compare::epoch(s));
        Transaction::new(compare, vec![])
    };
    let most = store.max_operations() as u64;
    store.commit(keys(most - 1)).unwrap();
    let error = store.commit(keys(500)).unwrap_err();
    assert!(error.to_string().contains("501 operations"), "{error}");
}

#[test]
fn a_wide_stream_is_created_in_parts_that_nobody_sees_alone() {
    let Some(etcd) = cluster() else { return };
    let (store, other) = open_twice(&etcd);
    let before = store.load().unwrap().revision;
    let wide = |name: &str| {
        let config = StreamConfig {
            streamlets: 400,
            ..StreamConfig::default()
        };
        StreamRecord::new(name, config, 1)
    };
    let (stream, streamlets) = store.create_stream_over(wide("a"), &[1, 2]).unwrap();
    let image = other.load().unwrap();
    assert_eq!(image.streamlets, streamlets);
    assert_eq!(image.streams, std::slice::from_ref(&stream));
    assert!(image.revision > before + 3, "it took several transactions");
    // The stream comes last.
    let mut watch = other.watch(before);
    let mut seen = 0;
    let of_stream = [Key::Stream(stream.id), Key::StreamName("a".into())];
    let last = 'told: loop {
        for change in next(&mut watch) {
            if of_stream.contains(&change.key) {
                break 'told change.revision;
            }
            assert!(change.revision < stream.revision);
            seen += 1;
        }
    };
    assert_eq!(last, stream.revision);
    assert_eq!(seen, 400);
    // Its records can be compared with what was answered.
    let bumped = StreamletRecord {
        epoch: Epoch(streamlets[0].epoch.0 + 1),
        ..streamlets[0].clone()
    };
    let compare = Compare::streamlet(&streamlets[0]);
    let change = Transaction::new(vec![compare], vec![Write::PutStreamlet(bumped)]);
    store.commit(change).unwrap();
    // A name that is taken is refused, and leaves nothing.
    let taken = other.create_stream(wide("a"), 1).unwrap_err();
    assert!(matches!(
        taken,
        MetadataError::Conflict(Conflict::StreamExists { .. })
    ));
    assert_eq!(other.streamlets().unwrap().len(), 400);
    assert_eq!(other.bump_epochs(2).unwrap().len(), 200);
    store.commit(delete_stream(&stream)).unwrap();
    assert!(other.load().unwrap().streamlets.is_empty());
}

#[test]
fn a_wide_stream_changes_under_the_epochs_of_all_its_streamlets() {
    let Some(etcd) = cluster() else { return };
    let (one, two) = open_twice(&etcd);
    let config = StreamConfig {
        streamlets: 300,
        ..StreamConfig::default()
    };
    let wide = StreamRecord::new("wide", config, 1);
    let (mut stream, mut streamlets) = one.create_stream(wide, 1).unwrap();
    assert!(one.max_operations() < streamlets.len());
    for round in 0..30 {
        let compare = vec![
            Compare::revision(Key::Stream(stream.id), stream.revision),
            Compare::StreamletEpochs {
                stream: stream.id,
                epochs: streamlets.iter().map(|s| (s.streamlet, s.epoch)).collect(),
            },
        ];
        let change = Transaction::new(compare, vec![Write::PutStream(stream.clone())]);
        // At the same time another broker gives one of them a new owner.
        let moved = &mut streamlets[round * 7];
        let next = StreamletRecord {
            owner: 2,
            epoch: Epoch(moved.epoch.0 + 1),
            ..moved.clone()
        };
        let moving = Transaction::new(
            vec![Compare::epoch(moved)],
            vec![Write::PutStreamlet(next.clone())],
        );
        let (changing, moving) = (one.commit_async(change.clone()), two.commit_async(moving));
        let at = moving.wait().unwrap().revision;
        match changing.wait() {
            Ok(committed) => {
                assert!(committed.revision < at, "round {round}: it came too late");
                stream.revision = committed.revision;
            }
            Err(refused) => assert!(
                matches!(refused, MetadataError::Conflict(Conflict::Epoch { .. })),
                "{refused}"
            ),
        }
        *moved = next;
        // Once more, when it is long known.
        assert!(matches!(
            one.commit(change),
            Err(MetadataError::Conflict(_))
        ));
    }
}

#[test]
fn a_deletion_takes_the_epochs_that_others_gave_meanwhile() {
    let Some(etcd) = cluster() else { return };
    let (one, two) = open_twice(&etcd);
    for round in 0..10u64 {
        let (stream, _) = one.create_stream(stream("a"), 1).unwrap();
        let deletion = one.commit_async(delete_stream(&stream));
        let _ = two.bump_epochs(1);
        deletion.wait().unwrap();
        let floor = one.counter(Counter::EpochFloor).unwrap();
        let (again, streamlets) = two.create_stream(support::stream("a"), 1).unwrap();
        assert!(u64::from(streamlets[0].epoch.0) > floor, "round {round}");
        two.commit(delete_stream(&again)).unwrap();
    }
}

#[test]
fn more_records_than_a_page_are_loaded_as_of_one_revision() {
    let Some(etcd) = cluster() else { return };
    let (store, other) = open_twice(&etcd);
    let (_, mut streamlets) = store.create_stream(stream("filled"), 7).unwrap();
    for s in &mut streamlets {
        let raised = StreamletRecord {
            next_group: GroupId(2001),
            ..s.clone()
        };
        let write = vec![Write::PutStreamlet(raised.clone())];
        store
            .commit(Transaction::new(vec![Compare::epoch(s)], write))
            .unwrap();
        *s = raised;
    }
    let all: Vec<_> = streamlets
        .iter()
        .flat_map(|s| (1..=1500).map(move |n| open_group(s, n, 0)))
        .collect();
    let transactions: Vec<_> = all
        .chunks(100)
        .map(|chunk| {
            let of = streamlets
                .iter()
                .find(|s| s.streamlet == chunk[0].streamlet)
                .unwrap();
            let mut compare: Vec<_> = chunk.iter().map(Compare::group).collect();
            compare.push(Compare::epoch(of));
            Transaction::new(
                compare,
                chunk.iter().cloned().map(Write::PutGroup).collect(),
            )
        })
        .collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for t in transactions {
                store.commit(t).unwrap();
            }
        });
        // Whatever is seen meanwhile is whole transactions.
        loop {
            let image = other.load().unwrap();
            assert_eq!(image.groups.len() % 100, 0);
            assert!(image.groups.iter().all(|g| g.revision <= image.revision));
            if image.groups.len() == 6000 {
                break;
            }
        }
    });
    assert_eq!(other.streamlets().unwrap().len(), 4);
    let part = other
        .load_streamlet(streamlets[1].stream, StreamletId(1))
        .unwrap();
    assert_eq!(part.groups.len(), 1500);
}

#[test]
fn a_watch_is_lost_when_etcd_forgets_what_it_has_not_told() {
    let Some(etcd) = cluster() else { return };
    let proxy = Proxy::to(&etcd.endpoint());
    let watching = open(&format!("etcd://{}", proxy.address()), HASTY);
    let direct = open(&etcd.address(), PATIENT);
    let mut watch = watching.watch(direct.load().unwrap().revision);
    let (first, _) = direct.create_stream(stream("a"), 1).unwrap();
    told(&mut watch, first.id);
    // Cut off while others go on, and what they did is forgotten.
    proxy.set(Way::Swallowed, Way::Swallowed);
    direct.create_stream(stream("b"), 1).unwrap();
    let (last, _) = direct.create_stream(stream("c"), 1).unwrap();
    etcd.compact(last.revision);
    proxy.mend();
    let lost = watch.blocking_recv().expect("it says so").unwrap_err();
    assert!(lost.to_string().contains("load anew"), "{lost}");
    assert!(watch.blocking_recv().is_none());
}

#[test]
fn a_watch_outlives_compaction_of_what_it_has_told() {
    let Some(etcd) = cluster() else { return };
    let store = open(&etcd.address(), PATIENT);
    let mut watch = store.watch(store.load().unwrap().revision);
    let (first, _) = store.create_stream(stream("a"), 1).unwrap();
    told(&mut watch, first.id);
    etcd.compact(first.revision);
    etcd.restart();
    let (second, _) = store.create_stream(stream("b"), 1).unwrap();
    assert_eq!(told(&mut watch, second.id), second.revision);
}

#[test]
fn a_broker_that_is_cut_off_loses_its_lease_and_takes_another_when_it_is_back() {
    let Some(etcd) = cluster() else { return };
    let proxy = Proxy::to(&etcd.endpoint());
    let cut_off = open(&format!("etcd://{}", proxy.address()), HASTY);
    let other = open(&etcd.address(), PATIENT);
    let membership = cut_off.join(live(1), TTL).unwrap();
    let second = other.join(live(2), TTL).unwrap();
    let (mut valid, mut seen) = (membership.valid(), other.living());
    until(&mut seen, |living| living.len() == 2);
    let mut term = membership.campaign();
    let old = until(&mut term, Option::is_some);
    let fence = membership.fence().unwrap();
    let mut follower = second.campaign();

    proxy.set(Way::Swallowed, Way::Swallowed);
    until(&mut valid, |valid| !valid);
    assert!(!membership.is_valid());
    assert_eq!(membership.fence(), None);
    // It knows before the others do: its clock has a margin.
    until(&mut seen, |living| !living.contains_key(&1));
    let new = until(&mut follower, Option::is_some);
    assert!(new > old);
    let late = other.commit(Transaction::new(vec![fence], vec![]));
    assert!(is_of_former_controller(&late));

    proxy.mend();
    until(&mut valid, |valid| *valid);
    until(&mut seen, |living| living.contains_key(&1));
    assert_eq!(membership.fence(), None);
    drop(second);
    until(&mut term, Option::is_some);
}

#[test]
fn the_office_of_a_controller_that_is_gone_is_taken_before_its_lease_ends() {
    let Some(etcd) = cluster() else { return };
    let (one, other) = open_twice(&etcd);
    // Leases that outlive the test.
    let long = Duration::from_secs(600);
    let first = one.join(live(1), long).unwrap();
    let second = other.join(live(2), long).unwrap();
    let mut term = first.campaign();
    let old = until(&mut term, Option::is_some);
    let fence = first.fence().unwrap();
    until(&mut other.controller(), |elected| *elected == Some(1));
    assert!(!second.succeed(1), "it does not stand for election");
    let mut follower = second.campaign();
    assert!(!second.succeed(3), "another one is elected");
    assert!(!first.succeed(1), "it is elected itself");
    assert!(second.succeed(1));
    let new = until(&mut follower, Option::is_some);
    assert!(new > old);
    until(&mut term, Option::is_none);
    assert!(first.is_valid());
    let late = one.commit(Transaction::new(vec![fence], vec![]));
    assert!(is_of_former_controller(&late));
    until(&mut other.controller(), |elected| *elected == Some(2));
    assert!(!second.succeed(1), "it is no controller any more");
    // The key is under the new lease: the old one's end takes nothing along.
    drop(first);
    until(&mut other.living(), |living| !living.contains_key(&1));
    assert_eq!(*other.controller().borrow(), Some(2));
    other
        .commit(Transaction::new(vec![second.fence().unwrap()], vec![]))
        .unwrap();
}

#[test]
fn leases_outlive_a_restart_of_etcd() {
    let Some(etcd) = cluster() else { return };
    let store = open(&etcd.address(), PATIENT);
    let membership = store.join(live(1), Duration::from_secs(30)).unwrap();
    let mut term = membership.campaign();
    let elected = until(&mut term, Option::is_some);
    etcd.restart();
    store.create_stream(stream("a"), 1).unwrap();
    assert!(membership.is_valid());
    let other = open(&etcd.address(), PATIENT);
    until(&mut other.living(), |living| living.contains_key(&1));
    assert_eq!(*term.borrow(), elected);
    assert!(other.join(live(1), TTL).is_ok(), "the same store id");
}

#[test]
fn a_pause_of_etcd_longer_than_the_lease_ends_it_and_is_recovered_from() {
    let Some(etcd) = cluster() else { return };
    let store = open(&etcd.address(), HASTY);
    let membership = store.join(live(1), TTL).unwrap();
    let mut valid = membership.valid();
    assert!(*valid.borrow());
    etcd.pause(true);
    until(&mut valid, |valid| !valid);
    etcd.pause(false);
    until(&mut valid, |valid| *valid);
    until(&mut store.living(), |living| living.contains_key(&1));
}

#[test]
fn a_record_that_somebody_removed_is_written_again() {
    let Some(etcd) = cluster() else { return };
    let store = open(&etcd.address(), PATIENT);
    let membership = store.join(live(1), Duration::from_secs(30)).unwrap();
    until(&mut store.living(), |living| living.contains_key(&1));
    etcd.delete("/kera/m/broker/0000000001");
    // It knows nothing of what was before.
    let other = open(&etcd.address(), PATIENT);
    until(&mut other.living(), |living| living.contains_key(&1));
    let mut valid = membership.valid();
    until(&mut valid, |valid| *valid);
}

#[test]
fn an_unreachable_etcd_lets_nobody_join() {
    let Some(etcd) = cluster() else { return };
    let store = open(&etcd.address(), HASTY);
    etcd.kill();
    let refused = store.join(live(1), TTL).err().unwrap();
    assert!(matches!(refused, MetadataError::Unavailable { .. }));
    for ttl in [Duration::ZERO, Duration::from_secs(7200)] {
        assert!(matches!(
            store.join(live(1), ttl),
            Err(MetadataError::Invalid(_))
        ));
    }
}

#[test]
fn what_another_program_wrote_among_the_records_is_reported() {
    let Some(etcd) = cluster() else { return };
    let store = open(&etcd.address(), PATIENT);
    store.create_stream(stream("a"), 1).unwrap();
    etcd.put("/kera/r/zzz", "anything");
    assert!(matches!(store.load(), Err(MetadataError::Corrupt { .. })));
}

#[test]
fn a_broker_that_was_away_does_not_take_the_place_of_its_own_later_start() {
    let Some(etcd) = cluster() else { return };
    let proxy = Proxy::to(&etcd.endpoint());
    let cut_off = open(&format!("etcd://{}", proxy.address()), HASTY);
    let zombie = cut_off.join(live(1), TTL).unwrap();
    let mut zombie_valid = zombie.valid();
    proxy.set(Way::Swallowed, Way::Swallowed);
    until(&mut zombie_valid, |valid| !valid);
    let other = open(&etcd.address(), PATIENT);
    // Its lease has ended, and the place is free.
    while etcd.count("/kera/m/broker/") > 0 {
        std::thread::yield_now();
    }
    let restarted = LiveBroker {
        address: "10.0.0.1:7601".into(),
        ..live(1)
    };
    let successor = other.join(restarted.clone(), TTL).unwrap();
    let mut seen = cut_off.living();
    proxy.mend();
    // The zombie sees it, and stays without a lease; nobody takes the place from the successor.
    until(&mut seen, |living| living.get(&1) == Some(&restarted));
    drop(zombie);
    assert!(!*zombie_valid.borrow());
    assert!(successor.is_valid());
    let late = open(&etcd.address(), PATIENT);
    until(&mut late.living(), |living| {
        living.get(&1) == Some(&restarted)
    });
}
