//! Records by time and ends of epochs, against a plain look at every record.

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use kera_log_segments::group::AckPolicy;
use kera_protocol::batch::{BatchBuilder, Compression, NewRecord, ProducerStamp};
use kera_protocol::ids::{Epoch, LaneId, Ordinal};
use kera_streamlet::{CompactSpec, EpochEnd, RecordAt, SearchWork};
use proptest::prelude::*;
use support::{LANE, Machine, Node, settings};

/// A batch of the records `first..`, one for each timestamp.
fn batch(first: u64, times: &[i64], codec: Compression) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    let mut value = vec![7u8; 600];
    for (id, timestamp) in (first..).zip(times) {
        value[..8].copy_from_slice(&id.to_le_bytes());
        let record = NewRecord {
            value: Some(&value),
            timestamp: *timestamp,
            ..NewRecord::default()
        };
        builder.push(&record).expect("room");
    }
    let stamp = ProducerStamp::NONE;
    builder.finish(codec, stamp).expect("records").to_vec()
}

/// Closed groups become one where they fit. No record has a key, so all stay.
fn compact(node: &Node) {
    assert!(node.streamlet.close_all(node.now_ms));
    node.work();
    let spec = CompactSpec {
        now_ms: node.now_ms as i64,
        min_lag_ms: 0,
        max_lag_ms: 0,
        delete_retention_ms: 1000,
        quiet: Duration::ZERO,
        min_dirty_permille: 0,
        memory: 1 << 20,
        broken: None,
    };
    let pass = node
        .streamlet
        .compact_lane(LANE, &spec, None, &mut |_| true);
    pass.expect("a pass");
}

#[derive(Clone, Debug)]
enum Step {
    Append {
        times: Vec<i64>,
        codec: Compression,
        durable: bool,
    },
    /// Many batches, so that groups end.
    Fill(u8),
    /// The log start moves to so many hundredths of what is readable.
    Trim(u8),
    Work,
    /// What is closed becomes files of a new generation.
    Compact,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let codec = prop_oneof![
        Just(Compression::None),
        Just(Compression::Gzip),
        Just(Compression::Snappy),
        Just(Compression::Lz4),
        Just(Compression::Zstd),
    ];
    let append = (
        prop::collection::vec(-5..60i64, 1..8),
        codec,
        prop::bool::weighted(0.8),
    );
    let step = prop_oneof![
        8 => append.prop_map(|(times, codec, durable)| Step::Append { times, codec, durable }),
        2 => (1..60u8).prop_map(Step::Fill),
        1 => (0..=100u8).prop_map(Step::Trim),
        2 => Just(Step::Work),
        2 => Just(Step::Compact),
        2 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..24)
}

/// What was appended, and what was ever readable.
#[derive(Default)]
struct Model {
    next: u64,
    appended: BTreeMap<u64, (i64, Epoch)>,
    shown: BTreeMap<Ordinal, Epoch>,
}

impl Model {
    fn append(&mut self, node: &Node, times: &[i64], codec: Compression, durable: bool) {
        let mut bytes = batch(self.next, times, codec);
        let epoch = node.streamlet.epoch();
        for timestamp in times {
            self.appended.insert(self.next, (*timestamp, epoch));
            self.next += 1;
        }
        let placed = node.place(0, &mut bytes).expect("an append");
        if durable {
            node.pump(&placed);
        }
    }

    fn check(&mut self, node: &Node) -> Result<(), TestCaseError> {
        let mut readable = Vec::new();
        let log_start = node.log_start(LANE);
        // The batch that holds the log start is read whole.
        let shown = node.read_all(LANE).into_iter();
        for (ordinal, id) in shown.filter(|(ordinal, _)| *ordinal >= log_start) {
            let (timestamp, epoch) = self.appended[&id];
            readable.push(RecordAt {
                ordinal,
                timestamp,
                epoch,
            });
            self.shown.insert(ordinal, epoch);
        }
        let found = |t| {
            node.streamlet
                .record_at_time(LANE, t, &mut SearchWork::default())
                .expect("a lookup")
        };
        for t in -7..62 {
            let expected = readable.iter().find(|r| r.timestamp >= t);
            prop_assert_eq!(found(t), expected.copied(), "at or after {}", t);
        }
        let mut latest: Option<RecordAt> = None;
        for record in &readable {
            if latest.is_none_or(|l| l.timestamp < record.timestamp) {
                latest = Some(*record);
            }
        }
        let found = node
            .streamlet
            .latest_record(LANE, &mut SearchWork::default())
            .expect("a lookup");
        prop_assert_eq!(found, latest, "the latest");
        for record in &readable {
            let epoch = node.streamlet.epoch_at(LANE, record.ordinal);
            prop_assert_eq!(epoch, Some(record.epoch));
        }
        prop_assert_eq!(node.streamlet.epoch_at(LANE, node.head(LANE)), None);
        self.check_epochs(node)
    }

