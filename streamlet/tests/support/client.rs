//! Producers as clients are: they keep what is not acknowledged, send it again in order, and split
//! anew what was refused because lanes grew.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use kera_streamlet::{AppendError, Appended, Outcome};

use super::batches::{plain, stamped};
use super::{Node, model::Model};

/// A batch that is not acknowledged.
struct Sent {
    ids: Range<u64>,
    bytes: Vec<u8>,
    generation: u32,
    placed: Option<Appended>,
}

#[derive(Default)]
struct LaneQueue {
    next_sequence: i32,
    queue: VecDeque<Sent>,
}

/// A producer; idempotent if it has an id.
pub struct Client {
    id: Option<i64>,
    epoch: i16,
    lanes: BTreeMap<u32, LaneQueue>,
}

/// Batches in flight per lane; the broker remembers as many.
const IN_FLIGHT: usize = 16;

impl Client {
    pub fn new(id: Option<i64>) -> Self {
        Self {
            id,
            epoch: 0,
            lanes: BTreeMap::new(),
        }
    }

    /// Sends a batch unless too many are in flight.
    pub fn send(
        &mut self,
        node: &Node,
        model: &mut Model,
        lane: u32,
        count: u64,
        size: usize,
        generation: u32,
    ) {
        let lanes = node.streamlet.settings().lanes;
        if lane >= lanes / 2 {
            // What the old lane still refuses is to move here first.
            self.go_on(node, model, lane - lanes / 2);
            let fed = self.lanes.get(&(lane - lanes / 2));
            if fed.is_some_and(|old| {
                old.queue
                    .iter()
                    .any(|sent| sent.generation < generation && sent.placed.is_none())
            }) {
                return;
            }
        }
        if self.lanes.entry(lane).or_default().queue.len() < IN_FLIGHT {
            let ids = model.new_ids(count, lane, self.id);
            self.enqueue(lane, ids, size, generation);
        }
        self.go_on(node, model, lane);
    }

    fn enqueue(&mut self, lane: u32, ids: Range<u64>, size: usize, generation: u32) {
        let of_lane = self.lanes.entry(lane).or_default();
        let bytes = match self.id {
            Some(id) => stamped(id, self.epoch, of_lane.next_sequence, ids.clone(), size),
            None => plain(ids.clone(), size),
        };
        of_lane.next_sequence += (ids.end - ids.start) as i32;
        of_lane.queue.push_back(Sent {
            ids,
            bytes,
            generation,
            placed: None,
        });
    }

    /// Sends once more what was placed already, as after a lost answer.
    pub fn retry(&mut self, node: &Node, model: &mut Model, lane: u32, which: usize) {
        let Some(of_lane) = self.lanes.get_mut(&lane).filter(|_| self.id.is_some()) else {
            return;
        };
        let Some(sent) = of_lane
            .queue
            .get_mut(which)
            .filter(|sent| sent.placed.is_some())
        else {
            return;
        };
        let before = sent.placed.as_ref().map(|p| p.base_ordinal);
        let mut bytes = sent.bytes.clone();
        match node.place_as(lane, Some(sent.generation), &mut bytes) {
            Ok(again) => {
                let lost = sent
                    .placed
                    .as_ref()
                    .is_some_and(|p| p.outcome() == Outcome::Lost);
                assert!(
                    lost || again.duplicate,
                    "a retry of {:?} was stored twice",
                    sent.ids
                );
                assert!(
                    lost || Some(again.base_ordinal) == before,
                    "a retry has another place"
                );
                if !lost {
                    sent.placed = Some(again);
                }
            }
            Err(error) => model.expect_passing(&error),
        }
    }

    /// The connection is gone: nothing is known of what was not acknowledged.
    pub fn disconnect(&mut self, model: &mut Model) {
        for of_lane in self.lanes.values_mut() {
            if self.id.is_none() {
                // Sent again it might be stored twice: this producer rather gives it up.
                of_lane
                    .queue
                    .drain(..)
                    .for_each(|sent| model.give_up(&sent.ids));
            }
            of_lane.queue.iter_mut().for_each(|sent| sent.placed = None);
        }
    }

