//! The life of a group at its owner, for any number of replicas: from what is known of the group follows its stage,
//! and a stage names the one thing that is to be done next.
//!
//! ```text
//! Recording -> Open -> Draining -> Building -> Waiting -> Closing -> Closed
//!                             \--> Cutting
//! ```
//!
//! [`GroupStage::of`] is a function of facts and remembers nothing. So the order in which facts become known does not
//! matter, a fact that is told twice does no harm, and an owner that missed a moment finds the right step at its next
//! look. A stage may be left out: most groups never build, and none of a lane's oldest groups waits.

use std::fmt;

use crate::sync::{AtomicU8, Ordering};

/// What an owner knows of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupFacts {
    /// The record that names its replicas is durable.
    pub is_recorded: bool,
    /// Nothing more is appended.
    pub is_frozen: bool,
    /// Its close is durable.
    pub is_closed: bool,
    /// Replicas of the record that will get no further.
    pub lost: usize,
    /// Replicas that may get further, and lack bytes.
    pub behind: usize,
    /// Replicas that hold all of it, those included that were built since it was frozen.
    pub whole: usize,
    /// Replicas without which it is not closed.
    pub needed: usize,
    /// Brokers without a replica may be given one.
    pub can_build: bool,
    /// Each group before it in its lane is closed.
    pub is_oldest: bool,
}

/// How far a group is in its life, and so what is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum GroupStage {
    /// Its record is to be made durable; before that nothing of it counts.
    #[default]
    Recording,
    /// It takes appends, and its replicas get them. Nothing else is to be done.
    Open,
    /// It takes no more, and its last bytes are awaited.
    Draining,
    /// Too few replicas are whole, and another is to be built.
    Building,
    /// No replica is whole and none can be built: it is to end at its last byte that counts.
    Cutting,
    /// It has all it needs, and groups before it are not closed.
    Waiting,
    /// Its close is to be made durable.
    Closing,
    /// It has its close.
    Closed,
}

const ALL: [GroupStage; 8] = [
    GroupStage::Recording,
    GroupStage::Open,
    GroupStage::Draining,
    GroupStage::Building,
    GroupStage::Cutting,
    GroupStage::Waiting,
    GroupStage::Closing,
    GroupStage::Closed,
];

impl GroupStage {
    /// The stage of a group of which this is known.
    pub fn of(known: &GroupFacts) -> Self {
        match known {
            known if known.is_closed => Self::Closed,
            known if !known.is_recorded => Self::Recording,
            known if !known.is_frozen && known.lost == 0 => Self::Open,
            // One that has lost a replica takes no more either: its set never shrinks.
            known if !known.is_frozen || known.behind > 0 => Self::Draining,
            known if known.whole < known.needed && known.can_build => Self::Building,
            known if known.whole < known.needed => Self::Cutting,
            // So that what is closed is a prefix of the lane.
            known if !known.is_oldest => Self::Waiting,
            _ => Self::Closing,
        }
    }
}

impl fmt::Display for GroupStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Recording => "it is being recorded",
            Self::Open => "its bytes are awaited at its replicas",
            Self::Draining => "it ends, and its last bytes are awaited",
            Self::Building => "it ends with too few replicas, and another is built",
            Self::Cutting => "it ends at its last byte that counts",
            Self::Waiting => "it ends, and waits for groups before it",
            Self::Closing => "its close is being recorded",
            Self::Closed => "it is closed",
        })
    }
}

/// A stage that is looked at without a lock.
#[derive(Debug, Default)]
pub struct StageCell(AtomicU8);

impl StageCell {
    /// The stage.
    pub fn get(&self) -> GroupStage {
        ALL[usize::from(self.0.load(Ordering::Acquire))]
    }

    /// Whether it is this one.
    pub fn is(&self, stage: GroupStage) -> bool {
        self.0.load(Ordering::Acquire) == stage as u8
    }

    /// Sets it; true if it was another.
    pub fn set(&self, stage: GroupStage) -> bool {
        self.0.swap(stage as u8, Ordering::AcqRel) != stage as u8
    }

    /// Goes from one stage to another; false if it is at neither or somebody else did it.
    pub fn go(&self, from: GroupStage, to: GroupStage) -> bool {
        let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
        let gone = self.0.compare_exchange(from as u8, to as u8, order, failed);
        gone.is_ok()
    }
}

#[cfg(all(test, not(kera_shuttle)))]
mod tests {
    use super::*;

