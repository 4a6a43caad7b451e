use std::fs;

use kera_metadata::{MemoryCluster, Role, StreamConfig, StreamRecord};

use kera_log_segments::group::AckPolicy;
use kera_log_segments::layout::SegmentHeader;
use kera_protocol::batch::{self, BatchBuilder, Compression, NewRecord, ProducerStamp};
use kera_protocol::ids::{Epoch, StreamId};

use super::*;
use crate::open::record_broker;

fn directory(home: &Path, cluster: uuid::Uuid) -> StoreDir {
    let dir = StoreDir::open(home).expect("opens");
    dir.belongs_to(cluster).expect("it is new");
    assert!(!dir.is_after_restore(), "a new one says nothing");
    drop(dir);
    fs::remove_file(home.join("REVISION")).expect("it is there");
    let dir = StoreDir::open(home).expect("opens");
    dir.belongs_to(cluster).expect("it is the same");
    assert!(dir.is_after_restore());
    dir
}

#[test]
fn brokers_that_start_at_once_or_later_tell_of_one_restore() {
    let (home, store) = (
        tempfile::tempdir().expect("a directory"),
        MemoryCluster::new(),
    );
    let dirs = ["1", "2"].map(|name| directory(&home.path().join(name), store.cluster()));
    let put = |id: u32, restore: u64| {
        let dir = &dirs[id as usize - 1];
        let recorded = record_broker(&store, dir, id, "h:1", 0, (Role::Broker, restore));
        recorded.expect("it is recorded");
    };
    let part = |id: u32| {
        let brokers = store.brokers().expect("it is read");
        let dir = &dirs[id as usize - 1];
        take_part(&store, dir, (id, &brokers)).expect("it answers")
    };
    let create = |name: &str| {
        let stream = StreamRecord::new(name, StreamConfig::default(), 0);
        store.create_stream(stream, 1).expect("it is made").0.id
    };
    let of = |stream: StreamId| store.streamlet(stream, StreamletId(0)).expect("it is read");
    put(1, 0);
    put(2, 0);
    let old = create("old");
    let before = of(old).expect("it is there");
    let ids = || {
        store
            .allocate_producer_ids(1000)
            .expect("some are left")
            .start
    };
    let ids_before = ids();
    assert_eq!(part(1), 1);
    assert!(ids() > ids_before + (1 << 39), "nobody has one of these");
    let told = of(old).expect("it is there");
    assert!(told.awaits_jumps == 1 && told.restore == 1);
    assert!(told.epoch.0 > before.epoch.0 + 1000 && told.next_group.0 > 1 << 30);
    // As one that looked before the first one was done.
    assert_eq!(part(2), 1);
    assert_eq!(of(old).as_ref(), Some(&told));

    put(1, 1);
    let new = create("new");
    let is_told = |stream| of(stream).is_some_and(|one| one.awaits_jumps > 0);
    assert_eq!(part(2), 1);
    assert_eq!(of(old), Some(told));
    assert!(!is_told(new), "it is of after the restore");

    put(2, 1);
    assert_eq!(part(1), 2, "both know of the first");
    assert!(is_told(new) && of(old).is_some_and(|one| one.restore == 2));
    put(1, 2);
    dirs[1].keep_revision(7).expect("it is written");
    let third = create("third");
    assert_eq!(part(2), 2);
    assert!(!is_told(third), "this broker has seen a revision");
}

/// The store is put back once more to a state of before a restore that the brokers have lived through.
#[test]
fn a_start_that_fails_once_it_has_told_counts_no_restore_twice() {
    let home = tempfile::tempdir().expect("a directory");
    let store = MemoryCluster::new();
    let stream = StreamRecord::new("a", StreamConfig::default(), 0);
    let stream = store.create_stream(stream, 1).expect("it is made").0.id;
    let dir = directory(home.path(), store.cluster());
    let part = || {
        let brokers = store.brokers().expect("it is read");
        take_part(&store, &dir, (1, &brokers)).expect("it answers")
    };
    assert_eq!(part(), 1);
    dir.keep_restore(1).expect("it is kept");
    dir.keep_restored(1).expect("it is kept");
    let told = store.streamlet(stream, StreamletId(0));
    // Its record was not written.
    assert_eq!(part(), 1);
    let now = store.streamlet(stream, StreamletId(0));
    assert_eq!(now.expect("it is read"), told.expect("it is read"));
}

