//! A model of a broker that keeps its promises, with clients that record what they do and see:
//! histories to which the checker must not object.

// Each test file uses a part of it.
#![allow(dead_code)]

mod groups;
mod producers;

use std::collections::VecDeque;

use kera_history::{Entry, Event, Lane, NamedThing, Order, Reader, Record};

use groups::{Coordinator, Group};
use producers::Producer;

/// Times are this far apart, so that entries can be planted between any two.
pub const TICK: u64 = 10;
/// Numbers of leases are this far apart, likewise.
pub const LEASE_STRIDE: u64 = 10;
pub const STREAM: u32 = 0;
pub const STREAMLETS: u32 = 2;
/// The consumer without a group.
pub const LONER: u32 = 900;

/// A small generator of random numbers (splitmix64).
#[derive(Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len() as u64) as usize)
    }
}

/// A lane at the broker.
#[derive(Debug)]
pub struct LaneLog {
    pub lane: Lane,
    /// What is appended: ordinal, record, key; ascending.
    pub records: Vec<(u64, Record, u64)>,
    /// Where its batches end; the durable head is at one, and recovery stops at one.
    ends: Vec<u64>,
    pub next_ordinal: u64,
    /// The durable head.
    pub head: u64,
    pub log_start: u64,
}

impl LaneLog {
    fn new(lane: Lane) -> Self {
        Self {
            lane,
            records: Vec::new(),
            ends: Vec::new(),
            next_ordinal: 0,
            head: 0,
            log_start: 0,
        }
    }

    /// Up to `count` durable records from `from` on.
    fn read(&self, from: u64, end: u64, count: usize) -> Vec<(u64, Record, u64)> {
        let from = from.max(self.log_start);
        self.records
            .iter()
            .filter(|(ordinal, _, _)| *ordinal >= from && *ordinal < end.min(self.head))
            .take(count)
            .copied()
            .collect()
    }
}

