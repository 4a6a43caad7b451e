//! A simulated cluster: tasks, time, nodes and a network, all decided by one seed.
//!
//! The network is worse than [`Link`](super::Link) allows where that must not matter: pieces of
//! writes land in any order, after the link has broken, after another has taken its place, and at a
//! process that is dead; requests and replies are lost, late, and come twice. It keeps the one
//! promise: what completes has landed, in the memory that the incarnation names. Where that memory
//! dies with its process ([`Sim::kill_with_memory`]), writes complete at the dead process and have
//! arrived nowhere, and its next start is another incarnation.
//!
//! Run twice with one seed, a program has the same log.

mod network;
mod node;
mod once;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use crate::backup::Limits;
use crate::faults::Faults;
use crate::ids::BrokerId;
use crate::pace::draw;
use crate::runtime::Runtime;
use crate::transport::Pending;
use network::Wire;
use node::Node;
use once::Once;

pub use network::SimTransport;
pub use node::MemoryFate;

/// How bad the network is. Chances are of 1,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storm {
    /// A request or a reply is lost.
    pub lost: u64,
    /// A request comes twice.
    pub twice: u64,
    /// A submission breaks its link.
    pub breaks: u64,
    /// Longest way of a message or a piece.
    pub delay: Duration,
}

impl Storm {
    /// Delays, and nothing else.
    pub const CALM: Self = Self {
        lost: 0,
        twice: 0,
        breaks: 0,
        delay: Duration::from_millis(2),
    };
    /// Something goes wrong now and then.
    pub const FAIR: Self = Self {
        lost: 5,
        twice: 20,
        breaks: 5,
        delay: Duration::from_millis(5),
    };
    /// Everything goes wrong at times.
    pub const ROUGH: Self = Self {
        lost: 30,
        twice: 50,
        breaks: 30,
        delay: Duration::from_millis(20),
    };
}

/// Chance that is the same everywhere and for ever.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that fall as `seed` says.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `end`, which must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        draw(&mut self.0) % end.max(1)
    }

    /// True `of_1000` times in 1,000.
    pub fn chance(&mut self, of_1000: u64) -> bool {
        self.below(1000) < of_1000
    }

    /// A time up to `longest`.
    pub fn time(&mut self, longest: Duration) -> Duration {
        Duration::from_nanos(self.below(longest.as_nanos() as u64 + 1))
    }
}

/// The simulated cluster. Clones are the same one.
#[derive(Clone)]
pub struct Sim {
    world: Arc<Mutex<World>>,
    ready: Arc<Mutex<VecDeque<u64>>>,
}

struct World {
    dice: Dice,
    storm: Storm,
    faults: Faults,
    limits: Limits,
    now: Duration,
    events: BTreeMap<(Duration, u64), Event>,
    /// Numbers tasks, events and wires.
    next: u64,
    tasks: BTreeMap<u64, Task>,
    nodes: BTreeMap<BrokerId, Node>,
    wires: BTreeMap<u64, Wire>,
    /// Nothing gets from the one to the other.
    cut: BTreeSet<(BrokerId, BrokerId)>,
    log: Option<Vec<String>>,
}

type Event = Box<dyn FnOnce(&Sim) + Send>;

struct Task {
    /// Where it runs, and in which life of that node; `None`: nowhere, it is the test's own.
    at: Option<(BrokerId, u64)>,
    /// Taken out while it is polled.
    future: Option<Pending<()>>,
}

struct TaskWaker {
    task: u64,
    ready: Arc<Mutex<VecDeque<u64>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let mut ready = self.ready.lock();
        if !ready.contains(&self.task) {
            ready.push_back(self.task);
        }
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim").finish_non_exhaustive()
    }
}

impl World {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn after(&mut self, delay: Duration, event: impl FnOnce(&Sim) + Send + 'static) {
        let at = (self.now + delay, self.number());
        self.events.insert(at, Box::new(event));
    }

    fn delay(&mut self) -> Duration {
        let longest = self.storm.delay;
        self.dice.time(longest)
    }

    fn note(&mut self, what: fmt::Arguments<'_>) {
        let now = self.now;
        if let Some(log) = &mut self.log {
            log.push(format!("{:>9}us {what}", now.as_micros()));
        }
    }
}

impl Sim {
    /// An empty cluster whose fate is `seed`'s.
    pub fn new(seed: u64, storm: Storm, faults: Faults) -> Self {
        let world = World {
            dice: Dice::new(seed),
            storm,
            faults,
            limits: Limits::default(),
            now: Duration::ZERO,
            events: BTreeMap::new(),
            next: 0,
            tasks: BTreeMap::new(),
            nodes: BTreeMap::new(),
            wires: BTreeMap::new(),
            cut: BTreeSet::new(),
            log: None,
        };
        Self {
            world: Arc::new(Mutex::new(world)),
            ready: Arc::default(),
        }
    }

    /// Keeps a log from now on.
    pub fn keep_log(&self) {
        self.world.lock().log = Some(Vec::new());
    }

    /// The log so far.
    pub fn log(&self) -> Vec<String> {
        self.world.lock().log.clone().unwrap_or_default()
    }

    /// Adds a line to the log.
    pub fn note(&self, what: fmt::Arguments<'_>) {
        self.world.lock().note(what);
    }

