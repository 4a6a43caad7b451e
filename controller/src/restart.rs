//! In which order brokers can be restarted, and what each restart interrupts.

use std::collections::BTreeSet;

use super::drain::keeps;
use super::{Members, Picture};
use kera_records::GroupState;

/// One broker's turn in a rolling restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restart {
    /// The broker.
    pub broker: u32,
    /// Streamlets that it hands over before it stops, and gets back afterwards.
    pub handed_over: usize,
    /// Streams with streamlets that are offline while it is away: they have one copy, at this broker.
    pub offline: BTreeSet<String>,
    /// Streams whose appends wait while it is away: too few machines are left for their copies.
    pub waiting: BTreeSet<String>,
    /// Streams with groups of which no other living broker holds a copy, though they should have more:
    /// these are better given other copies first.
    pub unreadable: BTreeSet<String>,
    /// Open groups that have a copy there and end early, each by one close; their lanes go on at once.
    pub open_copies: usize,
}

impl Restart {
    /// True if nothing is interrupted but for hand-overs.
    pub fn is_smooth(&self) -> bool {
        self.offline.is_empty() && self.waiting.is_empty() && self.unreadable.is_empty()
    }
}

/// The brokers that live in an order in which they can be restarted, one at a time: each once the one
/// before serves again. The smooth ones come first; `controller` last, so that it changes once.
pub fn restart_plan(picture: &Picture, members: &Members, controller: Option<u32>) -> Vec<Restart> {
    let mut plan: Vec<_> = members
        .all()
        .map(|member| of(picture, members, member.id))
        .collect();
    plan.sort_by_key(|one| {
        let controls = controller == Some(one.broker);
        (controls, !one.is_smooth(), one.handed_over, one.broker)
    });
    plan
}

fn of(picture: &Picture, members: &Members, broker: u32) -> Restart {
    let mut restart = Restart {
        broker,
        handed_over: 0,
        offline: BTreeSet::new(),
        waiting: BTreeSet::new(),
        unreadable: BTreeSet::new(),
        open_copies: 0,
    };
    let left = members.most_copies(Some(broker));
    for (_, stream, streamlet) in picture.streamlets() {
        let owns = streamlet.owner() == broker;
        if owns && !stream.is_movable() {
            restart.offline.insert(stream.name.clone());
            continue;
        }
        if !stream.is_movable() {
            continue;
        }
        if left < stream.min_insync_replicas as usize {
            restart.waiting.insert(stream.name.clone());
        }
        if owns && keeps(stream, streamlet, members).is_none() {
            restart.handed_over += 1;
        }
        let held = streamlet.groups.values();
        for group in held.filter(|g| !g.empty && g.copies.contains(&broker)) {
            if group.state == GroupState::Open && !owns {
                restart.open_copies += 1;
            }
            let mut others = group.copies.iter().filter(|id| **id != broker);
            if !others.any(|id| members.lives(*id)) {
                restart.unreadable.insert(stream.name.clone());
            }
        }
    }
    restart
}
