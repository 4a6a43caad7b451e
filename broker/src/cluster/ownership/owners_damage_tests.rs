//! Closed groups of served streamlets that turn out to be damaged on every replica.

use super::*;

impl Trio {
    /// What the operator is shown of closed groups of a served streamlet.
    fn lacking(&self, at: u32, streamlet: &Arc<Streamlet>) -> Option<v1::UnrecoveredStreamlet> {
        let clustered = self.shared(at).clustered.as_ref();
        let replicated = &clustered.expect("it has others").replicated;
        replicated.waiting().lacking(streamlet)
    }

    /// Gives up what closed groups of a stream lack; the ordinals.
    async fn give_up(&self, at: u32, stream: StreamId, group: GroupId) -> Vec<(u64, u64)> {
        let shared = self.shared(at);
        let known = shared.data.catalog.get(stream).expect("it is there");
        let request = v1::RecoverStreamRequest {
            name: known.name(),
            local: true,
            give_up: vec![v1::GroupToGiveUp {
                streamlet: 0,
                lane: 0,
                group: group.0,
            }],
            ..v1::RecoverStreamRequest::default()
        };
        let answer = crate::admin::recover_stream(shared, &known, request).await;
        let answer = answer.expect("it is done");
        assert!(answer.waiting.is_empty(), "{answer:?}");
        let losses = answer.accepted.iter();
        losses.map(|l| (l.from_ordinal, l.to_ordinal)).collect()
    }

    /// Closed groups that broker `at` tells of by a metric.
    fn unrecoverable(&self, at: u32) -> u64 {
        let clustered = self.shared(at).clustered.as_ref();
        let replicated = &clustered.expect("it has others").replicated;
        replicated.waiting().lacking_total()
    }

    /// Broker `at` compares the replicas of all that it owns; what has come of that so far.
    async fn compared(&self, at: u32) -> JobStats {
        let clustered = self.shared(at).clustered.as_ref();
        let replicated = &clustered.expect("it has others").replicated;
        let jobs = replicated.begin_jobs(JobConfig::default());
        jobs.scrub_all().await;
        jobs.stats()
    }

    /// What the stream of `at` waits for, as `kera stream recover` shows it.
    async fn shown(&self, at: u32, stream: StreamId) -> Vec<v1::UnrecoveredStreamlet> {
        let shared = self.shared(at);
        let known = shared.data.catalog.get(stream).expect("it is there");
        let request = v1::RecoverStreamRequest {
            name: known.name(),
            local: true,
            ..v1::RecoverStreamRequest::default()
        };
        let answer = crate::admin::recover_stream(shared, &known, request).await;
        answer.expect("it is asked").waiting
    }
}

/// Its owner has no file of it yet, and the one replica that is left lacks a batch.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_served_lanes_closed_group_lacks_everywhere_is_shown_and_can_be_given_up() {
    let trio = Trio::start().await;
    let (stream, [old, to], served) = trio.handed_over().await;
    let third = to % 3 + 1;
    let group = trio.closed_group(stream);
    trio.held_at_all(&group, &[old]);
    trio.free_kept(third, &group).await;
    trio.rot(old, &group, 4);
    // Its owner, which serves it, has lost its file.
    let name = GroupSpec::file_name(group.group, group.generation);
    let path = served.dir().join(name);
    std::fs::remove_file(&path).expect("it was there");
    served.release_idle(u64::MAX, 0);
    trio.free_kept(to, &group).await;

    let wanted: Vec<_> = (0..10).map(|ordinal| ordinal != 4).collect();
    assert_eq!(by_ordinal(&served, 0..10).await, wanted);
    let record = trio.group(stream, group.group).expect("it is recorded");
    assert_eq!((record.copies.len(), &record.damaged), (1, &None));
    let told = trio.shown(to, stream).await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].reason.contains("records 4 to 4"), "{told:?}");
    assert_eq!(told[0].unclean.len(), 1, "{told:?}");
    assert_eq!(told[0].unclean[0].first_ordinal, 4, "{told:?}");

    assert_eq!(trio.give_up(to, stream, group.group).await, [(4, 5)]);
    assert_eq!(by_ordinal(&served, 0..10).await, wanted);
    // What is known is not told again.
    assert_eq!(trio.lacking(to, &served), None);
    assert!(trio.shown(to, stream).await.is_empty());
    assert_eq!(served.behind_batch(LANE, group.group, 4), Some(5));
    let record = trio.group(stream, group.group).expect("it is recorded");
    let damaged = record.damaged.as_ref().expect("it is recorded as damaged");
    assert!(damaged.address > 0 && record.holds_records(), "{damaged:?}");
    let appended = append(&served, trio.shared(to), 10).expect("it goes on");
    assert_eq!(appended.base_ordinal, 10);
}

