//! Which thread runs next, and what time it is.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::pollfd;

use super::connections::Nanos;
use super::real::{self, file};
use super::threads::{State, Thread};
use super::world::{Event, World, me, world};
use super::{network, timers};

/// Turns in which no time passes, after which something spins.
const MOST_STEPS: u64 = 40_000_000;
/// What a turn takes, and a look at the clock.
const TURN: Nanos = 1_500;
const LOOK: Nanos = 60;
/// How often a thread gives its turn away without waiting for anything, after which it spins: 30 ms and more.
const MOST_YIELDS: u32 = 20_000;
/// How often, of 1,000 times, whoever wakes another gives the turn away.
const PREEMPTED: u64 = 150;

/// What the clock says; looking takes time.
pub(super) fn look(world: &mut World) -> Nanos {
    world.now += LOOK;
    world.now
}

/// Waits in `state` until it ends or the deadline has passed; true if that was not so.
pub(super) fn wait(state: State, deadline: Option<Nanos>) -> bool {
    let world = world();
    let thread = world
        .threads
        .get_mut(me())
        .expect("the running thread is known");
    thread.timed_out = false;
    if state != State::Ready {
        thread.yields = 0;
    }
    world.threads.wait(me(), state, deadline);
    switch();
    let thread = super::world::world().threads.get_mut(me());
    thread.is_some_and(|thread| !std::mem::take(&mut thread.timed_out))
}

/// Gives the turn to another thread that is ready. A thread that does nothing but that for long keeps a processor busy.
pub(super) fn give_way() {
    let world = world();
    let now = world.now;
    let thread = world.threads.get_mut(me());
    let thread = thread.expect("the running thread is known");
    thread.yields += 1;
    if thread.yields == MOST_YIELDS {
        let node = thread.node;
        let name = std::thread::current().name().unwrap_or("?").to_owned();
        let at = (now - super::world::BEGIN) as f64 / 1e9;
        world.spinning.push(format!(
            "thread {name} of node {node} has kept its processor busy for nothing at {at:.3}"
        ));
    }
    wait(State::Ready, None);
}

/// Lets others run now and then, as the dice say.
pub(super) fn preempt() {
    let world = world();
    if world.calm > 0 || !world.dice.chance(PREEMPTED) {
        return;
    }
    if let Some(thread) = world.threads.get_mut(me()) {
        thread.preempted = true;
    }
    wait(State::Ready, None);
    if let Some(thread) = super::world::world().threads.get_mut(me()) {
        thread.preempted = false;
    }
}

/// Gives the turn away; returns when it has come back.
fn switch() {
    let number = me();
    let world = world();
    let thread = world.threads.get(number);
    let turn = thread.expect("the running thread is known").turn;
    let next = pick(world);
    pass(world, next);
    if next != number {
        wait_for(turn);
    }
}

/// This thread ends: the turn is for another.
pub(super) fn leave() {
    let number = me();
    let world = world();
    world.threads.remove(number);
    world.note(format_args!("t{number} ends"));
    let joins = |thread: &Thread| *thread.state() == State::Joining(number);
    let joining = world.threads.iter().filter(|(_, thread)| joins(thread));
    let joining: Vec<u32> = joining.map(|(joins, _)| joins).collect();
    for joins in joining {
        world.threads.make_ready(joins);
    }
    let next = pick(world);
    pass(world, next);
}

fn pass(world: &mut World, next: u32) {
    world.steps += 1;
    world.now += TURN;
    if world.steps > MOST_STEPS {
        stuck(world, "no end after so many turns");
    }
    world.note(format_args!("t{next} runs"));
    world.threads.run(next);
    let turn = world.threads.get(next).expect("it was picked").turn;
    if next != me() {
        turn.store(1, Ordering::Release);
        futex(turn, libc::FUTEX_WAKE, 1);
    }
}

/// Waits until it is this thread's turn.
pub(super) fn wait_for(turn: &AtomicU32) {
    while turn.swap(0, Ordering::Acquire) == 0 {
        futex(turn, libc::FUTEX_WAIT, 0);
    }
}

fn futex(word: &AtomicU32, operation: c_int, value: usize) {
    let address = word.as_ptr() as usize;
    let operation = (operation | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: the address is that of a word that is never freed, and no timeout is given.
    unsafe { real::syscall(libc::SYS_futex, address, operation, value, 0, 0, 0) };
}

/// The next thread to run.
fn pick(world: &mut World) -> u32 {
    loop {
        happen(world);
        if std::mem::take(&mut world.stirred) {
            look_at_files(world);
        }
        let ready = world.threads.ready();
        let ready = ready.filter(|(_, thread)| world.may_run(thread));
        let ready: Vec<u32> = ready.map(|(number, _)| number).collect();
        if !ready.is_empty() {
            return *world.dice.one(&ready);
        }
        let mut timed = world.threads.timed();
        let deadline = timed.find(|(_, thread)| world.may_run(thread));
        let deadline = deadline.map(|(deadline, _)| deadline);
        let event = world.events.keys().next().map(|(at, _)| *at);
        match deadline.into_iter().chain(event).min() {
            Some(next) => world.now = world.now.max(next),
            None => stuck(world, "nobody waits for time, and nobody can run"),
        }
    }
}

/// Everything whose time has come.
fn happen(world: &mut World) {
    while let Some(entry) = world.events.first_entry() {
        if entry.key().0 > world.now {
            break;
        }
        match entry.remove() {
            Event::Network(event) => network::happen(world, event),
            Event::Timer { fd, set } => timers::run_out(world, fd, set),
        }
    }
    world.threads.run_out(world.now);
}

/// Whoever waits for files that are ready now may run, and what was sent is on its way.
fn look_at_files(world: &mut World) {
    let mut polled: Vec<pollfd> = Vec::new();
    let mut whose: Vec<u32> = Vec::new();
    for (number, thread) in world.threads.at_files() {
        let State::Files(files) = thread.state() else {
            continue;
        };
        // A dead process's descriptors are nobody's.
        if world.lives(thread) {
            for (fd, events) in files {
                polled.push(file(*fd, *events));
                whose.push(number);
            }
        }
    }
    let relays = network::wanted(world, &mut polled);
    // SAFETY: the entries are as many as is said.
    let found = unsafe { real::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, 0) };
    if found < 0 {
        return;
    }
    for (polled, number) in polled.iter().zip(&whose) {
        if polled.revents != 0 {
            world.threads.make_ready(*number);
        }
    }
    for (polled, relay) in polled[whose.len()..].iter().zip(relays) {
        if polled.revents != 0 {
            network::moved(world, relay, polled.revents);
        } else {
            world.touched.remove(&relay);
        }
    }
}

/// Wakes up to `most` of those that wait at `address`, those first that wait longest.
pub(super) fn wake(address: usize, most: usize) -> usize {
    let world = world();
    let waiting = world.threads.at_address(address);
    let waiting = waiting.filter(|(_, thread)| world.lives(thread));
    let waiting: Vec<u32> = waiting.map(|(number, _)| number).take(most).collect();
    for number in &waiting {
        world.threads.make_ready(*number);
    }
    waiting.len()
}

/// Says what every thread waits for, and ends the process.
fn stuck(world: &World, why: &str) -> ! {
    let mut text = format!("STUCK after {} turns: {why}\n", world.steps);
    for (number, thread) in world.threads.iter() {
        let lives = if world.lives(thread) { "" } else { " (dead)" };
        text += &format!(
            "  t{number} of node {}{lives}: {:?}, until {:?}\n",
            thread.node,
            thread.state(),
            thread.deadline()
        );
    }
    super::ending::end_with(&text, 3)
}
