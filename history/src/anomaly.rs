//! What can be wrong with a history.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::event::{Event, Lane, LeaseRef, Place, Reader, Record};

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
        /// Where it was acknowledged.
        place: Place,
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
    /// See [`Anomaly::Phantom`].
    Phantom,
    /// See [`Anomaly::Misplaced`].
    Misplaced,
    /// See [`Anomaly::AboveHead`].
    AboveHead,
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
    pub const ALL: [Self; 14] = [
        Self::Lost,
        Self::Duplicated,
        Self::Reordered,
        Self::Unseen,
        Self::Phantom,
        Self::Misplaced,
        Self::AboveHead,
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
            Self::Phantom => "never sent",
            Self::Misplaced => "misplaced",
            Self::AboveHead => "above the durable head",
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
            Self::Phantom { .. } => AnomalyKind::Phantom,
            Self::Misplaced { .. } => AnomalyKind::Misplaced,
            Self::AboveHead { .. } => AnomalyKind::AboveHead,
            Self::OrdinalReused { .. } => AnomalyKind::OrdinalReused,
            Self::InconsistentOrdinal { .. } => AnomalyKind::InconsistentOrdinal,
            Self::LeasedTwice { .. } => AnomalyKind::LeasedTwice,
            Self::OutsideLease { .. } => AnomalyKind::OutsideLease,
            Self::NeverLeased { .. } => AnomalyKind::NeverLeased,
            Self::CommitRegressed { .. } => AnomalyKind::CommitRegressed,
            Self::AckedTwiceDifferently { .. } => AnomalyKind::AckedTwiceDifferently,
        }
    }

    /// Whether an event of the history is about what this anomaly is about; used to show its
    /// evidence.
    pub fn concerns(&self, event: &Event) -> bool {
        let subject = self.subject();
        match event {
            Event::Send { record, .. } | Event::Failed { record, .. } => {
                subject.records.contains(&Some(*record))
            }
            Event::Ack {
                record,
                lane,
                ordinal,
            } => subject.records.contains(&Some(*record)) || subject.at(*lane, *ordinal),
            Event::Read {
                record,
                lane,
                ordinal,
                ..
            } => {
                subject.at(*lane, *ordinal) || record.is_some() && subject.records.contains(record)
            }
            Event::LeaseGranted {
                lease,
                lane,
                start,
                end,
                ..
            } => {
                subject.leases.contains(&Some(*lease))
                    || subject.lane == Some(*lane)
                        && *start < subject.to
                        && end.is_none_or(|end| end > subject.from)
            }
            Event::LeaseEnded { lease } | Event::Committed { lease, .. } => {
                subject.leases.contains(&Some(*lease))
            }
            Event::OrdinalGap { lane, from, to } => {
                subject.lane == Some(*lane) && *from < subject.to && *to > subject.from
            }
            Event::Positioned { lane, .. }
            | Event::CommitObserved { lane, .. }
            | Event::Drained { lane, .. }
            | Event::LogTrimmed { lane, .. } => subject.lane == Some(*lane),
            Event::BrokerStarted | Event::BrokerKilled | Event::BrokerStopped => true,
            Event::LanesGrown { stream, .. } => subject.lane.is_some_and(|l| l.stream == *stream),
            Event::HeadObserved { .. }
            | Event::GroupDefined { .. }
            | Event::AcquiredNothing { .. }
            | Event::Named { .. }
            | Event::Note { .. } => false,
        }
    }

    fn subject(&self) -> Subject {
        let none = Subject {
            records: [None; 2],
            leases: [None; 2],
            lane: None,
            from: 0,
            to: 0,
        };
        let place = |place: &Place| Subject {
            lane: Some(place.lane),
            from: place.ordinal,
            to: place.ordinal.saturating_add(1),
            ..none
        };
        match self {
            Self::Lost {
                record, place: p, ..
            }
            | Self::StoredTwice {
                record, second: p, ..
            }
            | Self::Misplaced {
                record, place: p, ..
            }
            | Self::InconsistentOrdinal {
                record,
                acknowledged: p,
                ..
            }
            | Self::AckedTwiceDifferently {
                record, first: p, ..
            } => Subject {
                records: [Some(*record), None],
                ..place(p)
            },
            Self::Phantom {
                place: p, record, ..
            } => Subject {
                records: [*record, None],
                ..place(p)
            },
            Self::DeliveredTwice { place: p, .. } | Self::AboveHead { place: p, .. } => place(p),
            Self::Reordered {
                lane,
                earlier,
                later,
                ..
            } => Subject {
                records: [earlier.0, later.0],
                lane: Some(*lane),
                from: later.1,
                to: later.1.saturating_add(1),
                ..none
            },
            Self::Unseen { lane, from, to, .. } | Self::NeverLeased { lane, from, to, .. } => {
                Subject {
                    lane: Some(*lane),
                    from: *from,
                    to: *to,
                    ..none
                }
            }
            Self::OrdinalReused {
                place: p,
                first,
                second,
            } => Subject {
                records: [Some(*first), Some(*second)],
                ..place(p)
            },
            Self::LeasedTwice { first, second, .. } => Subject {
                leases: [Some(*first), Some(*second)],
                ..none
            },
            Self::OutsideLease { lease, place: p } => Subject {
                leases: [Some(*lease), None],
                ..place(p)
            },
            Self::CommitRegressed {
                lane,
                committed,
                then,
                ..
            } => Subject {
                lane: Some(*lane),
                from: *then,
                to: *committed,
                ..none
            },
        }
    }
}

