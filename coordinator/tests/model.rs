//! Random members, commits, appends, trims, growth, crashes and snapshots against what a group
//! promises: nothing leased twice at a time, nothing committed delivered again, everything
//! delivered in the end, commits that never go back, the order of lane generations, and a state
//! that is what its durable events say.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use kera_coordinator::{Coordinator, Event, Limits, Reply, Request, Step};
use kera_protocol::error::ErrorCode;
use kera_protocol::v1::{self, LaneBy, Order};
use proptest::prelude::*;
use support::{FakeStream, commit, join, replay};

const GROUP: &str = "g";
const SESSION_MS: u64 = 3_000;

#[derive(Clone, Debug)]
enum Op {
    Append {
        lane: usize,
        records: u64,
    },
    Jump {
        lane: usize,
    },
    Trim {
        lane: usize,
        records: u64,
    },
    /// By so many lanes in all.
    Grow(u32),
    Join {
        rejoin: Option<usize>,
    },
    Leave {
        member: usize,
    },
    Heartbeat {
        member: usize,
        obey: bool,
    },
    Acquire {
        member: usize,
        leases: u32,
        bytes: u32,
        wait: bool,
    },
    Commit {
        member: usize,
        lease: usize,
        records: u64,
        release: bool,
    },
    Time {
        ms: u64,
    },
    Heads,
    Durable {
        events: usize,
    },
    Crash {
        survivors: usize,
    },
    Snapshot {
        trim: bool,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let index = 0..16_usize;
    prop_oneof![
        6 => (index.clone(), 1..20_u64).prop_map(|(lane, records)| Op::Append { lane, records }),
        1 => index.clone().prop_map(|lane| Op::Jump { lane }),
        1 => (index.clone(), 1..20_u64).prop_map(|(lane, records)| Op::Trim { lane, records }),
        1 => (1..5_u32).prop_map(Op::Grow),
        3 => proptest::option::of(index.clone()).prop_map(|rejoin| Op::Join { rejoin }),
        1 => index.clone().prop_map(|member| Op::Leave { member }),
        4 => (index.clone(), any::<bool>()).prop_map(|(member, obey)| Op::Heartbeat { member, obey }),
        8 => (index.clone(), 1..5_u32, 1..400_u32, any::<bool>()).prop_map(
            |(member, leases, bytes, wait)| Op::Acquire { member, leases, bytes, wait }
        ),
        10 => (index.clone(), index.clone(), 0..30_u64, any::<bool>()).prop_map(
            |(member, lease, records, release)| Op::Commit { member, lease, records, release }
        ),
        2 => (1..1_500_u64).prop_map(|ms| Op::Time { ms }),
        2 => Just(Op::Heads),
        8 => (1..12_usize).prop_map(|events| Op::Durable { events }),
        1 => (0..5_usize).prop_map(|survivors| Op::Crash { survivors }),
        1 => any::<bool>().prop_map(|trim| Op::Snapshot { trim }),
    ]
}

/// A client's memory: what it was told and nothing else.
#[derive(Clone, Debug, Default)]
struct Client {
    id: String,
    /// Lease -> (lane, next, end; `u64::MAX` if open, generation read up to).
    leases: BTreeMap<u64, Held>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    lane: (u32, u32),
    next: u64,
    end: u64,
}

/// What a request meant, so that its reply can be checked when it arrives.
#[derive(Clone, Debug)]
enum Sent {
    Join {
        client: usize,
    },
    Acquire {
        client: usize,
        id: String,
    },
    Commit {
        client: usize,
        id: String,
        lease: u64,
        held: Held,
        to: u64,
        release: bool,
    },
    Heartbeat {
        client: usize,
        id: String,
        obey: bool,
    },
    Leave,
}

/// Log length at the step, ticket, reply, and the code if it is an error.
type HeldBack = (usize, u64, Result<Reply, String>, Option<ErrorCode>);

struct World {
    order: Order,
    stream: FakeStream,
    coordinator: Coordinator,
    now: u64,
    /// Everything ever appended, and where the stored part begins.
    log: Vec<Event>,
    durable: usize,
    trimmed: usize,
    /// Replies wait for the log's length at their step.
    held_back: Vec<HeldBack>,
    sent: BTreeMap<u64, Sent>,
    ticket: u64,
    clients: Vec<Client>,
    /// Ordinals whose commit was acknowledged, and those whose commit was ever sent or trimmed.
    acknowledged: BTreeMap<(u32, u32), BTreeSet<u64>>,
    attempted: BTreeMap<(u32, u32), BTreeSet<u64>>,
    stored: BTreeMap<(u32, u32), BTreeSet<u64>>,
    /// Commits of lane leases that were acknowledged.
    lows: BTreeMap<(u32, u32), u64>,
    /// The highest lease seen, and what it was when each lane generation ended.
    highest_lease: u64,
    last_lease_of: BTreeMap<u32, u64>,
    /// A snapshot not yet durable: where it begins and ends in the log.
    snapshot: Option<(usize, usize)>,
}

impl World {
    fn new(order: Order) -> Self {
        Self {
            order,
            stream: FakeStream::new(2, 1, LaneBy::Key),
            coordinator: Coordinator::new(Limits::default()),
            now: 1_000,
            log: Vec::new(),
            durable: 0,
            trimmed: 0,
            held_back: Vec::new(),
            sent: BTreeMap::new(),
            ticket: 0,
            clients: Vec::new(),
            acknowledged: BTreeMap::new(),
            attempted: BTreeMap::new(),
            stored: BTreeMap::new(),
            lows: BTreeMap::new(),
            highest_lease: 0,
            last_lease_of: BTreeMap::new(),
            snapshot: None,
        }
    }

