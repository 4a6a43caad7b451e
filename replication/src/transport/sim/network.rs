//! The wires between nodes, and what they do to bytes.

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::node::REAP;
use super::once::Once;
use super::{Sim, World};
use crate::backup::Region;
use crate::ids::{BrokerId, BufferKey, ProcessId};
use crate::transport::{
    CallError, Link, LinkError, Pending, Refusal, Reply, Request, Transport, Write,
};

/// Most submissions under way on one link.
const MAX_UNDER_WAY: usize = 32;
/// How often a message looks again whether a stopped process goes on.
const STOPPED: Duration = Duration::from_millis(20);

/// One link, as the network sees it.
pub(super) struct Wire {
    pub(super) from: BrokerId,
    pub(super) to: BrokerId,
    process: ProcessId,
    /// Ended at the backup: nothing completes any more.
    dead: bool,
    /// What the primary gets to know of that.
    error: Option<LinkError>,
    submitted: u64,
    /// Pieces that have not landed, by submission.
    missing: BTreeMap<u64, u64>,
    /// All up to here have landed, and the primary knows.
    completed: u64,
    told: u64,
    regions: BTreeMap<BufferKey, Region>,
    waker: Option<Waker>,
}

/// The simulated network, as one node sees it.
#[derive(Clone, Debug)]
pub struct SimTransport {
    sim: Sim,
    from: BrokerId,
}

impl Sim {
    /// The network as `from` sees it.
    pub fn transport(&self, from: BrokerId) -> SimTransport {
        SimTransport {
            sim: self.clone(),
            from,
        }
    }

