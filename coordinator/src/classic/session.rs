//! Syncs, heartbeats, leaving; and the way requests take.

use bytes::Bytes;

use super::group::{Group, assigned_parts};
use super::join::check_group_id;
use super::live::LiveGroup;
use super::request::{Fault, GroupState, Heartbeat, LeaveGroup, Reply, Request, SyncGroup, Synced};
use crate::coordinator::{Coordinator, Reply as AnyReply, Step, Ticket};
use crate::view::LaneView;

/// About what an id costs that was given out.
const PENDING_BYTES: usize = 400;

/// A reply, or `None` if the request waits.
pub(super) type Answer = Result<Option<Reply>, Fault>;

impl Coordinator {
    pub(crate) fn classic_handle(
        &mut self,
        now_ms: u64,
        ticket: Ticket,
        request: Request,
        view: &dyn LaneView,
        step: &mut Step,
    ) {
        let answer = match request {
            Request::Join(request) => self.classic_join(now_ms, ticket, request, step),
            Request::Sync(request) => self.classic_sync(now_ms, ticket, request, step),
            Request::Heartbeat(request) => self.classic_heartbeat(now_ms, &request).map(Some),
            Request::ConsumerHeartbeat(request) => self
                .consumer_heartbeat(now_ms, &request, view, step)
                .map(Some),
            Request::ConsumerDescribe(group) => self.consumer_describe(&group, false).map(Some),
            Request::ShareHeartbeat(request) => {
                self.share_heartbeat(now_ms, &request, view, step).map(Some)
            }
            Request::ShareDescribe(group) => self.consumer_describe(&group, true).map(Some),
            Request::ShareOpen(request) => self.share_open(&request, view, step).map(Some),
            Request::ShareWrite(request) => self.share_write(&request, view, step).map(Some),
            Request::ShareConfigure(request) => {
                self.share_configure(now_ms, request, step).map(Some)
            }
            Request::ShareOffsets(group) => self.share_offsets(&group).map(Some),
            Request::ShareSetOffsets(request) => {
                self.share_set_offsets(&request, view, step).map(Some)
            }
            Request::Leave(request) => self.classic_leave(now_ms, &request, step).map(Some),
            Request::Commit(request) => self.classic_commit(now_ms, request, view, step).map(Some),
            Request::EndOffsets(request) => self
                .classic_end_offsets(now_ms, &request, view, step)
                .map(Some),
            Request::Fetch(request) => self.classic_fetch(request).map(Some),
            Request::DeleteOffsets(request) => {
                self.classic_delete_offsets(&request, step).map(Some)
            }
            Request::Describe(group) => self.classic_describe(&group).map(Some),
            Request::Delete(group) => self.classic_delete(&group, step).map(Some),
        };
        let reply = match answer {
            Ok(Some(reply)) => reply,
            Ok(None) => return,
            Err(fault) => Reply::Refused(fault),
        };
        step.replies.push((ticket, Ok(AnyReply::Classic(reply))));
    }

    /// The group, if there is one of this kind.
    pub(super) fn classic_live(&self, name: &str) -> Result<&LiveGroup, Fault> {
        self.classic.get(name).ok_or(Fault::GroupNotFound)
    }

    pub(super) fn classic_live_mut(&mut self, name: &str) -> Result<&mut LiveGroup, Fault> {
        self.classic.get_mut(name).ok_or(Fault::GroupNotFound)
    }

    /// Bytes of metadata and assignments that all groups hold, with the ids they have given out.
    fn classic_bytes(&self) -> usize {
        let groups = self.classic.values();
        groups
            .map(|live| live.bytes + live.pending.len() * PENDING_BYTES)
            .sum()
    }

    /// True if a group of `bytes` may grow by `more`.
    pub(super) fn classic_may_grow(&self, bytes: usize, more: usize) -> bool {
        let limits = &self.limits.classic;
        let of_group = bytes + more;
        of_group <= limits.group_bytes
            && (of_group <= limits.small_group_bytes
                || self.classic_bytes() + more <= limits.total_bytes)
    }

    pub(super) fn classic_create(
        &mut self,
        now_ms: u64,
        name: &str,
        host: &str,
        step: &mut Step,
    ) -> Result<(), Fault> {
        self.make_room_for_group(host, step)
            .map_err(|_| Fault::TooManyGroups)?;
        self.emit(step, name, Group::created(now_ms, host));
        self.classic.insert(name.to_owned(), LiveGroup::new());
        Ok(())
    }

    fn classic_sync(
        &mut self,
        now_ms: u64,
        ticket: Ticket,
        request: SyncGroup,
        step: &mut Step,
    ) -> Answer {
        check_group_id(&request.group, &self.limits.classic)?;
        let limits = self.limits.classic.clone();
        let name = request.group.as_str();
        let live = self.classic.get_mut(name).ok_or(Fault::UnknownMember)?;
        let id = request.member.as_str();
        live.check_member(id, request.instance.as_deref())?;
        if request.generation != live.generation {
            return Err(Fault::IllegalGeneration);
        }
        let differs = |wanted: &Option<String>, is: &str| wanted.as_ref().is_some_and(|w| w != is);
        if differs(&request.protocol_type, &live.protocol_type)
            || differs(&request.protocol, &live.protocol)
        {
            return Err(Fault::InconsistentProtocol);
        }
        match live.state {
            GroupState::Empty | GroupState::Reconciling => return Err(Fault::UnknownMember),
            GroupState::PreparingRebalance => return Err(Fault::RebalanceInProgress),
            GroupState::CompletingRebalance | GroupState::Stable => {}
        }
        live.touch(now_ms, id);
        if live.state == GroupState::Stable {
            live.unsynced.remove(id);
            let synced = synced(live, id);
            return Ok(Some(Reply::Synced(synced)));
        }
        let leads = live.leader == id;
        if leads {
            let members = live.members.keys();
            let shares: Vec<&Bytes> = members
                .filter_map(|id| request.assignments.get(id))
                .collect();
            let bytes: usize = shares.iter().map(|share| share.len()).sum();
            let held = live.bytes;
            if shares.iter().any(|s| s.len() > limits.assignment_bytes)
                || !self.classic_may_grow(held, bytes)
            {
                return Err(Fault::TooLarge);
            }
        }
        let live = self.classic_live_mut(name)?;
        live.unsynced.remove(id);
        if let Some(member) = live.members.get_mut(id) {
            // A sync that it sent before is given up.
            member.answer_sync(step, Reply::Refused(Fault::RebalanceInProgress));
            member.sync = Some(ticket);
        }
        if leads {
            self.classic_assign(now_ms, request, step);
        }
        Ok(None)
    }

