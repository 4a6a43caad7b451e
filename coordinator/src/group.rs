//! A consumer group's durable state and how events change it. Nothing else changes it, so that
//! replaying the events gives the same state.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kera_protocol::ids::{LaneId, LaneKey, Ordinal, StreamId, StreamletId};
use kera_protocol::slices::SliceSet;
use kera_protocol::v1::{Cursor, Order};

use crate::event::{
    Body, CommitRecord, EndedLease, GroupCreated, LaneRecord, LeaseRecord, LeasesGranted,
    MemberJoined,
};
use crate::lane::{LaneProgress, OPEN_END, told_end};
use crate::sent_positions::SentPositions;
use crate::slices::LaneSlices;

/// Ended leases that a member is remembered to have released, so that a repeated commit is told
/// from a stale one.
const REMEMBERED_ENDS: usize = 256;
/// Lanes, and leases, in one event of a snapshot.
pub(crate) const EVENT_ENTRIES: usize = 256;
/// Finished ranges after which an event of a snapshot is full.
const EVENT_RANGES: usize = 2_048;
/// Lanes with an ordinal for each slice in one event of a snapshot.
const EVENT_SLICED_LANES: usize = 64;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    pub(crate) kind: u32,
    pub(crate) stream: StreamId,
    pub(crate) stream_name: String,
    /// The host of the client that created it; empty if that is not known.
    pub(crate) created_by: String,
    pub(crate) order: Order,
    pub(crate) created_ms: u64,
    pub(crate) next_lease: u64,
    pub(crate) next_member: u64,
    pub(crate) members: BTreeMap<String, Member>,
    pub(crate) leases: BTreeMap<u64, Lease>,
    pub(crate) lanes: BTreeMap<(u32, u32), LaneProgress>,
    /// In place of `lanes` where the order of keys is kept.
    pub(crate) sliced: BTreeMap<(u32, u32), LaneSlices>,
    /// What open transactions commit.
    pub(crate) sent: SentPositions,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Member {
    pub(crate) client: String,
    pub(crate) session_ms: u32,
    pub(crate) number: u64,
    pub(crate) leases: BTreeSet<u64>,
    /// (lease, next ordinal) of leases it ended, oldest first.
    ended: VecDeque<(u64, Ordinal)>,
}

impl Member {
    /// Up to where this member had finished a lease that it ended itself.
    pub(crate) fn ended_at(&self, lease: u64) -> Option<Ordinal> {
        self.ended
            .iter()
            .find(|(ended, _)| *ended == lease)
            .map(|(_, next)| *next)
    }