    fn lane(&self, index: usize) -> (u32, u32) {
        *self
            .stream
            .lanes
            .keys()
            .nth(index % self.stream.lanes.len())
            .unwrap()
    }

    fn take(&mut self, step: Step) {
        for event in &step.events {
            self.log.push(event.clone());
        }
        for (ticket, reply) in step.replies {
            let code = reply.as_ref().err().map(|error| error.code);
            let reply = reply.map_err(|error| error.message);
            self.held_back.push((self.log.len(), ticket, reply, code));
        }
        self.check_disjoint();
        self.deliver();
    }

    fn send(&mut self, sent: Sent, request: Request) {
        self.ticket += 1;
        self.sent.insert(self.ticket, sent);
        let step = self
            .coordinator
            .handle(self.now, self.ticket, request, &self.stream);
        self.take(step);
    }

    /// Delivers the replies whose events are durable.
    fn deliver(&mut self) {
        let durable = self.durable;
        let (ready, waiting) = std::mem::take(&mut self.held_back)
            .into_iter()
            .partition(|(needs, ..)| *needs <= durable);
        self.held_back = waiting;
        for (_, ticket, reply, code) in ready {
            let sent = self.sent.remove(&ticket).expect("answered once");
            self.receive(sent, reply, code);
        }
    }

    fn receive(&mut self, sent: Sent, reply: Result<Reply, String>, code: Option<ErrorCode>) {
        match (sent, reply) {
            (Sent::Join { client }, Ok(Reply::Join(reply))) => {
                let client = &mut self.clients[client];
                if client.id != reply.member {
                    client.leases.clear();
                }
                client.id = reply.member;
            }
            (Sent::Acquire { client, id }, Ok(Reply::Acquire(reply))) => {
                for lease in reply.leases {
                    self.receive_lease(client, &id, lease);
                }
            }
            (
                Sent::Commit {
                    client,
                    id,
                    lease,
                    held,
                    to,
                    release,
                },
                Ok(Reply::Commit(reply)),
            ) => {
                if reply.stale.contains(&lease) {
                    self.clients[client].leases.remove(&lease);
                    return;
                }
                let done = self.acknowledged.entry(held.lane).or_default();
                done.extend(held.next..to);
                if self.order == Order::Lane {
                    let low = self.lows.entry(held.lane).or_default();
                    *low = (*low).max(to);
                }
                if self.clients[client].id == id && (release || to == held.end) {
                    self.clients[client].leases.remove(&lease);
                }
            }
            (Sent::Join { .. }, Err(message)) => panic!("join failed: {message}"),
            (Sent::Heartbeat { client, id, obey }, Ok(Reply::Heartbeat(reply))) => {
                if self.clients[client].id != id {
                    return;
                }
                for lost in reply.lost {
                    self.clients[client].leases.remove(&lost);
                }
                for lease in reply.give_back {
                    if obey && let Some(held) = self.clients[client].leases.get(&lease).copied() {
                        self.commit(client, lease, held.next, true);
                    }
                }
            }
            (
                Sent::Acquire { client, id }
                | Sent::Commit { client, id, .. }
                | Sent::Heartbeat { client, id, .. },
                Err(_),
            ) if code == Some(ErrorCode::UnknownMember) => {
                if self.clients[client].id == id {
                    self.clients[client] = Client::default();
                }
            }
            (Sent::Leave, Ok(Reply::Leave(_))) => {}
            (sent, reply) => panic!("{sent:?} answered {reply:?}"),
        }
    }