/// The broker, its clients, and what they recorded.
pub struct Model {
    pub rng: Rng,
    pub entries: Vec<Entry>,
    pub lanes: Vec<LaneLog>,
    lanes_per_streamlet: u32,
    /// Where the lanes stood when their number grew: new records of ordered groups come after.
    boundaries: Vec<(usize, u64)>,
    producers: Vec<Producer>,
    groups: Vec<Group>,
    coordinator: Coordinator,
    loner: Vec<u64>,
    /// What was sent to a client and not yet received, per client in order.
    inboxes: Vec<VecDeque<Event>>,
    running: bool,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut model = Self {
            rng: Rng(seed),
            entries: Vec::new(),
            lanes: Vec::new(),
            lanes_per_streamlet: 2,
            boundaries: Vec::new(),
            producers: (0..3).map(Producer::new).collect(),
            groups: vec![Group::new(0, Order::Lane, 2), Group::new(1, Order::None, 3)],
            coordinator: Coordinator::default(),
            loner: Vec::new(),
            inboxes: vec![VecDeque::new(); 16],
            running: true,
        };
        for lane in 0..model.lanes_per_streamlet {
            model.add_lanes(lane);
        }
        model.log(Event::Named {
            thing: NamedThing::Stream,
            id: STREAM,
            name: "orders".to_owned(),
        });
        for group in 0..model.groups.len() {
            let order = model.groups[group].order;
            let group = group as u32;
            model.log(Event::GroupDefined {
                group,
                stream: STREAM,
                order,
            });
        }
        model.log(Event::BrokerStarted);
        model
    }

    fn add_lanes(&mut self, lane: u32) {
        for streamlet in 0..STREAMLETS {
            self.lanes.push(LaneLog::new(Lane {
                stream: STREAM,
                streamlet,
                lane,
            }));
            self.loner.push(0);
        }
    }

    fn now(&self) -> u64 {
        self.entries.len() as u64 * TICK
    }

    fn log(&mut self, event: Event) {
        let at = self.now();
        self.entries.push(Entry { at, event });
    }

    fn lane_of_key(&self, key: u64) -> usize {
        let streamlets = u64::from(STREAMLETS);
        let lane = key / streamlets % u64::from(self.lanes_per_streamlet);
        (lane * streamlets + key % streamlets) as usize
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..20 => self.send(),
            20..35 => self.append(),
            35..45 => self.make_durable(),
            45..50 => self.answer_producer(),
            50..70 => self.receive(),
            70..92 => self.member_step(),
            92..95 => self.read_alone(),
            95 => self.observe_head(),
            96 => self.give_up(),
            97 => self.expire_lease(),
            98 if self.rng.chance(40) => self.kill(),
            98 => self.trim(),
            _ if self.rng.chance(20) => self.grow(),
            _ => {}
        }
    }

    /// A client takes in what the broker answered, whenever it gets to it.
    fn receive(&mut self) {
        let client = self.rng.below(self.inboxes.len() as u64) as usize;
        for _ in 0..=self.rng.below(8) {
            if let Some(event) = self.inboxes[client].pop_front() {
                self.received(client, event);
            }
        }
    }

    fn make_durable(&mut self) {
        if !self.running {
            return;
        }
        let index = self.rng.below(self.lanes.len() as u64) as usize;
        let lane = &mut self.lanes[index];
        let undurable: Vec<u64> = lane
            .ends
            .iter()
            .copied()
            .filter(|end| *end > lane.head)
            .collect();
        if let Some(&head) = self.rng.pick(&undurable) {
            lane.head = head;
        }
    }

    fn read_alone(&mut self) {
        if !self.running {
            return;
        }
        let index = self.rng.below(self.lanes.len() as u64) as usize;
        let count = self.rng.below(6) as usize;
        self.read_lane_alone(index, count);
    }

    fn read_lane_alone(&mut self, index: usize, count: usize) {
        let lane = &self.lanes[index];
        let (head, lane_id) = (lane.head, lane.lane);
        let found = lane.read(self.loner[index], u64::MAX, count);
        self.log(Event::Polled { consumer: LONER });
        for (ordinal, record, _) in found {
            self.loner[index] = ordinal + 1;
            self.log(Event::Read {
                consumer: LONER,
                lease: None,
                lane: lane_id,
                ordinal,
                record: Some(record),
                key: None,
                head: Some(head),
            });
        }
    }

    fn observe_head(&mut self) {
        let index = self.rng.below(self.lanes.len() as u64) as usize;
        let (lane, head) = (self.lanes[index].lane, self.lanes[index].head);
        let asked = self.now();
        self.log(Event::HeadObserved { lane, head, asked });
    }

    /// Everything that is not durable may go, answers on their way do, leases may.
    fn kill(&mut self) {
        self.log(Event::BrokerKilled);
        self.running = false;
        for inbox in &mut self.inboxes {
            inbox.clear();
        }
        for index in 0..self.lanes.len() {
            let boundary = self.boundaries.get(index).map_or(0, |b| b.1);
            let lane = &mut self.lanes[index];
            // What an older generation of lanes holds is kept: the model's producers do not wait
            // for it before they send to the new lanes.
            let least = lane.head.max(boundary.min(lane.next_ordinal));
            let ends = lane.ends.iter().copied();
            let ends: Vec<u64> = ends.filter(|end| *end >= least).collect();
            let end = self.rng.pick(&ends).copied().unwrap_or(least);
            lane.ends.retain(|other| *other <= end);
            let kept = lane.records.partition_point(|r| r.0 < end);
            let lost = lane.records.split_off(kept);
            let end = lost.first().map_or(lane.next_ordinal, |r| r.0);
            lane.next_ordinal = end;
            // Recovery closes what it keeps.
            lane.head = end;
            let (lane_id, jumps) = (lane.lane, self.rng.chance(20));
            if jumps {
                let to = end + (1 << 32);
                self.lanes[index].next_ordinal = to;
                self.log(Event::OrdinalGap {
                    lane: lane_id,
                    from: end,
                    to,
                });
            }
            for producer in &mut self.producers {
                producer.forget_lost(index, &lost);
            }
        }
        if self.rng.chance(50) {
            self.coordinator.leases.clear();
        }
        for group in &mut self.groups {
            group.lose_reads();
        }
        if !self.boundaries.is_empty() {
            self.split_anew();
        }
        self.log(Event::BrokerStarted);
        self.running = true;
    }

    fn trim(&mut self) {
        let index = self.rng.below(self.lanes.len() as u64) as usize;
        let lane = &mut self.lanes[index];
        if self.rng.chance(70) || lane.head == lane.log_start {
            return;
        }
        let start = lane.log_start + self.rng.below((lane.head - lane.log_start).min(6));
        lane.log_start = start;
        let lane = lane.lane;
        self.log(Event::LogTrimmed { lane, start });
    }

    /// More lanes: what was not appended is split anew, and ordered groups must finish what was.
    fn grow(&mut self) {
        if !self.boundaries.is_empty() {
            return;
        }
        self.boundaries = self
            .lanes
            .iter()
            .enumerate()
            .map(|(index, lane)| (index, lane.next_ordinal))
            .collect();
        for lane in self.lanes_per_streamlet..self.lanes_per_streamlet * 2 {
            self.add_lanes(lane);
        }
        self.lanes_per_streamlet *= 2;
        self.split_anew();
        self.log(Event::LanesGrown {
            stream: STREAM,
            lanes: self.lanes_per_streamlet,
        });
    }

    /// Lets everyone finish.
    fn drain(&mut self) {
        self.finish_sending();
        self.finish_groups();
        for index in 0..self.lanes.len() {
            self.read_lane_alone(index, usize::MAX);
            let (lane, head) = (self.lanes[index].lane, self.lanes[index].head);
            let asked = self.now();
            self.log(Event::HeadObserved { lane, head, asked });
            for reader in [Reader::Group(0), Reader::Group(1), Reader::Consumer(LONER)] {
                self.log(Event::Drained {
                    reader,
                    lane,
                    ordinal: head,
                });
            }
        }
    }
}

/// A clean history of about `steps` steps.
pub fn clean(seed: u64, steps: usize) -> Model {
    let mut model = Model::new(seed);
    for _ in 0..steps {
        model.step();
    }
    model.drain();
    model
}
