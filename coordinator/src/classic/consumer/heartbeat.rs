//! Heartbeats: members join, say what they own, learn what they are to have, and leave.

use std::collections::BTreeSet;

use kera_protocol::ids::StreamId;

use super::assign::ASSIGNORS;
use super::event::{ConsumerBegun, ConsumerMemberRemoved};
use super::live::{LiveConsumer, Session};
use super::reconcile::{Stand, is_settled, step as next_step};
use super::request::{ConsumerBeat, ConsumerHeartbeat};
use super::state::{ConsumerGroup, ConsumerMember, LEFT, Partitions, each, has};
use super::subscribed::{self, Matches, Seen, Subscribed};
use crate::classic::join::check_group_id;
use crate::classic::{Fault, GroupState, Limits, LiveGroup, Reply};
use crate::coordinator::{Coordinator, Step};
use crate::event::Body;
use crate::view::LaneView;

/// The epoch of a member that leaves.
pub const LEAVE_EPOCH: i32 = -1;
/// The epoch of a static member that leaves and will be back.
pub const LEAVE_FOR_A_WHILE_EPOCH: i32 = LEFT;

/// Who sends a heartbeat.
enum Sender {
    New,
    Known,
    /// Takes the place of the static member of this id.
    Replaces(String),
}

impl ConsumerHeartbeat {
    /// True if it says everything, as a member does that may have missed an answer.
    fn is_whole(&self) -> bool {
        let subscribes = self.topics.is_some() || self.pattern.is_some();
        self.epoch == 0 || (self.rebalance_ms.is_some() && subscribes && self.owned.is_some())
    }

    fn apply_to(&self, member: &mut ConsumerMember) {
        member.client_id.clone_from(&self.client_id);
        member.client_host.clone_from(&self.client_host);
        member.user.clone_from(&self.user);
        if self.instance.is_some() {
            member.instance.clone_from(&self.instance);
        }
        if self.rack.is_some() {
            member.rack.clone_from(&self.rack);
        }
        if let Some(ms) = self.rebalance_ms {
            member.rebalance_ms = ms;
        }
        if let Some(topics) = &self.topics {
            member.topics = topics.iter().cloned().collect();
        }
        if let Some(pattern) = &self.pattern {
            member.pattern.clone_from(pattern);
        }
        if let Some(assignor) = &self.assignor {
            member.assignor.clone_from(assignor);
        }
    }
}

impl Coordinator {
    pub(in crate::classic) fn consumer_heartbeat(
        &mut self,
        now_ms: u64,
        request: &ConsumerHeartbeat,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        check(request, &self.limits.classic)?;
        let name = request.group.as_str();
        if self.state.groups.contains_key(name) || self.is_share_group(name) {
            return Err(Fault::NotConsumer);
        }
        if request.epoch < 0 {
            return self.consumer_leave(now_ms, request, view, step);
        }
        let begins = self.consumer_begins(request)?;
        let sender = match begins {
            true => Sender::New,
            false => self.consumer_sender(request)?,
        };
        let id = request.member.as_str();
        let before = match &sender {
            Sender::New => None,
            Sender::Known => self.consumer_member(name, id),
            Sender::Replaces(old) => self.consumer_member(name, old),
        };
        let mut member = before.clone().unwrap_or_default();
        request.apply_to(&mut member);
        if !matches!(sender, Sender::Known) || request.epoch == 0 {
            member.epoch = 0;
            member.previous_epoch = 0;
        }
        let wants_more = before
            .as_ref()
            .is_none_or(|before| wants_other(before, &member));
        let live = self.classic.get(name).filter(|_| !begins);
        let (mut seen, mut matches) = (Seen::default(), Matches::default());
        let mut more = member.bytes(id);
        if wants_more {
            seen.check(&member, view)?;
            let max_bytes = self.limits.classic.assignment_bytes;
            more += added_bytes(&member, live, &mut matches, &mut seen, view, max_bytes)?;
        }
        let kept = before.as_ref().map(|before| before.bytes(id));
        self.consumer_check_room(live, kept, more)?;
        if begins {
            self.consumer_begin(now_ms, name, &request.client_host, false, step)?;
        }
        if let Sender::Replaces(old) = &sender {
            let removed = ConsumerMemberRemoved {
                member: old.clone(),
                heir: id.to_owned(),
            };
            self.emit(step, name, Body::ConsumerMemberRemoved(removed));
        }
        let is_other = before.as_ref() != Some(&member) || matches!(sender, Sender::Replaces(_));
        if is_other {
            self.emit(step, name, Body::ConsumerMemberSet(member.record(id)));
        }
        if let Some(live) = self.classic.get_mut(name).and_then(|l| l.consumer.as_mut()) {
            if let Sender::Replaces(old) = &sender {
                live.sessions.remove(old);
            }
            let session = live.sessions.entry(id.to_owned());
            let session = session.or_insert_with(|| Session::new(&member, now_ms));
            session.seen_ms = session.seen_ms.max(now_ms);
            live.matches.learn(matches);
        }
        if wants_more {
            let subscribed = self.consumer_subscribed(name, &mut seen, view);
            self.consumer_retarget(now_ms, name, subscribed, true, step);
        } else if is_other {
            self.consumer_refresh(name);
        }
        Ok(self.consumer_move(now_ms, request, step))
    }

