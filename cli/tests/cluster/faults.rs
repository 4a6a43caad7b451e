//! What goes wrong, decided by the run's seed: one thing after the other, each for a while, and at times
//! another broker is killed meanwhile. Brokers that come and go are among it.

use std::time::Duration;

use kera_history::Event;
use rand::Rng;
use rand::rngs::StdRng;
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::members;
use crate::nodes::{BROKERS, CLIENTS, LEASE, Nodes, STORE};
use crate::world::World;

/// A fault, and whom it is about.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// SIGKILL; it stays away until others have taken over.
    Killed(u32),
    /// SIGKILL, and back at once.
    Restarted(u32),
    /// SIGTERM: it hands over, and comes back.
    Rolled(u32),
    /// SIGSTOP and, later, SIGCONT.
    Stopped(u32),
    /// Nothing gets from either to the other.
    Parted(u32, u32),
    /// Nothing gets from the first to the second.
    OneWay(u32, u32),
    /// It does not reach etcd, nor etcd it.
    NoStore(u32),
    /// It reaches etcd, and hears nothing.
    DeafToStore(u32),
    /// It reaches no other broker and not etcd, and they do not reach it; clients do.
    Alone(u32),
    /// No client reaches it; brokers and etcd do.
    NoClients(u32),
    /// What it answers does not get to clients.
    Mute(u32),
    /// Its cable is narrow and, where the kernel can, slow.
    Slow(u32),
    /// The disk of its copies is full.
    DiskFull(u32),
    /// SIGKILL to etcd, and back at once.
    StoreRestarted,
    /// SIGSTOP to etcd and, later, SIGCONT.
    StoreStopped,
    /// SIGKILL to a broker and to etcd, both back at once.
    BothRestarted(u32),
    /// Its wall clock jumps by so many seconds and, later, back.
    ClockJumps(u32, i64),
    /// A fourth broker starts and is given streamlets; it is drained and stopped when the run ends.
    Joined,
    /// It is drained, stopped, and comes back.
    Drained(u32),
}

/// Kinds of faults.
const KINDS: u64 = 19;
/// Of seconds.
const HOUR: i64 = 3_600;
/// Faults of a run.
const EACH: u64 = 4;
/// How often another broker is away meanwhile.
const SECOND: f64 = 0.3;

impl Fault {
    /// The faults of a run: each kind has its turn within runs that follow each other.
    pub fn of_run(run: u64, rng: &mut StdRng) -> Vec<Self> {
        let mut kinds: Vec<_> = (run * EACH..(run + 1) * EACH)
            // With another beginning each time round, so that the same do not always meet.
            .map(|turn| (turn * 7 + turn / KINDS) % KINDS)
            .collect();
        for at in (1..kinds.len()).rev() {
            kinds.swap(at, rng.random_range(0..=at));
        }
        kinds.into_iter().map(|kind| Self::new(kind, rng)).collect()
    }

    fn new(kind: u64, rng: &mut StdRng) -> Self {
        let one = rng.random_range(1..=BROKERS);
        let other = (one + rng.random_range(0..BROKERS - 1)) % BROKERS + 1;
        match kind {
            0 => Self::Killed(one),
            1 => Self::Stopped(one),
            2 => Self::NoStore(one),
            3 => Self::StoreRestarted,
            4 => Self::Parted(one, other),
            5 => Self::Rolled(one),
            6 => Self::NoClients(one),
            7 => Self::DiskFull(one),
            8 => Self::OneWay(one, other),
            9 => Self::Restarted(one),
            10 => Self::DeafToStore(one),
            11 => Self::StoreStopped,
            12 => Self::Alone(one),
            13 => Self::Mute(one),
            14 => Self::Slow(one),
            15 => Self::BothRestarted(one),
            16 => Self::Joined,
            17 => Self::Drained(one),
            _ => {
                let far = rng.random_range(HOUR..48 * HOUR);
                Self::ClockJumps(one, if rng.random_bool(0.5) { far } else { -far })
            }
        }
    }

    /// It may take longer than a lease.
    fn may_last(self) -> bool {
        self.is_silent() || matches!(self, Self::StoreStopped)
    }

    /// Whoever is hurt goes on living, and others can take over from it.
    fn is_silent(self) -> bool {
        matches!(
            self,
            Self::Stopped(_) | Self::NoStore(_) | Self::DeafToStore(_) | Self::Alone(_)
        )
    }

