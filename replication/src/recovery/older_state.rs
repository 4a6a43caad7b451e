//! Groups that are open in records of an older state, to which the metadata store was put back. Such a group may have been
//! closed since, without holders that had fallen out of its set, and then trimmed, compacted, or copied elsewhere. So what
//! one holder says is not all: it counts how many of the others may have had what nobody has now. Nothing is acknowledged
//! that fewer than `min_insync_replicas` have.

use kera_log_segments::lane_chain::LaneChain;
use kera_protocol::ids::Ordinal;
use kera_records::GroupRecord;

use super::Recovery;
use super::decide::{Behind, Verdict};
use crate::ids::{CopyId, Replica};
use crate::transport::CopyAnswer;

/// What the recorded holders of an open group say of it, whatever life each is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OfOlderState {
    /// Replicas without which nothing is acknowledged.
    min_insync: usize,
    /// Holders that did not answer, or cannot read what they have.
    unheard: usize,
    /// Holders of another life: what they had is lost, or says nothing of its length.
    other_lives: usize,
    /// Holders that have opened it, and to which nothing was written in the recorded life.
    opened: usize,
    /// Holders that never had it.
    never: usize,
    /// Holders that freed it since.
    removed: usize,
    /// Holders whose file was removed: since, or since it was never used.
    files_removed: usize,
}

impl OfOlderState {
    /// What each holder has said, and whether that is of a file of this broker's own. The owner's file was there before the
    /// group was recorded, if it was `file_made`.
    fn of(said: &[(Option<&CopyAnswer>, bool)], file_made: bool, min_insync: usize) -> Self {
        let mut found = Self {
            min_insync: min_insync.min(said.len()).max(1),
            ..Self::default()
        };
        for (answer, is_own_file) in said {
            let place = match answer {
                None | Some(CopyAnswer::Damaged { .. }) => &mut found.unheard,
                Some(CopyAnswer::Unknown) => &mut found.other_lives,
                Some(CopyAnswer::Gone { is_file: true }) if !file_made => &mut found.other_lives,
                Some(CopyAnswer::Gone { is_file: true }) => &mut found.files_removed,
                Some(CopyAnswer::Gone { is_file: false }) => &mut found.removed,
                Some(CopyAnswer::Absent) if *is_own_file && file_made => &mut found.files_removed,
                Some(CopyAnswer::Absent) if *is_own_file && said.len() > 1 => {
                    &mut found.other_lives
                }
                Some(CopyAnswer::Absent) => &mut found.never,
                Some(CopyAnswer::Scanned { length: 0, .. }) => &mut found.opened,
                Some(CopyAnswer::Scanned { .. }) => continue,
            };
            *place += 1;
        }
        found
    }

    /// Holders that may have had what nobody has now.
    fn doubtful(&self) -> usize {
        self.unheard + self.other_lives
    }

    /// Whether something may have been acknowledged of which none that answers in the recorded life has any.
    pub(super) fn is_doubtful(&self) -> bool {
        self.doubtful() >= self.min_insync
    }

    /// Whether something may have been acknowledged and removed since. The file of a group that was prepared ahead of its use
    /// goes when it is not used, and nobody else has opened that.
    fn was_used(&self) -> bool {
        let is_dropped = self.never > 0 && self.removed + self.doubtful() == 0;
        self.removed + self.files_removed + self.doubtful() >= self.min_insync && !is_dropped
    }

    /// What counts, where those of the recorded lives say `counted`.
    pub(super) fn verdict(&self, counted: Verdict) -> Verdict {
        match counted {
            Verdict::Longest { .. } if self.is_doubtful() && self.unheard > 0 => Verdict::Unclean,
            Verdict::Longest { .. } => counted,
            // Too few are left that may have had more than those that say what became of it. Who has freed it says that no record
            // named it there any more, which is so of one that was moved as well: a holder that says nothing may have it.
            _ if !self.is_doubtful() => match self.was_used() {
                true if self.unheard > 0 => Verdict::Unclean,
                true => Verdict::Removed,
                false => Verdict::Empty,
            },
            // One that is in the recorded life has opened it and was given nothing: what others have is looked at.
            _ if self.opened > 0 && self.unheard == 0 => Verdict::Empty,
            _ => Verdict::Unclean,
        }
    }
}

