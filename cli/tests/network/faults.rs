//! What goes wrong: one thing at a time, for a while, decided by the run's seed.

use std::time::Duration;

use kera_history::Event;
use rand::Rng;
use rand::rngs::StdRng;
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::cluster::{BROKERS, Cluster};
use crate::world::{KEYED, PINNED, World};

/// A fault, and whom it is about.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// SIGKILL; it stays away for a while.
    Killed(u32),
    /// SIGKILL, and back at once: groups that it keeps for others are open.
    Restarted(u32),
    /// SIGSTOP and, later, SIGCONT.
    Stopped(u32),
    /// Nothing gets from either to the other.
    Parted(u32, u32),
    /// Nothing gets from the first to the second.
    OneWay(u32, u32),
    /// It reaches no other broker, and none reaches it; clients and etcd do.
    Alone(u32),
    /// Its cable is narrow and, where the kernel can, slow.
    Slow(u32),
    /// The disk of its copies is full.
    DiskFull(u32),
    /// SIGKILL; then a bit flips in a copy that it keeps.
    Damaged(u32),
    /// SIGKILL; then its own files of the streams are gone, but not what is recorded of them.
    Robbed(u32),
}

/// Longer than brokers wait for each other before they count a copy as lost.
const SILENCE: Duration = Duration::from_secs(11);

/// Kinds of faults.
const KINDS: u64 = 10;

impl Fault {
    /// The faults of a run: each kind has its turn within two runs that follow each other. No run damages a copy
    /// and takes files away: a group of two copies, as one that began while a broker was away, could have neither.
    pub fn of_run(run: u64, rng: &mut StdRng) -> Vec<Self> {
        let half = KINDS.div_ceil(2);
        let begin = run % 2 * (KINDS - half);
        let mut kinds: Vec<_> = (begin..begin + half).collect();
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
            2 => Self::Parted(one, other),
            3 => Self::Restarted(one),
            4 => Self::Robbed(one),
            5 => Self::OneWay(one, other),
            6 => Self::Alone(one),
            7 => Self::Slow(one),
            8 => Self::DiskFull(one),
            _ => Self::Damaged(one),
        }
    }

    /// Whoever is hurt goes on living, and cannot be told from one that is slow.
    fn is_silent(self) -> bool {
        matches!(
            self,
            Self::Stopped(_) | Self::Parted(..) | Self::OneWay(..) | Self::Alone(_)
        )
    }

    /// Does it, waits, and undoes it.
    pub async fn happen(self, cluster: &mut Cluster, world: &World, rng: &mut StdRng) {
        let mut time = Duration::from_micros(rng.random_range(100_000..1_500_000));
        if self.is_silent() && rng.random_bool(0.12) {
            time += SILENCE;
        }
        let text = format!("{self:?} for {time:?}");
        world.recorder().record(Event::Note { text });
        eprintln!("{self:?} for {time:?}");
        match self {
            Self::Killed(number) => {
                kill(cluster, world, number);
                sleep(time).await;
                restart(cluster, world, number);
            }
            Self::Restarted(number) => {
                kill(cluster, world, number);
                restart(cluster, world, number);
            }
            Self::Damaged(number) => {
                kill(cluster, world, number);
                let damaged = block_in_place(|| cluster.damage(number, rng.random()));
                eprintln!(
                    "damaged: {}",
                    damaged.as_deref().unwrap_or("it keeps no replicas")
                );
                restart(cluster, world, number);
            }
            Self::Robbed(number) => {
                let names = [KEYED, PINNED].map(World::stream_name);
                let streams = block_in_place(|| cluster.streams(number, &names));
                kill(cluster, world, number);
                let lost = block_in_place(|| cluster.lose_files(number, &streams));
                // None, where others own all by now.
                eprintln!("{lost} files are gone");
                restart(cluster, world, number);
            }
            Self::Stopped(number) => {
                cluster.pause(number, true);
                sleep(time).await;
                cluster.pause(number, false);
            }
            Self::DiskFull(number) => {
                block_in_place(|| cluster.fill_disk(number));
                sleep(time).await;
                cluster.empty_disk(number);
            }
            Self::Parted(one, other) => {
                cut(cluster, &[(one, other), (other, one)]);
                sleep(time).await;
            }
            Self::OneWay(from, to) => {
                cut(cluster, &[(from, to)]);
                sleep(time).await;
            }
            Self::Alone(number) => {
                let others = (1..=BROKERS).filter(|other| *other != number);
                let pairs: Vec<_> = others
                    .flat_map(|other| [(number, other), (other, number)])
                    .collect();
                cut(cluster, &pairs);
                sleep(time).await;
            }
            Self::Slow(number) => {
                block_in_place(|| cluster.network.slow(number));
                sleep(time).await;
            }
        }
        block_in_place(|| cluster.network.heal());
    }
}

fn cut(cluster: &mut Cluster, pairs: &[(u32, u32)]) {
    block_in_place(|| {
        for (from, to) in pairs {
            cluster.network.cut(*from, *to);
        }
    });
}

fn kill(cluster: &mut Cluster, world: &World, number: u32) {
    world.recorder().record(Event::BrokerKilled);
    block_in_place(|| cluster.kill(number));
}

fn restart(cluster: &mut Cluster, world: &World, number: u32) {
    let took = block_in_place(|| cluster.restart(number));
    world.recorder().record(Event::BrokerStarted);
    eprintln!("broker {number} is back in {took:?}");
}
