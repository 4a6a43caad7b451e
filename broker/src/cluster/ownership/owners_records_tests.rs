//! What is done on the strength of what the store says, and how new that must be.

use std::path::PathBuf;

use kera_log_segments::group::GroupSpec;
use kera_log_segments::layout::SegmentHeader;
use kera_metadata::{GroupRecord, GroupState, Replica};
use kera_protocol::ids::{GroupId, StreamletKey};
use kera_replication::ids::{BrokerId, CopyId};
use kera_replication::jobs::{JobConfig, JobStats};
use kera_replication::transport::{CopyInfo, Refusal, Reply, Request};

use super::*;
use crate::admin::named_anywhere;
use crate::cluster::ownership::watching::apply_all;
use crate::cluster::replica::deleted_streams::catch_up;

impl Trio {
    /// The groups of the stream's first streamlet.
    fn groups(&self, stream: StreamId) -> Vec<GroupRecord> {
        let image = self.store.load_streamlet(stream, StreamletId(0));
        image.expect("it is read").groups
    }

    /// One group of it, as it is recorded.
    fn group(&self, stream: StreamId, group: GroupId) -> Option<GroupRecord> {
        let mut groups = self.groups(stream).into_iter();
        groups.find(|record| record.group == group)
    }

    /// The one that is closed.
    fn closed_group(&self, stream: StreamId) -> GroupRecord {
        let mut groups = self.groups(stream).into_iter();
        let closed = groups.find(GroupRecord::holds_records);
        closed.expect("it is closed")
    }

    /// A group is recorded to be at broker `at` alone.
    fn held_at(&self, group: &GroupRecord, at: u32) {
        self.change_copies(group, |copies| {
            let of_broker = copies.iter().position(|copy| copy.broker.0 == at);
            copies.swap(0, of_broker.unwrap_or(0));
            copies.truncate(1);
            copies[0].broker = BrokerId(at);
        });
    }

    fn change_copies(&self, group: &GroupRecord, change: impl FnOnce(&mut Vec<Replica>)) {
        let recorded = self.store.streamlet(group.stream, group.streamlet);
        let recorded = recorded.expect("it is read").expect("it is recorded");
        let mut next = group.clone();
        change(&mut next.copies);
        let epoch = Compare::StreamletEpoch {
            stream: group.stream,
            streamlet: group.streamlet,
            epoch: recorded.epoch,
        };
        let compare = vec![epoch, Compare::group(group)];
        let transaction = Transaction::new(compare, vec![Write::PutGroup(next)]);
        self.store.commit(transaction).expect("nobody was faster");
    }

    /// The files of the stream's first streamlet at broker `at`.
    fn files(&self, at: u32, stream: StreamId) -> Vec<PathBuf> {
        let dir = self.streamlet(at, stream, 0).dir();
        let Ok(entries) = std::fs::read_dir(dir) else {
            return Vec::new();
        };
        let mut files: Vec<_> = entries.map(|e| e.expect("it is listed").path()).collect();
        files.sort();
        files
    }

    /// One round of the jobs of broker `at`; what they have done so far.
    async fn round(&self, at: u32) -> JobStats {
        let replicated = self.shared(at).clustered.as_ref().map(|c| &c.replicated);
        let replicated = replicated.expect("it has copies elsewhere");
        // Those that run already.
        replicated.begin_jobs(JobConfig::default()).round().await;
        replicated.job_stats()
    }

    /// Asks the store of broker `at` as others do.
    fn asked(&self, at: u32, request: Request) -> Result<Reply, Refusal> {
        let cluster = &self
            .shared(at)
            .clustered
            .as_ref()
            .expect("it has a number")
            .peers;
        cluster.backup.store().handle(BrokerId(99), request)
    }

