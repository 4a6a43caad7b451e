//! A group's progress in one lane: a low ordinal, below which everything is consumed, and disjoint
//! spans above it, each either finished or leased. What lies between spans is free again; above
//! the last span nothing was ever leased.

use std::collections::BTreeMap;

use kera_protocol::ids::Ordinal;
use kera_protocol::v1::Cursor;

/// End of a lease without an end.
pub(crate) const OPEN_END: Ordinal = Ordinal::MAX;

/// An exclusive end as it is recorded and told: 0 if it is [`OPEN_END`].
pub(crate) fn told_end(end: Ordinal) -> Ordinal {
    match end {
        OPEN_END => 0,
        end => end,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    end: Ordinal,
    /// The lease; `None`: finished.
    holder: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LaneProgress {
    low: Ordinal,
    hint: Option<Cursor>,
    spans: BTreeMap<Ordinal, Span>,
    /// Ordinals that spans cover, so that looking for a free range costs nothing if there is none.
    covered: u64,
}

impl LaneProgress {
    pub(crate) fn low(&self) -> Ordinal {
        self.low
    }

    /// A cursor at the low ordinal, with a hint if one is known.
    pub(crate) fn cursor(&self) -> Cursor {
        self.hint.unwrap_or(Cursor {
            ordinal: self.low,
            ..Cursor::default()
        })
    }

    pub(crate) fn hint(&self) -> Option<Cursor> {
        self.hint
    }

    /// Where nothing was ever leased.
    pub(crate) fn fresh(&self) -> Ordinal {
        self.spans
            .last_key_value()
            .map_or(self.low, |(_, span)| span.end)
    }

    /// Spans that bound memory: finished ranges, and leases that may become one.
    pub(crate) fn span_count(&self) -> usize {
        self.spans.len()
    }

    pub(crate) fn finished_ranges(&self) -> impl Iterator<Item = (Ordinal, Ordinal)> + '_ {
        self.spans
            .iter()
            .filter(|(_, span)| span.holder.is_none())
            .map(|(start, span)| (*start, span.end))
    }

    /// Records finished above the low ordinal.
    pub(crate) fn finished_above(&self) -> u64 {
        self.finished_ranges().map(|(start, end)| end - start).sum()
    }

    /// Records finished at or above an ordinal.
    pub(crate) fn finished_from(&self, from: Ordinal) -> u64 {
        self.finished_ranges()
            .map(|(start, end)| end.saturating_sub(start.max(from)))
            .sum()
    }

    /// The lowest free range below the last span.
    pub(crate) fn lowest_hole(&self) -> Option<(Ordinal, Ordinal)> {
        if self.fresh() - self.low == self.covered {
            return None;
        }
        let mut at = self.low;
        for (start, span) in &self.spans {
            if *start > at {
                return Some((at, *start));
            }
            at = span.end;
        }
        None
    }

    /// Starts anew at `low` with these finished ranges (pairs of start and end; what makes no sense
    /// is left out). Leases of the lane must have ended.
    pub(crate) fn set(&mut self, low: Ordinal, hint: Option<Cursor>, finished: &[Ordinal]) {
        *self = Self {
            low,
            hint: hint.filter(|cursor| cursor.ordinal == low),
            ..Self::default()
        };
        for pair in finished.chunks_exact(2) {
            if self.is_free(pair[0], pair[1]) {
                self.insert(pair[0], pair[1], None);
            }
        }
        self.settle();
    }

    /// Leases `[start, end)`; what of it lies below the low ordinal counts as finished. False, and
    /// nothing changes, if part of it is not free.
    pub(crate) fn lease(&mut self, lease: u64, start: Ordinal, end: Ordinal) -> bool {
        let start = start.max(self.low);
        if start >= end {
            return true;
        }
        let free = self.is_free(start, end);
        if free {
            self.insert(start, end, Some(lease));
        }
        free
    }

    /// The lease that begins at `from` finished everything below `to`.
    pub(crate) fn commit(&mut self, lease: u64, from: Ordinal, to: Cursor) {
        let from = from.max(self.low);
        if to.ordinal <= from {
            return;
        }
        let Some(span) = self.take(from, lease) else {
            return;
        };
        let to_ordinal = to.ordinal.min(span.end);
        self.insert_finished(from, to_ordinal);
        if to_ordinal < span.end {
            self.insert(to_ordinal, span.end, Some(lease));
        }
        let before = self.low;
        self.settle();
        if self.low != before {
            self.hint = Some(to).filter(|cursor| cursor.has_hint && cursor.ordinal == self.low);
        }
    }

    /// The lease that begins at `from` ended; what it did not finish is free.
    pub(crate) fn release(&mut self, lease: u64, from: Ordinal) {
        let from = from.max(self.low);
        self.take(from, lease);
        // What is free at the very end was never leased, as far as anyone can tell.
    }

    /// The lease that begins at `from` ended, and a transaction that is open commits what it has below `until`: that
    /// stays held in its name, the rest is free.
    pub(crate) fn keep(&mut self, lease: u64, from: Ordinal, until: Ordinal) {
        let from = from.max(self.low);
        if let Some(span) = self.take(from, lease)
            && from < until
        {
            self.insert(from, until.min(span.end), Some(lease));
        }
    }

    /// True if anything is leased, or held for a lease that has ended.
    pub(crate) fn is_held(&self) -> bool {
        self.spans.values().any(|span| span.holder.is_some())
    }

    /// Everything below `low` counts as finished.
    pub(crate) fn advance(&mut self, low: Ordinal) {
        if low <= self.low {
            return;
        }
        while let Some((&start, &span)) = self.spans.first_key_value() {
            if start >= low {
                break;
            }
            self.remove(start);
            if span.end > low {
                self.insert(low, span.end, span.holder);
            }
        }
        self.low = low;
        self.hint = None;
        self.settle();
    }

    /// A range without records counts as finished, if it is free.
    pub(crate) fn skip(&mut self, start: Ordinal, end: Ordinal) {
        let start = start.max(self.low);
        if start < end && self.is_free(start, end) {
            self.insert_finished(start, end);
            self.settle();
        }
    }

    fn is_free(&self, start: Ordinal, end: Ordinal) -> bool {
        if start >= end || start < self.low {
            return false;
        }
        self.spans
            .range(..end)
            .next_back()
            .is_none_or(|(_, span)| span.end <= start)
    }

    fn insert(&mut self, start: Ordinal, end: Ordinal, holder: Option<u64>) {
        self.covered += end - start;
        self.spans.insert(start, Span { end, holder });
    }

    fn remove(&mut self, start: Ordinal) -> Option<Span> {
        let span = self.spans.remove(&start)?;
        self.covered -= span.end - start;
        Some(span)
    }

    fn take(&mut self, start: Ordinal, lease: u64) -> Option<Span> {
        if self.spans.get(&start)?.holder != Some(lease) {
            return None;
        }
        self.remove(start)
    }

    /// Inserts a finished range and joins it with finished neighbours.
    fn insert_finished(&mut self, mut start: Ordinal, mut end: Ordinal) {
        if let Some((&before, &span)) = self.spans.range(..start).next_back()
            && span.holder.is_none()
            && span.end == start
        {
            self.remove(before);
            start = before;
        }
        if let Some(&span) = self.spans.get(&end)
            && span.holder.is_none()
        {
            self.remove(end);
            end = span.end;
        }
        self.insert(start, end, None);
    }

    /// Moves the low ordinal over finished spans that touch it.
    fn settle(&mut self) {
        while let Some((&start, &span)) = self.spans.first_key_value()
            && start <= self.low
            && span.holder.is_none()
        {
            self.remove(start);
            if span.end > self.low {
                self.low = span.end;
                self.hint = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(ordinal: Ordinal) -> Cursor {
        Cursor {
            ordinal,
            group: 7,
            has_hint: true,
            ..Cursor::default()
        }
    }

    #[test]
    fn finished_ranges_join_and_lift_the_low_ordinal() {
        let mut lane = LaneProgress::default();
        for (lease, start) in [(1, 0), (2, 10), (3, 20)] {
            assert!(lane.lease(lease, start, start + 10));
        }
        assert_eq!(lane.fresh(), 30);
        lane.commit(3, 20, to(30));
        lane.commit(2, 10, to(20));
        assert_eq!(lane.finished_ranges().collect::<Vec<_>>(), [(10, 30)]);
        assert_eq!(lane.finished_above(), 20);
        assert_eq!(lane.low(), 0);
        lane.commit(1, 0, to(5));
        assert_eq!((lane.low(), lane.cursor()), (5, to(5)));
        lane.commit(1, 5, to(10));
        assert_eq!((lane.low(), lane.span_count()), (30, 0));
        assert!(
            !lane.cursor().has_hint,
            "the hint of ordinal 10 does not fit 30"
        );
    }

    #[test]
    fn what_a_released_lease_did_not_finish_is_a_hole() {
        let mut lane = LaneProgress::default();
        assert!(lane.lease(1, 0, 10));
        assert!(lane.lease(2, 10, 20));
        assert_eq!(lane.lowest_hole(), None);
        lane.commit(1, 0, to(4));
        lane.release(1, 4);
        assert_eq!(lane.lowest_hole(), Some((4, 10)));
        assert!(!lane.lease(3, 4, 11), "ordinal 10 is leased");
        assert!(lane.lease(3, 4, 10));
        assert_eq!(lane.lowest_hole(), None);
        lane.release(2, 10);
        assert_eq!((lane.lowest_hole(), lane.fresh()), (None, 10));
    }

    #[test]
    fn a_trim_finishes_what_lies_below_and_keeps_the_rest_leased() {
        let mut lane = LaneProgress::default();
        assert!(lane.lease(1, 0, 10));
        assert!(lane.lease(2, 10, 20));
        assert!(lane.lease(3, 20, 30));
        lane.commit(2, 10, to(15));
        lane.advance(13);
        assert_eq!(lane.low(), 15);
        assert!(!lane.lease(4, 15, 20));
        lane.commit(1, 0, to(10));
        assert_eq!(lane.low(), 15);
        lane.commit(2, 15, to(20));
        assert_eq!(lane.low(), 20);
        lane.advance(25);
        lane.commit(3, 20, to(30));
        assert_eq!((lane.low(), lane.span_count()), (30, 0));
    }

    #[test]
    fn gaps_count_as_finished_only_where_nothing_is_leased() {
        let mut lane = LaneProgress::default();
        assert!(lane.lease(1, 10, 20));
        lane.skip(0, 15);
        assert_eq!(lane.low(), 0);
        lane.skip(0, 10);
        assert_eq!(lane.low(), 10);
        lane.set(5, Some(to(5)), &[8, 10, 9, 12, 5, 6, 3]);
        assert_eq!(lane.low(), 6);
        assert_eq!(lane.finished_ranges().collect::<Vec<_>>(), [(8, 10)]);
    }
}
