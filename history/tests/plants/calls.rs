//! Plants that show within one call, or only between calls.

use std::collections::BTreeSet;

use kera_history::{Event, Lane, Reader, Record};

use super::Plot;
use super::records::{exchange, exchangeable};
use crate::model::LONER;

/// Two records that their producer sent with one call have changed places.
pub fn sent_out_of_order_in_one_call(plot: &mut Plot) -> bool {
    sent_out_of_order(plot, true)
}

/// Two records that their producer sent with two calls have changed places.
pub fn sent_out_of_order_between_calls(plot: &mut Plot) -> bool {
    sent_out_of_order(plot, false)
}

fn sent_out_of_order(plot: &mut Plot, within: bool) -> bool {
    let mut sent = std::collections::BTreeMap::new();
    let mut calls = std::collections::BTreeMap::new();
    for entry in &plot.entries {
        match entry.event {
            Event::Batched { producer } => *calls.entry(producer).or_insert(0) += 1,
            Event::Send { record, .. } => {
                sent.insert(record, calls.get(&record.producer).copied());
            }
            _ => {}
        }
    }
    let mut pairs = exchangeable(plot);
    pairs.retain(|(one, other): &(Record, Record)| (sent[one] == sent[other]) == within);
    let Some(&(one, other)) = plot.rng.pick(&pairs) else {
        return false;
    };
    exchange(plot, one, other);
    true
}

/// The consumer without a group gets two neighbours of one call in the wrong order.
pub fn went_back_in_one_call(plot: &mut Plot) -> bool {
    went_back(plot, true)
}

/// The consumer without a group gets the last record of a call only with its next.
pub fn went_back_between_calls(plot: &mut Plot) -> bool {
    went_back(plot, false)
}

fn went_back(plot: &mut Plot, within: bool) -> bool {
    let alone = plot.alone();
    let pairs: Vec<(usize, usize)> = alone
        .values()
        .flat_map(|of_lane| of_lane.windows(2))
        .filter(|pair| (pair[0].1 == pair[1].1) == within)
        .map(|pair| (pair[0].0.index, pair[1].0.index))
        .collect();
    let Some(&(one, other)) = plot.rng.pick(&pairs) else {
        return false;
    };
    let first = plot.entries[one].event.clone();
    plot.entries[one].event = plot.entries[other].event.clone();
    plot.entries[other].event = first;
    // What a response states of the head is of its time.
    for index in [one, other] {
        if let Event::Read { head, .. } = &mut plot.entries[index].event {
            *head = None;
        }
    }
    true
}

/// The consumer without a group gets what is before and after a record with one call, and not the
/// record, which others get.
pub fn skipped_in_one_call(plot: &mut Plot) -> bool {
    skipped(plot, true)
}

/// The same, with two calls.
pub fn skipped_between_calls(plot: &mut Plot) -> bool {
    skipped(plot, false)
}

fn skipped(plot: &mut Plot, within: bool) -> bool {
    let readers = plot.readers();
    let alone = plot.alone();
    let candidates: Vec<usize> = alone
        .values()
        .flat_map(|of_lane| of_lane.windows(3))
        .filter(|three| (three[0].1 == three[2].1) == within)
        .map(|three| three[1].0)
        .filter(|d| readers[&(d.lane, d.ordinal)].len() > 1)
        .map(|d| d.index)
        .collect();
    let Some(&index) = plot.rng.pick(&candidates) else {
        return false;
    };
    plot.entries.remove(index);
    true
}

/// A reader says that it has seen a lane to its end, and has not got the last record.
pub fn claimed_unseen(plot: &mut Plot) -> bool {
    let readers = plot.readers();
    let last: Vec<_> = plot
        .alone()
        .into_values()
        .filter_map(|of_lane| Some(of_lane.last()?.0))
        .filter(|d| readers[&(d.lane, d.ordinal)].len() > 1)
        .collect();
    let Some(d) = plot.rng.pick(&last).copied() else {
        return false;
    };
    assert_eq!(d.reader, Reader::Consumer(LONER));
    plot.entries.remove(d.index);
    true
}

/// Under a later lease of the same ordinals a member gets one less than are there.
pub fn skipped_under_lease(plot: &mut Plot) -> bool {
    let starts = plot.log_starts();
    let mut seen: BTreeSet<(u32, Lane, u64)> = BTreeSet::new();
    let mut again = Vec::new();
    let mut reads = Vec::new();
    for (index, entry) in plot.entries.iter().enumerate() {
        let Event::Read {
            lease: Some(lease),
            lane,
            ordinal,
            ..
        } = entry.event
        else {
            continue;
        };
        reads.push((lease, ordinal));
        let kept = starts.get(&lane).is_none_or(|start| ordinal >= *start);
        if !seen.insert((lease.group, lane, ordinal)) && kept {
            again.push((index, lease, ordinal));
        }
    }
    // Only what is followed by something under the same lease was skipped.
    again.retain(|(_, lease, ordinal)| reads.iter().any(|(l, o)| l == lease && o > ordinal));
    let Some(&(index, _, _)) = plot.rng.pick(&again) else {
        return false;
    };
    plot.entries.remove(index);
    true
}
