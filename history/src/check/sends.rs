//! What producers did and were told.

use super::Checker;
use super::state::Contest;
use crate::anomaly::{Anomaly, HeadBreach, PhantomReason};
use crate::event::{FailureOutcome, Lane, Record};
use crate::records::{ACKED, FAILED, READ, SENT, UNKNOWN};
use crate::slots::{Holds, Slot};

/// Stands for "not given" in the lane a record was sent to; no real streamlet or lane has it.
const ANY: u32 = u32::MAX;

/// Whether a record that was sent to `sent` may be in `lane`.
pub(super) fn fits(sent: Lane, lane: Lane) -> bool {
    let any_or = |wanted: u32, found: u32| wanted == ANY || wanted == found;
    sent.stream == lane.stream
        && any_or(sent.streamlet, lane.streamlet)
        && any_or(sent.lane, lane.lane)
}

impl Checker {
    pub(super) fn send(
        &mut self,
        record: Record,
        stream: u32,
        streamlet: Option<u32>,
        lane: Option<u32>,
    ) -> Result<(), String> {
        let target = self.lane(Lane {
            stream,
            streamlet: streamlet.unwrap_or(ANY),
            lane: lane.unwrap_or(ANY),
        })?;
        self.records.send(record, target)?;
        self.report.counts.sent += 1;
        Ok(())
    }

    pub(super) fn ack(&mut self, at: u64, record: Record, lane: u32, ordinal: u64) {
        let here = self.place(lane, ordinal);
        self.lanes[lane as usize].shown(at, ordinal, HeadBreach::Acknowledged);
        if !self.records.has(record, SENT) {
            self.add(Anomaly::Phantom {
                reason: PhantomReason::AcknowledgedUnsent,
                place: here,
                record: Some(record),
            });
            return;
        }
        if self.records.has(record, FAILED) {
            self.add(Anomaly::AckedTwiceDifferently {
                record,
                first: here,
                second: None,
            });
        }
        match self.records.place(record) {
            None => {
                self.arrived(record, lane, ordinal);
                self.records.mark(record, ACKED);
            }
            Some(place) if place == (lane, ordinal) => self.records.mark(record, ACKED),
            Some(first) if self.records.has(record, ACKED) => {
                let first = self.place(first.0, first.1);
                self.add(Anomaly::AckedTwiceDifferently {
                    record,
                    first,
                    second: Some(here),
                });
                return;
            }
            Some(read) => {
                self.records.mark(record, ACKED);
                self.splits.entry(record).or_default().push(read);
                self.records.set_place(record, lane, ordinal);
            }
        }
        self.claim(record, lane, ordinal, false);
    }

    /// Where it is, only readers can tell.
    pub(super) fn acked_unplaced(&mut self, record: Record) -> Result<(), String> {
        if !self.records.has(record, SENT) {
            return Err(format!(
                "record {record} was acknowledged without a place but was never sent"
            ));
        }
        self.records.mark(record, ACKED);
        Ok(())
    }

    pub(super) fn failed(&mut self, record: Record, outcome: FailureOutcome) -> Result<(), String> {
        if !self.records.has(record, SENT) {
            return Err(format!("record {record} failed but was never sent"));
        }
        if outcome == FailureOutcome::Unknown {
            self.records.mark(record, UNKNOWN);
            return Ok(());
        }
        self.records.mark(record, FAILED);
        if let Some((lane, ordinal)) = self.records.place(record) {
            let place = self.place(lane, ordinal);
            if self.records.has(record, ACKED) {
                self.add(Anomaly::AckedTwiceDifferently {
                    record,
                    first: place,
                    second: None,
                });
            } else if self.records.has(record, READ) {
                self.add(Anomaly::Phantom {
                    reason: PhantomReason::FailedDefinitely,
                    place,
                    record: Some(record),
                });
            }
        }
        Ok(())
    }

    /// A record that was sent has its first place.
    pub(super) fn arrived(&mut self, record: Record, lane: u32, ordinal: u64) {
        let sent = self.lanes[self.records.lane(record) as usize].lane;
        let place = self.place(lane, ordinal);
        if !fits(sent, place.lane) {
            let given = |part: u32| (part != ANY).then_some(part);
            self.add(Anomaly::Misplaced {
                record,
                place,
                stream: sent.stream,
                streamlet: given(sent.streamlet),
                lane: given(sent.lane),
            });
        }
        self.records.set_place(record, lane, ordinal);
    }

    /// An acknowledgement or a reader says that the ordinal holds the record.
    pub(super) fn claim(&mut self, record: Record, lane: u32, ordinal: u64, read: bool) {
        let slots = &mut self.lanes[lane as usize].slots;
        let holds = Holds::Record(record);
        let new = Slot {
            holds,
            read,
            acked: !read,
        };
        let Some(known) = slots.get(ordinal) else {
            slots.set(ordinal, new);
            return;
        };
        match known.holds {
            Holds::Foreign => {}
            Holds::Record(other) if other == record => slots.set(
                ordinal,
                Slot {
                    holds,
                    read: known.read || read,
                    acked: known.acked || !read,
                },
            ),
            Holds::Record(other) => {
                // What was read is there for certain; what was acknowledged may be elsewhere.
                if read {
                    slots.set(ordinal, new);
                }
                let both_read = read && known.read;
                let contest = self.contests.entry((lane, ordinal)).or_insert(Contest {
                    first: other,
                    second: record,
                    both_read,
                });
                if both_read && !contest.both_read {
                    *contest = Contest {
                        first: other,
                        second: record,
                        both_read,
                    };
                }
            }
        }
    }
}
