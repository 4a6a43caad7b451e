//! What is known of etcd's records while one transaction is evaluated, and what of it the outcome
//! rests on.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::error::MetadataError;
use crate::evaluate::Keyspace;
use kera_protocol::ids::StreamletKey;
use kera_records::Counter;
use kera_records::key::{self, Key};
use kera_records::{Compare, Transaction, Write};

use super::space::CONTROLLER;

/// One key.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// Its value with etcd's revision in it; `None` where it is absent.
    pub(super) value: Option<Vec<u8>>,
    /// The revision that wrote it; 0 where it is absent.
    pub(super) revision: u64,
    /// Read after the transaction was submitted, not remembered or guessed.
    pub(super) fresh: bool,
}

impl Known {
    /// What a caller that compares with "does not exist" believes.
    pub(super) fn guessed_absent() -> Self {
        Self {
            value: None,
            revision: 0,
            fresh: false,
        }
    }
}

/// Whole ranges of records are read where a transaction needs all of them.
pub(super) struct Range {
    pub(super) prefix: Vec<u8>,
    /// The revision it was read at: none of its records is newer.
    pub(super) revision: u64,
}

/// Keys and what is known of them. A key that is asked for and not known is noted.
#[derive(Default)]
pub(super) struct View {
    pub(super) known: BTreeMap<Vec<u8>, Known>,
    pub(super) ranges: Vec<Range>,
    /// The last revision that was heard of.
    pub(super) revision: u64,
    read: RefCell<BTreeSet<Vec<u8>>>,
    missing: RefCell<BTreeSet<Vec<u8>>>,
}

impl View {
    /// Forgets what was asked for, for another evaluation.
    pub(super) fn begin(&mut self) {
        self.read.get_mut().clear();
        self.missing.get_mut().clear();
    }

    /// Keys that were asked for and are not known; the evaluation says nothing while there are any.
    pub(super) fn missing(&self) -> Vec<Vec<u8>> {
        self.missing.borrow().iter().cloned().collect()
    }

    /// Keys that the evaluation rests on and that were not read since the transaction was submitted.
    pub(super) fn stale(&self) -> Vec<Vec<u8>> {
        let read = self.read.borrow();
        let stale = read.iter().filter(|key| match self.known.get(*key) {
            Some(known) => !known.fresh,
            None => false,
        });
        stale.cloned().collect()
    }

    /// The range a key lies in, if that was read as a whole.
    pub(super) fn range_of(&self, key: &[u8]) -> Option<&Range> {
        self.ranges.iter().find(|r| key.starts_with(&r.prefix))
    }

    /// The keys the outcome rests on, without those of ranges, each with its revision.
    ///
    /// A stream's settings that matter to a streamlet cannot change but by growth, and the streamlet
    /// exists no longer than its stream: whoever rests on an existing streamlet does not rest on its
    /// stream as well.
    pub(super) fn compared(&self, transaction: &Transaction) -> Vec<(Vec<u8>, u64)> {
        let mut needed: BTreeSet<Vec<u8>> = BTreeSet::new();
        for compare in &transaction.compare {
            if let Compare::Revision {
                key: key @ Key::Stream(_),
                ..
            } = compare
            {
                needed.insert(key.encode());
            }
        }
        for write in &transaction.write {
            match write {
                Write::PutStream(_) | Write::DeleteStream(_) => {
                    needed.insert(write.key().encode());
                }
                Write::PutStreamlet(record) => {
                    let key = write.key().encode();
                    if self.known.get(&key).is_none_or(|k| k.value.is_none()) {
                        needed.insert(Key::Stream(record.stream).encode());
                    }
                }
                // A pin rests on its stream alone.
                Write::PutPin(record) => {
                    needed.insert(Key::Stream(record.stream).encode());
                }
                _ => {}
            }
        }
        let read = self.read.borrow();
        let rests_on = read.iter().filter(|key| {
            let stream = key.first() == Some(&key::STREAM);
            self.range_of(key).is_none() && (!stream || needed.contains(*key))
        });
        rests_on
            .map(|key| (key.clone(), self.known.get(key).map_or(0, |k| k.revision)))
            .collect()
    }

    fn look(&self, key: &[u8]) -> Result<Option<&Known>, MetadataError> {
        if let Some(known) = self.known.get(key) {
            self.read.borrow_mut().insert(key.to_vec());
            return Ok(Some(known));
        }
        if self.range_of(key).is_some() {
            return Ok(None);
        }
        self.missing.borrow_mut().insert(key.to_vec());
        // Nobody sees this: what is missing is read, and all is evaluated again.
        Err(MetadataError::Closed)
    }
}