    /// Ends the links that `which` names, and tells their primaries.
    pub(super) fn break_wires(&self, which: impl Fn(&Wire) -> bool, reason: &str) {
        let mut wakers = Vec::new();
        {
            let mut world = self.world.lock();
            for wire in world.wires.values_mut().filter(|wire| which(wire)) {
                let error = Sim::broken(wire.to, reason);
                wakers.extend(wire.end(error));
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    fn end_wire(&self, id: u64, error: LinkError) {
        let waker = {
            let mut world = self.world.lock();
            world.note(format_args!("wire {id} ends: {}", kind(&error)));
            let wire = world.wires.get_mut(&id);
            wire.and_then(|wire| wire.end(error))
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// A piece arrives.
    fn land(&self, id: u64, number: u64, key: BufferKey, offset: u64, bytes: &Bytes) {
        let mut world = self.world.lock();
        let world = &mut *world;
        let Some(wire) = world.wires.get_mut(&id) else {
            return;
        };
        let (from, to) = (wire.from, wire.to);
        if world.cut.contains(&(from, to)) {
            return world.gets_lost(id, to);
        }
        let swallowed = world.nodes.get(&to).is_some_and(|n| !n.alive && n.swallows);
        let region = match wire.regions.get(&key) {
            Some(region) => Ok(region.clone()),
            None => match world.nodes.get(&to).and_then(|node| node.store.as_ref()) {
                Some(store) if store.process() == wire.process => store.region(from, key),
                _ => Err(Refusal::Unknown),
            },
        };
        let placed = region.and_then(|region| {
            wire.regions.insert(key, region.clone());
            if swallowed {
                return Ok(());
            }
            if wire.dead {
                // Past a reconnect, a seal, or the start of another process: worse than any
                // transport, and still harmless, since each address receives one value only.
                region.place_stray(offset, bytes)
            } else {
                region.place(offset, bytes)
            }
        });
        let (dead, len) = (wire.dead, bytes.len());
        world.note(format_args!(
            "wire {id}: {len} bytes of submission {number} at {offset}, landed {}, link dead {dead}",
            placed.is_ok()
        ));
        let Some(wire) = world.wires.get_mut(&id).filter(|wire| !wire.dead) else {
            // It never completes.
            return;
        };
        if let Err(refusal) = placed {
            // The backup's side of the link is in error at once, the primary's a little later.
            wire.dead = true;
            let error = LinkError::Refused {
                backup: to,
                buffer: Some(key),
                reason: refusal.to_string(),
            };
            let delay = world.delay();
            return world.after(delay, move |sim| sim.end_wire(id, error));
        }
        let left = wire.missing.get_mut(&number);
        if left.is_some_and(|left| {
            *left -= 1;
            *left == 0
        }) {
            wire.missing.remove(&number);
        }
        let below = |first: &u64| first - 1;
        let landed = wire.missing.keys().next().map_or(wire.submitted, below);
        if landed > wire.completed {
            let delay = world.delay();
            world.after(delay, move |sim| sim.complete_wire(id, landed));
        }
    }

    /// The backup's word that all up to `number` has landed reaches the primary, unless the link
    /// has ended before.
    fn complete_wire(&self, id: u64, number: u64) {
        let waker = {
            let mut world = self.world.lock();
            let world = &mut *world;
            let Some(wire) = world.wires.get_mut(&id) else {
                return;
            };
            let to = wire.to;
            if wire.dead {
                return;
            }
            if world.cut.contains(&(to, wire.from)) {
                return world.gets_lost(id, to);
            }
            wire.completed = wire.completed.max(number);
            let waker = wire.waker.take();
            world.note(format_args!("wire {id}: completed {number}"));
            waker
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// A request arrives.
    fn deliver(
        &self,
        from: BrokerId,
        to: BrokerId,
        request: Request,
        reply: Once<Result<Reply, CallError>>,
    ) {
        let mut world = self.world.lock();
        let lost = CallError::Lost {
            backup: to,
            reason: "nobody listens".into(),
        };
        let node = world.nodes.get(&to).filter(|node| node.alive);
        let Some(node) = node else {
            drop(world);
            return reply.set(Err(lost));
        };
        if node.paused {
            return world.after(STOPPED, move |sim| sim.deliver(from, to, request, reply));
        }
        let Some(store) = node.store.clone() else {
            drop(world);
            return reply.set(Err(lost));
        };
        let name = request.name();
        let answer = store.handle(from, request);
        world.note(format_args!(
            "{from} asks {to} to {name}: {}",
            if answer.is_ok() { "done" } else { "refused" }
        ));
        let lost = world.storm.lost;
        if world.dice.chance(lost) || world.cut.contains(&(to, from)) {
            return;
        }
        let answer = answer.map_err(|refusal| CallError::Refused {
            backup: to,
            refusal,
        });
        let delay = world.delay();
        world.after(delay, move |_| reply.set(answer));
    }

    fn accept(
        &self,
        from: BrokerId,
        to: BrokerId,
        process: ProcessId,
        reply: Once<Result<Box<dyn Link>, LinkError>>,
    ) {
        let mut world = self.world.lock();
        let node = world.nodes.get(&to).filter(|node| node.alive);
        let Some(node) = node else {
            drop(world);
            return reply.set(Err(LinkError::Unreachable {
                backup: to,
                reason: "nobody listens".into(),
            }));
        };
        if node.paused {
            return world.after(STOPPED, move |sim| sim.accept(from, to, process, reply));
        }
        if node.store.as_ref().is_none_or(|s| s.process() != process) {
            drop(world);
            return reply.set(Err(LinkError::OtherProcess(to)));
        }
        if world.cut.contains(&(to, from)) {
            return;
        }
        // The old connection is destroyed first. Pieces of it that land all the same are harmless.
        let old: Vec<_> = world
            .wires
            .iter()
            .filter(|(_, wire)| (wire.from, wire.to) == (from, to))
            .map(|(id, _)| *id)
            .collect();
        let mut wakers = Vec::new();
        for id in old {
            if let Some(wire) = world.wires.get_mut(&id) {
                wakers.extend(wire.end(Sim::broken(to, "another link took its place")));
            }
        }
        let id = world.number();
        let wire = Wire {
            from,
            to,
            process,
            dead: false,
            error: None,
            submitted: 0,
            missing: BTreeMap::new(),
            completed: 0,
            told: 0,
            regions: BTreeMap::new(),
            waker: None,
        };
        world.wires.insert(id, wire);
        world.note(format_args!("wire {id} from {from} to {to}"));
        drop(world);
        wakers.into_iter().for_each(Waker::wake);
        reply.set(Ok(Box::new(SimLink {
            sim: self.clone(),
            id,
        })));
    }
}

impl World {
    /// What a cut swallows never comes, even if it is healed: the link ends when its time is over.
    fn gets_lost(&mut self, id: u64, to: BrokerId) {
        let error = Sim::broken(to, "no acknowledgement");
        self.after(REAP, move |sim| sim.end_wire(id, error));
    }
}

impl Wire {
    /// Ends the link; who is to be woken by that.
    fn end(&mut self, error: LinkError) -> Option<Waker> {
        self.dead = true;
        self.error.get_or_insert(error);
        self.waker.take()
    }
}

impl Transport for SimTransport {
    fn connect(
        &self,
        to: BrokerId,
        process: ProcessId,
    ) -> Pending<Result<Box<dyn Link>, LinkError>> {
        let reply = Once::new();
        let answer = reply.clone();
        let from = self.from;
        let mut world = self.sim.world.lock();
        // Over a cut nothing comes back; the caller's patience ends that.
        if !world.cut.contains(&(from, to)) {
            let delay = world.delay();
            world.after(delay, move |sim| sim.accept(from, to, process, answer));
        }
        Box::pin(reply)
    }

    fn call(&self, to: BrokerId, request: Request) -> Pending<Result<Reply, CallError>> {
        let reply = Once::new();
        let from = self.from;
        let mut world = self.sim.world.lock();
        let storm = world.storm;
        if world.cut.contains(&(from, to)) || world.dice.chance(storm.lost) {
            return Box::pin(reply);
        }
        let times = 1 + u64::from(world.dice.chance(storm.twice));
        for _ in 0..times {
            let (request, answer) = (request.clone(), reply.clone());
            let delay = world.delay();
            world.after(delay, move |sim| sim.deliver(from, to, request, answer));
        }
        Box::pin(reply)
    }
}

struct SimLink {
    sim: Sim,
    id: u64,
}

impl Link for SimLink {
    fn submit(&mut self, writes: Vec<Write>) -> Result<u64, LinkError> {
        let id = self.id;
        let mut world = self.sim.world.lock();
        let world = &mut *world;
        let Some(wire) = world.wires.get_mut(&id) else {
            return Err(Sim::broken(BrokerId(0), "no such link"));
        };
        if let Some(error) = &wire.error {
            return Err(error.clone());
        }
        if wire.missing.len() >= MAX_UNDER_WAY {
            return Err(LinkError::Full(wire.to));
        }
        wire.submitted += 1;
        let (number, to) = (wire.submitted, wire.to);
        let mut pieces = Vec::new();
        for write in &writes {
            cut_up(world, write, &mut pieces);
        }
        if let Some(wire) = world.wires.get_mut(&id) {
            wire.missing.insert(number, pieces.len() as u64);
        }
        // A break loses some of what is under way, not all, and nothing completes after it.
        let breaks = world.dice.chance(world.storm.breaks);
        for (key, offset, bytes) in pieces {
            if breaks && world.dice.chance(500) {
                continue;
            }
            let mut delay = world.delay();
            if world.dice.chance(50) {
                // A straggler: it lands long after, whatever has happened meanwhile.
                delay += 20 * world.delay();
            }
            world.after(delay, move |sim| sim.land(id, number, key, offset, &bytes));
        }
        if breaks {
            let delay = world.delay();
            let error = Sim::broken(to, "the network broke it");
            world.after(delay, move |sim| sim.end_wire(id, error));
        }
        Ok(number)
    }

    fn poll_completed(&mut self, cx: &mut Context<'_>) -> Poll<Result<u64, LinkError>> {
        let mut world = self.sim.world.lock();
        let Some(wire) = world.wires.get_mut(&self.id) else {
            return Poll::Ready(Err(Sim::broken(BrokerId(0), "no such link")));
        };
        if wire.completed > wire.told {
            wire.told = wire.completed;
            return Poll::Ready(Ok(wire.told));
        }
        if let Some(error) = &wire.error {
            return Poll::Ready(Err(error.clone()));
        }
        wire.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for SimLink {
    fn drop(&mut self) {
        let mut world = self.sim.world.lock();
        if let Some(wire) = world.wires.get_mut(&self.id) {
            // What is under way may still land.
            let _own = wire.end(Sim::broken(wire.to, "dropped"));
        }
    }
}

/// Cuts a write into pieces that land by themselves.
fn cut_up(world: &mut World, write: &Write, out: &mut Vec<(BufferKey, u64, Bytes)>) {
    let mut joined = BytesMut::with_capacity(write.len() as usize);
    write
        .parts
        .iter()
        .for_each(|part| joined.extend_from_slice(part));
    let (mut left, mut offset) = (joined.freeze(), write.offset);
    while !left.is_empty() {
        let len = if out.len() < 256 && world.dice.chance(500) {
            1 + world.dice.below(left.len() as u64) as usize
        } else {
            left.len()
        };
        out.push((write.buffer, offset, left.split_to(len)));
        offset += len as u64;
    }
}

/// An error without the parts that differ between two runs.
fn kind(error: &LinkError) -> &'static str {
    match error {
        LinkError::Full(_) => "full",
        LinkError::Unreachable { .. } => "unreachable",
        LinkError::OtherProcess(_) => "other process",
        LinkError::Refused { .. } => "refused",
        LinkError::Broken { .. } => "broken",
    }
}
