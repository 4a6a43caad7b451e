//! Compaction of lanes with transactions: a start that walks the batches of what is left finds the transactions open that
//! are open, and no others.

use std::collections::BTreeMap;

use kera_log_segments::group::AckPolicy;
use kera_protocol::batch::{BatchHeader, batches};
use kera_protocol::ids::Ordinal;
use kera_streamlet::Located;

use super::super::support::batches::ids_of;
use super::super::support::transactions::{end, grant, keyed, keyed_as, keyed_of};
use super::super::support::{LANE, Machine, Node};
use super::{DELETE_RETENTION, Dice, close, closed_end, compact, remove_footers, small, spec};

const SEGMENTS: u32 = 2;
/// Producers of the model: enough for some to be silent for long.
const PRODUCERS: usize = 12;

fn create(machine: &mut Machine) -> Node {
    machine.create(small(AckPolicy::Synced, SEGMENTS))
}

/// The next owner has the bytes of the lane's closed groups, and no footers: those are not fetched.
fn next_owner(machine: &mut Machine, node: Node) -> Node {
    machine.now_ms = node.now_ms;
    machine.kill(node, usize::MAX);
    let settings = small(AckPolicy::Synced, SEGMENTS);
    remove_footers(
        machine,
        u64::from(SEGMENTS) * u64::from(settings.segment_size),
    );
    let (node, recovery) = machine.recover(settings);
    assert_eq!(recovery.damaged, 0, "{:?}", recovery.reports);
    node
}

/// A pass, and one more once what the first left may go.
fn compact_twice(node: &mut Node) {
    for id in [1000, 1001] {
        let now = node.now_ms as i64;
        let done = compact(node, &spec(now, 1 << 20)).expect("a pass");
        assert!(done.is_some());
        node.now_ms += DELETE_RETENTION + 1;
        node.append(0, &mut keyed(-1, "later", id));
        close(node);
    }
    let now = node.now_ms as i64;
    compact(node, &spec(now, 1 << 20)).expect("a pass");
}

/// The headers of all batches from the log start on.
fn headers(node: &Node) -> Vec<BatchHeader> {
    let start = Located {
        ordinal: node.log_start(LANE),
        at: None,
    };
    let found = node.read_at(LANE, start, 1 << 20, u64::MAX);
    let bytes = found.expect("a readable lane").bufs.concat();
    batches(&bytes)
        .map(|found| found.expect("whole").0)
        .collect()
}

#[track_caller]
fn assert_none_is_open(node: &Node) {
    assert_eq!(node.streamlet.open_transactions(LANE), Some(Vec::new()));
    assert_eq!(node.streamlet.stable(LANE), Some(node.head(LANE)));
}

/// It was open over a roll, so the next group's snapshot has it as open; its records went, and then its marker.
#[test]
fn a_transaction_whose_marker_went_stays_ended_for_the_next_owner() {
    let mut machine = Machine::fault(1);
    let mut node = create(&mut machine);
    assert!(grant(&node, 7, 1));
    node.append(0, &mut keyed(7, "a", 1));
    close(&node);
    assert!(end(&node, 7, 1, true));
    node.append(0, &mut keyed(-1, "b", 2));
    close(&node);
    node.streamlet.trim(LANE, 1).expect("a trim");
    compact_twice(&mut node);
    assert!(headers(&node).iter().all(|header| !header.is_control()));
    assert_none_is_open(&node);
    let node = next_owner(&mut machine, node);
    assert_none_is_open(&node);
}

/// A batch that stays for its producer, without records, is still one of its transaction: so the marker stays too.
#[test]
fn a_marker_stays_as_long_as_an_emptied_batch_of_its_transaction() {
    let mut machine = Machine::fault(2);
    let mut node = create(&mut machine);
    assert!(grant(&node, 7, 1));
    node.append(0, &mut keyed(7, "a", 1));
    assert!(end(&node, 7, 1, true));
    node.append(0, &mut keyed(-1, "b", 2));
    close(&node);
    let trimmed = node.streamlet.trim(LANE, 1).expect("a trim");
    assert_eq!((trimmed.log_start, trimmed.groups), (1, 0));
    compact_twice(&mut node);
    assert!(headers(&node)[0].is_control());
    assert_none_is_open(&node);
    let node = next_owner(&mut machine, node);
    assert_none_is_open(&node);
    // Its producer goes on.
    assert!(grant(&node, 7, 2));
    node.append(0, &mut keyed_as(7, 1, "a", 3));
    assert!(end(&node, 7, 2, true));
}

/// A producer of the model.
#[derive(Clone, Copy, Default)]
struct Producer {
    number: u64,
    sequence: i32,
    /// Where its open transaction began.
    open: Option<Ordinal>,
}

/// What a reader of what is committed finds, by ordinal.
fn committed(node: &Node) -> BTreeMap<Ordinal, u64> {
    let mut out = BTreeMap::new();
    let mut at = Located {
        ordinal: node.log_start(LANE),
        at: None,
    };
    loop {
        let read = node.streamlet.read_committed(kera_streamlet::LaneReadSpec {
            lane: LANE,
            from: at,
            end_ordinal: u64::MAX,
            max_bytes: 3000,
            cached_only: false,
        });
        let read = read.expect("a readable lane");
        let is_over = read.found.batches == 0;
        at = read.found.next;
        out.extend(ids_of(&read.only_committed().bufs.concat()));
        if is_over {
            return out;
        }
    }
}

