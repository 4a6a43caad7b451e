//! A member's way to its share: first it gives back what is not its own any more, then it gets what others have given
//! back.

use std::collections::BTreeSet;

use kera_protocol::ids::StreamId;

use super::state::{ConsumerGroup, ConsumerMember, LEFT, Partitions, each, has};
use crate::classic::GroupState;

/// Where a member stands after a step of its way.
#[derive(Debug, PartialEq)]
pub(super) struct Stand {
    pub(super) epoch: i32,
    pub(super) assigned: Partitions,
    pub(super) revoking: Partitions,
}

/// True if the member has its share under the group's epoch, and nothing to give back.
pub(super) fn is_settled(member: &ConsumerMember, target: &Partitions, epoch: i32) -> bool {
    member.epoch == epoch && member.revoking.is_empty() && member.assigned == *target
}

/// The state of a group under an epoch.
pub(in crate::classic) fn state_of(consumer: &ConsumerGroup, epoch: i32) -> GroupState {
    if consumer.members.is_empty() {
        return GroupState::Empty;
    }
    if consumer.shares {
        return GroupState::Stable;
    }
    let nothing = Partitions::new();
    let mut members = consumer.members.iter();
    let settled = members.all(|(id, member)| {
        let target = consumer.target.get(id).unwrap_or(&nothing);
        member.epoch == LEFT || is_settled(member, target, epoch)
    });
    match settled {
        true => GroupState::Stable,
        false => GroupState::Reconciling,
    }
}

/// The member's next step towards `target` under `epoch`; `None` if it has to give back something first. `owned` is what
/// it says to own, if it says so; `taken` what others have.
pub(super) fn step(
    member: &ConsumerMember,
    target: &Partitions,
    epoch: i32,
    owned: Option<&Partitions>,
    taken: &BTreeSet<(StreamId, u32)>,
) -> Option<Stand> {
    // Until it says otherwise a member owns what it was given.
    let owns_any = |of: &Partitions| {
        owned.is_none_or(|owned| each(of).any(|(stream, number)| has(owned, stream, number)))
    };
    if !member.revoking.is_empty() && owns_any(&member.revoking) {
        return None;
    }
    let (mut kept, mut revoking) = (Partitions::new(), Partitions::new());
    for (stream, number) in each(&member.assigned) {
        let to = match has(target, stream, number) {
            true => &mut kept,
            false => &mut revoking,
        };
        to.entry(stream).or_default().insert(number);
    }
    if !revoking.is_empty() && owns_any(&revoking) {
        return Some(Stand {
            epoch: member.epoch,
            assigned: kept,
            revoking,
        });
    }
    for (stream, number) in each(target) {
        if !taken.contains(&(stream, number)) {
            kept.entry(stream).or_default().insert(number);
        }
    }
    Some(Stand {
        epoch,
        assigned: kept,
        revoking: Partitions::new(),
    })
}