    /// True if the group becomes one of the consumer protocol with this heartbeat.
    fn consumer_begins(&self, request: &ConsumerHeartbeat) -> Result<bool, Fault> {
        let name = request.group.as_str();
        let joins = request.epoch == 0;
        match self.state.classic.get(name) {
            Some(group) if group.consumer.is_some() => Ok(false),
            Some(_) => {
                let live = self.classic_live(name)?;
                match joins && live.state == GroupState::Empty && live.is_idle() {
                    true => Ok(true),
                    false => Err(Fault::NotConsumer),
                }
            }
            None if joins => Ok(true),
            // Forgotten with all its members: they are to join again.
            None => Err(Fault::UnknownMember),
        }
    }

    /// The group becomes one of the consumer protocol, or a share group.
    pub(super) fn consumer_begin(
        &mut self,
        now_ms: u64,
        name: &str,
        client_host: &str,
        shares: bool,
        step: &mut Step,
    ) -> Result<(), Fault> {
        if !self.state.classic.contains_key(name) {
            self.classic_create(now_ms, name, client_host, step)?;
        }
        let begun = ConsumerBegun {
            epoch: self.state.classic[name].generation,
            since_ms: now_ms,
            shares,
        };
        self.emit(step, name, Body::ConsumerBegun(begun));
        if let Some(live) = self.classic.get_mut(name) {
            live.consumer = Some(LiveConsumer::default());
        }
        Ok(())
    }

    pub(super) fn consumer_member(&self, name: &str, id: &str) -> Option<ConsumerMember> {
        let group = self.state.classic.get(name)?;
        group.consumer.as_ref()?.members.get(id).cloned()
    }

    /// Who sends a heartbeat to a group that is there.
    fn consumer_sender(&self, request: &ConsumerHeartbeat) -> Result<Sender, Fault> {
        let group = self.state.classic.get(&request.group);
        let consumer = group.and_then(|group| group.consumer.as_ref());
        let consumer = consumer.ok_or(Fault::UnknownMember)?;
        let joins = request.epoch == 0;
        let named = request.instance.as_deref();
        let named = named.and_then(|instance| consumer.of_instance(instance));
        let known = consumer.members.get(&request.member);
        let member = match (&request.instance, named, known) {
            (Some(_), Some((id, _)), _) if *id == request.member => known,
            (Some(_), Some((id, old)), _) if joins && old.epoch == LEFT => {
                return Ok(Sender::Replaces(id.clone()));
            }
            (Some(_), Some(_), _) if joins => return Err(Fault::UnreleasedInstance),
            (Some(_), Some(_), _) => return Err(Fault::FencedInstance),
            (Some(_), None, Some(_)) if joins => known,
            (Some(_), None, _) | (None, _, None) => None,
            (None, _, Some(_)) => known,
        };
        match member {
            None if joins => Ok(Sender::New),
            None => Err(Fault::UnknownMember),
            Some(member) => check_epoch(member, request).map(|()| Sender::Known),
        }
    }

    /// Refuses a member for which there is no room; `bytes` is what it takes, `before` what it took, if it was there.
    pub(super) fn consumer_check_room(
        &self,
        live: Option<&LiveGroup>,
        before: Option<usize>,
        bytes: usize,
    ) -> Result<(), Fault> {
        let members = live.map_or(0, |live| live.member_count());
        if before.is_none() && members >= self.limits.members {
            return Err(Fault::GroupFull);
        }
        let more = bytes.saturating_sub(before.unwrap_or(0));
        if more > 0 && !self.classic_may_grow(live.map_or(0, |live| live.bytes), more) {
            return Err(Fault::TooLarge);
        }
        Ok(())
    }

