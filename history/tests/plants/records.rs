//! Plants in what producers were told and readers got.

use std::collections::{BTreeMap, BTreeSet};

use kera_history::{Event, FailureOutcome, Reader, Record};

use super::Plot;
use crate::model::{LONER, STREAM, TICK};

/// All deliveries of an acknowledged record disappear.
pub fn lost(plot: &mut Plot) -> bool {
    let acked = plot.acked();
    let mut candidates = plot.kept_deliveries();
    candidates.retain(|d| acked.contains_key(&d.record));
    let Some(gone) = plot.rng.pick(&candidates).map(|d| d.record) else {
        return false;
    };
    plot.entries
        .retain(|entry| !matches!(entry.event, Event::Read { record: Some(r), .. } if r == gone));
    true
}

/// All deliveries of a record disappear that was acknowledged without its place.
pub fn lost_unplaced(plot: &mut Plot) -> bool {
    let starts = plot.log_starts();
    let trimmed: BTreeSet<u32> = starts.keys().map(|lane| lane.streamlet).collect();
    let mut candidates = plot.kept_deliveries();
    candidates.retain(|d| !trimmed.contains(&d.lane.streamlet));
    let entries = &plot.entries;
    candidates.retain(|d| {
        let acked =
            |event: &Event| matches!(event, Event::AckedUnplaced { record } if *record == d.record);
        entries.iter().any(|entry| acked(&entry.event))
    });
    let Some(gone) = plot.rng.pick(&candidates).copied() else {
        return false;
    };
    plot.entries.retain(|entry| match entry.event {
        Event::Read { record, .. } => record != Some(gone.record),
        _ => true,
    });
    true
}

/// A record is acknowledged last of all, and nobody reads that far.
pub fn never_read(plot: &mut Plot) -> bool {
    let heads: Vec<_> = plot.heads().into_iter().collect();
    let Some(&(lane, ordinal)) = plot.rng.pick(&heads) else {
        return false;
    };
    let record = Record {
        producer: 72,
        seq: 0,
    };
    plot.append(Event::Send {
        record,
        stream: STREAM,
        streamlet: None,
        lane: None,
        key: None,
    });
    plot.append(Event::Ack {
        record,
        lane,
        ordinal,
    });
    true
}

/// Somebody who begins to read after a trim gets a record that was trimmed.
pub fn read_below_start(plot: &mut Plot) -> bool {
    let starts = plot.log_starts();
    let mut trimmed = plot.deliveries();
    trimmed.retain(|d| starts.get(&d.lane).is_some_and(|start| d.ordinal < *start));
    let Some(d) = plot.rng.pick(&trimmed).copied() else {
        return false;
    };
    let newcomer = LONER + 1;
    plot.append(Event::Positioned {
        reader: Reader::Consumer(newcomer),
        lane: d.lane,
        ordinal: starts[&d.lane],
    });
    plot.append(Event::Read {
        consumer: newcomer,
        lease: None,
        lane: d.lane,
        ordinal: d.ordinal,
        record: Some(d.record),
        key: None,
        head: None,
    });
    true
}

/// A record that was read shows up again at the end of its lane.
pub fn stored_twice(plot: &mut Plot) -> bool {
    let heads = plot.heads();
    let Some(d) = plot.rng.pick(&plot.deliveries()).copied() else {
        return false;
    };
    let Some(&head) = heads.get(&d.lane) else {
        return false;
    };
    plot.append(Event::Read {
        consumer: LONER,
        lease: None,
        lane: d.lane,
        ordinal: head,
        record: Some(d.record),
        key: None,
        head: Some(head + 1),
    });
    true
}

/// A delivery is repeated, under the same lease if there is one.
pub fn delivered_twice(plot: &mut Plot) -> bool {
    let Some(d) = plot.rng.pick(&plot.deliveries()).copied() else {
        return false;
    };
    let again = plot.entries[d.index].event.clone();
    plot.insert_after(d.index, again);
    true
}

