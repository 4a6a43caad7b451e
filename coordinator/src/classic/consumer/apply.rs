//! What events make of a group of the consumer protocol, and the events that make one.

use super::event::{
    ConsumerBegun, ConsumerMemberRemoved, ConsumerMemberSet, ConsumerTarget, TargetRecord,
};
use super::state::{ConsumerGroup, ConsumerMember, Partitions, records};
use crate::classic::group::{Group, runs};
use crate::classic::shares::SHARE;
use crate::event::Body;

impl Group {
    pub(in crate::classic) fn begin_consumers(&mut self, begun: &ConsumerBegun) -> bool {
        self.consumer = Some(ConsumerGroup::new(begun.shares));
        self.members.clear();
        self.generation = begun.epoch;
        self.since_ms = begun.since_ms;
        self.protocol_type = match begun.shares {
            true => SHARE,
            false => "consumer",
        }
        .to_owned();
        self.protocol.clear();
        self.leader.clear();
        self.assigned = false;
        true
    }

    pub(in crate::classic) fn set_consumer(&mut self, set: &ConsumerMemberSet) -> bool {
        let Some(consumer) = &mut self.consumer else {
            return false;
        };
        let member = ConsumerMember::of(set);
        consumer.members.insert(set.member.clone(), member);
        true
    }

    pub(in crate::classic) fn remove_consumer(&mut self, removed: &ConsumerMemberRemoved) -> bool {
        let Some(consumer) = &mut self.consumer else {
            return false;
        };
        let share = consumer.target.remove(&removed.member);
        if let (Some(share), false) = (share, removed.heir.is_empty()) {
            consumer.target.insert(removed.heir.clone(), share);
        }
        consumer.members.remove(&removed.member).is_some()
    }

    pub(in crate::classic) fn set_target(&mut self, target: &ConsumerTarget) -> bool {
        let Some(consumer) = &mut self.consumer else {
            return false;
        };
        if !consumer.set_target(target) {
            return false;
        }
        if target.last {
            self.generation = target.epoch;
            self.since_ms = target.since_ms;
            self.protocol.clone_from(&target.assignor);
        }
        true
    }

    /// The events that build members and target.
    pub(in crate::classic) fn consumer_parts(&self) -> Vec<Body> {
        let Some(consumer) = &self.consumer else {
            return Vec::new();
        };
        let begun = ConsumerBegun {
            epoch: self.generation,
            since_ms: self.since_ms,
            shares: consumer.shares,
        };
        let members = consumer.members.iter();
        let members = members.map(|(id, member)| Body::ConsumerMemberSet(member.record(id)));
        let mut bodies: Vec<Body> = std::iter::once(Body::ConsumerBegun(begun))
            .chain(members)
            .collect();
        let head = ConsumerTarget {
            epoch: self.generation,
            assignor: self.protocol.clone(),
            since_ms: self.since_ms,
            ..ConsumerTarget::default()
        };
        bodies.extend(target_parts(&head, consumer.target.iter()));
        bodies
    }
}

/// The events of a target with these shares; everything else is as in `head`.
pub(super) fn target_parts<'a>(
    head: &ConsumerTarget,
    shares: impl Iterator<Item = (&'a String, &'a Partitions)>,
) -> Vec<Body> {
    let shares = shares.map(|(member, share)| TargetRecord {
        member: member.clone(),
        partitions: records(share),
    });
    let runs = runs(shares, prost::Message::encoded_len);
    let last = runs.len() - 1;
    let parts = runs.into_iter().zip(0..).map(|(members, part)| {
        Body::ConsumerTarget(ConsumerTarget {
            part,
            last: part as usize == last,
            members,
            ..head.clone()
        })
    });
    parts.collect()
}
