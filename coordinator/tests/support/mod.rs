//! A stream in memory, as the coordinator sees it, and short ways to send requests.
#![allow(dead_code)]

use std::collections::BTreeMap;

use kera_coordinator::{
    Coordinator, Cut, CutWish, LaneStatus, LaneView, Reply, Request, Step, StreamShape,
};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneKey, Ordinal, StreamId};
use kera_protocol::v1::{self, Cursor, LaneBy, Order};

pub const BATCH_BYTES: u32 = 100;

#[derive(Clone, Debug, Default)]
pub struct FakeLane {
    pub log_start: Ordinal,
    pub head: Ordinal,
    /// (first ordinal, next ordinal), ascending, possibly with gaps between.
    pub batches: Vec<(Ordinal, Ordinal)>,
    pub boundaries: BTreeMap<u32, Ordinal>,
    /// Its owner does not tell where a time is.
    pub timeless: bool,
}

#[derive(Clone, Debug)]
pub struct FakeStream {
    pub shape: StreamShape,
    pub lanes: BTreeMap<(u32, u32), FakeLane>,
    pub deleted: bool,
    /// Its lanes are served by others, and may have grown since this was heard of them.
    pub elsewhere: bool,
}

impl FakeStream {
    pub fn new(streamlets: u32, lanes: u32, lane_by: LaneBy) -> Self {
        let mut stream = Self {
            shape: StreamShape {
                id: StreamId::random(),
                name: "s".into(),
                streamlets,
                lane_by,
                generations: vec![],
            },
            lanes: BTreeMap::new(),
            deleted: false,
            elsewhere: false,
        };
        stream.grow(lanes);
        stream
    }

    /// Gives each streamlet so many lanes.
    pub fn grow(&mut self, lanes: u32) {
        self.grow_to(lanes * self.shape.streamlets);
    }

    /// Gives all streamlets together so many lanes.
    pub fn grow_to(&mut self, partitions: u32) {
        let ended = self.shape.generations.len().checked_sub(1);
        if let Some(ended) = ended {
            for lane in self.lanes.values_mut() {
                lane.boundaries.insert(ended as u32, lane.head);
            }
        }
        self.shape.generations.push(partitions);
        for partition in 0..partitions {
            let streamlets = self.shape.streamlets;
            let lane = (partition % streamlets, partition / streamlets);
            self.lanes.entry(lane).or_default();
        }
    }

    pub fn append(&mut self, lane: (u32, u32), records: u64) {
        let lane = self.lanes.get_mut(&lane).unwrap();
        lane.batches.push((lane.head, lane.head + records));
        lane.head += records;
    }

    /// Ordinals are left out, as after a recovery that lost records.
    pub fn jump(&mut self, lane: (u32, u32), ordinals: u64) {
        self.lanes.get_mut(&lane).unwrap().head += ordinals;
    }

    pub fn trim(&mut self, lane: (u32, u32), to: Ordinal) {
        let lane = self.lanes.get_mut(&lane).unwrap();
        lane.log_start = lane.log_start.max(to.min(lane.head));
        let start = lane.log_start;
        lane.batches.retain(|batch| batch.1 > start);
    }

    fn find(&self, lane: LaneKey) -> Option<&FakeLane> {
        (lane.stream == self.shape.id)
            .then(|| self.lanes.get(&(lane.streamlet.0, lane.lane.0)))
            .flatten()
    }
}

/// From here nobody may see anything.
pub const NO_VIEW: &str = "192.0.2.9";

impl LaneView for FakeStream {
    fn stream_by_name(&self, name: &str) -> Option<StreamShape> {
        (name == self.shape.name && !self.deleted).then(|| self.shape.clone())
    }

    fn topics_seen_by(&self, user: Option<&str>, host: &str) -> Vec<String> {
        let seen = !self.deleted && user != Some("nobody") && host != NO_VIEW;
        seen.then(|| self.shape.name.clone()).into_iter().collect()
    }

    fn host_matters(&self, _: &str) -> bool {
        true
    }

    fn stream_by_id(&self, id: StreamId) -> Option<StreamShape> {
        (id == self.shape.id && !self.deleted).then(|| self.shape.clone())
    }

