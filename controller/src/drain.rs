//! Brokers that are to be emptied.

use super::{Busy, Cause, Loads, Members, Move, Picture, StreamView, StreamletView};
use kera_protocol::ids::StreamletKey;
use kera_records::GroupState;

/// Hand-overs of what brokers own that drain, or cannot write their own files: at most `room` of them and one from each
/// broker.
pub(super) fn plan(
    picture: &Picture,
    members: &Members,
    loads: &mut Loads<'_>,
    busy: &mut Busy,
    room: usize,
) -> Vec<Move> {
    let leaving: Vec<_> = picture
        .streamlets()
        .filter(|(which, stream, streamlet)| {
            let owner = members.get(streamlet.owner());
            let leaves = owner.is_some_and(|owner| owner.draining || owner.cannot_write);
            leaves
                && !busy.streamlets.contains(which)
                && keeps(stream, streamlet, members).is_none()
        })
        .collect();
    let level = loads.level(leaving.len());
    let mut moves = Vec::new();
    for (which, _, streamlet) in leaving {
        if moves.len() >= room {
            break;
        }
        let from = streamlet.owner();
        if busy.givers.contains(&from) {
            continue;
        }
        let Some(to) = loads.choose(which.stream, streamlet, from, level) else {
            continue;
        };
        let one = hand_over(which, streamlet, to, Cause::Drain);
        loads.moved(&one);
        busy.take(&one);
        moves.push(one);
    }
    moves
}

/// Hand-overs of everything that `broker`, which is about to stop, owns and can hand over.
pub fn farewell(picture: &Picture, members: &Members, broker: u32) -> Vec<Move> {
    let mut loads = Loads::of(picture, members);
    let owned: Vec<_> = picture
        .owned_by(broker)
        .filter(|(_, stream, streamlet)| keeps(stream, streamlet, members).is_none())
        .collect();
    let level = loads.level(owned.len());
    let mut moves = Vec::new();
    for (which, _, streamlet) in owned {
        if let Some(to) = loads.choose(which.stream, streamlet, broker, level) {
            let one = hand_over(which, streamlet, to, Cause::Drain);
            loads.moved(&one);
            moves.push(one);
        }
    }
    moves
}

/// A hand-over of `streamlet` by its owner.
pub(super) fn hand_over(
    which: StreamletKey,
    streamlet: &StreamletView,
    to: u32,
    cause: Cause,
) -> Move {
    Move {
        stream: which.stream,
        streamlet: which.streamlet,
        epoch: streamlet.epoch(),
        from: streamlet.owner(),
        to,
        cause,
        bytes: streamlet.bytes,
    }
}

/// Why a broker that drains keeps a streamlet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptBecause {
    /// Its records have one copy, at this broker.
    OnlyCopy,
    /// No other broker may own it: all others are gone or drain as well.
    NobodyElse,
    /// Without this broker fewer machines live than copies are needed.
    TooFewMachines {
        /// Copies without which nothing is acknowledged.
        wanted: usize,
        /// Copies that the other brokers could hold.
        living: usize,
    },
}

/// A streamlet that a draining broker cannot hand over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The stream and the streamlet.
    pub which: StreamletKey,
    /// The stream's name.
    pub stream: String,
    /// Why.
    pub because: KeptBecause,
    /// When retention will have removed all of its records, milliseconds since 1970; `None` if that
    /// cannot be told: it may still be appended to, or its records are kept for ever.
    pub until_ms: Option<u64>,
}

/// What a broker that drains still has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Streamlets it owns.
    pub owned: usize,
    /// Those of them that it can hand over.
    pub leaving: usize,
    /// The others.
    pub kept: Vec<Kept>,
    /// Groups of other owners' streamlets of which it holds a copy, and their bytes.
    pub copies: usize,
    /// Bytes of the closed ones among them.
    pub copy_bytes: u64,
    /// Groups of which no other broker that is to stay holds a copy: with those that drain, which may stop
    /// at any time, it is where they can be read.
    pub last_copies: usize,
    /// Groups whose copy nobody can take, since fewer brokers that may hold it are left than it is to have
    /// copies.
    pub stuck: usize,
    /// What keeps those that are to have most copies.
    pub room: Option<TooLittleRoom>,
}

/// Fewer brokers are left than a stream's groups are to have copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooLittleRoom {
    /// The stream's name.
    pub stream: String,
    /// Copies that its groups are to have.
    pub wanted: usize,
    /// Those that the other brokers that stay can hold.
    pub left: usize,
}

impl Drained {
    /// True if nothing is lost or interrupted when the broker is stopped for good: it owns nothing and
    /// holds no group's last copy.
    pub fn may_stop(&self) -> bool {
        self.owned == 0 && self.last_copies == 0
    }

    /// True if the broker has nothing left.
    pub fn is_empty(&self) -> bool {
        self.owned == 0 && self.copies == 0
    }
}

/// What `broker` would have to give up to leave, and what keeps it from that.
pub fn drained(picture: &Picture, members: &Members, broker: u32) -> Drained {
    let mut found = Drained::default();
    let room = members.most_copies_staying(broker);
    for (which, stream, streamlet) in picture.streamlets() {
        if streamlet.owner() == broker {
            found.owned += 1;
            match keeps(stream, streamlet, members) {
                None => found.leaving += 1,
                Some(because) => found.kept.push(Kept {
                    which,
                    stream: stream.name.clone(),
                    because,
                    until_ms: expiry(stream, streamlet),
                }),
            }
        }
        let held = streamlet.groups.values();
        for group in held.filter(|g| !g.empty && g.copies.contains(&broker)) {
            if streamlet.owner() != broker {
                found.copies += 1;
                found.copy_bytes += group.bytes;
            }
            let wanted = stream.replicas as usize;
            if wanted > room {
                found.stuck += 1;
                if found.room.as_ref().is_none_or(|most| most.wanted < wanted) {
                    found.room = Some(TooLittleRoom {
                        stream: stream.name.clone(),
                        wanted,
                        left: room,
                    });
                }
            }
            let mut others = group.copies.iter().filter(|id| **id != broker);
            // Another that drains may be told the same, and be stopped as well.
            if !others.any(|id| members.stays(*id)) {
                found.last_copies += 1;
            }
        }
    }
    found
}

/// Why the owner of a streamlet cannot hand it over; `None`: it can.
pub(super) fn keeps(
    stream: &StreamView,
    streamlet: &StreamletView,
    members: &Members,
) -> Option<KeptBecause> {
    let owner = streamlet.owner();
    if !stream.is_movable() {
        return Some(KeptBecause::OnlyCopy);
    }
    if !members.targets().any(|member| member.id != owner) {
        return Some(KeptBecause::NobodyElse);
    }
    let wanted = stream.min_insync_replicas as usize;
    // Asked of every streamlet, which is not to count all brokers.
    let living = members.copies_up_to(wanted, owner);
    (living < wanted).then_some(KeptBecause::TooFewMachines { wanted, living })
}

/// When retention will have removed everything, if nothing is appended any more.
fn expiry(stream: &StreamView, streamlet: &StreamletView) -> Option<u64> {
    let mut groups = streamlet.groups.values().filter(|group| !group.empty);
    let closed = groups.clone().all(|g| g.state == GroupState::Closed);
    if stream.retention_ms == 0 || !closed || groups.next().is_none() {
        return None;
    }
    let newest = streamlet
        .groups
        .values()
        .map(|g| g.max_timestamp_ms)
        .max()?;
    u64::try_from(newest).ok()?.checked_add(stream.retention_ms)
}
