//! What can only be told once everything is known.

use std::collections::{BTreeMap, HashMap};

use super::Checker;
use super::sends::fits;
use super::state::Skip;
use crate::anomaly::{Anomaly, HeadBreach, OrderBreach};
use crate::event::{Reader, Record};
use crate::ranges::RangeSet;
use crate::records::{ACKED, FAILED, READ, UNKNOWN};
use crate::report::Report;
use crate::slots::Holds;

impl Checker {
    /// Ends the history and reports.
    pub fn finish(mut self) -> Report {
        self.count();
        self.resolve_splits();
        self.resolve_contests();
        let lost = self.find_lost();
        self.find_unseen(&lost);
        self.find_skipped();
        self.find_late();
        self.find_reordered();
        self.find_later_lost();
        self.find_never_leased();
        self.report
    }

    fn count(&mut self) {
        let counts = &mut self.report.counts;
        for (_, flags) in self.records.iter() {
            if flags & ACKED != 0 {
                counts.acknowledged += 1;
                counts.unread += u64::from(flags & READ == 0);
            } else if flags & FAILED != 0 {
                counts.failed += 1;
            } else if flags & UNKNOWN != 0 {
                counts.unknown += 1;
            } else {
                counts.unresolved += 1;
            }
            counts.read += u64::from(flags & READ != 0);
        }
        counts.gap_ordinals = self
            .lanes
            .iter()
            .flat_map(|lane| lane.gaps.iter())
            .map(|(from, to)| to - from)
            .sum();
    }

    /// Whether the ordinal was lost as the policy allows: reported, and not promised. A record that
    /// was sent after the last fault is promised under any policy: see [`Self::may_be_lost`].
    fn lost_as_allowed(&self, lane: u32, ordinal: u64) -> bool {
        self.expect.may_lose() && self.lanes[lane as usize].gaps.contains(ordinal)
    }

    /// Whether a record that was acknowledged may be missing from there.
    fn may_be_lost(&self, record: Record, (lane, ordinal): (u32, u64)) -> bool {
        self.lost_as_allowed(lane, ordinal) && self.sent_before(record)
    }

    /// Whether a record was sent before the broker was last ready again.
    fn sent_before(&self, record: Record) -> bool {
        let since = self.sent_before_start.as_ref();
        since.is_none_or(|sent| record.seq < sent.get(&record.producer).copied().unwrap_or(0))
    }

    /// Whether something was trimmed where a record was sent to, of which nobody knows where it is.
    fn may_be_trimmed(&self, record: Record) -> bool {
        let sent = self.lanes[self.records.lane(record) as usize].lane;
        let mut lanes = self.lanes.iter();
        lanes.any(|lane| lane.log_start > 0 && fits(sent, lane.lane))
    }

    fn was_read(&self, record: Record, (lane, ordinal): (u32, u64)) -> bool {
        self.lanes[lane as usize]
            .slots
            .get(ordinal)
            .is_some_and(|slot| slot.read && slot.holds == Holds::Record(record))
    }

    /// Records that were seen at several places.
    fn resolve_splits(&mut self) {
        let mut splits: Vec<_> = std::mem::take(&mut self.splits).into_iter().collect();
        splits.sort_unstable();
        for (record, others) in splits {
            let Some(main) = self.records.place(record) else {
                continue;
            };
            let acked = self.records.has(record, ACKED);
            let mut read: Vec<(u32, u64)> = std::iter::once(main)
                .chain(others)
                .filter(|&place| self.was_read(record, place))
                .filter(|&(lane, ordinal)| !self.lost_as_allowed(lane, ordinal))
                .collect();
            read.dedup();
            if let [first, second, ..] = read[..]
                && self.expect.idempotent
            {
                let anomaly = Anomaly::StoredTwice {
                    record,
                    first: self.place(first.0, first.1),
                    second: self.place(second.0, second.1),
                };
                self.add(anomaly);
            }
            if acked
                && !read.contains(&main)
                && !self.lost_as_allowed(main.0, main.1)
                && let Some(&(lane, ordinal)) = read.first()
            {
                let anomaly = Anomaly::InconsistentOrdinal {
                    record,
                    acknowledged: self.place(main.0, main.1),
                    read: self.place(lane, ordinal),
                };
                self.add(anomaly);
            }
        }
    }

