//! Rules that can be broken on purpose, so that the property suite is seen to notice.

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Which rules are broken. None in a build for use: there it is nothing, and every rule is kept without a look.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Faults {
            $(
                $(#[$doc])*
                #[cfg(any(debug_assertions, feature = "testing"))]
                pub $name: bool,
            )*
        }

        // Some rules are those of test doubles.
        #[cfg_attr(not(feature = "testing"), allow(dead_code))]
        impl Faults {
            $(
                #[cfg(any(debug_assertions, feature = "testing"))]
                pub(crate) const fn $name(&self) -> bool {
                    self.$name
                }

                #[cfg(not(any(debug_assertions, feature = "testing")))]
                pub(crate) const fn $name(&self) -> bool {
                    false
                }
            )*
        }
    };
}

faults! {
    /// A backup answers a seal without ending anybody's right to write.
    sealing_disabled,
    /// A backup forgets its seals when it is restarted.
    seals_forgotten_at_restart,
    /// A backup accepts `open` of an epoch below a seal.
    open_after_seal,
    /// A backup answers a length for a copy of another incarnation.
    old_incarnation_answers,
    /// A store that was created empty takes over the id of the one that vanished.
    vanished_store_keeps_id,
    /// A scan believes the length in a batch's header, without a checksum.
    scan_trusts_length,
    /// The primary acknowledges what one of the set's copies has not completed.
    acknowledge_without_copy,
    /// The store of records does not compare the streamlet's epoch.
    epoch_not_compared,
    /// The store of records does not compare the record's revision.
    revision_not_compared,
    /// The primary looks at which copies it is building after it has read the records, not before.
    marks_read_late,
    /// Recovery keeps a group that does not begin where the one before ends.
    ordinal_gap_accepted,
    /// A copy that is built aside is recorded before it is whole.
    recorded_before_built,
    /// A copy that another stands for is freed before the other one is recorded.
    freed_before_recorded,
    /// A group that was made of others is recorded at brokers that do not have its bytes.
    rewritten_not_shipped,
    /// A backup answers a flush round before it has flushed.
    answered_before_flush,
    /// A flush round does not make the names of the files durable.
    names_not_synced,
    /// An answered flush round counts for what was placed since it was asked for.
    newer_bytes_counted,
    /// The primary of a synced group counts the last of the set's replicas that flush as soon as it has the bytes.
    one_flush_not_awaited,
    /// An empty disk in the place of another takes over its id.
    replaced_disk_keeps_id,
    /// The record of a group whose owner only remembers bytes names the owner's file as if it had them.
    process_not_named,
    /// The primary closes a synced group as soon as its replicas have the bytes.
    closed_before_flush,
}