/// Two neighbours of one producer, sent before either was heard of, have changed places.
pub fn stored_out_of_order(plot: &mut Plot) -> bool {
    let pairs = exchangeable(plot);
    let Some(&(one, other)) = plot.rng.pick(&pairs) else {
        return false;
    };
    exchange(plot, one, other);
    true
}

/// Neighbours of one producer, sent before either was heard of.
pub fn exchangeable(plot: &Plot) -> Vec<(Record, Record)> {
    let deliveries = plot.deliveries();
    let held: BTreeMap<_, _> = deliveries
        .iter()
        .map(|d| ((d.lane, d.ordinal), d.record))
        .collect();
    let mut sent = BTreeMap::new();
    let mut heard = BTreeMap::new();
    for (index, entry) in plot.entries.iter().enumerate() {
        match entry.event {
            Event::Send { record, .. } => {
                sent.insert(record, index);
            }
            Event::Ack { record, .. }
            | Event::Read {
                record: Some(record),
                ..
            } => {
                heard.entry(record).or_insert(index);
            }
            _ => {}
        }
    }
    held.iter()
        .filter_map(|((lane, ordinal), &first)| {
            let &second = held.get(&(*lane, ordinal + 1))?;
            let apart = sent.get(&second)? < heard.get(&first)?;
            (first.producer == second.producer && apart).then_some((first, second))
        })
        .collect()
}

/// Two records change places.
pub fn exchange(plot: &mut Plot, one: Record, other: Record) {
    let deliveries = plot.deliveries();
    let swap = |record: &mut Record| {
        if *record == one {
            *record = other;
        } else if *record == other {
            *record = one;
        }
    };
    // A record's key goes with it.
    let key_of = |wanted: Record| {
        deliveries
            .iter()
            .find_map(|d| match plot.entries[d.index].event {
                Event::Read { key, .. } if d.record == wanted && key.is_some() => Some(key),
                _ => None,
            })
    };
    let keys = [
        (one, key_of(one).flatten()),
        (other, key_of(other).flatten()),
    ];
    for entry in &mut plot.entries {
        match &mut entry.event {
            Event::Ack { record, .. } => swap(record),
            Event::Read {
                record: Some(record),
                key,
                ..
            } => {
                swap(record);
                if let Some((_, own)) = keys.iter().find(|(r, _)| r == record)
                    && key.is_some()
                {
                    *key = *own;
                }
            }
            _ => {}
        }
    }
}

/// The consumer without a group gets two neighbours in the wrong order.
pub fn delivered_out_of_order(plot: &mut Plot) -> bool {
    // What was trimmed by the end may come late: its reader may have held it since before.
    let mut alone = plot.kept_deliveries();
    alone.retain(|d| d.reader == Reader::Consumer(LONER));
    let pairs: Vec<(usize, usize)> = alone
        .windows(2)
        .filter(|pair| pair[0].lane == pair[1].lane)
        .map(|pair| (pair[0].index, pair[1].index))
        .collect();
    let Some(&(one, other)) = plot.rng.pick(&pairs) else {
        return false;
    };
    let first = plot.entries[one].event.clone();
    plot.entries[one].event = plot.entries[other].event.clone();
    plot.entries[other].event = first;
    true
}

/// One of several readers never gets an ordinal.
pub fn unseen(plot: &mut Plot) -> bool {
    let readers = plot.readers();
    let mut candidates = plot.kept_deliveries();
    candidates.retain(|d| readers[&(d.lane, d.ordinal)].len() > 1);
    let Some(gone) = plot.rng.pick(&candidates).copied() else {
        return false;
    };
    let indexes: BTreeSet<usize> = plot
        .deliveries()
        .into_iter()
        .filter(|d| d.reader == gone.reader && d.lane == gone.lane && d.ordinal == gone.ordinal)
        .map(|d| d.index)
        .collect();
    let mut index = 0;
    plot.entries.retain(|_| {
        index += 1;
        !indexes.contains(&(index - 1))
    });
    true
}