    /// Ordinals for which several records were named.
    fn resolve_contests(&mut self) {
        let mut contests: Vec<_> = std::mem::take(&mut self.contests).into_iter().collect();
        contests.sort_unstable_by_key(|&(at, _)| at);
        for ((lane, ordinal), contest) in contests {
            // A record that only an acknowledgement puts here, and that is read elsewhere, was
            // reported as that; likewise a holder that was acknowledged elsewhere.
            let elsewhere = |record: Record| {
                self.records.place(record) != Some((lane, ordinal))
                    || self.records.has(record, READ) && !self.was_read(record, (lane, ordinal))
            };
            let explained = elsewhere(contest.first) || elsewhere(contest.second);
            if contest.both_read || !explained {
                let anomaly = Anomaly::OrdinalReused {
                    place: self.place(lane, ordinal),
                    first: contest.first,
                    second: contest.second,
                };
                self.add(anomaly);
            }
        }
    }

    /// Acknowledged, not read by anyone, and some reader came past. Returns their ordinals by lane.
    fn find_lost(&mut self) -> BTreeMap<u32, RangeSet> {
        let mut lost: BTreeMap<u32, RangeSet> = BTreeMap::new();
        let mut found = Vec::new();
        for (record, flags) in self.records.iter() {
            if flags & ACKED == 0 || flags & READ != 0 {
                continue;
            }
            let Some((lane, ordinal)) = self.records.place(record) else {
                // Who came past it cannot be told, nor whether it was among what was lost or trimmed.
                let may_be_lost = self.expect.may_lose() && self.sent_before(record);
                if self.expect.complete && !may_be_lost && !self.may_be_trimmed(record) {
                    found.push(Anomaly::Lost {
                        record,
                        place: None,
                        passed_by: None,
                    });
                }
                continue;
            };
            let state = &self.lanes[lane as usize];
            let altered = state
                .slots
                .get(ordinal)
                .is_some_and(|slot| slot.holds == Holds::Foreign);
            if altered || ordinal < state.log_start || self.may_be_lost(record, (lane, ordinal)) {
                continue;
            }
            let passed_by = state
                .readers
                .iter()
                .map(|&index| &self.readers[index])
                .find(|reader| reader.passed.contains(ordinal))
                .map(|reader| reader.reader);
            if passed_by.is_some() || self.expect.complete {
                lost.entry(lane).or_default().insert_one(ordinal);
                found.push(Anomaly::Lost {
                    record,
                    place: Some(self.place(lane, ordinal)),
                    passed_by,
                });
            }
        }
        for anomaly in found {
            self.add(anomaly);
        }
        lost
    }

    fn find_unseen(&mut self, lost: &BTreeMap<u32, RangeSet>) {
        let mut skips: HashMap<usize, Vec<Skip>> = HashMap::new();
        for skip in &self.skips {
            skips.entry(skip.reader).or_default().push(*skip);
        }
        for index in 0..self.readers.len() {
            let reader = &mut self.readers[index];
            let lane = &self.lanes[reader.lane as usize];
            let mut missing = std::mem::take(&mut reader.passed);
            missing.subtract(&reader.delivered);
            missing.subtract(&lane.gaps);
            missing.remove(0, lane.log_start);
            if let Some(lost) = lost.get(&reader.lane) {
                missing.subtract(lost);
            }
            for (from, to) in missing.iter() {
                let skips = skips.get(&index).into_iter().flatten();
                let mut around = skips.filter(|skip| skip.from < to && skip.to > from);
                self.report.add(Anomaly::Unseen {
                    reader: reader.reader,
                    lane: lane.lane,
                    from,
                    to,
                    scope: around.next().map(|skip| skip.scope),
                });
            }
        }
    }