    /// The leader's assignments arrive: everybody who waits for them gets theirs.
    fn classic_assign(&mut self, now_ms: u64, mut request: SyncGroup, step: &mut Step) {
        let name = request.group.as_str();
        let Some(live) = self.classic.get_mut(name) else {
            return;
        };
        let mut assignments = Vec::with_capacity(live.members.len());
        for (id, member) in &mut live.members {
            let share = request.assignments.remove(id).unwrap_or_default();
            member.info.assignment = share.clone();
            if !share.is_empty() {
                assignments.push((id.clone(), share));
            }
        }
        live.state = GroupState::Stable;
        live.weigh();
        tracing::debug!(
            group = name,
            waiting = live.members.values().filter(|m| m.sync.is_some()).count(),
            "a consumer group is stable"
        );
        let ids: Vec<String> = live.members.keys().cloned().collect();
        for id in ids {
            let reply = Reply::Synced(synced(live, &id));
            if let Some(member) = live.members.get_mut(&id)
                && member.sync.is_some()
            {
                member.answer_sync(step, reply);
                member.seen_ms = now_ms;
            }
        }
        for event in assigned_parts(live.generation, assignments.into_iter()) {
            self.emit(step, name, event);
        }
    }

    fn classic_heartbeat(&mut self, now_ms: u64, request: &Heartbeat) -> Result<Reply, Fault> {
        check_group_id(&request.group, &self.limits.classic)?;
        let live = self
            .classic
            .get_mut(&request.group)
            .ok_or(Fault::UnknownMember)?;
        live.check_member(&request.member, request.instance.as_deref())?;
        if request.generation != live.generation {
            return Err(Fault::IllegalGeneration);
        }
        live.touch(now_ms, &request.member);
        match live.state {
            GroupState::Empty | GroupState::Reconciling => Err(Fault::UnknownMember),
            GroupState::PreparingRebalance => Err(Fault::RebalanceInProgress),
            GroupState::CompletingRebalance | GroupState::Stable => Ok(Reply::Alive),
        }
    }

    fn classic_leave(
        &mut self,
        now_ms: u64,
        request: &LeaveGroup,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        check_group_id(&request.group, &self.limits.classic)?;
        let name = request.group.as_str();
        let Some(live) = self.classic.get_mut(name) else {
            let unknown = request.members.iter().map(|_| Err(Fault::UnknownMember));
            return Ok(Reply::Left(unknown.collect()));
        };
        let mut any = false;
        let mut results = Vec::with_capacity(request.members.len());
        for (member, instance) in &request.members {
            let found = match (member.as_str(), instance) {
                ("", Some(instance)) => live
                    .instances
                    .get(instance)
                    .cloned()
                    .ok_or(Fault::UnknownMember),
                ("", None) => Err(Fault::UnknownMember),
                (id, _) if live.pending.remove(id).is_some() => {
                    results.push(Ok(()));
                    continue;
                }
                (id, instance) => live
                    .check_member(id, instance.as_deref())
                    .map(|()| id.to_owned()),
            };
            results.push(found.map(|id| {
                live.remove(&id, &Fault::UnknownMember, step);
                any = true;
            }));
        }
        if any {
            self.classic_prepare(now_ms, name, step);
        }
        self.classic_try_complete(now_ms, name, step);
        Ok(Reply::Left(results))
    }

    /// The client of a waiting request is gone.
    pub(crate) fn classic_cancel(&mut self, ticket: Ticket) {
        let now_ms = self.clock_ms;
        for live in self.classic.values_mut() {
            let mut members = live.members.iter_mut();
            let Some((id, member)) =
                members.find(|(_, m)| m.join == Some(ticket) || m.sync == Some(ticket))
            else {
                continue;
            };
            tracing::debug!(member = id, "the client of a waiting request is gone");
            // While it waited it was alive: its session begins to run out now.
            member.seen_ms = member.seen_ms.max(now_ms);
            if member.sync == Some(ticket) {
                // It may ask again, under the same limit of time as before.
                member.sync = None;
                let id = id.clone();
                live.unsynced.insert(id);
                return;
            }
            member.join = None;
            if member.anonymous {
                // Its client was never told the id: it cannot come back.
                let id = id.clone();
                live.remove(&id, &Fault::UnknownMember, &mut Step::default());
            }
            return;
        }
    }
}

fn synced(live: &LiveGroup, id: &str) -> Synced {
    Synced {
        protocol_type: live.protocol_type.clone(),
        protocol: live.protocol.clone(),
        assignment: live
            .members
            .get(id)
            .map(|member| member.info.assignment.clone())
            .unwrap_or_default(),
    }
}
