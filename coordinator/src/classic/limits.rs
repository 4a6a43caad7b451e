//! What bounds classic groups.

/// Limits of the classic groups of one [`Coordinator`](crate::Coordinator). The numbers of groups
/// and of members are those of [`crate::Limits`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Shortest session a member may ask for, milliseconds.
    pub min_session_ms: u32,
    /// Longest session a member may ask for, milliseconds.
    pub max_session_ms: u32,
    /// How long the first rebalance of an empty group waits for more members, milliseconds. 0: only
    /// for members that were told their id and have not come back yet.
    pub initial_delay_ms: u32,
    /// How long a member of the consumer protocol may be silent, milliseconds,
    pub consumer_session_ms: u32,
    /// and how often it is to say something.
    pub consumer_heartbeat_ms: u32,
    /// Bytes of a group's id.
    pub group_id_bytes: usize,
    /// Bytes of a client id, an instance id, or the name of a protocol.
    pub name_bytes: usize,
    /// Protocols that one member offers.
    pub protocols: usize,
    /// Bytes of metadata of one member, over all its protocols.
    pub member_bytes: usize,
    /// Bytes of one member's assignment.
    pub assignment_bytes: usize,
    /// Bytes of metadata and assignments of one group.
    pub group_bytes: usize,
    /// Bytes of metadata and assignments of all groups; as many again of offsets with their metadata.
    pub total_bytes: usize,
    /// A group up to this many bytes may grow even where all groups together are at their limit: what
    /// some take holds up no others.
    pub small_group_bytes: usize,
    /// Bytes of offsets, with their metadata, of one group.
    pub group_offset_bytes: usize,
    /// Offsets of one group.
    pub offsets: usize,
    /// Bytes of metadata of one offset.
    pub offset_metadata_bytes: usize,
    /// How long offsets outlive the last member of their group, milliseconds; 0: for ever.
    pub offset_retention_ms: u64,
    /// How long a group without members and offsets is kept, milliseconds.
    pub empty_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            min_session_ms: 1_000,
            max_session_ms: 1_800_000,
            initial_delay_ms: 0,
            consumer_session_ms: 45_000,
            consumer_heartbeat_ms: 5_000,
            group_id_bytes: 1_024,
            name_bytes: 1_024,
            protocols: 32,
            member_bytes: 256 << 10,
            assignment_bytes: 512 << 10,
            group_bytes: 16 << 20,
            total_bytes: 256 << 20,
            small_group_bytes: 16 << 10,
            group_offset_bytes: 16 << 20,
            offsets: 100_000,
            offset_metadata_bytes: 4_096,
            offset_retention_ms: 7 * 24 * 3_600_000,
            empty_ms: 60_000,
        }
    }
}
