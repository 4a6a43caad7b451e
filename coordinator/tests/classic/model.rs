//! Clients that join, sync, commit, stop and lose connections at random, over a coordinator that
//! crashes with a part of its events not yet durable.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use kera_coordinator::classic::{
    CommitOffsets, Fault, FetchOffsets, GroupState, Heartbeat, JoinGroup, Joined, LeaveGroup,
    OffsetToCommit, Reply, Request, SyncGroup,
};
use kera_coordinator::{
    Coordinator, Event, Limits, Reply as AnyReply, Request as AnyRequest, Step,
};
use kera_protocol::v1::LaneBy;
use proptest::prelude::*;

use crate::driver::{GROUP, replay, subscription};
use crate::support::FakeStream;

const CLIENTS: usize = 5;
/// Of these, so many have a name of their own.
const STATIC: usize = 2;
const SESSION_MS: i32 = 6_000;
const REBALANCE_MS: i32 = 9_000;
const PARTITIONS: u32 = 3;

#[derive(Clone, Debug)]
enum Op {
    /// What the client would do next if nothing went wrong.
    Act(usize),
    /// A new process takes the client's place.
    Restart(usize),
    Heartbeat(usize),
    Leave(usize),
    /// Asks for another set of topics from now on.
    Subscribe(usize, u8),
    Commit(usize, u32),
    CommitAlone(u32),
    /// The connection is lost with whatever waits on it.
    Disconnect(usize),
    Tick(u64),
    /// So many steps become durable, and are answered.
    Settle(usize),
    /// Of the events that are not durable, so many are found after the crash.
    Crash(usize),
    Snapshot,
}

fn op() -> impl Strategy<Value = Op> {
    let client = 0..CLIENTS;
    prop_oneof![
        12 => client.clone().prop_map(Op::Act),
        1 => client.clone().prop_map(Op::Restart),
        3 => client.clone().prop_map(Op::Heartbeat),
        1 => client.clone().prop_map(Op::Leave),
        1 => (client.clone(), 0..3u8).prop_map(|(c, s)| Op::Subscribe(c, s)),
        3 => (client.clone(), 0..PARTITIONS).prop_map(|(c, p)| Op::Commit(c, p)),
        1 => (0..PARTITIONS).prop_map(Op::CommitAlone),
        1 => client.prop_map(Op::Disconnect),
        3 => (0..4_000u64).prop_map(Op::Tick),
        8 => (1..8usize).prop_map(Op::Settle),
        1 => (0..4usize).prop_map(Op::Crash),
        1 => Just(Op::Snapshot),
    ]
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    Out,
    Joining,
    Joined(Joined),
    Syncing(Joined),
    Working(i32),
}

struct Client {
    index: usize,
    member: String,
    topics: u8,
    phase: Phase,
}

#[derive(Clone, Debug)]
enum Asked {
    Join(usize),
    Sync(usize, i32),
    Heartbeat(usize),
    Commit(u32, usize),
    Other,
}

struct Model {
    coordinator: Coordinator,
    stream: FakeStream,
    now: u64,
    tickets: u64,
    fresh: u64,
    clients: Vec<Client>,
    owners: BTreeMap<String, usize>,
    asked: BTreeMap<u64, Asked>,
    /// Events that are durable.
    durable: Vec<Event>,
    /// Steps that are not: their events and replies.
    steps: VecDeque<Step>,
    /// Highest generation anybody was told of.
    generation: i32,
    /// Who leads a generation, and its protocol, as anybody was told.
    leaders: BTreeMap<i32, (usize, String)>,
    /// Offsets in the order of their commits, per partition; an offset is its index plus one.
    commits: BTreeMap<u32, u64>,
    /// Commits below are acknowledged or overtaken by one that is.
    acknowledged: BTreeMap<u32, u64>,
}

