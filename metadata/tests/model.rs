//! Random transactions against every store and a plain model of what they should hold.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kera_metadata::*;
use kera_protocol::ids::*;
use proptest::prelude::*;
use support::*;

/// One thing a transaction does. Small numbers, so that parts meet.
#[derive(Clone, Debug)]
enum Part {
    Create {
        name: u8,
    },
    Delete {
        name: u8,
        stale: bool,
    },
    Grow {
        name: u8,
        stale: bool,
    },
    NewEpoch {
        name: u8,
        streamlet: u8,
        stale: bool,
    },
    Advance {
        name: u8,
        streamlet: u8,
        group: u8,
        stale: Stale,
    },
    Drop {
        name: u8,
        streamlet: u8,
        group: u8,
        stale: Stale,
    },
    Trim {
        name: u8,
        streamlet: u8,
        lane: u8,
        by: u8,
        back: bool,
    },
    Ids {
        count: u8,
        stale: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stale {
    No,
    Epoch,
    Revision,
}

#[derive(Clone, Debug)]
enum Step {
    /// Transactions submitted without waiting in between.
    Batch(Vec<Vec<Part>>),
    Reopen,
    BumpAll,
}

fn stale() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.15)
}

fn part() -> impl Strategy<Value = Part> {
    let name = 0..3u8;
    let streamlet = 0..2u8;
    let group_stale = prop_oneof![
        8 => Just(Stale::No),
        1 => Just(Stale::Epoch),
        1 => Just(Stale::Revision),
    ];
    prop_oneof![
        4 => name.clone().prop_map(|name| Part::Create { name }),
        1 => (name.clone(), stale()).prop_map(|(name, stale)| Part::Delete { name, stale }),
        2 => (name.clone(), stale()).prop_map(|(name, stale)| Part::Grow { name, stale }),
        2 => (name.clone(), streamlet.clone(), stale())
            .prop_map(|(name, streamlet, stale)| Part::NewEpoch { name, streamlet, stale }),
        12 => (name.clone(), streamlet.clone(), 0..6u8, group_stale.clone()).prop_map(
            |(name, streamlet, group, stale)| Part::Advance { name, streamlet, group, stale }
        ),
        3 => (name.clone(), streamlet.clone(), 0..6u8, group_stale).prop_map(
            |(name, streamlet, group, stale)| Part::Drop { name, streamlet, group, stale }
        ),
        3 => (name, streamlet, 0..3u8, 1..9u8, stale()).prop_map(
            |(name, streamlet, lane, by, back)| Part::Trim { name, streamlet, lane, by, back }
        ),
        1 => (1..9u8, stale()).prop_map(|(count, stale)| Part::Ids { count, stale }),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let transaction = prop::collection::vec(part(), 1..4);
    let step = prop_oneof![
        8 => prop::collection::vec(transaction, 1..12).prop_map(Step::Batch),
        1 => Just(Step::Reopen),
        1 => Just(Step::BumpAll),
    ];
    prop::collection::vec(step, 1..14)
}

/// What a store should hold.
#[derive(Default)]
struct Model {
    revision: u64,
    streams: BTreeMap<StreamId, StreamRecord>,
    streamlets: BTreeMap<(StreamId, StreamletId), StreamletRecord>,
    groups: BTreeMap<GroupKey, GroupRecord>,
    starts: BTreeMap<LaneKey, LaneStart>,
    ids: u64,
    /// Highest epoch of a deleted stream's streamlets.
    floor: u64,
}

/// A transaction being built, with the model as it is to be once it took effect.
struct Building {
    transaction: Transaction,
    refused: bool,
    /// Streams that a part changes as a whole.
    whole: BTreeSet<u8>,
    /// Streams that a part changes something in.
    within: BTreeSet<u8>,
    /// Records that a part writes.
    written: BTreeSet<Key>,
}

impl Model {
    fn named(&self, name: u8) -> Option<&StreamRecord> {
        let name = format!("s{name}");
        self.streams.values().find(|s| s.name == name)
    }

    fn image(&self) -> Image {
        Image {
            revision: self.revision,
            streams: self.streams.values().cloned().collect(),
            streamlets: self.streamlets.values().cloned().collect(),
            groups: self.groups.values().cloned().collect(),
            lane_starts: self.starts.values().copied().collect(),
            counters: [
                (Counter::ProducerIds, self.ids),
                (Counter::EpochFloor, self.floor),
            ]
            .into_iter()
            .filter(|(_, value)| *value > 0)
            .collect(),
            ..Image::default()
        }
    }

    /// Builds the transaction of `parts` and says what should come of it: its revision, or nothing
    /// if it should be refused.
    fn run(&mut self, parts: &[Part]) -> (Transaction, Option<u64>) {
        let mut building = Building {
            transaction: Transaction::default(),
            refused: false,
            whole: BTreeSet::new(),
            within: BTreeSet::new(),
            written: BTreeSet::new(),
        };
        for part in parts {
            self.add(part, &mut building);
        }
        let Building {
            transaction,
            refused,
            ..
        } = building;
        // A deletion in the same transaction raises the floor under what is created.
        let creates = transaction.write.iter().any(|w| match w {
            Write::PutStream(r) => !self.streams.contains_key(&r.id),
            _ => false,
        });
        let refused = refused || (creates && self.floor_after(&transaction) > self.floor);
        if refused {
            return (transaction, None);
        }
        if !transaction.write.is_empty() {
            self.revision += 1;
            self.floor = self.floor_after(&transaction);
            for write in &transaction.write {
                self.apply(write);
            }
        }
        (transaction, Some(self.revision))
    }

    /// The floor of epochs after a transaction.
    fn floor_after(&self, transaction: &Transaction) -> u64 {
        let deleted = transaction.write.iter().filter_map(|w| match w {
            Write::DeleteStream(id) => Some(*id),
            _ => None,
        });
        let epochs = deleted.flat_map(|id| {
            let of_stream = self.streamlets.values().filter(move |s| s.stream == id);
            of_stream.map(|s| u64::from(s.epoch.0))
        });
        epochs.fold(self.floor, u64::max)
    }

    fn apply(&mut self, write: &Write) {
        let revision = self.revision;
        match write.clone() {
            Write::PutStream(r) => {
                self.streams.insert(r.id, StreamRecord { revision, ..r });
            }
            Write::DeleteStream(id) => {
                self.streams.remove(&id);
                self.streamlets.retain(|key, _| key.0 != id);
                self.groups.retain(|key, _| key.stream != id);
                self.starts.retain(|key, _| key.stream != id);
            }
            Write::PutStreamlet(r) => {
                self.streamlets
                    .insert((r.stream, r.streamlet), StreamletRecord { revision, ..r });
            }
            Write::PutGroup(r) => {
                self.groups.insert(r.key(), GroupRecord { revision, ..r });
            }
            Write::DeleteGroup(key) => {
                self.groups.remove(&key);
            }
            Write::PutLaneStart { key, ordinal } => {
                let start = LaneStart {
                    key,
                    ordinal,
                    revision,
                };
                self.starts.insert(key, start);
            }
            Write::PutCounter { value, .. } => self.ids = value,
            other => panic!("the model makes no {other:?}"),
        }
    }

    /// Adds a part, unless it would meet another part of the same transaction or nothing that exists.
    fn add(&self, part: &Part, b: &mut Building) {
        let t = &mut b.transaction;
        match *part {
            Part::Create { name } => {
                if b.within.contains(&name) || !b.whole.insert(name) {
                    return;
                }
                let config = StreamConfig {
                    streamlets: 2,
                    lanes: 2,
                    ..StreamConfig::default()
                };
                let record = StreamRecord::new(format!("s{name}"), config, 1);
                let (creation, _) = creation(&record, 1, self.floor).unwrap();
                t.compare.extend(creation.compare);
                // Room for every group id that parts name, so that they need not raise it.
                t.write.extend(creation.write.into_iter().map(|w| match w {
                    Write::PutStreamlet(s) => Write::PutStreamlet(StreamletRecord {
                        next_group: GroupId(100),
                        ..s
                    }),
                    other => other,
                }));
                b.refused |= self.named(name).is_some();
            }
            Part::Delete { name, stale } => {
                let Some(stream) = self.named(name) else {
                    return;
                };
                if b.within.contains(&name) || !b.whole.insert(name) {
                    return;
                }
                t.compare.push(Compare::revision(
                    Key::Stream(stream.id),
                    stream.revision + u64::from(stale),
                ));
                t.write.push(Write::DeleteStream(stream.id));
                b.refused |= stale;
            }
            Part::Grow { name, stale } => {
                let Some(stream) = self.named(name) else {
                    return;
                };
                if b.within.contains(&name) || !b.whole.insert(name) {
                    return;
                }
                let mut grown = stream.clone();
                // One lane more, which is the first or the second streamlet's.
                let old = grown.config.partitions();
                grown.config.lanes = (old + 1).div_ceil(2);
                grown.config.short_streamlets = (old + 1) % 2;
                grown.lane_generations.push(LaneGeneration {
                    lanes: grown.config.lanes,
                    short_streamlets: grown.config.short_streamlets,
                    starts: (0..old)
                        .map(|n| (StreamletId(n % 2), LaneId(n / 2), u64::from(n)))
                        .collect(),
                });
                t.compare.push(Compare::revision(
                    Key::Stream(stream.id),
                    stream.revision + u64::from(stale),
                ));
                t.write.push(Write::PutStream(grown));
                b.refused |= stale;
            }
            Part::NewEpoch {
                name,
                streamlet,
                stale,
            } => {
                let Some(s) = self.streamlet(name, streamlet) else {
                    return;
                };
                if b.within.contains(&name) || !b.whole.insert(name) {
                    return;
                }
                t.compare.push(Compare::revision(
                    Key::Streamlet(s.key()),
                    s.revision + u64::from(stale),
                ));
                t.write.push(Write::PutStreamlet(StreamletRecord {
                    epoch: Epoch(s.epoch.0 + 1),
                    ..s.clone()
                }));
                b.refused |= stale;
            }
            Part::Advance {
                name,
                streamlet,
                group,
                stale,
            } => {
                let Some(s) = self.streamlet(name, streamlet) else {
                    return;
                };
                let fresh = open_group(s, group.into(), u32::from(group) % 2);
                if b.whole.contains(&name) || !b.written.insert(Key::Group(fresh.key())) {
                    return;
                }
                b.within.insert(name);
                let next = match self.groups.get(&fresh.key()) {
                    None => fresh,
                    Some(old) if old.state == GroupState::Open => closed(old, 10, 1000),
                    Some(old) => GroupRecord {
                        generation: old.generation + 1,
                        live_bytes: old.live_bytes / 2,
                        ..old.clone()
                    },
                };
                guard(t, s, &next, stale);
                t.write.push(Write::PutGroup(next));
                b.refused |= stale != Stale::No;
            }
            Part::Drop {
                name,
                streamlet,
                group,
                stale,
            } => {
                let Some(s) = self.streamlet(name, streamlet) else {
                    return;
                };
                let key = open_group(s, group.into(), 0).key();
                let Some(old) = self.groups.get(&key) else {
                    return;
                };
                if b.whole.contains(&name) || !b.written.insert(Key::Group(key)) {
                    return;
                }
                b.within.insert(name);
                guard(t, s, old, stale);
                t.write.push(Write::DeleteGroup(key));
                b.refused |= stale != Stale::No;
            }
            Part::Trim {
                name,
                streamlet,
                lane,
                by,
                back,
            } => {
                let Some(s) = self.streamlet(name, streamlet) else {
                    return;
                };
                let key = LaneKey {
                    stream: s.stream,
                    streamlet: s.streamlet,
                    lane: LaneId(lane.into()),
                };
                if b.whole.contains(&name) || !b.written.insert(Key::LaneStart(key)) {
                    return;
                }
                b.within.insert(name);
                let old = self.starts.get(&key).map_or(0, |s| s.ordinal);
                let ordinal = match back {
                    true => old.saturating_sub(by.into()),
                    false => old + u64::from(by),
                };
                t.compare.push(Compare::epoch(s));
                t.write.push(Write::PutLaneStart { key, ordinal });
                b.refused |= ordinal < old
                    || u32::from(lane) >= self.streams[&s.stream].config.lanes_of(s.streamlet);
            }
            Part::Ids { count, stale } => {
                let counter = Counter::ProducerIds;
                if !b.written.insert(Key::Counter(counter)) {
                    return;
                }
                t.compare.push(Compare::CounterValue {
                    counter,
                    value: self.ids + u64::from(stale),
                });
                t.write.push(Write::PutCounter {
                    counter,
                    value: self.ids.max(1) + u64::from(count),
                });
                b.refused |= stale;
            }
        }
    }

    fn streamlet(&self, name: u8, streamlet: u8) -> Option<&StreamletRecord> {
        let id = self.named(name)?.id;
        self.streamlets.get(&(id, StreamletId(streamlet.into())))
    }
}

fn guard(t: &mut Transaction, s: &StreamletRecord, group: &GroupRecord, stale: Stale) {
    t.compare.push(Compare::StreamletEpoch {
        stream: s.stream,
        streamlet: s.streamlet,
        epoch: Epoch(s.epoch.0 + u32::from(stale == Stale::Epoch)),
    });
    t.compare.push(Compare::revision(
        Key::Group(group.key()),
        group.revision + u64::from(stale == Stale::Revision),
    ));
}

fn agree<S: MetadataStore>(
    mut store: S,
    reopen: impl Fn(S) -> S,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let empty = store.load().unwrap();
    let cluster = empty.cluster;
    let mut model = Model {
        revision: empty.revision,
        ..Model::default()
    };
    for step in steps {
        match step {
            Step::Batch(transactions) => {
                let waiting: Vec<_> = transactions
                    .iter()
                    .map(|parts| {
                        let (transaction, expected) = model.run(parts);
                        (
                            store.commit_async(transaction.clone()),
                            transaction,
                            expected,
                        )
                    })
                    .collect();
                for (future, transaction, expected) in waiting {
                    let outcome = future.wait();
                    let revision = outcome.as_ref().ok().map(|c| c.revision);
                    prop_assert_eq!(revision, expected, "{:?} of {:#?}", outcome, transaction);
                }
            }
            Step::Reopen => store = reopen(store),
            Step::BumpAll => {
                let bumped = store.bump_epochs(1).unwrap();
                prop_assert_eq!(bumped.len(), model.streamlets.len());
                if let Some(first) = bumped.first() {
                    model.revision += 1;
                    prop_assert_eq!(first.revision, model.revision);
                }
                for s in model.streamlets.values_mut() {
                    *s = s.in_next_epoch(s.owner).unwrap();
                    s.revision = model.revision;
                }
            }
        }
        let image = store.load().unwrap();
        let expected = Image {
            cluster,
            ..model.image()
        };
        prop_assert_eq!(image, expected);
    }
    Ok(())
}

/// Held while a process is started, or none may be: for a moment it has all files that this one has open, and
/// with them their locks.
fn starting() -> MutexGuard<'static, ()> {
    static STARTING: Mutex<()> = Mutex::new(());
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn both_stores_agree_with_the_model(steps in steps()) {
        agree(MemoryStore::new(), |store| store.copy_after_kill(), &steps)?;
        let directory = tempfile::tempdir().unwrap();
        agree(
            embedded(&directory),
            |store| {
                let _none = starting();
                drop(store);
                embedded(&directory)
            },
            &steps,
        )?;
    }
}

#[cfg(feature = "etcd")]
#[test]
fn etcd_agrees_with_the_model() {
    use proptest::test_runner::TestRunner;

    let begun = starting();
    let Some(etcd) = etcd::Etcd::start() else {
        return;
    };
    drop(begun);
    let cases = std::cell::Cell::new(0);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 32,
        ..ProptestConfig::default()
    });
    let outcome = runner.run(&steps(), |steps| {
        cases.set(cases.get() + 1);
        let address = format!("{}/case-{}", etcd.address(), cases.get());
        EtcdStore::init(&address, patient()).unwrap();
        // The model has one after the other.
        let options = EtcdOptions {
            under_way: 1,
            ..patient()
        };
        let open = || EtcdStore::open(&address, options).unwrap();
        let reopen = |store| {
            drop(store);
            open()
        };
        agree(open(), reopen, &steps)
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
