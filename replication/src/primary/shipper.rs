//! One shipper per backup: ships what grew, of all groups, as one submission.

mod flushes;
mod openings;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::Caller;
use super::calls::{Calls, keep_waker};
use super::flush_rounds::FlushRounds;
use super::lost_lease::LostLease;
use super::reads::Reads;
use super::shipment::Shipment;
use super::shipper_handle::{ShipperHandle, Told};
use super::slots::Slots;
use super::stall_report::WayStands;
use crate::faults::Faults;
use crate::health::Health;
use crate::ids::{AckPolicy, BrokerId, CopyId, ProcessId};
use crate::runtime::within;
use crate::transport::{CallError, Link, LinkError, Opened, Pending};
use flushes::Flushing;
use openings::Opening;

/// Submissions under way at once. While so many are, what grows gathers, over all groups, for the next: each
/// submission wakes the backup and is told to be complete, whether it carries one group or a thousand.
const SUBMISSIONS: usize = 2;

/// Writes of a submission for which there is room from its beginning.
const WRITES: usize = 1024;

/// The way to the backup.
enum Way {
    /// Not needed yet, or given up until the next group asks.
    None,
    /// On the way to be connected, maybe after a pause.
    Connecting(Pending<Result<Box<dyn Link>, LinkError>>),
    /// Connected.
    Up(Box<dyn Link>),
}

/// A submission that has not completed.
struct Flight {
    number: u64,
    bytes: u64,
    /// How far each group is complete once it does, with its number.
    to: Vec<(u32, CopyId, u64)>,
}

/// The task behind a [`ShipperHandle`]; ends after its primary is dropped, with its last group.
pub(super) struct Shipper {
    backup: BrokerId,
    caller: Caller,
    health: Arc<Health>,
    handle: Arc<ShipperHandle>,
    ended: bool,
    shipments: Slots,
    /// What grew, while it is looked at; here for its memory, as are those below.
    grown: Vec<(u32, CopyId)>,
    landed: Vec<Vec<(u32, CopyId, u64)>>,
    /// Groups that may have something to ship, in turn, by number.
    ready: VecDeque<u32>,
    openings: Calls<Opening, Result<Opened, CallError>>,
    way: Way,
    /// The process in which the groups' buffers are.
    process: Option<ProcessId>,
    /// Connections that broke since the last completion.
    breaks: u32,
    /// When the last link broke, until there is another.
    broken_at: Option<Duration>,
    flights: VecDeque<Flight>,
    flying: u64,
    reads: Reads,
    /// The next round of flushes, once anything has completed since the last, or was not flushed in it.
    alarm: Option<Pending<()>>,
    /// What is left of this round; one is under way at a time.
    to_flush: VecDeque<CopyId>,
    flushing: Option<Flushing>,
    /// The flushes that acknowledgements of synced groups wait for.
    rounds: FlushRounds,
    lost_lease: LostLease,
}

impl Shipper {
    pub(super) fn new(
        backup: BrokerId,
        caller: Caller,
        health: Arc<Health>,
        faults: Faults,
    ) -> Self {
        let reads = Reads::new(caller.config.read_backs);
        Self {
            rounds: FlushRounds::new(faults),
            backup,
            caller,
            health,
            handle: Arc::default(),
            ended: false,
            shipments: Slots::default(),
            grown: Vec::new(),
            landed: Vec::new(),
            ready: VecDeque::new(),
            openings: Calls::default(),
            way: Way::None,
            process: None,
            breaks: 0,
            broken_at: None,
            flights: VecDeque::new(),
            flying: 0,
            reads,
            alarm: None,
            to_flush: VecDeque::new(),
            flushing: None,
            lost_lease: LostLease::default(),
        }
    }

    pub(super) fn handle(&self) -> Arc<ShipperHandle> {
        self.handle.clone()
    }

