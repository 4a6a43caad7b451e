//! Which groups of a lane count, and up to where.

use kera_log_segments::group::MAX_GROUP_ORDINALS;
use kera_log_segments::lane_chain::LaneChain;
use kera_log_segments::window::Place;
use kera_protocol::ids::{LaneId, Ordinal};
use kera_records::{GroupChange, GroupRecord, Transaction, Write};

use super::copies::Whole;
use super::{RecoverError, RecoveredLane, Recovery, Stopped};
use crate::ids::{BrokerId, CopyId, Replica, asked_of};
use crate::records::{MAX_CHANGES, RecordsError, commit};
use crate::transport::CopyAnswer;

/// Why records may be missing behind a group of which no copy counts.
const UNCLEAN: &str = "no replica counts";

/// What the copies of an open group say together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing was ever acknowledged in it, and nothing of it is whole.
    Empty,
    /// The records are of an older state: it was used since, and removed.
    Removed,
    /// The longest whole copy.
    Longest {
        length: u64,
        first_ordinal: Ordinal,
        end_ordinal: Ordinal,
    },
    /// No copy counts.
    Unclean,
}

/// What follows a group in its lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Behind {
    /// Where the next group begins that is closed.
    pub(super) closed: Option<Ordinal>,
    /// Where the next one begins, if anything says so.
    pub(super) next: Option<Ordinal>,
}

/// A lane on its way: what is decided, and not committed yet.
struct Decided {
    out: RecoveredLane,
    chain: LaneChain,
    /// Which of the lane's groups are closed by this.
    closes: Vec<usize>,
    /// So many of them, the first, say where the lane goes on behind them.
    settled: usize,
    deletes: Vec<GroupChange>,
}

impl Decided {
    /// The lane goes on at `to`. Records that are missing before that leave a gap, which the group before it carries.
    fn go_on(&mut self, to: Ordinal) {
        if let Some(gap) = self.chain.gap(to)
            && let Some(carrier) = self.out.groups.last_mut()
        {
            carrier.next_ordinal = to;
            self.out.gaps.push(gap);
        }
        self.chain.go_on(to);
        self.settled = self.closes.len();
    }

    /// No group is left. Where records are missing at the lane's end, each group of which they may be carries a jump;
    /// of those behind the first nothing is left.
    fn end(&mut self) {
        let to = self.chain.next_ordinal();
        let mut from = self.chain.end();
        let carriers = self.closes.iter().enumerate().skip(self.settled);
        for (number, at) in carriers {
            let is_last = number + 1 == self.closes.len();
            let carrier = &mut self.out.groups[*at];
            if number > self.settled {
                (carrier.first_ordinal, carrier.end_ordinal) = (Some(from), from);
            }
            carrier.next_ordinal = match is_last {
                true => to,
                false => from.saturating_add(MAX_GROUP_ORDINALS),
            };
            self.out.gaps.push((from, carrier.next_ordinal));
            from = carrier.next_ordinal;
        }
        self.chain.go_on(to);
    }

    /// Drops a group of which nothing was acknowledged.
    fn discard(&mut self, record: &GroupRecord) {
        let delete = Write::delete_group(record.key(), record.revision);
        self.deletes.push(delete);
        self.out.discarded.push(CopyId::of(record));
        self.chain.leaves_out();
    }
}

/// Whose copies of a group are recorded.
fn recorded(record: &GroupRecord) -> Vec<BrokerId> {
    record.copies.iter().map(|copy| copy.broker).collect()
}