    /// Takes a member a step towards its share, and tells it where it stands.
    fn consumer_move(
        &mut self,
        now_ms: u64,
        request: &ConsumerHeartbeat,
        step: &mut Step,
    ) -> Reply {
        let (name, id) = (request.group.as_str(), request.member.as_str());
        let heartbeat_ms = self.limits.classic.consumer_heartbeat_ms;
        let group = &self.state.classic[name];
        let Some((consumer, member)) = group.consumer.as_ref().and_then(|consumer| {
            let member = consumer.members.get(id)?;
            Some((consumer, member))
        }) else {
            return Reply::Refused(Fault::UnknownMember);
        };
        let (target, epoch) = (consumer.target_of(id), group.generation);
        let before = member.clone();
        // Who begins anew owns nothing.
        let nothing = Partitions::new();
        let owned = match request.epoch {
            0 => Some(&nothing),
            _ => request.owned.as_ref(),
        };
        let stand = match is_settled(member, &target, epoch) {
            true => None,
            false => {
                let taken: BTreeSet<_> = consumer.held_by_others(id);
                next_step(member, &target, epoch, owned, &taken)
            }
        };
        let mut member = before.clone();
        if let Some(Stand {
            epoch,
            assigned,
            revoking,
        }) = stand
        {
            let is_other =
                (epoch, &assigned, &revoking) != (member.epoch, &member.assigned, &member.revoking);
            if is_other {
                member.previous_epoch = member.epoch;
                member.epoch = epoch;
                member.assigned = assigned;
                member.revoking = revoking;
                self.emit(step, name, Body::ConsumerMemberSet(member.record(id)));
                let live = self.classic.get_mut(name).and_then(|l| l.consumer.as_mut());
                if let Some(session) = live.and_then(|live| live.sessions.get_mut(id)) {
                    session.revoke_until_ms = Session::new(&member, now_ms).revoke_until_ms;
                }
                self.consumer_refresh(name);
            }
        }
        let missed = request.epoch != before.epoch;
        let tells = request.is_whole() || missed || member.assigned != before.assigned;
        Reply::ConsumerBeat(ConsumerBeat {
            epoch: member.epoch,
            heartbeat_ms,
            assignment: tells.then_some(member.assigned),
        })
    }

