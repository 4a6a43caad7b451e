//! Evening out what brokers own: by number of streamlets, then by bytes.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use kera_protocol::ids::StreamletKey;

use super::drain::{hand_over, keeps};
use super::loads::Load;
use super::{Busy, Cause, Loads, Members, Move, Picture, StreamletView};

/// A difference of bytes below this is left alone.
const FEW_BYTES: u64 = 256 << 20;

/// Hand-overs that even out the number of streamlets, at most `room` of them and one from each broker.
pub(super) fn plan(
    picture: &Picture,
    members: &Members,
    loads: &mut Loads<'_>,
    busy: &mut Busy,
    room: usize,
) -> Vec<Move> {
    let mut moves = Vec::new();
    while moves.len() < room {
        let Some(one) = by_count(picture, members, loads, &busy.streamlets, &busy.givers) else {
            break;
        };
        loads.moved(&one);
        busy.take(&one);
        moves.push(one);
    }
    moves
}

/// Hand-overs, at most `most` of them and in this order, after which no two brokers that may own
/// streamlets differ by more than one, as far as streamlets can move at all, and bytes are evened out
/// where that takes few moves. Draining brokers and owners that are gone are not looked at: they
/// are what [`plan`](super::plan) begins with by itself.
pub fn rebalance(picture: &Picture, members: &Members, most: usize) -> Vec<Move> {
    let mut loads = Loads::of(picture, members);
    let mut moved = BTreeSet::new();
    let mut moves = Vec::new();
    while moves.len() < most {
        let Some(one) = by_count(picture, members, &loads, &moved, &BTreeSet::new()) else {
            break;
        };
        loads.moved(&one);
        moved.insert(one.which());
        moves.push(one);
    }
    while moves.len() < most {
        let pair = by_bytes(picture, members, &loads, &moved);
        if pair.is_empty() || moves.len() + pair.len() > most {
            break;
        }
        for one in pair {
            loads.moved(&one);
            moved.insert(one.which());
            moves.push(one);
        }
    }
    moves
}

/// One move from a broker that owns at least two more than another.
fn by_count(
    picture: &Picture,
    members: &Members,
    loads: &Loads<'_>,
    leave: &BTreeSet<StreamletKey>,
    busy: &BTreeSet<u32>,
) -> Option<Move> {
    let (to, least) = loads
        .all()
        .min_by_key(|(id, load)| (load.streamlets, load.bytes, *id))?;
    let mut givers: Vec<_> = loads
        .all()
        .filter(|(id, load)| load.streamlets >= least.streamlets + 2 && !busy.contains(id))
        .collect();
    givers.sort_unstable_by_key(|(id, load)| (Reverse(load.streamlets), Reverse(load.bytes), *id));
    givers.into_iter().find_map(|(from, load)| {
        let fit = load.bytes.saturating_sub(least.bytes) / 2;
        let chosen = movable(picture, members, from, leave).min_by_key(|(which, streamlet)| {
            let here = loads.of_stream(which.stream, from);
            let there = loads.of_stream(which.stream, to);
            (
                // A stream's streamlets are better at many brokers.
                Reverse(here.saturating_sub(there)),
                Reverse(streamlet.open_holders().contains(&to)),
                streamlet.bytes.abs_diff(fit),
                *which,
            )
        });
        chosen.map(|(which, streamlet)| hand_over(which, streamlet, to, Cause::Balance))
    })
}

/// One move, or two that change places, between the brokers with the most and the fewest bytes.
fn by_bytes(
    picture: &Picture,
    members: &Members,
    loads: &Loads<'_>,
    leave: &BTreeSet<StreamletKey>,
) -> Vec<Move> {
    let bytes = |(id, load): &(u32, Load)| (load.bytes, *id);
    let (Some((from, most)), Some((to, least))) =
        (loads.all().max_by_key(bytes), loads.all().min_by_key(bytes))
    else {
        return Vec::new();
    };
    let apart = most.bytes - least.bytes;
    if apart < FEW_BYTES.max(most.bytes / 5) {
        return Vec::new();
    }
    // What brings both to the middle; a gain outside of this makes it hardly better.
    let (wanted, worthwhile) = (apart / 2, apart / 10..=apart - apart / 10);
    let given: Vec<_> = movable(picture, members, from, leave).collect();
    if most.streamlets > least.streamlets {
        let fits = given.iter().filter(|(_, s)| worthwhile.contains(&s.bytes));
        let best = fits.min_by_key(|(which, s)| (s.bytes.abs_diff(wanted), *which));
        if let Some((which, streamlet)) = best {
            return vec![hand_over(*which, streamlet, to, Cause::Balance)];
        }
    }
    let mut back: Vec<_> = movable(picture, members, to, leave).collect();
    back.sort_unstable_by_key(|(which, streamlet)| (streamlet.bytes, *which));
    let gains = given.iter().filter_map(|one| {
        // The one whose bytes are nearest to what would make the exchange even.
        let goal = one.1.bytes.saturating_sub(wanted);
        let at = back.partition_point(|(_, s)| s.bytes < goal);
        let near = [at.checked_sub(1), Some(at)];
        let near = near.into_iter().flatten().filter_map(|at| back.get(at));
        let gain =
            |other: &(StreamletKey, &StreamletView)| one.1.bytes.saturating_sub(other.1.bytes);
        near.map(|other| (gain(other), one, other))
            .min_by_key(|(gain, _, other)| (gain.abs_diff(wanted), other.0))
    });
    let best = gains
        .filter(|(gain, ..)| worthwhile.contains(gain))
        .min_by_key(|(gain, one, other)| (gain.abs_diff(wanted), one.0, other.0));
    match best {
        Some((_, one, other)) => vec![
            hand_over(one.0, one.1, to, Cause::Balance),
            hand_over(other.0, other.1, from, Cause::Balance),
        ],
        None => Vec::new(),
    }
}

/// The streamlets of a broker that could be handed over.
fn movable<'a>(
    picture: &'a Picture,
    members: &'a Members,
    owner: u32,
    leave: &'a BTreeSet<StreamletKey>,
) -> impl Iterator<Item = (StreamletKey, &'a StreamletView)> {
    picture
        .owned_by(owner)
        .filter(|(which, stream, streamlet)| {
            !leave.contains(which) && keeps(stream, streamlet, members).is_none()
        })
        .map(|(which, _, streamlet)| (which, streamlet))
}
