//! What the simulated machines are at any moment.

use std::cell::{Cell, UnsafeCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use super::connections::{Connections, Kind, Nanos, NetworkEvent, Relay};
use super::names::Listings;
use super::threads::{Thread, Threads};
use super::unflushed::Unflushed;
use crate::dice::Dice;

/// How many lines of log a run keeps at most.
const MOST_LINES: usize = 2_000_000;

/// What the clock says when the machines begin to run.
pub(super) const BEGIN: Nanos = 1_000_000_000_000;

/// A simulated machine with one process.
#[derive(Default)]
pub(super) struct Node {
    /// Counts its processes.
    pub(super) life: u32,
    pub(super) paused: bool,
    /// What its wall clock is ahead, in nanoseconds, and what it gains or loses with each second of time, in millionths.
    pub(super) skew: i64,
    pub(super) drift: i64,
    /// The file that tells which boot it is.
    pub(super) boot_id: Option<CString>,
    pub(super) next_port: u16,
    pub(super) trouble: DiskTrouble,
}

/// How the network is. Times are microseconds, chances are of 100,000.
#[derive(Clone, Copy, Debug)]
pub struct NetworkMood {
    /// Shortest way of a message.
    pub least: u64,
    /// Longest way of nearly all messages.
    pub most: u64,
    /// A message that is much later than that.
    pub straggles: u64,
    /// Longest way of these.
    pub longest: u64,
    /// A message that ends its connection.
    pub breaks: u64,
}

/// How long writes to files take. Times are microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskMood {
    /// Longest time of nearly all writes; 0: none takes any.
    pub most: u64,
    /// Of 1,000 writes, those for which the disk stands still.
    pub stalls: u64,
    /// For so long at most.
    pub longest: u64,
}

/// What a machine's disk does wrong, and says so. Chances are of 1,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskTrouble {
    /// No byte more has room.
    pub full: bool,
    /// A write fails.
    pub writes: u64,
    /// A flush fails.
    pub flushes: u64,
}

impl DiskTrouble {
    pub(super) fn is_any(self) -> bool {
        self != Self::default()
    }
}

pub(super) enum Event {
    Network(NetworkEvent),
    /// A timer that is a file runs out, if it was not set anew.
    Timer {
        fd: i32,
        set: u64,
    },
}

pub(super) struct World {
    pub(super) now: Nanos,
    /// Which thread runs next, and how long things take.
    pub(super) dice: Dice,
    /// What programs get who ask the system for chance.
    pub(super) random: Dice,
    pub(super) threads: Threads,
    /// By what libc calls them.
    pub(super) by_handle: BTreeMap<u64, u32>,
    pub(super) nodes: BTreeMap<u32, Node>,
    pub(super) events: BTreeMap<(Nanos, u64), Event>,
    pub(super) numbers: u64,
    pub(super) mood: NetworkMood,
    pub(super) disk: DiskMood,
    /// Open files that are written around the page cache.
    pub(super) around: BTreeSet<i32>,
    pub(super) listings: Listings,
    /// What a loss of power takes, where machines lose that.
    pub(super) unflushed: Option<Unflushed>,
    /// Nothing gets from the one to the other.
    pub(super) cuts: BTreeSet<(u32, u32)>,
    /// What the way from one machine to another takes longer than others.
    pub(super) slow: BTreeMap<(u32, u32), Nanos>,
    pub(super) connections: Connections,
    /// Files may have become ready since they were last looked at.
    pub(super) stirred: bool,
    /// Ends of connections whose processes have written, or closed them, since they were last looked at.
    pub(super) touched: BTreeSet<Relay>,
    /// How many ask that no turn is given away where others are woken.
    pub(super) calm: u32,
    /// Folds every decision in.
    pub(super) digest: u64,
    pub(super) steps: u64,
    pub(super) lines: Vec<String>,
    /// Threads that kept a processor busy for nothing.
    pub(super) spinning: Vec<String>,
    pub(super) trace: bool,
}

struct Shared(UnsafeCell<Option<Box<World>>>);

// SAFETY: only the thread that has the turn reaches it, and turns are passed on by atomics.
unsafe impl Sync for Shared {}

static WORLD: Shared = Shared(UnsafeCell::new(None));
/// The simulation runs.
static ACTIVE: AtomicBool = AtomicBool::new(false);

