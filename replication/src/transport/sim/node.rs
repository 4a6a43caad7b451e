//! Nodes: processes that are killed, stopped and started again, over memory that may outlive them.

use std::sync::Arc;
use std::time::Duration;

use super::Sim;
use crate::backup::{Limits, ReplicaStore, SimMemory, StoreStats};
use crate::ids::BrokerId;
use crate::transport::LinkError;

/// Longest time for which the connections of a dead process go on taking writes.
pub(super) const REAP: Duration = Duration::from_millis(100);

pub(super) struct Node {
    memory: Arc<SimMemory>,
    /// The process's store. After its death it stays until its connections are gone: one-sided
    /// writes go on landing.
    pub(super) store: Option<Arc<ReplicaStore>>,
    pub(super) alive: bool,
    pub(super) paused: bool,
    /// Its memory died with its process: what arrives completes, and is nowhere.
    pub(super) swallows: bool,
    /// Counts its processes.
    pub(super) life: u64,
}

/// What a restarted process finds of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryFate {
    /// All of it: the process alone had died.
    Kept,
    /// Shared memory was emptied while the machine ran on.
    Vanished,
    /// The machine lost power; what was flushed to disk is there.
    PowerLost,
    /// The machine lost power, and comes back with another disk, which is empty.
    DiskReplaced,
}

impl Sim {
    /// Adds a node and starts its backup store.
    pub fn add_node(&self, node: BrokerId) {
        let mut world = self.world.lock();
        let seed = world.dice.below(u64::MAX);
        let memory = SimMemory::new(seed);
        world.nodes.insert(
            node,
            Node {
                memory,
                store: None,
                alive: false,
                paused: false,
                swallows: false,
                life: 0,
            },
        );
        drop(world);
        self.start_node(node, MemoryFate::Kept);
    }

    /// What stores may hold that start from now on.
    pub fn set_limits(&self, limits: Limits) {
        self.world.lock().limits = limits;
    }

    /// Kills a node's process whose memory dies with it, while its connections live on for a moment:
    /// writes complete without having arrived anywhere. When it starts again its store is empty,
    /// and another one.
    pub fn kill_with_memory(&self, node: BrokerId) {
        if let Some(found) = self.world.lock().nodes.get_mut(&node) {
            found.swallows = found.alive;
        }
        self.kill(node);
    }

    /// Kills a node's process. Its connections end a while later; until then writes land, and
    /// complete.
    pub fn kill(&self, node: BrokerId) {
        let mut world = self.world.lock();
        world.note(format_args!("{node} is killed"));
        let Some(dead) = world.nodes.get_mut(&node) else {
            return;
        };
        dead.alive = false;
        dead.paused = false;
        dead.life += 1;
        let life = dead.life;
        let tasks: Vec<_> = world
            .tasks
            .extract_if(.., |_, task| task.at.is_some_and(|(at, _)| at == node))
            .collect();
        let reap = world.dice.time(REAP);
        world.after(reap, move |sim| sim.reap(node, life));
        drop(world);
        // Links notice that they are dropped; they must find the world unlocked.
        drop(tasks);
    }

    /// The last connections of a dead process end.
    fn reap(&self, node: BrokerId, life: u64) {
        let mut world = self.world.lock();
        let Some(dead) = world.nodes.get_mut(&node) else {
            return;
        };
        if dead.alive || dead.life != life {
            return;
        }
        dead.store = None;
        drop(world);
        self.break_wires(|wire| wire.to == node, "its process is gone");
    }

    /// Starts a node's process over what is left of its memory, after its predecessor's connections
    /// are gone.
    pub fn start_node(&self, node: BrokerId, fate: MemoryFate) {
        let life = self.world.lock().nodes.get(&node).map(|n| n.life);
        if let Some(life) = life {
            self.reap(node, life);
        }
        let mut world = self.world.lock();
        world.note(format_args!("{node} starts, memory {fate:?}"));
        let (faults, limits) = (world.faults, world.limits);
        let Some(found) = world.nodes.get_mut(&node) else {
            return;
        };
        if found.alive {
            return;
        }
        let swallowed = std::mem::take(&mut found.swallows);
        match fate {
            MemoryFate::Kept if swallowed => found.memory.vanish(),
            MemoryFate::Kept => {}
            MemoryFate::Vanished => found.memory.vanish(),
            MemoryFate::PowerLost => found.memory.crash_machine(),
            MemoryFate::DiskReplaced => found.memory.replace_disk(&faults),
        }
        match ReplicaStore::start(found.memory.clone(), limits, faults) {
            Ok(store) => {
                found.store = Some(store);
                found.alive = true;
                found.life += 1;
            }
            Err(error) => {
                let text = error.to_string();
                world.note(format_args!("{node} does not start: {text}"));
            }
        }
    }

    /// True if the node's process runs, stopped or not.
    pub fn is_alive(&self, node: BrokerId) -> bool {
        self.world.lock().nodes.get(&node).is_some_and(|n| n.alive)
    }

    /// What the node's store holds and was asked; `None` while it has none.
    pub fn stats(&self, node: BrokerId) -> Option<StoreStats> {
        let store = self.world.lock().nodes.get(&node)?.store.clone();
        store.map(|store| store.stats())
    }

    /// Stops a process without ending it (SIGSTOP): it runs no task and answers nothing, and
    /// one-sided writes go on landing in it.
    pub fn pause(&self, node: BrokerId, paused: bool) {
        let mut world = self.world.lock();
        world.note(format_args!("{node} paused: {paused}"));
        if let Some(found) = world.nodes.get_mut(&node) {
            found.paused = paused && found.alive;
        }
    }

    /// Lets nothing pass from one node to another any more.
    pub fn cut(&self, from: BrokerId, to: BrokerId) {
        let mut world = self.world.lock();
        world.note(format_args!("cut from {from} to {to}"));
        world.cut.insert((from, to));
        drop(world);
        // What is under way finds out when its own time is over.
        let delay = REAP;
        self.world.lock().after(delay, move |sim| {
            if sim.world.lock().cut.contains(&(from, to)) {
                let between = |a, b| (a, b) == (from, to) || (b, a) == (from, to);
                sim.break_wires(|wire| between(wire.from, wire.to), "no acknowledgement");
            }
        });
    }

    /// Ends every cut and every pause.
    pub fn heal(&self) {
        let mut world = self.world.lock();
        world.note(format_args!("all is healed"));
        world.cut.clear();
        for node in world.nodes.values_mut() {
            node.paused = false;
        }
    }

    pub(super) fn broken(backup: BrokerId, reason: &str) -> LinkError {
        LinkError::Broken {
            backup,
            reason: reason.to_string(),
        }
    }
}
