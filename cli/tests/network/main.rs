//! Three broker processes in network namespaces: brokers are killed and stopped, cut off from each
//! other both ways and one way, put behind a slow cable, run out of disk, find a copy damaged or their
//! own files gone, while producers and consumers work at each. Every stream has a copy at each broker.
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
mod mutation;
mod namespaces;
mod runs;
mod severed;

use kera_history::{Event, Expectations, check};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::block_in_place;

use cluster::{BROKERS, Cluster};
use common::machine::skip;
use common::{Broker, home};
use consuming::Members;
use faults::Fault;
use producing::Producers;
use runs::{Sums, judge, number, number_and_seed, told, within_namespaces};
use world::{KEYED, LANES, ORDERED, PINNED, SHARED, STREAMLETS, World};

/// Copies of every stream, of which two must be left for it to go on.
const COPIES: u32 = 3;
/// Records of a broker's streams after which its producers go slowly: copies of two brokers' have to
/// fit the small disk of the third.
const BUDGET: u64 = 60_000;
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
    if let Some(reason) = namespaces::lacking() {
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
        "network: {COPIES} copies, {runs} runs in {:?}, {} faults, {} kills, {} records, none lost, twice or out of order",
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

fn create_streams(broker: &Broker, segment_size: &str) {
    let (streamlets, lanes) = (STREAMLETS.to_string(), LANES.to_string());
    let copies = COPIES.to_string();
    for stream in [KEYED, PINNED] {
        let mut words = vec!["stream", "create", World::stream_name(stream)];
        words.extend(["--streamlets", &streamlets, "--lanes", &lanes]);
        let by_producer = stream == PINNED;
        words.extend(["--lane-by", if by_producer { "producer" } else { "key" }]);
        words.extend(["--segment-size", segment_size, "--segments-per-group", "4"]);
        words.extend(["--replicas", &copies, "--min-insync-replicas", "2"]);
        broker.run(&words);
    }
    let lanes = (LANES * 2).to_string();
    let keyed = World::stream_name(KEYED);
    broker.run(&["stream", "alter", keyed, "--lanes", &lanes]);
}

async fn one_run(run: u64, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let home = home();
    let mut cluster = block_in_place(Cluster::start);
    let mut worlds = Vec::new();
    let mut loads = Vec::new();
    for number in 1..=BROKERS {
        let path = home.path().join(format!("broker{number}-{seed}.jsonl"));
        let title = format!("network, broker {number}, seed {seed}");
        let broker = cluster.broker(number);
        let world = World::new(&path, &title, broker.address(), false);
        world.set_budget(BUDGET);
        // Small, so that segments and groups roll all the time.
        block_in_place(|| create_streams(broker, "64KiB"));
        world.learn_streams().await;
        world.recorder().record(Event::LanesGrown {
            stream: KEYED,
            lanes: LANES * 2,
        });
        world.recorder().record(Event::BrokerStarted);
        let own = seed ^ u64::from(number) << 56;
        // One by key, one without, one that is pinned.
        let producers = Producers::some(&world, own, 4);
        let members = Members::of(&world, own, &[ORDERED, SHARED, SHARED]);
        loads.push((producers, members));
        worlds.push(world);
    }
    let faults = Fault::of_run(run, &mut rng);
    for fault in &faults {
        progress(&worlds).await;
        fault.happen(&mut cluster, &worlds, &mut rng).await;
    }
    // All is well again: everything comes back, and goes on.
    progress(&worlds).await;
    let mut ended = Vec::new();
    for (world, (producers, members)) in worlds.into_iter().zip(loads) {
        ended.push((world, producers.finish().await, members));
    }
    eprintln!("all is sent");
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
    let mut failed = Vec::new();
    let (mut kills, mut records) = (0, 0);
    for (number, (world, sent, members)) in (1..).zip(ended) {
        let drained = finale::drain(&world).await;
        eprintln!("{sent} records, groups have read them: {drained:?}");
        members.finish().await;
        finale::read_everything(&world, &Plan { trims: false }).await;
        let complaints = world.complaints();
        let history = world.finish();
        let expectations = Expectations {
            complete: true,
            ..Expectations::default()
        };
        let report = check(&history, &expectations).expect("the history can be judged");
        kills += report.counts.kills;
        records += report.counts.acknowledged;
        let verdicts = [judge(&report, sent), drained, complaints];
        let reasons: Vec<_> = verdicts.into_iter().filter_map(Result::err).collect();
        if !reasons.is_empty() {
            eprintln!("streams of broker {number}: {report}");
            let (reasons, headline) = (reasons.join("; "), report.headline());
            failed.push(format!("streams of broker {number}: {headline}; {reasons}"));
        }
    }
    block_in_place(|| cluster.holds_what_is_recorded());
    if !failed.is_empty() {
        let kept = home.keep();
        eprintln!("seed {seed}, the histories are in {}", kept.display());
        panic!("{}", failed.join("\n"));
    }
    // The harness has begun a line.
    println!(
        "\nrun: {} faults {kills} kills {records} records",
        faults.len()
    );
}

/// Waits until each broker has acknowledged something more.
async fn progress(worlds: &[World]) {
    for world in worlds {
        world.acknowledged_above(world.acknowledged()).await;
    }
}
