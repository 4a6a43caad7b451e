//! Random members, commits, appends, trims, growth and restarts against what a group with the order of keys promises:
//! a slice has one holder, a key's records are handed out in order and none is before those below it are consumed,
//! nothing is passed over, everything is consumed in the end, members share evenly, and the state is what its events say.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use kera_coordinator::{Coordinator, Reply, Request};
use kera_protocol::error::ErrorCode;
use kera_protocol::partition::lane_among;
use kera_protocol::slices::{SliceSet, slice_of, slice_of_key};
use kera_protocol::v1::{self, LaneBy, Order};
use proptest::prelude::*;
use support::{Bench, FakeStream, commit, join, replay};

const GROUP: &str = "g";
const SESSION_MS: u64 = 3_000;
const KEYS: u64 = 40;

/// A record of a lane: its key and its number among those of the key.
type Stored = (u64, u64);

#[derive(Clone, Debug)]
enum Op {
    Append {
        key: u64,
        records: u64,
    },
    Jump {
        lane: usize,
    },
    Trim {
        lane: usize,
        records: u64,
    },
    Grow(u32),
    Join,
    Leave {
        member: usize,
    },
    Die {
        member: usize,
    },
    Heartbeat {
        member: usize,
    },
    Acquire {
        member: usize,
        wait: bool,
    },
    Read {
        member: usize,
        lease: usize,
        records: u64,
    },
    Commit {
        member: usize,
        lease: usize,
        release: bool,
    },
    Time {
        ms: u64,
    },
    Restart {
        snapshot: bool,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let index = 0..16_usize;
    prop_oneof![
        8 => (0..KEYS, 1..6_u64).prop_map(|(key, records)| Op::Append { key, records }),
        1 => index.clone().prop_map(|lane| Op::Jump { lane }),
        1 => (index.clone(), 1..20_u64).prop_map(|(lane, records)| Op::Trim { lane, records }),
        1 => (1..4_u32).prop_map(Op::Grow),
        3 => Just(Op::Join),
        1 => index.clone().prop_map(|member| Op::Leave { member }),
        1 => index.clone().prop_map(|member| Op::Die { member }),
        6 => index.clone().prop_map(|member| Op::Heartbeat { member }),
        8 => (index.clone(), any::<bool>()).prop_map(|(member, wait)| Op::Acquire { member, wait }),
        10 => (index.clone(), index.clone(), 1..30_u64)
            .prop_map(|(member, lease, records)| Op::Read { member, lease, records }),
        8 => (index.clone(), index.clone(), any::<bool>())
            .prop_map(|(member, lease, release)| Op::Commit { member, lease, release }),
        2 => (1..1_500_u64).prop_map(|ms| Op::Time { ms }),
        1 => any::<bool>().prop_map(|snapshot| Op::Restart { snapshot }),
    ]
}

/// A lease, as its member knows it.
#[derive(Clone, Debug)]
struct Held {
    lane: (u32, u32),
    slices: SliceSet,
    /// By slice.
    starts: BTreeMap<u32, u64>,
    next: u64,
    end: u64,
    generation: u32,
    /// Records that were handed out, by key.
    handed: BTreeSet<Stored>,
    returning: bool,
}

#[derive(Clone, Debug, Default)]
struct Member {
    id: String,
    leases: BTreeMap<u64, Held>,
    /// A request for leases that waits.
    waits: Option<u64>,
}

struct World {
    bench: Bench,
    members: Vec<Member>,
    stored: BTreeMap<(u32, u32), BTreeMap<u64, Stored>>,
    appended: BTreeMap<u64, u64>,
    /// Records that are consumed, or were trimmed.
    settled: BTreeSet<Stored>,
    trimmed_from: usize,
}

impl World {
    fn new(streamlets: u32) -> Self {
        Self {
            bench: Bench::new(FakeStream::new(streamlets, 1, LaneBy::Key)),
            members: Vec::new(),
            stored: BTreeMap::new(),
            appended: BTreeMap::new(),
            settled: BTreeSet::new(),
            trimmed_from: 0,
        }
    }

    fn key(key: u64) -> Vec<u8> {
        format!("key{key}").into_bytes()
    }

    fn lane(&self, index: usize) -> (u32, u32) {
        let lanes = &self.bench.stream.lanes;
        *lanes.keys().nth(index % lanes.len()).unwrap()
    }

