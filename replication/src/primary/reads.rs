//! Bytes that have left the owner's memory before a replica had them: read from its file, where that holds up no task.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::Context;

use kera_log_segments::ship::ShipRun;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Caller;
use super::calls::Calls;
use super::shipment::Shipment;
use super::slots::Slots;
use crate::ids::CopyId;
use crate::runtime::off;
use crate::transport::Pending;

/// The reads of one shipper.
pub(super) struct Reads {
    calls: Calls<(CopyId, OwnedSemaphorePermit), Option<ShipRun>>,
    room: Arc<Semaphore>,
    /// Groups that wait for room.
    waiting: VecDeque<CopyId>,
    /// Groups whose bytes could not be read,
    failed: BTreeSet<CopyId>,
    /// and when they are tried again.
    again: Option<Pending<()>>,
}

impl Reads {
    /// As many at a time as [`Config::read_backs`](super::Config::read_backs) says.
    pub(super) fn new(most: usize) -> Self {
        Self {
            calls: Calls::default(),
            room: Arc::new(Semaphore::new(most)),
            waiting: VecDeque::new(),
            failed: BTreeSet::new(),
            again: None,
        }
    }

    /// Reads bytes of a group that have left memory; later, where very many are read.
    pub(super) fn begin(&mut self, caller: &Caller, shipment: &mut Shipment, range: (u64, u64)) {
        if std::mem::replace(&mut shipment.reading, true) {
            return;
        }
        let set = shipment.set.clone();
        match self.room.clone().try_acquire_owned() {
            Ok(room) => {
                let of = (set.id(), room);
                let read = off(&*caller.runtime, move || set.read_back(range));
                self.calls.push(of, read);
            }
            Err(_) => self.waiting.push_back(set.id()),
        }
    }

    /// Nothing is read and nothing waits for it: nearly always.
    pub(super) fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.waiting.is_empty() && self.failed.is_empty()
    }

    /// The groups that have something to ship now, or are to be looked at again: nothing else need ever happen to them.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        caller: &Caller,
        shipments: &mut Slots,
    ) -> Vec<CopyId> {
        let mut ready = Vec::new();
        for ((id, room), run) in self.calls.poll(cx) {
            match run {
                Some(_) => ready.push(id),
                None => drop(self.failed.insert(id)),
            }
            if let Some(shipment) = shipments.get_mut(&id) {
                shipment.has_read(run, room);
            }
        }
        if !self.failed.is_empty() {
            let pause = || caller.runtime.sleep(caller.config.pause);
            let again = self.again.get_or_insert_with(pause);
            if again.as_mut().poll(cx).is_ready() {
                self.again = None;
                ready.extend(std::mem::take(&mut self.failed));
            }
        }
        let mut free = self.room.available_permits();
        while free > 0
            && let Some(id) = self.waiting.pop_front()
        {
            if let Some(shipment) = shipments.get_mut(&id) {
                shipment.reading = false;
                ready.push(id);
                free -= 1;
            }
        }
        ready
    }
}
