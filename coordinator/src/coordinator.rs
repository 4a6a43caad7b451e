//! The state machine's outside: requests in, replies and events out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{Epoch, StreamId};
use kera_protocol::v1;

use crate::classic::{self, LiveGroup};
use crate::event::{Body, Event, GroupDeleted, SnapshotBegun, SnapshotEnded};
use crate::group::Group;
use crate::limits::Limits;
use crate::replay::State;
use crate::transactions::{self, MarkedParts, TransactionSet};
use crate::view::{LaneView, StreamShape};

/// Names a request until it is answered; chosen by the caller, unique among unanswered ones.
pub type Ticket = u64;

/// A client's request, as it came.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Request {
    Join {
        request: v1::JoinRequest,
        /// The client's host, as in [`classic`] requests; empty if that is not known.
        client_host: String,
    },
    Heartbeat(v1::HeartbeatRequest),
    Acquire(v1::AcquireRequest),
    Commit(v1::CommitRequest),
    Leave(v1::LeaveRequest),
    CommitPositions {
        request: v1::CommitPositionsRequest,
        /// As in [`Request::Join`].
        client_host: String,
    },
    SendPositions(SendPositions),
    ListGroups(v1::ListGroupsRequest),
    DescribeGroup(v1::DescribeGroupRequest),
    ResetGroup(v1::ResetGroupRequest),
    DeleteGroup(v1::DeleteGroupRequest),
    Classic(classic::Request),
    Transaction(transactions::Request),
}

impl Request {
    /// A member joins, from a host that is not known.
    pub fn join(request: v1::JoinRequest) -> Self {
        Self::Join {
            request,
            client_host: String::new(),
        }
    }
}

/// A member has a transaction commit positions of its leases. The caller has made sure that the transaction is open, and
/// that the group is part of it.
#[derive(Clone, Debug, PartialEq)]
pub struct SendPositions {
    /// The group.
    pub group: String,
    /// Whose leases.
    pub member: String,
    /// The transaction.
    pub transaction: classic::OfTransaction,
    /// Up to where each is consumed. None of them is released.
    pub commits: Vec<v1::LeaseCommit>,
}

/// The answer to the [`Request`] of the same name.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Reply {
    Join(v1::JoinResponse),
    Heartbeat(v1::HeartbeatResponse),
    Acquire(v1::AcquireResponse),
    Commit(v1::CommitResponse),
    Leave(v1::LeaveResponse),
    CommitPositions(v1::CommitPositionsResponse),
    SendPositions(v1::SendPositionsResponse),
    ListGroups(v1::ListGroupsResponse),
    DescribeGroup(v1::DescribeGroupResponse),
    ResetGroup(v1::ResetGroupResponse),
    DeleteGroup(v1::DeleteGroupResponse),
    Classic(classic::Reply),
    Transaction(transactions::Reply),
}

/// What one call brought about.
///
/// The coordinator's memory already holds the result. So, whoever hosts it
/// 1. appends `events`, in order, after those of all earlier steps;
/// 2. sends `replies` only when these events **and those of all earlier steps** are durable, even if
///    this step has no events: a reply may tell what an earlier step decided;
/// 3. if an append fails, drops the coordinator and its unsent replies, and replays the stream.
#[derive(Debug, Default)]
#[must_use]
pub struct Step {
    /// To be made durable.
    pub events: Vec<Event>,
    /// To be sent then. Requests not answered here wait, and are answered by a later step.
    pub replies: Vec<(Ticket, Result<Reply, WireError>)>,
}

impl Step {
    /// True if there is nothing to persist and nothing to send.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.replies.is_empty()
    }
}

