//! Buffers at the backup, which it is asked for: a group ships nothing before it has some.

use std::task::Context;
use std::time::Duration;

use super::{Shipper, Way};
use crate::ids::CopyId;
use crate::primary::Caller;
use crate::primary::shipment::Shipment;
use crate::runtime::within;
use crate::transport::{Buffer, CallError, Opened, Refusal, Reply, Request};

/// What a request for buffers that is under way asks for.
pub(super) struct Opening {
    copy: CopyId,
    address: u64,
    least: u32,
    /// Where they would end if the backup gave all that is asked for.
    end: u64,
    /// Nothing waits for them yet.
    ahead: bool,
}

impl Shipper {
    /// Asks the backup for buffers, at least `least` bytes; `ahead` if nothing waits for them.
    pub(super) fn open(&mut self, id: CopyId, address: u64, least: u32, ahead: bool) {
        self.open_after(id, address, least, ahead, None);
    }

    fn open_after(
        &mut self,
        id: CopyId,
        address: u64,
        least: u32,
        ahead: bool,
        pause: Option<Duration>,
    ) {
        let Some(shipment) = self.shipments.get_mut(&id) else {
            return;
        };
        let Caller { me, config, .. } = &self.caller;
        let Some(request) = shipment.request(*me, address, least, config) else {
            return;
        };
        let bytes = match &request {
            Request::Open { bytes, .. } => *bytes,
            _ => least,
        };
        if std::mem::replace(&mut shipment.opening, true) {
            return;
        }
        let (caller, backup) = (self.caller.clone(), self.backup);
        let call = Box::pin(async move {
            if let Some(pause) = pause {
                caller.runtime.sleep(pause).await;
            }
            // However often it is asked: a lane may stand still for it.
            let patience = caller.config.call_timeout;
            let asked = within(&*caller.runtime, patience, caller.ask(backup, request)).await;
            let late = || CallError::Lost {
                backup,
                reason: format!("no buffers within {patience:?}"),
            };
            match asked.unwrap_or_else(|| Err(late()))? {
                Reply::Opened(opened) => Ok(opened),
                other => Err(CallError::Lost {
                    backup,
                    reason: format!("it answered open with {other:?}"),
                }),
            }
        });
        let opening = Opening {
            copy: id,
            address,
            least,
            end: address + u64::from(bytes),
            ahead,
        };
        self.openings.push(opening, call);
    }

    pub(super) fn poll_openings(&mut self, cx: &Context<'_>) -> bool {
        let answered = self.openings.poll(cx);
        if answered.is_empty() {
            return false;
        }
        for (opening, result) in answered {
            let Opening {
                copy: id,
                address,
                least,
                end,
                ahead,
            } = opening;
            let error = match result {
                Ok(opened) => {
                    self.opened(id, &opened, end);
                    continue;
                }
                Err(error) => error,
            };
            let full = matches!(error.refusal(), Some(Refusal::NoRoom { .. }));
            let under_way = self.shipments.get(&id).is_some_and(Shipment::has_buffers);
            if full {
                self.make_room();
            }
            let cannot = matches!(error.refusal(), Some(Refusal::Failed(_)));
            if (full || cannot) && !under_way {
                // Not again with the next group, until it may have room, or can write there.
                self.health.full(self.backup, self.caller.runtime.now());
            } else if !full && error.refusal().is_none() {
                self.health.failure(self.backup, self.caller.runtime.now());
            }
            if matches!(error.refusal(), Some(Refusal::OtherIncarnation)) {
                self.doubt_link();
            }
            let Some(shipment) = self.shipments.get_mut(&id) else {
                continue;
            };
            if ahead && full {
                (shipment.opening, shipment.crowded) = (false, true);
                self.make_ready_by_id(&id);
            } else if full && shipment.may_wait(&self.caller.config) {
                // What other groups end with goes to the disk there, and gives room.
                shipment.opening = false;
                let pause = self.caller.config.pause;
                self.open_after(id, address, least, false, Some(pause));
            } else if error.refusal().is_none() && !matches!(self.way, Way::Up(_)) {
                // Neither a link nor an answer: the others are not to find that out one by one.
                self.is_silent(&error.to_string());
            } else {
                if full {
                    // What its copy gives back here is soon taken: the next group goes elsewhere.
                    self.health.full(self.backup, self.caller.runtime.now());
                }
                self.lose(id, &error.to_string());
            }
        }
        true
    }

    /// The backup is short of room: what is complete of open groups goes to its disk before the next
    /// interval, and gives some. Those that give most go first, and those that give little not at all:
    /// each costs the disk as much.
    fn make_room(&mut self) {
        if self.flushing.is_some() || !self.to_flush.is_empty() {
            return;
        }
        let gives = self
            .shipments
            .iter()
            .map(|(id, s)| (s.could_give_back(), *id));
        let mut gives: Vec<_> = gives.filter(|(bytes, _)| *bytes > 0).collect();
        let most = gives.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0);
        gives.retain(|(bytes, _)| *bytes >= most / 2);
        gives.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        self.to_flush = gives.into_iter().map(|(_, id)| id).collect();
    }

    /// The backup has given buffers, which would go to `end` if it had enough room.
    fn opened(&mut self, id: CopyId, opened: &Opened, end: u64) {
        self.health.success(self.backup);
        self.lost_lease.heard();
        if self.process != Some(opened.process) {
            if self.any_has_buffers() {
                // Either this reply or the link is of a process that has ended. A link that carries nothing
                // may not notice for long: a new one will say.
                self.lose(id, "its broker was restarted");
                return self.doubt_link();
            }
            self.process = Some(opened.process);
            self.way = Way::None;
            self.land_all();
        }
        if let Some(shipment) = self.shipments.get_mut(&id) {
            shipment.opening = false;
            shipment.waits = 0;
            shipment.add_buffers(&opened.buffers);
            let is_short = opened.buffers.iter().map(Buffer::end).max() < Some(end);
            shipment.crowded &= is_short;
            self.make_ready_by_id(&id);
            if is_short {
                self.make_room();
            }
        }
        if matches!(self.way, Way::None) {
            self.connect(false);
        }
    }
}
