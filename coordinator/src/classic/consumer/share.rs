//! Heartbeats of members of share groups: as those of consumers, but that nobody gives anything back before others get
//! it, and that the group divides its work by itself.

use super::heartbeat::{LEAVE_EPOCH, added_bytes};
use super::live::Session;
use super::request::{ConsumerBeat, ShareHeartbeat};
use super::state::ConsumerMember;
use super::subscribed::{Matches, Seen};
use crate::classic::group::Group;
use crate::classic::join::check_group_id;
use crate::classic::{Fault, Limits, Reply};
use crate::coordinator::{Coordinator, Step};
use crate::event::Body;
use crate::view::LaneView;

impl ShareHeartbeat {
    fn apply_to(&self, member: &mut ConsumerMember) {
        member.client_id.clone_from(&self.client_id);
        member.client_host.clone_from(&self.client_host);
        if self.rack.is_some() {
            member.rack.clone_from(&self.rack);
        }
        if let Some(topics) = &self.topics {
            member.topics = topics.iter().cloned().collect();
        }
    }
}

impl Coordinator {
    pub(in crate::classic) fn share_heartbeat(
        &mut self,
        now_ms: u64,
        request: &ShareHeartbeat,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        check(request, &self.limits.classic)?;
        let (name, id) = (request.group.as_str(), request.member.as_str());
        if self.state.groups.contains_key(name) {
            return Err(Fault::NotShare);
        }
        let joins = request.epoch == 0;
        let group = self.state.classic.get(name);
        let begins = match group {
            Some(group) if group.is_share() => false,
            Some(group) if joins && is_unused(group) && self.classic_live(name)?.is_idle() => true,
            Some(_) => return Err(Fault::NotShare),
            None if joins => true,
            None => return Err(Fault::UnknownMember),
        };
        let before = self.consumer_member(name, id);
        if request.epoch == LEAVE_EPOCH {
            before.ok_or(Fault::UnknownMember)?;
            self.consumer_remove(now_ms, name, &[id.to_owned()], view, step);
            return Ok(beat(LEAVE_EPOCH, 0, None));
        }
        match &before {
            None if !joins => return Err(Fault::UnknownMember),
            Some(known) if !joins && !known.knows(request.epoch) => return Err(Fault::FencedEpoch),
            _ => {}
        }
        let mut member = before.clone().unwrap_or_default();
        request.apply_to(&mut member);
        let is_new = before
            .as_ref()
            .is_none_or(|before| before.topics != member.topics);
        let live = self.classic.get(name).filter(|_| !begins);
        let mut more = member.bytes(id);
        let mut seen = Seen::default();
        if is_new {
            let max_bytes = self.limits.classic.assignment_bytes;
            let mut matches = Matches::default();
            more += added_bytes(&member, live, &mut matches, &mut seen, view, max_bytes)?;
        }
        let kept = before.as_ref().map(|before| before.bytes(id));
        self.consumer_check_room(live, kept, more)?;
        if begins {
            self.consumer_begin(now_ms, name, &request.client_host, true, step)?;
        }
        if before.as_ref() != Some(&member) {
            self.emit(step, name, Body::ConsumerMemberSet(member.record(id)));
        }
        if let Some(live) = self.classic.get_mut(name).and_then(|l| l.consumer.as_mut()) {
            let session = live.sessions.entry(id.to_owned());
            let session = session.or_insert_with(|| Session::new(&member, now_ms));
            session.seen_ms = session.seen_ms.max(now_ms);
        }
        if is_new {
            let subscribed = self.consumer_subscribed(name, &mut seen, view);
            self.consumer_retarget(now_ms, name, subscribed, true, step);
        }
        Ok(self.share_move(request, step))
    }

    /// Gives a member what it is to have, and tells it if it may not know.
    fn share_move(&mut self, request: &ShareHeartbeat, step: &mut Step) -> Reply {
        let (name, id) = (request.group.as_str(), request.member.as_str());
        let group = &self.state.classic[name];
        let consumer = group.consumer.as_ref();
        let Some((consumer, member)) = consumer.and_then(|c| Some((c, c.members.get(id)?))) else {
            return Reply::Refused(Fault::UnknownMember);
        };
        let (target, epoch) = (consumer.target_of(id), group.generation);
        let mut member = member.clone();
        let changed = (member.epoch, &member.assigned) != (epoch, &target);
        if changed {
            member.previous_epoch = member.epoch;
            member.epoch = epoch;
            member.assigned = target;
            self.emit(step, name, Body::ConsumerMemberSet(member.record(id)));
        }
        self.consumer_refresh(name);
        let tells = changed || request.epoch != epoch;
        let heartbeat_ms = self.limits.classic.consumer_heartbeat_ms;
        Reply::ConsumerBeat(ConsumerBeat {
            epoch,
            heartbeat_ms,
            assignment: tells.then_some(member.assigned),
        })
    }
}

impl ConsumerMember {
    /// Its epoch, or the one before if it did not get the last answer.
    fn knows(&self, epoch: i32) -> bool {
        epoch == self.epoch || epoch == self.previous_epoch
    }
}

/// Nothing but settings was ever in it.
fn is_unused(group: &Group) -> bool {
    group.consumer.is_none()
        && group.generation == 0
        && group.offsets.is_empty()
        && group.pending.is_empty()
}

fn beat(epoch: i32, heartbeat_ms: u32, assignment: Option<super::Partitions>) -> Reply {
    Reply::ConsumerBeat(ConsumerBeat {
        epoch,
        heartbeat_ms,
        assignment,
    })
}

fn check(request: &ShareHeartbeat, limits: &Limits) -> Result<(), Fault> {
    let wrong = |what| Err(Fault::InvalidRequest(what));
    if request.group.is_empty() {
        return wrong("the group's id is empty");
    }
    check_group_id(&request.group, limits)?;
    if request.member.is_empty() {
        return wrong("the member's id is empty");
    }
    if request.rack.as_deref() == Some("") {
        return wrong("the name of the rack is empty");
    }
    if request.epoch < LEAVE_EPOCH {
        return wrong("there is no such epoch of a member");
    }
    if request.epoch == 0 && request.topics.as_ref().is_none_or(Vec::is_empty) {
        return wrong("who joins subscribes to topics");
    }
    let names = [
        request.member.as_str(),
        &request.client_id,
        &request.client_host,
        request.rack.as_deref().unwrap_or_default(),
    ];
    let topics = request.topics.iter().flatten();
    let bytes: usize = topics.map(String::len).sum();
    match names.iter().any(|name| name.len() > limits.name_bytes) || bytes > limits.member_bytes {
        true => Err(Fault::TooLarge),
        false => Ok(()),
    }
}