impl Model {
    fn new() -> Self {
        let client = |index| Client {
            index,
            member: String::new(),
            topics: 0,
            phase: Phase::Out,
        };
        Self {
            coordinator: Coordinator::new(limits()),
            stream: FakeStream::new(PARTITIONS, 1, LaneBy::Key),
            now: 1_000,
            tickets: 0,
            fresh: 0,
            clients: (0..CLIENTS).map(client).collect(),
            owners: BTreeMap::new(),
            asked: BTreeMap::new(),
            durable: Vec::new(),
            steps: VecDeque::new(),
            generation: 0,
            leaders: BTreeMap::new(),
            commits: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
        }
    }

    fn send(&mut self, asked: Asked, request: Request) {
        self.tickets += 1;
        self.asked.insert(self.tickets, asked);
        let request = AnyRequest::Classic(request);
        let step = self
            .coordinator
            .handle(self.now, self.tickets, request, &self.stream);
        self.steps.push_back(step);
    }

    fn instance(index: usize) -> Option<String> {
        (index < STATIC).then(|| format!("static {index}"))
    }

    fn act(&mut self, index: usize) {
        match self.clients[index].phase.clone() {
            Phase::Out => self.join(index),
            Phase::Joined(joined) => self.sync(index, joined),
            Phase::Working(_) => self.heartbeat(index),
            Phase::Joining | Phase::Syncing(_) => {}
        }
    }

    fn join(&mut self, index: usize) {
        self.fresh += 1;
        let fresh = format!("{index}-{}", self.fresh);
        self.owners.insert(fresh.clone(), index);
        let client = &mut self.clients[index];
        client.phase = Phase::Joining;
        let instance = Self::instance(index);
        let topics = ["a", "b", "c"];
        let request = JoinGroup {
            group: GROUP.into(),
            member: client.member.clone(),
            fresh_member: fresh,
            // One client is too old to know its id beforehand.
            require_known_member: instance.is_none() && index + 1 < CLIENTS,
            can_skip_assignment: index == 0,
            instance,
            session_ms: SESSION_MS,
            rebalance_ms: REBALANCE_MS,
            protocol_type: "consumer".into(),
            protocols: vec![(
                "range".into(),
                subscription(&topics[..=usize::from(client.topics)], b""),
            )],
            ..JoinGroup::default()
        };
        self.send(Asked::Join(index), Request::Join(request));
    }

    fn sync(&mut self, index: usize, joined: Joined) {
        let member = self.clients[index].member.clone();
        let generation = joined.generation;
        let leads = joined.leader == member && !joined.skip_assignment;
        let members = joined.members.iter().filter(|_| leads);
        let assignments = members
            .map(|m| {
                let share = share(generation, self.owners[&m.member]);
                (m.member.clone(), share)
            })
            .collect();
        let request = SyncGroup {
            group: GROUP.into(),
            member,
            instance: Self::instance(index),
            generation,
            assignments,
            ..SyncGroup::default()
        };
        self.clients[index].phase = Phase::Syncing(joined);
        self.send(Asked::Sync(index, generation), Request::Sync(request));
    }

    fn generation_of(&self, index: usize) -> i32 {
        match &self.clients[index].phase {
            Phase::Joined(joined) | Phase::Syncing(joined) => joined.generation,
            Phase::Working(generation) => *generation,
            Phase::Out | Phase::Joining => self.generation,
        }
    }

    fn heartbeat(&mut self, index: usize) {
        let request = Heartbeat {
            group: GROUP.into(),
            member: self.clients[index].member.clone(),
            instance: Self::instance(index),
            generation: self.generation_of(index),
        };
        self.send(Asked::Heartbeat(index), Request::Heartbeat(request));
    }

    fn commit(&mut self, index: Option<usize>, partition: u32) {
        let next = self.commits.entry(partition).or_default();
        *next += 1;
        let offset = *next;
        let (member, generation, instance) = match index {
            Some(index) => (
                self.clients[index].member.clone(),
                self.generation_of(index),
                Self::instance(index),
            ),
            None => (String::new(), -1, None),
        };
        let request = CommitOffsets {
            group: GROUP.into(),
            client_host: String::new(),
            member,
            generation,
            instance,
            retention_ms: None,
            offsets: vec![OffsetToCommit {
                stream: self.stream.shape.id,
                partition,
                offset: offset as i64,
                leader_epoch: -1,
                metadata: String::new(),
            }],
            transaction: None,
        };
        let asked = Asked::Commit(partition, offset as usize);
        self.send(asked, Request::Commit(request));
    }