/// What a lane was told.
#[derive(Default)]
struct Model {
    producers: [Producer; PRODUCERS],
    /// Id and key of each record that counts, by ordinal.
    counts: BTreeMap<Ordinal, (u64, u64)>,
    /// The same of those that are open, by producer.
    open: BTreeMap<usize, Vec<(Ordinal, u64, u64)>>,
    next_id: u64,
}

impl Model {
    fn append(&mut self, node: &Node, dice: &mut Dice) {
        self.next_id += 1;
        let (id, key) = (self.next_id, dice.below(6));
        let name = format!("key-{key}");
        // So large that not all that passes leave fits into one group.
        let mut value = id.to_le_bytes().to_vec();
        value.resize(8 + dice.below(16_000) as usize, 7);
        let mut of = dice.below(PRODUCERS as u64 + 4) as usize;
        if of < PRODUCERS && self.open.len() > 1 {
            // Few are open: below the first of them there is something to compact.
            of = self.some_open(dice);
        }
        let Some(producer) = self.producers.get_mut(of) else {
            let appended = node.append(0, &mut keyed_of(-1, 0, &name, &value));
            self.counts.insert(appended.base_ordinal, (id, key));
            return;
        };
        // A new owner asks the coordinator anew.
        grant(node, of as i64, producer.number);
        let mut batch = keyed_of(of as i64, producer.sequence, &name, &value);
        let at = node.append(0, &mut batch).base_ordinal;
        producer.sequence += 1;
        producer.open.get_or_insert(at);
        self.open.entry(of).or_default().push((at, id, key));
    }

    fn some_open(&self, dice: &mut Dice) -> usize {
        let nth = dice.below(self.open.len() as u64) as usize;
        *self.open.keys().nth(nth).expect("an open transaction")
    }

    fn end(&mut self, node: &Node, dice: &mut Dice) {
        if self.open.is_empty() {
            return;
        }
        let of = self.some_open(dice);
        let producer = &mut self.producers[of];
        producer.open = None;
        let commit = dice.below(2) == 0;
        assert!(end(node, of as i64, producer.number, commit));
        producer.number += 1;
        let records = self.open.remove(&of).unwrap_or_default();
        if commit {
            let records = records.into_iter().map(|(at, id, key)| (at, (id, key)));
            self.counts.extend(records);
        }
    }

    #[track_caller]
    fn check(&self, node: &Node, what: impl std::fmt::Display) {
        let open = node.streamlet.open_transactions(LANE);
        let open = open.expect("a lane in order").into_iter();
        let open: BTreeMap<_, _> = open.map(|(of, _, first)| (of, first)).collect();
        let expected = (0..).zip(&self.producers);
        let expected: BTreeMap<_, _> = expected
            .filter_map(|(of, producer)| Some((of, producer.open?)))
            .collect();
        assert_eq!(open, expected, "{what}: open transactions");
        let stable = expected.values().copied().min();
        let stable = stable.unwrap_or(u64::MAX).min(node.head(LANE));
        assert_eq!(node.streamlet.stable(LANE), Some(stable), "{what}");
        // Of what counts the newest of each key is there, and of what is there all counts.
        let shown = committed(node);
        for (at, id) in &shown {
            let known = self.counts.get(at).map(|(id, _)| *id);
            assert_eq!(known, Some(*id), "{what}: ordinal {at}");
        }
        let mut newest = BTreeMap::new();
        for (at, (id, key)) in self.counts.range(node.log_start(LANE)..stable) {
            newest.insert(key, (at, id));
        }
        for (at, id) in newest.values() {
            assert_eq!(shown.get(at), Some(*id), "{what}: ordinal {at}");
        }
    }
}

/// Whatever a pass leaves, its batches tell the next owner the same transactions as the owner had in memory.
#[test]
fn the_batches_that_passes_leave_tell_which_transactions_are_open() {
    for seed in 0..40 {
        let mut dice = Dice(seed * 2 + 1);
        let mut machine = Machine::fault(seed);
        let mut node = create(&mut machine);
        let mut model = Model::default();
        for producer in &mut model.producers {
            producer.number = 1;
        }
        for step in 0..100 {
            match dice.below(16) {
                0..=6 => model.append(&node, &mut dice),
                7..=10 => model.end(&node, &mut dice),
                11 => close(&node),
                12 => {
                    let to = [dice.below(node.head(LANE) + 1), closed_end(&node)];
                    let to = to[dice.below(2) as usize];
                    node.streamlet.trim(LANE, to).expect("a trim");
                }
                _ => {
                    assert!(node.work());
                    let now = node.now_ms as i64;
                    compact(&node, &spec(now, 1 << 20)).expect("a pass");
                    node.now_ms += dice.below(4) * DELETE_RETENTION;
                    model.check(&node, format_args!("seed {seed}, step {step}"));
                    if closed_end(&node) == node.head(LANE) || dice.below(4) == 0 {
                        close(&node);
                        node = next_owner(&mut machine, node);
                        let what = format_args!("seed {seed}, step {step}, the next owner");
                        model.check(&node, what);
                    }
                }
            }
        }
    }
}