    pub(super) async fn run(mut self) {
        std::future::poll_fn(move |cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut moved = self.take_inbox(cx);
            moved |= self.poll_openings(cx);
            moved |= self.poll_way(cx);
            moved |= self.ship();
            moved |= self.poll_reads(cx);
            moved |= self.poll_flushes(cx);
            moved |= self.poll_rounds(cx);
            moved |= self.poll_lost_lease(cx);
            if self.ended && self.shipments.is_empty() {
                return Poll::Ready(());
            }
            // A timer costs more than all else here: it is looked at when nothing else is left.
            if !moved && !self.poll_alarm(cx) {
                self.handle.traffic.set_in_flight(self.flying);
                return Poll::Pending;
            }
        }
    }

    fn take_inbox(&mut self, cx: &mut Context<'_>) -> bool {
        let mut grown = std::mem::take(&mut self.grown);
        let told = {
            let mut inbox = self.handle.inbox.lock();
            keep_waker(&mut inbox.waker, cx);
            self.ended = inbox.ended;
            std::mem::swap(&mut inbox.grown, &mut grown);
            std::mem::take(&mut inbox.told)
        };
        let moved = !(told.is_empty() && grown.is_empty());
        if !told.is_empty() {
            self.take_told(told);
        }
        for (hint, id) in grown.drain(..) {
            let number = match self.shipments.of(hint, &id) {
                Some(_) => Some(hint),
                None => self.shipments.number(&id),
            };
            if let Some(number) = number
                && let Some(shipment) = self.shipments.at(number)
            {
                shipment.set.shipper_looks(shipment.index, number);
                self.make_ready(number);
            }
        }
        self.grown = grown;
        moved
    }

    fn take_told(&mut self, told: Vec<Told>) {
        for told in told {
            match told {
                Told::Joined(set, index) => {
                    let id = set.id();
                    let number = self.shipments.insert(Shipment::new(set.clone(), index));
                    // What it has by now is looked at once there are buffers.
                    set.shipper_looks(index, number);
                    self.open(id, 0, 0, false);
                }
                Told::Left(id) => drop(self.shipments.remove(&id)),
                // Before anything moves: it may be that which brought about that somebody asked, who may have given up.
                Told::Asked(id, answer) => drop(answer.send(self.stands(&id))),
            }
        }
    }

    fn stands(&self, id: &CopyId) -> WayStands {
        WayStands::Ships {
            link: match self.way {
                Way::None => "not connected",
                Way::Connecting(_) => "connecting",
                Way::Up(_) => "connected",
            },
            submissions: self.flights.len(),
            in_flight: self.flying,
            copy: self.shipments.get(id).map(Shipment::stands),
        }
    }

    fn make_ready(&mut self, number: u32) {
        if let Some(shipment) = self.shipments.at(number)
            && !std::mem::replace(&mut shipment.queued, true)
        {
            self.ready.push_back(number);
        }
    }

    fn make_ready_by_id(&mut self, id: &CopyId) {
        if let Some(number) = self.shipments.number(id) {
            self.make_ready(number);
        }
    }

    /// What the backup says does not go with the link there is, if there is one: it is made anew.
    fn doubt_link(&mut self) {
        if matches!(self.way, Way::Up(_)) {
            self.land_all();
            self.connect(false);
        }
    }

    fn connect(&mut self, after_break: bool) {
        let Some(process) = self.process else {
            return;
        };
        let Caller {
            transport,
            runtime,
            config,
            ..
        } = self.caller.clone();
        let backup = self.backup;
        let left = self.reconnect_within().unwrap_or(config.call_timeout);
        self.way = Way::Connecting(Box::pin(async move {
            if after_break {
                runtime.sleep(config.pause).await;
            }
            let connected = transport.connect(backup, process);
            let late = || LinkError::Unreachable {
                backup,
                reason: "it did not answer in time".into(),
            };
            let connected = within(&*runtime, left, connected).await;
            connected.unwrap_or_else(|| Err(late()))
        }));
    }

