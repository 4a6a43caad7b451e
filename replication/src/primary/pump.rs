//! One pump per backup: ships what grew, of all groups, as one submission.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use super::Config;
use super::copy_set::CopySet;
use super::shipment::Shipment;
use crate::health::Health;
use crate::ids::{BackupId, CopyId, ProcessId};
use crate::runtime::{RuntimeRef, within};
use crate::transport::{
    CallError, Link, LinkError, Opened, Pending, Refusal, Reply, Request, TransportRef,
};

/// What others tell a pump.
#[derive(Debug, Default)]
pub struct PumpHandle {
    inbox: Mutex<Inbox>,
}

#[derive(Debug, Default)]
struct Inbox {
    joined: Vec<(Arc<CopySet>, usize)>,
    left: Vec<CopyId>,
    grown: BTreeSet<CopyId>,
    waker: Option<Waker>,
}

impl PumpHandle {
    /// Ships a group from now on; `index` is the backup's number in its set.
    pub(super) fn join(&self, set: Arc<CopySet>, index: usize) {
        self.tell(|inbox| inbox.joined.push((set, index)));
    }

    /// Ships a group no more.
    pub(super) fn leave(&self, copy: CopyId) {
        self.tell(|inbox| inbox.left.push(copy));
    }

    /// A group has grown.
    pub(super) fn grew(&self, copy: CopyId) {
        self.tell(|inbox| {
            inbox.grown.insert(copy);
        });
    }

