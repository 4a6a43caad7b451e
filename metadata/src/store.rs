//! The one trait that every metadata store has.

use std::ops::Range;

use kera_protocol::ids::{Epoch, GroupId, StreamId, StreamletId, StreamletKey};

use crate::answer::CommitFuture;
use crate::check::MAX_ORDINAL;
use crate::encode::Record;
use crate::error::{Conflict, MetadataError};
use kera_records::key::{self, Key};
use kera_records::{
    BrokerRecord, Counter, GroupKey, GroupRecord, Image, LaneStart, PinKey, PinRecord,
    QuotasRecord, RulesRecord, SettingsRecord, StreamRecord, StreamletRecord, UsersRecord,
};
use kera_records::{Committed, Compare, Transaction, Write};

/// What is called with a transaction's outcome.
pub type Done = Box<dyn FnOnce(Result<Committed, MetadataError>) + Send>;

/// The epoch of a streamlet that was just created, where no stream was ever deleted; else it begins
/// above [`Counter::EpochFloor`].
pub const FIRST_EPOCH: Epoch = Epoch(1);
/// The id of a streamlet's first group.
pub const FIRST_GROUP: GroupId = GroupId(1);
/// Most producer ids of one block.
pub const MAX_PRODUCER_ID_BLOCK: u64 = 1 << 20;

/// Times that an operation made of a read and a transaction is begun anew after a conflict.
const ATTEMPTS: u32 = 32;
/// Streamlets that take a new epoch in one transaction, where the store allows so many.
const EPOCHS_PER_TRANSACTION: usize = 1024;

/// What was read, if it is a record of this kind.
macro_rules! record_of {
    ($read:expr, $kind:ident) => {
        $read.map(|found| match found {
            Some(Record::$kind(record)) => Some(record),
            _ => None,
        })
    };
}
pub(crate) use record_of;