    fn receive_lease(&mut self, client: usize, id: &str, lease: v1::Lease) {
        let lane = (lease.streamlet, lease.lane);
        let start = lease.start.unwrap().ordinal;
        let end = if lease.end_ordinal == 0 {
            u64::MAX
        } else {
            lease.end_ordinal
        };
        if let Some(done) = self.acknowledged.get(&lane) {
            let again = done.range(start..end).next();
            assert_eq!(again, None, "{lane:?} {lease:?} holds a committed ordinal");
        }
        if self.clients[client].id == id {
            let held = Held {
                lane,
                next: start,
                end,
            };
            self.clients[client].leases.insert(lease.lease, held);
        }
    }

    fn described(&mut self) -> Option<v1::DescribeGroupResponse> {
        let request = Request::DescribeGroup(v1::DescribeGroupRequest {
            group: GROUP.into(),
        });
        let step = self
            .coordinator
            .handle(self.now, u64::MAX, request, &self.stream);
        assert!(step.events.is_empty());
        match step.replies.into_iter().next()?.1 {
            Ok(Reply::DescribeGroup(reply)) => Some(reply),
            _ => None,
        }
    }

    /// No two leases share an ordinal, and low ordinals cover only what was dealt with.
    fn check_disjoint(&mut self) {
        let Some(described) = self.described() else {
            return;
        };
        for lane in &described.lanes {
            let key = (lane.streamlet, lane.lane);
            let mut ranges: Vec<(u64, u64)> = lane
                .leases
                .iter()
                .map(|held| {
                    let end = if held.end_ordinal == 0 {
                        u64::MAX
                    } else {
                        held.end_ordinal
                    };
                    (held.start_ordinal, end)
                })
                .collect();
            ranges.sort_unstable();
            for pair in ranges.windows(2) {
                assert!(
                    pair[0].1 <= pair[1].0,
                    "{key:?} is leased twice: {ranges:?}"
                );
            }
            if let Some(highest) = lane.leases.iter().map(|held| held.lease).max() {
                self.highest_lease = self.highest_lease.max(highest);
            }
            let low = self.lows.get(&key).copied().unwrap_or(0);
            assert!(lane.committed >= low, "{key:?} went back from {low}");
            let nothing = BTreeSet::new();
            let attempted = self.attempted.get(&key).unwrap_or(&nothing);
            let stored = self.stored.get(&key).unwrap_or(&nothing);
            let log_start = self.stream.lanes[&key].log_start;
            if let Some(skipped) = stored
                .range(..lane.committed)
                .find(|ordinal| **ordinal >= log_start && !attempted.contains(ordinal))
            {
                panic!(
                    "{key:?} is committed to {} without {skipped}",
                    lane.committed
                );
            }
            if self.order == Order::Lane {
                self.check_barrier(&described, lane);
            }
        }
    }

    /// What is leased belongs to a lane generation whose predecessors are consumed.
    fn check_barrier(&self, described: &v1::DescribeGroupResponse, lane: &v1::LaneProgress) {
        let boundaries = &self.stream.lanes[&(lane.streamlet, lane.lane)].boundaries;
        for held in &lane.leases {
            let first_unfinished = held.start_ordinal.max(lane.committed);
            for (generation, boundary) in boundaries {
                let reads_beyond = first_unfinished >= *boundary && held.start_ordinal >= *boundary;
                // A lease from before the growth, at its boundary, reads nothing more.
                let older = held.end_ordinal == 0 && self.granted_before(held.lease, *generation);
                if !reads_beyond || older {
                    continue;
                }
                let shape = &self.stream.shape;
                let counts = &shape.generations[*generation as usize..][..2];
                // Otherwise keys may have moved to another streamlet's lane.
                let stays = counts.iter().all(|n| n.is_multiple_of(shape.streamlets));
                for other in described
                    .lanes
                    .iter()
                    .filter(|l| !stays || l.streamlet == lane.streamlet)
                {
                    let theirs = &self.stream.lanes[&(other.streamlet, other.lane)];
                    if let Some(end) = theirs.boundaries.get(generation) {
                        let at = other.committed.max(theirs.log_start);
                        let at = theirs
                            .batches
                            .iter()
                            .find(|batch| batch.1 > at)
                            .map_or(theirs.head, |batch| batch.0.max(at));
                        assert!(
                            at >= *end,
                            "lease {held:?} of generation above {generation} while {other:?} is not at {end}"
                        );
                    }
                }
            }
        }
    }

