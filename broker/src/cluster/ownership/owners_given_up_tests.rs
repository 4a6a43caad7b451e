//! Closed groups of which no replica is left, or none is whole.

use kera_log_segments::layout::SEGMENT_HEADER_BYTES;
use kera_replication::transport::Seal;

use super::*;

impl Trio {
    /// The closed group is recorded to be at these brokers alone.
    fn held_at_all(&self, group: &GroupRecord, brokers: &[u32]) {
        self.change_copies(group, |copies| {
            copies.retain(|copy| brokers.contains(&copy.broker.0));
        });
        let group = self.closed_group(group.stream);
        assert_eq!(group.copies.len(), brokers.len(), "{group:?}");
    }

    /// Broker `at` has nothing of a group in its store any more.
    async fn free_kept(&self, at: u32, group: &GroupRecord) {
        let clustered = self.shared(at).clustered.as_ref();
        let primary = clustered.expect("it has others").replicated.primary();
        let copy = CopyId::of(group);
        let freed = primary.free_kept(copy, group.epoch).await;
        freed.expect("no record names it");
        let kept = primary.kept_here(copy.streamlet).await;
        assert!(kept.iter().all(|kept| kept.copy != copy), "{kept:?}");
    }

    /// A byte of one batch of a group turns in the own file of broker `at`.
    fn rot(&self, at: u32, group: &GroupRecord, batch: usize) {
        let name = GroupSpec::file_name(group.group, group.generation);
        let path = self.streamlet(at, group.stream, 0).dir().join(name);
        let mut bytes = std::fs::read(&path).expect("it has one");
        let header = SegmentHeader::decode(&bytes).expect("a header");
        let mut place = SEGMENT_HEADER_BYTES + header.snapshot_bytes as usize;
        for _ in 0..batch {
            let header = BatchHeader::peek(&bytes[place..]).expect("a batch");
            place += header.total_bytes;
        }
        bytes[place + 64] ^= 0x55;
        std::fs::write(&path, bytes).expect("it is written");
    }
}

/// Which ordinals of a lane can be read.
async fn by_ordinal(streamlet: &Arc<Streamlet>, ordinals: std::ops::Range<u64>) -> Vec<bool> {
    let read = read_each(streamlet, ordinals).await.into_iter();
    read.map(|found| found.is_ok_and(|batches| batches == 1))
        .collect()
}

/// How many batches a read from each ordinal on brings that takes one at most.
async fn read_each(
    streamlet: &Arc<Streamlet>,
    ordinals: std::ops::Range<u64>,
) -> Vec<Result<usize, LaneReadError>> {
    let streamlet = streamlet.clone();
    let read = tokio::task::spawn_blocking(move || {
        let read = |ordinal| {
            let spec = LaneReadSpec {
                lane: LANE,
                from: Located {
                    ordinal,
                    ..Located::default()
                },
                end_ordinal: u64::MAX,
                max_bytes: 1,
                cached_only: false,
            };
            streamlet.read(spec).map(|found| found.batches)
        };
        ordinals.map(read).collect()
    });
    read.await.expect("no panic")
}

/// Each batch is whole at one broker at least.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_group_that_is_whole_on_no_broker_is_put_together_from_all_of_them() {
    let trio = Trio::start().await;
    let (stream, [old, to], served) = trio.handed_over().await;
    let third = to % 3 + 1;
    drop(served);
    let group = trio.closed_group(stream);
    trio.held_at_all(&group, &[old, to]);
    trio.free_kept(third, &group).await;
    trio.rot(old, &group, 2);
    trio.rot(to, &group, 3);
    trio.rot(to, &group, 9);
    trio.assign(stream, 0, third);
    let served = trio.served(third, stream, 0).await;
    assert_eq!(values(&served).await, expected(0..10));
    let appended = append(&served, trio.shared(third), 10).expect("the producer is known");
    assert_eq!(appended.base_ordinal, 10);
    let record = trio.group(stream, group.group).expect("it is recorded");
    assert_eq!(record.damaged, None);
    assert!(record.copies.iter().any(|copy| copy.broker.0 == third));
}

