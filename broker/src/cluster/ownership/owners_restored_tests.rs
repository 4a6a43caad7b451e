//! A store that is put back to an older state, and what brokers have of what it does not know.

use kera_log_segments::io::{EngineKind, OpenHow, open_engine};
use kera_log_segments::scan::{ScanSpec, scan};
use kera_metadata::{GroupRecord, MemoryStore};

use super::*;

const JUMP: u64 = 1 << 32;

impl Trio {
    /// The groups of a streamlet.
    fn recorded(&self, (stream, number): (StreamId, u32)) -> Vec<GroupRecord> {
        let image = self.store.load_streamlet(stream, StreamletId(number));
        image.expect("it is read").groups
    }

    /// All brokers end, which closes all groups.
    async fn end_all(&mut self) {
        for id in 1..=3 {
            self.end(id).await;
        }
    }

    /// The store knows these groups of a streamlet and no others, and an operator says so to brokers 1 and 2.
    fn put_back(&self, of: (StreamId, u32), groups: &[GroupRecord]) {
        self.record_as(of, groups);
        for id in 1..=2 {
            let revision = self.config(id).data_dir.join("REVISION");
            std::fs::remove_file(revision).expect("it is there");
        }
    }

    /// The store knows these groups of a streamlet and no others.
    fn record_as(&self, (stream, number): (StreamId, u32), groups: &[GroupRecord]) {
        let epoch = || {
            let found = self.store.streamlet(stream, StreamletId(number));
            Compare::epoch(&found.expect("it is read").expect("it is recorded"))
        };
        let now = self.recorded((stream, number));
        let deleted = now.iter().map(|g| Write::delete_group(g.key(), g.revision));
        let (compare, write): (Vec<_>, Vec<_>) = deleted.unzip();
        let compare = std::iter::once(epoch()).chain(compare).collect();
        let committed = self.store.commit(Transaction::new(compare, write));
        committed.expect("nobody was faster");
        let old = groups.iter().map(|group| {
            let group = GroupRecord {
                revision: 0,
                ..group.clone()
            };
            group.put()
        });
        let (compare, write): (Vec<_>, Vec<_>) = old.unzip();
        let compare = std::iter::once(epoch()).chain(compare).collect();
        let committed = self.store.commit(Transaction::new(compare, write));
        committed.expect("nobody was faster");
    }

    /// A group as one that ends behind its first batches, of which broker 1 has a file.
    fn shorter(&self, group: &GroupRecord, batches: usize) -> GroupRecord {
        let of = self.config(1).data_dir.join("streams");
        let of = of.join(group.stream.to_string());
        let name = kera_log_segments::group::GroupSpec::file_name(group.group, 0);
        let path = of.join(group.streamlet.0.to_string()).join(name);
        let io = open_engine(EngineKind::Blocking);
        let file = io.open(&path, OpenHow::ReadOnly, false);
        let mut ends = Vec::new();
        let file = file.expect("it is there");
        let scanned = scan(&*file, &ScanSpec::default(), |header, address| {
            ends.push((address + header.total_bytes as u64, header.next_ordinal()));
        });
        assert!(!scanned.expect("it is whole").damaged);
        let (length, end) = ends[batches - 1];
        GroupRecord {
            length,
            live_bytes: length,
            end_ordinal: end,
            next_ordinal: end,
            ..group.clone()
        }
    }

    /// Why broker `at` does not serve a streamlet.
    fn reason(&self, at: u32, (stream, number): (StreamId, u32)) -> String {
        let clustered = self
            .shared(at)
            .clustered
            .as_ref()
            .expect("it is one of them");
        let key = self.streamlet(at, stream, number).key();
        clustered.replicated.waiting().describe(key).reason
    }

    /// A streamlet of broker 1.
    async fn of_broker_1(&self, name: &str) -> (StreamId, u32) {
        let stream = self.create(1, name).await;
        let mut numbers = 0..3;
        let number = numbers.find(|number| self.owner(1, stream, *number).broker == 1);
        (stream, number.expect("they are spread"))
    }

