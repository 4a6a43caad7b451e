//! Streamlets of owners that are gone.

use std::collections::BTreeSet;

use super::{
    Cause, Limits, Loads, Members, Move, Needs, Picture, Stranded, StreamView, StreamletView,
    UnderWay,
};
use kera_records::{Compare, Transaction, Write};

pub(super) fn plan(
    picture: &Picture,
    members: &Members,
    loads: &mut Loads<'_>,
    under_way: &UnderWay,
    limits: &Limits,
) -> (Vec<Move>, Vec<Stranded>) {
    let mut stranded = Vec::new();
    let mut orphans = Vec::new();
    for (which, stream, streamlet) in picture.streamlets() {
        let owner = streamlet.owner();
        if members.lives(owner) || under_way.awaited.contains(&owner) {
            continue;
        }
        match needs(stream, streamlet, members, &under_way.forsaken) {
            Some(needs) => stranded.push(Stranded {
                stream: which.stream,
                streamlet: which.streamlet,
                owner,
                needs,
            }),
            None => {
                // Who has the fewest to choose from chooses first.
                let holders = streamlet.open_holders();
                let choice = holders.iter().filter(|id| members.is_target(**id)).count();
                orphans.push((choice, which, streamlet));
            }
        }
    }
    orphans.sort_unstable_by_key(|(choice, which, _)| (*choice, *which));
    let level = loads.level(orphans.len());
    let mut moves = Vec::new();
    for (_, which, streamlet) in orphans.into_iter().take(limits.takeovers) {
        let (stream, from) = (which.stream, streamlet.owner());
        let Some(to) = loads.choose(stream, streamlet, from, level) else {
            continue;
        };
        let one = Move {
            stream,
            streamlet: which.streamlet,
            epoch: streamlet.epoch(),
            from,
            to,
            cause: Cause::OwnerGone,
            bytes: streamlet.bytes,
        };
        loads.moved(&one);
        moves.push(one);
    }
    (moves, stranded)
}

/// Why nobody can take over a streamlet whose owner is gone; `None`: somebody can.
fn needs(
    stream: &StreamView,
    streamlet: &StreamletView,
    members: &Members,
    forsaken: &BTreeSet<u32>,
) -> Option<Needs> {
    if !stream.is_movable() {
        return Some(Needs::Owner);
    }
    for group in streamlet.open_groups() {
        let mut copies = group.copies.iter();
        let is_lost = !group.copies.is_empty() && copies.all(|id| forsaken.contains(id));
        if !is_lost && !group.copies.iter().any(|id| members.lives(*id)) {
            let holders: BTreeSet<_> = group.copies.iter().copied().collect();
            return Some(Needs::OneOf(holders));
        }
    }
    if members.targets().next().is_none() {
        return Some(Needs::Target);
    }
    let (wanted, living) = (
        stream.min_insync_replicas as usize,
        members.most_copies(None),
    );
    (living < wanted).then_some(Needs::Machines { wanted, living })
}

/// The transactions that record the take-overs among `moves`, each of at most `max_operations`: a new
/// owner under a new epoch, if the streamlet is still as `picture` has it.
pub fn takeovers(picture: &Picture, moves: &[Move], max_operations: usize) -> Vec<Transaction> {
    let changes: Vec<_> = moves
        .iter()
        .filter(|one| one.cause == Cause::OwnerGone)
        .filter_map(|one| {
            let now = &picture.streamlet(one.which())?.record;
            if now.epoch != one.epoch || now.owner != one.from {
                return None;
            }
            let write = now.in_next_epoch(one.to)?;
            Some((Compare::streamlet(now), Write::PutStreamlet(write)))
        })
        .collect();
    let chunks = changes.chunks(max_operations.max(1));
    chunks
        .map(|chunk| {
            let (compare, write) = chunk.iter().cloned().unzip();
            Transaction::new(compare, write)
        })
        .collect()
}
