//! Members of the consumer protocol that join, miss answers, are slow to give back, stop and leave at random, over a
//! coordinator that starts anew now and then.

use std::collections::{BTreeMap, BTreeSet};

use kera_coordinator::classic::consumer::ConsumerHeartbeat;
use kera_coordinator::classic::{Fault, GroupState};
use proptest::prelude::*;

use crate::consumer::Client;
use crate::driver::World;

const CLIENTS: usize = 4;

#[derive(Clone, Debug)]
enum Op {
    /// A heartbeat, the answer to which may be lost.
    Beat(usize, bool),
    /// The client does what it was told to do.
    GiveBack(usize),
    /// The process ends, and says nothing.
    Die(usize),
    Leave(usize),
    /// A static member leaves for a while.
    Pause(usize),
    /// Subscribes to something else from now on, or to nothing.
    Subscribe(usize, bool),
    Tick(u64),
    Grow,
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let client = 0..CLIENTS;
    prop_oneof![
        20 => (client.clone(), prop::bool::weighted(0.2)).prop_map(|(c, lost)| Op::Beat(c, lost)),
        12 => client.clone().prop_map(Op::GiveBack),
        1 => client.clone().prop_map(Op::Die),
        1 => client.clone().prop_map(Op::Leave),
        1 => client.clone().prop_map(Op::Pause),
        1 => (client, any::<bool>()).prop_map(|(c, s)| Op::Subscribe(c, s)),
        4 => (0..9_000_u64).prop_map(Op::Tick),
        1 => Just(Op::Grow),
        1 => Just(Op::Restart),
    ]
}

struct Player {
    client: Client,
    /// What it was told to have.
    told: BTreeSet<u32>,
    subscribes: bool,
}

struct Model {
    world: World,
    players: Vec<Player>,
    processes: usize,
    lanes: u32,
    epoch: i32,
    /// The greatest epoch that a member was told.
    epochs: BTreeMap<String, i32>,
}

impl Model {
    fn new() -> Self {
        let mut model = Self {
            world: World::new(),
            players: Vec::new(),
            processes: 0,
            lanes: 1,
            epoch: 0,
            epochs: BTreeMap::new(),
        };
        for index in 0..CLIENTS {
            let player = model.process(index);
            model.players.push(player);
        }
        model
    }

    /// A process of a client; the first client is a static member.
    fn process(&mut self, index: usize) -> Player {
        self.processes += 1;
        let mut client = Client::new(&format!("{index}-{}", self.processes));
        client.instance = (index == 0).then(|| "static".to_owned());
        Player {
            client,
            told: BTreeSet::new(),
            subscribes: true,
        }
    }

    fn request(&self, index: usize) -> ConsumerHeartbeat {
        let player = &self.players[index];
        let topic = if player.subscribes { "s" } else { "none" };
        ConsumerHeartbeat {
            topics: Some(vec![topic.into()]),
            ..self.world.whole(&player.client)
        }
    }

    fn beat(&mut self, index: usize, lost: bool) {
        let answer = self.world.beat_with(self.request(index));
        let player = &mut self.players[index];
        match answer {
            Ok(_) if lost => {}
            Ok(beat) => {
                let id = &player.client.id;
                let before = self.epochs.insert(id.clone(), beat.epoch).unwrap_or(0);
                assert!(before <= beat.epoch, "the epoch of {id} went back");
                player.client.epoch = beat.epoch;
                if let Some(assignment) = beat.assignment {
                    player.told = assignment.into_values().flatten().collect();
                    player.client.owned.extend(&player.told);
                }
            }
            // Lost, or out: what it has counts no more.
            Err(Fault::UnknownMember | Fault::FencedEpoch) => {
                self.epochs.remove(&player.client.id);
                player.client.epoch = 0;
                player.client.owned.clear();
                player.told.clear();
            }
            Err(Fault::UnreleasedInstance) => {}
            Err(fault) => panic!("{fault:?}"),
        }
    }

    fn leave(&mut self, index: usize, epoch: i32) {
        let request = ConsumerHeartbeat {
            epoch,
            ..self.request(index)
        };
        let left = self.world.beat_with(request);
        let known = [Fault::UnknownMember, Fault::FencedInstance];
        assert!(left.is_ok() || left.is_err_and(|fault| known.contains(&fault)));
        self.players[index] = self.process(index);
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Beat(index, lost) => self.beat(index, lost),
            Op::GiveBack(index) => {
                let player = &mut self.players[index];
                player.client.owned = player.told.clone();
            }
            Op::Die(index) => self.players[index] = self.process(index),
            Op::Leave(index) => self.leave(index, -1),
            Op::Pause(0) => self.leave(0, -2),
            Op::Pause(_) => {}
            Op::Subscribe(index, subscribes) => self.players[index].subscribes = subscribes,
            Op::Tick(ms) => self.world.bench.tick(ms),
            Op::Grow => {
                self.lanes += 1;
                self.world.bench.stream.grow(self.lanes);
            }
            Op::Restart => self.world.restart(),
        }
        self.check();
    }

    fn check(&mut self) {
        if self.world.bench.events.is_empty() {
            return;
        }
        let described = self.world.consumers();
        assert!(self.epoch <= described.epoch, "the group's epoch went back");
        self.epoch = described.epoch;
        let members: BTreeSet<&String> = described.members.iter().map(|m| &m.member).collect();
        let mut owners: BTreeMap<u32, &String> = BTreeMap::new();
        for player in &self.players {
            let id = &player.client.id;
            // Others were put out, and commit no more.
            if !members.contains(id) {
                continue;
            }
            for partition in &player.client.owned {
                let other = owners.insert(*partition, id);
                assert_eq!(
                    other, None,
                    "partition {partition} is owned by {id} as well"
                );
            }
        }
    }

    /// All heartbeats arrive from now on.
    fn settle(&mut self) {
        // Who died is put out, and topics are looked at.
        for _ in 0..60 {
            for index in 0..CLIENTS {
                self.beat(index, false);
                self.run(&Op::GiveBack(index));
            }
            self.world.bench.tick(1_000);
            self.check();
        }
        let described = self.world.consumers();
        assert_eq!(described.state, GroupState::Stable);
        let subscribed = self.players.iter().filter(|player| player.subscribes);
        let shares: Vec<usize> = subscribed.map(|player| player.client.owned.len()).collect();
        let partitions = self.world.bench.stream.shape.partitions() as usize;
        let expected = if shares.is_empty() { 0 } else { partitions };
        assert_eq!(shares.iter().sum::<usize>(), expected, "{described:?}");
        let (most, least) = (shares.iter().max(), shares.iter().min());
        assert!(
            most.zip(least)
                .is_none_or(|(most, least)| most - least <= 1),
            "{shares:?}"
        );
        for player in self.players.iter().filter(|player| !player.subscribes) {
            assert!(player.client.owned.is_empty());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn a_partition_has_one_owner_and_in_the_end_each_has_one(
        ops in prop::collection::vec(op(), 0..120),
    ) {
        let mut model = Model::new();
        for op in &ops {
            model.run(op);
        }
        model.settle();
    }
}
