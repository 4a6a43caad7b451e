//! Rules that a broker breaks on purpose, so that tests of whole brokers are seen to notice. A build
//! for use, which has neither debug assertions nor the feature `testing`, breaks none, and does not look.

use kera_replication::faults::Faults;

/// Names the rule that brokers of this process break, by [`Rule::name`].
#[cfg(any(debug_assertions, feature = "testing"))]
const RULE: &str = "KERA_BROKEN_RULE";

macro_rules! rules {
    ($($(#[$doc:meta])* $rule:ident = $name:literal,)+) => {
        /// What a broker may break.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Rule {
            $( $(#[$doc])* $rule, )+
        }

        impl Rule {
            /// All of them.
            pub const ALL: &[Self] = &[$( Self::$rule, )+];

            /// As `KERA_BROKEN_RULE` names it.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$rule => $name, )+ }
            }
        }
    };
}

rules! {
    /// A group's owner acknowledges what one of the copies does not have.
    AcknowledgeWithoutCopy = "acknowledge_without_copy",
    /// A copy is served by whoever has its bytes, whatever the records list.
    UnlistedCopyServed = "unlisted_copy_served",
    /// A copy is served as far as its bytes go, not as far as its group is recorded to reach.
    CopyServedBeyondEnd = "copy_served_beyond_end",
    /// What has come of an open group is served from a copy.
    OpenCopyServed = "open_copy_served",
    /// Batches of a copy are served without a look at their checksums.
    CopyNotChecked = "copy_not_checked",
    /// Where a copy is damaged its reader is sent on behind the group.
    DamageSkipped = "damage_skipped",
    /// A Kafka client that fetches from a copy is told a high watermark below what it gets.
    CopyHeadLow = "copy_head_low",
    /// A Kafka client that fetches from a copy is told a high watermark above the owner's.
    CopyHeadHigh = "copy_head_high",
    /// A Kafka client may fetch from a copy whatever leader epoch it knows.
    CopyEpochNotCompared = "copy_epoch_not_compared",
    /// A broker that starts answers that it does not have its own files, for a while.
    OwnFilesDenied = "own_files_denied",
    /// A broker removes its files of others' streamlets that records name under another store id than its data
    /// directory's, such as what came to its store as a replica.
    StoreIdsCompared = "store_ids_compared",
    /// A broker answers a seal without ending anybody's right to write.
    SealingDisabled = "sealing_disabled",
    /// A broker forgets its seals when it is restarted.
    SealsForgotten = "seals_forgotten_at_restart",
    /// A broker takes replicas of an epoch below a seal.
    OpenAfterSeal = "open_after_seal",
    /// A broker answers a length for a replica of another incarnation.
    OldIncarnationAnswers = "old_incarnation_answers",
    /// The owner looks at which replicas it is building after it has read the records, not before.
    MarksReadLate = "marks_read_late",
    /// A recovery keeps a group that does not begin where the one before ends.
    OrdinalGapAccepted = "ordinal_gap_accepted",
    /// A replica that is built aside is recorded before it is whole.
    RecordedBeforeBuilt = "recorded_before_built",
    /// A replica that another stands for is freed before the other one is recorded.
    FreedBeforeRecorded = "freed_before_recorded",
    /// The record of a group whose owner only remembers bytes names the owner's file as if it had them.
    ProcessNotNamed = "process_not_named",
    /// An append is acknowledged as soon as its batches have their places.
    AcknowledgedAtOnce = "acknowledged_at_once",
    /// An append that may still take effect is refused as one that did not.
    UncertainRefused = "uncertain_refused",
    /// A batch that a producer sends again is stored again.
    DuplicatesStored = "duplicates_stored",
    /// A broker without a lease refuses sequences by what it knows of producers.
    StaleSequenceRefused = "stale_sequence_refused",
    /// A broker that another has sealed out goes on as the owner.
    SealIgnored = "seal_ignored",
    /// A broker that another has sealed out tells where its lanes end.
    SealedOutTellsEnds = "sealed_out_tells_ends",
    /// A broker that has not heard of a stream says that there is none.
    UnknownStreamGuessed = "unknown_stream_guessed",
    /// A coordinator answers before what it changed is durable.
    CommitAnsweredEarly = "commit_answered_early",
    /// A coordinator that starts reads its last events not at all.
    LastEventsNotRead = "last_events_not_read",
    /// A coordinator takes a transaction's markers for written where the owner of a lane did not answer.
    MarkersAssumed = "markers_assumed",
    /// A coordinator keeps no ends of transactions whose markers may be lost.
    EndsForgotten = "ends_forgotten",
    /// Readers get what is durable, whether or not its transaction is still open.
    OpenTransactionsShown = "open_transactions_shown",
    /// Readers get batches of transactions that were aborted.
    AbortedShown = "aborted_shown",
    /// Compaction leaves the oldest record of a key, not the newest.
    OldestRecordLeft = "oldest_record_left",
    /// Compaction takes keys for the same that share a byte of their hashes.
    KeysConfused = "keys_confused",
    /// Compaction drops a tombstone at once, though a reader may be between it and what it deletes.
    TombstonesDroppedEarly = "tombstones_dropped_early",
    /// A group that compaction rewrote is recorded at brokers that do not have its bytes.
    RewrittenNotShipped = "rewritten_not_shipped",
    /// A replica store answers that it has flushed, and flushes afterwards, or not at all.
    AnsweredBeforeFlush = "answered_before_flush",
    /// A replica store that flushes does not make the names of the files durable.
    NamesNotSynced = "names_not_synced",
    /// A flush counts for what came since it was asked for.
    NewerBytesCounted = "newer_bytes_counted",
    /// The last replica of a synced group counts as soon as it has the bytes.
    OneFlushNotAwaited = "one_flush_not_awaited",
    /// A synced group is closed as soon as its replicas have the bytes.
    ClosedBeforeFlush = "closed_before_flush",
    /// A reader whose next record compaction has removed is sent on behind what it asked for.
    CleanedPositionSkipped = "cleaned_position_skipped",
    /// What a member of a share group says of records is answered before its coordinator has kept it.
    SharesAnsweredEarly = "shares_answered_early",
    /// What a member of a share group has acquired is acquired by the next one that asks.
    ShareLocksIgnored = "share_locks_ignored",
    /// The next owner of a share group's partition counts records as finished that were only delivered.
    DeliveredTakenForDone = "delivered_taken_for_done",
    /// The metadata store is put back to an older state, and nobody tells the streamlets: lanes go on where it says.
    RestoreUntold = "restore_untold",
    /// What a share group gives up is done before its dead letter is written.
    LettersNotWritten = "letters_not_written",
    /// Retention waits for no pin.
    PinsIgnored = "pins_ignored",
    /// A share group's locks last until their holders say something.
    ShareLocksEndless = "share_locks_endless",
    /// What a member of a share group gives back wakes nobody.
    ShareNewsKept = "share_news_kept",
}

impl Rule {
    /// Whether brokers of this process break it: not unless a test says so.
    #[cfg(any(debug_assertions, feature = "testing"))]
    pub fn is_broken(self) -> bool {
        broken() == Some(self)
    }

    /// Whether brokers of this process break it: never.
    #[cfg(not(any(debug_assertions, feature = "testing")))]
    pub const fn is_broken(self) -> bool {
        false
    }
}

#[cfg(any(debug_assertions, feature = "testing"))]
fn broken() -> Option<Rule> {
    static BROKEN: std::sync::OnceLock<Option<Rule>> = std::sync::OnceLock::new();
    *BROKEN.get_or_init(|| {
        let name = std::env::var(RULE).ok()?;
        let rule = Rule::ALL.iter().copied().find(|rule| rule.name() == name);
        tracing::error!(name, ?rule, "this process breaks a rule on purpose");
        rule
    })
}

/// What replication breaks.
#[cfg(any(debug_assertions, feature = "testing"))]
pub(crate) fn faults() -> Faults {
    Faults {
        acknowledge_without_copy: Rule::AcknowledgeWithoutCopy.is_broken(),
        sealing_disabled: Rule::SealingDisabled.is_broken(),
        seals_forgotten_at_restart: Rule::SealsForgotten.is_broken(),
        open_after_seal: Rule::OpenAfterSeal.is_broken(),
        old_incarnation_answers: Rule::OldIncarnationAnswers.is_broken(),
        marks_read_late: Rule::MarksReadLate.is_broken(),
        ordinal_gap_accepted: Rule::OrdinalGapAccepted.is_broken(),
        recorded_before_built: Rule::RecordedBeforeBuilt.is_broken(),
        freed_before_recorded: Rule::FreedBeforeRecorded.is_broken(),
        process_not_named: Rule::ProcessNotNamed.is_broken(),
        answered_before_flush: Rule::AnsweredBeforeFlush.is_broken(),
        names_not_synced: Rule::NamesNotSynced.is_broken(),
        newer_bytes_counted: Rule::NewerBytesCounted.is_broken(),
        one_flush_not_awaited: Rule::OneFlushNotAwaited.is_broken(),
        closed_before_flush: Rule::ClosedBeforeFlush.is_broken(),
        rewritten_not_shipped: Rule::RewrittenNotShipped.is_broken(),
        ..Faults::default()
    }
}

/// What replication breaks: nothing.
#[cfg(not(any(debug_assertions, feature = "testing")))]
pub(crate) fn faults() -> Faults {
    Faults::default()
}