    /// All that can be known of groups with up to three replicas.
    fn everything() -> impl Iterator<Item = GroupFacts> {
        let bits = 0..1_u32 << 5;
        bits.flat_map(|bits| {
            let bit = move |at: u32| bits & (1 << at) != 0;
            let counts = (0..4_usize * 4 * 4 * 4).map(|n| (n % 4, n / 4 % 4, n / 16 % 4, n / 64));
            counts.map(move |(lost, behind, whole, needed)| GroupFacts {
                is_recorded: bit(0),
                is_frozen: bit(1),
                is_closed: bit(2),
                can_build: bit(3),
                is_oldest: bit(4),
                lost,
                behind,
                whole,
                needed,
            })
        })
    }

    #[test]
    fn no_group_is_closed_before_all_that_a_close_promises() {
        for known in everything() {
            let stage = GroupStage::of(&known);
            if stage == GroupStage::Closing {
                assert!(known.is_recorded && known.is_frozen && known.is_oldest);
                assert!(known.whole >= known.needed && known.behind == 0);
            }
            // Nothing is lost that a replica still holds, or may still get.
            if stage == GroupStage::Cutting {
                assert!(known.whole < known.needed && known.behind == 0 && !known.can_build);
            }
            assert_eq!(stage == GroupStage::Closed, known.is_closed);
            let takes_appends = matches!(stage, GroupStage::Recording | GroupStage::Open);
            assert!(!takes_appends || !known.is_recorded || known.lost == 0);
        }
    }

    /// What the world may do to a group at any time.
    fn happens(known: &GroupFacts, what: u32) -> Option<GroupFacts> {
        let mut next = *known;
        match what {
            0 => next.is_frozen = true,
            1 if known.is_recorded && known.behind > 0 => {
                (next.behind, next.lost) = (known.behind - 1, known.lost + 1);
            }
            2 if known.is_recorded && known.whole > 0 && !known.is_frozen => {
                (next.whole, next.lost) = (known.whole - 1, known.lost + 1);
            }
            3 => next.is_oldest = true,
            _ => return None,
        }
        Some(next)
    }

    /// What the owner does at a stage.
    fn done(known: &GroupFacts, replicas: usize) -> Option<GroupFacts> {
        let mut next = *known;
        match GroupStage::of(known) {
            GroupStage::Recording => (next.is_recorded, next.behind) = (true, replicas),
            GroupStage::Draining => {
                next.is_frozen = true;
                (next.whole, next.behind) = (known.whole + known.behind, 0);
            }
            GroupStage::Building | GroupStage::Cutting => next.whole += 1,
            GroupStage::Closing => next.is_closed = true,
            GroupStage::Open | GroupStage::Waiting | GroupStage::Closed => return None,
        }
        Some(next)
    }

    /// Plays every order of events and steps: each life ends in one close, and no stage comes before its time.
    #[test]
    fn every_life_ends_in_one_close_whatever_happens_in_which_order() {
        let mut lives = 0;
        for (replicas, needed) in [(1, 1), (3, 2), (3, 3)] {
            let begun = GroupFacts {
                is_recorded: false,
                is_frozen: false,
                is_closed: false,
                lost: 0,
                behind: 0,
                whole: 0,
                needed,
                can_build: replicas > 1,
                is_oldest: false,
            };
            let (mut seen, mut left) = (vec![begun], vec![begun]);
            while let Some(known) = left.pop() {
                let stage = GroupStage::of(&known);
                let by_owner = done(&known, replicas);
                let by_world = (0..4).filter_map(|what| happens(&known, what));
                for next in by_owner.into_iter().chain(by_world) {
                    let later = GroupStage::of(&next);
                    // A stage once left does not come back, but that a replica may be lost while others are built.
                    let again = GroupStage::Draining..=GroupStage::Closing;
                    assert!(
                        later >= stage || (again.contains(&stage) && again.contains(&later)),
                        "{known:?} goes from {stage:?} back to {later:?}"
                    );
                    if !seen.contains(&next) {
                        seen.push(next);
                        left.push(next);
                    }
                }
                // With all that can happen to it behind it, the owner's steps alone end it.
                let mut rest = GroupFacts {
                    is_frozen: true,
                    is_oldest: true,
                    ..known
                };
                for _ in 0..8 {
                    rest = done(&rest, replicas).unwrap_or(rest);
                }
                assert!(rest.is_closed, "{known:?} ends as {rest:?}");
                lives += 1;
            }
        }
        assert!(lives > 50, "{lives}");
    }

    #[test]
    fn a_step_is_taken_by_one() {
        let cell = StageCell::default();
        assert_eq!(cell.get(), GroupStage::Recording);
        assert!(!cell.go(GroupStage::Open, GroupStage::Draining));
        assert!(cell.go(GroupStage::Recording, GroupStage::Open));
        assert!(cell.go(GroupStage::Open, GroupStage::Draining));
        assert!(!cell.go(GroupStage::Open, GroupStage::Draining), "once");
        for (at, stage) in ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, at);
            cell.set(stage);
            assert!(cell.is(stage) && cell.get() == stage && !cell.set(stage));
        }
    }
}
