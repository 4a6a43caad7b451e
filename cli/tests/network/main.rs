//! Three broker processes in network namespaces: brokers are killed and stopped, cut off from each
//! other both ways and one way, put behind a slow cable, run out of disk, find a copy damaged or their
//! own files gone, while producers and consumers work at all of them. Every stream has a copy at each
//! broker, and the etcd that they share is always there: what happens to it is the suite `cluster`'s.
//! What clients saw is judged by the history checker.
//!
//! `KERA_NETWORK_RUNS` (default 10) is the number of runs, `KERA_NETWORK_SEED` repeats the choices of
//! one (not its timing). Each run has namespaces of its own, which end with it; root is needed, or
//! the test says loudly that it did not run. A run that fails leaves its histories where it says.

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
#[path = "../crash_loop/world.rs"]
#[allow(dead_code)]
mod world;

mod cluster;
mod faults;
#[path = "../cluster/load.rs"]
mod load;
mod mutation;
mod runs;
mod severed;

use kera_testkit::{etcd, namespaces};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::block_in_place;

use cluster::{BROKERS, Cluster};
use common::machine::skip;
use etcd::Etcd;
use faults::Fault;
use load::Load;
use runs::{Sums, number, number_and_seed, told, within_namespaces};

/// Set in the process that has the namespaces: number and seed of the run.
const INSIDE: &str = "KERA_NETWORK_INSIDE";
const TEST: &str = "three_brokers_keep_their_promises";

/// What `finale` asks of a run.
struct Plan {
    trims: bool,
}

#[test]
fn three_brokers_keep_their_promises() {
    if let Ok(run) = std::env::var(INSIDE) {
        let (run, seed) = number_and_seed(&run);
        return told(|| {}, one_run(run, seed));
    }
    if let Some(reason) = lacking() {
        return skip(TEST, &reason);
    }
    let begin = std::time::Instant::now();
    let given = number("KERA_NETWORK_SEED");
    let runs = given.map_or_else(|| number("KERA_NETWORK_RUNS").unwrap_or(10), |_| 2);
    let mut sums = Sums::default();
    for run in 0..runs {
        // A seed that is given is run with either half of the faults.
        let seed = given.unwrap_or_else(|| rand::rng().random());
        println!("run {run}, KERA_NETWORK_SEED={seed}");
        let done = within_namespaces(INSIDE, TEST, &format!("{run} {seed}"));
        sums.add(&done.unwrap_or_else(|reason| {
            panic!("run {run} failed, KERA_NETWORK_SEED={seed}\n{reason}")
        }));
    }
    // `make test-long` takes this line into its results.
    println!(
        "network: 3 copies, {runs} runs in {:?}, {} faults, {} kills, {} records, none lost, twice or out of order",
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

/// Why this machine cannot run these tests, if so.
fn lacking() -> Option<String> {
    namespaces::lacking().or_else(Etcd::lacking)
}

async fn one_run(run: u64, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut cluster = block_in_place(Cluster::start);
    let title = format!("network, seed {seed}");
    let load = Load::start(&title, &cluster.bootstrap(), seed).await;
    let faults = Fault::of_run(run, &mut rng);
    for fault in &faults {
        load.world.acknowledged_everywhere().await;
        fault.happen(&mut cluster, &load.world, &mut rng).await;
    }
    // All is well again: everything comes back, and goes on.
    let counts = load.finish().await.counts;
    let mut keepers = 0;
    for number in 1..=BROKERS {
        let kept = cluster.kept(number);
        keepers += u32::from(kept > 0);
        let free = cluster.free(number);
        eprintln!("broker {number} keeps {kept} copies, {free} bytes of their disk are free");
        assert!(
            free > 0,
            "the disk of broker {number}'s copies is full by itself: the load is too much for it"
        );
    }
    // One that was killed when the others had just begun new groups may be left with none.
    assert!(keepers >= 2, "{keepers} brokers keep copies: no test");
    block_in_place(|| cluster.holds_what_is_recorded());
    // The harness has begun a line.
    println!(
        "\nrun: {} faults {} kills {} records",
        faults.len(),
        counts.kills,
        counts.acknowledged
    );
}