    /// Takes acknowledgements and sends again what was lost, in every lane.
    pub fn go_on_everywhere(&mut self, node: &Node, model: &mut Model) {
        let lanes: Vec<u32> = self.lanes.keys().copied().collect();
        lanes
            .into_iter()
            .for_each(|lane| self.go_on(node, model, lane));
    }

    /// Batches without an acknowledgement.
    pub fn waiting(&self) -> usize {
        self.lanes.values().map(|l| l.queue.len()).sum()
    }

    fn go_on(&mut self, node: &Node, model: &mut Model, lane: u32) {
        self.acknowledge(model, lane);
        let mut at = 0;
        loop {
            let Some(of_lane) = self.lanes.get_mut(&lane) else {
                return;
            };
            let Some(sent) = of_lane.queue.get_mut(at) else {
                return;
            };
            if sent.placed.is_some() {
                at += 1;
                continue;
            }
            let mut bytes = sent.bytes.clone();
            match node.place_as(lane, Some(sent.generation), &mut bytes) {
                Ok(placed) => {
                    model.placed(lane, sent.generation, &sent.ids, &placed);
                    sent.placed = Some(placed);
                }
                Err(AppendError::StaleLanes { current, .. }) => {
                    if node.streamlet.settings().lane_generation < current {
                        // Cut, and not yet grown: ask again later.
                        return;
                    }
                    self.split_anew(model, lane, at, current, node.streamlet.settings().lanes);
                }
                Err(AppendError::Sequence(error)) => {
                    model.expect_sequence_error(&error);
                    self.begin_anew(model);
                }
                Err(error) => {
                    model.expect_passing(&error);
                    return;
                }
            }
        }
    }

    fn acknowledge(&mut self, model: &mut Model, lane: u32) {
        let Some(of_lane) = self.lanes.get_mut(&lane) else {
            return;
        };
        while let Some(sent) = of_lane.queue.front() {
            match sent.placed.as_ref().map(Appended::outcome) {
                Some(Outcome::Durable) => {
                    if let Some(Sent {
                        ids,
                        placed: Some(placed),
                        ..
                    }) = of_lane.queue.pop_front()
                    {
                        model.acknowledged(lane, &ids, placed.base_ordinal);
                    }
                }
                Some(Outcome::Lost) => {
                    // In order: all behind it are sent again as well.
                    if self.id.is_none() {
                        of_lane
                            .queue
                            .drain(..)
                            .for_each(|sent| model.give_up(&sent.ids));
                    }
                    of_lane.queue.iter_mut().for_each(|sent| sent.placed = None);
                    return;
                }
                Some(Outcome::Pending) | None => return,
            }
        }
    }

    /// What was refused is split by the new number of lanes: half of the keys move to a new lane.
    fn split_anew(
        &mut self,
        model: &mut Model,
        lane: u32,
        from: usize,
        generation: u32,
        lanes: u32,
    ) {
        if model.lossy {
            // Stored once, lost since: in a new lane it would come after what follows it.
            self.begin_anew(model);
            return;
        }
        let of_lane = self.lanes.get_mut(&lane).expect("a lane");
        let refused: Vec<Sent> = of_lane.queue.drain(from..).collect();
        let records: u64 = refused
            .iter()
            .map(|sent| sent.ids.end - sent.ids.start)
            .sum();
        of_lane.next_sequence -= records as i32;
        for sent in refused {
            assert!(
                sent.placed.is_none(),
                "a batch behind a refused one was taken"
            );
            let moved = model.moved_lane(lane, lanes, sent.ids.start);
            model.moves(&sent.ids, moved);
            self.enqueue(moved, sent.ids, 50, generation);
        }
    }

    /// The broker has lost what this producer had sent: a new epoch, and nothing is sent again.
    fn begin_anew(&mut self, model: &mut Model) {
        self.epoch += 1;
        for of_lane in self.lanes.values_mut() {
            of_lane
                .queue
                .drain(..)
                .for_each(|sent| model.give_up(&sent.ids));
            of_lane.next_sequence = 0;
        }
    }
}
