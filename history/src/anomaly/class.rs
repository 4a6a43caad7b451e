//! The classes of anomalies of Jepsen's workload for Kafka, by which logs are compared.

use serde::{Deserialize, Serialize};

use super::{Anomaly, OrderBreach};

/// Whether an anomaly shows within what one call sent or returned, or only between calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Within one call.
    Internal,
    /// Between calls, or nothing is known of calls.
    External,
}

impl Scope {
    /// Internal if both are of the same call.
    pub(crate) fn of<T: PartialEq>(one: Option<T>, other: Option<T>) -> Self {
        if one.is_some() && one == other {
            Self::Internal
        } else {
            Self::External
        }
    }

    /// As it is said at the end of a sentence.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Internal => ", within one call",
            Self::External => "",
        }
    }
}

/// What Jepsen's test of Kafka calls an anomaly. Where a class has an internal form it is one of its
/// own, as there.
///
/// ```
/// use kera_history::{check, Class, Event, Expectations, History, Lane, Record};
///
/// let lane = Lane { stream: 0, streamlet: 0, lane: 0 };
/// let mut events = Vec::new();
/// for seq in 0..3 {
///     let record = Record { producer: 0, seq };
///     events.push(Event::Send { record, stream: 0, streamlet: None, lane: None, key: None });
///     events.push(Event::Ack { record, lane, ordinal: seq });
/// }
/// // One call returns the first and the last; another consumer gets all of them.
/// for (consumer, seqs) in [(1, vec![0, 2]), (2, vec![0, 1, 2])] {
///     events.push(Event::Polled { consumer });
///     for seq in seqs {
///         let record = Some(Record { producer: 0, seq });
///         events.push(Event::Read { consumer, lease: None, lane, ordinal: seq, record, key: None, head: None });
///     }
/// }
/// let report = check(&History::from_events(events), &Expectations::default()).unwrap();
/// assert_eq!(report.classes(), [Class::IntPollSkip]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Acknowledged, and not read although somebody came past it.
    LostWrite,
    /// Acknowledged, and not read in the end; or not seen by a reader that says it is at the end.
    Unseen,
    /// One record at two places.
    Duplicate,
    /// Two records at one place, or a record elsewhere than its producer or a reader was told.
    InconsistentOffsets,
    /// Between two calls a consumer came past records.
    PollSkip,
    /// Within one call a consumer came past records.
    IntPollSkip,
    /// Between two calls a consumer went back.
    NonmonotonicPoll,
    /// Within one call a consumer went back.
    IntNonmonotonicPoll,
    /// A later call of a producer has the lower place.
    NonmonotonicSend,
    /// A later record of one call of a producer has the lower place.
    IntNonmonotonicSend,
}

impl Class {
    /// Every class.
    pub const ALL: [Self; 10] = [
        Self::LostWrite,
        Self::Unseen,
        Self::Duplicate,
        Self::InconsistentOffsets,
        Self::PollSkip,
        Self::IntPollSkip,
        Self::NonmonotonicPoll,
        Self::IntNonmonotonicPoll,
        Self::NonmonotonicSend,
        Self::IntNonmonotonicSend,
    ];

    /// The class in Jepsen's words.
    pub fn words(self) -> &'static str {
        match self {
            Self::LostWrite => "lost-write",
            Self::Unseen => "unseen",
            Self::Duplicate => "duplicate",
            Self::InconsistentOffsets => "inconsistent-offsets",
            Self::PollSkip => "poll-skip",
            Self::IntPollSkip => "int-poll-skip",
            Self::NonmonotonicPoll => "nonmonotonic-poll",
            Self::IntNonmonotonicPoll => "int-nonmonotonic-poll",
            Self::NonmonotonicSend => "nonmonotonic-send",
            Self::IntNonmonotonicSend => "int-nonmonotonic-send",
        }
    }
}

impl Anomaly {
    /// The class that Jepsen's test of Kafka puts it in; none for what that test does not look for.
    pub fn class(&self) -> Option<Class> {
        let of = |scope: &Scope, internal, external| match scope {
            Scope::Internal => Some(internal),
            Scope::External => Some(external),
        };
        match self {
            Self::Lost {
                passed_by: Some(_), ..
            } => Some(Class::LostWrite),
            Self::Lost {
                passed_by: None, ..
            }
            | Self::Unseen { scope: None, .. } => Some(Class::Unseen),
            Self::StoredTwice { .. } => Some(Class::Duplicate),
            Self::OrdinalReused { .. }
            | Self::InconsistentOrdinal { .. }
            | Self::AckedTwiceDifferently {
                second: Some(_), ..
            } => Some(Class::InconsistentOffsets),
            Self::Unseen {
                scope: Some(scope), ..
            }
            | Self::Skipped { scope, .. } => of(scope, Class::IntPollSkip, Class::PollSkip),
            Self::DeliveredTwice { scope, .. }
            | Self::Reordered {
                how: OrderBreach::Delivered,
                scope,
                ..
            } => of(scope, Class::IntNonmonotonicPoll, Class::NonmonotonicPoll),
            Self::Reordered {
                how: OrderBreach::Stored,
                scope,
                ..
            } => of(scope, Class::IntNonmonotonicSend, Class::NonmonotonicSend),
            _ => None,
        }
    }
}