    /// Grants before the growth to the next generation are known by their id.
    fn granted_before(&self, lease: u64, generation: u32) -> bool {
        self.last_lease_of
            .get(&generation)
            .is_some_and(|last| lease <= *last)
    }

    /// How far a client may read a lease now: to its end, the head, or the boundary at which the
    /// broker stops a reader of an older lane generation.
    fn readable_to(&self, lease: u64, held: &Held) -> u64 {
        let lane = &self.stream.lanes[&held.lane];
        let boundary = lane
            .boundaries
            .iter()
            .filter(|(generation, _)| {
                held.end == u64::MAX && self.granted_before(lease, **generation)
            })
            .map(|(_, boundary)| *boundary)
            .min()
            .unwrap_or(u64::MAX);
        held.end.min(lane.head).min(boundary).max(held.next)
    }

    fn commit(&mut self, client: usize, lease: u64, to: u64, release: bool) {
        let id = self.clients[client].id.clone();
        let held = self.clients[client].leases[&lease];
        self.attempted
            .entry(held.lane)
            .or_default()
            .extend(held.next..to);
        if let Some(mine) = self.clients[client].leases.get_mut(&lease) {
            mine.next = to;
        }
        let sent = Sent::Commit {
            client,
            id: id.clone(),
            lease,
            held,
            to,
            release,
        };
        self.send(
            sent,
            Request::Commit(v1::CommitRequest {
                group: GROUP.into(),
                member: id,
                commits: vec![commit(lease, Some(to), release)],
                accepts_pending: true,
            }),
        );
    }

    fn acquire(&mut self, client: usize, leases: u32, bytes: u32, wait: bool) {
        let id = self.clients[client].id.clone();
        self.send(
            Sent::Acquire {
                client,
                id: id.clone(),
            },
            Request::Acquire(v1::AcquireRequest {
                group: GROUP.into(),
                member: id,
                max_leases: leases,
                max_wait_ms: if wait { 2_000 } else { 0 },
                max_bytes: bytes,
            }),
        );
    }

    fn heartbeat(&mut self, client: usize, obey: bool) {
        let id = self.clients[client].id.clone();
        self.send(
            Sent::Heartbeat {
                client,
                id: id.clone(),
                obey,
            },
            Request::Heartbeat(v1::HeartbeatRequest {
                group: GROUP.into(),
                member: id,
                leases: self.clients[client].leases.keys().copied().collect(),
            }),
        );
    }

    fn join(&mut self, client: usize) {
        let request = v1::JoinRequest {
            member: self.clients[client].id.clone(),
            session_ms: SESSION_MS as u32,
            ..join(GROUP, "c", self.order)
        };
        self.send(Sent::Join { client }, Request::join(request));
    }

    /// A client that has joined.
    fn member(&self, index: usize) -> Option<usize> {
        let members: Vec<usize> = (0..self.clients.len())
            .filter(|client| !self.clients[*client].id.is_empty())
            .collect();
        (!members.is_empty()).then(|| members[index % members.len()])
    }

    fn append(&mut self, lane: (u32, u32), records: u64) {
        let head = self.stream.lanes[&lane].head;
        self.stored
            .entry(lane)
            .or_default()
            .extend(head..head + records);
        self.stream.append(lane, records);
    }

    fn make_durable(&mut self, events: usize) {
        self.durable = (self.durable + events).min(self.log.len());
        if let Some((start, end)) = self.snapshot
            && self.durable >= end
        {
            self.trimmed = start;
            self.snapshot = None;
        }
        self.deliver();
    }