/// The consumer groups of one streamlet of the internal stream. See the crate's documentation.
#[derive(Debug)]
pub struct Coordinator {
    pub(crate) limits: Limits,
    pub(crate) state: State,
    pub(crate) live: BTreeMap<String, Live>,
    /// The groups of [`State::classic`] as they live.
    pub(crate) classic: BTreeMap<String, LiveGroup>,
    /// When offsets are looked at for expiry again.
    pub(crate) classic_sweep_ms: u64,
    /// Parts of decided transactions that have their markers, by transactional id. Not kept: to write a marker again changes
    /// nothing.
    pub(crate) markers_written: BTreeMap<String, MarkedParts>,
    /// The last transaction of a producer that ended in a group, and when it did. Not kept: what comes late comes to
    /// the coordinator that it was sent to.
    pub(crate) offsets_ended: BTreeMap<(String, i64), (u64, u64)>,
    /// When transactional ids are looked at for expiry again.
    pub(crate) transactions_sweep_ms: u64,
    /// When producers sent the last heartbeats of their open transactions, by transactional id. Not kept.
    pub(crate) transactions_heard_ms: BTreeMap<String, u64>,
    /// When this coordinator began.
    pub(crate) replayed_ms: u64,
    /// The time of the last call.
    pub(crate) clock_ms: u64,
    /// Groups without order in which requests wait for records, by stream.
    awaiting: BTreeMap<StreamId, BTreeSet<String>>,
    last_snapshot: u64,
}

/// What a group knows but does not persist.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) sessions: BTreeMap<String, Session>,
    /// Requests for leases, first come, first served; at most one per member.
    pub(crate) waiters: VecDeque<Waiter>,
    /// Where the next look for a lane with data begins, so that all get their turn.
    pub(crate) next_scan: usize,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) seen_ms: u64,
    /// Leases it would hold if it could, as its last request for leases said,
    pub(crate) wish: usize,
    /// and until when that is believed.
    pub(crate) wish_until_ms: u64,
    /// When each lease was granted, if that is not long ago.
    pub(crate) granted_ms: BTreeMap<u64, u64>,
    /// Leases it was told to give back, and when first.
    pub(crate) told_ms: BTreeMap<u64, u64>,
}

impl Session {
    pub(crate) fn new(now_ms: u64) -> Self {
        Self {
            seen_ms: now_ms,
            wish: 0,
            wish_until_ms: 0,
            granted_ms: BTreeMap::new(),
            told_ms: BTreeMap::new(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) ticket: Ticket,
    pub(crate) member: String,
    pub(crate) max_leases: usize,
    pub(crate) max_bytes: u32,
    pub(crate) deadline_ms: u64,
}

/// Which limit lets no further group be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// That of all groups.
    OfAll,
    /// That of one host's clients, half of it.
    OfHost,
}

impl Coordinator {
    /// A coordinator without groups, for an empty streamlet.
    pub fn new(limits: Limits) -> Self {
        Self::from_state(limits, State::default(), 0, 0)
    }

    /// Has what was read count from `epoch` of the streamlet on, which no host had before: numbers of members and leases that
    /// are given out from now on are none of an earlier host, though its last events may be lost, as with power before
    /// they are on disk or with a metadata store that was put back. A late commit then finds no lease of its number.
    pub fn begin_epoch(&mut self, epoch: Epoch) {
        let first = u64::from(epoch.0) << 32;
        for group in self.state.groups.values_mut() {
            group.next_lease = group.next_lease.max(first);
            group.next_member = group.next_member.max(first);
        }
    }

    /// Is bounded otherwise from now on. What is there already stays, beyond new limits as well.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    pub(crate) fn from_state(
        limits: Limits,
        state: State,
        last_snapshot: u64,
        now_ms: u64,
    ) -> Self {
        let mut live: BTreeMap<String, Live> = BTreeMap::new();
        for (name, group) in &state.groups {
            let group_live = live.entry(name.clone()).or_default();
            for (id, member) in &group.members {
                let mut session = Session::new(now_ms);
                session.wish = member.leases.len();
                session.granted_ms = member.leases.iter().map(|id| (*id, now_ms)).collect();
                group_live.sessions.insert(id.clone(), session);
            }
        }
        let classic = state.classic.iter();
        let classic = classic
            .map(|(name, group)| (name.clone(), LiveGroup::from_group(group, now_ms)))
            .collect();
        Self {
            limits,
            state,
            live,
            classic,
            classic_sweep_ms: 0,
            markers_written: BTreeMap::new(),
            offsets_ended: BTreeMap::new(),
            transactions_sweep_ms: 0,
            transactions_heard_ms: BTreeMap::new(),
            replayed_ms: now_ms,
            clock_ms: now_ms,
            awaiting: BTreeMap::new(),
            last_snapshot,
        }
    }

