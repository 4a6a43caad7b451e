//! Who owns which streamlet: decisions, without clocks, stores or networks.
//!
//! A [`Picture`] is what is recorded, cut down to what decides; [`Members`] are the brokers that are alive.
//! From both follow:
//!
//! * [`plan`]: what the controller does next. Streamlets of owners that are gone get new ones
//!   ([`Cause::OwnerGone`], a transaction of the controller's, see [`takeovers`]). Streamlets of draining
//!   brokers ([`Cause::Drain`]) and of brokers that own more than their share ([`Cause::Balance`]) are
//!   handed over by their owners, few at a time.
//! * [`rebalance`]: what else would even out owned streamlets and their bytes, for people to look at.
//! * [`spread`]: which copies of closed groups move so that brokers hold about as many bytes each.
//! * [`farewell`]: what a broker hands over before it stops.
//! * [`drained`]: what a draining broker still has, and what keeps it.
//! * [`refused`]: brokers that live, and whose certificates the others refuse: nobody reaches them.
//! * [`restart_plan`]: in which order brokers can be restarted, and what that interrupts.
//!
//! What must hold of every plan:
//!
//! * A streamlet with one copy stays with its broker, alive or not: nobody else has its records.
//! * Nobody takes over from an owner that is gone where no living broker holds a copy of each open
//!   group: there would be nothing to recover it from, and the owner may come back with all of it.
//! * New owners live, are brokers and do not drain. A replica store holds copies and owns nothing.
//! * The same picture and members give the same plan, and a plan that was carried out is not made again.
//!
//! ```
//! use kera_controller::{Cause, Member, Members, Picture, Limits, plan, takeovers};
//! use kera_metadata::*;
//!
//! let store = MemoryStore::new();
//! let config = StreamConfig { streamlets: 4, replicas: 3, min_insync_replicas: 2, ..StreamConfig::default() };
//! store.create_stream(StreamRecord::new("flights", config, 0), 1)?;
//! let picture = Picture::of(&store.load()?);
//!
//! // Broker 1 owns all of it and is gone.
//! let members = [2, 3].map(|id| Member::new(id, format!("host{id}")));
//! let members = Members::new(members, false);
//! let plan = plan(&picture, &members, &Default::default(), &Limits::default());
//! assert!(plan.moves.iter().all(|one| one.from == 1 && one.cause == Cause::OwnerGone));
//! assert_eq!(plan.moves.iter().filter(|one| one.to == 2).count(), 2);
//! for transaction in takeovers(&picture, &plan.moves, store.max_operations()) {
//!     store.commit(transaction)?;
//! }
//! assert!(store.streamlets()?.iter().all(|streamlet| streamlet.owner != 1));
//! # Ok::<(), MetadataError>(())
//! ```
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod balance;
mod drain;
mod failover;
mod loads;
mod member;
mod picture;
mod refused;
mod restart;
mod spread;

use std::collections::BTreeSet;

use kera_protocol::ids::{Epoch, StreamId, StreamletId, StreamletKey};

pub use balance::rebalance;
pub use drain::{Drained, Kept, KeptBecause, TooLittleRoom, drained, farewell};
pub use failover::takeovers;
pub use loads::share;
pub use member::{Member, Members};
pub use picture::{GroupView, Picture, StreamView, StreamletView};
pub use refused::{Refused, refused};
pub use restart::{Restart, restart_plan};
pub use spread::{CopyMove, HeldBytes, Spread, spread};

use loads::Loads;

/// Why a streamlet moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// Its owner is not alive: the controller records another.
    OwnerGone,
    /// Its owner drains, and hands it over.
    Drain,
    /// Its owner has more than its share, and hands it over.
    Balance,
}

/// A streamlet that is to have another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Move {
    /// The stream.
    pub stream: StreamId,
    /// The streamlet.
    pub streamlet: StreamletId,
    /// Its epoch when this was decided: with another one the move is no longer meant.
    pub epoch: Epoch,
    /// Its owner now.
    pub from: u32,
    /// Its owner then.
    pub to: u32,
    /// Why.
    pub cause: Cause,
    /// Bytes of its closed groups, none of which travel for the move.
    pub bytes: u64,
}

impl Move {
    /// Which streamlet moves.
    pub fn which(&self) -> StreamletKey {
        StreamletKey {
            stream: self.stream,
            streamlet: self.streamlet,
        }
    }
}

