//! What the checker remembers of lanes, readers, groups and leases.

use std::collections::{HashMap, VecDeque};

use crate::anomaly::{HeadBreach, Scope};
use crate::event::{Lane, LeaseRef, Reader, Record};
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
    /// What lies below it nobody gets who begins to read now.
    pub(super) floor: u64,
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
            floor: 0,
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
    /// The call that brought what a consumer without a group got last.
    pub(super) call: Option<u64>,
    /// What came under a lease of something else.
    pub(super) outside: RangeSet,
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
            call: None,
            outside: RangeSet::default(),
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
    /// The call that brought what was delivered under it last.
    pub(super) call: Option<u64>,
}

/// Which calls records were sent and delivered with, as far as it was recorded.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Each producer's first record of each call, ascending.
    sends: HashMap<u32, Vec<u64>>,
    /// How many calls have returned to each consumer.
    polls: HashMap<u32, u64>,
}

impl Calls {
    /// A producer's next call begins with that record.
    pub(super) fn batched(&mut self, producer: u32, next: u64) {
        let starts = self.sends.entry(producer).or_default();
        if starts.last() != Some(&next) {
            starts.push(next);
        }
    }

    /// A call returned to a consumer.
    pub(super) fn polled(&mut self, consumer: u32) {
        *self.polls.entry(consumer).or_default() += 1;
    }

    /// The call that a record was sent with.
    fn send(&self, record: Record) -> Option<usize> {
        let starts = self.sends.get(&record.producer)?;
        let at = starts.partition_point(|start| *start <= record.seq);
        (at > 0).then_some(at)
    }

    /// Whether a producer sent both with one call.
    pub(super) fn of_sends(&self, one: Record, other: Record) -> Scope {
        Scope::of(self.send(one), self.send(other))
    }

    /// The call that what a consumer is getting came with.
    pub(super) fn poll(&self, consumer: u32) -> Option<u64> {
        self.polls.get(&consumer).copied()
    }
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
    pub(super) scope: Scope,
}

/// Ordinals that a reader came past from one delivery to the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Skip {
    pub(super) reader: usize,
    pub(super) lease: Option<LeaseRef>,
    pub(super) from: u64,
    /// Exclusive.
    pub(super) to: u64,
    pub(super) scope: Scope,
}