    fn check_replays(&self) {
        let whole = replay(&self.log, self.now);
        assert!(whole.same_durable_state(&self.coordinator));
        let tail = replay(&self.log[self.trimmed..], self.now);
        assert!(tail.same_durable_state(&self.coordinator));
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Append { lane, records } => self.append(self.lane(lane), records),
            Op::Jump { lane } => self.stream.jump(self.lane(lane), 1 << 10),
            Op::Trim { lane, records } => {
                let lane = self.lane(lane);
                let to = self.stream.lanes[&lane].log_start + records;
                self.stream.trim(lane, to);
            }
            Op::Grow(more) => {
                let shape = &self.stream.shape;
                let partitions = shape.partitions() + more;
                if partitions <= 4 * shape.streamlets {
                    let generation = self.stream.shape.generations.len() as u32 - 1;
                    self.last_lease_of.insert(generation, self.highest_lease);
                    self.stream.grow_to(partitions);
                }
            }
            Op::Join { rejoin } => {
                let client = match rejoin.and_then(|index| self.member(index)) {
                    Some(client) => client,
                    None if self.clients.len() < 12 => {
                        self.clients.push(Client::default());
                        self.clients.len() - 1
                    }
                    None => return,
                };
                self.join(client);
            }
            Op::Leave { member } => {
                if let Some(client) = self.member(member) {
                    let gone = std::mem::take(&mut self.clients[client]);
                    self.send(
                        Sent::Leave,
                        Request::Leave(v1::LeaveRequest {
                            group: GROUP.into(),
                            member: gone.id,
                        }),
                    );
                }
            }
            Op::Heartbeat { member, obey } => {
                if let Some(client) = self.member(member) {
                    self.heartbeat(client, obey);
                }
            }
            Op::Acquire {
                member,
                leases,
                bytes,
                wait,
            } => {
                if let Some(client) = self.member(member) {
                    self.acquire(client, leases, bytes, wait);
                }
            }
            Op::Commit {
                member,
                lease,
                records,
                release,
            } => {
                let Some(client) = self.member(member) else {
                    return;
                };
                let leases = &self.clients[client].leases;
                if let Some((&lease, held)) = leases.iter().nth(lease % leases.len().max(1)) {
                    let to = (held.next + records).min(self.readable_to(lease, held));
                    self.commit(client, lease, to, release);
                }
            }
            Op::Time { ms } => {
                self.now += ms;
                let step = self.coordinator.tick(self.now, &self.stream);
                self.take(step);
            }
            Op::Heads => {
                let step =
                    self.coordinator
                        .heads_moved(self.now, self.stream.shape.id, &self.stream);
                self.take(step);
            }
            Op::Durable { events } => self.make_durable(events),
            Op::Crash { survivors } => self.crash(survivors),
            Op::Snapshot { trim } => {
                let start = self.log.len();
                self.log.extend(self.coordinator.snapshot());
                if trim {
                    self.snapshot = Some((start, self.log.len()));
                }
            }
        }
    }

    /// Events that were not durable may have survived or not; their replies were never sent.
    fn crash(&mut self, survivors: usize) {
        self.log
            .truncate((self.durable + survivors).min(self.log.len()));
        self.durable = self.log.len();
        self.held_back.clear();
        self.sent.clear();
        self.snapshot = self.snapshot.filter(|(_, end)| *end <= self.log.len());
        self.coordinator = replay(&self.log[self.trimmed..], self.now);
        self.check_replays();
        self.check_disjoint();
    }

    /// Everybody leaves, one newcomer finishes what is left.
    fn finish(&mut self) {
        self.make_durable(usize::MAX / 2);
        self.now += SESSION_MS;
        let step = self.coordinator.tick(self.now, &self.stream);
        self.take(step);
        self.clients = vec![Client::default()];
        self.sent.retain(|_, sent| matches!(sent, Sent::Leave));
        self.held_back.clear();
        self.join(0);
        self.make_durable(usize::MAX / 2);
        for _ in 0..400 {
            self.heartbeat(0, true);
            self.acquire(0, 16, 1_000, false);
            self.make_durable(usize::MAX / 2);
            let leases: Vec<u64> = self.clients[0].leases.keys().copied().collect();
            for lease in leases {
                let held = self.clients[0].leases[&lease];
                let to = self.readable_to(lease, &held);
                self.commit(0, lease, to, true);
            }
            self.make_durable(usize::MAX / 2);
            let described = self.described().expect("the group exists");
            if described.lanes.iter().all(|lane| lane.lag == 0) {
                self.check_finished();
                return;
            }
        }
        panic!(
            "not everything was leased in the end: {:?}",
            self.described()
        );
    }

    fn check_finished(&self) {
        for (lane, stored) in &self.stored {
            let log_start = self.stream.lanes[lane].log_start;
            let missing = stored.range(log_start..).find(|ordinal| {
                !self
                    .attempted
                    .get(lane)
                    .is_some_and(|done| done.contains(ordinal))
            });
            assert_eq!(missing, None, "{lane:?} was not read to its end");
        }
        self.check_replays();
    }
}

fn play(order: Order, ops: Vec<Op>) {
    let mut world = World::new(order);
    for op in ops {
        world.run(op);
    }
    world.check_replays();
    world.finish();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn groups_by_lane_keep_their_promises(ops in proptest::collection::vec(op(), 1..150)) {
        play(Order::Lane, ops);
    }

    #[test]
    fn groups_without_order_keep_their_promises(ops in proptest::collection::vec(op(), 1..150)) {
        play(Order::None, ops);
    }
}