#[test]
fn a_state_that_is_put_back_twice_is_told_of_all_that_followed_it() {
    let (home, store) = (
        tempfile::tempdir().expect("a directory"),
        MemoryCluster::new(),
    );
    let dirs = ["1", "2"].map(|name| directory(&home.path().join(name), store.cluster()));
    let part = |id: u32| {
        let dir = &dirs[id as usize - 1];
        let brokers = store.brokers().expect("it is read");
        let restore = take_part(&store, dir, (id, &brokers)).expect("it answers");
        let recorded = record_broker(&store, dir, id, "h:1", 0, (Role::Broker, restore));
        recorded.expect("it is recorded");
        dir.keep_restore(restore).expect("it is written");
        restore
    };
    for (dir, id) in dirs.iter().zip(1..) {
        let recorded = record_broker(&store, dir, id, "h:1", 0, (Role::Broker, 1));
        recorded.expect("it is recorded");
    }
    let stream = StreamRecord::new("clicks", StreamConfig::default(), 0);
    let id = store.create_stream(stream, 1).expect("it is made").0.id;
    let streamlet = || {
        let found = store.streamlet(id, StreamletId(0)).expect("it is read");
        found.expect("it is there")
    };
    let old = streamlet();
    // The second broker was down in the restore that the state knows nothing of.
    dirs[0].keep_restore(2).expect("it is written");
    dirs[1].keep_restore(1).expect("it is written");
    assert_eq!(part(2), 2);
    assert_eq!(part(1), 3, "that one is another");
    let told = streamlet();
    assert_eq!((told.restore, told.awaits_jumps - old.awaits_jumps), (3, 3));
    assert!(told.epoch.0 > old.epoch.0 + 3 * 4000);
    drop(dirs);
    let again = StoreDir::open(&home.path().join("1")).expect("opens");
    assert_eq!(again.restore(), 3);
}

#[test]
fn producer_ids_of_each_restore_are_none_of_another() {
    let counter = Counter::ProducerIds;
    // The same state each time.
    let snapshot = |given: u64| {
        let store = MemoryCluster::new();
        give(&store, given);
        store
    };
    let ids = |store: &MemoryCluster| store.counter(counter).expect("it answers");
    let mut begins = Vec::new();
    for restore in 1..4 {
        let store = snapshot(3_000);
        pass_over_producer_ids(&store, restore).expect("there are more");
        begins.push(ids(&store));
        // Another broker tells of the same one, when some were given out.
        give(&store, 1_000);
        pass_over_producer_ids(&store, restore).expect("it is passed already");
        assert_eq!(ids(&store), begins[begins.len() - 1] + 1_000);
    }
    assert!(begins.is_sorted_by(|one, next| one + PRODUCER_IDS_PASSED <= *next));
    // Of a state whose restores had no places yet.
    let store = snapshot(9 * PRODUCER_IDS_PASSED);
    pass_over_producer_ids(&store, 4).expect("there are more");
    assert_eq!(ids(&store), 10 * PRODUCER_IDS_PASSED);
}

#[test]
fn a_directory_that_cannot_be_made_out_hides_no_other() {
    let (home, io) = (
        tempfile::tempdir().expect("a directory"),
        open_engine(EngineKind::Blocking),
    );
    let mut streams = [StreamId::random(), StreamId::random(), StreamId::random()];
    streams.sort_unstable();
    let [first, broken, last] =
        streams.map(|stream| (stream, home.path().join(stream.to_string())));
    for (of_stream, streamlet) in [(&first.1, "0"), (&first.1, "2"), (&last.1, "1")] {
        let of_streamlet = of_stream.join(streamlet);
        fs::create_dir_all(&of_streamlet).expect("room");
        let name = GroupSpec::file_name(GroupId(7), 0);
        fs::write(of_streamlet.join(name), b"").expect("room");
    }
    let loops = [first.1.join("1"), broken.1.clone()];
    for path in &loops {
        std::os::unix::fs::symlink(path, path).expect("room");
    }
    let mut found = Unknown::new();
    let unseen = find(&*io, home.path(), &|_, _| false, &mut found).expect("it is listed");
    let found: Vec<_> = found
        .keys()
        .map(|key| (key.stream, key.streamlet.0))
        .collect();
    assert_eq!(found, [(first.0, 0), (first.0, 2), (last.0, 1)]);
    let unseen: HashSet<_> = unseen.into_iter().collect();
    let expected = [(first.0, Some(StreamletId(1))), (broken.0, None)];
    assert_eq!(unseen, expected.into_iter().collect());
}

#[test]
fn a_file_in_which_compaction_left_no_record_holds_none() {
    let header = SegmentHeader {
        stream: StreamId::random(),
        streamlet: StreamletId(0),
        lane: LaneId(0),
        group: GroupId(7),
        generation: 1,
        segment: 0,
        epoch: Epoch(3),
        segment_size: 1 << 16,
        segments: 2,
        first_ordinal: 100,
        snapshot_bytes: 0,
        snapshot_crc: 0,
        created_ms: 1,
        ack: AckPolicy::Synced,
        marked: true,
        in_order: false,
    };
    let (home, io) = (
        tempfile::tempdir().expect("a directory"),
        open_engine(EngineKind::Blocking),
    );
    let holds = |batches: &[&[u8]]| {
        let path = home.path().join(GroupSpec::file_name(GroupId(7), 1));
        fs::write(&path, [&header.encode()[..], &batches.concat()].concat()).expect("room");
        holds_records(&*io, &path).expect("it is read")
    };
    let none = batch::empty(100, 10, Epoch(3));
    let mut builder = BatchBuilder::new();
    let record = NewRecord {
        value: Some(b"some"),
        ..NewRecord::default()
    };
    builder.push(&record).expect("room");
    let some = builder.finish(Compression::None, ProducerStamp::NONE);
    let mut some = some.expect("a record").to_vec();
    batch::patch(&mut some, 110, Epoch(3));
    assert!(!holds(&[]) && !holds(&[&none]));
    assert!(holds(&[&none, &some]));
    // Nothing of it can be read.
    assert!(holds(&[&[1; 100]]));
}

