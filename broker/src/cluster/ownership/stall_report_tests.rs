//! Lanes that stand still, and lanes that must not.

use kera_log_segments::group_life::GroupStage;
use kera_log_segments::replicas::GroupOwner;
use kera_metadata::GroupState;
use kera_replication::ids::BrokerId;
use kera_replication::primary::Standstill;
use kera_streamlet::producers::SequenceError;

use super::*;
use crate::cluster::cleanup::shortage::standing;

const NEVER: Duration = Duration::from_secs(3600);

impl Trio {
    /// The lanes of a stream at broker `at` that stand still.
    async fn standing(&self, at: u32, stream: StreamId, again: Duration) -> Vec<Standstill> {
        let replicated = &self
            .shared(at)
            .clustered
            .as_ref()
            .expect("it has copies")
            .replicated;
        let mut found = standing(replicated, Duration::ZERO, again).await;
        found.retain(|still| still.group.streamlet.stream == stream);
        found
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_whose_group_is_not_recorded_is_told_of_until_it_is() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let owner = trio.owner(1, stream, 0).broker;
    let streamlet = trio.served(owner, stream, 0).await;
    let held = &trio.held[owner as usize - 1];
    *held.lock() = Some(Vec::new());
    let appended = append(&streamlet, trio.shared(owner), 0).expect("it is taken");
    until(|| held.lock().as_ref().is_some_and(|held| !held.is_empty())).await;

    let found = trio.standing(owner, stream, Duration::ZERO).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].stage, GroupStage::Recording);
    assert_eq!(found[0].end, appended.group.end().address);
    assert_eq!(trio.standing(owner, stream, NEVER).await, [], "it is told");
    assert_eq!(trio.standing(owner, stream, Duration::ZERO).await.len(), 1);

    for (transaction, done) in held.lock().take().into_iter().flatten() {
        trio.store.submit(transaction, done);
    }
    assert_eq!(outcome(&appended).await, Outcome::Durable);
    assert_eq!(trio.standing(owner, stream, Duration::ZERO).await, []);
}

/// An append that is refused may begin a group, which stays empty; so does one whose appender is slower than
/// the loss of the group's copies.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_loses_its_copies_before_its_first_byte_holds_up_nothing() {
    let mut trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let owner = trio.owner(1, stream, 0).broker;
    let streamlet = trio.served(owner, stream, 0).await;
    append_all(trio.shared(owner), &streamlet, 0..1).await;
    let again = append(&streamlet, trio.shared(owner), 0).expect("it is there");
    assert!(again.duplicate);
    streamlet.freeze_group(LANE, &again.group, now_ms());
    again.group.announce_frozen();
    let recorded = || {
        let image = trio.store.load_streamlet(stream, StreamletId(0));
        let mut groups = image.expect("it is read").groups;
        groups.sort_by_key(|record| record.group);
        let states = groups.into_iter().map(|record| record.state);
        states.collect::<Vec<_>>()
    };
    until(|| recorded() == [GroupState::Closed, GroupState::Open]).await;

    // The lane's next group is recorded, and no broker has heard of it.
    let others: Vec<_> = (1..=3).filter(|id| *id != owner).collect();
    for other in &others {
        trio.end(*other).await;
    }
    let replicated = trio.shared(owner).clustered.as_ref().map(|c| &c.replicated);
    let primary = replicated.expect("it has copies").primary().clone();
    until(|| primary.peers().len() == 1).await;
    let refused = append(&streamlet, trio.shared(owner), 5).expect_err("some are missing");
    assert!(
        matches!(refused, AppendError::Sequence(SequenceError::Gap { .. })),
        "{refused}"
    );
    // With the first that is lost the group ends, and nobody waits for the other.
    let has_lost = |id: &u32| primary.traffic(BrokerId(*id)).lost_copies > 0;
    until(|| others.iter().any(has_lost)).await;
    trio.begin(others[0]).await;
    append_all(trio.shared(owner), &streamlet, 1..4).await;
    assert_eq!(values(&streamlet).await, expected(0..4));
}
