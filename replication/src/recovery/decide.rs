//! Which groups of a lane count, and up to where.

use std::collections::{BTreeMap, VecDeque};

use kera_protocol::ids::{LaneId, Ordinal};
use kera_records::{GroupChange, GroupRecord, Transaction, Write};

use super::copies::Whole;
use super::{RecoverError, RecoveredLane, Recovery, Stopped, Unclean};
use crate::certificate::Certificate;
use crate::ids::{CopyId, Replica, asked_of};
use crate::records::{MAX_CHANGES, RecordsError, commit};
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

/// What was found of groups of which no copy counts: looked for once.
type Salvaged = BTreeMap<CopyId, Option<(Certificate, Vec<Whole>)>>;

/// A lane on its way: what is decided, and not committed yet.
struct Decided {
    out: RecoveredLane,
    closes: Vec<GroupChange>,
    deletes: Vec<GroupChange>,
    salvaged: Salvaged,
}

impl Recovery<'_> {
    pub(super) async fn lane(
        &self,
        lane: LaneId,
        groups: Vec<GroupRecord>,
    ) -> Result<RecoveredLane, RecoverError> {
        let start = self.start(lane, &groups);
        let mut decided = Decided {
            out: RecoveredLane {
                lane,
                groups: Vec::new(),
                discarded: Vec::new(),
                gaps: Vec::new(),
                next_ordinal: start.unwrap_or(0),
                stopped: None,
            },
            closes: Vec::new(),
            deletes: Vec::new(),
            salvaged: Salvaged::new(),
        };
        if let (None, Some(first)) = (start, groups.first()) {
            let copy = CopyId::of(first);
            decided.out.stopped = Some(Stopped::NoStart { copy });
            return Ok(decided.out);
        }
        let mut groups: VecDeque<_> = groups.into();
        while let Some(record) = groups.pop_front()
            && decided.out.stopped.is_none()
        {
            self.group(&record, &groups, &mut decided).await?;
        }
        if decided.out.stopped.is_some() {
            // The lane's first record says where it begins; whoever goes on here needs it.
            decided.deletes.clear();
            decided.out.discarded.clear();
        }
        // From the last to the first, for the same reason.
        decided.closes.extend(decided.deletes.into_iter().rev());
        for changes in decided.closes.chunks(MAX_CHANGES) {
            self.commit(changes.to_vec()).await?;
        }
        Ok(decided.out)
    }

    async fn group(
        &self,
        record: &GroupRecord,
        later: &VecDeque<GroupRecord>,
        decided: &mut Decided,
    ) -> Result<(), RecoverError> {
        if record.is_closed() {
            decided.out.next_ordinal = record.next_ordinal;
            decided.out.groups.push(record.clone());
            return Ok(());
        }
        match self.verdict(record) {
            Verdict::Empty => discard(record, decided),
            Verdict::Longest { first_ordinal, .. }
                if !self.follows(first_ordinal, &decided.out) =>
            {
                discard(record, decided);
            }
            Verdict::Longest {
                length,
                first_ordinal,
                end_ordinal,
            } => {
                let end = (length, end_ordinal);
                self.close(record, first_ordinal, end, decided).await?;
            }
            Verdict::Unclean if self.spec.unclean == Unclean::Wait && !self.is_alone(record) => {
                decided.out.stopped = Some(Stopped::Unclean {
                    copy: CopyId::of(record),
                    holders: record.copies.iter().map(|h| h.broker).collect(),
                });
            }
            Verdict::Unclean => self.accept(record, later, decided).await?,
        }
        Ok(())
    }

    /// Where the lane's first recorded group must begin, if anything says so.
    fn start(&self, lane: LaneId, groups: &[GroupRecord]) -> Option<Ordinal> {
        let known = groups.iter().find_map(|record| record.first_ordinal);
        known.or_else(|| self.spec.starts.get(&lane).copied())
    }

    fn follows(&self, first_ordinal: Ordinal, out: &RecoveredLane) -> bool {
        first_ordinal == out.next_ordinal || self.primary.faults.ordinal_gap_accepted()
    }

    fn answers(&self, copy: CopyId) -> &[(Replica, CopyAnswer)] {
        self.answers.get(&copy).map_or(&[], Vec::as_slice)
    }

    fn verdict(&self, record: &GroupRecord) -> Verdict {
        let mut verdict = Verdict::Unclean;
        let mut longest = 0;
        for (holder, answer) in self.answers(CopyId::of(record)) {
            if !self.counts(holder.broker, record.copies.len(), answer) {
                continue;
            }
            match answer {
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

    /// Brings the group to `end` at enough brokers and closes it.
    async fn close(
        &self,
        record: &GroupRecord,
        first_ordinal: Ordinal,
        end: (u64, Ordinal),
        decided: &mut Decided,
    ) -> Result<(), RecoverError> {
        let copy = CopyId::of(record);
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
        let ack = asked_of(&record.copies);
        let holders = self.complete(copy, end.0, whole, ack).await?;
        let closed = record.clone().closed(first_ordinal, end, end.1, holders);
        self.finish(closed, decided);
        Ok(())
    }

    /// Decides the close, if enough copies hold the group.
    fn finish(&self, closed: GroupRecord, decided: &mut Decided) {
        let out = &mut decided.out;
        if closed.copies.len() < self.spec.min_insync_replicas && closed.length > 0 {
            out.stopped = Some(Stopped::NotEnoughCopies {
                copy: CopyId::of(&closed),
                have: closed.copies.len(),
                need: self.spec.min_insync_replicas,
            });
            return;
        }
        decided.closes.push(closed.clone().put());
        if closed.next_ordinal > closed.end_ordinal {
            out.gaps.push((closed.end_ordinal, closed.next_ordinal));
        }
        out.next_ordinal = closed.next_ordinal;
        out.groups.push(closed);
    }

    /// The operator decided to go on without the copies that count, or there never was another one
    /// than this broker's own: what can be found is kept, and the ordinals jump past everything that
    /// somebody may have seen.
    async fn accept(
        &self,
        record: &GroupRecord,
        later: &VecDeque<GroupRecord>,
        decided: &mut Decided,
    ) -> Result<(), RecoverError> {
        let next = decided.out.next_ordinal;
        let found = self.salvaged(record, &mut decided.salvaged).await;
        let found = found.filter(|(certificate, _)| certificate.first_ordinal == next);
        let (length, first, end, holders) = match found {
            Some((certificate, whole)) => {
                let ack = asked_of(&record.copies);
                let holders = self
                    .complete(CopyId::of(record), certificate.length, whole, ack)
                    .await?;
                let (first, end) = (certificate.first_ordinal, certificate.end_ordinal);
                (certificate.length, first, end, holders)
            }
            // Nothing is left of it; the record stays to carry the jump.
            None => (0, next, next, record.copies.clone()),
        };
        let kept = self.next_kept(later, &mut decided.salvaged).await;
        let jump = GROUP_ORDINALS.saturating_mul(1 + later.len() as u64);
        let next_ordinal = kept
            .filter(|first| *first >= end)
            .unwrap_or_else(|| end.saturating_add(jump));
        let open = record.clone();
        self.finish(
            open.closed(first, (length, end), next_ordinal, holders),
            decided,
        );
        Ok(())
    }

    /// Where the next group begins that will be kept. Those of which nothing was ever acknowledged,
    /// or nothing is left, stand in nobody's way.
    async fn next_kept(
        &self,
        later: &VecDeque<GroupRecord>,
        salvaged: &mut Salvaged,
    ) -> Option<Ordinal> {
        for record in later {
            if record.is_closed() {
                return Some(record.start_ordinal());
            }
            match self.verdict(record) {
                Verdict::Empty => {}
                Verdict::Longest { first_ordinal, .. } => return Some(first_ordinal),
                Verdict::Unclean => {
                    if let Some((found, _)) = self.salvaged(record, salvaged).await {
                        return Some(found.first_ordinal);
                    }
                }
            }
        }
        None
    }

    /// The longest whole copy at the recorded holders, of whatever incarnation.
    async fn salvaged(
        &self,
        record: &GroupRecord,
        salvaged: &mut Salvaged,
    ) -> Option<(Certificate, Vec<Whole>)> {
        let copy = CopyId::of(record);
        if let Some(found) = salvaged.get(&copy) {
            return found.clone();
        }
        let found = self.salvage(copy, &record.copies).await;
        salvaged.insert(copy, found.clone());
        found
    }

    async fn commit(&self, changes: Vec<GroupChange>) -> Result<(), RecordsError> {
        let transaction = Transaction::of_groups(self.spec.streamlet, self.epoch, changes);
        let (records, runtime) = (&self.primary.records, &*self.primary.runtime);
        commit(records, runtime, &transaction, false).await?;
        Ok(())
    }
}

/// Drops a group of which nothing was acknowledged.
fn discard(record: &GroupRecord, decided: &mut Decided) {
    let delete = Write::delete_group(record.key(), record.revision);
    decided.deletes.push(delete);
    decided.out.discarded.push(CopyId::of(record));
}
