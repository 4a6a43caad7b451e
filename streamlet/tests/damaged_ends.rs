//! A batch of a closed group is damaged and whole nowhere else. Readers of what counts are never shown what was aborted,
//! and are shown all of which it is known that it counts.

mod support;

use std::collections::{HashMap, HashSet};

use kera_log_segments::group::AckPolicy;
use kera_log_segments::io::fault::Flip;
use kera_protocol::batch::{BatchHeader, HEADER_BYTES};
use kera_protocol::ids::GroupId;
use kera_streamlet::{LaneReadError, LaneReadSpec, Located, LostEnd};
use support::batches::{ids_of, plain};
use support::transactions::{end, grant, transactional};
use support::{LANE, Machine, Node, settings};

/// Of a batch: which of the header's bytes say whether it is of a transaction, and whether it is a marker.
const ATTRIBUTES: u64 = 22;
/// And from where on all but its place and its length is.
const CHECKSUM: u64 = 17;

fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// A batch in a closed group.
struct Placed {
    group: GroupId,
    address: u64,
    header: BatchHeader,
}

/// What was appended: of each record whose transaction it is of, if of one; and how those ended.
#[derive(Default)]
struct Sent {
    records: HashMap<u64, Option<(i64, u64)>>,
    ends: HashMap<(i64, u64), bool>,
}

/// A lane of several closed groups.
fn filled(node: &Node, dice: &mut u64) -> Sent {
    let mut sent = Sent::default();
    let mut producers = [(1_u64, false, 0_i32); 3];
    for step in 0..70_u64 {
        let p = (next(dice) % 3) as usize;
        let (number, is_open, sequence) = producers[p];
        let (producer, id) = (p as i64 + 10, step * 10);
        match next(dice) % 16 {
            0..=8 => {
                if !is_open {
                    assert!(grant(node, producer, number));
                }
                node.append(0, &mut transactional(producer, 0, sequence, id..id + 2));
                for id in id..id + 2 {
                    sent.records.insert(id, Some((producer, number)));
                }
                producers[p] = (number, true, sequence + 2);
            }
            9..=10 => {
                node.append(0, &mut plain(id..id + 1, 3000));
                sent.records.insert(id, None);
            }
            11..=13 if is_open => {
                let commit = next(dice).is_multiple_of(2);
                assert!(end(node, producer, number, commit));
                sent.ends.insert((producer, number), commit);
                producers[p] = (number + 1, false, sequence);
            }
            14 => assert!(node.streamlet.close_all(node.now_ms)),
            _ => {}
        }
    }
    for (p, (number, is_open, _)) in producers.into_iter().enumerate() {
        if is_open {
            assert!(end(node, p as i64 + 10, number, true));
            sent.ends.insert((p as i64 + 10, number), true);
        }
    }
    assert!(node.streamlet.close_all(node.now_ms));
    node.work();
    sent
}

fn read(node: &Node, from: Located, max_bytes: usize) -> LaneReadSpec {
    assert!(node.streamlet.head(LANE).is_some());
    LaneReadSpec {
        lane: LANE,
        from,
        end_ordinal: u64::MAX,
        max_bytes,
        cached_only: false,
    }
}

/// All batches of the lane.
fn placed(node: &Node) -> Vec<Placed> {
    let (mut all, mut at) = (Vec::new(), Located::default());
    loop {
        let found = node.streamlet.read(read(node, at, 1)).expect("it is whole");
        if found.batches == 0 {
            return all;
        }
        let bytes = found.bufs.concat();
        let (group, _, end) = found.next.at.expect("a place");
        all.push(Placed {
            group,
            address: end - bytes.len() as u64,
            header: BatchHeader::peek(&bytes[..HEADER_BYTES]).expect("a header"),
        });
        at = found.next;
    }
}

/// The ids in the batch that begins there.
fn ids_at(node: &Node, ordinal: u64) -> Vec<u64> {
    let from = Located { ordinal, at: None };
    let found = node.streamlet.read(read(node, from, 1)).expect("whole");
    let ids = ids_of(&found.bufs.concat()).into_iter().map(|(_, id)| id);
    ids.collect()
}

/// The transactions that ended with markers that are `lost`: they are numbered by producer, in the order of their markers.
fn ended_with(all: &[Placed], lost: impl Fn(&Placed) -> bool) -> HashSet<(i64, u64)> {
    let (mut numbers, mut ended) = (HashMap::new(), HashSet::new());
    for one in all.iter().filter(|one| one.header.is_control()) {
        let number = numbers.entry(one.header.producer_id).or_insert(0);
        *number += 1;
        if lost(one) {
            ended.insert((one.header.producer_id, *number));
        }
    }
    ended
}

/// The ids that readers are given, who go on behind each batch that they are refused; and what was refused, of the batches
/// that are `left`. Of each of those it is told where its end may be: at `place`, if it is not the batch there.
fn taken(
    node: &Node,
    left: &[&Placed],
    place: (GroupId, u64),
    max_bytes: usize,
) -> (Vec<u64>, HashSet<u64>) {
    let (mut ids, mut refused, mut ordinal) = (Vec::new(), HashSet::new(), 0);
    while ordinal < node.head(LANE) {
        let from = Located { ordinal, at: None };
        match node.streamlet.read_committed(read(node, from, max_bytes)) {
            Ok(committed) => {
                assert!(committed.found.next.ordinal > ordinal, "it goes on");
                ordinal = committed.found.next.ordinal;
                let found = committed.only_committed();
                ids.extend(ids_of(&found.bufs.concat()).into_iter().map(|(_, id)| id));
            }
            Err(LaneReadError::Group(_)) => {
                let here = left.iter().find(|one| one.header.next_ordinal() > ordinal);
                let here = &here.expect("a batch").header;
                refused.insert(here.base_ordinal);
                let lost = node.streamlet.lost_end(LANE, ordinal).ok().flatten();
                let is_other = here.base_ordinal != place.1;
                let expected = is_other.then(|| LostEnd {
                    next: here.next_ordinal(),
                    places: vec![place],
                });
                assert_eq!(lost, expected, "at {ordinal}");
                ordinal = here.next_ordinal();
            }
            Err(error) => panic!("{error}"),
        }
    }
    (ids, refused)
}