    fn append(&mut self, key: u64, records: u64) {
        let shape = &self.bench.stream.shape;
        let (streamlet, lane) = lane_among(&Self::key(key), shape.streamlets, shape.partitions());
        let lane = (streamlet.0, lane.0);
        let head = self.bench.stream.lanes[&lane].head;
        let sent = self.appended.entry(key).or_default();
        let stored = self.stored.entry(lane).or_default();
        for ordinal in head..head + records {
            stored.insert(ordinal, (key, *sent));
            *sent += 1;
        }
        self.bench.stream.append(lane, records);
    }

    fn trim(&mut self, lane: (u32, u32), records: u64) {
        let to = self.bench.stream.lanes[&lane].log_start + records;
        self.bench.stream.trim(lane, to);
        let start = self.bench.stream.lanes[&lane].log_start;
        let gone = self.stored.entry(lane).or_default().range(..start);
        self.settled.extend(gone.map(|(_, record)| *record));
    }

    fn described(&mut self) -> Option<v1::DescribeGroupResponse> {
        let request = Request::DescribeGroup(v1::DescribeGroupRequest {
            group: GROUP.into(),
        });
        match self.bench.call(request) {
            Ok(Reply::DescribeGroup(reply)) => Some(reply),
            _ => None,
        }
    }

    /// Takes over leases that waited for.
    fn look(&mut self) {
        for member in &mut self.members {
            let answered = member.waits.and_then(|t| self.bench.replies.remove(&t));
            let Some(answer) = answered else {
                continue;
            };
            member.waits = None;
            match answer {
                Ok(Reply::Acquire(reply)) => {
                    for lease in reply.leases {
                        member.leases.insert(lease.lease, held(&lease));
                    }
                }
                Err(error) => assert_eq!(error.code, ErrorCode::UnknownMember),
                other => panic!("{other:?}"),
            }
        }
        self.check();
    }

    /// A slice has one holder, and is not above what is consumed.
    fn check(&mut self) {
        let Some(described) = self.described() else {
            return;
        };
        for lane in &described.lanes {
            let place = (lane.streamlet, lane.lane);
            let mut all = SliceSet::NONE;
            for lease in &lane.leases {
                let set = SliceSet::from_bits(lease.slices);
                assert!(
                    !set.is_empty() && all.intersection(set).is_empty(),
                    "{lane:?}"
                );
                all = all.union(set);
            }
            let empty = BTreeMap::new();
            let stored = self.stored.get(&place).unwrap_or(&empty);
            for (ordinal, record) in stored {
                let slice = slice_of_key(&Self::key(record.0));
                let offset = lane.slice_offsets.get(slice as usize).copied();
                let position = lane.committed + offset.unwrap_or(0);
                assert!(
                    *ordinal >= position || self.settled.contains(record),
                    "{record:?} at {ordinal} of {place:?} was passed over: {lane:?}"
                );
            }
        }
    }

    fn member(&self, index: usize) -> Option<usize> {
        let all = self.members.iter().enumerate();
        let joined: Vec<usize> = all
            .filter(|(_, m)| !m.id.is_empty())
            .map(|(n, _)| n)
            .collect();
        (!joined.is_empty()).then(|| joined[index % joined.len()])
    }

    fn lease(&self, member: usize, index: usize) -> Option<u64> {
        let leases = &self.members[member].leases;
        leases.keys().nth(index % leases.len().max(1)).copied()
    }

    /// True if the coordinator has the lease as the member's: what others do is refused, whatever they read.
    fn is_live(&mut self, member: usize, lease: u64) -> bool {
        let id = self.members[member].id.clone();
        let described = self.described();
        let lanes = described.into_iter().flat_map(|described| described.lanes);
        let mut leases = lanes.flat_map(|lane| lane.leases);
        leases.any(|held| held.lease == lease && held.member == id)
    }

