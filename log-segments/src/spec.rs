//! The fixed facts of a group.

use std::path::PathBuf;

use kera_protocol::ids::{Epoch, GroupId, LaneKey, Ordinal};

/// A group spans no more ordinals, so that a jump by as many is never too short.
pub const MAX_GROUP_ORDINALS: u64 = 1 << 32;

/// The fixed facts of a group.
#[derive(Clone, Debug)]
pub struct GroupSpec {
    /// Its lane.
    pub lane: LaneKey,
    /// Its id.
    pub group: GroupId,
    /// Its file generation.
    pub generation: u32,
    /// Its one epoch.
    pub epoch: Epoch,
    /// Bytes of each segment.
    pub segment_size: u32,
    /// Most segments.
    pub segments: u32,
    /// Ordinal of its first record.
    pub first_ordinal: Ordinal,
    /// When it was begun, milliseconds since 1970.
    pub created_ms: u64,
    /// Its file.
    pub path: PathBuf,
}

impl GroupSpec {
    /// Bytes of all segments; marks and footer stand behind them.
    pub fn group_bytes(&self) -> u64 {
        u64::from(self.segment_size) * u64::from(self.segments)
    }

    /// What the group's replicas are called by: its id, epoch and file generation.
    pub fn name(&self) -> (GroupId, Epoch, u32) {
        (self.group, self.epoch, self.generation)
    }

    /// The name of the group's file within its streamlet's directory.
    pub fn file_name(group: GroupId, generation: u32) -> String {
        format!("{:016}.{generation}.log", group.0)
    }

    /// Reads group and generation back from a file name; `None` for a foreign file.
    pub fn parse_file_name(name: &str) -> Option<(GroupId, u32)> {
        let stem = name.strip_suffix(".log")?;
        let (group, generation) = stem.split_once('.')?;
        Some((GroupId(group.parse().ok()?), generation.parse().ok()?))
    }
}
