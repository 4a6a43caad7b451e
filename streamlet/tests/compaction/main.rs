//! Compaction against a naive model: over restarts, crashes at every step, and stores that do not say what they did.

#[cfg(not(kera_shuttle))]
#[path = "../support/mod.rs"]
mod support;
#[cfg(not(kera_shuttle))]
mod compaction {
    mod replicas;
    mod transactions;

    use std::collections::{BTreeMap, HashMap};
    use std::time::Duration;

    use kera_log_segments::group::AckPolicy;
    use kera_log_segments::io::fault::{CrashPlan, Fault};
    use kera_log_segments::layout::FOOTER_OFFSET;
    use kera_protocol::batch::{
        BatchBuilder, BatchHeader, Compression, NewRecord, ProducerStamp, Records, batches,
        next_sequence, verify, write_stamp,
    };
    use kera_protocol::ids::Ordinal;
    use kera_streamlet::{
        Appended, CompactError, CompactSpec, Compacted, LaneReadError, Located, Outcome, Settings,
    };

    use super::support::{LANE, Machine, Node, settings};

    /// Random numbers by seed.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, end: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) % end
        }
    }

    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Written {
        key: Option<Vec<u8>>,
        value: Option<u64>,
        timestamp: i64,
    }

    /// What is readable, by ordinal.
    type Log = BTreeMap<Ordinal, Written>;

    /// What a lane must hold.
    #[derive(Clone, Default)]
    struct Model {
        written: Log,
        /// From when on a tombstone may go, by its ordinal.
        horizons: HashMap<Ordinal, i64>,
        next_value: u64,
        /// Next sequence, last batch and where that is, by producer.
        producers: BTreeMap<i64, (i32, Vec<u8>, Ordinal)>,
    }

    const DELETE_RETENTION: u64 = 1000;

    impl Model {
        /// A pass over everything below `end` at `now`: only the newest of each key stays.
        fn compact(&mut self, end: Ordinal, now: i64) {
            let mut newest = HashMap::new();
            for (ordinal, record) in self.written.range(..end) {
                newest.insert(record.key.clone(), *ordinal);
            }
            let horizons = &mut self.horizons;
            self.written.retain(|ordinal, record| {
                if *ordinal >= end || record.key.is_none() {
                    return true;
                }
                if newest[&record.key] != *ordinal {
                    return false;
                }
                let begun = now + DELETE_RETENTION as i64;
                record.value.is_some() || *horizons.entry(*ordinal).or_insert(begun) > now
            });
        }

        /// The last value of each key; tombstones are as good as nothing.
        fn last(log: &Log) -> BTreeMap<Vec<u8>, u64> {
            let mut last = BTreeMap::new();
            for record in log.values() {
                let Some(key) = record.key.clone() else {
                    continue;
                };
                match record.value {
                    Some(value) => drop(last.insert(key, value)),
                    None => drop(last.remove(&key)),
                }
            }
            last
        }
    }

    /// Both must be the same; only the first difference is shown.
    #[track_caller]
    fn assert_same(found: &Log, expected: &Log, what: impl std::fmt::Display) {
        let all: std::collections::BTreeSet<_> = found.keys().chain(expected.keys()).collect();
        for ordinal in all {
            let (found, expected) = (found.get(ordinal), expected.get(ordinal));
            assert_eq!(found, expected, "{what}: at ordinal {ordinal}");
        }
    }

    fn spec(now: i64, memory: usize) -> CompactSpec {
        CompactSpec {
            now_ms: now,
            min_lag_ms: 0,
            max_lag_ms: 0,
            delete_retention_ms: DELETE_RETENTION,
            quiet: Duration::ZERO,
            min_dirty_permille: 500,
            memory,
            broken: None,
        }
    }

    /// A batch of a few records over a few keys.
    fn batch(dice: &mut Dice, model: &mut Model, now: i64) -> (Vec<u8>, Vec<Written>) {
        let codecs = [
            Compression::None,
            Compression::None,
            Compression::Lz4,
            Compression::Snappy,
            Compression::Gzip,
            Compression::Zstd,
        ];
        let mut builder = BatchBuilder::new();
        let mut records = Vec::new();
        let keys = [3, 40, 4000][dice.below(3) as usize];
        let most = [1, 3, 200][dice.below(3) as usize];
        for _ in 0..=dice.below(most) {
            model.next_value += 1;
            let key =
                (dice.below(50) > 0).then(|| format!("key-{}", dice.below(keys)).into_bytes());
            let value = (dice.below(5) > 0 || key.is_none()).then_some(model.next_value);
            let bytes = value.map(|value| {
                let mut bytes = value.to_le_bytes().to_vec();
                bytes.resize(8 + dice.below(300) as usize, 7);
                bytes
            });
            let record = Written {
                key,
                value,
                timestamp: now - dice.below(500) as i64,
            };
            let new = NewRecord {
                key: record.key.as_deref(),
                value: bytes.as_deref(),
                timestamp: record.timestamp,
                ..NewRecord::default()
            };
            builder.push(&new).expect("room");
            records.push(record);
        }
        let codec = codecs[dice.below(6) as usize];
        let bytes = builder.finish(codec, ProducerStamp::NONE).expect("records");
        (bytes.to_vec(), records)
    }

    fn append(node: &Node, dice: &mut Dice, model: &mut Model) {
        let producer = dice.below(6) as i64;
        let appended = place(node, dice, model, producer);
        assert_eq!(node.pump(&appended), Outcome::Durable);
    }

    /// Appends a batch of a producer, of none above 3, and makes it not durable.
    fn place(node: &Node, dice: &mut Dice, model: &mut Model, producer: i64) -> Appended {
        let (mut bytes, records) = batch(dice, model, node.now_ms as i64);
        let stamped = producer < 4;
        if stamped {
            let next = model.producers.get(&producer).map_or(0, |p| p.0);
            let stamp = ProducerStamp {
                producer_id: producer,
                producer_epoch: 0,
                base_sequence: next,
            };
            write_stamp(&mut bytes, stamp);
        }
        let sent = bytes.clone();
        let appended = node.place(0, &mut bytes).expect("an append");
        assert!(!appended.duplicate);
        if stamped {
            let header = BatchHeader::peek(&sent).expect("a header");
            let next = next_sequence(header.base_sequence, header.record_count);
            model
                .producers
                .insert(producer, (next, sent, appended.base_ordinal));
        }
        model.written.extend((appended.base_ordinal..).zip(records));
        appended
    }

    fn records_of(bytes: &[u8]) -> Log {
        let mut out = Log::new();
        let mut scratch = Vec::new();
        for found in batches(bytes) {
            let (header, batch) = found.expect("a whole batch");
            verify(batch).expect("an undamaged batch");
            for record in Records::open(batch, 1 << 24, &mut scratch).expect("records") {
                let record = record.expect("a record");
                let value = record.value.map(|v| v.first_chunk::<8>().expect("a value"));
                let written = Written {
                    key: record.key.map(<[u8]>::to_vec),
                    value: value.map(|value| u64::from_le_bytes(*value)),
                    timestamp: record.timestamp,
                };
                out.insert(
                    header.base_ordinal + u64::from(record.ordinal_delta),
                    written,
                );
            }
        }
        out
    }

    /// Everything from a place on, and the places at which reads ended.
    fn read_on(node: &Node, mut at: Located) -> Result<(Log, Vec<Located>), LaneReadError> {
        let (mut out, mut places) = (Log::new(), Vec::new());
        loop {
            let found = node.read_at(LANE, at, 3000, u64::MAX)?;
            let first = at.ordinal;
            let records = records_of(&found.bufs.concat());
            out.extend(records.into_iter().filter(|(ordinal, _)| *ordinal >= first));
            if found.batches == 0 && found.next.ordinal >= found.head {
                return Ok((out, places));
            }
            assert!(
                found.next.ordinal > at.ordinal,
                "a reader stands still at {at:?}"
            );
            at = found.next;
            places.push(at);
        }
    }

    fn read_all(node: &Node) -> (Log, Vec<Located>) {
        let start = Located {
            ordinal: node.log_start(LANE),
            at: None,
        };
        read_on(node, start).expect("a readable lane")
    }

    fn compact(node: &Node, spec: &CompactSpec) -> Result<Option<Compacted>, CompactError> {
        node.streamlet.compact_lane(LANE, spec, None, &mut |_| true)
    }

    /// Ends the lane's group: everything is in closed groups then.
    fn close(node: &Node) {
        assert!(node.streamlet.close_all(node.now_ms));
        assert!(node.work());
    }

    /// Where the closed groups end.
    fn closed_end(node: &Node) -> Ordinal {
        let lane = node.streamlet.describe().remove(0);
        let closed = lane.groups.iter().take_while(|group| group.closed);
        closed.last().map_or(0, |group| group.end_ordinal)
    }

    /// The last batch of each producer is known, wherever its records went.
    fn check_producers(node: &Node, model: &Model) {
        for (producer, (_, sent, base)) in &model.producers {
            let mut again = sent.clone();
            let appended = node.append(0, &mut again);
            assert!(
                appended.duplicate,
                "producer {producer} is not known any more"
            );
            assert_eq!(appended.base_ordinal, *base);
        }
    }

    fn small(ack: AckPolicy, segments: u32) -> Settings {
        Settings {
            segments_per_group: segments,
            ..settings(ack)
        }
    }

    /// Removes what a footer tells of a group, so that starts walk its batches.
    fn remove_footers(machine: &Machine, group_bytes: u64) {
        let fault = machine.fault.as_ref().expect("a fault engine");
        for path in fault.paths() {
            let there = fault.contents(&path).map_or(0, |bytes| bytes.len() as u64);
            if there > group_bytes + FOOTER_OFFSET {
                fault
                    .plant(&path, group_bytes + FOOTER_OFFSET, &[0; 64])
                    .expect("a file");
            }
        }
    }

    fn play(seed: u64) {
        let mut dice = Dice(seed * 2 + 1);
        let mut machine = Machine::fault(seed);
        let ack = [AckPolicy::Written, AckPolicy::Synced][(seed % 2) as usize];
        let segments = 1 + (seed % 3) as u32;
        let settings = small(ack, segments);
        let mut node = machine.create(settings.clone());
        let mut model = Model::default();
        let mut cursors: Vec<Located> = Vec::new();
        for _ in 0..dice.below(90) {
            match dice.below(12) {
                0..=5 => {
                    for _ in 0..=dice.below(8) {
                        append(&node, &mut dice, &mut model);
                    }
                }
                6 => close(&node),
                7 | 8 => {
                    let now = node.now_ms as i64;
                    let memory = [1 << 20, 2000, 100][dice.below(3) as usize];
                    assert!(node.work());
                    let end = closed_end(&node);
                    let done = compact(&node, &spec(now, memory)).expect("a pass");
                    if let Some(done) = done {
                        assert_eq!(done.unreadable, 0, "seed {seed}");
                        model.compact(end, now);
                        let fresh = node.streamlet.compaction_backlog(LANE, &spec(now, 0));
                        assert_eq!((fresh.dirty_bytes, fresh.is_due), (0, false));
                    }
                }
                9 => {
                    node.now_ms += dice.below(1500);
                    machine.now_ms = node.now_ms;
                }
                10 => {
                    close(&node);
                    if ack == AckPolicy::Synced && dice.below(2) == 0 {
                        machine.power_loss(node, 0, &CrashPlan::power_loss(dice.below(1000)));
                    } else {
                        machine.kill(node, 0);
                    }
                    if dice.below(2) == 0 {
                        let bytes = u64::from(segments) * u64::from(settings.segment_size);
                        remove_footers(&machine, bytes);
                    }
                    let (again, recovery) = machine.recover(settings.clone());
                    assert_eq!(recovery.damaged, 0, "{:?}", recovery.reports);
                    node = again;
                    check_producers(&node, &model);
                }
                _ => {
                    if !cursors.is_empty() {
                        let at = cursors.swap_remove(dice.below(cursors.len() as u64) as usize);
                        let (log, _) = read_on(&node, at).expect("a readable lane");
                        let expected = model.written.range(at.ordinal..);
                        let expected: Log = expected.map(|(o, r)| (*o, r.clone())).collect();
                        assert_same(&log, &expected, format_args!("seed {seed} from {at:?}"));
                    }
                }
            }
            let (log, places) = read_all(&node);
            assert_same(&log, &model.written, format_args!("seed {seed}"));
            cursors.extend(places);
            cursors.truncate(200);
        }
        check_producers(&node, &model);
    }

    #[test]
    fn of_each_key_the_newest_stays_whatever_happens_between() {
        for seed in 0..24 {
            play(seed);
        }
    }

    /// A lane of several closed groups, and its model.
    fn some_groups(seed: u64) -> (Machine, Node, Model) {
        let mut dice = Dice(seed * 2 + 1);
        let mut machine = Machine::fault(seed);
        let node = machine.create(small(AckPolicy::Synced, 2));
        let mut model = Model::default();
        for _ in 0..3 {
            for _ in 0..5 {
                append(&node, &mut dice, &mut model);
            }
            close(&node);
        }
        (machine, node, model)
    }

    #[test]
    fn a_crash_at_any_step_loses_nothing_and_leaves_nothing_behind() {
        let mut stopped = 0;
        for step in (0..60).chain((60..).step_by(11)) {
            let (mut machine, node, mut model) = some_groups(3);
            let now = node.now_ms as i64;
            let fault = machine.fault.clone().expect("a fault engine");
            fault.inject(Fault::StopAfter { ops: step });
            let done = compact(&node, &spec(now, 100));
            let is_over = !fault.stopped();
            stopped += u64::from(!is_over);
            match step % 2 {
                0 => machine.kill(node, 0),
                _ => drop(machine.power_loss(node, 0, &CrashPlan::power_loss(step))),
            }
            let (node, recovery) = machine.recover(small(AckPolicy::Synced, 2));
            assert_eq!(recovery.damaged, 0, "step {step}: {:?}", recovery.reports);
            let (log, _) = read_all(&node);
            assert!(
                Model::last(&log) == Model::last(&model.written),
                "step {step}"
            );
            for (ordinal, record) in &log {
                assert_eq!(model.written.get(ordinal), Some(record), "step {step}");
            }
            check_producers(&node, &model);
            // Only the recorded groups' files are left, and the next pass ends the work.
            let fault = machine.fault.clone().expect("a fault engine");
            let groups = node.streamlet.groups();
            let files = || fault.paths().len();
            assert_eq!(files(), groups, "step {step}: {:?}", fault.paths());
            let again = compact(&node, &spec(now, 100)).expect("a pass");
            model.compact(closed_end(&node), now);
            assert_eq!(again.is_some(), done.is_err(), "step {step}: {done:?}");
            assert_same(
                &read_all(&node).0,
                &model.written,
                format_args!("step {step}"),
            );
            assert_eq!(files(), node.streamlet.groups(), "{:?}", fault.paths());
            if is_over {
                break;
            }
        }
        assert!(stopped > 40, "only {stopped} steps were tried");
    }

    #[test]
    fn a_record_that_is_refused_leaves_the_groups_and_one_that_is_made_unsaid_counts() {
        // Refused: as it was, and the next pass does it.
        let (machine, node, mut model) = some_groups(5);
        let now = node.now_ms as i64;
        machine.store.fail(1);
        assert!(matches!(
            compact(&node, &spec(now, 1 << 20)),
            Err(CompactError::Record(_))
        ));
        assert_same(&read_all(&node).0, &model.written, "the lane");
        let fault = machine.fault.clone().expect("a fault engine");
        assert_eq!(fault.paths().len(), node.streamlet.groups());
        assert!(
            compact(&node, &spec(now, 1 << 20))
                .expect("a pass")
                .is_some()
        );
        model.compact(closed_end(&node), now);
        assert_same(&read_all(&node).0, &model.written, "the lane");

        // Made, and not said: it is read back.
        let (machine, node, mut model) = some_groups(6);
        machine.store.fail_unsaid(1);
        assert!(
            compact(&node, &spec(now, 1 << 20))
                .expect("a pass")
                .is_some()
        );
        model.compact(closed_end(&node), now);
        assert_same(&read_all(&node).0, &model.written, "the lane");

        // Nobody says what became of it: both are kept, and the next pass tells, or the next start.
        for (is_made, restarts) in [(true, true), (false, true), (true, false), (false, false)] {
            let (mut machine, node, mut model) = some_groups(7);
            if is_made {
                machine.store.fail_unsaid(1);
            } else {
                machine.store.fail(1);
            }
            machine.store.fail_reads(usize::MAX);
            // The first read is of the record that is to be replaced.
            machine.store.fail_reads_after(1);
            let mut go_on = |bytes| bytes > 0;
            let pass = node
                .streamlet
                .compact_lane(LANE, &spec(now, 1 << 20), None, &mut go_on);
            assert!(matches!(pass, Err(CompactError::Record(_))), "{pass:?}");
            assert_same(&read_all(&node).0, &model.written, "the lane");
            let again = compact(&node, &spec(now, 1 << 20));
            assert!(matches!(again, Err(CompactError::Record(_))), "{again:?}");
            machine.store.fail_reads(0);
            if !restarts {
                let again = compact(&node, &spec(now, 1 << 20)).expect("a pass");
                assert_eq!(again.is_none(), is_made, "{again:?}");
                model.compact(closed_end(&node), now);
                assert_same(&read_all(&node).0, &model.written, "the lane");
                let fault = machine.fault.clone().expect("a fault engine");
                assert_eq!(fault.paths().len(), node.streamlet.groups());
                check_producers(&node, &model);
                continue;
            }
            let before = model.written.clone();
            machine.kill(node, 0);
            let (node, recovery) = machine.recover(small(AckPolicy::Synced, 2));
            assert_eq!(recovery.damaged, 0, "{:?}", recovery.reports);
            assert!(Model::last(&read_all(&node).0) == Model::last(&before));
            let _ = compact(&node, &spec(now, 1 << 20)).expect("a pass");
            model.compact(closed_end(&node), now);
            assert_same(&read_all(&node).0, &model.written, "the lane");
        }
    }

    #[test]
    fn a_trim_of_groups_that_a_pass_left_in_doubt_ends_the_doubt() {
        for is_made in [true, false] {
            let (machine, node, mut model) = some_groups(7);
            let now = node.now_ms as i64;
            let end = closed_end(&node);
            match is_made {
                true => machine.store.fail_unsaid(1),
                false => machine.store.fail(1),
            }
            machine.store.fail_reads(usize::MAX);
            // The first read is of the record that is to be replaced.
            machine.store.fail_reads_after(1);
            let pass = compact(&node, &spec(now, 1 << 20));
            assert!(matches!(pass, Err(CompactError::Record(_))), "{pass:?}");
            machine.store.fail_reads(0);
            append(&node, &mut Dice(9), &mut model);
            close(&node);
            node.streamlet.trim(LANE, end).expect("a trim");
            model.written = model.written.split_off(&end);
            compact(&node, &spec(now, 1 << 20))
                .expect("the trimmed groups keep no pass from its work");
            model.compact(closed_end(&node), now);
            assert_same(&read_all(&node).0, &model.written, "the lane");
            let fault = machine.fault.clone().expect("a fault engine");
            let files = fault.paths();
            assert_eq!(files.len(), node.streamlet.groups(), "{files:?}");
        }
    }

    #[test]
    fn a_trim_that_comes_first_is_not_undone() {
        let (_machine, node, mut model) = some_groups(8);
        let now = node.now_ms as i64;
        let first_end = node.streamlet.describe()[0].groups[0].end_ordinal;
        let mut trimmed = false;
        let pass = node
            .streamlet
            .compact_lane(LANE, &spec(now, 1 << 20), None, &mut |_| {
                if !std::mem::replace(&mut trimmed, true) {
                    node.streamlet.trim(LANE, first_end).expect("a trim");
                }
                true
            });
        assert!(matches!(pass, Err(CompactError::Changed)), "{pass:?}");
        model.written = model.written.split_off(&first_end);
        assert_same(&read_all(&node).0, &model.written, "the lane");
        compact(&node, &spec(now, 1 << 20)).expect("a pass");
        model.compact(closed_end(&node), now);
        assert_same(&read_all(&node).0, &model.written, "the lane");
    }

    #[test]
    fn what_cannot_be_read_stays_byte_for_byte_and_tombstones_above_it_stay_too() {
        let mut machine = Machine::fault(1);
        let mut node = machine.create(small(AckPolicy::Written, 2));
        let record = |key: &'static [u8], value: Option<&'static [u8]>| {
            let mut builder = BatchBuilder::new();
            let record = NewRecord {
                key: Some(key),
                value,
                timestamp: 5,
                ..NewRecord::default()
            };
            builder.push(&record).expect("room");
            builder
                .finish(Compression::None, ProducerStamp::NONE)
                .expect("records")
                .to_vec()
        };
        // It says that it is compressed, and is not.
        let mut bad = record(b"a", Some(b"12345678"));
        bad[22] |= 1;
        write_stamp(&mut bad, ProducerStamp::NONE);
        node.append(0, &mut record(b"b", Some(b"12345678")));
        node.append(0, &mut bad);
        node.append(0, &mut record(b"a", None));
        node.append(0, &mut record(b"b", Some(b"abcdefgh")));
        close(&node);
        for _ in 0..3 {
            let now = node.now_ms as i64;
            let done = compact(&node, &spec(now, 1 << 20)).expect("a pass");
            let done = done.expect("something to do");
            assert_eq!(done.unreadable, 1);
            let start = Located {
                ordinal: 0,
                at: None,
            };
            let found = node
                .read_at(LANE, start, 1 << 20, u64::MAX)
                .expect("readable");
            let bytes = found.bufs.concat();
            assert!(bytes.windows(bad.len() - 61).any(|part| part == &bad[61..]));
            let headers: Vec<_> = batches(&bytes)
                .map(|found| found.expect("whole").0)
                .collect();
            let bases: Vec<_> = headers.iter().map(|header| header.base_ordinal).collect();
            assert_eq!(bases[..4], [0, 1, 2, 3]);
            assert_eq!(headers[0].record_count, 0, "an older value of b is left");
            assert_eq!(headers[2].record_count, 1, "a tombstone has gone");
            assert!(headers[2].delete_horizon().is_some());
            node.now_ms += 2 * DELETE_RETENTION;
            // Something to do for the next pass.
            node.append(0, &mut record(b"c", Some(b"12345678")));
            close(&node);
        }
    }

    /// A group that was open during a pass is lost, and files have no footers, as replicas have none.
    #[test]
    fn producers_are_known_although_the_group_with_their_newest_batches_is_lost() {
        let (mut machine, node, mut model) = some_groups(11);
        let closed = model.clone();
        assert!(closed.producers.len() > 1);
        let mut dice = Dice(77);
        for producer in closed.producers.keys() {
            place(&node, &mut dice, &mut model, *producer);
        }
        let now = node.now_ms as i64;
        let done = compact(&node, &spec(now, 1 << 20)).expect("a pass");
        assert!(done.is_some());
        let bytes = 2 * u64::from(node.streamlet.settings().segment_size);
        remove_footers(&machine, bytes);
        machine.kill(node, 0);
        let (node, _) = machine.recover(small(AckPolicy::Synced, 2));
        assert_same(
            &read_all(&node).0,
            &{
                let mut left = closed.clone();
                left.compact(closed_end(&node), now);
                left.written
            },
            "what was closed",
        );
        check_producers(&node, &closed);
    }

    #[test]
    fn groups_that_are_young_or_open_stay_and_late_ones_are_due() {
        let (_machine, node, model) = some_groups(9);
        let now = node.now_ms as i64;
        let young = CompactSpec {
            min_lag_ms: 3_600_000,
            ..spec(now, 1 << 20)
        };
        assert_eq!(compact(&node, &young).expect("nothing"), None);
        assert_same(&read_all(&node).0, &model.written, "the lane");
        let later = CompactSpec {
            now_ms: now + 3_700_000,
            ..young
        };
        assert!(node.streamlet.compaction_backlog(LANE, &later).is_due);
        assert!(compact(&node, &later).expect("a pass").is_some());

        // A little more: not enough to be due, unless it is late.
        let mut dice = Dice(1);
        let mut more = Model::default();
        let (mut bytes, _) = batch(&mut dice, &mut more, now);
        assert_eq!(node.append(0, &mut bytes).outcome(), Outcome::Durable);
        let open = node.streamlet.compaction_backlog(LANE, &spec(now, 0));
        assert_eq!(open.dirty_bytes, 0, "an open group is none of it");
        close(&node);
        let backlog = node.streamlet.compaction_backlog(LANE, &spec(now, 0));
        assert!(backlog.dirty_bytes > 0 && backlog.clean_bytes > 0);
        assert!(!backlog.is_due, "{backlog:?}");
        let late = |now_ms| CompactSpec {
            max_lag_ms: 60_000,
            ..spec(now_ms, 0)
        };
        assert!(!node.streamlet.compaction_backlog(LANE, &late(now)).is_due);
        assert!(
            node.streamlet
                .compaction_backlog(LANE, &late(now + 60_000))
                .is_due
        );
    }

    #[test]
    fn small_groups_become_one_and_a_file_goes_once_nobody_reads_it() {
        let (machine, node, _) = some_groups(10);
        let before = node.streamlet.groups();
        assert!(before >= 3);
        let fault = machine.fault.clone().expect("a fault engine");
        let now = node.now_ms as i64;
        let done = compact(&node, &spec(now, 1 << 20))
            .expect("a pass")
            .expect("work");
        assert_eq!(done.groups_before, before as u64);
        assert_eq!(done.groups_after, node.streamlet.groups() as u64);
        assert!(done.groups_after < done.groups_before, "{done:?}");
        assert!(done.bytes_after < done.bytes_before, "{done:?}");
        assert_eq!(fault.paths().len(), node.streamlet.groups());
        assert_eq!(compact(&node, &spec(now, 1 << 20)).expect("nothing"), None);
    }
}
