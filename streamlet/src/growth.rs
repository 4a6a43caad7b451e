//! Growing the number of lanes while producers and consumers run.
//!
//! With `lane_by = key` a key may move to another lane, so each old lane's boundary ordinal is cut
//! under the streamlet lock and recorded before the new lanes take anything: cut, record, finish.

use kera_log_segments::head::LaneHead;
use kera_log_segments::sync::Arc;
use kera_protocol::ids::{LaneId, Ordinal};

use crate::streamlet::{Carry, Inner, Lane, LaneSlot, Prepared, Settings, Streamlet};

/// The lane generation of lanes that are cut: no batch is of it. Those of the present one come too late. Those of the next
/// one come too early: its producer has heard of the growth before this owner has, and until then readers of the
/// present generation would not stop at the boundary.
const CUT: u32 = u32::MAX;

/// Where a lane generation ends in an old lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneCut {
    /// The lane.
    pub lane: LaneId,
    /// First ordinal of the new generation in it.
    pub ordinal: Ordinal,
}

impl Streamlet {
    /// Stops appends, also those of the next generation, and returns each lane's boundary;
    /// [`Self::finish_growth`] or [`Self::abort_growth`] must follow. `None` if a lane is recovering
    /// or a growth is under way; try again.
    ///
    /// Before the boundaries are recorded, wait until [`Self::growth_settled`]: a lane that lost
    /// bytes below its boundary would go on below it.
    pub fn cut_lanes(&self) -> Option<Vec<LaneCut>> {
        let mut inner = self.inner.lock();
        let present = self.settings.load().lane_generation;
        if inner.lane_generation != present
            || !self.is_recovered()
            || inner
                .lanes
                .iter()
                .any(|l| matches!(l.slot, LaneSlot::Failed(_)))
        {
            return None;
        }
        inner.lane_generation = CUT;
        let cuts = inner.lanes.iter().enumerate().map(|(index, lane)| {
            let ordinal = match &lane.slot {
                LaneSlot::Active(active) => {
                    // An appender that already holds the group is refused by its lane generation.
                    let mut tail = active.tail.lock();
                    tail.lane_generation = CUT;
                    tail.writer.next_ordinal()
                }
                LaneSlot::Idle(carry) => carry.next_ordinal,
                LaneSlot::Failed(_) => lane.head.ordinal(),
            };
            LaneCut {
                lane: LaneId(index as u32),
                ordinal,
            }
        });
        Some(cuts.collect())
    }

    /// True once every lane's durable head has reached its boundary. Pumps on the way; call without
    /// holding any lock.
    pub fn growth_settled(&self, cuts: &[LaneCut]) -> bool {
        let lanes: Vec<_> = {
            let inner = self.inner.lock();
            let lane_of = |cut: &LaneCut| {
                let lane = inner.lanes.get(cut.lane.0 as usize)?;
                let open: Vec<_> = lane
                    .groups
                    .values()
                    .filter(|g| g.lane_head().is_some())
                    .cloned()
                    .collect();
                Some((cut.ordinal, lane.head.clone(), open))
            };
            cuts.iter().filter_map(lane_of).collect()
        };
        lanes.iter().all(|(boundary, head, open)| {
            if head.ordinal() < *boundary {
                open.iter().for_each(|group| group.pump(&self.env.pump));
            }
            head.ordinal() >= *boundary
        })
    }

    /// Opens the new lanes, if this streamlet gets any: as many as `grown` has, in its generation. The
    /// growth is recorded.
    pub fn finish_growth(&self, grown: &Settings) {
        let mut inner = self.inner.lock();
        let mut settings = (**self.settings.load()).clone();
        settings.lanes = grown.lanes;
        settings.uneven_partitions = grown.uneven_partitions;
        settings.lane_generation = grown.lane_generation;
        // One that another broker owns has no lanes here.
        while !self.is_moved() && inner.lanes.len() < grown.lanes as usize {
            inner.lanes.push(Lane::empty(0));
        }
        set_generation(&mut inner, grown.lane_generation);
        self.settings.store(Arc::new(settings));
    }

    /// Goes on as before: the growth could not be recorded.
    pub fn abort_growth(&self) {
        let mut inner = self.inner.lock();
        set_generation(&mut inner, self.settings.load().lane_generation);
    }
}

fn set_generation(inner: &mut Inner, generation: u32) {
    inner.lane_generation = generation;
    for lane in &inner.lanes {
        if let LaneSlot::Active(active) = &lane.slot {
            active.tail.lock().lane_generation = generation;
        }
    }
}

impl Lane {
    /// A lane without groups.
    pub(crate) fn empty(next_ordinal: Ordinal) -> Self {
        Self {
            head: Arc::new(LaneHead::new(next_ordinal)),
            slot: LaneSlot::Idle(Carry {
                state: Default::default(),
                next_ordinal,
            }),
            groups: Default::default(),
            log_start: next_ordinal,
            prepared: Prepared::No,
            empty: Default::default(),
            ends: Default::default(),
            asks_flushed: false,
        }
    }
}