    /// A streamlet of broker 1, written in two lives of all brokers; and its groups after the first one.
    async fn written_twice(&mut self) -> ((StreamId, u32), Vec<GroupRecord>) {
        let (stream, number) = self.of_broker_1("clicks").await;
        let streamlet = self.streamlet(1, stream, number);
        append_all(self.shared(1), &streamlet, 0..5).await;
        drop(streamlet);
        self.end_all().await;
        let old = self.recorded((stream, number));
        assert!(!old.is_empty() && old.iter().all(GroupRecord::is_closed));
        for id in 1..=3 {
            self.begin(id).await;
        }
        let streamlet = self.served(1, stream, number).await;
        append_all(self.shared(1), &streamlet, 5..10).await;
        drop(streamlet);
        self.end_all().await;
        ((stream, number), old)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_brokers_have_whole_that_a_restored_store_does_not_know_is_served() {
    let mut trio = Trio::start().await;
    let (of, old) = trio.written_twice().await;
    let all = trio.recorded(of);
    assert!(all.len() > old.len());
    trio.put_back(of, &old);
    trio.begin(1).await;
    trio.begin(2).await;
    // It waits for all, since any may have more.
    until(|| trio.reason(1, of).contains("have not started since")).await;
    // This one has its REVISION still, and learns of the restore from the others.
    trio.begin(3).await;
    let served = trio.served(1, of.0, of.1).await;
    assert_eq!(values(&served).await, expected(0..10));
    for known in all.iter().filter(|group| group.holds_records()) {
        let now = trio
            .recorded(of)
            .into_iter()
            .find(|g| g.group == known.group);
        let now = now.expect("it is recorded again");
        assert_eq!(now.end_ordinal, known.end_ordinal);
        let holders = |group: &GroupRecord| {
            let mut holders: Vec<_> = group.copies.iter().map(|c| c.broker.0).collect();
            holders.sort_unstable();
            holders
        };
        assert_eq!(holders(&now), holders(known));
    }
    append_all(trio.shared(1), &served, 10..12).await;
    assert_eq!(values(&served).await, expected(0..12));
    assert_eq!(served.head(LANE).expect("a lane").ordinal(), JUMP + 12);
}

/// Each change of groups that it makes is refused at first, as if it had ended before it: what it has changed by then is what the
/// next attempt finds.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_ends_while_a_group_is_ended_where_the_next_begins_leaves_all_of_its_records() {
    let mut trio = Trio::start().await;
    let of = trio.of_broker_1("clicks").await;
    let streamlet = trio.streamlet(1, of.0, of.1);
    append_all(trio.shared(1), &streamlet, 0..5).await;
    drop(streamlet);
    trio.end_all().await;
    let recorded = trio.recorded(of);
    let whole = recorded.iter().find(|group| group.holds_records());
    let whole = whole.expect("it is closed").clone();
    // Of five records an owner had shown three when another took over.
    trio.record_as(of, &[trio.shorter(&whole, 3)]);
    for id in 1..=3 {
        trio.begin(id).await;
    }
    let streamlet = trio.served(1, of.0, of.1).await;
    let new: Vec<_> = (3..8).map(|at| format!("new {at}").into_bytes()).collect();
    for (sequence, value) in (3..8).zip(&new) {
        let appended = append_value(&streamlet, trio.shared(1), sequence, value);
        let appended = appended.expect("it is taken");
        assert_eq!(outcome(&appended).await, Outcome::Durable);
    }
    drop(streamlet);
    trio.end_all().await;
    // A store of before the takeover, in which brokers have recorded what they have.
    let mut groups = trio.recorded(of);
    for group in groups.iter_mut().filter(|group| group.group == whole.group) {
        group.clone_from(&whole);
    }
    trio.put_back(of, &groups);
    trio.begin(1).await;
    trio.stops[0].store(1, Ordering::SeqCst);
    trio.begin(2).await;
    trio.begin(3).await;
    let served = trio.served(1, of.0, of.1).await;
    assert!(trio.stops[0].load(Ordering::SeqCst) > 4, "it was stopped");
    let expected = expected(0..3).into_iter().chain(new);
    assert_eq!(values(&served).await, expected.collect::<Vec<_>>());
    let recorded = trio.recorded(of);
    let mut ended = recorded.iter().filter(|group| group.group == whole.group);
    let ended = ended.next().expect("it is recorded");
    assert_eq!((ended.length < whole.length, ended.end_ordinal), (true, 3));
    assert_eq!(ended.copies.len(), whole.copies.len());
}

impl Trio {
    /// The store is put back to an older state, and an operator says so to all brokers.
    fn put_back_to(&mut self, old: MemoryStore) {
        self.store = Arc::new(MemoryCluster::over(old));
        self._idle = idle_controller(&self.store);
        for id in 1..=3 {
            let revision = self.config(id).data_dir.join("REVISION");
            std::fs::remove_file(revision).expect("it is there");
        }
    }