    fn consumer_leave(
        &mut self,
        now_ms: u64,
        request: &ConsumerHeartbeat,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<Reply, Fault> {
        let (name, id) = (request.group.as_str(), request.member.as_str());
        let group = self.state.classic.get(name);
        let consumer = group.and_then(|group| group.consumer.as_ref());
        let consumer = consumer.ok_or(Fault::UnknownMember)?;
        if let Some(instance) = &request.instance {
            let (named, _) = consumer.of_instance(instance).ok_or(Fault::UnknownMember)?;
            if named != id {
                return Err(Fault::FencedInstance);
            }
        }
        let mut member = self.consumer_member(name, id).ok_or(Fault::UnknownMember)?;
        if request.epoch == LEAVE_EPOCH {
            self.consumer_remove(now_ms, name, &[id.to_owned()], view, step);
        } else {
            member.epoch = LEFT;
            // Its process has given back what it was to.
            member.revoking.clear();
            self.emit(step, name, Body::ConsumerMemberSet(member.record(id)));
            if let Some(live) = self.classic.get_mut(name).and_then(|l| l.consumer.as_mut()) {
                live.sessions
                    .insert(id.to_owned(), Session::new(&member, now_ms));
            }
            self.consumer_refresh(name);
        }
        Ok(Reply::ConsumerBeat(ConsumerBeat {
            epoch: request.epoch,
            heartbeat_ms: 0,
            assignment: None,
        }))
    }

    /// Checks that the sender of a commit, or of a question for commits, is a member under its own epoch. Whoever is
    /// none may as long as nobody is, or if `anyone` may.
    pub(in crate::classic) fn consumer_check(
        &self,
        name: &str,
        member: &str,
        epoch: i32,
        anyone: bool,
    ) -> Result<(), Fault> {
        let group = self.state.classic.get(name);
        let Some(consumer) = group.and_then(|group| group.consumer.as_ref()) else {
            return Ok(());
        };
        if epoch < 0 && (consumer.members.is_empty() || (anyone && member.is_empty())) {
            return Ok(());
        }
        let member = consumer.members.get(member).ok_or(Fault::UnknownMember)?;
        // A member that left for a while has an epoch below zero, under which nobody commits.
        match member.epoch == epoch && epoch >= 0 {
            true => Ok(()),
            false => Err(Fault::StaleEpoch),
        }
    }

    /// Whether a member of the consumer protocol subscribes to a stream.
    pub(in crate::classic) fn consumer_subscribes(&self, name: &str, stream: StreamId) -> bool {
        let group = self.state.classic.get(name);
        let consumer = group.and_then(|group| group.consumer.as_ref());
        consumer.is_some_and(|consumer| {
            let mut targets = consumer.target.values();
            targets.any(|target| target.contains_key(&stream))
        })
    }

    /// Before a member of the classic protocol joins: a group that is empty becomes a classic one.
    pub(in crate::classic) fn consumer_end(
        &mut self,
        now_ms: u64,
        name: &str,
        step: &mut Step,
    ) -> Result<(), Fault> {
        let Some(group) = self
            .state
            .classic
            .get(name)
            .filter(|g| g.consumer.is_some())
        else {
            return Ok(());
        };
        if self.classic_live(name)?.state != GroupState::Empty || self.is_share_group(name) {
            return Err(Fault::InconsistentProtocol);
        }
        let head = crate::classic::Generation {
            generation: group.generation,
            last: true,
            since_ms: now_ms,
            ..crate::classic::Generation::default()
        };
        self.emit(step, name, Body::ClassicGeneration(head));
        let live = crate::classic::LiveGroup::from_group(&self.state.classic[name], now_ms);
        self.classic.insert(name.to_owned(), live);
        Ok(())
    }
}

/// True if the work may be divided otherwise for what a member says now.
fn wants_other(before: &ConsumerMember, member: &ConsumerMember) -> bool {
    let looks_from_elsewhere = before.client_host != member.client_host;
    before.topics != member.topics
        || (looks_from_elsewhere && !member.pattern.is_empty())
        || (&before.pattern, &before.user, &before.assignor)
            != (&member.pattern, &member.user, &member.assignor)
}

/// What a group takes in addition for a pattern, and for streams, that only this member subscribes to.
pub(super) fn added_bytes(
    member: &ConsumerMember,
    live: Option<&LiveGroup>,
    matches: &mut Matches,
    seen: &mut Seen,
    view: &dyn LaneView,
    max_bytes: usize,
) -> Result<usize, Fault> {
    let mut alone = ConsumerGroup::default();
    alone.members.insert(String::new(), member.clone());
    let mut added = Subscribed::of(&alone, matches, seen, view, usize::MAX);
    let live = live.and_then(|live| live.consumer.as_ref());
    let of_pattern = match live.is_some_and(|live| live.matches.has(member)) {
        true => 0,
        false => matches.memory(),
    };
    let known = live.and_then(|live| live.subscribed.as_ref());
    let before = known.map_or(0, Subscribed::bytes);
    added
        .partitions
        .retain(|stream, _| known.is_none_or(|known| !known.partitions.contains_key(stream)));
    match before + added.bytes() > max_bytes {
        true => Err(Fault::TooLarge),
        false => Ok(added.memory() + of_pattern),
    }
}

/// An epoch counts if it is the member's own, or the one before that of a member that did not get the last answer.
fn check_epoch(member: &ConsumerMember, request: &ConsumerHeartbeat) -> Result<(), Fault> {
    let owns_no_more = |owned: &Partitions| {
        let mut owned = each(owned);
        owned.all(|(stream, number)| has(&member.assigned, stream, number))
    };
    let is_own = request.epoch == member.epoch;
    let missed = request.epoch == member.previous_epoch
        && request.epoch < member.epoch
        && request.owned.as_ref().is_some_and(owns_no_more);
    match request.epoch == 0 || is_own || missed {
        true => Ok(()),
        false => Err(Fault::FencedEpoch),
    }
}

fn check(request: &ConsumerHeartbeat, limits: &Limits) -> Result<(), Fault> {
    let wrong = |what| Err(Fault::InvalidRequest(what));
    if request.group.is_empty() {
        return wrong("the group's id is empty");
    }
    check_group_id(&request.group, limits)?;
    if request.member.is_empty() {
        return wrong("the member's id is empty");
    }
    if request.instance.as_deref() == Some("") || request.rack.as_deref() == Some("") {
        return wrong("the name of the instance, or of the rack, is empty");
    }
    if request.epoch == 0 {
        if request.rebalance_ms.is_none() {
            return wrong("who joins says how long it may take to give back partitions");
        }
        if request.owned.as_ref().is_none_or(|owned| !owned.is_empty()) {
            return wrong("who joins owns no partitions, and says so");
        }
        if request.topics.is_none() && request.pattern.is_none() {
            return wrong("who joins subscribes to topics, or to a regular expression");
        }
    }
    if request.epoch == LEFT && request.instance.is_none() {
        return wrong("only a static member leaves for a while: name the instance");
    }
    if request.epoch < LEFT {
        return wrong("there is no such epoch of a member");
    }
    if let Some(assignor) = request.assignor.as_deref().filter(|name| !name.is_empty())
        && !ASSIGNORS.contains(&assignor)
    {
        return Err(Fault::UnsupportedAssignor);
    }
    let names = [
        request.member.as_str(),
        &request.client_id,
        &request.client_host,
        request.instance.as_deref().unwrap_or_default(),
        request.rack.as_deref().unwrap_or_default(),
        request.pattern.as_deref().unwrap_or_default(),
    ];
    let topics = request.topics.iter().flatten();
    let bytes: usize = topics.map(String::len).sum();
    if names.iter().any(|name| name.len() > limits.name_bytes) || bytes > limits.member_bytes {
        return Err(Fault::TooLarge);
    }
    match request.pattern.as_deref() {
        None | Some("") => Ok(()),
        Some(pattern) => subscribed::read(pattern).map(|_| ()),
    }
}
