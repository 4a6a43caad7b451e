//! Rules that can be broken on purpose, so that the property suite is seen to notice.

/// Which rules are broken. None in any broker; each is one flag looked at on control paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A backup answers a seal without ending anybody's right to write.
    pub sealing_disabled: bool,
    /// A backup forgets its seals when it is restarted.
    pub seals_forgotten_at_restart: bool,
    /// A backup accepts `open` of an epoch below a seal.
    pub open_after_seal: bool,
    /// A backup answers a length for a copy of another incarnation.
    pub old_incarnation_answers: bool,
    /// A store that was created empty takes over the id of the one that vanished.
    pub vanished_store_keeps_id: bool,
    /// A scan believes the length in a batch's header, without a checksum.
    pub scan_trusts_length: bool,
    /// The primary acknowledges what one of the set's copies has not completed.
    pub acknowledge_without_copy: bool,
    /// The store of records does not compare the streamlet's epoch.
    pub epoch_not_compared: bool,
    /// The store of records does not compare the record's revision.
    pub revision_not_compared: bool,
    /// The primary looks at which copies it is building after it has read the records, not before.
    pub marks_read_late: bool,
    /// Recovery keeps a group that does not begin where the one before ends.
    pub ordinal_gap_accepted: bool,
    /// A copy that is built aside is recorded before it is whole.
    pub recorded_before_built: bool,
    /// A copy that another stands for is freed before the other one is recorded.
    pub freed_before_recorded: bool,
    /// A backup answers a flush round before it has flushed.
    pub answered_before_flush: bool,
    /// A flush round does not make the names of the files durable.
    pub names_not_synced: bool,
    /// An answered flush round counts for what was placed since it was asked for.
    pub newer_bytes_counted: bool,
    /// The primary of a synced group counts the last of the set's replicas that flush as soon as it has the bytes.
    pub one_flush_not_awaited: bool,
    /// An empty disk in the place of another takes over its id.
    pub replaced_disk_keeps_id: bool,
    /// The record of a group whose owner only remembers bytes names the owner's file as if it had them.
    pub process_not_named: bool,
    /// The primary closes a synced group as soon as its replicas have the bytes.
    pub closed_before_flush: bool,
}
