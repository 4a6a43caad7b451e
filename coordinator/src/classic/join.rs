//! Joining: new members, known ones, and static members that come back.

use super::group::Member;
use super::live::{LiveGroup, LiveMember, member_of};
use super::request::{Fault, GroupState, JoinGroup, Joined, Reply};
use super::session::Answer;
use super::subscription;
use super::{Limits, MemberReplaced};
use crate::coordinator::{Coordinator, Step, Ticket};
use crate::event::Body;

impl Coordinator {
    pub(super) fn classic_join(
        &mut self,
        now_ms: u64,
        ticket: Ticket,
        request: JoinGroup,
        step: &mut Step,
    ) -> Answer {
        let limits = self.limits.classic.clone();
        check_group_id(&request.group, &limits)?;
        check_sizes(&request, &limits)?;
        let session = u32::try_from(request.session_ms).unwrap_or(0);
        if !(limits.min_session_ms..=limits.max_session_ms).contains(&session) {
            return Err(Fault::InvalidSessionTimeout);
        }
        let name = request.group.as_str();
        if self.state.groups.contains_key(name) {
            return Err(Fault::InconsistentProtocol);
        }
        if !self.classic.contains_key(name) {
            if !request.member.is_empty() {
                return Err(Fault::UnknownMember);
            }
            if request.protocol_type.is_empty() || request.protocols.is_empty() {
                return Err(Fault::InconsistentProtocol);
            }
            self.classic_create(now_ms, name, &request.client_host, step)?;
        }
        self.consumer_end(now_ms, name, step)?;
        self.classic_check_room(&request)?;
        let answer = if request.member.is_empty() {
            self.join_new(now_ms, ticket, &request, step)
        } else {
            self.join_known(now_ms, ticket, &request, step)
        };
        self.classic_try_complete(now_ms, name, step);
        answer
    }

    /// Refuses a member for which there is no room.
    fn classic_check_room(&self, request: &JoinGroup) -> Result<(), Fault> {
        let live = self.classic_live(&request.group)?;
        let fits = match live.members.get(&request.member) {
            Some(_) => true,
            None if live.pending.contains_key(&request.member) => true,
            None => live.members.len() + live.pending.len() < self.limits.members,
        };
        if !fits && replaced_by(live, request).is_none() {
            return Err(Fault::GroupFull);
        }
        let known = replaced_by(live, request).unwrap_or(&request.member);
        let before = live.members.get(known).map_or(0, |m| m.info.bytes());
        let more = member_of(request).bytes().saturating_sub(before);
        if !self.classic_may_grow(live.bytes, more) {
            return Err(Fault::TooLarge);
        }
        Ok(())
    }

    fn join_new(
        &mut self,
        now_ms: u64,
        ticket: Ticket,
        request: &JoinGroup,
        step: &mut Step,
    ) -> Answer {
        let name = request.group.as_str();
        let live = self.classic_live_mut(name)?;
        if !live.supports(&request.protocol_type, &request.protocols) {
            return Err(Fault::InconsistentProtocol);
        }
        let fresh = request.fresh_member.as_str();
        if fresh.is_empty() || live.members.contains_key(fresh) || live.pending.contains_key(fresh)
        {
            return Err(Fault::UnknownMember);
        }
        if let Some(old) = replaced_by(live, request).map(str::to_owned) {
            return self.join_replacing(now_ms, ticket, request, &old, step);
        }
        if request.instance.is_none() && request.require_known_member {
            let until_ms = now_ms.saturating_add(request.session_ms.max(0) as u64);
            live.pending.insert(fresh.to_owned(), until_ms);
            return Err(Fault::MemberIdRequired(fresh.to_owned()));
        }
        self.join_adding(now_ms, ticket, request, fresh, step)
    }

    fn join_adding(
        &mut self,
        now_ms: u64,
        ticket: Ticket,
        request: &JoinGroup,
        id: &str,
        step: &mut Step,
    ) -> Answer {
        let live = self.classic_live_mut(&request.group)?;
        live.pending.remove(id);
        if live.members.is_empty() {
            live.protocol_type.clone_from(&request.protocol_type);
        }
        if live.leader.is_empty() {
            live.leader = id.to_owned();
        }
        if let Some(instance) = &request.instance {
            live.instances.insert(instance.clone(), id.to_owned());
        }
        let member = LiveMember {
            info: member_of(request),
            seen_ms: now_ms,
            join: Some(ticket),
            sync: None,
            anonymous: request.member.is_empty() && request.instance.is_none(),
        };
        live.bytes += member.info.bytes();
        live.members.insert(id.to_owned(), member);
        if let Some(initial) = &mut live.initial {
            initial.newcomer = true;
        }
        self.classic_prepare(now_ms, &request.group, step);
        Ok(None)
    }

    fn join_known(
        &mut self,
        now_ms: u64,
        ticket: Ticket,
        request: &JoinGroup,
        step: &mut Step,
    ) -> Answer {
        let name = request.group.as_str();
        let id = request.member.as_str();
        let live = self.classic_live_mut(name)?;
        let known = live.check_member(id, request.instance.as_deref());
        let pending = request.instance.is_none() && live.pending.contains_key(id);
        if !pending {
            known?;
        }
        if !live.supports(&request.protocol_type, &request.protocols) {
            return Err(Fault::InconsistentProtocol);
        }
        if pending {
            return self.join_adding(now_ms, ticket, request, id, step);
        }
        live.touch(now_ms, id);
        let Some(member) = live.members.get_mut(id) else {
            return Err(Fault::UnknownMember);
        };
        member.anonymous = false;
        let same = member.info.protocols == request.protocols;
        let goes_on = match live.state {
            GroupState::Empty | GroupState::Reconciling => return Err(Fault::UnknownMember),
            GroupState::PreparingRebalance => false,
            // It may not have got the answer to its join.
            GroupState::CompletingRebalance => same,
            // The leader joins again to have the work divided anew.
            GroupState::Stable => same && live.leader != id,
        };
        if goes_on {
            return Ok(Some(Reply::Joined(live.joined(id))));
        }
        self.join_updating(now_ms, ticket, request, id, step);
        Ok(None)
    }

