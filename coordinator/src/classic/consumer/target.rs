//! From members and subscriptions to the next epoch and its target.

use std::collections::BTreeMap;

use super::apply::target_parts;
use super::assign::{SIMPLE, UNIFORM, Work};
use super::event::ConsumerTarget;
use super::live::LiveConsumer;
use super::reconcile::state_of;
use super::state::{ConsumerGroup, Partitions};
use super::subscribed::{Seen, Subscribed};
use crate::coordinator::{Coordinator, Step};
use crate::view::LaneView;

impl Coordinator {
    /// What a group's members subscribe to now.
    pub(super) fn consumer_subscribed(
        &mut self,
        name: &str,
        seen: &mut Seen,
        view: &dyn LaneView,
    ) -> Subscribed {
        let max_bytes = self.limits.classic.assignment_bytes;
        let group = self.state.classic.get(name);
        let group = group.and_then(|group| group.consumer.as_ref());
        let live = self.classic.get_mut(name).and_then(|l| l.consumer.as_mut());
        match (group, live) {
            (Some(group), Some(live)) => {
                Subscribed::of(group, &mut live.matches, seen, view, max_bytes)
            }
            _ => Subscribed::default(),
        }
    }

    /// Begins an epoch with the target for what is subscribed now. Unless `always`, only if that is another target.
    pub(super) fn consumer_retarget(
        &mut self,
        now_ms: u64,
        name: &str,
        subscribed: Subscribed,
        always: bool,
        step: &mut Step,
    ) {
        let Some(group) = self.state.classic.get(name) else {
            return;
        };
        let Some(consumer) = &group.consumer else {
            return;
        };
        let assignor = favourite(consumer);
        let members = consumer.members.iter().map(|(id, member)| {
            let streams = subscribed.by_member.get(id).cloned();
            (
                id.as_str(),
                member.instance.as_deref(),
                streams.unwrap_or_default(),
            )
        });
        let work = Work {
            members: members.collect(),
            partitions: &subscribed.partitions,
        };
        let target = work.divide(assignor, &consumer.target);
        let nothing = Partitions::new();
        let mut changed: BTreeMap<&String, &Partitions> = target
            .iter()
            .filter(|(id, share)| consumer.target.get(*id) != Some(share))
            .collect();
        let emptied = consumer.target.keys();
        changed.extend(
            emptied
                .filter(|id| !target.contains_key(*id))
                .map(|id| (id, &nothing)),
        );
        if always || !changed.is_empty() {
            let head = ConsumerTarget {
                epoch: group.generation.saturating_add(1),
                assignor: assignor.to_owned(),
                since_ms: now_ms,
                ..ConsumerTarget::default()
            };
            tracing::debug!(
                group = name,
                epoch = head.epoch,
                members = consumer.members.len(),
                changed = changed.len(),
                assignor,
                "an epoch of a consumer group begins"
            );
            for event in target_parts(&head, changed.into_iter()) {
                self.emit(step, name, event);
            }
        }
        if let Some(live) = self.classic.get_mut(name).and_then(|l| l.consumer.as_mut()) {
            live.subscribed = Some(subscribed);
        }
        self.consumer_refresh(name);
    }

    /// Brings what the group shows, and weighs, to what it is.
    pub(super) fn consumer_refresh(&mut self, name: &str) {
        let (Some(group), Some(live)) = (self.state.classic.get(name), self.classic.get_mut(name))
        else {
            return;
        };
        let Some(consumer) = &group.consumer else {
            return;
        };
        live.state = state_of(consumer, group.generation);
        live.generation = group.generation;
        live.protocol_type.clone_from(&group.protocol_type);
        live.protocol.clone_from(&group.protocol);
        let members = consumer.members.iter();
        let members = members.map(|(id, member)| member.bytes(id));
        live.bytes =
            members.sum::<usize>() + live.consumer.as_ref().map_or(0, LiveConsumer::memory);
    }
}

/// The assignor that most members want.
fn favourite(consumer: &ConsumerGroup) -> &str {
    if consumer.shares {
        return SIMPLE;
    }
    let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
    for member in consumer.members.values() {
        if !member.assignor.is_empty() {
            *votes.entry(&member.assignor).or_default() += 1;
        }
    }
    let most = votes.values().max();
    let mut liked = votes.iter().filter(|(_, count)| Some(*count) == most);
    // Of equals the default, if it is among them.
    let first = liked.clone().find(|(name, _)| **name == UNIFORM);
    first
        .or_else(|| liked.next())
        .map_or(UNIFORM, |(name, _)| *name)
}
