//! The same clients in network namespaces: brokers are cut off from each other, from etcd and from the
//! clients, both ways and one way, put behind a slow cable, run out of disk and have clocks that jump; at
//! times another broker is killed meanwhile.
//!
//! `KERA_KAFKA_APART_ROUNDS` (default 5) is the number of faults, `KERA_KAFKA_APART_SEED` repeats the
//! choices of an earlier run (not its timing). Root is needed, or the test says loudly that it did not run.

use std::time::Duration;

use kera_history::Event;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::clock::Clock;
use crate::etcd::Etcd;
use crate::namespaces::{self, Network};
use crate::nodes::{BROKERS, CLIENTS, LEASE, Nodes, STORE};
use crate::runs::{Sums, number_and_seed, within_namespaces};
use crate::world::World;
use crate::{common, kill, number, progress, restart, under_load, wait};

/// Set in the process that has the namespaces: number of faults, and seed.
const INSIDE: &str = "KERA_KAFKA_APART_INSIDE";
const TEST: &str = "apart::librdkafka_finds_the_owner_across_partitions";

/// How soon clients give a silent broker up; otherwise they wait for a minute.
const SETTINGS: [(&str, &str); 3] = [
    ("socket.timeout.ms", "3000"),
    ("request.timeout.ms", "3000"),
    ("socket.connection.setup.timeout.ms", "2000"),
];

/// Kinds of faults.
const KINDS: u64 = 10;

#[test]
fn librdkafka_finds_the_owner_across_partitions() {
    if let Ok(run) = std::env::var(INSIDE) {
        let (rounds, seed) = number_and_seed(&run);
        common::reasons::remember();
        return inside(rounds, seed);
    }
    let lacking = namespaces::lacking().or_else(Etcd::lacking);
    if let Some(reason) = lacking.or_else(Clock::lacking) {
        return common::machine::skip(TEST, &reason);
    }
    let rounds = number("KERA_KAFKA_APART_ROUNDS").unwrap_or(5);
    let seed = number("KERA_KAFKA_APART_SEED").unwrap_or_else(|| rand::rng().random());
    eprintln!("{rounds} rounds, KERA_KAFKA_APART_SEED={seed}");
    let done = within_namespaces(INSIDE, TEST, &format!("{rounds} {seed}"));
    let mut sums = Sums::default();
    sums.add(
        &done.unwrap_or_else(|reason| panic!("failed, KERA_KAFKA_APART_SEED={seed}\n{reason}")),
    );
    // `make test-long` takes this line into its results.
    println!(
        "cluster: librdkafka in namespaces, {} faults, {} kills, {} records, none lost, twice or out of order, seed {seed}",
        sums.faults, sums.kills, sums.records
    );
    assert_eq!(sums.faults, rounds, "no test");
}

fn inside(rounds: u64, seed: u64) {
    let mut network = Network::new(CLIENTS);
    let mut nodes = Nodes::within(&network, rounds);
    // Clients, and the threads that they make, are at a node of their own.
    network.mover(CLIENTS)();
    let mut rng = StdRng::seed_from_u64(seed);
    let first = rng.random_range(0..KINDS);
    let settings = SETTINGS.to_vec();
    let (sent, kills) = under_load(&mut nodes, seed, rounds, settings, |nodes, world, round| {
        // Each kind has its turn.
        let kind = (first + round * 3) % KINDS;
        happen(kind, &mut network, nodes, world, &mut rng);
        nodes.all_run();
    });
    // The harness has begun a line.
    println!("\nrun: {rounds} faults {kills} kills {sent} records");
}

fn happen(kind: u64, network: &mut Network, nodes: &mut Nodes, world: &World, rng: &mut StdRng) {
    let one = rng.random_range(1..=BROKERS as u32);
    let other = (one + rng.random_range(0..BROKERS as u32 - 1)) % BROKERS as u32 + 1;
    let at = one as usize - 1;
    let mut time = Duration::from_millis(rng.random_range(100..1_500));
    if rng.random_bool(0.5) {
        time += LEASE;
    }
    let (both, hours) = (|to| vec![(one, to), (to, one)], rng.random_range(1..48));
    let (what, cuts) = match kind {
        0 => ("and another do not reach each other", both(other)),
        1 => ("and etcd do not reach each other", both(STORE)),
        2 => ("and clients do not reach each other", both(CLIENTS)),
        3 => ("does not reach another", vec![(one, other)]),
        4 => ("hears nothing of etcd", vec![(STORE, one)]),
        5 => ("does not reach clients", vec![(one, CLIENTS)]),
        6 => (
            "reaches only clients",
            (1..=STORE).filter(|to| *to != one).flat_map(both).collect(),
        ),
        7 => ("is behind a slow cable", Vec::new()),
        8 => ("has no room on its disk", Vec::new()),
        _ => ("has a clock that jumps", Vec::new()),
    };
    // One more is away meanwhile: what is left may not be enough, until all is well again.
    let killed = rng.random_bool(0.3).then_some(other as usize - 1);
    let text = format!("broker {one} {what} for {time:?}, killed meanwhile: {killed:?}");
    eprintln!("{text}");
    world.recorder().record(Event::Note { text });
    for (from, to) in cuts {
        network.cut(from, to);
    }
    match kind {
        7 => network.slow(one),
        8 => nodes.fill_disk(at),
        9 => nodes
            .clock(at)
            .set(if rng.random_bool(0.5) { hours } else { -hours } * 3_600),
        _ => {}
    }
    if let Some(killed) = killed {
        kill(nodes, world, killed);
    }
    wait(time);
    // Whom only clients do not reach stays the owner: they may be full of what is for it.
    let stays_owner = kind == 2 || kind == 5;
    if killed.is_none() && !stays_owner && time > LEASE {
        // The others are enough.
        progress(world);
    }
    match kind {
        8 => nodes.empty_disk(at),
        9 => nodes.clock(at).set(0),
        _ => {}
    }
    network.heal();
    if let Some(killed) = killed {
        restart(nodes, world, killed);
    }
}
