//! What can be wrong with a history.

mod class;
mod display;
mod evidence;

pub use class::{Class, Scope};

use serde::{Deserialize, Serialize};

use crate::event::{Lane, LeaseRef, Place, Reader, Record};

/// Which order was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderBreach {
    /// The lane itself holds a producer's records in another order than sent.
    Stored,
    /// A reader got a lower ordinal of a lane for the first time after a higher one.
    Delivered,
    /// An ordered group got a producer's records of one key in another order than sent.
    Key,
}

/// Why a record should not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhantomReason {
    /// The payload is not one of this history, or was altered.
    Altered,
    /// It was read, but never sent before.
    NeverSent,
    /// It was acknowledged, but never sent before.
    AcknowledgedUnsent,
    /// Its producer was told that it is not stored.
    FailedDefinitely,
}

/// How the durable head was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadBreach {
    /// A read returned a record at or above the head that the same response, or a later one, stated.
    Read,
    /// An acknowledgement named an ordinal at or above a head stated later.
    Acknowledged,
    /// A record was read that was later reported lost: it was not durable when it was read.
    LaterLost,
}

/// Something that a broker which keeps its promises could not have caused, with the least that
/// shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Anomaly {
    /// Acknowledged, and never read by anyone although a reader came past it.
    Lost {
        /// The record.
        record: Record,
        /// Where it was acknowledged; none if its producer was not told.
        place: Option<Place>,
        /// Who came past it; none if the history was said to be complete.
        passed_by: Option<Reader>,
    },
    /// One record is stored at two ordinals.
    StoredTwice {
        /// The record.
        record: Record,
        /// Where it was seen first.
        first: Place,
        /// Where it was seen, too.
        second: Place,
    },
    /// A reader got one ordinal twice, where it was to get it once.
    DeliveredTwice {
        /// The reader.
        reader: Reader,
        /// The ordinal.
        place: Place,
        /// Time of the second delivery.
        at: u64,
        /// Whether the call that brought it had brought the one before, too.
        scope: Scope,
    },
    /// Records are out of order.
    Reordered {
        /// Which order.
        how: OrderBreach,
        /// The lane of the later one.
        lane: Lane,
        /// The one that came first, with its ordinal.
        earlier: (Option<Record>, u64),
        /// The one that came after it and should have come before, with its ordinal.
        later: (Option<Record>, u64),
        /// Whose order it is; none for that of the lane.
        reader: Option<Reader>,
        /// Whether both were sent, or delivered, with one call.
        scope: Scope,
    },
    /// A reader came past ordinals that were never delivered to it.
    Unseen {
        /// The reader.
        reader: Reader,
        /// The lane.
        lane: Lane,
        /// The first ordinal.
        from: u64,
        /// The end, exclusive.
        to: u64,
        /// Whether the records around them came with one call; none if it claimed to have seen them.
        scope: Option<Scope>,
    },
    /// A member came past ordinals of its lease that it did not get under it, although the group got
    /// them at another time.
    Skipped {
        /// The lease.
        lease: LeaseRef,
        /// The lane.
        lane: Lane,
        /// The first ordinal.
        from: u64,
        /// The end, exclusive.
        to: u64,
        /// Whether the records around them came with one call.
        scope: Scope,
    },
    /// A record that should not exist.
    Phantom {
        /// Why not.
        reason: PhantomReason,
        /// Where it is.
        place: Place,
        /// What it says it is.
        record: Option<Record>,
    },
    /// A record is in another streamlet or lane than the one it was sent to.
    Misplaced {
        /// The record.
        record: Record,
        /// Where it is.
        place: Place,
        /// The stream it was sent to.
        stream: u32,
        /// The streamlet it was sent to, if it was given.
        streamlet: Option<u32>,
        /// The lane it was sent to, if it was given.
        lane: Option<u32>,
    },
    /// Something at or above the durable head was shown.
    AboveHead {
        /// How.
        how: HeadBreach,
        /// What was shown.
        place: Place,
        /// The head; for a record later lost, the start of the gap.
        head: u64,
    },
    /// A consumer got an ordinal that had been trimmed before it began to read.
    BelowStart {
        /// The consumer.
        reader: Reader,
        /// The ordinal.
        place: Place,
        /// The first ordinal that was still stored.
        start: u64,
    },
    /// An ordinal held two records.
    OrdinalReused {
        /// The ordinal.
        place: Place,
        /// What it held first.
        first: Record,
        /// What it held then.
        second: Record,
    },
    /// A record is read elsewhere than where it was acknowledged.
    InconsistentOrdinal {
        /// The record.
        record: Record,
        /// Where it was acknowledged.
        acknowledged: Place,
        /// Where it was read.
        read: Place,
    },
    /// Two members held leases of the same ordinals at once, or one lease was given twice.
    LeasedTwice {
        /// The lane.
        lane: Lane,
        /// The older lease.
        first: LeaseRef,
        /// The younger lease; the same for a lease given twice.
        second: LeaseRef,
        /// The first ordinal of both.
        from: u64,
        /// The end of both, exclusive; none if there is none.
        to: Option<u64>,
        /// Time at which both are known to be live.
        at: u64,
    },
    /// A member got an ordinal outside of the lease that it was read under.
    OutsideLease {
        /// The lease.
        lease: LeaseRef,
        /// The ordinal.
        place: Place,
    },
    /// Durable data that no lease covered although the group kept asking.
    NeverLeased {
        /// The group.
        group: u32,
        /// The lane.
        lane: Lane,
        /// The first ordinal that was not leased.
        from: u64,
        /// The end, exclusive.
        to: u64,
        /// Requests in a row that went unanswered after the data was durable.
        asks: u32,
    },
    /// A group's commit went back without a reset.
    CommitRegressed {
        /// The group.
        group: u32,
        /// The lane.
        lane: Lane,
        /// What had been committed (exclusive).
        committed: u64,
        /// What was taken as not committed afterwards.
        then: u64,
    },
    /// One record's producer was told two different things.
    AckedTwiceDifferently {
        /// The record.
        record: Record,
        /// The first acknowledgement.
        first: Place,
        /// The second; none if the record was also said not to be stored.
        second: Option<Place>,
    },
}

