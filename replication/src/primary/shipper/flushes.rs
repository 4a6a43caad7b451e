//! What is complete at the backup goes to its disk: at an interval, when there is much, and when acknowledgements wait.

use std::task::{Context, Poll};

use super::Shipper;
use crate::ids::CopyId;
use crate::primary::flush_rounds::Went;
use crate::transport::{CallError, Pending, Refusal, Reply, Request};

/// A flush under way, and the length it covers.
pub(super) struct Flushing {
    copy: CopyId,
    length: u64,
    call: Pending<Result<Reply, CallError>>,
}

/// True if the backup's answer to a flush says that it does not have what it took.
fn has_lost_it(error: &CallError) -> bool {
    let refusal = error.refusal();
    matches!(refusal, Some(Refusal::Short { .. } | Refusal::Unknown))
}

impl Shipper {
    /// There will be something to flush.
    pub(super) fn set_alarm(&mut self) {
        if self.alarm.is_none() {
            let interval = self.caller.config.flush_interval;
            self.alarm = Some(self.caller.runtime.sleep(interval));
        }
    }

    /// The flush at an interval: the backup hears how much of each open group is complete, checks
    /// that its copy is whole up to there, and brings it to its disk.
    pub(super) fn poll_flushes(&mut self, cx: &mut Context<'_>) -> bool {
        if let Some(flushing) = &mut self.flushing {
            let Poll::Ready(flushed) = flushing.call.as_mut().poll(cx) else {
                return false;
            };
            let (id, length) = (flushing.copy, flushing.length);
            self.flushing = None;
            match flushed {
                Ok(_) => {
                    if let Some(shipment) = self.shipments.get_mut(&id) {
                        shipment.flushed = shipment.flushed.max(length);
                    }
                }
                // It has lost what it had: nothing may count on it any more.
                Err(error) if has_lost_it(&error) => {
                    tracing::warn!(group = %id, %error, "a replica is damaged, or gone");
                    self.lose(id, &error.to_string());
                }
                // Tried again in the next round, even if nothing completes before that.
                Err(error) => {
                    tracing::info!(group = %id, %error, "an open group is not flushed");
                    self.set_alarm();
                }
            }
            return true;
        }
        if let Some(id) = self.to_flush.pop_front() {
            if let Some(shipment) = self.shipments.get(&id) {
                let length = shipment.whole;
                let request = Request::Flush {
                    copy: id,
                    length,
                    closed: false,
                };
                self.flushing = Some(Flushing {
                    copy: id,
                    length,
                    call: self.caller.once(self.backup, request),
                });
            }
            return true;
        }
        false
    }

    /// Begins the flush at an interval, once the one before has ended.
    pub(super) fn poll_alarm(&mut self, cx: &mut Context<'_>) -> bool {
        if let Some(alarm) = &mut self.alarm
            && self.flushing.is_none()
            && alarm.as_mut().poll(cx).is_ready()
        {
            // Set again by what completes from now on, or is not flushed.
            self.alarm = None;
            let grown = self.shipments.iter().filter(|(_, s)| s.whole > s.flushed);
            self.to_flush = grown.map(|(id, _)| *id).collect();
            return true;
        }
        false
    }

    /// The flushes that acknowledgements wait for; one at a time.
    pub(super) fn poll_rounds(&mut self, cx: &mut Context<'_>) -> bool {
        let (caller, backup) = (&self.caller, self.backup);
        let Some(ended) = self.rounds.poll(cx, caller, backup, &mut self.shipments) else {
            return self.rounds.begin(caller, backup, &mut self.shipments);
        };
        self.handle.traffic.flushed(ended.groups, ended.took);
        match ended.went {
            Went::Well => self.lost_lease.heard(),
            // Not again with the next group.
            Went::DiskFailed => self.health.full(backup, caller.runtime.now()),
            Went::Unanswered => {
                self.health.failure(backup, caller.runtime.now());
            }
        }
        for (id, reason) in ended.lost {
            self.lose(id, &reason);
        }
        true
    }
}
