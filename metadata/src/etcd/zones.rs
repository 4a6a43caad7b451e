//! Which transactions may be under way together: those that have nothing in common.

use std::collections::{BTreeSet, HashMap};

use kera_protocol::ids::StreamletKey;

use kera_records::Counter;
use kera_records::key::Key;
use kera_records::{Compare, Transaction, Write};

/// A part of the store, by the key of its first record. A stream's is its own record and, for whoever has it alone, all
/// of the stream; a streamlet's its groups and log starts as well.
type Zone = Key;

/// What a transaction compares and writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Zones {
    alone: BTreeSet<Zone>,
    /// What others may use as well, as long as nobody has it alone.
    shared: BTreeSet<Zone>,
}

impl Zones {
    pub(super) fn of(transaction: &Transaction) -> Self {
        let mut zones = Self::default();
        for compare in &transaction.compare {
            match compare {
                Compare::StreamAbsent { name } => zones.alone(Zone::StreamName(name.clone())),
                // Others go by it as well, and who writes it has it alone.
                Compare::Revision {
                    key: key @ Key::Stream(_),
                    ..
                } => _ = zones.shared.insert(key.clone()),
                Compare::Revision { key, .. } => zones.of_record(key.clone()),
                &Compare::StreamletEpoch {
                    stream, streamlet, ..
                } => zones.streamlet(StreamletKey { stream, streamlet }),
                Compare::StreamletEpochs { stream, epochs } => {
                    for (streamlet, _) in epochs {
                        zones.streamlet(StreamletKey {
                            stream: *stream,
                            streamlet: *streamlet,
                        });
                    }
                }
                Compare::CounterValue { counter, .. } => {
                    zones.shared.insert(Zone::Counter(*counter));
                }
                Compare::Controller { .. } => {}
            }
        }
        for write in &transaction.write {
            zones.of_record(write.key());
            match write {
                Write::PutStream(r) => zones.alone(Zone::StreamName(r.name.clone())),
                Write::DeleteStream(_) => zones.alone(Zone::Counter(Counter::EpochFloor)),
                _ => {}
            }
        }
        zones
    }

    fn of_record(&mut self, key: Key) {
        match key.streamlet_of() {
            Some(streamlet) => self.streamlet(streamlet),
            None => self.alone(key),
        }
    }

    fn alone(&mut self, zone: Zone) {
        self.alone.insert(zone);
    }

    fn streamlet(&mut self, streamlet: StreamletKey) {
        self.alone.insert(Zone::Streamlet(streamlet));
        self.shared.insert(Zone::Stream(streamlet.stream));
    }
}

/// What is under way.
#[derive(Debug, Default)]
pub(super) struct Busy {
    /// Who uses a zone: `None` is somebody alone.
    used: HashMap<Zone, Option<usize>>,
    transactions: usize,
}

impl Busy {
    pub(super) fn transactions(&self) -> usize {
        self.transactions
    }

    /// Whether a transaction may begin beside those under way.
    pub(super) fn allows(&self, zones: &Zones) -> bool {
        let alone = zones.alone.iter().all(|zone| !self.used.contains_key(zone));
        // What a transaction has alone it also shares with itself.
        let beside = |zone: &Zone| !matches!(self.used.get(zone), Some(None));
        alone && zones.shared.iter().all(beside)
    }

    /// A transaction begins. Beside those it is not allowed beside it may only be counted, never ended.
    pub(super) fn begin(&mut self, zones: &Zones) {
        self.transactions += 1;
        for zone in &zones.shared {
            if let Some(users) = self.used.entry(zone.clone()).or_insert(Some(0)) {
                *users += 1;
            }
        }
        for zone in &zones.alone {
            self.used.insert(zone.clone(), None);
        }
    }