    fn read(&mut self, member: usize, lease: u64, records: u64) {
        if !self.is_live(member, lease) || self.members[member].leases[&lease].returning {
            return;
        }
        let held = &self.members[member].leases[&lease];
        let lane = &self.bench.stream.lanes[&held.lane];
        let boundary = lane.boundaries.get(&held.generation).copied();
        let end = held.end.min(lane.head).min(boundary.unwrap_or(u64::MAX));
        let from = held.next.max(lane.log_start);
        let to = (from + records).min(end).max(held.next);
        let empty = BTreeMap::new();
        let stored = self.stored.get(&held.lane).unwrap_or(&empty);
        let passed: Vec<(u64, Stored)> = match from < to {
            true => stored.range(from..to).map(|(o, r)| (*o, *r)).collect(),
            false => Vec::new(),
        };
        let held = self.members[member].leases.get_mut(&lease).unwrap();
        for (ordinal, record) in passed {
            let slice = slice_of(Some(&Self::key(record.0)), ordinal);
            if !held.slices.contains(slice) || ordinal < held.starts[&slice] {
                continue;
            }
            for before in 0..record.1 {
                let before = (record.0, before);
                assert!(
                    self.settled.contains(&before) || held.handed.contains(&before),
                    "{record:?} of {held:?} came before {before:?} is consumed"
                );
            }
            held.handed.insert(record);
        }
        held.next = to;
    }

    fn commit(&mut self, member: usize, lease: u64, release: bool) {
        let held = self.members[member].leases[&lease].clone();
        let id = self.members[member].id.clone();
        let answer = self
            .bench
            .try_commit(GROUP, &id, &[commit(lease, Some(held.next), release)]);
        match answer {
            Ok(Reply::Commit(reply)) if reply.stale.is_empty() => {
                self.settled.extend(held.handed);
                if release || held.next >= held.end {
                    self.members[member].leases.remove(&lease);
                }
            }
            Ok(Reply::Commit(_)) => {
                self.members[member].leases.remove(&lease);
            }
            Err(error) if error.code == ErrorCode::UnknownMember => {
                self.members[member] = Member::default();
            }
            other => panic!("{other:?}"),
        }
    }

    fn acquire(&mut self, member: usize, wait: bool) {
        let id = self.members[member].id.clone();
        let before = self.members[member].waits;
        let ticket = self
            .bench
            .park(GROUP, &id, 100, if wait { 2_000 } else { 0 });
        // The earlier request is answered with nothing.
        if let Some(before) = before {
            self.bench.replies.remove(&before);
        }
        self.members[member].waits = Some(ticket);
    }

    fn heartbeat(&mut self, member: usize) {
        let id = self.members[member].id.clone();
        let leases: Vec<u64> = self.members[member].leases.keys().copied().collect();
        match self.bench.try_heartbeat(GROUP, &id, &leases) {
            Ok(Reply::Heartbeat(reply)) => {
                for lease in reply.lost {
                    self.members[member].leases.remove(&lease);
                }
                for lease in reply.give_back {
                    if let Some(held) = self.members[member].leases.get_mut(&lease) {
                        held.returning = true;
                    }
                }
            }
            Err(error) => {
                assert_eq!(error.code, ErrorCode::UnknownMember);
                self.members[member] = Member::default();
            }
            other => panic!("{other:?}"),
        }
    }

    fn join(&mut self) {
        let joined = self.bench.call(Request::join(v1::JoinRequest {
            session_ms: SESSION_MS as u32,
            ..join(GROUP, "c", Order::Key)
        }));
        let Ok(Reply::Join(joined)) = joined else {
            panic!("{joined:?}");
        };
        self.members.push(Member {
            id: joined.member,
            ..Member::default()
        });
    }

    fn restart(&mut self, snapshot: bool) {
        if snapshot {
            let from = self.bench.events.len();
            let taken = self.bench.coordinator.snapshot();
            self.bench.events.extend(taken);
            self.trimmed_from = from;
        }
        let again = self.replayed();
        assert!(again.same_durable_state(&self.bench.coordinator));
        self.bench.coordinator = again;
        // Members that were waiting get no answer, and ask again.
        for member in &mut self.members {
            member.waits = None;
        }
    }

