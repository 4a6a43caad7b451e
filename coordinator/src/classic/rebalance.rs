//! From one generation to the next.

use super::event::Generation;
use super::group::generation_parts;
use super::live::Initial;
use super::request::{Fault, GroupState, Reply};
use crate::coordinator::{Coordinator, Step};

impl Coordinator {
    /// Begins a rebalance, unless one has begun.
    pub(super) fn classic_prepare(&mut self, now_ms: u64, name: &str, step: &mut Step) {
        let initial_delay_ms = u64::from(self.limits.classic.initial_delay_ms);
        let Some(live) = self.classic.get_mut(name) else {
            return;
        };
        let before = live.state;
        if before == GroupState::PreparingRebalance {
            return;
        }
        for member in live.members.values_mut() {
            member.answer_sync(step, Reply::Refused(Fault::RebalanceInProgress));
        }
        live.unsynced.clear();
        live.state = GroupState::PreparingRebalance;
        let longest_ms = live.longest_rebalance_ms();
        live.rebalance_until_ms = now_ms.saturating_add(longest_ms);
        live.initial = (before == GroupState::Empty && initial_delay_ms > 0).then_some(Initial {
            until_ms: now_ms.saturating_add(initial_delay_ms.min(longest_ms)),
            limit_ms: now_ms.saturating_add(longest_ms),
            newcomer: false,
        });
    }

    /// Ends the rebalance if everybody has joined or its time is over.
    pub(super) fn classic_try_complete(&mut self, now_ms: u64, name: &str, step: &mut Step) {
        let delay_ms = u64::from(self.limits.classic.initial_delay_ms);
        let Some(live) = self.classic.get_mut(name) else {
            return;
        };
        if live.state != GroupState::PreparingRebalance {
            return;
        }
        if let Some(initial) = &mut live.initial {
            if now_ms < initial.until_ms {
                return;
            }
            if initial.newcomer && initial.until_ms < initial.limit_ms {
                initial.newcomer = false;
                initial.until_ms = now_ms.saturating_add(delay_ms).min(initial.limit_ms);
                return;
            }
            live.initial = None;
        }
        if live.all_joined() || live.rebalance_until_ms <= now_ms {
            self.classic_complete(now_ms, name, step);
        }
    }

    /// Begins the next generation with those who joined.
    fn classic_complete(&mut self, now_ms: u64, name: &str, step: &mut Step) {
        let Some(live) = self.classic.get_mut(name) else {
            return;
        };
        let late: Vec<String> = live
            .members
            .iter()
            .filter(|(_, member)| member.join.is_none() && member.info.instance.is_none())
            .map(|(id, _)| id.clone())
            .collect();
        for id in late {
            tracing::info!(group = name, member = id, "a member did not join in time");
            live.remove(&id, &Fault::UnknownMember, step);
        }
        let leader_joined = |id: &String| live.members.get(id).is_some_and(|m| m.join.is_some());
        if !live.members.is_empty() && !leader_joined(&live.leader) {
            let mut members = live.members.iter();
            let Some((first, _)) = members.find(|(_, member)| member.join.is_some()) else {
                // Only static members, all silent: until they come back or their sessions end.
                live.rebalance_until_ms = now_ms.saturating_add(live.longest_rebalance_ms().max(1));
                return;
            };
            live.leader = first.clone();
        }
        live.generation = live.generation.saturating_add(1);
        if live.members.is_empty() {
            live.state = GroupState::Empty;
            live.protocol = String::new();
            live.leader = String::new();
        } else {
            live.state = GroupState::CompletingRebalance;
            live.protocol = live.choose_protocol();
            for member in live.members.values_mut() {
                member.info.assignment = bytes::Bytes::new();
                member.seen_ms = now_ms;
            }
            live.weigh();
            live.await_syncs(now_ms);
        }
        tracing::debug!(
            group = name,
            generation = live.generation,
            members = live.members.len(),
            leader = live.leader,
            "a generation of a consumer group begins"
        );
        let head = Generation {
            generation: live.generation,
            protocol_type: live.protocol_type.clone(),
            protocol: live.protocol.clone(),
            leader: live.leader.clone(),
            assigned: false,
            since_ms: now_ms,
            ..Generation::default()
        };
        let members = live.members.iter().map(|(id, m)| m.info.record(id));
        let events = generation_parts(&head, members);
        let ids: Vec<String> = live.members.keys().cloned().collect();
        for id in ids {
            let joined = Reply::Joined(live.joined(&id));
            if let Some(member) = live.members.get_mut(&id) {
                member.answer_join(step, joined);
            }
        }
        for event in events {
            self.emit(step, name, event);
        }
    }
}