    /// A member waits for the next generation with what it says now.
    fn join_updating(
        &mut self,
        now_ms: u64,
        ticket: Ticket,
        request: &JoinGroup,
        id: &str,
        step: &mut Step,
    ) {
        let Some(live) = self.classic.get_mut(&request.group) else {
            return;
        };
        let only = live.members.len() == 1;
        if let Some(member) = live.members.get_mut(id) {
            // A join that it sent before is given up.
            member.answer_join(step, Reply::Refused(Fault::RebalanceInProgress));
            let before = member.info.bytes();
            let assignment = std::mem::take(&mut member.info.assignment);
            member.info = Member {
                assignment,
                instance: member.info.instance.take(),
                ..member_of(request)
            };
            live.bytes = live.bytes.saturating_sub(before) + member.info.bytes();
            member.seen_ms = now_ms;
            member.join = Some(ticket);
        }
        if only {
            live.protocol_type.clone_from(&request.protocol_type);
        }
        self.classic_prepare(now_ms, &request.group, step);
    }

    /// A static member comes back under a new id.
    fn join_replacing(
        &mut self,
        now_ms: u64,
        ticket: Ticket,
        request: &JoinGroup,
        old: &str,
        step: &mut Step,
    ) -> Answer {
        let name = request.group.as_str();
        let id = request.fresh_member.as_str();
        let live = self.classic_live_mut(name)?;
        let Some(mut member) = live.members.remove(old) else {
            return Err(Fault::UnknownMember);
        };
        member.answer_join(step, Reply::Refused(Fault::FencedInstance));
        member.answer_sync(step, Reply::Refused(Fault::FencedInstance));
        let same_topics = subscribes_alike(&member.info, request, &live.protocol);
        let was_leader = live.leader == old;
        if was_leader {
            live.leader = id.to_owned();
        }
        if let Some(instance) = &request.instance {
            live.instances.insert(instance.clone(), id.to_owned());
        }
        if live.unsynced.remove(old) {
            live.unsynced.insert(id.to_owned());
        }
        let before = std::mem::take(&mut member.info);
        member.info = Member {
            assignment: before.assignment,
            ..member_of(request)
        };
        member.seen_ms = now_ms;
        live.members.insert(id.to_owned(), member);
        live.weigh();
        // Only if nothing changed but the id does the generation go on. Otherwise its members must
        // hear of the new id, or of other topics: it ends, and until then its durable state keeps
        // the old id, so that a restart does not make one of what never was.
        if live.state == GroupState::Stable
            && same_topics
            && live.choose_protocol() == live.protocol
        {
            let skips = was_leader && request.can_skip_assignment;
            let joined = Joined {
                // A leader that cannot be told to skip its work must not believe to be one.
                leader: if was_leader && !skips {
                    old.to_owned()
                } else {
                    live.leader.clone()
                },
                skip_assignment: skips,
                members: if skips {
                    live.member_list()
                } else {
                    Vec::new()
                },
                ..live.joined(id)
            };
            let replaced = MemberReplaced {
                old: old.to_owned(),
                new: Some(live.members[id].info.record(id)),
            };
            self.emit(step, name, Body::ClassicMemberReplaced(replaced));
            return Ok(Some(Reply::Joined(joined)));
        }
        if let Some(member) = self.classic_live_mut(name)?.members.get_mut(id) {
            member.join = Some(ticket);
        }
        self.classic_prepare(now_ms, name, step);
        Ok(None)
    }
}

/// The id under which the static member that joins is known.
fn replaced_by<'a>(live: &'a LiveGroup, request: &JoinGroup) -> Option<&'a str> {
    if !request.member.is_empty() {
        return None;
    }
    let instance = request.instance.as_ref()?;
    live.instances.get(instance).map(String::as_str)
}

/// True if a static member that comes back wants what it wanted before. Of consumers only the
/// topics count: the rest of their metadata tells what they own, which a restart loses.
fn subscribes_alike(before: &Member, request: &JoinGroup, protocol: &str) -> bool {
    let old = before.metadata(protocol);
    let now = member_of(request).metadata(protocol);
    if request.protocol_type == "consumer"
        && let (Some(old), Some(now)) = (subscription::topics(&old), subscription::topics(&now))
    {
        return old == now;
    }
    old == now
}

pub(super) fn check_group_id(group: &str, limits: &Limits) -> Result<(), Fault> {
    if group.is_empty() || group.len() > limits.group_id_bytes {
        return Err(Fault::InvalidGroupId);
    }
    Ok(())
}

fn check_sizes(request: &JoinGroup, limits: &Limits) -> Result<(), Fault> {
    let names = [
        request.member.as_str(),
        &request.fresh_member,
        &request.client_id,
        &request.client_host,
        &request.protocol_type,
        request.instance.as_deref().unwrap_or_default(),
    ];
    let protocols = request.protocols.iter();
    let long = names
        .into_iter()
        .chain(protocols.clone().map(|(name, _)| name.as_str()))
        .any(|name| name.len() > limits.name_bytes);
    let bytes: usize = protocols.map(|(_, metadata)| metadata.len()).sum();
    if long || bytes > limits.member_bytes || request.protocols.len() > limits.protocols {
        return Err(Fault::TooLarge);
    }
    Ok(())
}