    /// Whom it hurts while it lasts, and nobody else.
    fn hurts(self) -> Option<u32> {
        match self {
            Self::Stopped(number)
            | Self::Parted(number, _)
            | Self::OneWay(number, _)
            | Self::NoStore(number)
            | Self::DeafToStore(number)
            | Self::Alone(number)
            | Self::NoClients(number)
            | Self::Mute(number)
            | Self::Slow(number)
            | Self::DiskFull(number)
            | Self::ClockJumps(number, _) => Some(number),
            _ => None,
        }
    }

    /// Does it, waits, and undoes it. Where the others are enough to go on, they must have before it
    /// is undone.
    pub async fn happen(self, nodes: &mut Nodes, world: &World, rng: &mut StdRng) {
        let mut time = Duration::from_micros(rng.random_range(100_000..1_500_000));
        let lasts = self.may_last() && rng.random_bool(0.5);
        if lasts {
            time += LEASE;
        }
        let second = self.hurts().filter(|_| rng.random_bool(SECOND));
        let second = second.map(|one| (one + rng.random_range(0..BROKERS - 1)) % BROKERS + 1);
        let others_go_on = lasts && self.is_silent() && second.is_none();
        let text = format!("{self:?} for {time:?}, killed meanwhile: {second:?}");
        eprintln!("{text}");
        world.recorder().record(Event::Note { text });
        match self {
            Self::Killed(number) => {
                kill(nodes, world, number);
                world.acknowledged_everywhere().await;
                restart(nodes, world, number);
            }
            Self::Restarted(number) => {
                kill(nodes, world, number);
                restart(nodes, world, number);
            }
            Self::Rolled(number) => {
                world.recorder().record(Event::BrokerStopped);
                block_in_place(|| nodes.stop(number));
                world.acknowledged_everywhere().await;
                restart(nodes, world, number);
            }
            Self::StoreRestarted => block_in_place(|| {
                nodes.store.kill();
                nodes.store.restart();
            }),
            Self::BothRestarted(number) => {
                kill(nodes, world, number);
                block_in_place(|| {
                    nodes.store.kill();
                    nodes.store.restart();
                });
                restart(nodes, world, number);
            }
            Self::Joined => members::joins(nodes, world).await,
            Self::Drained(number) => {
                members::goes(nodes, world, number).await;
                restart(nodes, world, number);
            }
            _ => {
                self.begin(nodes);
                if let Some(second) = second {
                    kill(nodes, world, second);
                }
                sleep(time).await;
                if others_go_on {
                    world.acknowledged_everywhere().await;
                }
                self.end(nodes);
            }
        }
        block_in_place(|| nodes.network.heal());
        if let Some(second) = second {
            restart(nodes, world, second);
        }
    }

    /// What lasts begins.
    fn begin(self, nodes: &mut Nodes) {
        match self {
            Self::Stopped(number) => nodes.pause(number, true),
            Self::DiskFull(number) => block_in_place(|| nodes.fill_disk(number)),
            Self::Slow(number) => block_in_place(|| nodes.network.slow(number)),
            Self::ClockJumps(number, seconds) => nodes.clock(number).set(seconds),
            Self::StoreStopped => nodes.store.pause(true),
            _ => self.cut(nodes),
        }
    }

    /// What lasted ends, but for the network, which heals as a whole.
    fn end(self, nodes: &mut Nodes) {
        match self {
            Self::Stopped(number) => nodes.pause(number, false),
            Self::DiskFull(number) => nodes.empty_disk(number),
            Self::ClockJumps(number, _) => nodes.clock(number).set(0),
            Self::StoreStopped => nodes.store.pause(false),
            _ => {}
        }
    }

    fn cut(self, nodes: &mut Nodes) {
        let both = |one, other| vec![(one, other), (other, one)];
        let pairs = match self {
            Self::Parted(one, other) => both(one, other),
            Self::OneWay(from, to) => vec![(from, to)],
            Self::NoStore(number) => both(number, STORE),
            Self::DeafToStore(number) => vec![(STORE, number)],
            Self::NoClients(number) => both(number, CLIENTS),
            Self::Mute(number) => vec![(number, CLIENTS)],
            Self::Alone(number) => (1..=STORE)
                .filter(|other| *other != number)
                .flat_map(|other| both(number, other))
                .collect(),
            _ => Vec::new(),
        };
        block_in_place(|| {
            for (from, to) in pairs {
                nodes.network.cut(from, to);
            }
        });
    }
}

fn kill(nodes: &mut Nodes, world: &World, number: u32) {
    world.recorder().record(Event::BrokerKilled);
    block_in_place(|| nodes.kill(number));
}

fn restart(nodes: &mut Nodes, world: &World, number: u32) {
    let took = block_in_place(|| nodes.restart(number));
    world.recorder().record(Event::BrokerStarted);
    eprintln!("broker {number} is back in {took:?}");
}