/// One delivery's payload does not decode.
pub fn altered(plot: &mut Plot) -> bool {
    let Some(d) = plot.rng.pick(&plot.deliveries()).copied() else {
        return false;
    };
    if let Event::Read { record, .. } = &mut plot.entries[d.index].event {
        *record = None;
    }
    true
}

/// A record that nobody sent is read at the end of a lane.
pub fn never_sent(plot: &mut Plot) -> bool {
    let heads: Vec<_> = plot.heads().into_iter().collect();
    let Some(&(lane, head)) = plot.rng.pick(&heads) else {
        return false;
    };
    plot.append(Event::Read {
        consumer: LONER,
        lease: None,
        lane,
        ordinal: head,
        record: Some(Record {
            producer: 1,
            seq: 1 << 50,
        }),
        key: None,
        head: Some(head + 1),
    });
    true
}

/// A record that nobody sent is acknowledged.
pub fn acknowledged_unsent(plot: &mut Plot) -> bool {
    let heads: Vec<_> = plot.heads().into_iter().collect();
    let Some(&(lane, head)) = plot.rng.pick(&heads) else {
        return false;
    };
    plot.append(Event::Ack {
        record: Record {
            producer: 70,
            seq: 0,
        },
        lane,
        ordinal: head,
    });
    true
}

/// A record whose producer was told that it is not stored is read.
pub fn stored_although_failed(plot: &mut Plot) -> bool {
    let acked = plot.acked();
    let read: BTreeSet<Record> = plot.deliveries().iter().map(|d| d.record).collect();
    let candidates: Vec<usize> = (0..plot.entries.len())
        .filter(|&index| match plot.entries[index].event {
            Event::Failed { record, .. } => read.contains(&record) && !acked.contains_key(&record),
            _ => false,
        })
        .collect();
    let Some(&index) = plot.rng.pick(&candidates) else {
        return false;
    };
    if let Event::Failed { outcome, .. } = &mut plot.entries[index].event {
        *outcome = FailureOutcome::Definite;
    }
    true
}

/// A record was sent to another streamlet, or lane, than it is read in.
pub fn misplaced(plot: &mut Plot) -> bool {
    let read: BTreeSet<Record> = plot.deliveries().iter().map(|d| d.record).collect();
    let sends: Vec<usize> = (0..plot.entries.len())
        .filter(|&index| match plot.entries[index].event {
            Event::Send { record, .. } => read.contains(&record),
            _ => false,
        })
        .collect();
    let Some(&index) = plot.rng.pick(&sends) else {
        return false;
    };
    let to_lane = plot.rng.chance(50);
    if let Event::Send {
        streamlet, lane, ..
    } = &mut plot.entries[index].event
    {
        *(if to_lane { lane } else { streamlet }) = Some(77);
    }
    true
}

/// A read returns a record at the head that it states.
pub fn read_above_head(plot: &mut Plot) -> bool {
    let Some(d) = plot.rng.pick(&plot.deliveries()).copied() else {
        return false;
    };
    if let Event::Read { head, .. } = &mut plot.entries[d.index].event {
        *head = Some(d.ordinal);
    }
    true
}

/// The broker states a head below what had been shown.
pub fn head_fell(plot: &mut Plot) -> bool {
    let Some(d) = plot.rng.pick(&plot.deliveries()).copied() else {
        return false;
    };
    let asked = plot.end();
    plot.append(Event::HeadObserved {
        lane: d.lane,
        head: d.ordinal,
        asked,
    });
    true
}

/// A record that was read is reported as a gap.
pub fn later_lost(plot: &mut Plot) -> bool {
    let Some(d) = plot.rng.pick(&plot.deliveries()).copied() else {
        return false;
    };
    plot.append(Event::OrdinalGap {
        lane: d.lane,
        from: d.ordinal,
        to: d.ordinal + 1,
    });
    true
}