    fn poll_way(&mut self, cx: &mut Context<'_>) -> bool {
        let polled = match &mut self.way {
            Way::None => return false,
            Way::Connecting(connecting) => match connecting.as_mut().poll(cx) {
                Poll::Pending => return false,
                Poll::Ready(Ok(link)) => {
                    self.way = Way::Up(link);
                    self.broken_at = None;
                    let all = self.shipments.ids();
                    all.iter().for_each(|id| self.make_ready_by_id(id));
                    return true;
                }
                Poll::Ready(Err(error)) => Err(error),
            },
            Way::Up(link) => match link.poll_completed(cx) {
                Poll::Pending => return false,
                Poll::Ready(polled) => polled,
            },
        };
        match polled {
            Ok(number) => self.completed(number),
            Err(error) => self.broken(&error),
        }
        true
    }

    fn completed(&mut self, number: u64) {
        self.lost_lease.heard();
        self.breaks = 0;
        self.health.success(self.backup);
        while let Some(mut flight) = self.flights.pop_front_if(|flight| flight.number <= number) {
            self.flying -= flight.bytes;
            self.handle.traffic.shipped(flight.bytes);
            for (number, id, to) in flight.to.drain(..) {
                if let Some(shipment) = self.shipments.of(number, &id) {
                    shipment.complete(to);
                    match shipment.set.ack() {
                        AckPolicy::Memory | AckPolicy::Written => {
                            shipment.set.completed(shipment.index, to);
                        }
                        AckPolicy::Synced => self.rounds.placed(shipment, number),
                    }
                    if shipment.is_heavy() {
                        self.to_flush.push_back(id);
                    }
                    self.set_alarm();
                }
            }
            if self.landed.len() < SUBMISSIONS {
                self.landed.push(flight.to);
            }
        }
    }

    /// A backup that is not among the brokers that are alive and is silent while something is under way to
    /// it has no copy of any group any more.
    fn poll_lost_lease(&mut self, cx: &mut Context<'_>) -> bool {
        let connecting = matches!(self.way, Way::Connecting(_));
        let asked = !self.openings.is_empty() || self.rounds.is_under_way();
        let under_way = !self.flights.is_empty() || asked || connecting;
        let waiting = !self.shipments.is_empty() && under_way;
        if !self.lost_lease.poll(cx, &self.caller, self.backup, waiting) {
            return false;
        }
        self.health.failure(self.backup, self.caller.runtime.now());
        self.is_silent("its broker lost its lease and does not answer");
        true
    }

    /// The backup has no copy of any group any more, those included that wait for their first buffers.
    fn is_silent(&mut self, reason: &str) {
        self.land_all();
        (self.way, self.process, self.breaks) = (Way::None, None, 0);
        self.broken_at = None;
        for id in self.shipments.ids() {
            self.lose(id, reason);
        }
    }

    /// How long a link that has broken may still take to come back; none where none has.
    fn reconnect_within(&self) -> Option<Duration> {
        let passed = self.caller.runtime.now().saturating_sub(self.broken_at?);
        Some(self.caller.config.reconnect_timeout.saturating_sub(passed))
    }

    /// Nothing under way counts: what did not complete is sent again, or given up.
    fn land_all(&mut self) {
        self.flights.clear();
        self.flying = 0;
        self.shipments.each().for_each(Shipment::set_back);
    }

    fn broken(&mut self, error: &LinkError) {
        self.way = Way::None;
        self.land_all();
        self.breaks += 1;
        let now = self.caller.runtime.now();
        self.broken_at.get_or_insert(now);
        // The backup is well and one group is over there: the others go on at once. Each time there
        // is one group less, so this comes to an end.
        let mut one_less = false;
        if let LinkError::Refused { buffer, .. } = error {
            let owns = |(_, s): &(&CopyId, &Shipment)| buffer.is_some_and(|key| s.owns(key));
            let refused = self.shipments.iter().find(owns);
            if let Some(id) = refused.map(|(id, _)| *id) {
                self.lose(id, &error.to_string());
                self.breaks = 0;
                one_less = true;
            }
        } else {
            self.health.failure(self.backup, now);
            if error.is_transient() && self.reconnect_within() == Some(Duration::ZERO) {
                self.health.silent(self.backup, now);
                return self.is_silent(&error.to_string());
            }
        }
        let hopeless = matches!(error, LinkError::OtherProcess(_))
            || self.breaks > self.caller.config.attempts;
        if !hopeless && self.any_has_buffers() {
            return self.connect(!one_less);
        }
        let open = self.shipments.iter().filter(|(_, s)| s.has_buffers());
        let lost: Vec<_> = open.map(|(id, _)| *id).collect();
        for id in lost {
            self.lose(id, &error.to_string());
        }
        (self.process, self.breaks, self.broken_at) = (None, 0, None);
    }

