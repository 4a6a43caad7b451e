//! Evaluates one transaction against a keyspace: what every store that keeps its own records shares.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use kera_protocol::ids::{Epoch, StreamId, StreamletId, StreamletKey};

use crate::check::{self, StreamLimits};
use crate::encode::{Record, decode_revision, decode_value, encode_value};
use crate::error::{Conflict, MetadataError};
use crate::guard::{Guards, distinct, not_back, unguarded};
use crate::store::record_of;
use kera_records::key::{self, Key};
use kera_records::{Compare, Transaction, Write};
use kera_records::{Counter, GroupRecord, StreamRecord, StreamletRecord};

/// An ordered map of bytes, inside a write that is not yet durable.
pub(crate) trait Keyspace {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetadataError>;
    /// Sets the value of a key.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), MetadataError>;
    /// Removes a key, which may be absent.
    fn delete(&mut self, key: &[u8]) -> Result<(), MetadataError>;
    /// Removes every key that begins with `prefix`.
    fn delete_prefix(&mut self, prefix: &[u8]) -> Result<(), MetadataError>;
    /// The term of the controller; 0 where none is elected.
    fn term(&self) -> Result<u64, MetadataError> {
        Ok(0)
    }
}

/// The streams' limits that transactions keep asking for. Holds only what the keyspace holds; must
/// be cleared when a write to the keyspace is taken back.
#[derive(Debug, Default)]
pub(crate) struct LimitsCache(HashMap<StreamId, StreamLimits>);

impl LimitsCache {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// What a transaction changes, once its comparisons were found to hold.
pub(crate) struct Changes {
    deleted: Vec<StreamId>,
    values: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    limits: HashMap<StreamId, StreamLimits>,
}

impl Changes {
    /// True when there is nothing to apply, so that no revision is used.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Each key that is written with its value, or deleted with none.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn values(&self) -> &BTreeMap<Vec<u8>, Option<Vec<u8>>> {
        &self.values
    }

    /// Each key that is written with its value, or deleted with none, for a store elsewhere.
    #[cfg(feature = "etcd")]
    pub(crate) fn into_values(self) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
        self.values
    }

    /// Streams of which everything is deleted.
    pub(crate) fn deleted(&self) -> &[StreamId] {
        &self.deleted
    }

    /// Applies the changes. After an error the keyspace holds some of them: its write must be taken
    /// back as a whole.
    pub(crate) fn apply(
        self,
        keyspace: &mut dyn Keyspace,
        cache: &mut LimitsCache,
    ) -> Result<(), MetadataError> {
        for id in self.deleted {
            for kind in key::OF_STREAMS {
                keyspace.delete_prefix(&key::stream_prefix(kind, id))?;
            }
            cache.0.remove(&id);
        }
        for (key, value) in self.values {
            match value {
                Some(value) => keyspace.put(&key, &value)?,
                None => keyspace.delete(&key)?,
            }
        }
        cache.0.extend(self.limits);
        Ok(())
    }
}

