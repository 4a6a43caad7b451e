//! What must be true of a streamlet, whatever happened to it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use kera_protocol::ids::{LaneId, Ordinal};
use kera_streamlet::producers::SequenceError;
use kera_streamlet::{AppendError, Appended};

use super::Node;

#[derive(Clone, Copy)]
struct Id {
    lane: u32,
    producer: Option<i64>,
}

/// The model.
#[derive(Default)]
pub struct Model {
    /// By id: records are numbered in the order they are sent.
    sent: Vec<Id>,
    given_up: HashSet<u64>,
    /// What every lane has shown at each ordinal, by acknowledgement or to a reader.
    shown: HashMap<(u32, Ordinal), u64>,
    acknowledged: BTreeMap<(u32, Ordinal), u64>,
    /// Where each lane's generations began, from the second on.
    boundaries: HashMap<u32, Vec<(u32, Ordinal)>>,
    lanes_by_generation: HashMap<u32, u32>,
    /// Records that were shown may be lost: the policy allows it for what has happened.
    pub lossy: bool,
    /// Bits were flipped.
    pub flipped: bool,
}

impl Model {
    pub fn new(lossy: bool, lanes: u32) -> Self {
        Self {
            lossy,
            lanes_by_generation: HashMap::from([(1, lanes)]),
            ..Self::default()
        }
    }

    pub fn new_ids(&mut self, count: u64, lane: u32, producer: Option<i64>) -> Range<u64> {
        let first = self.sent.len() as u64;
        self.sent.extend((0..count).map(|_| Id { lane, producer }));
        first..first + count
    }

    pub fn give_up(&mut self, ids: &Range<u64>) {
        self.given_up.extend(ids.clone());
    }

    pub fn moves(&mut self, ids: &Range<u64>, lane: u32) {
        ids.clone()
            .for_each(|id| self.sent[id as usize].lane = lane);
    }

    /// The lane a batch of `lane` belongs to after a growth to `lanes`.
    pub fn moved_lane(&self, lane: u32, lanes: u32, first: u64) -> u32 {
        // Every new lane is fed by one old one, so that the order within it is known.
        let new = lane + lanes / 2;
        if first.is_multiple_of(2) && lane < lanes / 2 && new < lanes {
            new
        } else {
            lane
        }
    }

    pub fn grown(&mut self, generation: u32, lanes: u32, boundaries: &[(LaneId, Ordinal)]) {
        self.lanes_by_generation.insert(generation, lanes);
        for (lane, ordinal) in boundaries {
            self.boundaries
                .entry(lane.0)
                .or_default()
                .push((generation, *ordinal));
        }
    }

    /// A batch has its place.
    pub fn placed(&mut self, lane: u32, generation: u32, ids: &Range<u64>, placed: &Appended) {
        assert_eq!(placed.lane.0, lane);
        assert_eq!(
            placed.next_ordinal - placed.base_ordinal,
            ids.end - ids.start
        );
        if placed.duplicate || self.lossy {
            return;
        }
        for (began, ordinal) in self.boundaries.get(&lane).into_iter().flatten() {
            let new = generation >= *began;
            assert_eq!(
                new,
                placed.base_ordinal >= *ordinal,
                "generation {generation} at {placed:?}, {began} began at {ordinal}"
            );
        }
    }

    pub fn acknowledged(&mut self, lane: u32, ids: &Range<u64>, base: Ordinal) {
        for (ordinal, id) in (base..).zip(ids.clone()) {
            self.show(lane, ordinal, id);
            self.acknowledged.insert((lane, ordinal), id);
        }
    }

    fn show(&mut self, lane: u32, ordinal: Ordinal, id: u64) {
        let before = *self.shown.entry((lane, ordinal)).or_insert(id);
        assert_eq!(
            before, id,
            "lane {lane} ordinal {ordinal} was shown with another record"
        );
    }

    /// An error that a client sits out.
    pub fn expect_passing(&self, error: &AppendError) {
        let passes = matches!(
            error,
            AppendError::Recovering
                | AppendError::DiskFull
                | AppendError::NoMemory
                | AppendError::StaleLanes { .. }
        );
        // Behind a failed batch a retry of a later one meets a gap; it is sent again in order.
        let gap = matches!(
            error,
            AppendError::Sequence(
                SequenceError::Gap { .. }
                    | SequenceError::Unknown { .. }
                    | SequenceError::Lost { .. }
            )
        );
        assert!(passes || gap, "{error}");
    }

    /// In order, a gap means that the broker forgot something.
    pub fn expect_sequence_error(&self, error: &SequenceError) {
        assert!(
            self.lossy,
            "the broker forgot a producer's batches: {error}"
        );
        // Below the durable mark a recovery does not check a batch's sums, so it may believe a
        // flipped epoch until somebody reads the batch.
        let fenced = matches!(error, SequenceError::Fenced { .. });
        assert!(self.flipped || !fenced, "{error}");
    }

    /// Reads everything and compares.
    pub fn check(&mut self, node: &Node) {
        for (lane, log_start, head) in node.streamlet.bounds() {
            let records = match node.read_from(lane, log_start, 5000) {
                Ok(records) => records,
                Err(error) => {
                    assert!(self.lossy, "{error}");
                    continue;
                }
            };
            self.check_lane(lane.0, log_start, head, &records);
        }
    }

    fn check_lane(
        &mut self,
        lane: u32,
        log_start: Ordinal,
        head: Ordinal,
        records: &[(Ordinal, u64)],
    ) {
        let mut seen = HashSet::new();
        let mut last: HashMap<Option<i64>, u64> = HashMap::new();
        for (ordinal, id) in records {
            let of = *self
                .sent
                .get(*id as usize)
                .unwrap_or_else(|| panic!("record {id} was never sent"));
            assert_eq!(of.lane, lane, "record {id} is in the wrong lane");
            assert!(
                seen.insert(*id),
                "record {id} is there twice, again at ordinal {ordinal} of lane {lane}"
            );
            if let Some(before) = last.insert(of.producer, *id) {
                assert!(
                    before < *id,
                    "record {id} of producer {:?} comes after {before}",
                    of.producer
                );
            }
            self.show(lane, *ordinal, *id);
        }
        if self.lossy {
            return;
        }
        for pair in records.windows(2) {
            assert_eq!(
                pair[0].0 + 1,
                pair[1].0,
                "ordinals have a gap in lane {lane}"
            );
        }
        if let (Some(first), Some(end)) = (records.first(), records.last()) {
            assert!(
                first.0 <= log_start && end.0 + 1 == head,
                "lane {lane} shows {first:?} to {end:?} of {log_start}..{head}"
            );
        } else {
            assert_eq!(log_start, head, "lane {lane} shows nothing");
        }
        let found: HashMap<Ordinal, u64> = records.iter().copied().collect();
        for ((_, ordinal), id) in self.acknowledged.range((lane, log_start)..(lane + 1, 0)) {
            assert_eq!(
                found.get(ordinal),
                Some(id),
                "acknowledged record {id} at ordinal {ordinal} of lane {lane} is lost"
            );
        }
    }
}
