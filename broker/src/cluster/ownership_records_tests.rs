//! What is done on the strength of what the store says, and how new that must be.

use std::path::PathBuf;

use kera_metadata::{GroupRecord, GroupState};

use super::*;
use crate::cluster::forgotten::catch_up;
use crate::cluster::former::{list, sweep, unnamed};
use crate::cluster::watching::apply_all;

impl Trio {
    /// The groups of the stream's first streamlet.
    fn groups(&self, stream: StreamId) -> Vec<GroupRecord> {
        let image = self.store.load_streamlet(stream, StreamletId(0));
        image.expect("it is read").groups
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

    /// Looks for files of others' streamlets at broker `at`.
    async fn swept(&self, at: u32) -> u64 {
        let shared = self.shared(at).clone();
        let swept = tokio::task::spawn_blocking(move || sweep(&shared));
        swept.await.expect("no panic")
    }

    /// All closed groups of the stream's first streamlet have no copy at broker `at` any more.
    fn strike(&self, at: u32, stream: StreamId) {
        let found = self.store.streamlet(stream, StreamletId(0));
        let streamlet = found.expect("it is read").expect("it is recorded");
        for group in self.groups(stream) {
            assert_eq!(group.state, GroupState::Closed);
            let mut next = group.clone();
            next.copies.retain(|copy| copy.broker != at);
            let epoch = Compare::StreamletEpoch {
                stream,
                streamlet: StreamletId(0),
                epoch: streamlet.epoch,
            };
            let compare = vec![epoch, Compare::group(&group)];
            let transaction = Transaction::new(compare, vec![Write::PutGroup(next)]);
            self.store.commit(transaction).expect("nobody was faster");
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
    let membership = shared.membership.as_ref().expect("it shares a store");
    assert!(membership.is_valid() && !streamlet.is_over());
    assert!(!shared.is_member());
    assert!(!shared.directory.serves(stream, StreamletId(0)));
    assert!(matches!(later(), AppendError::NotOwner));

    late.send_replace(false);
    until(|| streamlet.is_moved()).await;
    until(|| shared.is_member()).await;
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
    let mut seen = shared.ownership.as_ref().expect("it shares a store").seen();
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
        let applied = tokio::task::spawn_blocking(move || apply_all(&shared, image));
        applied.await.expect("no panic");
        assert!(shared_has(&trio, owner, stream));
        assert!(!streamlet.is_over() && !trio.files(owner, stream).is_empty());
    }
    append_all(&shared, &streamlet, 3..6).await;
    assert_eq!(values(&streamlet).await, expected(0..6));
}

fn shared_has(trio: &Trio, at: u32, stream: StreamId) -> bool {
    trio.shared(at).catalog.get(stream).is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_does_not_start_on_a_store_that_is_older_than_what_it_has_seen() {
    let mut trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let kept = trio.shared(3).dir.path().to_path_buf();
    let seen = trio.shared(3).dir.revision();
    // It was written when the stream was learnt of, not some time later.
    let found = trio.shared(3).catalog.get(stream).expect("it is known");
    assert!(seen >= found.record.load().revision, "{seen}");
    // It holds on to the copies.
    drop(found);
    trio.end(3).await;
    std::fs::write(kept.join("REVISION"), "kera revision 1000000\n").expect("it is written");
    let refused = trio.try_begin(3).await.err().expect("it is refused");
    let text = refused.to_string();
    assert!(text.contains("has seen revision 1000000"), "{text}");
    assert!(kept.join("streams").join(stream.to_string()).exists());

    // Without it, as after an operator's decision, it starts.
    std::fs::remove_file(kept.join("REVISION")).expect("it is there");
    trio.begin(3).await;
    assert!(shared_has(&trio, 3, stream));
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_streamlet_that_has_moved_stay_while_they_are_recorded_and_go_after_that() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let old = trio.owner(1, stream, 0).broker;
    let to = old % 3 + 1;
    append_all(trio.shared(old), &trio.streamlet(old, stream, 0), 0..10).await;
    assert_eq!(trio.swept(old).await, 0, "it is its own");
    hand_over(trio.shared(old), stream, StreamletId(0), to)
        .await
        .expect("it is handed over");
    let after = trio.served(to, stream, 0).await;
    let files = trio.files(old, stream);
    assert!(!files.is_empty());
    assert_eq!(trio.swept(old).await, 0, "records name them");
    assert_eq!(trio.files(old, stream), files);
    // One that no record names goes alone.
    let stray = trio.streamlet(old, stream, 0).dir();
    let stray = stray.join("0000000000009999.0.log");
    std::fs::write(&stray, b"never recorded").expect("it is written");
    assert_eq!(trio.swept(old).await, 1);
    assert_eq!(trio.files(old, stream), files);

    // Nobody believes it before it is known that the owner is another.
    trio.strike(old, stream);
    let shared = trio.shared(old).clone();
    let now = trio.store.load().expect("it is read").revision;
    let mut seen = shared.ownership.as_ref().expect("it shares a store").seen();
    seen.wait_for(|seen| *seen >= now)
        .await
        .expect("it is told");
    // What is older than that says nothing, nor does what says that it is this broker's.
    let image = trio.store.load_streamlet(stream, StreamletId(0));
    let image = image.expect("it is read");
    let mut older = image.clone();
    older.revision = now - 1;
    let mut own = image.clone();
    own.streamlets[0].owner = old;
    let dir = trio.streamlet(old, stream, 0).dir();
    let judged = |image: &Image| unnamed(&shared, image, list(&dir)).len();
    assert_eq!((judged(&older), judged(&own)), (0, 0));
    assert_eq!(judged(&image), files.len());

    assert_eq!(trio.swept(old).await, files.len() as u64);
    assert!(trio.files(old, stream).is_empty());
    assert_eq!(trio.swept(old).await, 0);
    assert_eq!(values(&after).await, expected(0..10));

    // It comes back to what it was, and has the files again.
    let back = hand_over(trio.shared(to), stream, StreamletId(0), old).await;
    back.expect("it is handed over");
    let again = trio.served(old, stream, 0).await;
    assert_eq!(values(&again).await, expected(0..10));
    assert_eq!(trio.swept(old).await, 0);
    assert!(!trio.files(old, stream).is_empty());
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
        let cluster = trio.shared(3).cluster.as_ref().expect("it has a number");
        cluster.backup.store().streams().contains_key(&stream)
    };
    // A group that had to begin without it gets its copy there later.
    until(|| holds(&trio, gone) && holds(&trio, kept)).await;
    // That its own picture knows of no stream says nothing.
    let cluster = trio.shared(3).cluster.as_ref().expect("it has a number");
    let store = trio.shared(3).store.as_ref().expect("it shares one");
    catch_up(cluster.me, cluster.backup.store(), store, |_| false).await;
    assert!(holds(&trio, gone) && holds(&trio, kept));

    trio.end(3).await;
    let mark = trio
        .config(1)
        .data_dir
        .join("forget")
        .join(gone.to_string());
    let found = trio.shared(1).catalog.get(gone).expect("it is known");
    admin::delete_stream(trio.shared(1), &found)
        .await
        .expect("it is deleted");
    // Those that are there have heard of it, and nobody else is told.
    until(|| !mark.exists()).await;
    trio.begin(3).await;
    until(|| !holds(&trio, gone)).await;
    assert!(holds(&trio, kept));
}