#[test]
fn a_broker_that_looks_through_its_files_is_heard_of() {
    let store = MemoryCluster::new();
    let revision = || store.broker(2).expect("it is read").map(|one| one.revision);
    let looking = Looking::begin(&store, 2, Duration::ZERO);
    looking.goes_on();
    assert_eq!(revision(), None, "nobody knows it");
    let home = tempfile::tempdir().expect("a directory");
    let dir = directory(home.path(), store.cluster());
    let put = record_broker(&store, &dir, 2, "h:1", 0, (Role::Broker, 3));
    put.expect("it is recorded");
    let first = revision().expect("it is there");
    looking.goes_on();
    let now = store.broker(2).expect("it is read").expect("it is there");
    assert!(now.revision > first);
    let known = (3, dir.incarnation().store_id);
    assert_eq!((now.restore, now.store_id), known);
    // Not for each file.
    let looking = Looking::begin(&store, 2, TOLD_EVERY);
    looking.goes_on();
    assert_eq!(revision(), Some(now.revision));
}

#[test]
fn a_restore_counts_as_done_once_streams_are_set_aside_that_the_store_does_not_know() {
    let (home, shared) = (tempfile::tempdir(), tempfile::tempdir());
    let (home, shared) = (home.expect("a directory"), shared.expect("a directory"));
    let store = MemoryCluster::new();
    let dir = directory(home.path(), store.cluster());
    let (unknown, deleting) = (StreamId::random(), StreamId::random());
    for stream in [unknown, deleting] {
        fs::create_dir_all(dir.streams().join(stream.to_string())).expect("made");
    }
    dir.deleting(deleting).expect("it is kept");
    let mut config = BrokerConfig {
        data_dir: home.path().to_path_buf(),
        ..BrokerConfig::default()
    };
    config.cluster.broker_id = Some(1);
    config.replica_store.shared_dir = Some(shared.path().to_path_buf());
    // Nothing counts as done while they cannot be moved.
    fs::write(dir.unknown(), "in the way").expect("written");
    let Err(error) = begin(&store, &dir, &config, &[]) else {
        panic!("it goes on although a stream is in no safe place");
    };
    assert!(error.to_string().contains("cannot be moved here"));
    fs::remove_file(dir.unknown()).expect("it is there");
    // Some were set aside before.
    fs::create_dir_all(dir.unknown().join(unknown.to_string())).expect("made");
    let done = begin(&store, &dir, &config, &[]).expect("it is done");
    let now = store.load().expect("it is read").revision;
    assert_eq!(done.revision, now, "what was before is refused");
    assert!(dir.unknown().join(format!("{unknown}.1")).is_dir());
    let left = fs::read_dir(dir.streams()).expect("it is there").count();
    assert_eq!(left, 0, "what was being deleted is removed");
}

/// Gives out so many producer ids.
fn give(store: &MemoryCluster, many: u64) {
    let counter = Counter::ProducerIds;
    let value = store.counter(counter).expect("it answers");
    let compare = Compare::CounterValue { counter, value };
    let write = Write::PutCounter {
        counter,
        value: value + many,
    };
    let put = Transaction::new(vec![compare], vec![write]);
    store.commit(put).expect("it is written");
}

#[test]
fn lanes_go_on_behind_what_is_recorded_of_them() {
    let key = StreamletKey {
        stream: StreamId::random(),
        streamlet: StreamletId(0),
    };
    let own = Replica {
        broker: BrokerId(1),
        incarnation: Default::default(),
    };
    let streamlet = StreamletRecord {
        stream: key.stream,
        streamlet: key.streamlet,
        owner: 1,
        epoch: Epoch(9),
        next_group: GroupId(1 << 32),
        restore: 1,
        awaits_jumps: 2,
        revision: 0,
    };
    let group = |id: u64, lane: u32, end: u64| {
        GroupRecord::new(key.group(GroupId(id)), LaneId(lane), Epoch(8)).closed(
            0,
            (1, end),
            end,
            vec![own],
        )
    };
    let image = Image {
        groups: vec![group(1, 0, 10), group(2, 1, 20), group(3, 0, 30)],
        ..Image::default()
    };
    let ends = |lane: LaneId| (lane.0 == 1).then_some(25);
    let found = jumps(&image, &streamlet, 3, own, ends);
    let places: Vec<_> = found
        .iter()
        .map(|g| (g.lane.0, g.start_ordinal()))
        .collect();
    assert_eq!(places, [(0, 30), (1, 25), (2, 0)]);
    for jump in &found {
        assert!(jump.is_closed() && !jump.holds_records() && jump.epoch == streamlet.epoch);
        assert!(jump.group < streamlet.next_group && jump.group.0 > 1 << 31);
        assert_eq!(jump.next_ordinal, jump.end_ordinal + (2 << 32));
    }
}