/// An [`Anomaly`] without its evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnomalyKind {
    /// See [`Anomaly::Lost`].
    Lost,
    /// See [`Anomaly::StoredTwice`] and [`Anomaly::DeliveredTwice`].
    Duplicated,
    /// See [`Anomaly::Reordered`].
    Reordered,
    /// See [`Anomaly::Unseen`].
    Unseen,
    /// See [`Anomaly::Skipped`].
    Skipped,
    /// See [`Anomaly::Phantom`].
    Phantom,
    /// See [`Anomaly::Misplaced`].
    Misplaced,
    /// See [`Anomaly::AboveHead`].
    AboveHead,
    /// See [`Anomaly::BelowStart`].
    BelowStart,
    /// See [`Anomaly::OrdinalReused`].
    OrdinalReused,
    /// See [`Anomaly::InconsistentOrdinal`].
    InconsistentOrdinal,
    /// See [`Anomaly::LeasedTwice`].
    LeasedTwice,
    /// See [`Anomaly::OutsideLease`].
    OutsideLease,
    /// See [`Anomaly::NeverLeased`].
    NeverLeased,
    /// See [`Anomaly::CommitRegressed`].
    CommitRegressed,
    /// See [`Anomaly::AckedTwiceDifferently`].
    AckedTwiceDifferently,
}

impl AnomalyKind {
    /// Every kind.
    pub const ALL: [Self; 16] = [
        Self::Lost,
        Self::Duplicated,
        Self::Reordered,
        Self::Unseen,
        Self::Skipped,
        Self::Phantom,
        Self::Misplaced,
        Self::AboveHead,
        Self::BelowStart,
        Self::OrdinalReused,
        Self::InconsistentOrdinal,
        Self::LeasedTwice,
        Self::OutsideLease,
        Self::NeverLeased,
        Self::CommitRegressed,
        Self::AckedTwiceDifferently,
    ];

    /// The kind in words, as in "3 out of order".
    pub fn words(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Duplicated => "duplicated",
            Self::Reordered => "out of order",
            Self::Unseen => "unseen",
            Self::Skipped => "skipped under their lease",
            Self::Phantom => "never sent",
            Self::Misplaced => "misplaced",
            Self::AboveHead => "above the durable head",
            Self::BelowStart => "below the log start",
            Self::OrdinalReused => "ordinals reused",
            Self::InconsistentOrdinal => "not where acknowledged",
            Self::LeasedTwice => "leased twice",
            Self::OutsideLease => "outside their lease",
            Self::NeverLeased => "never leased",
            Self::CommitRegressed => "commits gone back",
            Self::AckedTwiceDifferently => "acknowledged twice differently",
        }
    }
}

impl Anomaly {
    /// What kind of anomaly it is.
    pub fn kind(&self) -> AnomalyKind {
        match self {
            Self::Lost { .. } => AnomalyKind::Lost,
            Self::StoredTwice { .. } | Self::DeliveredTwice { .. } => AnomalyKind::Duplicated,
            Self::Reordered { .. } => AnomalyKind::Reordered,
            Self::Unseen { .. } => AnomalyKind::Unseen,
            Self::Skipped { .. } => AnomalyKind::Skipped,
            Self::Phantom { .. } => AnomalyKind::Phantom,
            Self::Misplaced { .. } => AnomalyKind::Misplaced,
            Self::AboveHead { .. } => AnomalyKind::AboveHead,
            Self::BelowStart { .. } => AnomalyKind::BelowStart,
            Self::OrdinalReused { .. } => AnomalyKind::OrdinalReused,
            Self::InconsistentOrdinal { .. } => AnomalyKind::InconsistentOrdinal,
            Self::LeasedTwice { .. } => AnomalyKind::LeasedTwice,
            Self::OutsideLease { .. } => AnomalyKind::OutsideLease,
            Self::NeverLeased { .. } => AnomalyKind::NeverLeased,
            Self::CommitRegressed { .. } => AnomalyKind::CommitRegressed,
            Self::AckedTwiceDifferently { .. } => AnomalyKind::AckedTwiceDifferently,
        }
    }
}