    /// Handles one request. `now_ms` must never go back; any clock will do, as long as all calls
    /// use the same.
    ///
    /// The reply is in the step, unless the request is for leases and there is nothing to lease, or
    /// joins or syncs a classic group: then it may wait, and a later step answers it.
    pub fn handle(
        &mut self,
        now_ms: u64,
        ticket: Ticket,
        request: Request,
        view: &dyn LaneView,
    ) -> Step {
        self.clock_ms = self.clock_ms.max(now_ms);
        let mut step = Step::default();
        let s = &mut step;
        let answer = match request {
            Request::Join {
                request,
                client_host,
            } => self
                .join(now_ms, request, &client_host, view, s)
                .map(Reply::Join),
            Request::Heartbeat(request) => self
                .heartbeat(now_ms, request, view, s)
                .map(Reply::Heartbeat),
            Request::Acquire(request) => {
                if let Err(error) = self.acquire(now_ms, ticket, request, view, s) {
                    s.replies.push((ticket, Err(error)));
                }
                return step;
            }
            Request::Commit(request) => self.commit(now_ms, request, view, s).map(Reply::Commit),
            Request::Leave(request) => self.leave(now_ms, request, view, s).map(Reply::Leave),
            Request::CommitPositions {
                request,
                client_host,
            } => self
                .commit_positions(now_ms, &request, &client_host, view, s)
                .map(Reply::CommitPositions),
            Request::SendPositions(request) => self
                .send_positions(now_ms, request, view, s)
                .map(Reply::SendPositions),
            Request::Classic(request) => {
                self.classic_handle(now_ms, ticket, request, view, s);
                return step;
            }
            Request::Transaction(request) => {
                self.transactions_handle(now_ms, ticket, request, s);
                return step;
            }
            Request::ListGroups(_) => Ok(Reply::ListGroups(v1::ListGroupsResponse {
                groups: self.summaries(view),
                more: false,
            })),
            Request::DescribeGroup(request) => self
                .describe(now_ms, &request.group, view)
                .map(Reply::DescribeGroup),
            Request::ResetGroup(request) => {
                self.reset(now_ms, request, view, s).map(Reply::ResetGroup)
            }
            Request::DeleteGroup(request) => self
                .delete(now_ms, &request.group, view, s)
                .map(Reply::DeleteGroup),
        };
        step.replies.push((ticket, answer));
        step
    }

    /// Ends sessions and waits whose time is over, takes back leases that members were told to
    /// give back long ago, ends groups whose stream is gone, notices lanes that were added, and
    /// wakes requests that wait for leases. Call it a few times per second.
    pub fn tick(&mut self, now_ms: u64, view: &dyn LaneView) -> Step {
        self.clock_ms = self.clock_ms.max(now_ms);
        let mut step = Step::default();
        let names: Vec<String> = self.state.groups.keys().cloned().collect();
        for name in names {
            if self.shape_of(&name, view, &mut step).is_err() {
                continue;
            }
            self.expire_sessions(now_ms, &name, &mut step);
            self.revoke_overdue(now_ms, &name, &mut step);
            self.expire_waiters(now_ms, &name, &mut step);
            self.serve(now_ms, &name, view, &mut step);
        }
        self.classic_tick(now_ms, view, &mut step);
        self.transactions_tick(now_ms, &mut step);
        step
    }

    /// Durable heads of this stream moved: wakes requests that wait for records. Costs a look at
    /// each of its lanes when [`awaits_heads`](Self::awaits_heads) says yes and nothing otherwise;
    /// gather moves of a millisecond or more into one call.
    pub fn heads_moved(&mut self, now_ms: u64, stream: StreamId, view: &dyn LaneView) -> Step {
        let mut step = Step::default();
        let names: Vec<String> = match self.awaiting.get(&stream) {
            Some(names) => names.iter().cloned().collect(),
            None => return step,
        };
        for name in names {
            self.serve(now_ms, &name, view, &mut step);
        }
        step
    }

