//! Which transactions may be under way together: those that have nothing in common.

use std::collections::{BTreeSet, HashMap};

use kera_protocol::ids::{StreamId, StreamletId};

use kera_records::Counter;
use kera_records::{Compare, Transaction, Write};

/// A part of the store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Zone {
    Name(String),
    Broker(u32),
    Counter(Counter),
    /// Settings of a broker, or of all.
    Settings(Option<u32>),
    Rules,
    Users,
    Quotas,
    /// A stream's own record and, for whoever has it alone, all of the stream.
    Stream(StreamId),
    /// A streamlet with its groups and log starts.
    Streamlet(StreamId, StreamletId),
}

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
                Compare::StreamAbsent { name } => zones.alone(Zone::Name(name.clone())),
                Compare::StreamRevision { id, .. } => zones.alone(Zone::Stream(*id)),
                Compare::StreamletEpoch {
                    stream, streamlet, ..
                }
                | Compare::StreamletRevision {
                    stream, streamlet, ..
                } => zones.streamlet(*stream, *streamlet),
                Compare::StreamletEpochs { stream, epochs } => {
                    for (streamlet, _) in epochs {
                        zones.streamlet(*stream, *streamlet);
                    }
                }
                Compare::GroupRevision { key, .. } => zones.streamlet(key.stream, key.streamlet),
                Compare::BrokerRevision { id, .. } => zones.alone(Zone::Broker(*id)),
                Compare::SettingsRevision { broker, .. } => zones.alone(Zone::Settings(*broker)),
                Compare::RulesRevision { .. } => zones.alone(Zone::Rules),
                Compare::UsersRevision { .. } => zones.alone(Zone::Users),
                Compare::QuotasRevision { .. } => zones.alone(Zone::Quotas),
                Compare::CounterValue { counter, .. } => {
                    zones.shared.insert(Zone::Counter(*counter));
                }
                Compare::Controller { .. } => {}
            }
        }
        for write in &transaction.write {
            match write {
                Write::PutStream(r) => {
                    zones.alone(Zone::Stream(r.id));
                    zones.alone(Zone::Name(r.name.clone()));
                }
                Write::DeleteStream(id) => {
                    zones.alone(Zone::Stream(*id));
                    zones.alone(Zone::Counter(Counter::EpochFloor));
                }
                Write::PutStreamlet(r) => zones.streamlet(r.stream, r.streamlet),
                Write::PutGroup(r) => zones.streamlet(r.stream, r.streamlet),
                Write::DeleteGroup(key) => zones.streamlet(key.stream, key.streamlet),
                Write::PutLaneStart { key, .. } => zones.streamlet(key.stream, key.streamlet),
                Write::PutBroker(r) => zones.alone(Zone::Broker(r.id)),
                Write::DeleteBroker(id) => zones.alone(Zone::Broker(*id)),
                Write::PutSettings(r) => zones.alone(Zone::Settings(r.broker)),
                Write::PutRules(_) => zones.alone(Zone::Rules),
                Write::PutUsers(_) => zones.alone(Zone::Users),
                Write::PutQuotas(_) => zones.alone(Zone::Quotas),
                Write::PutCounter { counter, .. } => zones.alone(Zone::Counter(*counter)),
            }
        }
        zones
    }

    fn alone(&mut self, zone: Zone) {
        self.alone.insert(zone);
    }

    fn streamlet(&mut self, stream: StreamId, streamlet: StreamletId) {
        self.alone.insert(Zone::Streamlet(stream, streamlet));
        self.shared.insert(Zone::Stream(stream));
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
    use kera_protocol::ids::Epoch;
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
        let compare = Compare::StreamRevision {
            id: stream,
            revision: 1,
        };
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