    /// What a lease went past although its group got it at another time; the rest is unseen.
    fn find_skipped(&mut self) {
        for skip in &self.skips {
            let Some(lease) = skip.lease else { continue };
            let reader = &self.readers[skip.reader];
            let lane = &self.lanes[reader.lane as usize];
            let mut missing = RangeSet::default();
            for (from, to) in reader.delivered.overlaps(skip.from, skip.to) {
                missing.insert(from, to);
            }
            missing.subtract(&lane.gaps);
            missing.subtract(&reader.outside);
            missing.remove(0, lane.log_start);
            for (from, to) in missing.iter() {
                self.report.add(Anomaly::Skipped {
                    lease,
                    lane: lane.lane,
                    from,
                    to,
                    scope: skip.scope,
                });
            }
        }
    }

    /// Each lane holds each producer's records in the order sent.
    fn find_reordered(&mut self) {
        if !self.expect.idempotent {
            return;
        }
        let mut found = Vec::new();
        for (index, lane) in self.lanes.iter().enumerate() {
            let index = index as u32;
            let mut last: HashMap<u32, (Record, u64)> = HashMap::new();
            for (ordinal, slot) in lane.slots.range(0, u64::MAX) {
                let Holds::Record(record) = slot.holds else {
                    continue;
                };
                // A second place of a record is a duplicate, whatever its order.
                if self.records.place(record) != Some((index, ordinal))
                    || self.lost_as_allowed(index, ordinal)
                {
                    continue;
                }
                if let Some((before, at)) = last.insert(record.producer, (record, ordinal))
                    && before.seq > record.seq
                {
                    found.push(Anomaly::Reordered {
                        how: OrderBreach::Stored,
                        lane: lane.lane,
                        earlier: (Some(before), at),
                        later: (Some(record), ordinal),
                        reader: None,
                        scope: self.calls.of_sends(before, record),
                    });
                }
            }
        }
        for anomaly in found {
            self.add(anomaly);
        }
    }

    /// What was read and then reported as a gap was not durable when it was read.
    fn find_later_lost(&mut self) {
        if self.expect.may_lose() {
            return;
        }
        let mut found = Vec::new();
        for (index, lane) in self.lanes.iter().enumerate() {
            for (from, to) in lane.gaps.iter() {
                for (ordinal, _) in lane.slots.range(from, to).filter(|(_, slot)| slot.read) {
                    found.push(Anomaly::AboveHead {
                        how: HeadBreach::LaterLost,
                        place: self.place(index as u32, ordinal),
                        head: from,
                    });
                }
            }
        }
        for anomaly in found {
            self.add(anomaly);
        }
    }

    fn find_never_leased(&mut self) {
        let mut groups: Vec<_> = self.groups.keys().copied().collect();
        groups.sort_unstable();
        for group in groups {
            let state = &self.groups[&group];
            let Some(probe) = &state.probe else {
                continue;
            };
            if probe.in_vain < self.expect.asks_in_vain {
                continue;
            }
            for (lane, &head) in self.lanes.iter().zip(&probe.heads) {
                if lane.lane.stream != state.stream {
                    continue;
                }
                let index = self.lane_index[&lane.lane];
                let reader = self.reader_index.get(&(Reader::Group(group), index));
                let reader = reader.map(|&reader| &self.readers[reader]);
                let mut uncovered = RangeSet::default();
                uncovered.insert(reader.map_or(0, |reader| reader.start), head);
                uncovered.remove(0, lane.log_start);
                uncovered.subtract(&lane.gaps);
                if let Some(reader) = reader {
                    uncovered.subtract(&reader.covered);
                    // A commit whose answer was lost may have ended a lease of what was delivered.
                    uncovered.subtract(&reader.delivered);
                }
                for (from, to) in uncovered.iter() {
                    self.report.add(Anomaly::NeverLeased {
                        group,
                        lane: lane.lane,
                        from,
                        to,
                        asks: probe.in_vain,
                    });
                }
            }
        }
    }
}