    /// The streams that a group reads, or has offsets of; none if there is no such group.
    pub fn streams_of(&self, group: &str) -> Vec<StreamId> {
        if let Some(group) = self.state.groups.get(group) {
            return vec![group.stream];
        }
        let classic = self.state.classic.get(group);
        classic.map_or_else(Vec::new, |group| {
            let shares = group.shares.keys().map(|(stream, _)| stream);
            group.offsets.keys().chain(shares).copied().collect()
        })
    }

    /// True if requests wait for new records of this stream.
    pub fn awaits_heads(&self, stream: StreamId) -> bool {
        self.awaiting.contains_key(&stream)
    }

    /// True if any request waits for new records of any stream.
    pub fn awaits_any_heads(&self) -> bool {
        !self.awaiting.is_empty()
    }

    /// The client of a waiting request is gone; it is not answered any more. What an answered but
    /// undelivered request had leased comes back with the member's next heartbeats.
    pub fn cancel(&mut self, ticket: Ticket) {
        let mut changed = None;
        for (name, live) in &mut self.live {
            if let Some(at) = live.waiters.iter().position(|w| w.ticket == ticket) {
                live.waiters.remove(at);
                changed = Some(name.clone());
                break;
            }
        }
        match changed {
            Some(name) => self.note_waiting(&name),
            None => self.classic_cancel(ticket),
        }
    }

    /// The whole state as events, to be appended one after the other with no other event in
    /// between. Once they are durable, everything before them can be trimmed.
    pub fn snapshot(&mut self) -> Vec<Event> {
        self.last_snapshot += 1;
        let mark = |body| Event {
            group: String::new(),
            snapshot: self.last_snapshot,
            body,
        };
        let mut events = vec![mark(Body::SnapshotBegun(SnapshotBegun {}))];
        for (name, group) in &self.state.groups {
            events.extend(group.snapshot().into_iter().map(|body| Event {
                group: name.clone(),
                snapshot: self.last_snapshot,
                body,
            }));
        }
        for (name, group) in &self.state.classic {
            events.extend(group.snapshot().into_iter().map(|body| Event {
                group: name.clone(),
                snapshot: self.last_snapshot,
                body,
            }));
        }
        let mut unsettled = self.state.unsettled.by_id();
        for (id, transaction) in &self.state.transactions {
            let written = unsettled.remove(id.as_str()).unwrap_or_default();
            let set = TransactionSet {
                written,
                ..TransactionSet::of(transaction)
            };
            events.push(Event {
                group: id.clone(),
                snapshot: self.last_snapshot,
                body: Body::TransactionSet(set),
            });
        }
        let count = events.len() as u64 - 1;
        events.push(mark(Body::SnapshotEnded(SnapshotEnded { events: count })));
        events
    }

    /// True if both hold the same durable state: what replaying their events would give. Sessions'
    /// clocks and waiting requests are no part of it.
    pub fn same_durable_state(&self, other: &Self) -> bool {
        self.state == other.state
    }

    /// Applies an event and adds it to the step: the one way in which state changes.
    pub(crate) fn emit(&mut self, step: &mut Step, group: &str, body: Body) {
        let fits = self.state.apply(group, &body);
        debug_assert!(fits, "an event of {group} does not fit: {body:?}");
        step.events.push(Event {
            group: group.to_owned(),
            snapshot: 0,
            body,
        });
    }

    /// The group, or the error that names it.
    pub(crate) fn group(&self, name: &str) -> Result<&Group, WireError> {
        if self.state.classic.contains_key(name) {
            return Err(other_kind(name));
        }
        self.state.groups.get(name).ok_or_else(|| {
            WireError::new(
                ErrorCode::UnknownConsumerGroup,
                format!("consumer group {name:?} does not exist: join it or check the name"),
            )
        })
    }

