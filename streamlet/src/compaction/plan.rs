//! Which groups of a lane a pass looks at, and which of them become one.

use std::ops::Range;

use kera_log_segments::group::{Group, MAX_GROUP_ORDINALS};
use kera_log_segments::sync::Arc;

/// Most groups that become one: all their records change in one transaction.
const MAX_RUN: usize = 32;

/// The groups that become one, as ranges of `groups`, which follow each other in their lane. What is left of groups
/// fits where all of them did, so their lengths tell what fits.
pub(crate) fn runs(groups: &[Arc<Group>], segment_size: u64, segments: u64) -> Vec<Range<usize>> {
    let spans: Vec<_> = groups
        .iter()
        .map(|group| Span {
            first: group.spec().first_ordinal,
            end: group.end().ordinal,
            length: group.end_address(),
        })
        .collect();
    runs_of(&spans, segment_size, segments)
}

/// What a group holds.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: u64,
    end: u64,
    length: u64,
}

fn runs_of(spans: &[Span], segment_size: u64, segments: u64) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    // Where the last run ends if nothing goes.
    let mut end = 0;
    for (index, span) in spans.iter().enumerate() {
        let joins = runs
            .last()
            .filter(|run| run.len() < MAX_RUN)
            .and_then(|run| {
                let (first, before) = (&spans[run.start], &spans[index - 1]);
                // A gap between groups is a loss that its readers are told of.
                let follows =
                    before.end == span.first && span.end - first.first <= MAX_GROUP_ORDINALS;
                let end = follows.then(|| end_of_both(end, span.length, segment_size))?;
                (end <= segments * segment_size).then_some(end)
            });
        match (joins, runs.last_mut()) {
            (Some(both), Some(run)) => {
                run.end = index + 1;
                end = both;
            }
            _ => {
                runs.push(index..index + 1);
                end = span.length;
            }
        }
    }
    runs
}

/// Where bytes of a group end that are written behind `end`, at most: batches never cross segments, so behind bytes
/// that end within one they may take one segment more than by themselves.
fn end_of_both(end: u64, length: u64, segment_size: u64) -> u64 {
    let within = end % segment_size;
    if length <= segment_size && within + length < segment_size {
        return end + length;
    }
    let segments = end.div_ceil(segment_size) + length.div_ceil(segment_size);
    segments * segment_size
}

#[cfg(all(test, not(kera_shuttle)))]
mod tests {
    use super::*;

    fn of(lengths: &[u64], segment_size: u64, segments: u64) -> Vec<(usize, usize)> {
        let spans = lengths.iter().enumerate().map(|(index, length)| Span {
            first: index as u64 * 10,
            end: index as u64 * 10 + 10,
            length: *length,
        });
        pairs(&spans.collect::<Vec<_>>(), segment_size, segments)
    }

    fn pairs(spans: &[Span], segment_size: u64, segments: u64) -> Vec<(usize, usize)> {
        let runs = runs_of(spans, segment_size, segments);
        runs.into_iter().map(|run| (run.start, run.end)).collect()
    }

    #[test]
    fn what_fits_becomes_one() {
        assert_eq!(of(&[], 100, 4), []);
        assert_eq!(of(&[30, 30, 30], 100, 1), [(0, 3)]);
        assert_eq!(
            of(&[30, 30, 40], 100, 1),
            [(0, 2), (2, 3)],
            "the last byte stays free"
        );
        assert_eq!(of(&[400, 400], 100, 4), [(0, 1), (1, 2)]);
        assert_eq!(of(&[120, 20, 30], 100, 4), [(0, 3)]);
        assert_eq!(of(&[120, 190, 5], 100, 4), [(0, 2), (2, 3)]);
        assert_eq!(
            of(&[1; 100], 1000, 4),
            [(0, 32), (32, 64), (64, 96), (96, 100)]
        );
    }

    #[test]
    fn a_gap_and_too_many_ordinals_part_groups() {
        let span = |first, end| Span {
            first,
            end,
            length: 1,
        };
        let gap = [span(0, 10), span(11, 20), span(20, 30)];
        assert_eq!(pairs(&gap, 1000, 1), [(0, 1), (1, 3)]);
        let half = MAX_GROUP_ORDINALS / 2;
        let long = [
            span(0, half),
            span(half, 2 * half),
            span(2 * half, 2 * half + 1),
        ];
        assert_eq!(pairs(&long, 1000, 1), [(0, 2), (2, 3)]);
    }
}