    /// The client's connection goes, with what waits on it.
    fn disconnect(&mut self, index: usize) {
        let waiting: Vec<u64> = self
            .asked
            .iter()
            .filter(|(_, asked)| match asked {
                Asked::Join(c) | Asked::Sync(c, _) | Asked::Heartbeat(c) => *c == index,
                Asked::Commit(..) | Asked::Other => false,
            })
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in waiting {
            self.asked.remove(&ticket);
            self.coordinator.cancel(ticket);
        }
        self.clients[index].phase = Phase::Out;
    }

    fn tick(&mut self, ms: u64) {
        self.now += ms;
        let step = self.coordinator.tick(self.now, &self.stream);
        self.steps.push_back(step);
    }

    fn settle(&mut self, steps: usize) {
        for _ in 0..steps {
            let Some(step) = self.steps.pop_front() else {
                return;
            };
            self.durable.extend(step.events);
            for (ticket, reply) in step.replies {
                // A client that is gone hears nothing.
                if let Some(asked) = self.asked.remove(&ticket) {
                    match reply {
                        Ok(AnyReply::Classic(reply)) => self.hear(asked, reply),
                        other => panic!("answered with {other:?}"),
                    }
                }
            }
        }
    }

    fn hear(&mut self, asked: Asked, reply: Reply) {
        match (asked, reply) {
            (Asked::Join(index), Reply::Joined(joined)) => self.has_joined(index, joined),
            (Asked::Sync(index, generation), Reply::Synced(synced)) => {
                assert_eq!(
                    synced.assignment,
                    share(generation, index),
                    "a member got another share than its own"
                );
                self.clients[index].phase = Phase::Working(generation);
            }
            (Asked::Commit(partition, offset), Reply::Committed(results)) => {
                assert_eq!(results, [Ok(())]);
                let latest = self.acknowledged.entry(partition).or_default();
                *latest = (*latest).max(offset as u64);
            }
            (Asked::Heartbeat(_), Reply::Alive) => {}
            (Asked::Join(i) | Asked::Sync(i, _) | Asked::Heartbeat(i), Reply::Refused(fault)) => {
                self.is_refused(i, fault);
            }
            (Asked::Commit(..), Reply::Refused(_)) | (Asked::Other, _) => {}
            (asked, reply) => panic!("{asked:?} was answered with {reply:?}"),
        }
    }

    fn has_joined(&mut self, index: usize, joined: Joined) {
        assert!(
            joined.generation >= self.generation,
            "a generation went back"
        );
        self.generation = joined.generation;
        let leader = self.owners[&joined.leader];
        let agreed = (leader, joined.protocol.clone());
        let known = self
            .leaders
            .entry(joined.generation)
            .or_insert(agreed.clone());
        assert_eq!(*known, agreed, "one leader and one protocol");
        assert_eq!(self.owners[&joined.member], index);
        let client = &mut self.clients[index];
        client.member.clone_from(&joined.member);
        client.phase = Phase::Joined(joined);
    }

    fn is_refused(&mut self, index: usize, fault: Fault) {
        let client = &mut self.clients[index];
        match fault {
            Fault::MemberIdRequired(id) => client.member = id,
            Fault::UnknownMember | Fault::FencedInstance => client.member.clear(),
            Fault::IllegalGeneration | Fault::RebalanceInProgress => {}
            other => panic!("client {} was refused: {other}", client.index),
        }
        // A heartbeat may be answered when the client has long begun something else.
        if !self
            .asked
            .values()
            .any(|a| matches!(a, Asked::Join(c) | Asked::Sync(c, _) if *c == index))
        {
            self.clients[index].phase = Phase::Out;
        }
    }

