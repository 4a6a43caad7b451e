//! What the checker remembers of lanes, readers, groups and leases.

use std::collections::VecDeque;

use crate::anomaly::HeadBreach;
use crate::event::{Lane, Reader, Record};
use crate::expectations::Order;
use crate::ranges::RangeSet;
use crate::slots::Slots;

/// The last so many rises of what was shown of a lane are remembered with their times.
const RISES: usize = 64;

#[derive(Debug)]
pub(super) struct LaneState {
    pub(super) lane: Lane,
    pub(super) slots: Slots,
    pub(super) gaps: RangeSet,
    pub(super) log_start: u64,
    /// The highest durable head that is known: stated, or implied by an acknowledgement.
    pub(super) head: u64,
    rises: VecDeque<(u64, u64, HeadBreach)>,
    pub(super) readers: Vec<usize>,
}

impl LaneState {
    pub(super) fn new(lane: Lane) -> Self {
        Self {
            lane,
            slots: Slots::default(),
            gaps: RangeSet::default(),
            log_start: 0,
            head: 0,
            rises: VecDeque::new(),
            readers: Vec::new(),
        }
    }

    /// An ordinal was read or acknowledged, so the durable head was above it.
    pub(super) fn shown(&mut self, at: u64, ordinal: u64, how: HeadBreach) {
        self.head = self.head.max(ordinal.saturating_add(1));
        if self.rises.back().is_none_or(|&(_, top, _)| ordinal > top) {
            if self.rises.len() == RISES {
                self.rises.pop_front();
            }
            self.rises.push_back((at, ordinal, how));
        }
    }

    /// The highest ordinal known to have been shown before `asked`.
    pub(super) fn shown_before(&self, asked: u64) -> Option<(u64, HeadBreach)> {
        self.rises
            .iter()
            .rev()
            .find(|&&(at, _, _)| at < asked)
            .map(|&(_, ordinal, how)| (ordinal, how))
    }
}

/// One reader's progress in one lane.
#[derive(Debug)]
pub(super) struct ReaderLane {
    pub(super) reader: Reader,
    pub(super) lane: u32,
    /// Where it started: below, it never claims to have seen anything.
    pub(super) start: u64,
    /// The lane's first ordinal when it started: below, it must not get anything.
    pub(super) floor: u64,
    /// Above everything it got so far (in an ordered reading).
    pub(super) top: u64,
    pub(super) delivered: RangeSet,
    /// What it came past, where that is more than what it got.
    pub(super) passed: RangeSet,
    pub(super) committed: RangeSet,
    pub(super) committed_at: u64,
    /// The youngest lease that has committed.
    pub(super) committed_by: u64,
    /// What leases covered.
    pub(super) covered: RangeSet,
    /// Leases not known to have ended, disjoint.
    pub(super) live: Vec<u64>,
}

impl ReaderLane {
    pub(super) fn new(reader: Reader, lane: u32) -> Self {
        Self {
            reader,
            lane,
            start: 0,
            floor: 0,
            top: 0,
            delivered: RangeSet::default(),
            passed: RangeSet::default(),
            committed: RangeSet::default(),
            committed_at: 0,
            committed_by: 0,
            covered: RangeSet::default(),
            live: Vec::new(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) stream: u32,
    pub(super) order: Order,
    pub(super) probe: Option<Probe>,
}

impl Group {
    pub(super) fn new(stream: u32, order: Order) -> Self {
        Self {
            stream,
            order,
            probe: None,
        }
    }
}

/// Requests for leases that went unanswered, since the last one that was answered.
#[derive(Debug)]
pub(super) struct Probe {
    /// When the first of them came back empty.
    pub(super) at: u64,
    /// The durable heads known then, by lane.
    pub(super) heads: Vec<u64>,
    /// How many were asked after that, and came back empty.
    pub(super) in_vain: u32,
}

#[derive(Debug)]
pub(super) struct Lease {
    pub(super) reader: usize,
    pub(super) lane: u32,
    pub(super) member: u32,
    pub(super) start: u64,
    /// Exclusive; `u64::MAX` for none.
    pub(super) end: u64,
    /// Above everything delivered under it.
    pub(super) next: u64,
    pub(super) granted_at: u64,
    pub(super) committed: u64,
    pub(super) committed_at: u64,
    /// A younger lease of the same ordinals: lease, when it was granted, their first ordinal.
    pub(super) superseded: Option<(u64, u64, u64)>,
    /// Ordinals that the group had committed before this lease was granted.
    pub(super) stale: Option<(u64, u64)>,
}

/// Two records were named for one ordinal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contest {
    pub(super) first: Record,
    pub(super) second: Record,
    /// Readers saw both.
    pub(super) both_read: bool,
}

/// A reader got `ordinal` for the first time after it had got `after`, which is higher.
#[derive(Clone, Copy, Debug)]
pub(super) struct LateDelivery {
    pub(super) reader: usize,
    pub(super) after: u64,
    pub(super) ordinal: u64,
}