/// Where streams, streamlets, groups, log starts and counters are recorded.
///
/// Transactions take effect as if one after the other; those that have anything in common, in the order
/// in which one caller submitted them. They count only once durable. See the crate's documentation for the records and the rules.
pub trait MetadataStore: Send + Sync + 'static {
    /// Everything, for a broker's start. Sees every transaction whose outcome was told before the
    /// call. Blocks; about 4 us per group.
    ///
    /// # Errors
    /// [`MetadataError::Corrupt`] if any record cannot be read or contradicts another.
    fn load(&self) -> Result<Image, MetadataError>;

    /// One streamlet's record, groups and log starts, such as an owner reads after it took the
    /// epoch. The image's other lists are empty. Blocks.
    fn load_streamlet(
        &self,
        stream: StreamId,
        streamlet: StreamletId,
    ) -> Result<Image, MetadataError>;

    /// One record, such as after an unknown outcome; `None` when it does not exist. Blocks.
    fn read(&self, key: &Key) -> Result<Option<Record>, MetadataError>;

    /// Every streamlet of every stream. Blocks.
    fn streamlets(&self) -> Result<Vec<StreamletRecord>, MetadataError>;

    /// Every record of one kind of [`OF_STREAMS`](kera_records::key::OF_STREAMS), of a stream or of all. The image's other
    /// lists are empty. Blocks.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn records_of(&self, kind: u8, stream: Option<StreamId>) -> Result<Image, MetadataError>;

    /// Hands a transaction over and returns at once. `done` runs exactly once, on the store's thread,
    /// when the transaction is durable or was refused; it must be short, and must not wait for this
    /// store. At the limit of waiting transactions `done` is told
    /// [`MetadataError::Overloaded`]. The caller may hold locks that `done` takes, except on a store
    /// that was closed: there `done` is told [`MetadataError::Closed`] on the calling thread.
    fn submit(&self, transaction: Transaction, done: Done);

    /// Most operations of one transaction: comparisons, or keys and ranges written, whichever is
    /// more. Greater ones are refused as invalid.
    fn max_operations(&self) -> usize;

    /// The cluster version that this store was made with, or 0 if it was made before there were any. The one that
    /// counts is the greater of this and what the settings of all brokers say.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn made_with(&self) -> Result<u32, MetadataError>;

    /// Finishes what waits, then ends the store's thread; later transactions are refused. Blocks.
    /// Dropping a store does the same.
    fn close(&self);

    /// Submits a transaction and blocks until its outcome is known. Not to be called in `done`, nor
    /// on a thread that runs async tasks.
    fn commit(&self, transaction: Transaction) -> Result<Committed, MetadataError> {
        self.commit_async(transaction).wait()
    }

    /// Submits a transaction, at once, and returns a future of its outcome.
    fn commit_async(&self, transaction: Transaction) -> CommitFuture {
        let (future, done) = CommitFuture::new();
        self.submit(transaction, done);
        future
    }

    /// A stream by its id.
    fn stream(&self, id: StreamId) -> Result<Option<StreamRecord>, MetadataError> {
        record_of!(self.read(&Key::Stream(id)), Stream)
    }

    /// The id of the stream of a name.
    fn stream_named(&self, name: &str) -> Result<Option<StreamId>, MetadataError> {
        record_of!(self.read(&Key::StreamName(name.to_owned())), StreamName)
    }

    /// A streamlet.
    fn streamlet(
        &self,
        stream: StreamId,
        streamlet: StreamletId,
    ) -> Result<Option<StreamletRecord>, MetadataError> {
        let key = StreamletKey { stream, streamlet };
        record_of!(self.read(&Key::Streamlet(key)), Streamlet)
    }

    /// A group.
    fn group(&self, key: GroupKey) -> Result<Option<GroupRecord>, MetadataError> {
        record_of!(self.read(&Key::Group(key)), Group)
    }

    /// A broker.
    fn broker(&self, id: u32) -> Result<Option<BrokerRecord>, MetadataError> {
        record_of!(self.read(&Key::Broker(id)), Broker)
    }

    /// Settings that were changed at run time, of a broker or of all; without values and with revision 0
    /// where none were.
    fn settings(&self, broker: Option<u32>) -> Result<SettingsRecord, MetadataError> {
        let found = record_of!(self.read(&Key::Settings(broker)), Settings)?;
        Ok(found.unwrap_or_else(|| SettingsRecord {
            broker,
            ..SettingsRecord::default()
        }))
    }

    /// The cluster version that counts; see [`kera_records::CLUSTER_VERSION`].
    fn cluster_version(&self) -> Result<u32, MetadataError> {
        let finalized = self.settings(None)?.cluster_version;
        Ok(finalized.max(self.made_with()?))
    }

    /// Who may do what; no rules and revision 0 where there were never any.
    fn rules(&self) -> Result<RulesRecord, MetadataError> {
        record_of!(self.read(&Key::Rules), Rules).map(Option::unwrap_or_default)
    }

    /// Users; none and revision 0 where there were never any.
    fn users(&self) -> Result<UsersRecord, MetadataError> {
        record_of!(self.read(&Key::Users), Users).map(Option::unwrap_or_default)
    }

    /// How much clients may do; no quotas and revision 0 where there were never any.
    fn quotas(&self) -> Result<QuotasRecord, MetadataError> {
        record_of!(self.read(&Key::Quotas), Quotas).map(Option::unwrap_or_default)
    }

    /// The pins of a stream, or of all, by stream and name.
    fn pins(&self, stream: Option<StreamId>) -> Result<Vec<PinRecord>, MetadataError> {
        Ok(self.records_of(key::PIN, stream)?.pins)
    }

    /// At most `most` pins of all streams, by stream and name: those after the pin `after`, whether that is there or not. To go
    /// over all pins without holding them all at once.
    fn pins_after(
        &self,
        after: Option<&PinKey>,
        most: usize,
    ) -> Result<Vec<PinRecord>, MetadataError> {
        let mut pins = self.pins(None)?;
        pins.retain(|pin| after.is_none_or(|after| pin.key() > *after));
        pins.truncate(most);
        Ok(pins)
    }

    /// The log starts of a stream, by lane; one that is absent begins at 0.
    fn lane_starts(&self, stream: StreamId) -> Result<Vec<LaneStart>, MetadataError> {
        Ok(self.records_of(key::LANE_START, Some(stream))?.lane_starts)
    }

    /// A counter's value; 0 if it was never used.
    fn counter(&self, counter: Counter) -> Result<u64, MetadataError> {
        record_of!(self.read(&Key::Counter(counter)), Counter).map(Option::unwrap_or_default)
    }

    /// Creates a stream with all its streamlets, owned by `owner`; see
    /// [`create_stream_over`](Self::create_stream_over).
    fn create_stream(
        &self,
        stream: StreamRecord,
        owner: u32,
    ) -> Result<(StreamRecord, Vec<StreamletRecord>), MetadataError> {
        self.create_stream_over(stream, &[owner])
    }

    /// Creates a stream with all its streamlets; streamlet `n` is owned by `owners[n % owners.len()]`.
    /// Nobody sees the stream before it is whole. Answers it with its revisions. Blocks; [`creation`] is
    /// the transaction for callers that must not.
    ///
    /// Their epoch is above that of every streamlet of a stream that was deleted.
    ///
    /// # Errors
    /// [`Conflict::StreamExists`] if the name is taken; no owners, and what [`StreamRecord`] forbids,
    /// as invalid.
    fn create_stream_over(
        &self,
        stream: StreamRecord,
        owners: &[u32],
    ) -> Result<(StreamRecord, Vec<StreamletRecord>), MetadataError> {
        create_over(self, stream, owners)
    }

    /// Gives every streamlet of `owner` its next epoch, in as few transactions as the store allows,
    /// and answers them with it. A broker calls this at every start, before it serves anything.
    /// Blocks.
    fn bump_epochs(&self, owner: u32) -> Result<Vec<StreamletRecord>, MetadataError> {
        bump_epochs(self, owner, CommitFuture::wait)
    }

    /// Takes `count` producer ids that nobody was given and nobody will be. They are durably taken
    /// when this returns; those not used are lost. Blocks.
    ///
    /// # Errors
    /// `count` outside 1 to [`MAX_PRODUCER_ID_BLOCK`], or no ids left, as invalid.
    fn allocate_producer_ids(&self, count: u64) -> Result<Range<u64>, MetadataError> {
        if !(1..=MAX_PRODUCER_ID_BLOCK).contains(&count) {
            return Err(MetadataError::invalid(format!(
                "a block of {count} producer ids is asked for; the legal range is 1 to {MAX_PRODUCER_ID_BLOCK}"
            )));
        }
        let counter = Counter::ProducerIds;
        let mut value = self.counter(counter)?;
        for _ in 0..ATTEMPTS {
            let start = value.max(1);
            // Kafka's producer ids are signed.
            let end = match start.checked_add(count) {
                Some(end) if end <= MAX_ORDINAL => end,
                _ => return Err(MetadataError::invalid("no producer ids are left")),
            };
            let outcome = self.commit(Transaction::new(
                vec![Compare::CounterValue { counter, value }],
                vec![Write::PutCounter {
                    counter,
                    value: end,
                }],
            ));
            match outcome {
                Ok(_) => return Ok(start..end),
                Err(MetadataError::Conflict(Conflict::Counter { found, .. })) => value = found,
                Err(error) => return Err(error),
            }
        }
        Err(MetadataError::Overloaded { waiting: 0 })
    }
}