    fn crash(&mut self, survivors: usize) {
        let tail = self.steps.drain(..).flat_map(|step| step.events);
        self.durable.extend(tail.take(survivors));
        self.asked.clear();
        for client in &mut self.clients {
            if matches!(client.phase, Phase::Joining | Phase::Syncing(_)) {
                client.phase = Phase::Out;
            }
        }
        self.coordinator = replay(&self.durable, self.now);
        self.check_offsets();
    }

    /// With everything durable, replaying gives what lives.
    fn check_replay(&mut self) {
        self.settle(usize::MAX);
        let replayed = replay(&self.durable, self.now);
        assert!(replayed.same_durable_state(&self.coordinator));
    }

    fn check_offsets(&mut self) {
        let group = GROUP.into();
        let request = Request::Fetch(FetchOffsets {
            group,
            partitions: None,
            max_bytes: usize::MAX,
            require_stable: false,
            member: None,
        });
        self.tickets += 1;
        let request = AnyRequest::Classic(request);
        let step = self
            .coordinator
            .handle(self.now, self.tickets, request, &self.stream);
        let Some((_, Ok(AnyReply::Classic(Reply::Offsets(offsets))))) = step.replies.first() else {
            panic!("no offsets in {step:?}");
        };
        for (partition, acknowledged) in &self.acknowledged {
            let found = offsets.iter().find(|(_, p, _)| p == partition);
            let found = found.and_then(|(_, _, offset)| offset.as_ref());
            let found = found.expect("an acknowledged commit is gone").offset as u64;
            assert!(found >= *acknowledged, "an acknowledged commit was lost");
            assert!(found <= self.commits[partition]);
        }
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Act(index) => self.act(index),
            Op::Restart(index) => {
                self.disconnect(index);
                self.clients[index].member.clear();
            }
            Op::Heartbeat(index) => self.heartbeat(index),
            Op::Leave(index) => {
                let members = vec![(self.clients[index].member.clone(), Self::instance(index))];
                self.disconnect(index);
                self.clients[index].member.clear();
                let group = GROUP.into();
                let request = Request::Leave(LeaveGroup { group, members });
                self.send(Asked::Other, request);
            }
            Op::Subscribe(index, topics) => {
                self.clients[index].topics = topics;
                if let Phase::Working(_) = self.clients[index].phase {
                    self.clients[index].phase = Phase::Out;
                }
            }
            Op::Commit(index, partition) => self.commit(Some(index), partition),
            Op::CommitAlone(partition) => self.commit(None, partition),
            Op::Disconnect(index) => self.disconnect(index),
            Op::Tick(ms) => self.tick(ms),
            Op::Settle(steps) => self.settle(steps),
            Op::Crash(survivors) => self.crash(survivors),
            Op::Snapshot => {
                self.settle(usize::MAX);
                let events = self.coordinator.snapshot();
                self.durable = events;
            }
        }
    }

    /// Left alone, all clients soon work in one generation.
    fn comes_to_rest(&mut self) {
        for _ in 0..400 {
            for index in 0..CLIENTS {
                self.act(index);
            }
            self.settle(usize::MAX);
            self.tick(200);
            self.settle(usize::MAX);
            let generation = self.generation;
            let rests = |c: &Client| c.phase == Phase::Working(generation);
            let groups = self.coordinator.classic_groups();
            if self.clients.iter().all(rests) && groups[0].state == GroupState::Stable {
                return;
            }
        }
        let phases: Vec<_> = self.clients.iter().map(|c| &c.phase).collect();
        panic!("the group does not come to rest: {phases:?}");
    }
}

fn limits() -> Limits {
    Limits::default()
}

fn share(generation: i32, client: usize) -> Bytes {
    format!("share of client {client} in generation {generation}").into()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn groups_hold_their_promises(ops in proptest::collection::vec(op(), 1..150)) {
        let mut model = Model::new();
        for op in ops {
            model.run(op);
        }
        model.check_replay();
        model.check_offsets();
        model.comes_to_rest();
        model.check_replay();
    }
}