/// The one replica that is left has all but one batch: that one is asked for, and lost.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_closed_group_only_what_is_whole_nowhere_is_given_up() {
    let trio = Trio::start().await;
    let (stream, [old, to], served) = trio.handed_over().await;
    let (third, key) = (to % 3 + 1, served.key());
    drop(served);
    let group = trio.closed_group(stream);
    trio.held_at_all(&group, &[old]);
    for at in [to, third] {
        trio.free_kept(at, &group).await;
    }
    trio.rot(old, &group, 4);
    trio.assign(stream, 0, third);

    let clustered = trio.shared(third).clustered.as_ref();
    let waiting = clustered.expect("it has others").replicated.waiting();
    until(|| !waiting.describe(key).unclean.is_empty()).await;
    let told = waiting.describe(key);
    assert!(told.reason.contains("is not whole"), "{told:?}");
    assert!(told.reason.contains("records 4 to 4"), "{told:?}");
    assert_eq!(told.unclean[0].first_ordinal, 4, "{told:?}");
    let places = [(LaneId(0), group.group)];
    let named = [(key, places.into())].into();
    let given_up = waiting.accept(&named).await;
    let ordinals = given_up
        .iter()
        .map(|loss| (loss.from_ordinal, loss.to_ordinal));
    assert_eq!(ordinals.collect::<Vec<_>>(), [(4, 5)]);

    let served = trio.served(third, stream, 0).await;
    let wanted: Vec<_> = (0..10).map(|ordinal| ordinal != 4).collect();
    assert_eq!(by_ordinal(&served, 0..10).await, wanted);
    let appended = append(&served, trio.shared(third), 10).expect("the producer is known");
    assert_eq!(appended.base_ordinal, 10);
    let record = trio.group(stream, group.group).expect("it is recorded");
    let damaged = record.damaged.as_ref().expect("it is recorded as damaged");
    assert!(damaged.address > 0 && record.holds_records(), "{damaged:?}");
    assert!(damaged.detail.contains("records 4 to 4"), "{damaged:?}");

    // The next owner, which has nothing of it, is not kept from serving by what is known.
    let name = GroupSpec::file_name(group.group, group.generation);
    let path = trio.streamlet(to, stream, 0).dir().join(name);
    std::fs::remove_file(&path).expect("it was its owner");
    let handed = hand_over(trio.shared(third), stream, StreamletId(0), to).await;
    handed.expect("it is handed over");
    let served = trio.served(to, stream, 0).await;
    until(|| path.exists()).await;
    assert_eq!(by_ordinal(&served, 0..10).await, wanted);
    assert_eq!(by_ordinal(&served, 10..11).await, [true]);
}

/// A loss that was shown and accepted is no word for more that is lost meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_accepted_from_the_ordinal_on_that_was_shown() {
    let mut trio = Trio::start().await;
    let (stream, [old, to], served) = trio.handed_over().await;
    let (third, key) = (to % 3 + 1, served.key());
    drop(served);
    let group = trio.closed_group(stream);
    trio.held_at_all(&group, &[old]);
    trio.free_kept(third, &group).await;
    trio.rot(old, &group, 4);
    trio.assign(stream, 0, third);
    let clustered = trio.shared(third).clustered.clone();
    let clustered = clustered.expect("it has others");
    let waiting = clustered.replicated.waiting();
    until(|| !waiting.describe(key).unclean.is_empty()).await;
    // Before it is carried out the one broker that has the rest goes away.
    let taking = clustered.replicated.taking(key);
    let held = taking.lock().await;
    trio.end(old).await;
    let named = [(key, [(LaneId(0), group.group)].into())].into();
    let accepted = async {
        waiting.accept(&named).await;
    };
    let goes_on = async {
        until(|| waiting.accepted(key, group.group).is_some()).await;
        drop(held);
    };
    tokio::join!(accepted, goes_on);
    let told = || waiting.describe(key).unclean;
    until(|| told().iter().any(|group| group.first_ordinal == 0)).await;
    assert!(!trio.streamlet(third, stream, 0).is_recovered());
    let record = trio.group(stream, group.group).expect("it is recorded");
    assert_eq!(record.damaged, None);
}

/// All disks that had it are lost: no broker that is recorded as a holder will ever answer for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_group_that_nobody_has_is_given_up_once_the_operator_accepts_that() {
    let mut trio = Trio::start().await;
    let (stream, [old, to], served) = trio.handed_over().await;
    let (third, key) = (to % 3 + 1, served.key());
    drop(served);
    trio.end(to).await;
    let group = trio.closed_group(stream);
    trio.held_at(&group, 9);
    trio.assign(stream, 0, third);

    let clustered = trio.shared(third).clustered.as_ref();
    let waiting = clustered.expect("it has others").replicated.waiting();
    until(|| !waiting.describe(key).unclean.is_empty()).await;
    let told = waiting.describe(key);
    assert!(told.reason.contains("cannot be fetched"), "{told:?}");
    let shown = v1::UncleanGroup {
        group: group.group.0,
        lane: 0,
        first_ordinal: 0,
        brokers: vec![9],
    };
    assert_eq!(told.unclean, [shown]);
    assert!(!trio.streamlet(third, stream, 0).is_recovered());

    let places = [(LaneId(0), group.group)];
    let named = [(key, places.into())].into();
    let given_up = waiting.accept(&named).await;
    let ordinals: Vec<_> = given_up
        .iter()
        .map(|loss| (loss.from_ordinal, loss.to_ordinal))
        .collect();
    assert_eq!(ordinals, [(0, 10)]);
    let served = trio.served(third, stream, 0).await;
    // Nothing is remembered of the producer, and no ordinal is given twice.
    let appended = append(&served, trio.shared(third), 0).expect("it takes appends");
    assert_eq!(appended.base_ordinal, 10);
    let record = trio.group(stream, group.group);
    let record = record.expect("it tells where its lane goes on");
    assert!(record.is_given_up() && !record.holds_records());
    let copies: Vec<_> = record.copies.iter().map(|copy| copy.broker.0).collect();
    assert_eq!((record.end_ordinal, &copies[..]), (10, &[9][..]));
    // Nobody is asked again, and readers have what follows.
    let handed = hand_over(trio.shared(third), stream, StreamletId(0), old).await;
    handed.expect("it is handed over");
    let after = trio.served(old, stream, 0).await;
    assert_eq!(after.head(LaneId(0)).map(|head| head.ordinal()), Some(11));
    assert_eq!(after.skip_gap(LaneId(0), 0), 10);
    assert_eq!(values(&after).await, expected(0..1));
    // It goes with a trim, as the groups do that are left.
    after.trim(LaneId(0), 9).expect("it is recorded");
    assert!(trio.group(stream, group.group).is_some());
    after.trim(LaneId(0), 10).expect("it is recorded");
    assert_eq!(trio.group(stream, group.group), None);
    assert_eq!(after.skip_gap(LaneId(0), 0), 10);
}