    /// Changes how bad the network is.
    pub fn set_storm(&self, storm: Storm) {
        self.world.lock().storm = storm;
    }

    /// The network's own moods, for what else suffers from them.
    pub fn dice<T>(&self, throw: impl FnOnce(&mut Dice, Storm) -> T) -> T {
        let world = &mut *self.world.lock();
        throw(&mut world.dice, world.storm)
    }

    /// Tasks and time of node `at`, in its present life; of no node if `None`.
    pub fn runtime(&self, at: Option<BrokerId>) -> Arc<SimRuntime> {
        let world = self.world.lock();
        let life = |node| world.nodes.get(&node).map_or(0, |n: &Node| n.life);
        Arc::new(SimRuntime {
            sim: self.clone(),
            at: at.map(|node| (node, life(node))),
        })
    }

    /// Runs everything until `main` is done; `None` if nothing moves any more before that.
    pub fn run<T: Send + 'static>(
        &self,
        main: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let done = Once::new();
        let result = done.clone();
        self.spawn(None, Box::pin(async move { done.set(main.await) }));
        loop {
            if let Some(value) = result.take() {
                return Some(value);
            }
            if !self.step() {
                return None;
            }
        }
    }

    /// Tasks that have not come to their end.
    pub fn live_tasks(&self) -> usize {
        self.world.lock().tasks.len()
    }

    /// Drops all that is left: tasks and the cluster hold each other.
    pub fn end(&self) {
        let (tasks, events, wires, nodes) = {
            let world = &mut *self.world.lock();
            (
                std::mem::take(&mut world.tasks),
                std::mem::take(&mut world.events),
                std::mem::take(&mut world.wires),
                std::mem::take(&mut world.nodes),
            )
        };
        // Links notice that they are dropped; they must find the world unlocked.
        drop((tasks, events, wires, nodes));
    }

    fn spawn(&self, at: Option<(BrokerId, u64)>, future: Pending<()>) {
        let mut world = self.world.lock();
        if let Some((node, life)) = at
            && world.nodes.get(&node).is_none_or(|n| n.life != life)
        {
            // A task of a process that is dead never runs; it is dropped without the lock.
            drop(world);
            drop(future);
            return;
        }
        let task = world.number();
        world.tasks.insert(
            task,
            Task {
                at,
                future: Some(future),
            },
        );
        drop(world);
        self.ready.lock().push_back(task);
    }

    /// One task's turn, or else the next event; false if there is neither.
    fn step(&self) -> bool {
        if let Some((task, mut future)) = self.next_task() {
            let waker = Waker::from(Arc::new(TaskWaker {
                task,
                ready: self.ready.clone(),
            }));
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            let mut world = self.world.lock();
            match (polled, world.tasks.get_mut(&task)) {
                (Poll::Pending, Some(slot)) => slot.future = Some(future),
                // Done, or killed by its own doing.
                _ => {
                    world.tasks.remove(&task);
                    drop(world);
                    drop(future);
                }
            }
            return true;
        }
        let event = {
            let mut world = self.world.lock();
            match world.events.pop_first() {
                Some(((at, _), event)) => {
                    world.now = at;
                    event
                }
                None => return false,
            }
        };
        event(self);
        true
    }

    /// Any of the tasks that can go on, as the dice say.
    fn next_task(&self) -> Option<(u64, Pending<()>)> {
        let mut world = self.world.lock();
        let world = &mut *world;
        let mut ready = self.ready.lock();
        ready.retain(|task| world.tasks.contains_key(task));
        let runs: Vec<usize> = (0..ready.len())
            .filter(|at| {
                let task = world.tasks.get(&ready[*at]);
                let node = task
                    .and_then(|t| t.at)
                    .and_then(|(n, _)| world.nodes.get(&n));
                node.is_none_or(|node| !node.paused)
            })
            .collect();
        if runs.is_empty() {
            return None;
        }
        let at = runs[world.dice.below(runs.len() as u64) as usize];
        let task = ready.remove(at)?;
        let future = world.tasks.get_mut(&task)?.future.take()?;
        Some((task, future))
    }
}

/// Tasks and time of one node's process; tasks end with it.
#[derive(Debug)]
pub struct SimRuntime {
    sim: Sim,
    at: Option<(BrokerId, u64)>,
}

impl Runtime for SimRuntime {
    fn spawn(&self, task: Pending<()>) {
        self.sim.spawn(self.at, task);
    }

    fn sleep(&self, time: Duration) -> Pending<()> {
        let woken = Once::new();
        let wake = woken.clone();
        self.sim.world.lock().after(time, move |_| wake.set(()));
        Box::pin(woken)
    }

    fn now(&self) -> Duration {
        self.sim.world.lock().now
    }

    /// A disk takes as long as a message does. A process that is dead takes no step.
    fn off(&self, step: Box<dyn FnOnce() + Send>) -> Pending<()> {
        let over = Once::new();
        let ended = over.clone();
        let takes = self.sim.world.lock().delay();
        let waits = self.sleep(takes);
        self.spawn(Box::pin(async move {
            waits.await;
            step();
            ended.set(());
        }));
        Box::pin(over)
    }
}
