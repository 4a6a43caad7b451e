//! Which events of a history an anomaly is about.

use super::Anomaly;
use crate::event::{Event, Lane, LeaseRef, Place, Record};

impl Anomaly {
    /// Whether an event of the history is about what this anomaly is about; used to show its
    /// evidence.
    pub fn concerns(&self, event: &Event) -> bool {
        let subject = self.subject();
        match event {
            Event::Send { record, .. }
            | Event::AckedUnplaced { record }
            | Event::Failed { record, .. } => subject.records.contains(&Some(*record)),
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
            Event::BrokerStarted
            | Event::BrokerKilled
            | Event::BrokerStopped
            | Event::StorePutBack => true,
            Event::LanesGrown { stream, .. } => subject.lane.is_some_and(|l| l.stream == *stream),
            Event::HeadObserved { .. }
            | Event::Batched { .. }
            | Event::Polled { .. }
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
        let of = |place: &Place| Subject {
            lane: Some(place.lane),
            from: place.ordinal,
            to: place.ordinal.saturating_add(1),
            ..none
        };
        match self {
            Self::Lost { record, place, .. } => Subject {
                records: [Some(*record), None],
                ..place.as_ref().map_or(none, of)
            },
            Self::StoredTwice {
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
                ..of(p)
            },
            Self::Phantom {
                place: p, record, ..
            } => Subject {
                records: [*record, None],
                ..of(p)
            },
            Self::DeliveredTwice { place: p, .. }
            | Self::AboveHead { place: p, .. }
            | Self::BelowStart { place: p, .. } => of(p),
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
                ..of(p)
            },
            Self::LeasedTwice { first, second, .. } => Subject {
                leases: [Some(*first), Some(*second)],
                ..none
            },
            Self::Skipped {
                lease,
                lane,
                from,
                to,
                ..
            } => Subject {
                leases: [Some(*lease), None],
                lane: Some(*lane),
                from: *from,
                to: *to,
                ..none
            },
            Self::OutsideLease { lease, place: p } => Subject {
                leases: [Some(*lease), None],
                ..of(p)
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