    fn tell(&self, what: impl FnOnce(&mut Inbox)) {
        let waker = {
            let mut inbox = self.inbox.lock();
            what(&mut inbox);
            inbox.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

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
    /// How far each group is complete once it does.
    to: Vec<(CopyId, u64)>,
}

/// The task behind a [`PumpHandle`]; runs until it is dropped.
pub(super) struct Pump {
    pub(super) me: BackupId,
    pub(super) backup: BackupId,
    pub(super) config: Config,
    pub(super) transport: TransportRef,
    pub(super) runtime: RuntimeRef,
    pub(super) health: Arc<Health>,
    handle: Arc<PumpHandle>,
    shipments: BTreeMap<CopyId, Shipment>,
    /// Groups that may have something to ship, in turn.
    ready: VecDeque<CopyId>,
    openings: Vec<(CopyId, Pending<Result<Opened, CallError>>)>,
    way: Way,
    /// The process in which the groups' buffers are.
    process: Option<ProcessId>,
    /// Connections that broke since the last completion.
    breaks: u32,
    flights: VecDeque<Flight>,
    flying: u64,
}

impl Pump {
    pub(super) fn new(
        me: BackupId,
        backup: BackupId,
        config: Config,
        transport: TransportRef,
        runtime: RuntimeRef,
        health: Arc<Health>,
    ) -> Self {
        Self {
            me,
            backup,
            config,
            transport,
            runtime,
            health,
            handle: Arc::default(),
            shipments: BTreeMap::new(),
            ready: VecDeque::new(),
            openings: Vec::new(),
            way: Way::None,
            process: None,
            breaks: 0,
            flights: VecDeque::new(),
            flying: 0,
        }
    }

    pub(super) fn handle(&self) -> Arc<PumpHandle> {
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
            if !moved {
                return Poll::Pending;
            }
        }
    }

    fn take_inbox(&mut self, cx: &mut Context<'_>) -> bool {
        let (joined, left, grown) = {
            let mut inbox = self.handle.inbox.lock();
            inbox.waker = Some(cx.waker().clone());
            (
                std::mem::take(&mut inbox.joined),
                std::mem::take(&mut inbox.left),
                std::mem::take(&mut inbox.grown),
            )
        };
        let moved = !(joined.is_empty() && left.is_empty() && grown.is_empty());
        for (set, index) in joined {
            let id = set.id();
            self.shipments.insert(id, Shipment::new(set, index));
            self.open(id, 0, 0);
        }
        for id in left {
            self.shipments.remove(&id);
        }
        for id in grown {
            self.make_ready(id);
        }
        moved
    }

    fn make_ready(&mut self, id: CopyId) {
        if let Some(shipment) = self.shipments.get_mut(&id)
            && !std::mem::replace(&mut shipment.queued, true)
        {
            self.ready.push_back(id);
        }
    }

    /// Asks the backup for buffers.
    fn open(&mut self, id: CopyId, address: u64, least: u32) {
        let Some(shipment) = self.shipments.get_mut(&id) else {
            return;
        };
        let asked = self.config.buffer_bytes;
        let Some(request) = shipment.request(self.me, address, asked, least) else {
            return;
        };
        if std::mem::replace(&mut shipment.opening, true) {
            return;
        }
        let (transport, runtime) = (self.transport.clone(), self.runtime.clone());
        let (backup, config) = (self.backup, self.config);
        let call = async move {
            let mut attempt = 0;
            loop {
                match call(&transport, &*runtime, config.call_timeout, backup, &request).await {
                    Ok(Reply::Opened(opened)) => return Ok(opened),
                    Ok(other) => {
                        return Err(CallError::Lost {
                            backup,
                            reason: format!("it answered open with {other:?}"),
                        });
                    }
                    Err(CallError::Lost { .. }) if attempt < config.attempts => {
                        attempt += 1;
                        runtime.sleep(config.pause).await;
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        self.openings.push((id, Box::pin(call)));
    }

    fn poll_openings(&mut self, cx: &mut Context<'_>) -> bool {
        let mut done = Vec::new();
        self.openings
            .retain_mut(|(id, call)| match call.as_mut().poll(cx) {
                Poll::Ready(result) => {
                    done.push((*id, result));
                    false
                }
                Poll::Pending => true,
            });
        let moved = !done.is_empty();
        for (id, result) in done {
            match result {
                Ok(opened) => self.opened(id, &opened),
                Err(error) => {
                    if error.refusal().is_none() {
                        self.health.failure(self.backup, self.runtime.now());
                    }
                    self.lose(id, &error.to_string());
                }
            }
        }
        moved
    }

    fn opened(&mut self, id: CopyId, opened: &Opened) {
        self.health.success(self.backup);
        let others = self.shipments.values().any(Shipment::has_buffers);
        if self.process != Some(opened.process) {
            if others {
                // Either this reply or the link is of a process that has ended; the link will say.
                let reason = "its backup was restarted";
                return self.lose(id, reason);
            }
            self.process = Some(opened.process);
            self.way = Way::None;
            self.land_all();
        }
        if let Some(shipment) = self.shipments.get_mut(&id) {
            shipment.opening = false;
            shipment.add_buffers(&opened.buffers);
            self.make_ready(id);
        }
        if matches!(self.way, Way::None) {
            self.connect(false);
        }
    }

    fn connect(&mut self, after_break: bool) {
        let Some(process) = self.process else {
            return;
        };
        let (transport, runtime) = (self.transport.clone(), self.runtime.clone());
        let (backup, config) = (self.backup, self.config);
        self.way = Way::Connecting(Box::pin(async move {
            if after_break {
                runtime.sleep(config.pause).await;
            }
            let connected = transport.connect(backup, process);
            let late = || LinkError::Unreachable {
                backup,
                reason: "it did not answer in time".into(),
            };
            let connected = within(&*runtime, config.call_timeout, connected).await;
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
                    let all: Vec<_> = self.shipments.keys().copied().collect();
                    all.into_iter().for_each(|id| self.make_ready(id));
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
        self.breaks = 0;
        self.health.success(self.backup);
        while let Some(flight) = self.flights.pop_front_if(|flight| flight.number <= number) {
            self.flying -= flight.bytes;
            for (id, to) in flight.to {
                if let Some(shipment) = self.shipments.get_mut(&id) {
                    shipment.completed = shipment.completed.max(to);
                    shipment.set.completed(shipment.index, to);
                }
            }
        }
    }

    /// Nothing under way counts: what did not complete is sent again, or given up.
    fn land_all(&mut self) {
        self.flights.clear();
        self.flying = 0;
        self.shipments.values_mut().for_each(Shipment::set_back);
    }

    fn broken(&mut self, error: &LinkError) {
        self.way = Way::None;
        self.land_all();
        self.breaks += 1;
        if let LinkError::Refused {
            buffer: Some(key), ..
        } = error
        {
            let refused = self.shipments.iter().find(|(_, s)| s.owns(*key));
            if let Some(id) = refused.map(|(id, _)| *id) {
                self.lose(id, &error.to_string());
                self.breaks = 0;
            }
        } else {
            self.health.failure(self.backup, self.runtime.now());
        }
        let hopeless =
            matches!(error, LinkError::OtherProcess(_)) || self.breaks > self.config.attempts;
        if !hopeless && self.shipments.values().any(Shipment::has_buffers) {
            return self.connect(true);
        }
        let open = self.shipments.iter().filter(|(_, s)| s.has_buffers());
        let lost: Vec<_> = open.map(|(id, _)| *id).collect();
        for id in lost {
            self.lose(id, &error.to_string());
        }
        self.process = None;
        self.breaks = 0;
    }

    fn lose(&mut self, id: CopyId, reason: &str) {
        if let Some(shipment) = self.shipments.remove(&id) {
            shipment.set.lose(shipment.index, reason);
        }
    }

    /// Gathers what grew over all groups, in turn, into one submission.
    fn ship(&mut self) -> bool {
        if !matches!(self.way, Way::Up(_)) || self.flying >= self.config.in_flight_bytes {
            return false;
        }
        let mut budget = self.config.submission_bytes as usize;
        let (mut writes, mut to, mut bytes) = (Vec::new(), Vec::new(), 0);
        for _ in 0..self.ready.len() {
            if budget == 0 {
                break;
            }
            let Some(id) = self.ready.pop_front() else {
                break;
            };
            let Some(shipment) = self.shipments.get_mut(&id) else {
                continue;
            };
            shipment.queued = false;
            if !shipment.has_buffers() {
                continue;
            }
            let gathered = shipment.gather(budget.min(self.config.turn_bytes as usize));
            if let Some((address, least)) = gathered.uncovered {
                self.open(id, address, least);
            } else if gathered.more {
                shipment.queued = true;
                self.ready.push_back(id);
            }
            budget = budget.saturating_sub(gathered.bytes as usize);
            bytes += gathered.bytes;
            if !gathered.writes.is_empty() {
                writes.extend(gathered.writes);
                to.push((id, gathered.to));
            }
        }
        if writes.is_empty() {
            return false;
        }
        let Way::Up(link) = &mut self.way else {
            return false;
        };
        match link.submit(writes) {
            Ok(number) => {
                for (id, to) in &to {
                    if let Some(shipment) = self.shipments.get_mut(id) {
                        shipment.shipped(*to);
                    }
                }
                self.flying += bytes;
                self.flights.push_back(Flight { number, bytes, to });
                true
            }
            Err(LinkError::Full(_)) => {
                // The next completion brings another turn.
                to.into_iter().for_each(|(id, _)| self.make_ready(id));
                false
            }
            Err(error) => {
                self.broken(&error);
                true
            }
        }
    }
}

/// A control call with a bound on its time.
pub(crate) async fn call(
    transport: &TransportRef,
    runtime: &dyn crate::runtime::Runtime,
    timeout: Duration,
    backup: BackupId,
    request: &Request,
) -> Result<Reply, CallError> {
    let reply = within(runtime, timeout, transport.call(backup, request.clone())).await;
    reply.unwrap_or_else(|| {
        Err(CallError::Lost {
            backup,
            reason: format!("{} took longer than {timeout:?}", request.name()),
        })
    })
}

/// True if the refusal says that another owner is at work.
pub(crate) fn is_sealed(error: &CallError) -> bool {
    matches!(error.refusal(), Some(Refusal::Sealed { .. }))
}
