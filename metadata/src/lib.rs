//! The metadata store: which streams, streamlets and groups exist, who may write them, where they end.
//!
//! A broker holds all of this in memory, reads it once at its start with [`MetadataStore::load`] and
//! from then on records every change before it acts on it. There is one trait, [`MetadataStore`],
//! and a store for each size of installation:
//!
//! * [`EmbeddedStore`]: a file of one broker (redb). Transactions that arrive while one fsync runs
//!   share the next.
//! * [`EtcdStore`]: etcd, which several brokers share (feature `etcd`, on unless left out).
//! * `MemoryStore`: for tests (feature `testing`); fails on demand, can be stepped, can be copied as if killed.
//!
//! Stores that brokers share also have [`ClusterStore`]: who is alive, what others change, who is
//! controller. For tests there is `MemoryCluster`.
//!
//! ```
//! use kera_metadata::*;
//!
//! let store = MemoryStore::new();
//! let record = StreamRecord::new("flights", StreamConfig::default(), 1_700_000_000_000);
//! let (stream, streamlets) = store.create_stream(record, 1)?;
//!
//! // A streamlet moves to another owner: a new epoch, if nobody else was faster.
//! let old = &streamlets[0];
//! let new = StreamletRecord { owner: 2, epoch: (old.epoch.0 + 1).into(), ..old.clone() };
//! let take_over = Transaction::new(vec![Compare::epoch(old)], vec![Write::PutStreamlet(new)]);
//! store.commit(take_over.clone())?;
//! assert!(matches!(
//!     store.commit(take_over),
//!     Err(MetadataError::Conflict(Conflict::Epoch { .. }))
//! ));
//! assert_eq!(store.stream_named("flights")?, Some(stream.id));
//! # Ok::<(), MetadataError>(())
//! ```
//!
//! # Records
//!
//! What they are stands in `kera-records`, whose names this crate exports too.
//! Commits of consumers are not here: they are too many, and live in an internal stream.
//!
//! # Transactions
//!
//! A [`Transaction`] compares, then writes, all or nothing. Each that writes takes one store-wide
//! revision and stamps it on all its records; revision 0 means "does not exist". A transaction that
//! fails a comparison is answered with a [`Conflict`] and changes nothing; one that is impossible
//! whatever the store holds is [`MetadataError::Invalid`]. Transactions take effect in the order
//! they were submitted, so a caller that submits under the lock it decides under keeps its order.
//!
//! The store enforces what a forgetful caller would get wrong:
//!
//! * **Who writes a group compares the streamlet's epoch and the group's revision.** The epoch stops
//!   an owner that was replaced, and an earlier life of the same broker; the revision stops two
//!   writers of one epoch, such as a retention job and a close, from undoing each other. An epoch
//!   never falls, and rises with every owner.
//! * **A group only moves forward**: ahead, open, closed. It is recorded ahead or open in the
//!   streamlet's present epoch only. While it is open its copies cannot change, so that every copy
//!   of the set holds what was acknowledged. It is closed once, by the owner or by whoever has the
//!   next epoch; then its end is final, and jobs change only copies, generation and live bytes.
//!   While a streamlet waits for its jumps after a restore of the store, a closed group may take the place of any record
//!   with its id.
//! * **Ids and ordinals are never reused.** Every group is below its streamlet's `next_group`, which
//!   never falls; a new group raises it in the same transaction, and a new epoch by more than an owner
//!   can have used without a record. Log starts and counters never fall.
//!   A closed group's `next_ordinal` is at least its end.
//! * **A stream is one piece.** Name, streamlets, `lane_by` and sizes are fixed at creation, lanes
//!   only grow, and a generation of lanes that was recorded stays. Deleting a stream deletes its
//!   name, streamlets, groups, log starts and pins in the same transaction, and frees the name.
//! * **Epochs rise for a name as well.** A deletion leaves its streamlets' highest epoch as the store's
//!   floor, and streamlets that are created later begin above it: a client that knew the deleted
//!   stream takes nothing of the new one for older than what it has seen.
//!
//! # Outcomes
//!
//! [`MetadataError::is_definite`] tells whether an error means that nothing was written. Only
//! [`MetadataError::UnknownOutcome`] does not: then read back ([`MetadataStore::read`]) before
//! acting. The record's revision and content tell whether the transaction took effect; a record that
//! is still as it was may be written again with the same comparisons, which refuse it if the first
//! attempt arrives late.
//!
//! # On etcd
//!
//! Keys are flat and ordered and values carry nothing that depends on a store, so that each record is
//! one of etcd's keys.
//!
//! * **Comparisons.** A record's revision is etcd's `mod_revision`; absence is 0 in both. Revisions
//!   begin anywhere and have gaps: leases and elections take some. An epoch is compared by the revision of
//!   the streamlet that has it, which is read or remembered; where the streamlet changed and the epoch
//!   did not, the transaction is evaluated and sent again.
//! * **Checks against what is there** (a group only moves forward, and the like) are made here, by the same
//!   code as in every store. All they rest on is compared by etcd with the transaction.
//! * **Order.** Transactions of one store that have a record, a streamlet or a stream in common take
//!   effect in the order they were submitted; others are under way at the same time.
//! * **Limits.** etcd takes 128 operations a transaction. [`MetadataStore::max_operations`] says how many
//!   of them are the caller's, [`MetadataStore::bump_epochs`] obeys it, and callers with bulk work cut it
//!   by [`Transaction::operations`]. Creating a stream of more streamlets writes these first and the
//!   stream last; until then nobody takes notice of them.
//! * **Unknown outcomes.** A transaction whose answer is lost is sent again within the time of one
//!   operation: it compares every record it writes, so that it takes effect once at most, and a number in
//!   what it wrote tells whether it had. What is unknown after that is told as
//!   [`MetadataError::UnknownOutcome`]; what certainly was not written, as
//!   [`MetadataError::Unavailable`].
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod answer;
mod check;
mod cluster;
mod embedded;
mod encode;
mod error;
#[cfg(feature = "etcd")]
mod etcd;
mod evaluate;
mod guard;
#[cfg(any(test, feature = "testing"))]
mod history;
mod image;
#[cfg(any(test, feature = "testing"))]
mod memory;
mod messages;
mod pin_form;
mod queue;
mod store;
mod wrong_store;