    fn check_epochs(&self, node: &Node) -> Result<(), TestCaseError> {
        let (log_start, head) = (node.log_start(LANE), node.head(LANE));
        let present = node.streamlet.epoch();
        let end_of = |epoch| node.streamlet.epoch_end(LANE, epoch);
        prop_assert_eq!(end_of(Epoch(present.0 + 1)), None);
        let end = head;
        let epoch = present;
        prop_assert_eq!(end_of(present), Some(EpochEnd { epoch, end }));
        for epoch in (0..present.0).map(Epoch) {
            let mut wrote = self.shown.iter().filter(|(_, e)| **e <= epoch);
            let last = wrote.next_back().map(|(o, e)| (*e, o + 1));
            let expected = match last.filter(|(_, end)| *end > log_start) {
                Some((epoch, end)) => EpochEnd { epoch, end },
                None => EpochEnd {
                    epoch,
                    end: log_start,
                },
            };
            prop_assert_eq!(end_of(epoch), Some(expected), "of epoch {}", epoch.0);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn lookups_agree_with_a_look_at_every_record(steps in steps(), seed in any::<u64>()) {
        let mut machine = Machine::fault(seed);
        let mut node = machine.create(settings(AckPolicy::Written));
        let mut model = Model::default();
        for step in &steps {
            match step {
                Step::Append { times, codec, durable } => {
                    model.append(&node, times, *codec, *durable);
                }
                Step::Fill(count) => {
                    for n in 0..i64::from(*count) {
                        let times = [n % 40, n % 7, n];
                        model.append(&node, &[times; 3].concat(), Compression::None, true);
                    }
                }
                Step::Trim(hundredths) => {
                    let (start, head) = (node.log_start(LANE), node.head(LANE));
                    let to = start + (head - start) * u64::from(*hundredths) / 100;
                    node.streamlet.trim(LANE, to).expect("a trim");
                }
                Step::Work => drop(node.work()),
                Step::Compact => compact(&node),
                Step::Restart => {
                    machine.kill(node, usize::MAX);
                    node = machine.recover(settings(AckPolicy::Written)).0;
                }
            }
            model.check(&node)?;
        }
    }
}

#[test]
fn a_header_that_claims_later_records_than_there_are_is_passed_over() {
    let mut machine = Machine::fault(3);
    let node = machine.create(settings(AckPolicy::Written));
    let mut lying = batch(0, &[10, 11], Compression::Zstd);
    lying[35..43].copy_from_slice(&500i64.to_be_bytes());
    let crc = kera_protocol::batch::crc32c(&lying[21..]);
    lying[17..21].copy_from_slice(&crc.to_be_bytes());
    node.append(0, &mut lying);
    node.append(0, &mut batch(2, &[40, 90, 90], Compression::None));
    let at = |ordinal, timestamp| {
        Some(RecordAt {
            ordinal,
            timestamp,
            epoch: Epoch(1),
        })
    };
    let found = |t| {
        node.streamlet
            .record_at_time(LANE, t, &mut SearchWork::default())
            .expect("a lookup")
    };
    assert_eq!(found(11), at(1, 11));
    assert_eq!(found(12), at(2, 40));
    assert_eq!(found(91), None);
    let latest = node
        .streamlet
        .latest_record(LANE, &mut SearchWork::default())
        .expect("a lookup");
    assert_eq!(latest, at(3, 90));
}

#[test]
fn a_batch_that_does_not_decode_is_answered_by_its_header() {
    let mut machine = Machine::fault(4);
    let node = machine.create(settings(AckPolicy::Written));
    let mut broken = batch(0, &[10, 60], Compression::None);
    // Said to be compressed, which it is not.
    broken[22] |= 4;
    let crc = kera_protocol::batch::crc32c(&broken[21..]);
    broken[17..21].copy_from_slice(&crc.to_be_bytes());
    node.append(0, &mut broken);
    let expected = Some(RecordAt {
        ordinal: 0,
        timestamp: 60,
        epoch: Epoch(1),
    });
    let streamlet = &node.streamlet;
    assert_eq!(
        streamlet
            .record_at_time(LANE, 50, &mut SearchWork::default())
            .expect("a lookup"),
        expected
    );
    assert_eq!(
        streamlet
            .latest_record(LANE, &mut SearchWork::default())
            .expect("a lookup"),
        expected
    );
}

#[test]
fn an_epoch_that_lost_records_ends_where_what_is_left_does() {
    let mut machine = Machine::fault(5);
    let node = machine.create(settings(AckPolicy::Memory));
    node.append(0, &mut batch(0, &[1; 20], Compression::None));
    node.append(0, &mut batch(20, &[1; 20], Compression::None));
    machine.kill(node, usize::MAX);
    let (node, recovery) = machine.recover(settings(AckPolicy::Memory));
    node.append(0, &mut batch(40, &[1; 3], Compression::None));
    let end = node.streamlet.epoch_end(LANE, Epoch(1)).expect("a lane");
    let kept = recovery.gaps.first().map_or(40, |(_, missing, _)| *missing);
    assert_eq!(end.end, kept);
    assert!(node.head(LANE) >= end.end + 3);
}

#[test]
fn epochs_end_where_they_did_after_their_groups_became_one() {
    let mut machine = Machine::fault(7);
    let mut node = machine.create(settings(AckPolicy::Written));
    for round in 0..4 {
        node.append(0, &mut batch(round * 20, &[1; 20], Compression::None));
        assert!(node.streamlet.close_all(node.now_ms));
        node.work();
        if round < 3 {
            machine.kill(node, usize::MAX);
            node = machine.recover(settings(AckPolicy::Written)).0;
        }
    }
    let ends = |node: &Node| -> Vec<_> {
        let end = |epoch| node.streamlet.epoch_end(LANE, Epoch(epoch));
        (0..=4).map(end).collect()
    };
    let of = |epoch, end| {
        Some(EpochEnd {
            epoch: Epoch(epoch),
            end,
        })
    };
    let expected = [of(0, 0), of(1, 20), of(2, 40), of(3, 60), of(4, 80)];
    assert_eq!(ends(&node), expected);
    compact(&node);
    assert_eq!(node.streamlet.groups(), 1, "they became one");
    assert_eq!(ends(&node), expected);
    machine.kill(node, usize::MAX);
    let (node, _) = machine.recover(settings(AckPolicy::Written));
    assert_eq!(ends(&node), expected);
    assert_eq!(node.streamlet.epoch_at(LANE, 19), Some(Epoch(1)));
    assert_eq!(node.streamlet.epoch_at(LANE, 20), Some(Epoch(2)));
}

#[test]
fn a_lane_that_does_not_exist_is_told() {
    let mut machine = Machine::fault(6);
    let node = machine.create(settings(AckPolicy::Written));
    let none = LaneId(9);
    assert_eq!(node.streamlet.epoch_end(none, Epoch(1)), None);
    assert_eq!(node.streamlet.epoch_at(none, 0), None);
    assert!(
        node.streamlet
            .record_at_time(none, 0, &mut SearchWork::default())
            .is_err()
    );
    assert!(
        node.streamlet
            .latest_record(none, &mut SearchWork::default())
            .is_err()
    );
    assert_eq!(
        node.streamlet
            .latest_record(LANE, &mut SearchWork::default())
            .expect("empty"),
        None
    );
}

#[test]
fn a_search_decodes_no_more_than_its_work() {
    let mut machine = Machine::fault(6);
    let node = machine.create(settings(AckPolicy::Written));
    // Ten batches of 16 MiB that take next to nothing, and whose headers claim later records than there are.
    let record = NewRecord {
        key: None,
        value: Some(&vec![0; 16 << 20]),
        headers: &[],
        timestamp: 10,
    };
    let mut builder = BatchBuilder::new();
    builder.push(&record).expect("a record");
    let built = builder.finish(Compression::Zstd, ProducerStamp::NONE);
    let mut lying = built.expect("a batch").to_vec();
    lying[35..43].copy_from_slice(&500i64.to_be_bytes());
    let crc = kera_protocol::batch::crc32c(&lying[21..]);
    lying[17..21].copy_from_slice(&crc.to_be_bytes());
    for _ in 0..10 {
        node.append(0, &mut lying.clone());
    }
    for latest in [false, true] {
        let mut work = SearchWork::default();
        let found = match latest {
            true => node.streamlet.latest_record(LANE, &mut work),
            false => node.streamlet.record_at_time(LANE, 400, &mut work),
        };
        let found = found.expect("a lookup").expect("what headers claim");
        assert!((1..10).contains(&found.ordinal), "{found:?}");
        assert_eq!(found.timestamp, 500);
        assert!(work.done() <= 64 << 20, "{work:?}");
    }
}
