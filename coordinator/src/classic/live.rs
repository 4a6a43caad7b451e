//! A classic group as it lives: who waits for what, and until when. Its durable part is a
//! [`Group`](super::Group); this is built from it when a coordinator starts.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::LiveConsumer;
use super::consumer::state_of;
use super::group::{Group, Member};
use super::request::{Fault, GroupState, JoinGroup, Joined, JoinedMember, Reply};
use super::subscription;
use crate::coordinator::{Reply as AnyReply, Step, Ticket};

#[derive(Debug)]
pub(crate) struct LiveGroup {
    pub(crate) state: GroupState,
    pub(crate) generation: i32,
    /// Empty if no member ever joined.
    pub(crate) protocol_type: String,
    /// Empty until a generation has begun.
    pub(crate) protocol: String,
    /// Empty without members.
    pub(crate) leader: String,
    pub(crate) members: BTreeMap<String, LiveMember>,
    /// Static members: name to id.
    pub(crate) instances: BTreeMap<String, String>,
    /// Ids that were given out and have not joined yet, with the end of their time.
    pub(crate) pending: BTreeMap<String, u64>,
    /// Members of the generation that have not asked for their assignment,
    pub(crate) unsynced: BTreeSet<String>,
    /// and until when they may.
    pub(crate) unsynced_until_ms: u64,
    /// While a rebalance is prepared: when it ends at the latest.
    pub(crate) rebalance_until_ms: u64,
    /// While the first rebalance of an empty group waits for more members.
    pub(crate) initial: Option<Initial>,
    /// Of a group of the consumer protocol: its sessions. What is above of members, instances and rebalances is of
    /// classic groups alone.
    pub(crate) consumer: Option<LiveConsumer>,
    /// Bytes of members' metadata and assignments.
    pub(crate) bytes: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Initial {
    pub(crate) until_ms: u64,
    /// No extension beyond.
    pub(crate) limit_ms: u64,
    /// Somebody joined since the last extension.
    pub(crate) newcomer: bool,
}

#[derive(Debug, Default)]
pub(crate) struct LiveMember {
    pub(crate) info: Member,
    pub(crate) seen_ms: u64,
    /// The join that waits.
    pub(crate) join: Option<Ticket>,
    /// The sync that waits.
    pub(crate) sync: Option<Ticket>,
    /// True until its client is known to know its id.
    pub(crate) anonymous: bool,
}

impl LiveMember {
    pub(crate) fn answer_join(&mut self, step: &mut Step, reply: Reply) {
        if let Some(ticket) = self.join.take() {
            step.replies.push((ticket, Ok(AnyReply::Classic(reply))));
        }
    }

    pub(crate) fn answer_sync(&mut self, step: &mut Step, reply: Reply) {
        if let Some(ticket) = self.sync.take() {
            step.replies.push((ticket, Ok(AnyReply::Classic(reply))));
        }
    }
}

/// Settings of a joining member.
pub(crate) fn member_of(request: &JoinGroup) -> Member {
    Member {
        instance: request.instance.clone(),
        client_id: request.client_id.clone(),
        client_host: request.client_host.clone(),
        session_ms: request.session_ms.max(0) as u32,
        rebalance_ms: request.rebalance_ms.max(0) as u32,
        protocols: request.protocols.clone(),
        assignment: Bytes::new(),
    }
}

impl LiveGroup {
    pub(crate) fn new() -> Self {
        Self {
            state: GroupState::Empty,
            generation: 0,
            protocol_type: String::new(),
            protocol: String::new(),
            leader: String::new(),
            members: BTreeMap::new(),
            instances: BTreeMap::new(),
            pending: BTreeMap::new(),
            unsynced: BTreeSet::new(),
            unsynced_until_ms: 0,
            rebalance_until_ms: 0,
            initial: None,
            consumer: None,
            bytes: 0,
        }
    }

    /// The group as its durable state has it; sessions begin now.
    pub(crate) fn from_group(group: &Group, now_ms: u64) -> Self {
        if let Some(consumer) = &group.consumer {
            return Self {
                state: state_of(consumer, group.generation),
                generation: group.generation,
                protocol_type: group.protocol_type.clone(),
                protocol: group.protocol.clone(),
                consumer: Some(LiveConsumer::from_group(consumer, now_ms)),
                ..Self::new()
            };
        }
        let mut live = Self {
            state: match (group.members.is_empty(), group.assigned) {
                (true, _) => GroupState::Empty,
                (false, false) => GroupState::CompletingRebalance,
                (false, true) => GroupState::Stable,
            },
            generation: group.generation,
            protocol_type: group.protocol_type.clone(),
            protocol: group.protocol.clone(),
            leader: group.leader.clone(),
            ..Self::new()
        };
        for (id, member) in &group.members {
            if let Some(instance) = &member.instance {
                live.instances.insert(instance.clone(), id.clone());
            }
            let member = LiveMember {
                info: member.clone(),
                seen_ms: now_ms,
                ..LiveMember::default()
            };
            live.members.insert(id.clone(), member);
        }
        if live.state == GroupState::CompletingRebalance {
            live.await_syncs(now_ms);
        }
        live.weigh();
        live
    }

    /// How many members it has, of either protocol.
    pub(crate) fn member_count(&self) -> usize {
        let consumers = self.consumer.as_ref().map_or(0, LiveConsumer::members);
        self.members.len() + consumers
    }