    /// The files of the stream's first streamlet that broker `at` tells others of.
    fn listed(&self, at: u32, stream: StreamId) -> Vec<CopyInfo> {
        let streamlet = self.streamlet(at, stream, 0).key();
        let files = self.files(at, stream);
        let list = Request::List {
            streamlet: Some(streamlet),
        };
        let Ok(Reply::Copies(mut copies)) = self.asked(at, list) else {
            panic!("it is not told");
        };
        let name = |info: &CopyInfo| GroupSpec::file_name(info.copy.group, 0);
        copies.retain(|info| files.iter().any(|file| file.ends_with(name(info))));
        copies
    }

    /// Whether broker `at` has heard of a record that names a file of its in the stream's first streamlet.
    fn knows_a_file(&self, at: u32, stream: StreamId) -> bool {
        let named = self.shared(at).cluster_view(|picture| {
            let view = picture.streamlet(StreamletKey {
                stream,
                streamlet: StreamletId(0),
            });
            view.is_some_and(|view| view.groups.values().any(|g| g.copies.contains(&at)))
        });
        named.unwrap_or(true)
    }

    /// A stream with ten records whose only streamlet has changed its owner: the stream, who owned and who owns the
    /// streamlet, and the streamlet as it is served now.
    async fn handed_over(&self) -> (StreamId, [u32; 2], Arc<Streamlet>) {
        let stream = self.create(1, "clicks").await;
        let old = self.owner(1, stream, 0).broker;
        let to = old % 3 + 1;
        append_all(self.shared(old), &self.streamlet(old, stream, 0), 0..10).await;
        let handed = hand_over(self.shared(old), stream, StreamletId(0), to).await;
        handed.expect("it is handed over");
        let served = self.served(to, stream, 0).await;
        (stream, [old, to], served)
    }