/// How much one step may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Streamlets of owners that are gone, in one step.
    pub takeovers: usize,
    /// Hand-overs under way at one time, over all brokers; one broker hands over one at a time.
    pub hand_overs: usize,
}

impl Default for Limits {
    /// 4,096 take-overs and 4 hand-overs.
    fn default() -> Self {
        Self {
            takeovers: 4096,
            hand_overs: 4,
        }
    }
}

/// What is under way, so that no plan counts on it twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnderWay {
    /// Hand-overs that were asked for and have not ended.
    pub moves: BTreeSet<Move>,
    /// Hand-overs that were made, of which the picture may not tell yet: they count as if it did.
    pub made: BTreeSet<Move>,
    /// Streamlets whose last hand-over failed and that are left alone for a while.
    pub resting: BTreeSet<StreamletKey>,
    /// Brokers that are not alive and may be back in a moment: their streamlets stay for now, and
    /// nothing is balanced meanwhile.
    pub awaited: BTreeSet<u32>,
    /// Brokers that were not heard of for so long that the cluster goes on without them. Where only they have replicas of an
    /// open group, another broker takes its streamlet over all the same: it serves nothing before one of them is back, or an operator has
    /// accepted the loss, for whom there would be nobody to ask otherwise.
    pub forsaken: BTreeSet<u32>,
    /// Balancing waits, as after brokers have come or gone.
    pub unsettled: bool,
}

/// A streamlet whose owner is gone and that nobody can take over now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stranded {
    /// The stream.
    pub stream: StreamId,
    /// The streamlet.
    pub streamlet: StreamletId,
    /// Its owner, which is not alive.
    pub owner: u32,
    /// What would have to happen.
    pub needs: Needs,
}

/// What a stranded streamlet waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Its owner: there is one copy of its records, and the owner has it.
    Owner,
    /// One of these brokers, its owner among them: no living one holds a copy of its open groups.
    OneOf(BTreeSet<u32>),
    /// More machines with brokers than live now, so that its new groups have enough copies.
    Machines {
        /// Copies without which nothing is acknowledged.
        wanted: usize,
        /// Copies that the living brokers could hold.
        living: usize,
    },
    /// A broker that lives and does not drain.
    Target,
}

/// What the controller does next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Take-overs first, then hand-overs to be asked for now.
    pub moves: Vec<Move>,
    /// What nobody can take over.
    pub stranded: Vec<Stranded>,
}

/// What the controller does next.
///
/// Take-overs and hand-overs are never in one plan: as long as owners are gone and their streamlets
/// can be taken over, everything else waits.
pub fn plan(picture: &Picture, members: &Members, under_way: &UnderWay, limits: &Limits) -> Plan {
    let mut loads = Loads::of(picture, members);
    for moving in &under_way.moves {
        let recorded = picture.streamlet(moving.which());
        // One whose end is not yet told may be recorded already.
        if recorded.is_some_and(|streamlet| streamlet.owner() == moving.from) {
            loads.moved(moving);
        }
    }
    for made in &under_way.made {
        let recorded = picture.streamlet(made.which());
        if recorded.is_some_and(|streamlet| streamlet.epoch() == made.epoch) {
            loads.moved(made);
        }
    }
    let (moves, stranded) = failover::plan(picture, members, &mut loads, under_way, limits);
    if !moves.is_empty() {
        return Plan { moves, stranded };
    }
    let room = limits.hand_overs.saturating_sub(under_way.moves.len());
    let mut busy = Busy::of(under_way);
    let mut moves = drain::plan(picture, members, &mut loads, &mut busy, room);
    if moves.len() < room && under_way.awaited.is_empty() && !under_way.unsettled {
        let left = room - moves.len();
        moves.extend(balance::plan(picture, members, &mut loads, &mut busy, left));
    }
    Plan { moves, stranded }
}

/// What hand-overs must leave alone.
#[derive(Default)]
struct Busy {
    streamlets: BTreeSet<StreamletKey>,
    /// Brokers that hand over one already.
    givers: BTreeSet<u32>,
}

impl Busy {
    fn of(under_way: &UnderWay) -> Self {
        let moving = under_way.moves.iter();
        Self {
            streamlets: moving
                .clone()
                .map(Move::which)
                .chain(under_way.resting.iter().copied())
                .collect(),
            givers: moving.map(|one| one.from).collect(),
        }
    }

    fn take(&mut self, one: &Move) {
        self.streamlets.insert(one.which());
        self.givers.insert(one.from);
    }
}