/// One of several readers gets another record at an ordinal than the others.
pub fn ordinal_reused(plot: &mut Plot) -> bool {
    let readers = plot.readers();
    let mut candidates = plot.deliveries();
    candidates.retain(|d| readers[&(d.lane, d.ordinal)].len() > 1);
    let Some(d) = plot.rng.pick(&candidates).copied() else {
        return false;
    };
    let other = Record {
        producer: 71,
        seq: 0,
    };
    // Every delivery to that reader, so that the first record is still seen by the other readers.
    for again in plot.deliveries() {
        if again.reader == d.reader
            && again.lane == d.lane
            && again.ordinal == d.ordinal
            && let Event::Read { record, key, .. } = &mut plot.entries[again.index].event
        {
            *record = Some(other);
            *key = None;
        }
    }
    let send = Event::Send {
        record: other,
        stream: STREAM,
        streamlet: None,
        lane: None,
        key: None,
    };
    plot.insert_after(0, send);
    true
}

/// Two neighbours in one answer have each other's ordinals.
pub fn acknowledged_elsewhere(plot: &mut Plot) -> bool {
    let read: BTreeSet<Record> = plot.deliveries().iter().map(|d| d.record).collect();
    let mut times = BTreeMap::new();
    for entry in &plot.entries {
        if let Event::Ack { record, .. } = entry.event {
            *times.entry(record).or_insert(0) += 1;
        }
    }
    let pairs: Vec<usize> = (1..plot.entries.len())
        .filter(|&index| {
            let (one, other) = (&plot.entries[index - 1].event, &plot.entries[index].event);
            match (one, other) {
                (
                    Event::Ack {
                        record: r1,
                        lane: l1,
                        ..
                    },
                    Event::Ack {
                        record: r2,
                        lane: l2,
                        ..
                    },
                ) => {
                    let once = |r| times[r] == 1 && read.contains(r);
                    l1 == l2 && once(r1) && once(r2)
                }
                _ => false,
            }
        })
        .collect();
    let Some(&index) = plot.rng.pick(&pairs) else {
        return false;
    };
    let ordinal_of = |event: &Event| match event {
        Event::Ack { ordinal, .. } => *ordinal,
        _ => unreachable!("both are acknowledgements"),
    };
    let (one, other) = (
        ordinal_of(&plot.entries[index - 1].event),
        ordinal_of(&plot.entries[index].event),
    );
    for (index, new) in [(index - 1, other), (index, one)] {
        if let Event::Ack { ordinal, .. } = &mut plot.entries[index].event {
            *ordinal = new;
        }
    }
    true
}

/// A record is acknowledged again, elsewhere.
pub fn acknowledged_twice(plot: &mut Plot) -> bool {
    let acked: Vec<_> = plot.acked().into_iter().collect();
    let Some(&(record, (lane, ordinal))) = plot.rng.pick(&acked) else {
        return false;
    };
    // Another ordinal that certainly exists.
    let others: Vec<u64> = acked
        .iter()
        .filter(|(_, (l, o))| *l == lane && *o != ordinal)
        .map(|(_, (_, o))| *o)
        .collect();
    let Some(&ordinal) = plot.rng.pick(&others) else {
        return false;
    };
    plot.append(Event::Ack {
        record,
        lane,
        ordinal,
    });
    true
}

/// An acknowledged record is said not to be stored.
pub fn acknowledged_and_failed(plot: &mut Plot) -> bool {
    let acked: Vec<Record> = plot.acked().into_keys().collect();
    let Some(&record) = plot.rng.pick(&acked) else {
        return false;
    };
    let outcome = FailureOutcome::Definite;
    plot.append(Event::Failed { record, outcome });
    assert!(plot.end() > TICK);
    true
}