/// The transaction that creates `stream` with all its streamlets, owned by `owner`, and the
/// streamlets, whose revision the outcome tells. `floor` is the value of [`Counter::EpochFloor`], 0 in
/// a store where no stream was ever deleted; the transaction compares it.
///
/// # Errors
/// Settings that are illegal, as invalid: nothing is made of a number of streamlets not yet checked.
pub fn creation(
    stream: &StreamRecord,
    owner: u32,
    floor: u64,
) -> Result<(Transaction, Vec<StreamletRecord>), MetadataError> {
    creation_over(stream, &[owner], floor)
}

/// [`creation`] with streamlet `n` owned by `owners[n % owners.len()]`.
///
/// # Errors
/// As [`creation`]; no owners, as invalid.
pub fn creation_over(
    stream: &StreamRecord,
    owners: &[u32],
    floor: u64,
) -> Result<(Transaction, Vec<StreamletRecord>), MetadataError> {
    if owners.is_empty() {
        return Err(MetadataError::invalid(format!(
            "stream `{}` is to be created and there is no broker to own it; start one",
            stream.name
        )));
    }
    stream.config.validate()?;
    let epoch = match u32::try_from(floor) {
        Ok(floor) if floor < i32::MAX as u32 => Epoch(floor + FIRST_EPOCH.0),
        _ => {
            return Err(MetadataError::invalid(
                "this store has used up its epochs; create the stream in a new data directory",
            ));
        }
    };
    let streamlets: Vec<_> = (0..stream.config.streamlets)
        .zip(owners.iter().cycle())
        .map(|(number, &owner)| StreamletRecord {
            stream: stream.id,
            streamlet: StreamletId(number),
            owner,
            epoch,
            next_group: FIRST_GROUP,
            restore: 0,
            awaits_jumps: 0,
            revision: 0,
        })
        .collect();
    let mut write = Vec::with_capacity(streamlets.len() + 1);
    write.push(Write::PutStream(stream.clone()));
    write.extend(streamlets.iter().cloned().map(Write::PutStreamlet));
    let compare = vec![
        Compare::StreamAbsent {
            name: stream.name.clone(),
        },
        Compare::revision(Key::Stream(stream.id), 0),
        Compare::CounterValue {
            counter: Counter::EpochFloor,
            value: floor,
        },
    ];
    Ok((Transaction::new(compare, write), streamlets))
}