    fn lane(&self, lane: LaneKey) -> Option<LaneStatus> {
        self.find(lane).map(|lane| LaneStatus {
            log_start: lane.log_start,
            head: lane.head,
        })
    }

    fn highest_readable(&self, lane: LaneKey) -> Option<Ordinal> {
        self.find(lane).filter(|_| !self.elsewhere).map(|l| l.head)
    }

    fn boundary(&self, lane: LaneKey, generation: u32) -> Option<Ordinal> {
        self.find(lane)?.boundaries.get(&generation).copied()
    }

    fn at_time(&self, lane: LaneKey, timestamp_ms: u64) -> Option<Ordinal> {
        // Record n was written at time n.
        let found = self.find(lane).filter(|lane| !lane.timeless)?;
        Some(timestamp_ms.min(found.head))
    }

    fn cut(&self, lane: LaneKey, from: Ordinal, wish: CutWish) -> Option<Cut> {
        let lane = self.find(lane)?;
        let mut batches = lane.batches.iter().skip_while(|batch| batch.1 <= from);
        let first = batches.next()?;
        let start = first.0.max(from);
        let (mut end, mut bytes) = (first.1, BATCH_BYTES);
        for batch in batches {
            bytes += BATCH_BYTES;
            if batch.1 - start > wish.ordinals || bytes > wish.bytes {
                break;
            }
            end = batch.1;
        }
        Some(Cut {
            start: Cursor {
                ordinal: start,
                has_hint: true,
                ..Cursor::default()
            },
            end,
        })
    }

    fn skip_gap(&self, lane: LaneKey, ordinal: Ordinal) -> Ordinal {
        let Some(lane) = self.find(lane) else {
            return ordinal;
        };
        lane.batches
            .iter()
            .find(|batch| batch.1 > ordinal)
            .map_or(lane.head.max(ordinal), |batch| batch.0.max(ordinal))
    }
}

pub fn join(group: &str, client: &str, order: Order) -> v1::JoinRequest {
    v1::JoinRequest {
        group: group.into(),
        stream: "s".into(),
        order: order as i32,
        client: client.into(),
        session_ms: 3_000,
        start: None,
        member: String::new(),
    }
}

pub fn commit(lease: u64, next: Option<Ordinal>, release: bool) -> v1::LeaseCommit {
    v1::LeaseCommit {
        lease,
        next: next.map(|ordinal| Cursor {
            ordinal,
            has_hint: true,
            ..Cursor::default()
        }),
        release,
    }
}

/// A coordinator with a stream and a clock; answers are taken as if everything were durable.
pub struct Bench {
    pub coordinator: Coordinator,
    pub stream: FakeStream,
    pub now: u64,
    pub ticket: u64,
    pub replies: BTreeMap<u64, Result<Reply, WireError>>,
    pub events: Vec<kera_coordinator::Event>,
}

impl Bench {
    pub fn new(stream: FakeStream) -> Self {
        Self {
            coordinator: Coordinator::new(Default::default()),
            stream,
            now: 1_000,
            ticket: 0,
            replies: BTreeMap::new(),
            events: Vec::new(),
        }
    }

    pub fn take(&mut self, step: Step) {
        self.events.extend(step.events);
        for (ticket, reply) in step.replies {
            assert!(
                self.replies.insert(ticket, reply).is_none(),
                "request {ticket} was answered twice"
            );
        }
    }

    /// Sends a request; its ticket.
    pub fn send(&mut self, request: Request) -> u64 {
        self.ticket += 1;
        let step = self
            .coordinator
            .handle(self.now, self.ticket, request, &self.stream);
        self.take(step);
        self.ticket
    }

    pub fn call(&mut self, request: Request) -> Result<Reply, WireError> {
        let ticket = self.send(request);
        self.replies.remove(&ticket).expect("answered at once")
    }

    pub fn tick(&mut self, ms: u64) {
        self.now += ms;
        let step = self.coordinator.tick(self.now, &self.stream);
        self.take(step);
    }

    pub fn heads(&mut self) {
        let step = self
            .coordinator
            .heads_moved(self.now, self.stream.shape.id, &self.stream);
        self.take(step);
    }

    pub fn join(&mut self, group: &str, client: &str, order: Order) -> String {
        match self.call(Request::join(join(group, client, order))) {
            Ok(Reply::Join(reply)) => reply.member,
            other => panic!("join answered {other:?}"),
        }
    }

