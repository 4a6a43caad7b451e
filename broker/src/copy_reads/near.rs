//! Who near a reader holds a copy of what it is about to read, as the owner tells it.

use kera_metadata::{GroupState, LiveBroker};
use kera_protocol::ids::{LaneId, Ordinal};
use kera_streamlet::{GroupView, Located, Streamlet};

use crate::shared::Shared;

/// Closed groups looked at for one answer.
const GROUPS: usize = 16;

/// A broker that holds copies of what a reader is about to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nearby {
    /// Its number.
    pub broker: u32,
    /// At least up to here it holds the lane's closed groups.
    pub held_to: Ordinal,
}

/// The brokers of a rack that live, are to stay and serve Kafka's clients, this one aside. None where
/// brokers share nothing.
pub fn brokers_in(shared: &Shared, rack: &str) -> Vec<u32> {
    let Some(clustered) = &shared.clustered else {
        return Vec::new();
    };
    let serves = |live: &&LiveBroker| {
        live.id != shared.broker_id
            && live.rack.as_deref() == Some(rack)
            && live.is_to_stay()
            && live.kafka_address.is_some()
    };
    let living = clustered.members.living();
    living.values().filter(serves).map(|live| live.id).collect()
}

/// Who of `brokers` is recorded to hold the closed group that a reader of a lane is in, and of it and of
/// those that follow at least about `enough` bytes that are still to be read. The one that holds most in
/// a row, and of several `turn` decides.
///
/// To be asked of the owner. Looks at memory only.
pub fn nearby(
    shared: &Shared,
    streamlet: &Streamlet,
    lane: LaneId,
    from: Located,
    brokers: &[u32],
    enough: u64,
    turn: usize,
) -> Option<Nearby> {
    let groups = streamlet.closed_from(lane, from, GROUPS);
    if groups.is_empty() {
        return None;
    }
    let found = shared.clustered.as_ref()?.cluster_view.read(|picture| {
        let recorded = picture.streamlet(streamlet.key())?;
        let runs = brokers.iter().filter_map(|broker| {
            let holds = |view: &&GroupView| {
                let group = recorded.groups.get(&view.group);
                group.is_some_and(|group| {
                    group.state == GroupState::Closed && group.copies.contains(broker)
                })
            };
            let held = groups
                .iter()
                .take_while(holds)
                .fold((0, 0), |(bytes, _), view| {
                    (bytes + left_in(view, from.ordinal), view.end_ordinal)
                });
            (held.0 >= enough).then_some(Nearby {
                broker: *broker,
                held_to: held.1,
            })
        });
        let mut runs: Vec<_> = runs.collect();
        let furthest = runs.iter().map(|run| run.held_to).max()?;
        runs.retain(|run| run.held_to == furthest);
        runs.get(turn % runs.len()).copied()
    });
    found.flatten()
}

/// About how many bytes of a group are left to read from an ordinal on.
fn left_in(group: &GroupView, from: Ordinal) -> u64 {
    let records = group.end_ordinal.saturating_sub(group.first_ordinal);
    let left = group.end_ordinal.saturating_sub(from).min(records);
    if records == 0 {
        return 0;
    }
    (u128::from(group.bytes) * u128::from(left) / u128::from(records)) as u64
}

#[cfg(test)]
mod tests {
    use kera_protocol::ids::{Epoch, GroupId};

    use super::*;

    #[test]
    fn what_is_left_of_a_group_is_its_share_of_the_records() {
        let group = |first, end| GroupView {
            group: GroupId(1),
            generation: 0,
            epoch: Epoch(1),
            first_ordinal: first,
            end_ordinal: end,
            bytes: 1_000,
            closed: true,
            max_timestamp: -1,
        };
        let left = |from| left_in(&group(100, 200), from);
        assert_eq!(
            (left(0), left(100), left(150), left(200), left(900)),
            (1_000, 1_000, 500, 0, 0)
        );
        assert_eq!(left_in(&group(7, 7), 7), 0);
        assert_eq!(left_in(&group(0, 1 << 32), 0), 1_000);
    }
}