    /// Where a broker may have files of a stream: its own, and those that it keeps for others.
    fn dirs_of(&self, id: u32, stream: StreamId) -> [std::path::PathBuf; 3] {
        let data = self.config(id).data_dir;
        let shared = self.dirs[id as usize - 1].path().join("shared");
        [data.join("streams"), data.join("backup"), shared].map(|dir| dir.join(stream.to_string()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_taken_a_group_over_since_is_asked_for_it() {
    let mut trio = Trio::start_of(3, Some(Duration::from_millis(50))).await;
    let of = trio.of_broker_1("clicks").await;
    let streamlet = trio.streamlet(1, of.0, of.1);
    append_all(trio.shared(1), &streamlet, 0..5).await;
    drop(streamlet);
    let old = trio.store.store().copy_after_kill();
    let open = trio.recorded(of);
    assert!(open.iter().all(|group| !group.is_closed()));
    for to in 2..=3 {
        trio.assign(of.0, of.1, to);
        trio.served(to, of.0, of.1).await;
    }
    let name = kera_log_segments::group::GroupSpec::file_name(open[0].group, 0);
    let places = |trio: &Trio, id: u32| {
        let dirs = trio.dirs_of(id, of.0);
        dirs.map(|dir| dir.join(of.1.to_string()).join(&name))
    };
    // Replicas become files.
    let is_there = |id: u32| places(&trio, id).map(|path| path.exists());
    until(|| (2..=3).all(|id| is_there(id) == [true, false, false])).await;
    trio.end_all().await;
    // Another replica took the place of what its first owner had.
    std::fs::remove_file(&places(&trio, 1)[0]).expect("it is there");
    trio.put_back_to(old);
    for id in 1..=3 {
        trio.begin(id).await;
    }
    let served = trio.served(1, of.0, of.1).await;
    assert_eq!(values(&served).await, expected(0..5));
}

/// An owner that is killed may have written the begin of a group and not the end of the one before it, which it had not sent to
/// others either. The header of the later one says that all batches before it are stored.
#[tokio::test(flavor = "multi_thread")]
async fn batches_in_a_hole_are_not_answered_as_stored_for_what_lies_behind_it() {
    let mut trio = Trio::start().await;
    let (of, old) = trio.written_twice().await;
    let before = old.iter().find(|group| group.holds_records());
    let before = before.expect("it is closed").clone();
    let mut behind = trio.recorded(of).into_iter();
    let behind = behind.find(|group| group.holds_records() && group.group != before.group);
    let behind = behind.expect("it is closed");
    for id in 2..=3 {
        for dir in trio.dirs_of(id, of.0) {
            let name = format!("{}.0.", behind.group.0);
            for entry in std::fs::read_dir(dir.join(of.1.to_string()))
                .into_iter()
                .flatten()
            {
                let path = entry.expect("it is read").path();
                if path.to_string_lossy().contains(&name) {
                    std::fs::remove_file(path).expect("it is there");
                }
            }
        }
    }
    trio.put_back(of, &[trio.shorter(&before, 3)]);
    for id in 1..=3 {
        trio.begin(id).await;
    }
    let served = trio.served(1, of.0, of.1).await;
    assert_eq!(values(&served).await, expected(0..3));
    append_all(trio.shared(1), &served, 3..8).await;
    assert_eq!(values(&served).await, expected(0..8));
    assert_eq!(served.head(LANE).expect("a lane").ordinal(), JUMP + 8);
}

/// Who has been in the cluster would know of the restore; a new directory does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_directory_that_starts_first_waits_for_what_others_know() {
    let mut trio = Trio::start().await;
    let (of, old) = trio.written_twice().await;
    trio.put_back(of, &old);
    let replace = |trio: &Trio| {
        for dir in ["data", "shared"] {
            std::fs::remove_dir_all(trio.dirs[0].path().join(dir)).expect("it is there");
        }
    };
    replace(&trio);
    trio.begin(1).await;
    until(|| trio.reason(1, of).contains("have not started since")).await;
    trio.begin(2).await;
    trio.begin(3).await;
    let served = trio.served(1, of.0, of.1).await;
    assert_eq!(values(&served).await, expected(0..10));
    append_all(trio.shared(1), &served, 10..12).await;
    // It cannot know how many restores there were.
    assert_eq!(served.head(LANE).expect("a lane").ordinal(), 16 * JUMP + 12);
    drop(served);
    // Where others are alive there was none.
    trio.end(1).await;
    replace(&trio);
    trio.begin(1).await;
    let streamlet = trio.store.streamlet(of.0, StreamletId(of.1));
    assert_eq!(
        streamlet.expect("it is read").map(|one| one.restore),
        Some(16)
    );
    let served = trio.served(1, of.0, of.1).await;
    assert_eq!(values(&served).await, expected(0..12));
}

/// One that was added since the older state is not recorded there, and may have what nobody else has.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_was_added_since_is_waited_for() {
    let mut trio = Trio::start().await;
    let (of, old) = trio.written_twice().await;
    trio.put_back(of, &old);
    let added = trio.store.broker(3).expect("it is read");
    let compare = Compare::revision(Key::Broker(3), added.expect("it is recorded").revision);
    let write = vec![Write::DeleteBroker(3)];
    let committed = trio.store.commit(Transaction::new(vec![compare], write));
    committed.expect("nobody was faster");
    trio.begin(1).await;
    trio.begin(2).await;
    until(|| {
        trio.reason(1, of)
            .contains("brokers [3] have not started since")
    })
    .await;
    trio.begin(3).await;
    let served = trio.served(1, of.0, of.1).await;
    assert_eq!(values(&served).await, expected(0..10));
}