/// A broker that lives and cannot tell yet may have it.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_group_is_not_given_up_while_a_living_broker_has_not_told_whether_it_has_it() {
    let mut trio = Trio::start().await;
    let (stream, [old, to], served) = trio.handed_over().await;
    let (third, key) = (to % 3 + 1, served.key());
    drop(served);
    trio.end(to).await;
    trio.end(old).await;
    let starting = trio.starting[old as usize - 1].clone();
    starting.send_replace(true);
    let begun = tokio::spawn(trio.beginning(old));
    let clustered = trio.shared(third).clustered.clone();
    let clustered = clustered.expect("it has others");
    until(|| {
        let peers = clustered.peers.peers();
        peers.iter().any(|peer| peer.id == old)
    })
    .await;
    trio.held_at(&trio.closed_group(stream), old);
    trio.assign(stream, 0, third);

    let waiting = clustered.replicated.waiting();
    // Before, it may be one that does not live: its lease of before may end only now.
    until(|| waiting.describe(key).reason.contains("it is starting")).await;
    let told = waiting.describe(key);
    assert!(told.unclean.is_empty(), "{told:?}");
    starting.send_replace(false);
    let started = begun.await.expect("no panic").expect("it starts");
    trio.brokers[old as usize - 1] = Some(started);
    let served = trio.served(third, stream, 0).await;
    assert_eq!(values(&served).await, expected(0..10));
}

/// Requests mean the replica in the store as long as there is one, and that one may be shorter than the group.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_names_an_owner_for_its_file_once_its_store_has_no_replica_of_the_group() {
    let trio = Trio::start().await;
    let (stream, [_, to], served) = trio.handed_over().await;
    let third = to % 3 + 1;
    drop(served);
    let is_named = || {
        let group = trio.closed_group(stream);
        group.copies.iter().any(|copy| copy.broker.0 == third)
    };
    let group = trio.closed_group(stream);
    let holds = || {
        let clustered = trio.shared(third).clustered.as_ref();
        let peers = &clustered.expect("it has a number").peers;
        peers.backup.store().holds(&CopyId::of(&group))
    };
    trio.change_copies(&group, |copies| {
        copies.retain(|copy| copy.broker.0 != third)
    });
    // It was lost while the group was open.
    let (copy, epoch) = (CopyId::of(&group), trio.owner(to, stream, 0).epoch);
    let ask = |at, request| trio.asked(at, request).expect("it is done");
    ask(third, Request::free(copy, epoch, None));
    let (streamlet, copies) = (copy.streamlet, Vec::new());
    let seal = Seal {
        streamlet,
        epoch,
        copies,
    };
    ask(third, Request::Seal(seal));
    let (address, len) = (0, group.length as u32 - 1);
    let Reply::Bytes(bytes) = ask(to, Request::Read { copy, address, len }) else {
        panic!("it is read");
    };
    let settings = trio.streamlet(to, stream, 0).settings();
    ask(
        third,
        Request::Complete {
            copy,
            epoch,
            segment_size: settings.segment_size,
            segments: settings.segments_per_group,
            address,
            bytes,
        },
    );
    assert!(holds() && !is_named());
    trio.assign(stream, 0, third);
    let served = trio.served(third, stream, 0).await;
    assert!(is_named() && !holds());
    // It is found to be where it is recorded.
    let done = trio.round(third).await;
    assert_eq!((done.wanting, done.built), (0, 0), "{done:?}");
    assert_eq!(values(&served).await, expected(0..10));
}

#[path = "owners_damage_tests.rs"]
mod damage;
