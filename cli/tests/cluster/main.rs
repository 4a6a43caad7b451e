//! Three brokers that share an etcd, in network namespaces: brokers and etcd are killed, stopped and
//! restarted, cut off from each other and from clients, both ways and one way, put behind a slow
//! cable, run out of disk and have clocks that jump by hours, a fourth broker joins and leaves and others are drained, while
//! producers and consumers that know the first three work at every streamlet. Where the others are enough they must take
//! over. What clients saw is judged by the history checker.
//!
//! `KERA_CLUSTER_RUNS` (default 10) is the number of runs, `KERA_CLUSTER_SEED` repeats the choices of
//! one (not its timing). Each run has namespaces of its own, which end with it; root is needed, or the
//! test says loudly that it did not run. A run that fails leaves its history where it says.
//!
//! `named` tells single stories of owners that change at the worst moment, on loopback.

#[path = "../common/mod.rs"]
mod common;
#[path = "../crash_loop/consuming.rs"]
#[allow(dead_code)] // the crash loop uses the rest
mod consuming;
#[path = "../crash_loop/finale.rs"]
mod finale;
#[path = "../crash_loop/producing.rs"]
#[allow(dead_code)]
mod producing;
#[path = "../network/runs.rs"]
mod runs;
#[path = "../crash_loop/world.rs"]
#[allow(dead_code)]
mod world;

mod asking;
mod compacted;
mod faults;
mod load;
mod local;
mod members;
mod mutation;
mod named;
mod nodes;
mod rest;

use kera_testkit::{clock, etcd, namespaces};
use std::time::Instant;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::block_in_place;

use clock::Clock;
use common::machine::skip;
use common::reasons;
use etcd::Etcd;
use faults::Fault;
use load::Load;
use namespaces::Network;
use nodes::{CLIENTS, Nodes};
use runs::{Sums, number, number_and_seed, told, within_namespaces};

/// Set in the process that has the namespaces: number and seed of the run.
const INSIDE: &str = "KERA_CLUSTER_INSIDE";
const TEST: &str = "a_cluster_keeps_its_promises";

/// What `finale` asks of a run.
struct Plan {
    trims: bool,
}

#[test]
fn a_cluster_keeps_its_promises() {
    if let Ok(run) = std::env::var(INSIDE) {
        let (run, seed) = number_and_seed(&run);
        return inside(run, seed);
    }
    if let Some(reason) = namespaces::lacking()
        .or_else(Etcd::lacking)
        .or_else(Clock::lacking)
    {
        return skip(TEST, &reason);
    }
    let begin = Instant::now();
    let given = number("KERA_CLUSTER_SEED");
    // A seed that is given is run with every kind of fault.
    let runs = given.map_or_else(|| number("KERA_CLUSTER_RUNS").unwrap_or(10), |_| 5);
    let mut sums = Sums::default();
    for run in 0..runs {
        let seed = given.unwrap_or_else(|| rand::rng().random());
        println!("run {run}, KERA_CLUSTER_SEED={seed}");
        let done = within_namespaces(INSIDE, TEST, &format!("{run} {seed}"));
        sums.add(&done.unwrap_or_else(|reason| {
            panic!("run {run} failed, KERA_CLUSTER_SEED={seed}\n{reason}")
        }));
    }
    // `make test-long` takes this line into its results.
    println!(
        "cluster: {runs} runs in {:?}, {} faults, {} kills, {} records, none lost, twice or out of order",
        begin.elapsed(),
        sums.faults,
        sums.kills,
        sums.records
    );
    assert!(
        sums.records > runs * 100 && sums.faults >= runs * 4,
        "no test"
    );
}

fn inside(run: u64, seed: u64) {
    reasons::remember();
    let nodes = Nodes::start(Network::new(CLIENTS));
    // Clients are at a node of their own, so that they can be cut off like any other.
    let mover = nodes.network.mover(CLIENTS);
    told(mover, one_run(run, seed, nodes));
}

async fn one_run(run: u64, seed: u64, mut nodes: Nodes) {
    let mut rng = StdRng::seed_from_u64(seed);
    let bootstrap = nodes.bootstrap();
    let title = format!("cluster, seed {seed}");
    let load = Load::start(&title, &bootstrap, seed).await;
    let faults = Fault::of_run(run, &mut rng);
    for fault in &faults {
        load.world.acknowledged_everywhere().await;
        fault.happen(&mut nodes, &load.world, &mut rng).await;
        nodes.all_run();
    }
    members::leaves(&mut nodes, &load.world).await;
    // All is well again: everything comes back, and goes on.
    let counts = load.finish().await.counts;
    nodes.nothing_was_missed();
    let (url, brokers) = (nodes.store.address(), nodes.directories());
    block_in_place(|| rest::is_right(&url, &bootstrap, &brokers));
    // The harness has begun a line.
    println!(
        "\nrun: {} faults {} kills {} records",
        faults.len(),
        counts.kills,
        counts.acknowledged
    );
}