/// [`MetadataStore::create_stream_over`] where one transaction creates the stream, or is taken for it.
pub(crate) fn create_over<S: MetadataStore + ?Sized>(
    store: &S,
    stream: StreamRecord,
    owners: &[u32],
) -> Result<(StreamRecord, Vec<StreamletRecord>), MetadataError> {
    let mut floor = store.counter(Counter::EpochFloor)?;
    for _ in 0..ATTEMPTS {
        let (transaction, mut streamlets) = creation_over(&stream, owners, floor)?;
        match store.commit(transaction) {
            Ok(Committed { revision }) => {
                for streamlet in &mut streamlets {
                    streamlet.revision = revision;
                }
                return Ok((StreamRecord { revision, ..stream }, streamlets));
            }
            // Another stream was deleted meanwhile.
            Err(MetadataError::Conflict(Conflict::Counter { found, .. })) => floor = found,
            Err(error) => return Err(error),
        }
    }
    Err(MetadataError::Overloaded { waiting: 0 })
}

/// [`MetadataStore::bump_epochs`] with `wait` to wait for each transaction.
pub(crate) fn bump_epochs<S: MetadataStore + ?Sized>(
    store: &S,
    owner: u32,
    wait: impl Fn(CommitFuture) -> Result<Committed, MetadataError>,
) -> Result<Vec<StreamletRecord>, MetadataError> {
    let mut left = store.streamlets()?;
    left.retain(|s| s.owner == owner);
    let mut bumped = Vec::with_capacity(left.len());
    let size = EPOCHS_PER_TRANSACTION.min(store.max_operations()).max(1);
    for _ in 0..ATTEMPTS {
        if left.is_empty() {
            bumped.sort_unstable_by_key(|s: &StreamletRecord| (s.stream, s.streamlet));
            return Ok(bumped);
        }
        for streamlet in &mut left {
            *streamlet = in_next_epoch(streamlet)?;
        }
        let waiting: Vec<_> = left
            .chunks(size)
            .map(|chunk| {
                let compare = chunk.iter().map(Compare::streamlet);
                let write = chunk.iter().cloned().map(Write::PutStreamlet);
                store.commit_async(Transaction::new(compare.collect(), write.collect()))
            })
            .collect();
        let mut retry = Vec::new();
        let mut failed = None;
        // Every answer is awaited, so that no transaction of this call outlives it.
        for (chunk, future) in left.chunks(size).zip(waiting) {
            match wait(future) {
                Ok(Committed { revision }) => {
                    bumped.extend(chunk.iter().map(|s| StreamletRecord {
                        revision,
                        ..s.clone()
                    }));
                }
                // A stream was altered or deleted meanwhile.
                Err(MetadataError::Conflict(_)) => {
                    for s in chunk {
                        let now = store.streamlet(s.stream, s.streamlet)?;
                        retry.extend(now.filter(|s| s.owner == owner));
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        left = retry;
    }
    Err(MetadataError::invalid(format!(
        "the streamlets of broker {owner} were changed by others through {ATTEMPTS} attempts to give them new epochs; is another broker running with this number?"
    )))
}

fn in_next_epoch(streamlet: &StreamletRecord) -> Result<StreamletRecord, MetadataError> {
    let next = streamlet.in_next_epoch(streamlet.owner);
    next.ok_or_else(|| {
        MetadataError::invalid(format!(
            "streamlet {}/{} has used up its epochs; copy the stream to a new one",
            streamlet.stream, streamlet.streamlet
        ))
    })
}