impl Recovery<'_> {
    /// The longest replica of an open group of which nobody's word counts, if it reaches to where the next group begins that is
    /// closed: nothing can lie between. All of its holders have answered: one that has not may know of an earlier begin.
    pub(super) async fn reaches(
        &self,
        record: &GroupRecord,
        behind: Behind,
        chain: &LaneChain,
    ) -> Option<Verdict> {
        let next = behind.closed.filter(|next| *next > chain.end())?;
        let is_heard = self.of_older_state(record).unheard == 0;
        if !self.after_restore || chain.lost().is_some() || !is_heard {
            return None;
        }
        let copy = CopyId::of(record);
        let (found, _) = self
            .salvage(copy, &self.of_other_lives(record))
            .await
            .ok()??;
        let is_whole =
            found.batches > 0 && chain.continues(found.first_ordinal) && found.end_ordinal >= next;
        is_whole.then(|| {
            tracing::warn!(%copy, length = found.length, "the metadata store was put back to an older state in which this group is open; a replica of another life than recorded reaches to where the next group begins: it counts");
            Verdict::Longest {
                length: found.length,
                first_ordinal: found.first_ordinal,
                end_ordinal: found.end_ordinal,
            }
        })
    }

    /// Whether one that did not answer may have more of an open group than up to `end`: the next group begins behind that.
    pub(super) fn may_be_more(&self, record: &GroupRecord, end: Ordinal, behind: Behind) -> bool {
        let is_short = behind.next.is_some_and(|next| end < next);
        self.after_restore && is_short && self.of_older_state(record).unheard > 0
    }

    /// What became of an open group of an older state.
    pub(super) fn of_older_state(&self, record: &GroupRecord) -> OfOlderState {
        let holders = record.copies.iter();
        let said = holders.map(|holder| {
            let is_own_file = self.is_file(holder.broker, record);
            (self.said(record, holder), is_own_file)
        });
        let said: Vec<_> = said.collect();
        OfOlderState::of(&said, record.file_made, self.spec.min_insync_replicas)
    }

    fn said(&self, record: &GroupRecord, holder: &Replica) -> Option<&CopyAnswer> {
        let mut answers = self.answers(CopyId::of(record)).iter();
        let answer = answers.find(|(by, _)| by.broker == holder.broker);
        answer.map(|(_, answer)| answer)
    }

    /// Holders that are in another life than recorded.
    pub(super) fn of_other_lives(&self, record: &GroupRecord) -> Vec<Replica> {
        let holders = record.copies.iter();
        let others =
            holders.filter(|holder| self.said(record, holder) == Some(&CopyAnswer::Unknown));
        others.copied().collect()
    }

    /// What counts once holders of another life were looked at as well: those that answer may have fallen out of the group's
    /// set before its end, and others, that are not recorded, may have made up for them. `None` if one cannot be read now.
    pub(super) async fn with_other_lives(
        &self,
        record: &GroupRecord,
        verdict: Verdict,
    ) -> Option<Verdict> {
        let longest = match verdict {
            Verdict::Empty => 0,
            Verdict::Longest { length, .. } => length,
            Verdict::Removed | Verdict::Unclean => return Some(verdict),
        };
        let others = self.of_other_lives(record);
        if !self.after_restore || others.is_empty() {
            return Some(verdict);
        }
        let copy = CopyId::of(record);
        match self.salvage(copy, &others).await {
            Ok(Some((found, _))) if found.batches > 0 && found.length > longest => {
                let end_ordinal: Ordinal = found.end_ordinal;
                tracing::warn!(%copy, length = found.length, longest, "the metadata store was put back to an older state in which this group is open; a replica of another life than recorded has more of it than those of the recorded lives: it counts");
                Some(Verdict::Longest {
                    length: found.length,
                    first_ordinal: found.first_ordinal,
                    end_ordinal,
                })
            }
            Ok(_) => Some(verdict),
            Err(error) => {
                tracing::warn!(%copy, %error, "one of its replicas cannot be read now; nothing is decided about it");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a holder of a group was to it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Part {
        /// It fell out of the set before it had opened the group, or the group was never used.
        None,
        /// It has opened it, and the group was never used.
        Opened,
        /// It fell out of the set with some of the bytes.
        Some,
        /// It was in the set to the end.
        All,
    }

    /// What has happened to a holder since.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Since {
        Nothing,
        /// It was told to free its replica, in this life or in an earlier one.
        Freed,
        Rebooted,
        IsDown,
    }

    const PARTS: [Part; 4] = [Part::None, Part::Opened, Part::Some, Part::All];
    const SINCE: [Since; 4] = [Since::Nothing, Since::Freed, Since::Rebooted, Since::IsDown];

    fn scanned(length: u64) -> CopyAnswer {
        CopyAnswer::Scanned {
            length,
            first_ordinal: 0,
            end_ordinal: length,
        }
    }

    fn said(part: Part, since: Since) -> Option<CopyAnswer> {
        match (since, part) {
            (Since::IsDown, _) => None,
            (Since::Rebooted, _) => Some(CopyAnswer::Unknown),
            (Since::Freed, _) => Some(CopyAnswer::Gone { is_file: false }),
            (Since::Nothing, Part::None) => Some(CopyAnswer::Absent),
            (Since::Nothing, Part::Opened) => Some(CopyAnswer::EMPTY),
            (Since::Nothing, Part::Some) => Some(scanned(1)),
            (Since::Nothing, Part::All) => Some(scanned(2)),
        }
    }

    fn longest(length: u64) -> Verdict {
        Verdict::Longest {
            length,
            first_ordinal: 0,
            end_ordinal: length,
        }
    }

    /// What is decided about a group. A group that was closed is on its holders' disks, whatever boots there were.
    fn decided(holders: &[(Part, Since); 3], min_insync: usize, is_closed: bool) -> Verdict {
        let answers = holders.map(|(part, since)| said(part, since));
        let said: Vec<_> = answers.iter().map(|one| (one.as_ref(), false)).collect();
        let found = OfOlderState::of(&said, true, min_insync);
        let mut counted = Verdict::Unclean;
        for answer in answers.iter().flatten() {
            counted = match (answer, counted) {
                (CopyAnswer::Scanned { length, .. }, _) if *length > 0 => match counted {
                    Verdict::Longest { length: known, .. } if known >= *length => counted,
                    _ => longest(*length),
                },
                (CopyAnswer::Absent | CopyAnswer::Scanned { .. }, Verdict::Unclean) => {
                    Verdict::Empty
                }
                _ => counted,
            };
        }
        let verdict = found.verdict(counted);
        let is_looked_at = matches!(verdict, Verdict::Empty | Verdict::Longest { .. });
        let on_disk = (Part::All, Since::Rebooted);
        match is_looked_at && found.is_doubtful() && is_closed && holders.contains(&on_disk) {
            true => longest(2),
            false => verdict,
        }
    }

    fn all_histories(mut see: impl FnMut(&[(Part, Since); 3], usize)) {
        let one: Vec<_> = PARTS
            .iter()
            .flat_map(|part| SINCE.map(|since| (*part, since)))
            .collect();
        for min_insync in 1..=3 {
            for a in &one {
                for b in &one {
                    for c in &one {
                        see(&[*a, *b, *c], min_insync);
                    }
                }
            }
        }
    }

    fn parts(holders: &[(Part, Since); 3], part: Part) -> usize {
        holders.iter().filter(|(one, _)| *one == part).count()
    }

    fn since(holders: &[(Part, Since); 3], what: Since) -> usize {
        holders.iter().filter(|(_, one)| *one == what).count()
    }

    #[test]
    fn no_group_counts_as_removed_or_empty_of_which_something_was_acknowledged() {
        let mut histories = 0;
        all_histories(|holders, min_insync| {
            let all = parts(holders, Part::All);
            let is_freed =
                |(part, since): &(Part, Since)| *part == Part::All && *since == Since::Freed;
            // Acknowledged, and neither trimmed nor moved since.
            if all < min_insync || holders.iter().any(is_freed) || parts(holders, Part::Opened) > 0
            {
                return;
            }
            histories += 1;
            // Who falls out ends the group, so that it is on disks.
            let verdict = decided(holders, min_insync, all < 3);
            let is_kept = verdict == longest(2) || verdict == Verdict::Unclean;
            assert!(is_kept, "{holders:?}, {min_insync}: {verdict:?}");
        });
        assert!(histories > 1000, "{histories}");
    }

    #[test]
    fn what_was_trimmed_or_never_used_needs_nobody_where_enough_tell_of_it() {
        all_histories(|holders, min_insync| {
            let down = since(holders, Since::IsDown);
            let doubtful = since(holders, Since::Rebooted) + down;
            let unused = parts(holders, Part::None) + parts(holders, Part::Opened);
            // One that is down may have what others have freed.
            if doubtful >= min_insync || down > 0 && since(holders, Since::Freed) > 0 {
                return;
            }
            let verdict = decided(holders, min_insync, true);
            let freed = since(holders, Since::Freed);
            if unused == 3 && freed == 0 {
                assert_eq!(verdict, Verdict::Empty, "{holders:?}, {min_insync}");
            }
            if freed == 3 - doubtful {
                assert_eq!(verdict, Verdict::Removed, "{holders:?}, {min_insync}");
            }
            assert_ne!(verdict, Verdict::Unclean, "{holders:?}, {min_insync}");
        });
    }

    #[test]
    fn one_that_never_had_it_says_nothing_of_what_others_have_lost() {
        let absent = (Part::None, Since::Nothing);
        let rebooted = (Part::All, Since::Rebooted);
        let of = |holders: [(Part, Since); 3]| decided(&holders, 2, false);
        assert_eq!(of([absent, rebooted, rebooted]), Verdict::Unclean);
        // Two that never had it: the third alone acknowledges nothing.
        assert_eq!(of([absent, absent, rebooted]), Verdict::Empty);
        // Prepared ahead of its use: memory is gone, and the owner's file is empty.
        let opened = (Part::Opened, Since::Nothing);
        let ahead = (Part::None, Since::Rebooted);
        assert_eq!(of([opened, ahead, ahead]), Verdict::Empty);
        // The owner has dropped its file since.
        let (file, absent) = (CopyAnswer::Gone { is_file: true }, CopyAnswer::Absent);
        let said = [(Some(&file), false), (Some(&absent), false)];
        for min_insync in 1..=2 {
            let found = OfOlderState::of(&said, true, min_insync);
            assert_eq!(found.verdict(Verdict::Empty), Verdict::Empty);
        }
    }

    #[test]
    fn a_file_that_is_not_there_was_removed_only_if_it_was_there_before_its_record() {
        let gone = CopyAnswer::Gone { is_file: true };
        let (freed, absent) = (CopyAnswer::Gone { is_file: false }, CopyAnswer::Absent);
        for (answer, is_own) in [(&gone, false), (&absent, true)] {
            for (file_made, verdict) in [(true, Verdict::Removed), (false, Verdict::Unclean)] {
                let said = [(Some(answer), is_own), (Some(&freed), false)];
                let found = OfOlderState::of(&said, file_made, 1);
                assert_eq!(found.verdict(Verdict::Unclean), verdict);
            }
        }
    }
}