/// What a lane is left with once one bit of one batch has turned.
fn judge(seed: u64) {
    let mut dice = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut machine = Machine::fault(seed);
    let node = machine.create(settings(AckPolicy::Written));
    let sent = filled(&node, &mut dice);
    let all = placed(&node);
    let with_records = all.iter().filter(|one| !one.header.is_control());
    let of_batch: HashMap<u64, Vec<u64>> = with_records
        .map(|one| {
            (
                one.header.base_ordinal,
                ids_at(&node, one.header.base_ordinal),
            )
        })
        .collect();
    let hurt = &all[(next(&mut dice) % all.len() as u64) as usize];
    let (bytes, bit) = (hurt.header.total_bytes as u64, next(&mut dice) % 8);
    let (offset, bit) = match next(&mut dice) % 3 {
        0 => (CHECKSUM + next(&mut dice) % 4, bit),
        1 => (ATTRIBUTES, 4 + bit % 2),
        _ => (
            HEADER_BYTES as u64 + next(&mut dice) % (bytes - HEADER_BYTES as u64),
            bit,
        ),
    };
    let flip = Flip {
        path: machine.file(hurt.group.0),
        offset: hurt.address + offset,
        bit: bit as u8,
    };
    machine.kill(node, usize::MAX);
    machine
        .fault
        .as_ref()
        .expect("the double")
        .flip(&flip)
        .expect("the file");
    let node = machine.recover(settings(AckPolicy::Written)).0;

    // The transaction that the damaged batch ended, if it is a marker.
    let lost = ended_with(&all, |one| {
        one.address == hurt.address && one.group == hurt.group
    });
    let place = (hurt.group, hurt.header.base_ordinal);
    let left: Vec<&Placed> = all.iter().collect();
    let context = format!(
        "seed {seed}: byte {offset} bit {bit} of ordinal {} of group {}, marker of {lost:?}",
        hurt.header.base_ordinal, hurt.group
    );
    let max_bytes = 1 + (next(&mut dice) % 20_000) as usize;
    for again in 0..2 {
        let (ids, refused) = taken(&node, &left, place, max_bytes);
        let once: HashSet<u64> = ids.iter().copied().collect();
        assert_eq!(once.len(), ids.len(), "{context}: each once");
        for (ordinal, ids) in &of_batch {
            for id in ids {
                let transaction = sent.records[id];
                let counts = transaction.is_none_or(|one| sent.ends[&one]);
                let is_known = transaction.is_none_or(|one| !lost.contains(&one));
                let is_hurt = *ordinal == hurt.header.base_ordinal;
                let expected = counts && is_known && !is_hurt;
                assert_eq!(
                    once.contains(id),
                    expected,
                    "{context}: record {id}, time {again}"
                );
                if counts && !expected {
                    assert!(refused.contains(ordinal), "{context}: {ordinal} is told");
                }
            }
        }
    }
}

/// What a lane is left with once one of its groups was given up with all that it held.
fn judge_without_a_group(seed: u64) -> usize {
    let mut dice = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut machine = Machine::fault(seed);
    let node = machine.create(settings(AckPolicy::Written));
    let sent = filled(&node, &mut dice);
    let all = placed(&node);
    let gone = all[(next(&mut dice) % all.len() as u64) as usize].group;
    let of_gone = || all.iter().filter(|one| one.group == gone);
    let begin = of_gone().next().expect("a batch").header.base_ordinal;
    let end = of_gone().next_back().expect("a batch");
    let end = end.header.next_ordinal();
    let lost = ended_with(&all, |one| one.group == gone);
    let left: Vec<_> = all.iter().filter(|one| one.group != gone).collect();
    let records: Vec<_> = left
        .iter()
        .map(|one| &one.header)
        .filter(|header| !header.is_control())
        .flat_map(|header| {
            let ids = ids_at(&node, header.base_ordinal).into_iter();
            ids.map(|id| (id, header.base_ordinal))
        })
        .collect();
    node.streamlet.forget_group(LANE, (gone, 0), end);

    let max_bytes = 1 + (next(&mut dice) % 20_000) as usize;
    let (ids, refused) = taken(&node, &left, (gone, begin), max_bytes);
    let shown: HashSet<u64> = ids.iter().copied().collect();
    assert_eq!(shown.len(), ids.len(), "seed {seed}: each once");
    for (id, ordinal) in records {
        let transaction = sent.records[&id];
        let is_known = transaction.is_none_or(|one| !lost.contains(&one));
        let counts = transaction.is_none_or(|one| sent.ends[&one]);
        let told = format!("seed {seed}: record {id} of {transaction:?}, without group {gone}");
        assert_eq!(shown.contains(&id), counts && is_known, "{told}");
        assert_eq!(refused.contains(&ordinal), !is_known, "{told}");
    }
    refused.len()
}

#[test]
fn what_ended_in_a_group_that_was_given_up_is_not_shown_as_committed() {
    let refused: usize = (1..=300).map(judge_without_a_group).sum();
    assert!(refused > 100, "{refused} batches had their end in it");
}

#[test]
fn what_was_aborted_is_never_shown_and_all_else_is() {
    for seed in 1..=300 {
        judge(seed);
    }
}