    /// The stream of a group. If it was deleted, so is the group.
    pub(crate) fn shape_of(
        &mut self,
        name: &str,
        view: &dyn LaneView,
        step: &mut Step,
    ) -> Result<StreamShape, WireError> {
        let group = self.group(name)?;
        if let Some(shape) = view.stream_by_id(group.stream) {
            return Ok(shape);
        }
        let error = WireError::new(
            ErrorCode::UnknownStream,
            format!(
                "stream {:?} was deleted, and consumer group {name:?} with it",
                group.stream_name
            ),
        );
        self.end_group(name, &error, step);
        Err(error)
    }

    /// Deletes a group and answers what waits in it.
    pub(crate) fn end_group(&mut self, name: &str, reason: &WireError, step: &mut Step) {
        self.emit(step, name, Body::GroupDeleted(GroupDeleted {}));
        if let Some(live) = self.live.remove(name) {
            for waiter in live.waiters {
                step.replies.push((waiter.ticket, Err(reason.clone())));
            }
        }
        self.note_waiting(name);
    }

    /// Makes room for one more group of the clients of `host`. At a limit the oldest group that has neither
    /// members nor anything that it remembers goes: at the limit of all groups whosever it is, where the host
    /// has created its share only one of its own. Nothing goes for a group that is refused.
    pub(crate) fn make_room_for_group(
        &mut self,
        host: &str,
        step: &mut Step,
    ) -> Result<(), NoRoom> {
        let own = !self.host_may_create(host);
        if !own && self.state.groups.len() + self.state.classic.len() < self.limits.groups {
            return Ok(());
        }
        let may_go = |by: &str| !own || by == host;
        let classic = self.state.classic.iter().filter(|(name, group)| {
            let live = self.classic.get(*name);
            let idle = live.is_some_and(LiveGroup::is_idle);
            idle && group.offset_count == 0
                && group.config.is_default()
                && may_go(&group.created_by)
        });
        let classic = classic.map(|(name, group)| (group.since_ms, name));
        let native = self.state.groups.iter();
        let native = native.filter(|(_, group)| {
            group.members.is_empty() && group.is_fresh() && may_go(&group.created_by)
        });
        let native = native.map(|(name, group)| (group.created_ms, name));
        let Some((_, name)) = classic.chain(native).min() else {
            return Err(if own { NoRoom::OfHost } else { NoRoom::OfAll });
        };
        let name = name.clone();
        tracing::debug!(
            group = name,
            "an empty consumer group makes room for another"
        );
        self.emit(step, &name, Body::GroupDeleted(GroupDeleted {}));
        self.classic.remove(&name);
        self.live.remove(&name);
        self.note_waiting(&name);
        Ok(())
    }

    /// False if the clients of a host have created their share of the groups that may be, of all kinds.
    fn host_may_create(&self, host: &str) -> bool {
        let share = self.limits.groups.div_ceil(2);
        let (classic, native) = (&self.state.classic, &self.state.groups);
        if host.is_empty() || classic.len() + native.len() < share {
            return true;
        }
        let classic = classic.values().map(|group| &group.created_by);
        let native = native.values().map(|group| &group.created_by);
        classic.chain(native).filter(|by| *by == host).count() < share
    }

    /// Keeps the index of groups that wait for records up to date.
    pub(crate) fn note_waiting(&mut self, name: &str) {
        let stream = self.state.groups.get(name).and_then(|group| {
            let waits = self
                .live
                .get(name)
                .is_some_and(|live| !live.waiters.is_empty());
            (waits && group.order == v1::Order::None).then_some(group.stream)
        });
        match stream {
            Some(stream) => {
                let names = self.awaiting.entry(stream).or_default();
                if !names.contains(name) {
                    names.insert(name.to_owned());
                }
            }
            None => self.awaiting.retain(|_, names| {
                names.remove(name);
                !names.is_empty()
            }),
        }
    }
}

/// The error of a native request about a group of Kafka's consumers.
pub(crate) fn other_kind(name: &str) -> WireError {
    WireError::new(
        ErrorCode::GroupConflict,
        format!("consumer group {name:?} belongs to Kafka clients: take another name"),
    )
}