thread_local! {
    static ME: Cell<u32> = const { Cell::new(0) };
}

/// The number of this thread; 0 if it is not simulated.
pub(super) fn me() -> u32 {
    if ACTIVE.load(Ordering::Relaxed) {
        ME.get()
    } else {
        0
    }
}

pub(super) fn set_me(number: u32) {
    ME.set(number);
}

pub(super) fn activate(world: Option<Box<World>>) {
    let active = world.is_some();
    if active {
        // SAFETY: nothing is simulated yet, so nobody else looks.
        unsafe { *WORLD.0.get() = world };
    }
    ACTIVE.store(active, Ordering::SeqCst);
}

/// What this thread owns while it has the turn. The reference must not be kept across a call that gives the turn away.
pub(super) fn world() -> &'static mut World {
    // SAFETY: callers run simulated, so this thread has the turn and nobody else looks at the world; no caller holds
    // one reference while it asks for another.
    unsafe { (*WORLD.0.get()).as_mut().expect("a simulated thread runs") }
}

impl World {
    pub(super) fn new(seed: u64, trace: bool) -> Self {
        Self {
            now: BEGIN,
            dice: Dice::new(seed, "schedule"),
            random: Dice::new(seed, "random"),
            threads: Threads::default(),
            by_handle: BTreeMap::new(),
            nodes: BTreeMap::new(),
            events: BTreeMap::new(),
            numbers: 0,
            mood: NetworkMood {
                least: 50,
                most: 400,
                straggles: 0,
                longest: 1_000,
                breaks: 0,
            },
            disk: DiskMood::default(),
            around: BTreeSet::new(),
            listings: Listings::default(),
            unflushed: None,
            cuts: BTreeSet::new(),
            slow: BTreeMap::new(),
            connections: Connections::default(),
            stirred: true,
            touched: BTreeSet::new(),
            calm: 0,
            digest: 0xcbf2_9ce4_8422_2325,
            steps: 0,
            lines: Vec::new(),
            spinning: Vec::new(),
            trace,
        }
    }

    pub(super) fn node(&mut self, node: u32) -> &mut Node {
        self.nodes.entry(node).or_insert_with(|| Node {
            next_port: 40_000,
            ..Node::default()
        })
    }

    /// The machine of the thread that runs.
    pub(super) fn here(&self) -> u32 {
        self.threads.get(me()).map_or(0, |thread| thread.node)
    }

    /// What a descriptor is, if it is not what the system takes it for.
    pub(super) fn kind(&self, fd: i32) -> Option<Kind> {
        self.connections
            .descriptors
            .0
            .get(&fd)
            .map(|found| found.kind)
    }

    /// A process has done something to a descriptor.
    pub(super) fn touch(&mut self, fd: i32) {
        self.stirred = true;
        if let Some(Kind::Connected(number, end)) = self.kind(fd) {
            self.touched.insert((number, end));
        }
    }

    pub(super) fn after(&mut self, delay: Nanos, event: Event) {
        self.numbers += 1;
        self.events.insert((self.now + delay, self.numbers), event);
    }

    /// A time of `least` to `most` microseconds.
    pub(super) fn micros(&mut self, least: u64, most: u64) -> Nanos {
        self.dice.between(least * 1000, most * 1000)
    }

    /// What happened becomes part of what two runs of one seed have in common.
    pub(super) fn note(&mut self, what: fmt::Arguments<'_>) {
        if self.trace {
            let line = format!("{} {what}", self.now);
            self.fold(line.as_bytes());
            self.line(line);
        }
    }

    pub(super) fn fold(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.digest = (self.digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub(super) fn line(&mut self, line: String) {
        if self.lines.len() < MOST_LINES {
            self.lines.push(line);
        }
    }

    /// Whether a thread belongs to a process that runs.
    pub(super) fn lives(&self, thread: &Thread) -> bool {
        self.nodes
            .get(&thread.node)
            .is_some_and(|node| node.life == thread.life)
    }

    /// Whether a thread may run when it is ready.
    pub(super) fn may_run(&self, thread: &Thread) -> bool {
        let node = self.nodes.get(&thread.node);
        node.is_some_and(|node| node.life == thread.life && !node.paused)
    }
}