/// The file of the owner stays as it is for as long as there is nothing better.
#[tokio::test(flavor = "multi_thread")]
async fn an_owners_damaged_file_stays_until_a_better_one_is_there() {
    let trio = Trio::start().await;
    let (stream, [old, to], served) = trio.handed_over().await;
    let third = to % 3 + 1;
    let group = trio.closed_group(stream);
    trio.held_at_all(&group, &[old, to]);
    trio.free_kept(third, &group).await;
    trio.rot(old, &group, 4);
    trio.rot(to, &group, 4);
    trio.rot(to, &group, 7);
    served.release_idle(u64::MAX, 0);
    // One batch is whole at the other broker, one nowhere.
    let read = by_ordinal(&served, 0..10).await;
    let own: Vec<_> = (0..10)
        .map(|ordinal| ordinal != 4 && ordinal != 7)
        .collect();
    assert_eq!(read, own);
    let told = trio.lacking(to, &served).expect("it is noted");
    assert_eq!(told.unclean[0].first_ordinal, 4, "{told:?}");
    // All who have a replica have answered.
    let read = read_each(&served, 4..5).await;
    let is_damaged = matches!(read[..], [Err(LaneReadError::Group(_))]);
    assert!(is_damaged, "{read:?}");
    assert_eq!(trio.give_up(to, stream, group.group).await, [(4, 5)]);
    // What is accepted does not keep the file from being mended. A look at what is lost would put that off for a while.
    assert_eq!(by_ordinal(&served, 5..10).await, [true; 5]);
    trio.rot(to, &group, 8);
    served.release_idle(u64::MAX, 0);
    assert_eq!(by_ordinal(&served, 5..10).await, [true; 5]);
    let wanted: Vec<_> = (0..10).map(|ordinal| ordinal != 4).collect();
    assert_eq!(by_ordinal(&served, 0..10).await, wanted);
    assert_eq!(trio.lacking(to, &served), None);
}

/// Nobody has anything of it: the lane goes on behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_group_of_a_served_lane_that_nobody_has_is_given_up() {
    let mut trio = Trio::start().await;
    let (stream, [old, to], served) = trio.handed_over().await;
    let group = trio.closed_group(stream);
    trio.held_at(&group, 9);
    trio.end(old).await;
    let appended = append(&served, trio.shared(to), 10).expect("it is served");
    assert_eq!(appended.base_ordinal, 10);
    let name = GroupSpec::file_name(group.group, group.generation);
    std::fs::remove_file(served.dir().join(name)).expect("it was there");
    served.release_idle(u64::MAX, 0);
    trio.free_kept(to, &group).await;
    // Broker 9, which is away, may have it.
    let read = read_each(&served, 0..1).await;
    let is_awaited = matches!(read[..], [Err(LaneReadError::Awaited { .. })]);
    assert!(is_awaited, "{read:?}");
    let told = trio.lacking(to, &served).expect("it is noted");
    assert_eq!(told.unclean[0].first_ordinal, 0, "{told:?}");
    assert_eq!(trio.give_up(to, stream, group.group).await, [(0, 10)]);
    assert_eq!(served.skip_gap(LANE, 0), 10);
    let record = trio.group(stream, group.group);
    assert!(
        record
            .expect("it tells where its lane goes on")
            .is_given_up()
    );
}