/// Nothing can be decided about an open group: no copy of it counts now.
fn unclean(record: &GroupRecord) -> Stopped {
    Stopped::Unclean {
        copy: CopyId::of(record),
        holders: recorded(record),
    }
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
                unclean_behind: Vec::new(),
            },
            chain: LaneChain::new(start.unwrap_or(0), Some(start.unwrap_or(0))),
            closes: Vec::new(),
            settled: 0,
            deletes: Vec::new(),
        };
        if let (None, Some(first)) = (start, groups.first()) {
            let copy = CopyId::of(first);
            decided.out.stopped = Some(Stopped::NoStart { copy });
            return Ok(decided.out);
        }
        let mut left = groups.iter();
        while let Some(record) = left.next() {
            let closed = left.clone().find(|next| next.is_closed());
            let behind = Behind {
                closed: closed.map(GroupRecord::start_ordinal),
                next: left.clone().next().and_then(|next| self.begin_of(next)),
            };
            self.group(record, behind, &mut decided).await?;
            if decided.out.stopped.is_some() {
                break;
            }
        }
        if matches!(decided.out.stopped, Some(Stopped::Unclean { .. })) {
            let behind = left.filter(|record| self.is_undecided(record));
            let behind = behind.map(|record| (CopyId::of(record), recorded(record)));
            decided.out.unclean_behind = behind.collect();
        }
        if decided.out.stopped.is_none() {
            decided.end();
        } else {
            // The lane's first record says where it begins; whoever goes on here needs it.
            decided.deletes.clear();
            decided.out.discarded.clear();
            // Where the lane goes on behind the others is known when that is which stopped here.
            if let Some(at) = decided.closes.get(decided.settled) {
                decided.out.groups.truncate(*at);
                decided.closes.truncate(decided.settled);
            }
        }
        let Decided {
            mut out,
            chain,
            closes,
            deletes,
            ..
        } = decided;
        out.next_ordinal = chain.end();
        let closes = closes.into_iter().map(|at| out.groups[at].clone().put());
        // From the last to the first, for the same reason.
        let changes: Vec<_> = closes.chain(deletes.into_iter().rev()).collect();
        for changes in changes.chunks(MAX_CHANGES) {
            self.commit(changes.to_vec()).await?;
        }
        Ok(out)
    }

    /// Where a group begins, by its record or by what any of its holders has of it.
    fn begin_of(&self, record: &GroupRecord) -> Option<Ordinal> {
        let mut answers = self.answers(CopyId::of(record)).iter();
        let found = || {
            answers.find_map(|(_, answer)| match answer {
                CopyAnswer::Scanned {
                    length,
                    first_ordinal,
                    ..
                } => (*length > 0).then_some(*first_ordinal),
                _ => None,
            })
        };
        record.first_ordinal.or_else(found)
    }

    /// Decides about a group.
    async fn group(
        &self,
        record: &GroupRecord,
        behind: Behind,
        decided: &mut Decided,
    ) -> Result<(), RecoverError> {
        if record.is_closed() {
            decided.go_on(record.start_ordinal());
            decided.chain.counts(record.next_ordinal, None);
            decided.out.groups.push(record.clone());
            return Ok(());
        }
        let Some(verdict) = self.with_other_lives(record, self.verdict(record)).await else {
            decided.out.stopped = Some(unclean(record));
            return Ok(());
        };
        let verdict = match verdict {
            Verdict::Unclean => {
                let reaches = self.reaches(record, behind, &decided.chain).await;
                reaches.unwrap_or(verdict)
            }
            verdict => verdict,
        };
        match verdict {
            Verdict::Empty => decided.discard(record),
            Verdict::Removed => {
                tracing::warn!(copy = %CopyId::of(record), holders = ?recorded(record), "the metadata store was put back to an older state in which this group is open; its replicas were freed since: it was removed by retention, a trim or compaction");
                self.leave(record, decided);
            }
            Verdict::Longest { first_ordinal, .. }
                if !self.follows(first_ordinal, &decided.chain)
                    && (!self.after_restore || first_ordinal < decided.chain.end()) =>
            {
                decided.discard(record);
            }
            Verdict::Longest { end_ordinal, .. }
                if self.may_be_more(record, end_ordinal, behind)
                    && !self.spec.unclean.accepts(record.group) =>
            {
                decided.out.stopped = Some(unclean(record));
            }
            Verdict::Longest {
                length,
                first_ordinal,
                end_ordinal,
            } => {
                if !self.follows(first_ordinal, &decided.chain) {
                    // What lay before it is not in the records of the older state.
                    decided.chain.loses(Some(UNCLEAN));
                }
                let end = (length, end_ordinal);
                self.close(record, first_ordinal, end, decided).await?;
            }
            // Between the groups before it and the next one there is no ordinal.
            Verdict::Unclean
                if self.after_restore
                    && decided.chain.lost().is_none()
                    && behind.closed == Some(decided.chain.end()) =>
            {
                decided.discard(record);
            }
            Verdict::Unclean if self.is_undecided(record) => {
                decided.out.stopped = Some(unclean(record));
            }
            Verdict::Unclean => self.accept(record, decided).await?,
        }
        Ok(())
    }

    /// True of an open group of which no copy counts and whose loss nobody has accepted.
    fn is_undecided(&self, record: &GroupRecord) -> bool {
        !record.is_closed()
            && matches!(self.verdict(record), Verdict::Unclean)
            && !self.is_alone(record)
            && !self.spec.unclean.accepts(record.group)
    }

    /// Where the lane's first recorded group must begin, if anything says so.
    fn start(&self, lane: LaneId, groups: &[GroupRecord]) -> Option<Ordinal> {
        let known = groups.iter().find_map(|record| record.first_ordinal);
        known.or_else(|| self.spec.starts.get(&lane).copied())
    }

    fn follows(&self, first_ordinal: Ordinal, chain: &LaneChain) -> bool {
        chain.continues(first_ordinal) || self.primary.faults.ordinal_gap_accepted()
    }

    pub(super) fn answers(&self, copy: CopyId) -> &[(Replica, CopyAnswer)] {
        self.answers.get(&copy).map_or(&[], Vec::as_slice)
    }

    fn verdict(&self, record: &GroupRecord) -> Verdict {
        let verdict = self.counted(record);
        match self.after_restore {
            true => self.of_older_state(record).verdict(verdict),
            false => verdict,
        }
    }

    /// What those say that count.
    fn counted(&self, record: &GroupRecord) -> Verdict {
        let mut verdict = Verdict::Unclean;
        let mut longest = 0;
        for (holder, answer) in self.answers(CopyId::of(record)) {
            if !self.counts(holder.broker, record, answer) {
                continue;
            }
            match answer {
                CopyAnswer::Unknown | CopyAnswer::Gone { .. } | CopyAnswer::Damaged { .. } => {}
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
        decided.go_on(first_ordinal);
        let copy = CopyId::of(record);
        let mut whole: Vec<Whole> = self
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
        // Nobody of the recorded lives may have as much.
        if !whole.iter().any(|one| one.length >= end.0)
            && let Ok(Some((_, others))) = self.salvage(copy, &self.of_other_lives(record)).await
        {
            whole.extend(others);
        }
        let ack = asked_of(&record.copies);
        let place = Place {
            address: end.0,
            ordinal: end.1,
        };
        let holders = self.complete(copy, place, whole, ack).await?;
        let closed = record.clone().closed(first_ordinal, end, end.1, holders);
        self.finish(closed, None, decided);
        Ok(())
    }

    /// Decides the close, if enough copies hold the group. Records behind it may be `lost`.
    fn finish(&self, mut closed: GroupRecord, lost: Option<&'static str>, decided: &mut Decided) {
        if self.after_restore {
            // Where it ends is what those say that have answered by now: a broker that starts later may have more of it.
            closed.restore = self.restore;
        }
        let out = &mut decided.out;
        if closed.copies.len() < self.spec.min_insync_replicas && closed.length > 0 {
            out.stopped = Some(Stopped::NotEnoughCopies {
                copy: CopyId::of(&closed),
                have: closed.copies.len(),
                need: self.spec.min_insync_replicas,
            });
            return;
        }
        match lost {
            Some(reason) if closed.length == 0 => decided.chain.is_gone(reason),
            _ => decided.chain.counts(closed.end_ordinal, lost),
        }
        decided.closes.push(out.groups.len());
        out.groups.push(closed);
        if lost.is_none() {
            decided.settled = decided.closes.len();
        }
    }

    /// The operator decided to go on without the copies that count, or there never was another one
    /// than this broker's own: the longest whole copy at the recorded brokers is kept, of whatever incarnation, and
    /// the ordinals jump past everything that somebody may have seen.
    async fn accept(
        &self,
        record: &GroupRecord,
        decided: &mut Decided,
    ) -> Result<(), RecoverError> {
        let copy = CopyId::of(record);
        let found = match self.salvage(copy, &record.copies).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%copy, %error, "its only replica cannot be read now; nothing is decided about it");
                decided.out.stopped = Some(unclean(record));
                return Ok(());
            }
        };
        let found = found.filter(|(found, _)| decided.chain.continues(found.first_ordinal));
        let Some((found, whole)) = found else {
            self.leave(record, decided);
            return Ok(());
        };
        decided.go_on(found.first_ordinal);
        let ack = asked_of(&record.copies);
        let end = Place {
            address: found.length,
            ordinal: found.end_ordinal,
        };
        let holders = self.complete(copy, end, whole, ack).await?;
        let end = (found.length, found.end_ordinal);
        let closed = record
            .clone()
            .closed(found.first_ordinal, end, end.1, holders);
        self.finish(closed, Some(UNCLEAN), decided);
        Ok(())
    }

    /// Nothing is left of a group; the record stays to carry the jump.
    fn leave(&self, record: &GroupRecord, decided: &mut Decided) {
        let end = decided.chain.end();
        let closed = record
            .clone()
            .closed(end, (0, end), end, record.copies.clone());
        self.finish(closed, Some(UNCLEAN), decided);
    }

    async fn commit(&self, changes: Vec<GroupChange>) -> Result<(), RecordsError> {
        let transaction = Transaction::of_groups(self.spec.streamlet, self.epoch, changes);
        let (records, runtime) = (&self.primary.records, &*self.primary.runtime);
        commit(records, runtime, &transaction, false).await?;
        Ok(())
    }
}