    fn replayed(&self) -> Coordinator {
        replay(&self.bench.events[self.trimmed_from..], self.bench.now)
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Append { key, records } => self.append(key, records),
            Op::Jump { lane } => self.bench.stream.jump(self.lane(lane), 1 << 10),
            Op::Trim { lane, records } => self.trim(self.lane(lane), records),
            Op::Grow(more) => {
                let partitions = self.bench.stream.shape.partitions() + more;
                if partitions <= 8 {
                    self.bench.stream.grow_to(partitions);
                }
            }
            Op::Join if self.members.len() < 12 => self.join(),
            Op::Join => {}
            Op::Leave { member } => {
                if let Some(member) = self.member(member) {
                    let gone = std::mem::take(&mut self.members[member]);
                    self.bench.leave(GROUP, &gone.id);
                }
            }
            Op::Die { member } => {
                if let Some(member) = self.member(member) {
                    self.members[member] = Member::default();
                }
            }
            Op::Heartbeat { member } => {
                if let Some(member) = self.member(member) {
                    self.heartbeat(member);
                }
            }
            Op::Acquire { member, wait } => {
                if let Some(member) = self.member(member) {
                    self.acquire(member, wait);
                }
            }
            Op::Read {
                member,
                lease,
                records,
            } => {
                if let Some(member) = self.member(member)
                    && let Some(lease) = self.lease(member, lease)
                {
                    self.read(member, lease, records);
                }
            }
            Op::Commit {
                member,
                lease,
                release,
            } => {
                if let Some(member) = self.member(member)
                    && let Some(lease) = self.lease(member, lease)
                {
                    let release = release || self.members[member].leases[&lease].returning;
                    self.commit(member, lease, release);
                }
            }
            Op::Time { ms } => self.bench.tick(ms),
            Op::Restart { snapshot } => self.restart(snapshot),
        }
        self.look();
    }

    /// Three members share the rest, evenly, and consume it.
    fn finish(&mut self) {
        self.members.clear();
        self.bench.tick(SESSION_MS);
        for _ in 0..3 {
            self.join();
        }
        for _ in 0..60 {
            for member in 0..3 {
                self.acquire(member, true);
                self.look();
                self.heartbeat(member);
                for lease in self.members[member]
                    .leases
                    .keys()
                    .copied()
                    .collect::<Vec<_>>()
                {
                    self.read(member, lease, u64::MAX >> 1);
                    let returning = self.members[member].leases[&lease].returning;
                    self.commit(member, lease, returning);
                    self.look();
                }
            }
        }
        let described = self.described().expect("the group is there");
        for lane in &described.lanes {
            assert_eq!(lane.lag, 0, "{lane:?}");
            let held = lane
                .leases
                .iter()
                .map(|l| SliceSet::from_bits(l.slices).len());
            assert_eq!(held.sum::<usize>(), 64, "{lane:?}");
        }
        for (key, sent) in &self.appended {
            let missing = (0..*sent).find(|number| !self.settled.contains(&(*key, *number)));
            assert_eq!(missing, None, "of key {key}");
        }
        self.check_shares();
        assert!(self.replayed().same_durable_state(&self.bench.coordinator));
    }

    /// Nobody has much more than its share, and nobody reads a lane twice.
    fn check_shares(&self) {
        let share = 64 * self.bench.stream.lanes.len() / 3;
        for member in &self.members {
            let leases = member.leases.values();
            let slices: usize = leases.clone().map(|held| held.slices.len()).sum();
            assert!(
                slices.abs_diff(share) <= share / 8 + 1,
                "{slices} of {share}: {:?}",
                self.members
            );
            let lanes: BTreeSet<_> = leases.map(|held| held.lane).collect();
            assert_eq!(lanes.len(), member.leases.len(), "{member:?}");
        }
    }
}

fn held(lease: &v1::Lease) -> Held {
    let start = lease.start.unwrap().ordinal;
    let slices = SliceSet::from_bits(lease.slices);
    let starts = slices.iter().enumerate();
    Held {
        lane: (lease.streamlet, lease.lane),
        slices,
        starts: starts
            .map(|(n, slice)| {
                let above = lease.slice_starts.get(n).copied().unwrap_or(0);
                (slice, start + above)
            })
            .collect(),
        next: start,
        end: match lease.end_ordinal {
            0 => u64::MAX,
            end => end,
        },
        generation: lease.lane_generation.expect("the stream is by key"),
        handed: BTreeSet::new(),
        returning: false,
    }
}

fn play(streamlets: u32, ops: Vec<Op>) {
    let mut world = World::new(streamlets);
    for op in ops {
        world.run(op);
    }
    world.finish();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn keys_keep_their_order(
        streamlets in 1..3_u32,
        ops in proptest::collection::vec(op(), 1..200),
    ) {
        play(streamlets, ops);
    }
}
