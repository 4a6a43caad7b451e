//! What is recorded of brokers, streams, streamlets and groups: plain values, and the transactions that
//! change them. No I/O: `kera-metadata` keeps them in a file or in etcd.
//!
//! | record | key | what it says |
//! |---|---|---|
//! | [`StreamRecord`] | stream | name, settings, how lanes grew |
//! | [`StreamletRecord`] | stream, streamlet | owner, epoch, the next group id |
//! | [`GroupRecord`] | stream, streamlet, group | lane, epoch, state, where it begins and ends, replicas |
//! | [`LaneStart`] | stream, streamlet, lane | the least ordinal that may be read |
//! | [`BrokerRecord`] | broker | address and incarnation |
//! | [`Counter`] | counter | the next producer id; the highest epoch of deleted streams |
//! | [`SettingsRecord`] | broker, or all | broker settings that were changed at run time |
//! | [`RulesRecord`] | - | who may do what |
//! | [`UsersRecord`] | - | users, and what is kept of their passwords |
//! | [`QuotasRecord`] | - | how much clients may do |
//! | [`PinRecord`] | stream, name | positions that retention is to spare |
//! | stream name | name | the id of the stream of that name |
//!
//! [`seldom`] limits lines of the log, for all who write or read these records.
//!
//! ```
//! use kera_records::*;
//!
//! let config = StreamConfig { streamlets: 4, ..StreamConfig::default() };
//! let stream = StreamRecord::new("flights", config, 1_700_000_000_000);
//! let create = Transaction::new(
//!     vec![Compare::StreamAbsent { name: stream.name.clone() }],
//!     vec![Write::PutStream(stream.clone())],
//! );
//! // The stream's record, and its name.
//! assert_eq!(create.operations(), 2);
//! assert_eq!(create.write[0].key(), Key::Stream(stream.id));
//! ```
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

pub mod access;
pub mod config;
mod convert;
pub mod key;
mod lost;
mod name;
mod numbered;
pub mod pin;
pub mod quota;
mod record;
pub mod seldom;
mod transaction;
pub mod user;
mod version;

pub use access::{Rule, RulesRecord};
pub use config::{AckPolicy, BatchCheck, Cleanup, LaneBy, StreamConfig, TimestampType};
pub use key::Key;
pub use lost::{LostRecords, MAX_LOST_STRETCHES};
pub use name::{INTERNAL_PREFIX, MAX_NAME_LENGTH, validate_internal_name, validate_stream_name};
pub use pin::{LossCause, PinKey, PinLoss, PinPolicy, PinRecord};
pub use quota::{Quota, QuotasRecord};
pub use record::{
    BrokerRecord, Counter, Damage, GroupKey, GroupRecord, GroupState, Image, LaneGeneration,
    LaneStart, MAX_COPIES, MAX_DAMAGE_DETAIL, Replica, Role, SettingsRecord, StreamRecord,
    StreamletRecord,
};
pub use transaction::{Committed, Compare, GroupChange, Transaction, Write};
pub use user::{User, UserCredential, UsersRecord};
pub use version::{CLUSTER_VERSION, Feature};