#[derive(Clone, Copy)]
struct Subject {
    records: [Option<Record>; 2],
    leases: [Option<LeaseRef>; 2],
    lane: Option<Lane>,
    from: u64,
    to: u64,
}

impl Subject {
    fn at(&self, lane: Lane, ordinal: u64) -> bool {
        self.lane == Some(lane) && (self.from..self.to).contains(&ordinal)
    }
}

struct Named(Option<Record>);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(record) => write!(f, "record {record}"),
            None => f.write_str("a record"),
        }
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost {
                record,
                place,
                passed_by,
            } => {
                write!(
                    f,
                    "lost: record {record} was acknowledged at {place} and never read"
                )?;
                match passed_by {
                    Some(reader) => write!(f, " although {reader} came past it"),
                    None => f.write_str(" although reading was complete"),
                }
            }
            Self::StoredTwice {
                record,
                first,
                second,
            } => {
                write!(
                    f,
                    "duplicated: record {record} is at {first} and at {second}"
                )
            }
            Self::DeliveredTwice { reader, place, at } => {
                write!(
                    f,
                    "duplicated: {place} was delivered again to {reader} at time {at}"
                )
            }
            Self::Reordered {
                how,
                lane,
                earlier,
                later,
                reader,
            } => {
                write!(
                    f,
                    "out of order: in lane {lane}, {} at ordinal {} comes after {} at ordinal {}",
                    Named(later.0),
                    later.1,
                    Named(earlier.0),
                    earlier.1,
                )?;
                match (how, reader) {
                    (OrderBreach::Key, Some(reader)) => write!(f, " for one key, at {reader}"),
                    (_, Some(reader)) => write!(f, " at {reader}"),
                    _ => Ok(()),
                }
            }
            Self::Unseen {
                reader,
                lane,
                from,
                to,
            } => {
                write!(
                    f,
                    "unseen: {reader} never got ordinals {from}..{to} of lane {lane}, which it came past"
                )
            }
            Self::Phantom {
                reason,
                place,
                record,
            } => {
                let what = match reason {
                    PhantomReason::Altered => "does not decode or was altered",
                    PhantomReason::NeverSent => "was never sent",
                    PhantomReason::AcknowledgedUnsent => "was acknowledged but never sent",
                    PhantomReason::FailedDefinitely => "was said not to be stored",
                };
                write!(f, "never sent: {} at {place} {what}", Named(*record))
            }
            Self::Misplaced {
                record,
                place,
                stream,
                streamlet,
                lane,
            } => {
                write!(f, "misplaced: record {record} was sent to {stream}")?;
                for part in [streamlet, lane] {
                    match part {
                        Some(part) => write!(f, "/{part}")?,
                        None => f.write_str("/*")?,
                    }
                }
                write!(f, " and is at {place}")
            }
            Self::AboveHead { how, place, head } => match how {
                HeadBreach::Read => write!(
                    f,
                    "above the durable head: {place} was read while the head was {head}"
                ),
                HeadBreach::Acknowledged => write!(
                    f,
                    "above the durable head: {place} was acknowledged while the head was {head}"
                ),
                HeadBreach::LaterLost => write!(
                    f,
                    "above the durable head: {place} was read and lies in the gap that was reported from {head} on"
                ),
            },
            Self::OrdinalReused {
                place,
                first,
                second,
            } => {
                write!(
                    f,
                    "ordinal reused: {place} held record {first} and record {second}"
                )
            }
            Self::InconsistentOrdinal {
                record,
                acknowledged,
                read,
            } => {
                write!(
                    f,
                    "not where acknowledged: record {record} was acknowledged at {acknowledged} and read at {read}"
                )
            }
            Self::LeasedTwice {
                lane,
                first,
                second,
                from,
                to,
                at,
            } => {
                write!(f, "leased twice: lane {lane} from ordinal {from}")?;
                if let Some(to) = to {
                    write!(f, " to {to}")?;
                }
                write!(f, " by lease {first} and lease {second} at time {at}")
            }
            Self::OutsideLease { lease, place } => {
                write!(
                    f,
                    "outside its lease: {place} was delivered under lease {lease}"
                )
            }
            Self::NeverLeased {
                group,
                lane,
                from,
                to,
                asks,
            } => {
                write!(
                    f,
                    "never leased: ordinals {from}..{to} of lane {lane}, although group {group} asked {asks} times in vain"
                )
            }
            Self::CommitRegressed {
                group,
                lane,
                committed,
                then,
            } => {
                write!(
                    f,
                    "commit gone back: group {group} had committed ordinal {committed} of lane {lane}, then {then}"
                )
            }
            Self::AckedTwiceDifferently {
                record,
                first,
                second,
            } => match second {
                Some(second) => write!(
                    f,
                    "acknowledged twice differently: record {record} at {first} and at {second}"
                ),
                None => write!(
                    f,
                    "acknowledged twice differently: record {record} at {first}, and said not to be stored"
                ),
            },
        }
    }
}
