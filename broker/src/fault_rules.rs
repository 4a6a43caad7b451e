//! Rules that a broker breaks on purpose, so that tests of whole brokers are seen to notice. A build
//! for use, which has no debug assertions, breaks none, and does not look.

use kera_replication::faults::Faults;

/// Names the rule that brokers of this process break, by [`Rule::name`].
#[cfg(debug_assertions)]
const RULE: &str = "KERA_BROKEN_RULE";

/// What a broker may break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A group's owner acknowledges what one of the copies does not have.
    AcknowledgeWithoutCopy,
    /// A copy is served by whoever has its bytes, whatever the records list.
    UnlistedCopyServed,
    /// A copy is served as far as its bytes go, not as far as its group is recorded to reach.
    CopyServedBeyondEnd,
    /// What has come of an open group is served from a copy.
    OpenCopyServed,
    /// Batches of a copy are served without a look at their checksums.
    CopyNotChecked,
    /// Where a copy is damaged its reader is sent on behind the group.
    DamageSkipped,
    /// A Kafka client that fetches from a copy is told a high watermark below what it gets.
    CopyHeadLow,
    /// A Kafka client that fetches from a copy is told a high watermark above the owner's.
    CopyHeadHigh,
    /// A Kafka client may fetch from a copy whatever leader epoch it knows.
    CopyEpochNotCompared,
    /// A broker that starts answers that it does not have its own files, for a while.
    OwnFilesDenied,
    /// A broker removes its files of others' streamlets that records name under another store id than its data
    /// directory's, such as what came to its store as a replica.
    StoreIdsCompared,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::AcknowledgeWithoutCopy,
        Self::UnlistedCopyServed,
        Self::CopyServedBeyondEnd,
        Self::OpenCopyServed,
        Self::CopyNotChecked,
        Self::DamageSkipped,
        Self::CopyHeadLow,
        Self::CopyHeadHigh,
        Self::CopyEpochNotCompared,
        Self::OwnFilesDenied,
        Self::StoreIdsCompared,
    ];

    /// As `KERA_BROKEN_RULE` names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AcknowledgeWithoutCopy => "acknowledge_without_copy",
            Self::UnlistedCopyServed => "unlisted_copy_served",
            Self::CopyServedBeyondEnd => "copy_served_beyond_end",
            Self::OpenCopyServed => "open_copy_served",
            Self::CopyNotChecked => "copy_not_checked",
            Self::DamageSkipped => "damage_skipped",
            Self::CopyHeadLow => "copy_head_low",
            Self::CopyHeadHigh => "copy_head_high",
            Self::CopyEpochNotCompared => "copy_epoch_not_compared",
            Self::OwnFilesDenied => "own_files_denied",
            Self::StoreIdsCompared => "store_ids_compared",
        }
    }

    /// Whether brokers of this process break it: not unless a test says so.
    #[cfg(debug_assertions)]
    pub fn is_broken(self) -> bool {
        broken() == Some(self)
    }

    /// Whether brokers of this process break it: never.
    #[cfg(not(debug_assertions))]
    pub const fn is_broken(self) -> bool {
        false
    }
}

#[cfg(debug_assertions)]
fn broken() -> Option<Rule> {
    static BROKEN: std::sync::OnceLock<Option<Rule>> = std::sync::OnceLock::new();
    *BROKEN.get_or_init(|| {
        let name = std::env::var(RULE).ok()?;
        let rule = Rule::ALL.into_iter().find(|rule| rule.name() == name);
        tracing::error!(name, ?rule, "this process breaks a rule on purpose");
        rule
    })
}

/// What replication breaks.
#[cfg(debug_assertions)]
pub(crate) fn faults() -> Faults {
    Faults {
        acknowledge_without_copy: Rule::AcknowledgeWithoutCopy.is_broken(),
        ..Faults::default()
    }
}

/// What replication breaks: nothing.
#[cfg(not(debug_assertions))]
pub(crate) fn faults() -> Faults {
    Faults::default()
}
