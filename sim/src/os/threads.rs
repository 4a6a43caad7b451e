//! The threads of all machines, found by what they wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU32;

use super::connections::Nanos;

/// What a thread waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// For its turn.
    Ready,
    /// It has the turn.
    Running,
    /// For a wake at an address.
    Futex(usize),
    /// For any of these files to be ready for any of these events.
    Files(Vec<(i32, i16)>),
    /// For its deadline alone.
    Sleeping,
    /// For the end of another thread.
    Joining(u32),
}

pub(super) struct Thread {
    /// The machine's process that it belongs to: its number, and which life of it.
    pub(super) node: u32,
    pub(super) life: u32,
    state: State,
    deadline: Option<Nanos>,
    /// The wait ended because its deadline passed.
    pub(super) timed_out: bool,
    /// It would go on, and gave the turn away all the same.
    pub(super) preempted: bool,
    /// How often it has given its turn away since it last waited for anything.
    pub(super) yields: u32,
    /// Order in which it began to wait.
    since: u64,
    /// 1: it is its turn.
    pub(super) turn: &'static AtomicU32,
}

impl Thread {
    pub(super) fn state(&self) -> &State {
        &self.state
    }

    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.deadline
    }
}

/// All threads. Most wait, and whoever chooses among the others must not look at all of them.
#[derive(Default)]
pub(super) struct Threads {
    by_number: BTreeMap<u32, Thread>,
    last: u32,
    waits: u64,
    ready: BTreeSet<u32>,
    timed: BTreeSet<(Nanos, u32)>,
    at_files: BTreeSet<u32>,
    /// By address, those first that wait longest.
    at_addresses: BTreeSet<(usize, u64, u32)>,
}

impl Threads {
    /// Adds a thread that waits for its turn.
    pub(super) fn add(&mut self, node: u32, life: u32) -> u32 {
        self.last += 1;
        let thread = Thread {
            node,
            life,
            state: State::Ready,
            deadline: None,
            timed_out: false,
            preempted: false,
            yields: 0,
            since: 0,
            turn: Box::leak(Box::new(AtomicU32::new(0))),
        };
        self.by_number.insert(self.last, thread);
        self.ready.insert(self.last);
        self.last
    }

    pub(super) fn get(&self, number: u32) -> Option<&Thread> {
        self.by_number.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Thread> {
        self.by_number.get_mut(&number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Thread)> {
        self.by_number
            .iter()
            .map(|(number, thread)| (*number, thread))
    }

    pub(super) fn remove(&mut self, number: u32) {
        if let Some(thread) = self.by_number.remove(&number) {
            self.unlist(number, &thread.state, thread.deadline, thread.since);
        }
    }

    /// Removes the threads of `node`.
    pub(super) fn remove_of(&mut self, node: u32) {
        let of_node = self.iter().filter(|(_, thread)| thread.node == node);
        let numbers: Vec<_> = of_node.map(|(number, _)| number).collect();
        for number in numbers {
            self.remove(number);
        }
    }

    /// The thread waits in `state` from now on, until `deadline` at most.
    pub(super) fn wait(&mut self, number: u32, state: State, deadline: Option<Nanos>) {
        self.waits += 1;
        self.set(number, state, deadline);
    }

    /// The thread waits no longer, for anything but its turn.
    pub(super) fn make_ready(&mut self, number: u32) {
        self.set(number, State::Ready, None);
    }

    /// The thread has the turn.
    pub(super) fn run(&mut self, number: u32) {
        self.set(number, State::Running, None);
    }

    fn set(&mut self, number: u32, state: State, deadline: Option<Nanos>) {
        let Some(thread) = self.by_number.get_mut(&number) else {
            return;
        };
        let was = std::mem::replace(&mut thread.state, state.clone());
        let due = std::mem::replace(&mut thread.deadline, deadline);
        let since = std::mem::replace(&mut thread.since, self.waits);
        self.unlist(number, &was, due, since);
        match state {
            State::Ready => _ = self.ready.insert(number),
            State::Files(_) => _ = self.at_files.insert(number),
            State::Futex(address) => {
                _ = self.at_addresses.insert((address, self.waits, number));
            }
            State::Running | State::Sleeping | State::Joining(_) => {}
        }
        if let Some(deadline) = deadline {
            self.timed.insert((deadline, number));
        }
    }

    fn unlist(&mut self, number: u32, state: &State, deadline: Option<Nanos>, since: u64) {
        match state {
            State::Ready => _ = self.ready.remove(&number),
            State::Files(_) => _ = self.at_files.remove(&number),
            State::Futex(address) => _ = self.at_addresses.remove(&(*address, since, number)),
            State::Running | State::Sleeping | State::Joining(_) => {}
        }
        if let Some(deadline) = deadline {
            self.timed.remove(&(deadline, number));
        }
    }

    /// Those that wait for their turn.
    pub(super) fn ready(&self) -> impl Iterator<Item = (u32, &Thread)> {
        self.ready
            .iter()
            .map(|number| (*number, &self.by_number[number]))
    }

    /// Those that wait for files.
    pub(super) fn at_files(&self) -> impl Iterator<Item = (u32, &Thread)> {
        self.at_files
            .iter()
            .map(|number| (*number, &self.by_number[number]))
    }

    /// Those that wait at an address, those first that wait longest.
    pub(super) fn at_address(&self, address: usize) -> impl Iterator<Item = (u32, &Thread)> {
        self.at_addresses
            .range((address, 0, 0)..=(address, u64::MAX, u32::MAX))
            .map(|(_, _, number)| (*number, &self.by_number[number]))
    }

    /// Those that have a deadline, the earliest first.
    pub(super) fn timed(&self) -> impl Iterator<Item = (Nanos, &Thread)> {
        self.timed
            .iter()
            .map(|(deadline, number)| (*deadline, &self.by_number[number]))
    }

    /// Makes those ready whose deadline is not after `now`.
    pub(super) fn run_out(&mut self, now: Nanos) {
        while let Some((deadline, number)) = self.timed.first().copied()
            && deadline <= now
        {
            if let Some(thread) = self.by_number.get_mut(&number) {
                thread.timed_out = true;
            }
            self.make_ready(number);
        }
    }
}