pub use answer::CommitFuture;
pub use check::{MAX_GENERATION_STARTS, MAX_GROUP_SPAN, MAX_ORDINAL, MAX_SETTINGS_BYTES};
#[cfg(any(test, feature = "testing"))]
pub use cluster::MemoryCluster;
pub use cluster::{
    AdvertisedAddress, Change, Changes, ClientKind, ClusterStore, Incarnation, LiveBroker,
    LiveState, Living, MAX_ADVERTISED, MAX_MEMBER_TEXT, MAX_REFUSAL_TEXT, MAX_REFUSALS, Membership,
    WatchLost, Watched,
};
pub use embedded::{EmbeddedOptions, EmbeddedStore, MAX_EMBEDDED_OPERATIONS};
pub use encode::Record;
pub use error::{Conflict, MetadataError};
#[cfg(feature = "etcd")]
pub use etcd::{
    EtcdAccess, EtcdOptions, EtcdStore, ImportOptions, ImportPlan, ImportProgress, ReadFile,
    StreamImport,
};
pub use kera_records::{
    AckPolicy, BatchCheck, BrokerRecord, CLUSTER_VERSION, Cleanup, Committed, Compare, Counter,
    Damage, Feature, GroupChange, GroupKey, GroupRecord, GroupState, INTERNAL_PREFIX, Image, Key,
    LaneBy, LaneGeneration, LaneStart, LossCause, LostRecords, MAX_COPIES, MAX_DAMAGE_DETAIL,
    MAX_NAME_LENGTH, PinKey, PinLoss, PinPolicy, PinRecord, Quota, QuotasRecord, Replica, Role,
    Rule, RulesRecord, SettingsRecord, StreamConfig, StreamRecord, StreamletRecord, TimestampType,
    Transaction, User, UserCredential, UsersRecord, Write, access, config, pin, quota, user,
    validate_internal_name, validate_stream_name,
};
#[cfg(any(test, feature = "testing"))]
pub use memory::{Asked, Fault, MemoryStore};
pub use store::{
    Done, FIRST_EPOCH, FIRST_GROUP, MAX_PRODUCER_ID_BLOCK, MetadataStore, creation, creation_over,
};
pub use wrong_store::Stranger;
