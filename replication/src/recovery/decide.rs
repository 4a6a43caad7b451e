//! Which groups of a lane count, and up to where.

use std::collections::VecDeque;

use kera_protocol::ids::{LaneId, Ordinal};

use super::copies::Whole;
use super::{RecoverError, RecoveredLane, Recovery, Stopped, Unclean};
use crate::ids::{BackupId, CopyId, Holder};
use crate::records::{
    Change, ClosedRecord, GroupRecord, GroupState, OpenRecord, RecordsError, Transaction, commit,
};
use crate::transport::CopyAnswer;

/// A group spans at most so many ordinals.
const GROUP_ORDINALS: u64 = 1 << 32;

/// What the copies of an open group say together.
enum Verdict {
    /// Nothing was ever acknowledged in it, and nothing of it is whole.
    Empty,
    /// The longest whole copy.
    Longest {
        length: u64,
        first_ordinal: Ordinal,
        end_ordinal: Ordinal,
    },
    /// No copy counts.
    Unclean,
}

impl Recovery<'_> {
    pub(super) async fn lane(
        &self,
        lane: LaneId,
        groups: Vec<GroupRecord>,
    ) -> Result<RecoveredLane, RecoverError> {
        let mut out = RecoveredLane {
            lane,
            groups: Vec::new(),
            discarded: Vec::new(),
            gaps: Vec::new(),
            next_ordinal: self.start(lane, &groups),
            stopped: None,
        };
        let mut groups: VecDeque<_> = groups.into();
        while let Some(record) = groups.pop_front() {
            let open = match &record.state {
                GroupState::Closed(closed) => {
                    out.next_ordinal = closed.next_ordinal;
                    out.groups.push((record.copy, closed.clone()));
                    continue;
                }
                GroupState::Open(open) => open,
            };
            let verdict = self.verdict(record.copy);
            let done = match verdict {
                Verdict::Empty => self.discard(&record, &mut out).await,
                Verdict::Longest { first_ordinal, .. } if !self.follows(first_ordinal, &out) => {
                    self.discard(&record, &mut out).await
                }
                Verdict::Longest {
                    length,
                    first_ordinal,
                    end_ordinal,
                } => {
                    let end = ClosedRecord {
                        length,
                        first_ordinal,
                        end_ordinal,
                        next_ordinal: end_ordinal,
                        holders: Vec::new(),
                    };
                    self.close(&record, end, &mut out).await
                }
                Verdict::Unclean if self.spec.unclean == Unclean::Wait => {
                    out.stopped = Some(Stopped::Unclean {
                        copy: record.copy,
                        holders: open.holders.iter().map(|h| h.broker).collect(),
                    });
                    Ok(())
                }
                Verdict::Unclean => self.accept(&record, open, &groups, &mut out).await,
            };
            done?;
            if out.stopped.is_some() {
                break;
            }
        }
        Ok(out)
    }

    /// Where the lane's first recorded group must begin.
    fn start(&self, lane: LaneId, groups: &[GroupRecord]) -> Ordinal {
        let known = groups.iter().find_map(|record| match &record.state {
            GroupState::Closed(closed) => Some(closed.first_ordinal),
            GroupState::Open(open) => open.first_ordinal,
        });
        let start = || self.spec.starts.get(&lane).copied().unwrap_or(0);
        known.unwrap_or_else(start)
    }

    fn follows(&self, first_ordinal: Ordinal, out: &RecoveredLane) -> bool {
        first_ordinal == out.next_ordinal || self.primary.faults.ordinal_gap_accepted
    }

    fn answers(&self, copy: CopyId) -> &[(Holder, CopyAnswer)] {
        self.answers.get(&copy).map_or(&[], Vec::as_slice)
    }

    fn verdict(&self, copy: CopyId) -> Verdict {
        let mut verdict = Verdict::Unclean;
        let mut longest = 0;
        for (_, answer) in self.answers(copy) {
            match answer {
                // They say nothing of what was acknowledged.
                CopyAnswer::Unknown | CopyAnswer::Damaged { .. } => {}
                CopyAnswer::Absent | CopyAnswer::Scanned { length: 0, .. } => {
                    if longest == 0 {
                        verdict = Verdict::Empty;
                    }
                }
                CopyAnswer::Scanned {
                    length,
                    first_ordinal,
                    end_ordinal,
                } => {
                    if *length > longest {
                        longest = *length;
                        verdict = Verdict::Longest {
                            length: *length,
                            first_ordinal: *first_ordinal,
                            end_ordinal: *end_ordinal,
                        };
                    }
                }
            }
        }
        verdict
    }

    /// Drops a group of which nothing was acknowledged.
    async fn discard(
        &self,
        record: &GroupRecord,
        out: &mut RecoveredLane,
    ) -> Result<(), RecoverError> {
        let change = Change::Delete {
            group: record.copy.group,
            revision: record.revision,
        };
        self.commit(change).await?;
        out.discarded.push(record.copy);
        Ok(())
    }

    /// Brings the group to `end` at enough brokers and closes it.
    async fn close(
        &self,
        record: &GroupRecord,
        mut end: ClosedRecord,
        out: &mut RecoveredLane,
    ) -> Result<(), RecoverError> {
        let copy = record.copy;
        let whole: Vec<Whole> = self
            .answers(copy)
            .iter()
            .filter_map(|(holder, answer)| match answer {
                CopyAnswer::Scanned { length, .. } => Some(Whole {
                    holder: *holder,
                    length: *length,
                }),
                CopyAnswer::Absent => Some(Whole {
                    holder: *holder,
                    length: 0,
                }),
                _ => None,
            })
            .collect();
        end.holders = self.complete(copy, end.length, whole).await?;
        self.finish(record, end, out).await
    }

    async fn finish(
        &self,
        record: &GroupRecord,
        end: ClosedRecord,
        out: &mut RecoveredLane,
    ) -> Result<(), RecoverError> {
        if end.holders.len() < self.spec.min_copies && end.length > 0 {
            out.stopped = Some(Stopped::NotEnoughCopies {
                copy: record.copy,
                have: end.holders.len(),
                need: self.spec.min_copies,
            });
            return Ok(());
        }
        self.commit(Change::Close {
            group: record.copy.group,
            revision: record.revision,
            record: end.clone(),
        })
        .await?;
        if end.next_ordinal > end.end_ordinal {
            out.gaps.push((end.end_ordinal, end.next_ordinal));
        }
        out.next_ordinal = end.next_ordinal;
        out.groups.push((record.copy, end));
        Ok(())
    }

    /// The operator decided to go on without the copies that count: what can be found is kept, and
    /// the ordinals jump past everything that somebody may have seen.
    async fn accept(
        &self,
        record: &GroupRecord,
        open: &OpenRecord,
        later: &VecDeque<GroupRecord>,
        out: &mut RecoveredLane,
    ) -> Result<(), RecoverError> {
        let brokers: Vec<BackupId> = open.holders.iter().map(|h| h.broker).collect();
        let found = self.salvage(record.copy, &brokers).await;
        let found = found.filter(|(certificate, _)| certificate.first_ordinal == out.next_ordinal);
        let (length, first, end, holders) = match found {
            Some((certificate, whole)) => {
                let holders = self
                    .complete(record.copy, certificate.length, whole)
                    .await?;
                let (first, end) = (certificate.first_ordinal, certificate.end_ordinal);
                (certificate.length, first, end, holders)
            }
            // Nothing is left of it; the record stays to carry the jump.
            None => (0, out.next_ordinal, out.next_ordinal, open.holders.clone()),
        };
        let kept = later
            .front()
            .and_then(|next| match self.verdict(next.copy) {
                Verdict::Longest { first_ordinal, .. } if first_ordinal >= end => {
                    Some(first_ordinal)
                }
                _ => None,
            });
        let jump = GROUP_ORDINALS * (1 + later.len() as u64);
        let closed = ClosedRecord {
            length,
            first_ordinal: first,
            end_ordinal: end,
            next_ordinal: kept.unwrap_or(end + jump),
            holders,
        };
        self.finish(record, closed, out).await
    }

    async fn commit(&self, change: Change) -> Result<(), RecordsError> {
        let transaction = Transaction {
            streamlet: self.spec.streamlet,
            epoch: self.epoch,
            changes: vec![change],
        };
        let (records, runtime) = (&self.primary.records, &*self.primary.runtime);
        commit(records, runtime, &transaction, false).await?;
        Ok(())
    }
}
