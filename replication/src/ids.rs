//! Names: of copies, of those who hold them, and of the lives that copies' bytes survive.

use std::fmt;
use std::ops::RangeInclusive;

use kera_log_segments::check::CheckSpec;
use kera_log_segments::window::Place;
use kera_protocol::ids::{Epoch, GroupId};

pub use kera_protocol::ack::AckPolicy;
pub use kera_protocol::ids::{BrokerId, Incarnation, StreamletKey};
use kera_records::GroupRecord;
pub use kera_records::Replica;

/// A group as written under its one epoch, or as a later compaction wrote it; each holder has at most one copy under
/// this name. Bytes of another generation are another copy, whatever else they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyId {
    /// The streamlet.
    pub streamlet: StreamletKey,
    /// The group.
    pub group: GroupId,
    /// The group's one epoch.
    pub epoch: Epoch,
    /// The file generation: 0 as appended, more after compactions.
    pub generation: u32,
}

impl CopyId {
    /// The copies that `record` names.
    pub fn of(record: &GroupRecord) -> Self {
        Self {
            streamlet: record.streamlet_key(),
            group: record.group,
            epoch: record.epoch,
            generation: record.generation,
        }
    }

    /// All copies of a streamlet, in the order of their ids.
    pub fn all_of(streamlet: StreamletKey) -> RangeInclusive<Self> {
        let at = |group, epoch, generation| Self {
            streamlet,
            group: GroupId(group),
            epoch: Epoch(epoch),
            generation,
        };
        at(0, 0, 0)..=at(u64::MAX, u32::MAX, u32::MAX)
    }

    /// What to look for when the copy's bytes are checked; its group is closed at `end`.
    pub(crate) fn check_spec(&self, end: Place) -> CheckSpec {
        CheckSpec {
            stream: self.streamlet.stream,
            streamlet: self.streamlet.streamlet,
            group: self.group,
            epoch: self.epoch,
            generation: self.generation,
            end,
        }
    }
}

impl fmt::Display for CopyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (streamlet, group, epoch) = (self.streamlet, self.group, self.epoch);
        match self.generation {
            0 => write!(f, "{streamlet}/{group} of epoch {epoch}"),
            generation => write!(
                f,
                "{streamlet}/{group} of epoch {epoch}, generation {generation}"
            ),
        }
    }
}

/// What further replicas of a group have to do with bytes before they count, of which the record names these: the
/// lives that it names tell. A group whose owner only remembers bytes asks of others what [`AckPolicy::Written`] asks.
pub fn asked_of(replicas: &[Replica]) -> AckPolicy {
    match replicas.iter().any(|r| r.incarnation.is_of_disk()) {
        true => AckPolicy::Synced,
        false => AckPolicy::Written,
    }
}

/// A random number that every start of a backup draws anew: bytes are sent again only to the
/// process that received them first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProcessId(pub u64);

/// Names a registered buffer at a backup: one segment of one copy. Random, never given to another
/// copy, and worthless once the copy is sealed or freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferKey(pub u64);
