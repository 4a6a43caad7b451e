//! Partitions of share groups (KIP-932), and what is set for groups.
//!
//! Who reads a share group's partition from where is decided by the owner of its lane, in a
//! [`SharePartition`](crate::share::SharePartition). The coordinator keeps what the owner has it keep.
//!
//! # The rules
//! - **One owner at a time.** An owner begins with [`ShareOpen`], which takes another state epoch, and writes under that
//!   epoch. Writes of the owner before it are refused from then on. An owner under an older epoch of the streamlet does not begin.
//! - **Offsets** of an empty group may be set or deleted. That takes another state epoch too.
//! - **A partition ends** with its stream, with its group, and with its group's retention of offsets once nobody is in it.

mod config;
mod event;
mod kept;
mod record;
mod request;
mod serve;

pub use config::{CONFIGS, DEAD_LETTER_TOPIC, Isolation, Reset, ShareConfig};
pub use request::{
    ShareConfigure, ShareOffset, ShareOpen, ShareOpened, ShareSetOffsets, ShareWrite,
};

pub(crate) use event::{ShareConfigSet, ShareSet, SharesRemoved};
pub(crate) use record::ShareRecord;

/// What Kafka calls the kind of group, and of its protocol.
pub const SHARE: &str = "share";
