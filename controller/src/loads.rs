//! What each broker owns, and who should own one more.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use kera_protocol::ids::StreamId;

use super::drain::keeps;
use super::{Member, Members, Move, Picture, StreamletView};

/// What one broker owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) streamlets: usize,
    pub(super) bytes: u64,
}

/// What the brokers own that may own more.
#[derive(Clone, Debug)]
pub(super) struct Loads<'a> {
    members: &'a Members,
    by_broker: BTreeMap<u32, Load>,
    by_rack: HashMap<&'a str, usize>,
    by_stream: HashMap<(StreamId, u32), usize>,
}

/// The least number of streamlets that each broker that may own some has once all is balanced: what a
/// broker that joins works up to. Those that cannot move weigh where they are.
pub fn share(picture: &Picture, members: &Members) -> usize {
    let mut kept: BTreeMap<u32, usize> = members.targets().map(|m| (m.id, 0)).collect();
    let mut movable = 0;
    for (_, stream, streamlet) in picture.streamlets() {
        let owner = streamlet.owner();
        match keeps(stream, streamlet, members) {
            None if members.lives(owner) => movable += 1,
            None => {}
            Some(_) => {
                if let Some(count) = kept.get_mut(&owner) {
                    *count += 1;
                }
            }
        }
    }
    // All are filled up to the same level, from the lowest on.
    let mut kept: Vec<_> = kept.into_values().collect();
    kept.sort_unstable();
    let (mut below, mut level) = (0, 0);
    for (brokers, next) in kept.iter().enumerate() {
        if brokers * next > movable + below {
            break;
        }
        below += next;
        level = (movable + below) / (brokers + 1);
    }
    level
}

impl<'a> Loads<'a> {
    pub(super) fn of(picture: &Picture, members: &'a Members) -> Self {
        let mut loads = Self {
            members,
            by_broker: members
                .targets()
                .map(|member| (member.id, Load::default()))
                .collect(),
            by_rack: HashMap::new(),
            by_stream: HashMap::new(),
        };
        for (which, _, streamlet) in picture.streamlets() {
            loads.add(streamlet.owner(), which.stream, streamlet.bytes);
        }
        loads
    }

    /// A streamlet goes to another broker.
    pub(super) fn moved(&mut self, one: &Move) {
        self.remove(one.from, one.stream, one.bytes);
        self.add(one.to, one.stream, one.bytes);
    }

    fn add(&mut self, broker: u32, stream: StreamId, bytes: u64) {
        let Some(load) = self.by_broker.get_mut(&broker) else {
            return;
        };
        load.streamlets += 1;
        load.bytes += bytes;
        *self.by_stream.entry((stream, broker)).or_default() += 1;
        if let Some(rack) = self.members.rack_of(broker) {
            *self.by_rack.entry(rack).or_default() += 1;
        }
    }

    fn remove(&mut self, broker: u32, stream: StreamId, bytes: u64) {
        let Some(load) = self.by_broker.get_mut(&broker) else {
            return;
        };
        load.streamlets = load.streamlets.saturating_sub(1);
        load.bytes = load.bytes.saturating_sub(bytes);
        if let Some(count) = self.by_stream.get_mut(&(stream, broker)) {
            *count = count.saturating_sub(1);
        }
        if let Some(count) = self
            .members
            .rack_of(broker)
            .and_then(|rack| self.by_rack.get_mut(rack))
        {
            *count = count.saturating_sub(1);
        }
    }

    /// What a broker owns; nothing if it may not own more.
    pub(super) fn get(&self, broker: u32) -> Load {
        self.by_broker.get(&broker).copied().unwrap_or_default()
    }

    /// The brokers that may own more, with what they own.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, Load)> {
        self.by_broker.iter().map(|(id, load)| (*id, *load))
    }

    /// How many streamlets of a stream a broker owns.
    pub(super) fn of_stream(&self, stream: StreamId, broker: u32) -> usize {
        self.by_stream.get(&(stream, broker)).copied().unwrap_or(0)
    }

    /// The most that one broker should own once `more` streamlets have found an owner among those that
    /// may own more.
    pub(super) fn level(&self, more: usize) -> usize {
        let owned: usize = self.by_broker.values().map(|load| load.streamlets).sum();
        (owned + more).div_ceil(self.by_broker.len().max(1))
    }

    /// The best owner for a streamlet of `stream` that leaves `from`: one that holds copies of its open
    /// groups, as long as it does not own much more than `level`, then the one that owns least, then
    /// another rack. `None` if nobody may own more.
    pub(super) fn choose(
        &self,
        stream: StreamId,
        streamlet: &StreamletView,
        from: u32,
        level: usize,
    ) -> Option<u32> {
        let held = streamlet.held();
        let most = level + (level / 4).max(1);
        let candidates = self.members.targets().filter(|member| member.id != from);
        let rank = |member: &&Member| {
            let load = self.get(member.id);
            let rack = self.members.rack_of(member.id);
            (
                load.streamlets >= most,
                closeness(streamlet, &held, member.id),
                load.streamlets,
                rack.is_some() && rack == self.members.rack_of(from),
                self.of_stream(stream, member.id),
                rack.and_then(|rack| self.by_rack.get(rack).copied()),
                Reverse(held.get(&member.id).copied().unwrap_or(0)),
                member.id,
            )
        };
        candidates.min_by_key(rank).map(|member| member.id)
    }
}

/// How much of a streamlet a broker has: 0 copies of all its open groups and some bytes where there are
/// any, 1 copies of something, 2 nothing.
fn closeness(streamlet: &StreamletView, held: &BTreeMap<u32, u64>, broker: u32) -> u8 {
    if streamlet.groups.values().all(|group| group.empty) {
        return 0;
    }
    let mut open = streamlet.open_groups().peekable();
    let has_open = open.peek().is_some();
    let holds_open = open.all(|group| group.copies.contains(&broker));
    match (has_open && holds_open, held.contains_key(&broker)) {
        (true, _) => 0,
        (false, true) if !has_open => 0,
        (false, true) => 1,
        (false, false) => 2,
    }
}