    /// All closed groups of the stream's first streamlet have no copy at broker `at` any more.
    fn strike(&self, at: u32, stream: StreamId) {
        for group in self.groups(stream) {
            assert_eq!(group.state, GroupState::Closed);
            self.change_copies(&group, |copies| copies.retain(|copy| copy.broker.0 != at));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_lease_counts_once_its_broker_has_heard_of_its_successor() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let owner = trio.owner(1, stream, 0).broker;
    let shared = trio.shared(owner).clone();
    let streamlet = trio.streamlet(owner, stream, 0);
    append_all(&shared, &streamlet, 0..3).await;
    let later = || append(&streamlet, &shared, 5).expect_err("3 and 4 are not there");
    assert!(matches!(later(), AppendError::Sequence(_)));

    // It is away, and another owns the streamlet, of whom it has not heard when it has a lease again.
    let late = &trio.late[owner as usize - 1];
    late.send_replace(true);
    trio.store.expire(owner);
    trio.assign(stream, 0, 7);
    trio.store.revive(owner);
    let membership = &shared
        .clustered
        .as_ref()
        .expect("it shares a store")
        .membership;
    assert!(membership.is_valid() && !streamlet.is_over());
    assert!(!shared.data.directory.is_current());
    assert!(!shared.data.directory.serves(stream, StreamletId(0)));
    assert!(matches!(later(), AppendError::NotOwner));

    late.send_replace(false);
    until(|| streamlet.is_moved()).await;
    until(|| shared.data.directory.is_current()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_another_time_or_cluster_deletes_nothing() {
    let trio = Trio::start().await;
    let before = trio.store.load().expect("it is read");
    let stream = trio.create(1, "clicks").await;
    let owner = trio.owner(1, stream, 0).broker;
    let streamlet = trio.streamlet(owner, stream, 0);
    append_all(trio.shared(owner), &streamlet, 0..3).await;
    let now = trio.store.load().expect("it is read").revision;
    let shared = trio.shared(owner).clone();
    let mut seen = shared
        .clustered
        .as_ref()
        .expect("it shares a store")
        .ownership
        .seen();
    seen.wait_for(|seen| *seen >= now)
        .await
        .expect("it is told");
    let mut other = trio.store.load().expect("it is read");
    other.cluster = Uuid::new_v4();
    other.revision += 1000;
    other.streams.clear();
    // The first is of a time before the stream, as after a restore; and would say so of any younger.
    let mut older = before.clone();
    older.revision = now - 1;
    for image in [before, older, other] {
        let shared = shared.clone();
        let applied = tokio::task::spawn_blocking(move || {
            let clustered = shared.clustered.as_ref().expect("it shares a store");
            apply_all(&shared, clustered, image);
        });
        applied.await.expect("no panic");
        assert!(shared_has(&trio, owner, stream));
        assert!(!streamlet.is_over() && !trio.files(owner, stream).is_empty());
    }
    append_all(&shared, &streamlet, 3..6).await;
    assert_eq!(values(&streamlet).await, expected(0..6));
}

fn shared_has(trio: &Trio, at: u32, stream: StreamId) -> bool {
    trio.shared(at).data.catalog.get(stream).is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_does_not_start_on_a_store_that_is_older_than_what_it_has_seen() {
    let mut trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let before = trio.owner(1, stream, 0);
    let kept = trio.shared(3).dir.path().to_path_buf();
    let seen = trio.shared(3).dir.revision();
    // It was written when the stream was learnt of, not some time later.
    let found = trio
        .shared(3)
        .data
        .catalog
        .get(stream)
        .expect("it is known");
    assert!(seen >= found.record.load().revision, "{seen}");
    // It holds on to the copies.
    drop(found);
    trio.end(3).await;
    std::fs::write(kept.join("REVISION"), "kera revision 1000000\n").expect("it is written");
    let refused = trio.beginning(3).await.err().expect("it is refused");
    let text = refused.to_string();
    assert!(text.contains("has seen revision 1000000"), "{text}");
    assert!(kept.join("streams").join(stream.to_string()).exists());

    // Without it, as after an operator's decision, it starts.
    std::fs::remove_file(kept.join("REVISION")).expect("it is there");
    trio.begin(3).await;
    assert!(shared_has(&trio, 3, stream));
    // It says that the store was put back. Owners that run begin anew, behind ordinals that they cannot know of.
    until(|| trio.owner(1, stream, 0).epoch.0 > before.epoch.0 + 1000).await;
    let at = trio.owner(1, stream, 0).broker;
    let served = trio.served(at, stream, 0).await;
    append_all(trio.shared(at), &served, 0..3).await;
    assert_eq!(values(&served).await, expected(0..3));
    let head = served.head(LANE).expect("a lane").ordinal();
    assert_eq!(head, (1 << 32) + 3);
    // What is made since is as any new stream.
    let new = trio.create(1, "new").await;
    let at = trio.owner(1, new, 0).broker;
    let served = trio.served(at, new, 0).await;
    append_all(trio.shared(at), &served, 0..3).await;
    assert_eq!(served.head(LANE).expect("a lane").ordinal(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_streamlet_that_has_moved_stay_while_they_are_recorded_and_go_after_that() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let old = trio.owner(1, stream, 0).broker;
    let to = old % 3 + 1;
    append_all(trio.shared(old), &trio.streamlet(old, stream, 0), 0..10).await;
    assert!(
        trio.listed(old, stream).is_empty(),
        "they are not for others"
    );
    hand_over(trio.shared(old), stream, StreamletId(0), to)
        .await
        .expect("it is handed over");
    let after = trio.served(to, stream, 0).await;
    let files = trio.files(old, stream);
    assert!(!files.is_empty());
    until(|| trio.listed(old, stream).len() == files.len()).await;
    trio.round(to).await;
    assert_eq!(trio.files(old, stream), files, "records name them");
    // One that no record names goes alone.
    let stray = trio.streamlet(old, stream, 0).dir();
    let stray = stray.join("0000000000009999.0.log");
    std::fs::write(&stray, b"never recorded").expect("it is written");
    trio.round(to).await;
    assert_eq!(trio.files(old, stream), files);

    // What was written since it was listed stays.
    trio.strike(old, stream);
    until(|| !trio.knows_a_file(old, stream)).await;
    let listed = trio.listed(old, stream);
    let copy = listed[0].copy;
    let epoch = after.epoch();
    let seal = Request::seal(copy.streamlet, epoch);
    trio.asked(old, seal).expect("it is sealed");
    let rewrite = Request::Complete {
        copy,
        epoch,
        segment_size: 64 << 10,
        segments: 2,
        address: 0,
        bytes: vec![7; 100].into(),
    };
    trio.asked(old, rewrite).expect("it is written anew");
    let free = Request::free(copy, epoch, Some(listed[0].version));
    let refused = trio.asked(old, free).expect_err("it is another file");
    assert!(refused.to_string().contains("written since"), "{refused}");
    let there = trio.files(old, stream);
    assert!(files.iter().all(|file| there.contains(file)), "{there:?}");

    trio.round(to).await;
    assert!(trio.files(old, stream).is_empty());
    assert_eq!(values(&after).await, expected(0..10));

    // It comes back to what it was, and has the files again.
    let back = hand_over(trio.shared(to), stream, StreamletId(0), old).await;
    back.expect("it is handed over");
    let again = trio.served(old, stream, 0).await;
    assert_eq!(values(&again).await, expected(0..10));
    assert!(!trio.files(old, stream).is_empty());
}

/// A replica that came as a copy to its broker's store becomes a file when the broker takes the streamlet
/// over, and its record goes on naming the store.
#[tokio::test(flavor = "multi_thread")]
async fn files_that_were_copies_in_a_store_stay_while_they_are_recorded() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let first = trio.owner(1, stream, 0).broker;
    let (second, third) = (first % 3 + 1, (first + 1) % 3 + 1);
    append_all(trio.shared(first), &trio.streamlet(first, stream, 0), 0..10).await;
    let store_of = |at: u32| {
        let cluster = trio.shared(at).clustered.as_ref().map(|c| &c.peers);
        cluster.expect("it has a number").backup.store().clone()
    };
    // Each owner in turn has a copy in its store, and makes it its own file.
    for (from, to) in [(first, second), (second, third)] {
        let handed = hand_over(trio.shared(from), stream, StreamletId(0), to).await;
        handed.expect("it is handed over");
        trio.served(to, stream, 0).await;
        let recorded = trio.groups(stream);
        until(|| {
            let copies = || recorded.iter().map(CopyId::of);
            !trio.files(to, stream).is_empty() && copies().all(|copy| !store_of(to).holds(&copy))
        })
        .await;
    }
    // A group that is not recorded here any more has the others looked at.
    let stray = trio.streamlet(second, stream, 0).dir();
    let stray = stray.join("0000000000009999.0.log");
    std::fs::write(&stray, b"never recorded").expect("it is written");
    until(|| trio.listed(second, stream).len() > 1).await;
    trio.round(third).await;
    assert!(!stray.exists());
    let groups = trio.groups(stream);
    for group in groups.iter().filter(|group| group.length > 0) {
        assert_eq!(group.copies.len(), 3);
        let name = GroupSpec::file_name(group.group, 0);
        for at in [first, second, third] {
            let kept = trio.streamlet(at, stream, 0).dir().join(&name);
            assert!(kept.exists(), "{} is recorded", kept.display());
        }
    }
}

/// A recorded replica without its bytes counts as missing, although its broker lives, until it is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn groups_lack_copies_whose_bytes_are_gone() {
    let trio = Trio::start().await;
    let (stream, [old, to], after) = trio.handed_over().await;
    let found = trio
        .shared(to)
        .data
        .catalog
        .get(stream)
        .expect("it is known");
    let lack = || {
        let lack = crate::cluster::shortage::under_replicated(trio.shared(to), &found);
        lack.expect("it is read")
    };
    let shared = trio.shared(to);
    let clustered = shared.clustered.as_ref().expect("it has others");
    let counted = || {
        crate::cluster::shortage::count_all(shared, clustered);
        crate::cluster::shortage::as_counted(shared, &found)
    };
    trio.round(to).await;
    assert_eq!((lack(), counted()), (0, Some(0)));
    // What is followed need not be read. Other brokers may be at work in the background for a while.
    let mut quiet = false;
    for _ in 0..20 {
        let asked = trio.store.store().asked();
        for _ in 0..3 {
            trio.round(to).await;
            assert_eq!(counted(), Some(0));
        }
        let since = trio.store.store().asked().since(&asked);
        quiet |= since.streamlet_loads == 0;
    }
    assert!(quiet, "every round reads records that have not changed");

    // It takes no other for now.
    let seal = Request::seal(after.key(), Epoch(after.epoch().0 + 1));
    trio.asked(old, seal).expect("it is sealed");
    for file in trio.files(old, stream) {
        std::fs::remove_file(file).expect("it is there");
    }
    let stats = trio.round(to).await;
    assert_eq!((stats.built, stats.wanting), (0, 1), "{stats:?}");
    let replicated = trio.shared(to).clustered.as_ref().map(|c| &c.replicated);
    let missing = replicated.expect("it has copies elsewhere").missing();
    let missing: Vec<_> = missing.into_values().collect();
    assert_eq!(missing, [[BrokerId(old)]]);
    assert_eq!((lack(), counted()), (1, Some(1)));
}

/// Others ask a broker that has a lease already what it holds while it still starts.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_starts_does_not_deny_its_own_files() {
    let mut trio = Trio::start().await;
    let (stream, [old, to], after) = trio.handed_over().await;
    let before = trio.groups(stream);
    assert!(before.iter().any(|group| group.copies.len() == 3));

    trio.end(old).await;
    let starting = trio.starting[old as usize - 1].clone();
    starting.send_replace(true);
    let begun = tokio::spawn(trio.beginning(old));
    let is_peer = || {
        let cluster = &trio
            .shared(to)
            .clustered
            .as_ref()
            .expect("it has a number")
            .peers;
        cluster.peers().iter().any(|peer| peer.id == old)
    };
    until(is_peer).await;
    let stats = trio.round(to).await;
    assert_eq!((stats.built, stats.failed), (0, 0), "{stats:?}");
    assert_eq!(trio.groups(stream), before);

    starting.send_replace(false);
    let started = begun.await.expect("no panic").expect("it starts");
    trio.brokers[old as usize - 1] = Some(started);
    let stats = trio.round(to).await;
    assert_eq!((stats.built, stats.wanting), (0, 0), "{stats:?}");
    assert_eq!(trio.groups(stream), before);
    assert_eq!(values(&after).await, expected(0..10));
}

/// Nobody has written to it, so that its new owner has nothing of it to put anywhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_streamlet_without_records_is_written_by_its_next_owner() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let old = trio.owner(1, stream, 0).broker;
    let to = old % 3 + 1;
    trio.served(old, stream, 0).await;
    trio.assign(stream, 0, to);
    let after = trio.served(to, stream, 0).await;
    append_all(trio.shared(to), &after, 0..10).await;
    assert_eq!(values(&after).await, expected(0..10));
    assert!(!trio.files(to, stream).is_empty());
    assert!(!after.refuses_to_write());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_was_away_forgets_copies_of_a_stream_that_was_deleted_meanwhile() {
    let mut trio = Trio::start_of(3, Some(Duration::from_millis(100))).await;
    let (gone, kept) = (
        trio.create(1, "clicks").await,
        trio.create(1, "views").await,
    );
    for stream in [gone, kept] {
        let number = (0..3).find(|n| trio.owner(1, stream, *n).broker == 1);
        let streamlet = trio.streamlet(1, stream, number.expect("it owns one of three"));
        append_all(trio.shared(1), &streamlet, 0..3).await;
    }
    let holds = |trio: &Trio, stream| {
        let cluster = &trio
            .shared(3)
            .clustered
            .as_ref()
            .expect("it has a number")
            .peers;
        cluster.backup.store().streams().contains_key(&stream)
    };
    // A group that had to begin without it gets its copy there later.
    until(|| holds(&trio, gone) && holds(&trio, kept)).await;
    // That its own picture knows of no stream says nothing.
    let cluster = &trio
        .shared(3)
        .clustered
        .as_ref()
        .expect("it has a number")
        .peers;
    let store = &trio
        .shared(3)
        .clustered
        .as_ref()
        .expect("it shares one")
        .store;
    catch_up(cluster.me, cluster.backup.store(), store, |_| false).await;
    assert!(holds(&trio, gone) && holds(&trio, kept));

    trio.end(3).await;
    let mark = trio
        .config(1)
        .data_dir
        .join("forget")
        .join(gone.to_string());
    let found = trio.shared(1).data.catalog.get(gone).expect("it is known");
    admin::delete_stream(trio.shared(1), &found)
        .await
        .expect("it is deleted");
    // Those that are there have heard of it, and nobody else is told.
    until(|| !mark.exists()).await;
    trio.begin(3).await;
    until(|| !holds(&trio, gone)).await;
    assert!(holds(&trio, kept));
}

/// As a broker leaves it that is killed while it makes its copies its own files, and owns the streamlet no more.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_file_and_a_copy_in_the_store_of_one_group_one_stays() {
    let trio = Trio::start().await;
    let (stream, [old, to], after) = trio.handed_over().await;
    let third = 6 - old - to;
    let groups = trio.groups(stream);
    let group = groups.into_iter().find(|group| group.length > 0);
    let copy = CopyId::of(&group.expect("it is recorded"));
    let cluster = trio.shared(third).clustered.as_ref().map(|c| &c.peers);
    let store = cluster.expect("it has a number").backup.store().clone();
    assert!(store.holds(&copy));
    let name = GroupSpec::file_name(copy.group, 0);
    let whole = trio.streamlet(to, stream, 0).dir().join(&name);
    until(|| whole.exists()).await;
    let double = trio.streamlet(third, stream, 0).dir().join(&name);
    std::fs::create_dir_all(double.parent().expect("a directory")).expect("it is made");
    std::fs::copy(&whole, &double).expect("it is copied");
    let deadline = Instant::now() + PATIENCE;
    while double.exists() {
        assert!(Instant::now() < deadline, "both are still there");
        trio.round(to).await;
        // As at each flush at an interval.
        let at_interval = store.clone();
        let parted = tokio::task::spawn_blocking(move || at_interval.part_with_doubles());
        parted.await.expect("no panic");
    }
    assert!(store.holds(&copy), "that of the store stays");
    trio.round(to).await;
    assert!(store.holds(&copy));
    assert_eq!(values(&after).await, expected(0..10));
}

/// Nobody has read them.
#[tokio::test(flavor = "multi_thread")]
async fn files_that_were_cut_short_are_missed_and_made_anew() {
    let trio = Trio::start().await;
    let (stream, [old, to], after) = trio.handed_over().await;
    let groups = trio.groups(stream);
    let group = groups.into_iter().find(|group| group.length > 0);
    let group = group.expect("it is recorded");
    let name = GroupSpec::file_name(group.group, 0);
    let cluster = &trio
        .shared(to)
        .clustered
        .as_ref()
        .expect("it has others")
        .peers;
    // Its file stands for the copy that it kept for the former owner.
    until(|| !cluster.backup.store().holds(&CopyId::of(&group))).await;
    for at in [old, to] {
        let file = trio.streamlet(at, stream, 0).dir().join(&name);
        until(|| file.exists()).await;
        let bytes = || std::fs::read(&file).expect("it is there");
        let before = bytes()[..group.length as usize].to_vec();
        let opened = std::fs::File::options().write(true).open(&file);
        let cut = opened.expect("it is there").set_len(group.length - 1);
        cut.expect("it is cut");
        let is_whole = || bytes().get(..before.len()) == Some(&before[..]);
        let deadline = Instant::now() + PATIENCE;
        while !is_whole() {
            let replicated = trio.shared(to).clustered.as_ref().map(|c| &c.replicated);
            let jobs = replicated
                .expect("it has copies elsewhere")
                .begin_jobs(JobConfig::default());
            jobs.round().await;
            jobs.scrub_due().await;
            let (stats, missing) = (jobs.stats(), jobs.missing());
            let late = Instant::now() > deadline;
            assert!(
                !late,
                "owner {to}, cut at {at}, {group:?}: {stats:?}, {missing:?}"
            );
        }
    }
    assert_eq!(values(&after).await, expected(0..10));
}

/// As brokers of earlier versions left them: an owner died between the file of a group and its record, and the next one
/// gave the id to another group.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_an_earlier_epoch_goes_though_a_record_names_its_id() {
    let trio = Trio::start().await;
    let (stream, [old, to], served) = trio.handed_over().await;
    append_all(trio.shared(to), &served, 10..20).await;
    let third = to % 3 + 1;
    let handed = hand_over(trio.shared(to), stream, StreamletId(0), third).await;
    handed.expect("it is handed over");
    let after = trio.served(third, stream, 0).await;
    let recorded = trio.groups(stream);
    let of_epoch = |epoch| {
        let found = |group: &&GroupRecord| group.length > 0 && epoch == group.epoch;
        recorded.iter().find(found).expect("it is recorded")
    };
    let group = of_epoch(served.epoch());
    assert!(group.copies.iter().any(|copy| copy.broker.0 == old));
    let closed_at = |at: u32| {
        let closed = trio.shared(at).cluster_view(|picture| {
            let view = picture.streamlet(group.streamlet_key());
            view.is_some_and(|view| view.groups.get(&group.group).is_some_and(|g| g.bytes > 0))
        });
        closed.unwrap_or(false)
    };
    until(|| closed_at(old)).await;

    let dir = trio.streamlet(old, stream, 0).dir();
    let earlier = recorded
        .iter()
        .find(|one| one.epoch < group.epoch && one.length > 0);
    let earlier = earlier.expect("the former owner's");
    let name = |group: GroupId| dir.join(GroupSpec::file_name(group, 0));
    let mut bytes = std::fs::read(name(earlier.group)).expect("it is there");
    let header = SegmentHeader::decode(&bytes).expect("it is whole");
    let header = SegmentHeader {
        group: group.group,
        ..header
    };
    let encoded = header.encode();
    bytes[..encoded.len()].copy_from_slice(&encoded);
    bytes.truncate(group.length as usize - 1);
    let file = name(group.group);
    std::fs::write(&file, &bytes).expect("it is written");
    let deadline = Instant::now() + PATIENCE;
    while file.exists() {
        assert!(
            Instant::now() < deadline,
            "{} is still there",
            file.display()
        );
        trio.round(third).await;
    }
    let cluster = trio.shared(old).clustered.as_ref().map(|c| &c.peers);
    let store = cluster.expect("it has others").backup.store();
    assert!(store.holds(&CopyId::of(group)), "the replica itself stays");
    assert!(name(earlier.group).exists(), "its own group's stays");
    assert_eq!(values(&after).await, expected(0..20));
}

/// As long as its store answers for the group, nobody who asks this broker notices.
#[tokio::test(flavor = "multi_thread")]
async fn an_own_file_that_was_cut_short_is_made_anew_though_the_store_has_its_group() {
    let trio = Trio::start().await;
    let (stream, [_, owner], served) = trio.handed_over().await;
    let groups = trio.groups(stream);
    let group = groups.into_iter().find(|group| group.length > 0);
    let group = group.expect("it is recorded");
    let (copy, epoch) = (CopyId::of(&group), served.epoch());
    let cluster = trio.shared(owner).clustered.as_ref().map(|c| &c.peers);
    let store = cluster.expect("it has others").backup.store();
    let file = served.dir().join(GroupSpec::file_name(group.group, 0));
    until(|| file.exists() && !store.holds(&copy)).await;
    let before = std::fs::read(&file).expect("it is there");
    let whole = &before[..group.length as usize];
    // As after an end of the process between the file and the replica that it was made from.
    std::fs::remove_file(&file).expect("it was there");
    let seal = Request::seal(copy.streamlet, epoch);
    trio.asked(owner, seal).expect("it is sealed");
    let keep = Request::Complete {
        copy,
        epoch,
        segment_size: 64 << 10,
        segments: 2,
        address: 0,
        bytes: whole.to_vec().into(),
    };
    trio.asked(owner, keep).expect("there is room");
    assert!(store.holds(&copy));
    std::fs::write(&file, &whole[..whole.len() - 1]).expect("it is written");
    let deadline = Instant::now() + PATIENCE;
    while store.holds(&copy) {
        assert!(Instant::now() < deadline, "its file is still short");
        trio.round(owner).await;
    }
    let after = std::fs::read(&file).expect("it is there");
    assert_eq!(after.get(..whole.len()), Some(whole));
    assert_eq!(values(&served).await, expected(0..10));
}

/// Nobody asks the owner of a streamlet for what it keeps of it: it looks itself.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_gives_up_what_it_has_of_its_own_streamlet_and_no_record_names() {
    let trio = Trio::start().await;
    let (stream, [_, owner], served) = trio.handed_over().await;
    append_all(trio.shared(owner), &served, 10..20).await;
    let files = trio.files(owner, stream);
    assert!(files.len() > 1, "{files:?}");
    let stray = served.dir().join(GroupSpec::file_name(GroupId(9_999), 0));
    std::fs::write(&stray, b"never recorded").expect("it is written");
    trio.round(owner).await;
    assert!(!stray.exists(), "it looks for its own");
    assert_eq!(trio.files(owner, stream), files, "they are recorded");
    append_all(trio.shared(owner), &served, 20..30).await;
    assert_eq!(values(&served).await, expected(0..30));
}

/// A take-over that is under way when its stream is deleted may put a file there afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_made_of_a_deleted_stream_go() {
    let trio = Trio::start_of(3, Some(Duration::from_millis(100))).await;
    let stream = trio.create(1, "clicks").await;
    let owner = trio.owner(1, stream, 0).broker;
    let dir = trio.streamlet(owner, stream, 0).dir();
    let found = trio
        .shared(owner)
        .data
        .catalog
        .get(stream)
        .expect("it is known");
    admin::delete_stream(trio.shared(owner), &found)
        .await
        .expect("it is deleted");
    until(|| (1..=3).all(|id| trio.shared(id).data.catalog.get(stream).is_none())).await;
    until(|| !dir.exists()).await;
    std::fs::create_dir_all(&dir).expect("it is made");
    let late = dir.join(GroupSpec::file_name(GroupId(7), 0));
    std::fs::write(late, b"fetched too late").expect("it is written");
    let of_stream = dir.parent().expect("a stream's directory").to_path_buf();
    until(|| !of_stream.exists()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_hears_late_of_a_stream_does_not_say_that_there_is_none() {
    let trio = Trio::start().await;
    let [knows, hears_late] = [trio.shared(1).clone(), trio.shared(2).clone()];
    trio.late[1].send_replace(true);
    let record = StreamRecord::new("s".to_owned(), StreamConfig::default(), now_ms());
    let created = tokio::task::spawn_blocking(move || knows.create_stream(record)).await;
    let id = created.expect("no panic").expect("it is created").id();
    let refused = |answer: Result<_, WireError>| answer.map(|_: Arc<_>| ()).expect_err("refused");
    let early = refused(named_anywhere(&hears_late, "s").await);
    assert_eq!(early.code, ErrorCode::NotOwner, "{early}");
    assert!(early.code.is_retryable(), "{early}");
    let none = refused(named_anywhere(&hears_late, "t").await);
    assert_eq!(none.code, ErrorCode::UnknownStream, "{none}");
    trio.late[1].send_replace(false);
    until(|| hears_late.data.catalog.get(id).is_some()).await;
    assert!(named_anywhere(&hears_late, "s").await.is_ok());
}

#[path = "owners_given_up_tests.rs"]
mod given_up;
