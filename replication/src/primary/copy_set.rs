//! One group's copies as its primary sees them: who holds how much, and what that makes durable.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use super::Primary;
use super::lane::Lane;
use super::pump::PumpHandle;
use super::source::Source;
use crate::faults::Faults;
use crate::ids::{CopyId, Holder};
use crate::signal::Signal;

/// A group and its copies. Its set is decided once, by its record.
pub struct CopySet {
    id: CopyId,
    source: Arc<dyn Source>,
    lane: Weak<Lane>,
    recorded: OnceLock<Recorded>,
    closed: AtomicBool,
    faults: Faults,
    pub(super) signal: Signal,
}

/// What the open record says, and how far each copy of it has come.
struct Recorded {
    revision: u64,
    copies: Vec<SetCopy>,
}

struct SetCopy {
    holder: Holder,
    pump: Arc<PumpHandle>,
    /// Below this address the holder has everything.
    durable: AtomicU64,
    lost: Mutex<Option<String>>,
}

impl std::fmt::Debug for CopySet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopySet")
            .field("id", &self.id)
            .field("durable", &self.durable())
            .finish_non_exhaustive()
    }
}

impl CopySet {
    pub(super) fn new(
        id: CopyId,
        source: Arc<dyn Source>,
        lane: Weak<Lane>,
        faults: Faults,
    ) -> Self {
        Self {
            id,
            source,
            lane,
            recorded: OnceLock::new(),
            closed: AtomicBool::new(false),
            faults,
            signal: Signal::default(),
        }
    }

    /// The group.
    pub fn id(&self) -> CopyId {
        self.id
    }

    /// Its bytes.
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }

    /// The record with the group's set is durable.
    pub(super) fn set_recorded(&self, revision: u64, holders: &[Holder], primary: &Primary) {
        let copies = holders.iter().map(|holder| SetCopy {
            holder: *holder,
            pump: primary.pump(holder.broker),
            durable: AtomicU64::new(0),
            lost: Mutex::default(),
        });
        let _once = self.recorded.set(Recorded {
            revision,
            copies: copies.collect(),
        });
    }

    /// Starts shipping to all of the set.
    pub(super) fn join_pumps(self: &Arc<Self>) {
        for (index, copy) in self.copies().iter().enumerate() {
            copy.pump.join(self.clone(), index);
        }
    }

    /// Tells the pumps that the group grew.
    pub(super) fn wake_pumps(&self) {
        for copy in self.copies() {
            copy.pump.grew(self.id);
        }
    }

    /// Ships no more.
    pub(super) fn leave_pumps(&self) {
        for copy in self.copies() {
            copy.pump.leave(self.id);
        }
    }

    /// Revision of the open record; 0 while there is none.
    pub(super) fn revision(&self) -> u64 {
        self.recorded.get().map_or(0, |r| r.revision)
    }

    fn copies(&self) -> &[SetCopy] {
        self.recorded.get().map_or(&[], |r| &r.copies)
    }

    /// The holders of the recorded set.
    pub fn holders(&self) -> Vec<Holder> {
        self.copies().iter().map(|copy| copy.holder).collect()
    }

    /// Holder number `index` has all bytes below `address`: its pump saw it, or its file's turn did.
    pub fn completed(&self, index: usize, address: u64) {
        if let Some(copy) = self.copies().get(index) {
            copy.durable.fetch_max(address, Ordering::AcqRel);
            self.tell();
        }
    }

    /// Holder number `index` will not get any further.
    pub fn lose(&self, index: usize, reason: &str) {
        if let Some(copy) = self.copies().get(index) {
            let mut lost = copy.lost.lock();
            if lost.is_none() {
                tracing::info!(group = %self.id, holder = %copy.holder.broker, reason, "a copy is lost; the group ends and the lane goes on in a new one");
                *lost = Some(reason.to_string());
            }
            drop(lost);
            self.tell();
        }
    }

    /// The holders that were lost.
    pub(super) fn lost(&self) -> Vec<Holder> {
        let lost = self.copies().iter().filter(|c| c.lost.lock().is_some());
        lost.map(|copy| copy.holder).collect()
    }

    /// The holders, with their numbers, that are not lost and have less than `address`.
    pub(super) fn behind(&self, address: u64) -> Vec<usize> {
        let copies = self.copies().iter().enumerate();
        copies
            .filter(|(_, c)| c.lost.lock().is_none() && c.durable.load(Ordering::Acquire) < address)
            .map(|(index, _)| index)
            .collect()
    }

    /// The holders that are not lost and have all below `address`.
    pub(super) fn holding(&self, address: u64) -> Vec<Holder> {
        let copies = self.copies().iter();
        copies
            .filter(|c| c.lost.lock().is_none() && c.durable.load(Ordering::Acquire) >= address)
            .map(|copy| copy.holder)
            .collect()
    }

    /// The group has its close.
    pub(super) fn set_closed(&self) {
        self.closed.store(true, Ordering::Release);
        self.tell();
    }

    /// True once it has.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Below this address every copy of the recorded set holds the group, or its close says who does.
    /// Nothing else may be acknowledged: then sealing any one copy ends all acknowledgements.
    pub fn durable(&self) -> u64 {
        if self.is_closed() {
            return self.source.end().address;
        }
        let copies = self.copies();
        let counted = if self.faults.acknowledge_without_copy {
            copies.len().saturating_sub(1)
        } else {
            copies.len()
        };
        let durable = copies[..counted].iter();
        durable
            .map(|copy| copy.durable.load(Ordering::Acquire))
            .min()
            .unwrap_or(0)
    }

    /// True if nothing will be appended and all of it is durable.
    pub(super) fn is_passed(&self) -> bool {
        let complete = || self.durable() >= self.source.end().address;
        self.is_closed() || (self.source.is_frozen() && complete())
    }

    fn tell(&self) {
        self.signal.notify();
        if let Some(lane) = self.lane.upgrade() {
            lane.advance();
        }
    }
}
