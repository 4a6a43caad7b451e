//! Requests about partitions of share groups and their answers, in plain types.

use kera_protocol::ids::{Ordinal, StreamId};

use super::config::ShareConfig;
use crate::share::ShareState;

/// The owner of a partition begins to serve a share group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareOpen {
    /// The group's id.
    pub group: String,
    /// The partition's stream.
    pub stream: StreamId,
    /// The partition.
    pub partition: u32,
    /// The epoch under which the owner owns it.
    pub owner_epoch: u32,
}

/// The answer to a [`ShareOpen`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareOpened {
    /// What the owner writes is written under this.
    pub state_epoch: u64,
    /// Where the group stands; `None` if it has not read the partition yet.
    pub state: Option<ShareState>,
    /// What is set for the group.
    pub config: ShareConfig,
}

/// The owner has it kept where a group stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareWrite {
    /// The group's id.
    pub group: String,
    /// The partition's stream.
    pub stream: StreamId,
    /// The partition.
    pub partition: u32,
    /// As it was opened.
    pub state_epoch: u64,
    /// What is to be kept.
    pub state: ShareState,
}

/// What is to be set for a group: nothing to read what is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareConfigure {
    /// The group's id; made if something is set for it.
    pub group: String,
    /// Names and values; `None` for the default.
    pub changes: Vec<(String, Option<String>)>,
    /// What is not named gets its default.
    pub whole: bool,
    /// Nothing is set, it is only checked.
    pub validate_only: bool,
    /// The client's host; empty if that is not known.
    pub client_host: String,
}

/// Where a share group stands in a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareOffset {
    /// The partition's stream.
    pub stream: StreamId,
    /// The partition.
    pub partition: u32,
    /// All records below are done; `None` if nobody has read the partition yet.
    pub start: Option<Ordinal>,
    /// Records behind it that are done.
    pub done: u64,
    /// The epoch of its owner.
    pub owner_epoch: u32,
}

/// Where an empty share group is to stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareSetOffsets {
    /// The group's id.
    pub group: String,
    /// Streams, partitions and offsets; `None` to forget the partition. Where it is forgotten the group begins anew, as it
    /// is set for it.
    pub offsets: Vec<(StreamId, u32, Option<Ordinal>)>,
}
