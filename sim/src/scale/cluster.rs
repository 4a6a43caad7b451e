//! A cluster as its metadata store records it.

use std::collections::BTreeMap;

use kera_controller::{Member, Members};
use kera_metadata::{
    Compare, GroupRecord, GroupState, Key, MemoryStore, MetadataError, MetadataStore, Record,
    StreamConfig, StreamRecord, StreamletRecord, Transaction, Write,
};
use kera_protocol::ids::{
    BrokerId, Epoch, GroupId, Incarnation, LaneId, StreamletId, StreamletKey,
};
use kera_records::Replica;
use uuid::Uuid;

use crate::dice::Dice;

/// Streams, each with as many streamlets as there are brokers.
const STREAMS: u32 = 10;
/// Racks, and machines of which no two replicas of a group share one.
const RACKS: u32 = 3;
/// Bytes of a group, and the records in it.
const GROUP_BYTES: u64 = 100 << 20;
const GROUP_RECORDS: u64 = 100_000;
/// Records that are written at once.
const AT_ONCE: usize = 1_000;

/// Brokers, numbered from 1, that own ten streamlets each, with closed groups of three replicas.
pub struct Cluster {
    pub brokers: u32,
    pub store: MemoryStore,
    lives: Vec<Incarnation>,
    /// Owners, by streamlet.
    owners: BTreeMap<StreamletKey, u32>,
}

impl Cluster {
    /// With so many `groups`, in equal parts.
    pub fn new(brokers: u32, groups: u64) -> Result<Self, MetadataError> {
        let lives = (0..=brokers).map(|_| Incarnation {
            store_id: Uuid::new_v4(),
            boot_id: Uuid::new_v4(),
        });
        let mut cluster = Self {
            brokers,
            store: MemoryStore::manual(),
            lives: lives.collect(),
            owners: BTreeMap::new(),
        };
        let each = groups / u64::from(brokers * STREAMS);
        let mut dice = Dice::new(groups, "replicas");
        for number in 0..STREAMS {
            cluster.add(number, each, &mut dice)?;
        }
        Ok(cluster)
    }

    fn add(&mut self, number: u32, each: u64, dice: &mut Dice) -> Result<(), MetadataError> {
        let config = StreamConfig {
            streamlets: self.brokers,
            replicas: 3,
            min_insync_replicas: 2,
            ..StreamConfig::default()
        };
        let stream = StreamRecord::new(format!("stream{number}"), config, 1);
        let streamlets = (0..self.brokers).map(|streamlet| StreamletRecord {
            stream: stream.id,
            streamlet: StreamletId(streamlet),
            owner: 1 + streamlet,
            epoch: Epoch(1),
            next_group: GroupId(each),
            restore: 0,
            awaits_jumps: 0,
            revision: 0,
        });
        let streamlets: Vec<_> = streamlets.collect();
        let name = stream.name.clone();
        let mut write = vec![Write::PutStream(stream)];
        write.extend(streamlets.iter().cloned().map(Write::PutStreamlet));
        let compare = vec![Compare::StreamAbsent { name }];
        self.store.commit(Transaction::new(compare, write))?;
        for streamlet in streamlets {
            self.owners.insert(streamlet.key(), streamlet.owner);
            let groups = (0..each).map(|group| self.group(&streamlet, group, dice));
            let groups: Vec<_> = groups.collect();
            for part in groups.chunks(AT_ONCE) {
                let changes = part.iter().cloned().map(GroupRecord::put);
                let put = Transaction::of_groups(streamlet.key(), streamlet.epoch, changes);
                self.store.commit(put)?;
            }
        }
        Ok(())
    }

    /// A closed group with replicas at its owner and two others, each in another rack.
    fn group(&self, of: &StreamletRecord, group: u64, dice: &mut Dice) -> GroupRecord {
        let mut at = vec![of.owner];
        while at.len() < 3 {
            let next = dice.between(1, u64::from(self.brokers)) as u32;
            if at.iter().all(|other| other % RACKS != next % RACKS) {
                at.push(next);
            }
        }
        let copies = at.into_iter().map(|broker| Replica {
            broker: BrokerId(broker),
            incarnation: self.lives[broker as usize],
        });
        let first = group * GROUP_RECORDS;
        GroupRecord {
            state: GroupState::Closed,
            first_ordinal: Some(first),
            length: GROUP_BYTES,
            live_bytes: GROUP_BYTES,
            end_ordinal: first + GROUP_RECORDS,
            next_ordinal: first + GROUP_RECORDS,
            max_timestamp_ms: 1_800_000_000_000,
            closed_ms: 1_800_000_000_000,
            copies: copies.collect(),
            file_made: true,
            ..GroupRecord::new(of.key().group(GroupId(group)), LaneId(0), of.epoch)
        }
    }

    /// The brokers that live: all but those that are `gone`.
    pub fn members(&self, gone: &[u32]) -> Members {
        let living = (1..=self.brokers).filter(|broker| !gone.contains(broker));
        let members = living.map(|broker| Member {
            rack: Some(format!("rack{}", broker % RACKS)),
            ..Member::new(broker, format!("host{broker}"))
        });
        Members::new(members, false)
    }

    /// The streamlets that a broker owned in the beginning.
    pub fn owned_by(&self, broker: u32) -> Vec<StreamletKey> {
        let owned = self.owners.iter().filter(|(_, owner)| **owner == broker);
        owned.map(|(streamlet, _)| *streamlet).collect()
    }

    /// What is recorded of a streamlet now.
    pub fn streamlet(&self, which: StreamletKey) -> Result<StreamletRecord, MetadataError> {
        match self.store.read(&Key::Streamlet(which))? {
            Some(Record::Streamlet(record)) => Ok(record),
            other => panic!("the streamlet {which} is {other:?}"),
        }
    }
}
