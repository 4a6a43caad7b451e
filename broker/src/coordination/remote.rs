//! Lanes that other brokers serve, as their owners told last.
//!
//! A coordinator decides by looking at memory. So each owner of lanes that one of its groups reads is
//! asked, again and again, to tell as soon as one of them moves; and where a range ends is asked for when
//! it is first needed, and answered at the next look.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kera_coordinator::{Cut, CutWish, LaneStatus};
use kera_protocol::ids::{LaneKey, Ordinal, StreamId};
use kera_protocol::v1;
use parking_lot::Mutex;

use crate::bell::Bell;

/// A stream that nobody looked at for so long is not followed any more.
const UNWATCHED: Duration = Duration::from_secs(60);
/// Most ranges remembered, and for how long.
const MAX_CUTS: usize = 4096;
const KEEP_CUT: Duration = Duration::from_secs(5);

/// What other owners told.
pub(super) struct Remote {
    state: Mutex<State>,
    bell: Arc<Bell>,
}

#[derive(Default)]
struct State {
    streams: HashMap<StreamId, Followed>,
    cuts: HashMap<(LaneKey, Ordinal), Wanted>,
}

struct Followed {
    lanes: HashMap<(u32, u32), Told>,
    /// When it was last looked at.
    looked: Instant,
    /// Brokers that are asked for news.
    asked: HashSet<u32>,
}

/// What an owner told of a lane.
#[derive(Clone, Copy)]
struct Told {
    status: LaneStatus,
    /// Ordinals right below the head that hold no record.
    empty: u64,
}

impl Told {
    /// The ordinal itself, or the head if nothing is stored from there to it.
    fn skip_gap(&self, ordinal: Ordinal) -> Ordinal {
        let head = self.status.head;
        let stored = head.saturating_sub(self.empty);
        if (stored..head).contains(&ordinal) {
            return head;
        }
        ordinal
    }
}

/// A range to be asked for: its lane and where it begins, and what it is to be like.
pub(super) type WishedCut = ((LaneKey, Ordinal), CutWish);

/// A range that was asked for.
struct Wanted {
    wish: CutWish,
    since: Instant,
    progress: Progress,
}

#[derive(Clone, Copy, PartialEq)]
enum Progress {
    New,
    Asked,
    Known(Cut),
}

impl Remote {
    /// Nothing is known; `bell` is rung at news.
    pub(super) fn new(bell: Arc<Bell>) -> Self {
        Self {
            state: Mutex::default(),
            bell,
        }
    }

    /// Where a lane begins and ends, as heard last; from now on its owner is asked for news.
    pub(super) fn lane(&self, lane: LaneKey) -> Option<LaneStatus> {
        let mut state = self.state.lock();
        let followed = state.follow(lane.stream);
        let found = followed.lanes.get(&(lane.streamlet.0, lane.lane.0));
        found.map(|told| told.status)
    }

    /// Passes over what a recovery left out right below a lane's head, as heard last. What it left out
    /// further down is not known here; that is passed over when it is leased and read.
    pub(super) fn skip_gap(&self, lane: LaneKey, ordinal: Ordinal) -> Ordinal {
        let mut state = self.state.lock();
        let followed = state.follow(lane.stream);
        let found = followed.lanes.get(&(lane.streamlet.0, lane.lane.0));
        found.map_or(ordinal, |told| told.skip_gap(ordinal))
    }

    /// The range that begins at `from`, if its owner has told; otherwise it is asked.
    pub(super) fn cut(&self, lane: LaneKey, from: Ordinal, wish: CutWish) -> Option<Cut> {
        let mut state = self.state.lock();
        let key = (lane, from);
        let known = match state.cuts.get(&key).map(|wanted| wanted.progress) {
            Some(Progress::Known(cut)) => Some(cut),
            Some(_) => return None,
            None => None,
        };
        // What is leased next is asked for while this is worked on.
        let next = match known {
            Some(cut) => {
                state.cuts.remove(&key);
                (lane, cut.end)
            }
            None => key,
        };
        state.want(next, wish);
        drop(state);
        self.bell.ring();
        known
    }