impl Keyspace for View {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetadataError> {
        Ok(self.look(key)?.and_then(|known| known.value.clone()))
    }

    fn term(&self) -> Result<u64, MetadataError> {
        Ok(self.look(CONTROLLER)?.map_or(0, |known| known.revision))
    }

    fn put(&mut self, _: &[u8], _: &[u8]) -> Result<(), MetadataError> {
        Err(MetadataError::Closed)
    }

    fn delete(&mut self, _: &[u8]) -> Result<(), MetadataError> {
        Err(MetadataError::Closed)
    }

    fn delete_prefix(&mut self, _: &[u8]) -> Result<(), MetadataError> {
        Err(MetadataError::Closed)
    }
}

/// What a transaction is going to need, so that it is read at once.
#[derive(Default)]
pub(super) struct Footprint {
    /// Keys whose values matter.
    pub(super) keys: BTreeSet<Vec<u8>>,
    /// Keys that the caller believes to be absent.
    pub(super) absent: BTreeSet<Vec<u8>>,
    /// Ranges that matter as a whole.
    pub(super) prefixes: Vec<Vec<u8>>,
}

impl Footprint {
    pub(super) fn of(transaction: &Transaction) -> Self {
        let mut all = Self::default();
        let floor = || Key::Counter(Counter::EpochFloor).encode();
        for compare in &transaction.compare {
            let (key, absent) = match compare {
                Compare::StreamAbsent { name } => (Key::StreamName(name.clone()), true),
                Compare::Revision { key, revision } => (key.clone(), *revision == 0),
                &Compare::StreamletEpoch {
                    stream, streamlet, ..
                } => (Key::Streamlet(StreamletKey { stream, streamlet }), false),
                // Read and compared as a range.
                Compare::StreamletEpochs { stream, .. } => {
                    let prefix = key::stream_prefix(key::STREAMLET, *stream);
                    all.prefixes.push(prefix);
                    continue;
                }
                Compare::CounterValue { counter, value } => (Key::Counter(*counter), *value == 0),
                Compare::Controller { .. } => {
                    all.keys.insert(CONTROLLER.to_vec());
                    continue;
                }
            };
            all.insert(key, absent);
        }
        let created: BTreeSet<_> = transaction
            .write
            .iter()
            .filter_map(|write| match write {
                Write::PutStream(r) if all.absent.contains(&Key::Stream(r.id).encode()) => {
                    Some(r.id)
                }
                _ => None,
            })
            .collect();
        for write in &transaction.write {
            match write {
                Write::PutStream(r) => {
                    all.insert(Key::Stream(r.id), false);
                    if created.contains(&r.id) {
                        all.insert(Key::StreamName(r.name.clone()), true);
                    }
                }
                Write::DeleteStream(id) => {
                    all.insert(Key::Stream(*id), false);
                    all.keys.insert(floor());
                    all.prefixes.push(key::stream_prefix(key::STREAMLET, *id));
                }
                Write::PutStreamlet(r) => {
                    let new = created.contains(&r.stream);
                    all.insert(Key::Streamlet(r.key()), new);
                    if new {
                        all.keys.insert(floor());
                    } else {
                        all.insert(Key::Stream(r.stream), false);
                    }
                }
                Write::PutGroup(r) => {
                    all.insert(Key::Stream(r.stream), false);
                    all.insert(Key::Group(r.key()), false);
                }
                Write::PutLaneStart { key, .. } => {
                    all.insert(Key::Stream(key.stream), false);
                    all.insert(Key::LaneStart(*key), false);
                }
                Write::PutPin(r) => all.insert(Key::Stream(r.stream), false),
                Write::DeleteGroup(_)
                | Write::DeletePin(_)
                | Write::PutBroker(_)
                | Write::DeleteBroker(_)
                | Write::PutSettings(_)
                | Write::PutRules(_)
                | Write::PutUsers(_)
                | Write::PutQuotas(_) => {}
                Write::PutCounter { counter, .. } => all.insert(Key::Counter(*counter), false),
            }
        }
        all
    }

    fn insert(&mut self, key: Key, absent: bool) {
        let key = key.encode();
        if absent {
            self.absent.insert(key);
        } else if !self.absent.contains(&key) {
            self.keys.insert(key);
        }
    }
}
