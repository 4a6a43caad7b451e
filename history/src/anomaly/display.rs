//! Anomalies in words.

use std::fmt;

use super::{Anomaly, HeadBreach, OrderBreach, PhantomReason};
use crate::event::Record;

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
                write!(f, "lost: record {record} was acknowledged")?;
                match place {
                    Some(place) => write!(f, " at {place}")?,
                    None => f.write_str(" without a place")?,
                }
                f.write_str(" and never read")?;
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
            Self::DeliveredTwice {
                reader,
                place,
                at,
                scope,
            } => {
                write!(
                    f,
                    "duplicated: {place} was delivered again to {reader} at time {at}{}",
                    scope.words()
                )
            }
            Self::Reordered {
                how,
                lane,
                earlier,
                later,
                reader,
                scope,
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
                    (OrderBreach::Key, Some(reader)) => write!(f, " for one key, at {reader}")?,
                    (_, Some(reader)) => write!(f, " at {reader}")?,
                    _ => {}
                }
                f.write_str(scope.words())
            }
            Self::Unseen {
                reader,
                lane,
                from,
                to,
                scope,
            } => {
                write!(
                    f,
                    "unseen: {reader} never got ordinals {from}..{to} of lane {lane}, which it {}",
                    match scope {
                        Some(scope) => format!("came past{}", scope.words()),
                        None => "says it has seen".to_owned(),
                    }
                )
            }
            Self::Skipped {
                lease,
                lane,
                from,
                to,
                scope,
            } => {
                write!(
                    f,
                    "skipped: ordinals {from}..{to} of lane {lane} did not come under lease {lease}, which went on above them{}",
                    scope.words()
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
            Self::BelowStart {
                reader,
                place,
                start,
            } => write!(
                f,
                "below the log start: {reader} got {place}, which had been trimmed up to {start}"
            ),
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