    /// The streams that are looked at, and the ranges that nobody was asked for yet: they count as asked for now.
    pub(super) fn wishes(&self) -> (Vec<StreamId>, Vec<WishedCut>) {
        let now = Instant::now();
        let mut state = self.state.lock();
        state
            .streams
            .retain(|_, followed| now.duration_since(followed.looked) < UNWATCHED);
        state
            .cuts
            .retain(|_, wanted| now.duration_since(wanted.since) < KEEP_CUT);
        let mut cuts = Vec::new();
        for (key, wanted) in &mut state.cuts {
            if wanted.progress == Progress::New {
                wanted.progress = Progress::Asked;
                cuts.push((*key, wanted.wish));
            }
        }
        (state.streams.keys().copied().collect(), cuts)
    }

    /// A broker is to be asked for news of a stream; true if it was not asked already.
    pub(super) fn begin_asking(&self, stream: StreamId, broker: u32) -> bool {
        let mut state = self.state.lock();
        let followed = state.streams.get_mut(&stream);
        followed.is_some_and(|followed| followed.asked.insert(broker))
    }

    /// Takes in what the owner of these streamlets told of its lanes.
    pub(super) fn learn(
        &self,
        stream: StreamId,
        owned: &BTreeSet<u32>,
        lanes: Vec<v1::LaneBounds>,
    ) {
        let mut state = self.state.lock();
        let followed = state.follow(stream);
        followed
            .lanes
            .retain(|(streamlet, _), _| !owned.contains(streamlet));
        for lane in lanes {
            if owned.contains(&lane.streamlet) {
                let told = Told {
                    status: LaneStatus {
                        log_start: lane.log_start,
                        head: lane.head_ordinal,
                    },
                    empty: lane.empty_ordinals,
                };
                followed.lanes.insert((lane.streamlet, lane.lane), told);
            }
        }
        drop(state);
        self.bell.ring();
    }

    /// Takes in where a range ends; without an answer it is asked for again when it is needed again.
    pub(super) fn learn_cut(&self, key: (LaneKey, Ordinal), cut: Option<Cut>) {
        let mut state = self.state.lock();
        match (cut, state.cuts.get_mut(&key)) {
            (Some(cut), Some(wanted)) => {
                wanted.progress = Progress::Known(cut);
                wanted.since = Instant::now();
            }
            // Asked for again when it is needed again.
            (None, Some(_)) => {
                state.cuts.remove(&key);
                return;
            }
            (_, None) => return,
        }
        drop(state);
        self.bell.ring();
    }

    /// What is known of the lanes of the owner of these streamlets; `None` if nobody looks at the stream any more.
    pub(super) fn known(
        &self,
        stream: StreamId,
        owned: &BTreeSet<u32>,
    ) -> Option<Vec<v1::LaneBounds>> {
        let state = self.state.lock();
        let followed = state.streams.get(&stream)?;
        let lanes = followed.lanes.iter();
        let lanes = lanes.filter(|((streamlet, _), _)| owned.contains(streamlet));
        let known = lanes.map(|((streamlet, lane), told)| v1::LaneBounds {
            streamlet: *streamlet,
            lane: *lane,
            log_start: told.status.log_start,
            head_ordinal: told.status.head,
            empty_ordinals: told.empty,
        });
        (!owned.is_empty()).then(|| known.collect())
    }

    /// A broker is asked for news no more.
    pub(super) fn stop_asking(&self, stream: StreamId, broker: u32) {
        if let Some(followed) = self.state.lock().streams.get_mut(&stream) {
            followed.asked.remove(&broker);
        }
    }
}

impl State {
    fn follow(&mut self, stream: StreamId) -> &mut Followed {
        let now = Instant::now();
        let followed = self.streams.entry(stream).or_insert_with(|| Followed {
            lanes: HashMap::new(),
            looked: now,
            asked: HashSet::new(),
        });
        followed.looked = now;
        followed
    }

    fn want(&mut self, key: (LaneKey, Ordinal), wish: CutWish) {
        if self.cuts.len() < MAX_CUTS {
            self.cuts.entry(key).or_insert(Wanted {
                wish,
                since: Instant::now(),
                progress: Progress::New,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(head: Ordinal, empty: u64) -> Told {
        Told {
            status: LaneStatus { log_start: 0, head },
            empty,
        }
    }

    #[test]
    fn what_is_empty_below_the_head_is_passed_over() {
        let full = told(10, 0);
        assert_eq!([0, 9, 10, 11].map(|at| full.skip_gap(at)), [0, 9, 10, 11]);
        let gap = told(30, 20);
        assert_eq!([9, 10, 29, 30].map(|at| gap.skip_gap(at)), [9, 30, 30, 30]);
    }
}