    /// True if nobody is in it, or on the way.
    pub(crate) fn is_idle(&self) -> bool {
        self.member_count() == 0 && self.pending.is_empty()
    }

    pub(crate) fn await_syncs(&mut self, now_ms: u64) {
        self.unsynced = self.members.keys().cloned().collect();
        self.unsynced_until_ms = now_ms.saturating_add(self.longest_rebalance_ms());
    }

    pub(crate) fn longest_rebalance_ms(&self) -> u64 {
        let times = self.members.values();
        times
            .map(|member| u64::from(member.info.rebalance_ms))
            .max()
            .unwrap_or(0)
    }

    pub(crate) fn weigh(&mut self) {
        self.bytes = self.members.values().map(|m| m.info.bytes()).sum();
    }

    /// Checks id and name of somebody who says to be a member.
    pub(crate) fn check_member(&self, member: &str, instance: Option<&str>) -> Result<(), Fault> {
        if let Some(instance) = instance {
            return match self.instances.get(instance) {
                Some(current) if current != member => Err(Fault::FencedInstance),
                Some(_) => Ok(()),
                None => Err(Fault::UnknownMember),
            };
        }
        if self.members.contains_key(member) {
            Ok(())
        } else {
            Err(Fault::UnknownMember)
        }
    }

    pub(crate) fn touch(&mut self, now_ms: u64, member: &str) {
        if let Some(member) = self.members.get_mut(member) {
            member.seen_ms = member.seen_ms.max(now_ms);
        }
    }

    /// True if a member with these protocols can be among the present ones.
    pub(crate) fn supports(&self, protocol_type: &str, protocols: &[(String, Bytes)]) -> bool {
        if protocol_type.is_empty() || protocols.is_empty() {
            return false;
        }
        if self.members.is_empty() {
            return true;
        }
        let common = self.common_protocols();
        self.protocol_type == protocol_type
            && protocols
                .iter()
                .any(|(name, _)| common.contains(name.as_str()))
    }

    /// Protocols that all members offer.
    fn common_protocols(&self) -> BTreeSet<&str> {
        let mut members = self.members.values();
        let first = members.next().into_iter();
        let first = first.flat_map(|member| &member.info.protocols);
        let mut common: BTreeSet<&str> = first.map(|(name, _)| name.as_str()).collect();
        for member in members {
            common.retain(|name| member.info.protocols.iter().any(|(other, _)| other == name));
        }
        common
    }

    /// The protocol that most members like best among those that all offer. Of equals, the one that
    /// the leader lists first.
    pub(crate) fn choose_protocol(&self) -> String {
        let common = self.common_protocols();
        let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
        for member in self.members.values() {
            let mut names = member.info.protocols.iter().map(|(name, _)| name.as_str());
            if let Some(vote) = names.find(|name| common.contains(name)) {
                *votes.entry(vote).or_default() += 1;
            }
        }
        let most = votes.values().max().copied().unwrap_or(0);
        let leader = self.members.get(&self.leader);
        let leader = leader.into_iter().flat_map(|m| m.info.protocols.iter());
        let order = leader.map(|(name, _)| name.as_str());
        order
            .chain(votes.keys().copied())
            .find(|name| votes.get(name) == Some(&most))
            .unwrap_or_default()
            .to_owned()
    }

    /// What a member is told about the generation; the leader gets the list of members.
    pub(crate) fn joined(&self, member: &str) -> Joined {
        Joined {
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            member: member.to_owned(),
            skip_assignment: false,
            members: if self.leader == member {
                self.member_list()
            } else {
                Vec::new()
            },
        }
    }

    pub(crate) fn member_list(&self) -> Vec<JoinedMember> {
        self.members
            .iter()
            .map(|(id, member)| JoinedMember {
                member: id.clone(),
                instance: member.info.instance.clone(),
                metadata: member.info.metadata(&self.protocol),
            })
            .collect()
    }

    /// True if all that should join the next generation wait for it.
    pub(crate) fn all_joined(&self) -> bool {
        self.pending.is_empty() && self.members.values().all(|member| member.join.is_some())
    }

    /// Takes a member out; what it waits for is refused with `fault`.
    pub(crate) fn remove(&mut self, id: &str, fault: &Fault, step: &mut Step) {
        let Some(mut member) = self.members.remove(id) else {
            return;
        };
        member.answer_join(step, Reply::Refused(fault.clone()));
        member.answer_sync(step, Reply::Refused(fault.clone()));
        if let Some(instance) = &member.info.instance
            && self.instances.get(instance).is_some_and(|m| m == id)
        {
            self.instances.remove(instance);
        }
        self.unsynced.remove(id);
        if self.leader == id {
            self.leader = self.members.keys().next().cloned().unwrap_or_default();
        }
        self.bytes = self.bytes.saturating_sub(member.info.bytes());
    }

    /// True if some member subscribes to the topic, or nobody can tell.
    pub(crate) fn subscribes(&self, topic: &str) -> bool {
        self.members.values().any(|member| {
            let mut offered = member.info.protocols.iter();
            offered.any(|(_, metadata)| {
                subscription::topics(metadata).is_none_or(|topics| topics.contains(topic))
            })
        })
    }
}