    fn remember_end(&mut self, lease: u64, next: Ordinal) {
        if self.ended.len() == REMEMBERED_ENDS {
            self.ended.pop_front();
        }
        self.ended.push_back((lease, next));
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lease {
    pub(crate) member: String,
    pub(crate) lane: (u32, u32),
    pub(crate) start: Ordinal,
    /// Everything below is committed.
    pub(crate) next: Ordinal,
    /// Exclusive, or [`OPEN_END`].
    pub(crate) end: Ordinal,
    pub(crate) generation: u32,
    /// Of the lane, where the order of keys is kept.
    pub(crate) slices: SliceSet,
}

impl Group {
    pub(crate) fn new(created: &GroupCreated) -> Option<Self> {
        Some(Self {
            kind: created.kind,
            stream: StreamId::from_slice(&created.stream)?,
            stream_name: created.stream_name.clone(),
            created_by: created.created_by.clone(),
            order: Order::try_from(created.order).ok()?,
            created_ms: created.created_ms,
            next_lease: created.next_lease.max(1),
            next_member: created.next_member.max(1),
            members: BTreeMap::new(),
            leases: BTreeMap::new(),
            lanes: BTreeMap::new(),
            sliced: BTreeMap::new(),
            sent: SentPositions::default(),
        })
    }

    pub(crate) fn lane_key(&self, lane: (u32, u32)) -> LaneKey {
        LaneKey {
            stream: self.stream,
            streamlet: StreamletId(lane.0),
            lane: LaneId(lane.1),
        }
    }

    /// Where the group stands in a lane, with its last slice if it keeps the order of keys; 0 if it never touched it.
    pub(crate) fn low(&self, lane: (u32, u32)) -> Ordinal {
        self.low_of(lane, SliceSet::ALL)
    }

    /// The same of some slices, if it keeps the order of keys.
    pub(crate) fn low_of(&self, lane: (u32, u32), slices: SliceSet) -> Ordinal {
        match self.order {
            Order::Key => {
                let sliced = self.sliced.get(&lane);
                sliced.map_or(0, |sliced| sliced.low_of(slices))
            }
            _ => self.lanes.get(&lane).map_or(0, LaneProgress::low),
        }
    }

    /// True if the group stands at an ordinal of a lane, and nothing of it is leased or finished above.
    pub(crate) fn is_at(&self, lane: (u32, u32), ordinal: Ordinal) -> bool {
        match (self.sliced.get(&lane), self.lanes.get(&lane)) {
            (Some(sliced), _) => sliced.is_at(ordinal),
            (None, Some(lane)) => lane.low() == ordinal && lane.span_count() == 0,
            (None, None) => ordinal == 0,
        }
    }

    /// True if it never touched a lane.
    pub(crate) fn is_fresh(&self) -> bool {
        self.lanes.is_empty() && self.sliced.is_empty()
    }

    /// Applies one event. False if it does not fit the state, which then is as it was.
    pub(crate) fn apply(&mut self, body: &Body) -> bool {
        match body {
            Body::MemberJoined(joined) => {
                self.join(joined);
                true
            }
            Body::MemberLeft(left) => {
                let Some(member) = self.members.remove(&left.member) else {
                    return false;
                };
                for lease in member.leases {
                    self.end_lease(lease);
                }
                true
            }
            Body::LanesSet(set) => {
                for record in &set.lanes {
                    let lane = (record.streamlet, record.lane);
                    if self.order == Order::Key {
                        let sliced = self.sliced.entry(lane).or_default();
                        sliced.set(record.low, record.hint, &record.slices);
                        continue;
                    }
                    let lane = self.lanes.entry(lane).or_default();
                    lane.set(record.low, record.hint, &record.finished);
                }
                true
            }
            Body::LeasesGranted(granted) => self.grant(granted),
            Body::Committed(committed) => {
                let mut fits = true;
                for commit in &committed.commits {
                    fits &= self.commit(&committed.member, commit);
                }
                fits
            }
            Body::LeasesEnded(ended) => {
                let mut fits = true;
                for lease in &ended.leases {
                    fits &= self.end_lease(*lease).is_some();
                }
                fits
            }
            Body::LowMoved(moved) => {
                self.lanes
                    .entry((moved.streamlet, moved.lane))
                    .or_default()
                    .advance(moved.low);
                true
            }
            Body::GapSkipped(gap) => {
                self.lanes
                    .entry((gap.streamlet, gap.lane))
                    .or_default()
                    .skip(gap.start, gap.end);
                true
            }
            Body::PositionsSent(sent) => self.keep_aside(sent),
            Body::PositionsEnded(ended) => self.end_positions(ended),
            Body::GroupCreated(_)
            | Body::GroupDeleted(_)
            | Body::SnapshotBegun(_)
            | Body::SnapshotEnded(_)
            | Body::ClassicGeneration(_)
            | Body::ClassicAssigned(_)
            | Body::ClassicMemberReplaced(_)
            | Body::OffsetsSet(_)
            | Body::OffsetsPending(_)
            | Body::OffsetsEnded(_)
            | Body::TransactionSet(_)
            | Body::TransactionEnded(_)
            | Body::ConsumerBegun(_)
            | Body::ConsumerMemberSet(_)
            | Body::ConsumerMemberRemoved(_)
            | Body::ConsumerTarget(_)
            | Body::ShareSet(_)
            | Body::SharesRemoved(_)
            | Body::ShareConfigSet(_)
            | Body::OffsetsRemoved(_) => false,
        }
    }

    fn join(&mut self, joined: &MemberJoined) {
        self.next_member = self.next_member.max(joined.number.saturating_add(1));
        let member = self
            .members
            .entry(joined.member.clone())
            .or_insert_with(|| Member {
                client: String::new(),
                session_ms: 0,
                number: joined.number,
                leases: BTreeSet::new(),
                ended: VecDeque::new(),
            });
        member.client.clone_from(&joined.client);
        member.session_ms = joined.session_ms;
        for ended in &joined.ended {
            member.remember_end(ended.lease, ended.next);
        }
    }

    fn grant(&mut self, granted: &LeasesGranted) -> bool {
        let Some(member) = self.members.get_mut(&granted.member) else {
            return false;
        };
        let mut fits = true;
        for record in &granted.leases {
            let end = if record.end == 0 {
                OPEN_END
            } else {
                record.end
            };
            let next = record.next.max(record.start);
            let lane = (record.streamlet, record.lane);
            let slices = SliceSet::from_bits(record.slices);
            let is_free = match self.order {
                Order::Key => {
                    let sliced = self.sliced.entry(lane).or_default();
                    sliced.hold(record.lease, slices)
                }
                _ => {
                    let lane = self.lanes.entry(lane).or_default();
                    lane.lease(record.lease, next, end)
                }
            };
            if !is_free {
                fits = false;
                continue;
            }
            self.next_lease = self.next_lease.max(record.lease.saturating_add(1));
            member.leases.insert(record.lease);
            self.leases.insert(
                record.lease,
                Lease {
                    member: granted.member.clone(),
                    lane,
                    start: record.start,
                    next,
                    end,
                    generation: record.generation,
                    slices,
                },
            );
        }
        fits
    }

    pub(crate) fn commit(&mut self, member: &str, commit: &CommitRecord) -> bool {
        let Some(lease) = self.leases.get_mut(&commit.lease) else {
            return false;
        };
        if lease.member != member {
            return false;
        }
        if let Some(to) = commit.next {
            let to = if to.ordinal > lease.end {
                Cursor {
                    ordinal: lease.end,
                    ..Cursor::default()
                }
            } else {
                to
            };
            if to.ordinal > lease.next {
                if let Some(lane) = self.lanes.get_mut(&lease.lane) {
                    lane.commit(commit.lease, lease.next, to);
                }
                if let Some(sliced) = self.sliced.get_mut(&lease.lane) {
                    sliced.commit(commit.lease, to);
                }
                lease.next = to.ordinal;
            }
        }
        // A lease that is consumed to its end is over, whether or not its member says so.
        if (commit.release || lease.next >= lease.end)
            && let Some(next) = self.end_lease(commit.lease)
            && let Some(member) = self.members.get_mut(member)
        {
            member.remember_end(commit.lease, next);
        }
        true
    }

    /// Ends a lease; what it did not finish is free, but for what an open transaction commits. Returns up to where it was
    /// committed.
    fn end_lease(&mut self, id: u64) -> Option<Ordinal> {
        let lease = self.leases.remove(&id)?;
        if let Some(sliced) = self.sliced.get_mut(&lease.lane)
            && self.sent.of_lease(id).is_none()
        {
            sliced.release(id);
        }
        if let Some(lane) = self.lanes.get_mut(&lease.lane) {
            match self.sent.of_lease(id) {
                Some(sent) => lane.keep(id, lease.next, sent.next.ordinal),
                None => lane.release(id, lease.next),
            }
        }
        if let Some(member) = self.members.get_mut(&lease.member) {
            member.leases.remove(&id);
        }
        Some(lease.next)
    }

    /// The events that build this state from nothing.
    pub(crate) fn snapshot(&self) -> Vec<Body> {
        let mut bodies = vec![Body::GroupCreated(GroupCreated {
            kind: self.kind,
            stream: self.stream.as_bytes().to_vec(),
            stream_name: self.stream_name.clone(),
            order: self.order as i32,
            created_ms: self.created_ms,
            next_lease: self.next_lease,
            next_member: self.next_member,
            created_by: self.created_by.clone(),
        })];
        self.snapshot_lanes(&mut bodies);
        for (name, member) in &self.members {
            bodies.push(Body::MemberJoined(MemberJoined {
                member: name.clone(),
                client: member.client.clone(),
                session_ms: member.session_ms,
                number: member.number,
                ended: member
                    .ended
                    .iter()
                    .map(|&(lease, next)| EndedLease { lease, next })
                    .collect(),
            }));
            let leases: Vec<LeaseRecord> = member
                .leases
                .iter()
                .filter_map(|id| Some((*id, self.leases.get(id)?)))
                .map(|(id, lease)| LeaseRecord {
                    lease: id,
                    streamlet: lease.lane.0,
                    lane: lease.lane.1,
                    start: lease.start,
                    end: told_end(lease.end),
                    next: lease.next,
                    generation: lease.generation,
                    slices: lease.slices.bits(),
                })
                .collect();
            for leases in leases.chunks(EVENT_ENTRIES) {
                bodies.push(Body::LeasesGranted(LeasesGranted {
                    member: name.clone(),
                    leases: leases.to_vec(),
                }));
            }
        }
        bodies.extend(self.sent.snapshot(EVENT_ENTRIES));
        bodies
    }

    fn snapshot_lanes(&self, bodies: &mut Vec<Body>) {
        let sliced = self.sliced.iter().map(|(lane, sliced)| LaneRecord {
            streamlet: lane.0,
            lane: lane.1,
            low: sliced.low(),
            hint: sliced.hint(),
            finished: Vec::new(),
            slices: sliced.offsets(),
        });
        let sliced: Vec<LaneRecord> = sliced.collect();
        for lanes in sliced.chunks(EVENT_SLICED_LANES) {
            bodies.push(lanes_set(lanes.to_vec()));
        }
        let mut lanes = Vec::new();
        let mut ranges = 0;
        for (&(streamlet, lane), progress) in &self.lanes {
            let finished: Vec<u64> = progress
                .finished_ranges()
                .flat_map(|(start, end)| [start, end])
                .collect();
            ranges += finished.len() / 2;
            lanes.push(LaneRecord {
                streamlet,
                lane,
                low: progress.low(),
                hint: progress.hint(),
                finished,
                slices: Vec::new(),
            });
            if lanes.len() == EVENT_ENTRIES || ranges >= EVENT_RANGES {
                bodies.push(lanes_set(std::mem::take(&mut lanes)));
                ranges = 0;
            }
        }
        if !lanes.is_empty() {
            bodies.push(lanes_set(lanes));
        }
    }
}

pub(crate) fn lanes_set(lanes: Vec<LaneRecord>) -> Body {
    Body::LanesSet(crate::event::LanesSet { lanes })
}