/// What is lost later, behind what was given up, is another loss, whether the owner has a file of the group or not.
#[tokio::test(flavor = "multi_thread")]
async fn each_loss_of_a_closed_group_is_told_and_given_up_by_itself() {
    let trio = Trio::start().await;
    let (stream, [old, to], served) = trio.handed_over().await;
    let third = to % 3 + 1;
    let group = trio.closed_group(stream);
    trio.held_at_all(&group, &[old, to]);
    trio.free_kept(third, &group).await;
    let name = GroupSpec::file_name(group.group, group.generation);
    let path = served.dir().join(name);
    // Read is only what is lost next: an ordinal that is given up is looked for in vain, which puts off the next look.
    // What touches a loss that was given up is told together with it.
    for (lost, is_gone, (from, next)) in [
        (4, false, (4, 5)),
        (7, false, (7, 8)),
        (8, true, (7, 9)),
        (2, false, (2, 3)),
    ] {
        trio.rot(old, &group, lost);
        match is_gone {
            true => std::fs::remove_file(&path).expect("it was there"),
            false => trio.rot(to, &group, lost),
        }
        served.release_idle(u64::MAX, 0);
        let read = lost as u64..lost as u64 + 1;
        assert_eq!(by_ordinal(&served, read).await, [false]);
        let told = trio.shown(to, stream).await;
        assert_eq!(told.len(), 1, "{lost}: {told:?}");
        let reason = format!("records {from} to {} ", next - 1);
        assert!(told[0].reason.contains(&reason), "{told:?}");
        assert_eq!(told[0].unclean[0].first_ordinal, from, "{told:?}");
        assert_eq!(trio.unrecoverable(to), 1);
        let given_up = trio.give_up(to, stream, group.group).await;
        assert_eq!(given_up, [(from, next)]);
        assert_eq!(trio.unrecoverable(to), 0);
    }
    let record = trio.group(stream, group.group).expect("it is recorded");
    let damaged = record.damaged.as_ref().expect("it is recorded as damaged");
    assert_eq!(damaged.lost.stretches(), [2..3, 4..5, 7..9]);
    let wanted: Vec<_> = (0..10)
        .map(|ordinal| ![2, 4, 7, 8].contains(&ordinal))
        .collect();
    assert_eq!(by_ordinal(&served, 0..10).await, wanted);
    assert!(trio.shown(to, stream).await.is_empty());
}

/// Comparing replicas makes the owner's file from all of them, and theirs from that.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_of_which_none_is_whole_are_made_whole_as_they_are_compared() {
    let trio = Trio::start().await;
    let (stream, [old, to], served) = trio.handed_over().await;
    let third = to % 3 + 1;
    let group = trio.closed_group(stream);
    trio.held_at_all(&group, &[old, to]);
    trio.free_kept(third, &group).await;
    let name = GroupSpec::file_name(group.group, group.generation);
    let bytes = || {
        let path = served.dir().join(&name);
        let bytes = std::fs::read(path).expect("it is there");
        bytes[..group.length as usize].to_vec()
    };
    let whole = bytes();
    trio.rot(old, &group, 2);
    trio.rot(to, &group, 3);
    trio.rot(to, &group, 9);
    served.release_idle(u64::MAX, 0);
    let compared = trio.compared(to).await;
    assert_eq!((compared.damaged, compared.unsound), (2, 1), "{compared:?}");
    assert_eq!(bytes(), whole);
    assert_eq!(values(&served).await, expected(0..10));
    let compared = trio.compared(to).await;
    assert_eq!((compared.mended, compared.unsound), (1, 0), "{compared:?}");
    let record = trio.closed_group(stream);
    assert_eq!((record.copies.len(), &record.damaged), (2, &None));
}

/// What was given up is no reason to tell for ever that something is to be put right; what is lost next is.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_given_up_is_not_told_again_as_replicas_are_compared() {
    let trio = Trio::start().await;
    let (stream, [old, to], served) = trio.handed_over().await;
    let third = to % 3 + 1;
    let group = trio.closed_group(stream);
    trio.held_at_all(&group, &[old, to]);
    trio.free_kept(third, &group).await;
    for lost in [4, 7] {
        trio.rot(old, &group, lost);
        trio.rot(to, &group, lost);
        served.release_idle(u64::MAX, 0);
        let compared = trio.compared(to).await;
        assert_eq!(compared.unsound, 1, "{compared:?}");
        let told = trio.lacking(to, &served).expect("it is noted");
        assert_eq!(told.unclean[0].first_ordinal, lost as u64, "{told:?}");
        let given_up = trio.give_up(to, stream, group.group).await;
        assert_eq!(given_up, [(lost as u64, lost as u64 + 1)]);
        let compared = trio.compared(to).await;
        assert_eq!(compared.unsound, 0, "{compared:?}");
        assert_eq!(trio.lacking(to, &served), None);
    }
}