    pub fn join_error(&mut self, request: v1::JoinRequest) -> ErrorCode {
        self.call(Request::join(request)).unwrap_err().code
    }

    pub fn acquire(&mut self, group: &str, member: &str, max_leases: u32) -> Vec<v1::Lease> {
        let ticket = self.park(group, member, max_leases, 0);
        self.leases(ticket).expect("answered at once")
    }

    pub fn park(&mut self, group: &str, member: &str, max_leases: u32, wait: u32) -> u64 {
        self.send(Request::Acquire(v1::AcquireRequest {
            group: group.into(),
            member: member.into(),
            max_leases,
            max_wait_ms: wait,
            max_bytes: 0,
        }))
    }

    /// The leases that answered a request; `None` if it waits.
    pub fn leases(&mut self, ticket: u64) -> Option<Vec<v1::Lease>> {
        match self.replies.remove(&ticket)? {
            Ok(Reply::Acquire(reply)) => Some(reply.leases),
            other => panic!("acquire answered {other:?}"),
        }
    }

    /// Commits; the stale leases.
    pub fn commit(&mut self, group: &str, member: &str, commits: &[v1::LeaseCommit]) -> Vec<u64> {
        match self.try_commit(group, member, commits) {
            Ok(Reply::Commit(reply)) => reply.stale,
            other => panic!("commit answered {other:?}"),
        }
    }

    pub fn try_commit(
        &mut self,
        group: &str,
        member: &str,
        commits: &[v1::LeaseCommit],
    ) -> Result<Reply, WireError> {
        self.call(Request::Commit(v1::CommitRequest {
            group: group.into(),
            member: member.into(),
            commits: commits.to_vec(),
            accepts_pending: false,
        }))
    }

    pub fn heartbeat(
        &mut self,
        group: &str,
        member: &str,
        leases: &[u64],
    ) -> v1::HeartbeatResponse {
        match self.try_heartbeat(group, member, leases) {
            Ok(Reply::Heartbeat(reply)) => reply,
            other => panic!("heartbeat answered {other:?}"),
        }
    }

    pub fn try_heartbeat(
        &mut self,
        group: &str,
        member: &str,
        leases: &[u64],
    ) -> Result<Reply, WireError> {
        self.call(Request::Heartbeat(v1::HeartbeatRequest {
            group: group.into(),
            member: member.into(),
            leases: leases.to_vec(),
        }))
    }

    pub fn leave(&mut self, group: &str, member: &str) {
        let reply = self.call(Request::Leave(v1::LeaveRequest {
            group: group.into(),
            member: member.into(),
        }));
        assert!(matches!(reply, Ok(Reply::Leave(_))));
    }

    pub fn describe(&mut self, group: &str) -> v1::DescribeGroupResponse {
        match self.call(Request::DescribeGroup(v1::DescribeGroupRequest {
            group: group.into(),
        })) {
            Ok(Reply::DescribeGroup(reply)) => reply,
            other => panic!("describe answered {other:?}"),
        }
    }

    /// A coordinator that read the events from their encoding.
    pub fn replayed(&self, events: &[kera_coordinator::Event]) -> Coordinator {
        replay(events, self.now)
    }
}

pub fn replay(events: &[kera_coordinator::Event], now: u64) -> Coordinator {
    let mut replay = kera_coordinator::Replay::new();
    for event in events {
        let read = kera_coordinator::Event::decode(event.key(), &event.value()).unwrap();
        replay.apply(&read);
    }
    replay.finish(Default::default(), now).0
}

pub fn ids(leases: &[v1::Lease]) -> Vec<u64> {
    leases.iter().map(|lease| lease.lease).collect()
}

pub fn lanes(leases: &[v1::Lease]) -> Vec<(u32, u32)> {
    leases
        .iter()
        .map(|lease| (lease.streamlet, lease.lane))
        .collect()
}

/// (start, end) of leases.
pub fn ranges(leases: &[v1::Lease]) -> Vec<(u64, u64)> {
    leases
        .iter()
        .map(|lease| (lease.start.unwrap().ordinal, lease.end_ordinal))
        .collect()
}