    /// A transaction has ended.
    pub(super) fn end(&mut self, zones: &Zones) {
        self.transactions -= 1;
        for zone in &zones.alone {
            self.used.remove(zone);
        }
        for zone in &zones.shared {
            let last = match self.used.get_mut(zone) {
                Some(Some(users)) => {
                    *users -= 1;
                    *users == 0
                }
                _ => false,
            };
            if last {
                self.used.remove(zone);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::creation;
    use kera_protocol::ids::{Epoch, StreamId, StreamletId};
    use kera_records::StreamRecord;
    use kera_records::config::StreamConfig;

    fn epoch(stream: StreamId, streamlet: u32) -> Zones {
        let compare = Compare::StreamletEpoch {
            stream,
            streamlet: StreamletId(streamlet),
            epoch: Epoch(1),
        };
        Zones::of(&Transaction::new(vec![compare], vec![]))
    }

    fn deletion(stream: StreamId) -> Zones {
        let compare = Compare::revision(Key::Stream(stream), 1);
        let write = vec![Write::DeleteStream(stream)];
        Zones::of(&Transaction::new(vec![compare], write))
    }

    #[test]
    fn streamlets_go_together_and_a_whole_stream_alone() {
        let (a, b) = (StreamId::random(), StreamId::random());
        let mut busy = Busy::default();
        busy.begin(&epoch(a, 0));
        assert!(!busy.allows(&epoch(a, 0)));
        assert!(busy.allows(&epoch(a, 1)));
        assert!(busy.allows(&deletion(b)));
        assert!(!busy.allows(&deletion(a)));
        busy.begin(&epoch(a, 1));
        busy.end(&epoch(a, 0));
        assert!(!busy.allows(&deletion(a)));
        busy.end(&epoch(a, 1));
        assert!(busy.allows(&deletion(a)));
        let several = Compare::StreamletEpochs {
            stream: a,
            epochs: (0..3).map(|n| (StreamletId(n), Epoch(1))).collect(),
        };
        let several = Zones::of(&Transaction::new(vec![several], vec![]));
        busy.begin(&several);
        assert!(!busy.allows(&epoch(a, 2)) && busy.allows(&epoch(a, 3)));
        assert!(!busy.allows(&deletion(a)));
        busy.end(&several);
        busy.begin(&deletion(a));
        assert!(!busy.allows(&epoch(a, 5)));
        assert!(!busy.allows(&deletion(b)), "both raise the floor");
        busy.end(&deletion(a));
        assert_eq!(busy.transactions(), 0);
        assert!(busy.used.is_empty());
    }

    #[test]
    fn what_goes_by_a_stream_s_record_goes_beside_its_streamlets_and_not_beside_who_writes_it() {
        let record = StreamRecord::new("a", StreamConfig::default(), 1);
        let stream = Compare::revision(Key::Stream(record.id), 1);
        let streamlet = Compare::StreamletEpoch {
            stream: record.id,
            streamlet: StreamletId(0),
            epoch: Epoch(1),
        };
        let trim = Zones::of(&Transaction::new(vec![stream.clone(), streamlet], vec![]));
        let write = vec![Write::PutStream(record.clone())];
        let touch = Zones::of(&Transaction::new(vec![stream], write));
        let mut busy = Busy::default();
        busy.begin(&trim);
        assert!(busy.allows(&epoch(record.id, 1)) && !busy.allows(&trim));
        assert!(!busy.allows(&touch));
        busy.end(&trim);
        busy.begin(&touch);
        assert!(!busy.allows(&trim) && !busy.allows(&touch));
        busy.end(&touch);
        assert!(busy.used.is_empty());
    }

    #[test]
    fn a_creation_shares_its_stream_with_itself() {
        let zones = |record: &StreamRecord| Zones::of(&creation(record, 1, 0).unwrap().0);
        let record = StreamRecord::new("a", StreamConfig::default(), 1);
        let other = StreamRecord::new("b", StreamConfig::default(), 1);
        let (zones, other) = (zones(&record), zones(&other));
        let mut busy = Busy::default();
        assert!(busy.allows(&zones));
        busy.begin(&zones);
        assert!(!busy.allows(&zones));
        assert!(busy.allows(&other));
        assert!(
            !busy.allows(&deletion(StreamId::random())),
            "it raises the floor"
        );
        assert!(!busy.allows(&epoch(record.id, 0)));
        busy.end(&zones);
        assert!(busy.used.is_empty());
        assert!(busy.allows(&Zones::of(&Transaction::default())));
    }
}
