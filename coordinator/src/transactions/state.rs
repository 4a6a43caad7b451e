//! A transactional id's durable state.

use std::collections::BTreeSet;

use super::request::Part;

/// What the transaction of an id is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// None was ever open.
    Empty,
    /// Open.
    Ongoing,
    /// To be committed; markers are written.
    PrepareCommit,
    /// To be aborted; markers are written.
    PrepareAbort,
    /// The last one was committed.
    CompleteCommit,
    /// The last one was aborted.
    CompleteAbort,
    /// Everything of it is durable: it ends when somebody says how, and never by itself.
    Prepared,
}

impl Stage {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Empty,
        Self::Ongoing,
        Self::PrepareCommit,
        Self::PrepareAbort,
        Self::CompleteCommit,
        Self::CompleteAbort,
        Self::Prepared,
    ];

    /// The name that Kafka gives the state.
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::Ongoing => "Ongoing",
            Self::PrepareCommit => "PrepareCommit",
            Self::PrepareAbort => "PrepareAbort",
            Self::CompleteCommit => "CompleteCommit",
            Self::CompleteAbort => "CompleteAbort",
            Self::Prepared => "Prepared",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.name() == name)
    }

    /// True while a transaction is open or ending.
    pub fn is_open(self) -> bool {
        matches!(
            self,
            Self::Ongoing | Self::Prepared | Self::PrepareCommit | Self::PrepareAbort
        )
    }

    /// What a decision is about; `None` if nothing is decided that lacks markers.
    pub(crate) fn decision(self) -> Option<bool> {
        match self {
            Self::PrepareCommit => Some(true),
            Self::PrepareAbort => Some(false),
            _ => None,
        }
    }

    /// How the last transaction ended; `None` if it has not.
    pub(crate) fn outcome(self) -> Option<bool> {
        match self {
            Self::CompleteCommit => Some(true),
            Self::CompleteAbort => Some(false),
            _ => None,
        }
    }

    pub(crate) fn number(self) -> u32 {
        self as u32
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.number() == number)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transaction {
    pub(crate) producer: i64,
    pub(crate) epoch: i16,
    /// Producer id and epoch before the last Init, whose client may not have heard the answer and asks again.
    pub(crate) last: Option<(i64, i16)>,
    /// The epoch was raised by an abort, and no Init has taken it yet.
    pub(crate) raised: bool,
    /// Producer id and epoch of the last transaction's batches, if the request that ended it raised them. Its client may not
    /// have heard which ones it has now, and asks again. `None` once the next one begins.
    pub(crate) ended: Option<(i64, i16)>,
    /// Producer id and epoch of the transaction's batches, if a later instance of its producer has kept it: that one has
    /// others, and may do nothing but end it. `None` once the next one begins.
    pub(crate) kept: Option<(i64, i16)>,
    /// The user for whom the producer's transactions have no timeout; `None` if they have one.
    pub(crate) two_phase: Option<String>,
    /// Its producer sends heartbeats while one is open: the timeout runs from the last of them.
    pub(crate) heartbeats: bool,
    pub(crate) timeout_ms: u32,
    pub(crate) stage: Stage,
    /// Of the transaction that is open or ending, or of the last one; 0 before the first.
    pub(crate) number: u64,
    pub(crate) started_ms: u64,
    pub(crate) updated_ms: u64,
    pub(crate) parts: BTreeSet<Part>,
    /// Of the transaction that is prepared, or was until it ended; likewise of one without a timeout that is still open.
    pub(crate) prepared: Option<Prepared>,
}

/// Who prepared a transaction, and when; or who has one open without a timeout, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The user.
    pub principal: String,
    /// Milliseconds since 1970.
    pub since_ms: u64,
}

impl Transaction {
    /// When its time is over, unless it is prepared. `heard_ms`: when its producer gave the last sign of life that is not kept.
    pub(crate) fn over_ms(&self, heard_ms: u64) -> u64 {
        let since_ms = match self.heartbeats {
            true => heard_ms.max(self.updated_ms),
            false => self.started_ms,
        };
        since_ms.saturating_add(self.timeout_ms.into())
    }

    /// Who has a transaction that waits for its end without a timeout, and since when.
    pub(crate) fn waits_for(&self) -> Option<&Prepared> {
        let is_open = matches!(self.stage, Stage::Ongoing | Stage::Prepared);
        self.prepared.as_ref().filter(|_| is_open)
    }

    /// True if the id is kept for those alone who ask how its prepared transaction ended. With two-phase commit of Kafka's
    /// clients an id is a producer's that goes on under it, as of those that prepare nothing.
    pub(crate) fn is_outcome(&self) -> bool {
        self.prepared.is_some() && self.two_phase.is_none() && !self.stage.is_open()
    }

    /// Producer id and epoch of batches that are not those of the producer as it is now.
    fn of_earlier(&self) -> Option<(i64, i16)> {
        self.kept.or(self.ended)
    }

    /// The producer id and the epoch that the transaction's batches carry.
    pub(crate) fn of_batches(&self) -> (i64, i16) {
        self.of_earlier().unwrap_or_else(|| {
            let raised = i16::from(self.raised);
            (self.producer, self.epoch - raised)
        })
    }

    /// The epoch that its markers carry.
    pub(crate) fn of_markers(&self) -> i16 {
        self.of_earlier().map_or(self.epoch, |(_, epoch)| epoch + 1)
    }

    /// What names the transaction while it waits for its end: its batches' producer id and epoch. Otherwise the producer's.
    pub(crate) fn named(&self) -> (i64, i16) {
        match self.kept.filter(|_| self.stage.is_open()) {
            Some(kept) => kept,
            None => (self.producer, self.epoch),
        }
    }
}