    fn poll_reads(&mut self, cx: &mut Context<'_>) -> bool {
        // What begins is polled before the task pauses: it begins where something is shipped, which is before this.
        if self.reads.is_idle() {
            return false;
        }
        let caller = &self.caller;
        let ready = self.reads.poll(cx, caller, &mut self.shipments);
        ready.iter().for_each(|id| self.make_ready_by_id(id));
        !ready.is_empty()
    }

    fn any_has_buffers(&self) -> bool {
        self.shipments.iter().any(|(_, s)| s.has_buffers())
    }

    fn lose(&mut self, id: CopyId, reason: &str) {
        if let Some(shipment) = self.shipments.remove(&id) {
            self.handle.traffic.lost(&id);
            shipment.set.lose(shipment.index, reason);
        }
    }

    /// Gathers what grew over all groups, in turn, into one submission.
    fn ship(&mut self) -> bool {
        if !matches!(self.way, Way::Up(_))
            || self.flying >= self.caller.config.in_flight_bytes
            || self.flights.len() >= SUBMISSIONS
        {
            return false;
        }
        let mut budget = self.caller.config.submission_bytes as usize;
        let mut to = self.landed.pop().unwrap_or_default();
        let mut writes = Vec::with_capacity(self.ready.len().min(WRITES));
        let mut bytes = 0;
        for _ in 0..self.ready.len() {
            if budget == 0 {
                break;
            }
            let Some(number) = self.ready.pop_front() else {
                break;
            };
            let Some(shipment) = self.shipments.at(number) else {
                continue;
            };
            shipment.queued = false;
            if !shipment.has_buffers() {
                continue;
            }
            let id = shipment.set.id();
            let most = budget.min(self.caller.config.turn_bytes as usize);
            let gathered = shipment.gather(most, &mut writes);
            if gathered.more && gathered.uncovered.is_none() {
                shipment.queued = true;
                self.ready.push_back(number);
            }
            if let Some(range) = gathered.on_disk {
                self.reads.begin(&self.caller, shipment, range);
            }
            if let Some((address, least)) = gathered.uncovered {
                self.open(id, address, least, false);
            }
            budget = budget.saturating_sub(gathered.bytes as usize);
            bytes += gathered.bytes;
            if gathered.bytes > 0 {
                to.push((number, id, gathered.to));
            }
        }
        if writes.is_empty() {
            self.landed.push(to);
            return false;
        }
        let Way::Up(link) = &mut self.way else {
            return false;
        };
        match link.submit(writes) {
            Ok(submission) => {
                for (number, id, to) in &to {
                    let Some(shipment) = self.shipments.of(*number, id) else {
                        continue;
                    };
                    shipment.shipped(*to);
                    if !shipment.opening
                        && let Some(address) = shipment.next_wanted(&self.caller.config)
                    {
                        self.open(*id, address, 0, true);
                    }
                }
                self.flying += bytes;
                self.flights.push_back(Flight {
                    number: submission,
                    bytes,
                    to,
                });
                true
            }
            Err(LinkError::Full(_)) => {
                // The next completion brings another turn.
                to.iter().for_each(|(number, ..)| self.make_ready(*number));
                false
            }
            Err(error) => {
                self.broken(&error);
                true
            }
        }
    }
}