/// Evaluates `transaction` against `keyspace`: what it changes, its records stamped with
/// `revision`, or why it is refused.
pub(crate) fn evaluate(
    keyspace: &dyn Keyspace,
    cache: &mut LimitsCache,
    path: &Path,
    transaction: &Transaction,
    revision: u64,
    max_operations: usize,
) -> Result<Changes, MetadataError> {
    let operations = transaction.operations();
    if operations > max_operations {
        return Err(MetadataError::invalid(format!(
            "a transaction has {operations} operations; the legal range is 1 to {max_operations}, split it"
        )));
    }
    let mut view = View {
        keyspace,
        path,
        changes: BTreeMap::new(),
        limits: HashMap::new(),
        cache,
    };
    let guards = view.compare(&transaction.compare)?;
    distinct(&transaction.write)?;
    let mut deleted = Vec::new();
    // What refers to something is checked after what it refers to, however the caller ordered it.
    for rank in 0..=2 {
        for write in transaction.write.iter().filter(|w| rank_of(w) == rank) {
            match write {
                Write::PutStream(r) => view.put_stream(r, &guards, revision)?,
                Write::DeleteStream(id) => {
                    view.delete_stream(*id, &guards, revision)?;
                    deleted.push(*id);
                }
                Write::PutStreamlet(r) => view.put_streamlet(r, &guards, revision)?,
                Write::PutGroup(r) => {
                    view.put_group(r, &guards, revision, &transaction.write)?;
                }
                Write::DeleteGroup(key) => {
                    guards.require_epoch(key.streamlet_key(), write)?;
                    guards.require_existing(write)?;
                    view.changes.insert(write.key().encode(), None);
                }
                Write::PutLaneStart { key, ordinal } => {
                    guards.require_epoch(key.streamlet_key(), write)?;
                    let limits = view.limits(key.stream)?;
                    check::lane_start(key, *ordinal, limits)?;
                    if let Some(Record::LaneStart(old)) = view.record(&write.key())? {
                        not_back(write, old.ordinal, *ordinal)?;
                    }
                    let record = Record::LaneStart(kera_records::LaneStart {
                        key: *key,
                        ordinal: *ordinal,
                        revision,
                    });
                    view.put(&write.key(), &record, revision);
                }
                Write::PutBroker(r) => {
                    view.replace(
                        write,
                        &guards,
                        check::broker(r),
                        Record::Broker(r.clone()),
                        revision,
                    )?;
                }
                Write::DeleteBroker(_) => {
                    guards.require_existing(write)?;
                    view.changes.insert(write.key().encode(), None);
                }
                Write::PutSettings(r) => {
                    view.replace(
                        write,
                        &guards,
                        check::settings(r),
                        Record::Settings(r.clone()),
                        revision,
                    )?;
                }
                Write::PutUsers(r) => {
                    view.replace(
                        write,
                        &guards,
                        check::users(r),
                        Record::Users(r.clone()),
                        revision,
                    )?;
                }
                Write::PutQuotas(r) => {
                    view.replace(
                        write,
                        &guards,
                        check::quotas(r),
                        Record::Quotas(r.clone()),
                        revision,
                    )?;
                }
                Write::PutPin(r) => {
                    guards.require_revision(write)?;
                    let limits = view.limits(r.stream)?;
                    check::pin(r, limits)?;
                    view.put(&write.key(), &Record::Pin(r.clone()), revision);
                }
                Write::DeletePin(_) => {
                    guards.require_existing(write)?;
                    view.changes.insert(write.key().encode(), None);
                }
                Write::PutRules(r) => {
                    view.replace(
                        write,
                        &guards,
                        check::rules(r),
                        Record::Rules(r.clone()),
                        revision,
                    )?;
                }
                Write::PutCounter {
                    counter: Counter::EpochFloor,
                    ..
                } => {
                    return Err(MetadataError::invalid(
                        "the floor of epochs is raised by deleting streams only; leave it out",
                    ));
                }
                Write::PutCounter { counter, value } => {
                    let Some(old) = guards.counters.get(counter) else {
                        return Err(unguarded(write, "the counter's value"));
                    };
                    not_back(write, *old, *value)?;
                    view.put(&write.key(), &Record::Counter(*value), revision);
                }
            }
        }
    }
    Ok(Changes {
        deleted,
        values: view.changes,
        limits: view.limits,
    })
}

/// Streams come before streamlets, and those before all else.
fn rank_of(write: &Write) -> u8 {
    match write {
        Write::PutStream(_) | Write::DeleteStream(_) => 0,
        Write::PutStreamlet(_) => 1,
        _ => 2,
    }
}

/// The keyspace with the transaction's own writes over it.
struct View<'a> {
    keyspace: &'a dyn Keyspace,
    path: &'a Path,
    changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    limits: HashMap<StreamId, StreamLimits>,
    cache: &'a mut LimitsCache,
}

impl View<'_> {
    fn compare(&self, compare: &[Compare]) -> Result<Guards, MetadataError> {
        let mut guards = Guards::default();
        for condition in compare {
            match condition {
                Compare::StreamAbsent { name } => {
                    self.name_is_free(name)?;
                    guards.names.insert(name.clone());
                }
                Compare::Revision { key, revision } => {
                    self.revision(key, *revision, &mut guards)?;
                }
                Compare::StreamletEpoch {
                    stream,
                    streamlet,
                    epoch,
                } => self.epoch(*stream, *streamlet, *epoch, &mut guards)?,
                Compare::StreamletEpochs { stream, epochs } => {
                    for (streamlet, epoch) in epochs {
                        self.epoch(*stream, *streamlet, *epoch, &mut guards)?;
                    }
                }
                Compare::Controller { term } => {
                    let found = self.keyspace.term()?;
                    // 0 is nobody's term, whoever compares with it.
                    if found != *term || found == 0 {
                        return Err(Conflict::NotController {
                            expected: *term,
                            found,
                        }
                        .into());
                    }
                }
                Compare::CounterValue { counter, value } => {
                    let key = Key::Counter(*counter);
                    let found = match self.record(&key)? {
                        Some(Record::Counter(found)) => found,
                        _ => 0,
                    };
                    if found != *value {
                        return Err(Conflict::Counter {
                            key,
                            expected: *value,
                            found,
                        }
                        .into());
                    }
                    guards.counters.insert(*counter, found);
                }
            }
        }
        Ok(guards)
    }

    fn epoch(
        &self,
        stream: StreamId,
        streamlet: StreamletId,
        expected: Epoch,
        guards: &mut Guards,
    ) -> Result<(), MetadataError> {
        let found = self.streamlet(stream, streamlet)?.map(|s| s.epoch);
        if found != Some(expected) {
            return Err(Conflict::Epoch {
                stream,
                streamlet,
                expected,
                found,
            }
            .into());
        }
        guards
            .epochs
            .insert(StreamletKey { stream, streamlet }, expected);
        Ok(())
    }

    fn revision(&self, key: &Key, expected: u64, guards: &mut Guards) -> Result<(), MetadataError> {
        let bytes = key.encode();
        let found = match self.get(&bytes)? {
            Some(value) => {
                decode_revision(&bytes, &value).map_err(|detail| self.corrupt(key, &detail))?
            }
            None => 0,
        };
        if found != expected {
            return Err(Conflict::Revision {
                key: key.clone(),
                expected,
                found,
            }
            .into());
        }
        guards.revisions.insert(key.clone(), found);
        Ok(())
    }

    fn name_is_free(&self, name: &str) -> Result<(), MetadataError> {
        let key = Key::StreamName(name.to_owned()).encode();
        if self.get(&key)?.is_some() {
            return Err(Conflict::StreamExists {
                name: name.to_owned(),
            }
            .into());
        }
        Ok(())
    }

    /// Writes a record that is replaced as a whole.
    fn replace(
        &mut self,
        write: &Write,
        guards: &Guards,
        checked: Result<(), MetadataError>,
        record: Record,
        revision: u64,
    ) -> Result<(), MetadataError> {
        guards.require_revision(write)?;
        checked?;
        self.put(&write.key(), &record, revision);
        Ok(())
    }

    fn put_stream(
        &mut self,
        record: &StreamRecord,
        guards: &Guards,
        revision: u64,
    ) -> Result<(), MetadataError> {
        let key = Key::Stream(record.id);
        if !guards.revisions.contains_key(&key) && !guards.names.contains(&record.name) {
            return Err(unguarded(
                &Write::PutStream(record.clone()),
                "its revision or the absence of its name",
            ));
        }
        check::stream(record)?;
        match self.record(&key)? {
            Some(Record::Stream(old)) => {
                if let Some(found) = (!guards.revisions.contains_key(&key)).then_some(old.revision)
                {
                    // The name is free, yet the id is taken: no new stream.
                    return Err(Conflict::Revision {
                        key,
                        expected: 0,
                        found,
                    }
                    .into());
                }
                check::stream_change(&old, record)?;
            }
            _ => {
                self.name_is_free(&record.name)?;
                let name = Key::StreamName(record.name.clone());
                self.put(&name, &Record::StreamName(record.id), revision);
            }
        }
        self.limits.insert(record.id, StreamLimits::of(record));
        self.put(&key, &Record::Stream(record.clone()), revision);
        Ok(())
    }

    fn delete_stream(
        &mut self,
        id: StreamId,
        guards: &Guards,
        revision: u64,
    ) -> Result<(), MetadataError> {
        guards.require_existing(&Write::DeleteStream(id))?;
        let key = Key::Stream(id);
        let Some(Record::Stream(old)) = self.record(&key)? else {
            return Err(self.corrupt(&key, "the record is of another kind"));
        };
        self.changes.insert(key.encode(), None);
        self.changes
            .insert(Key::StreamName(old.name).encode(), None);
        let floor = self.epoch_floor()?;
        let mut highest = floor;
        for number in 0..old.config.streamlets {
            if let Some(streamlet) = self.streamlet(id, StreamletId(number))? {
                highest = highest.max(u64::from(streamlet.epoch.0));
            }
        }
        if highest > floor {
            let key = Key::Counter(Counter::EpochFloor);
            self.put(&key, &Record::Counter(highest), revision);
        }
        Ok(())
    }

    /// The highest epoch of all streamlets of deleted streams.
    fn epoch_floor(&self) -> Result<u64, MetadataError> {
        Ok(match self.record(&Key::Counter(Counter::EpochFloor))? {
            Some(Record::Counter(floor)) => floor,
            _ => 0,
        })
    }

    fn put_streamlet(
        &mut self,
        record: &StreamletRecord,
        guards: &Guards,
        revision: u64,
    ) -> Result<(), MetadataError> {
        let key = Key::Streamlet(record.key());
        let created_here = self.limits.contains_key(&record.stream)
            && self.keyspace_get(&Key::Stream(record.stream))?.is_none();
        let guarded = created_here
            || guards.revisions.contains_key(&key)
            || guards.epochs.contains_key(&record.key());
        if !guarded {
            return Err(unguarded(
                &Write::PutStreamlet(record.clone()),
                "the streamlet's epoch or revision",
            ));
        }
        check::streamlet(record, self.limits(record.stream)?)?;
        match self.streamlet(record.stream, record.streamlet)? {
            Some(old) => check::streamlet_change(&old, record)?,
            None => {
                let (floor, epoch) = (self.epoch_floor()?, u64::from(record.epoch.0));
                if epoch <= floor {
                    return Err(Conflict::MovesBack {
                        key,
                        current: floor + 1,
                        written: epoch,
                    }
                    .into());
                }
            }
        }
        self.put(&key, &Record::Streamlet(record.clone()), revision);
        Ok(())
    }

    fn put_group(
        &mut self,
        record: &GroupRecord,
        guards: &Guards,
        revision: u64,
        beside: &[Write],
    ) -> Result<(), MetadataError> {
        let key = Key::Group(record.key());
        if !guards.epochs.contains_key(&record.streamlet_key())
            || !guards.revisions.contains_key(&key)
        {
            return Err(unguarded(
                &Write::PutGroup(record.clone()),
                "the streamlet's epoch and the group's revision",
            ));
        }
        let limits = self.limits(record.stream)?;
        let Some(streamlet) = self.streamlet(record.stream, record.streamlet)? else {
            return Err(self.corrupt(&key, "its streamlet is gone"));
        };
        check::group(record, limits, &streamlet)?;
        // Groups of an older state of the store are what files say, until the streamlet is owned again.
        let is_put_right = streamlet.awaits_jumps > 0 && record.is_closed();
        if let Some(Record::Group(old)) = self.record(&key)?
            && !is_put_right
        {
            check::group_change(&old, record)?;
            if record.takes_in_others(&old) {
                let deleted = self.deleted_groups(record.streamlet_key(), beside)?;
                check::taken_in(&old, record, deleted)?;
            }
        }
        self.put(&key, &Record::Group(record.clone()), revision);
        Ok(())
    }

    /// The groups of a streamlet that `writes` delete, as they were before.
    fn deleted_groups(
        &self,
        streamlet: StreamletKey,
        writes: &[Write],
    ) -> Result<Vec<GroupRecord>, MetadataError> {
        let mut deleted = Vec::new();
        for write in writes {
            let Write::DeleteGroup(group) = write else {
                continue;
            };
            let key = write.key();
            if group.streamlet_key() == streamlet
                && let Some(value) = self.keyspace_get(&key)?
            {
                let record = decode_value(&key, &key.encode(), &value);
                match record.map_err(|detail| self.corrupt(&key, &detail))? {
                    Record::Group(record) => deleted.push(record),
                    _ => return Err(self.corrupt(&key, "the record is of another kind")),
                }
            }
        }
        Ok(deleted)
    }

    /// The limits of a stream that must exist.
    fn limits(&mut self, id: StreamId) -> Result<StreamLimits, MetadataError> {
        if let Some(limits) = self.limits.get(&id).or_else(|| self.cache.0.get(&id)) {
            return Ok(*limits);
        }
        match self.record(&Key::Stream(id))? {
            Some(Record::Stream(stream)) => {
                let limits = StreamLimits::of(&stream);
                self.cache.0.insert(id, limits);
                Ok(limits)
            }
            _ => Err(Conflict::Absent {
                key: Key::Stream(id),
            }
            .into()),
        }
    }

    fn streamlet(
        &self,
        stream: StreamId,
        streamlet: StreamletId,
    ) -> Result<Option<StreamletRecord>, MetadataError> {
        let key = StreamletKey { stream, streamlet };
        record_of!(self.record(&Key::Streamlet(key)), Streamlet)
    }

    fn record(&self, key: &Key) -> Result<Option<Record>, MetadataError> {
        let bytes = key.encode();
        match self.get(&bytes)? {
            Some(value) => decode_value(key, &bytes, &value)
                .map(Some)
                .map_err(|detail| self.corrupt(key, &detail)),
            None => Ok(None),
        }
    }

    fn put(&mut self, key: &Key, record: &Record, revision: u64) {
        let bytes = key.encode();
        let value = encode_value(&bytes, record, revision);
        self.changes.insert(bytes, Some(value));
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MetadataError> {
        match self.changes.get(key) {
            Some(changed) => Ok(changed.clone()),
            None => self.keyspace.get(key),
        }
    }

    fn keyspace_get(&self, key: &Key) -> Result<Option<Vec<u8>>, MetadataError> {
        self.keyspace.get(&key.encode())
    }

    fn corrupt(&self, key: &Key, detail: &str) -> MetadataError {
        MetadataError::Corrupt {
            path: self.path.to_path_buf(),
            detail: format!("{key}: {detail}"),
        }
    }
}
