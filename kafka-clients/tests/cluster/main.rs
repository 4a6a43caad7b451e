//! Three brokers that share an etcd, and clients of librdkafka at all of them: brokers and etcd are
//! killed, stopped past their lease and restarted, and what the clients saw is judged by the history
//! checker. In network namespaces they are cut off from each other and from clients as well, see
//! `apart`. Clients that name their rack read from copies there, see `near`.
//!
//! `KERA_KAFKA_CLUSTER_ROUNDS` (default 6) is the number of faults, `KERA_KAFKA_CLUSTER_SEED` repeats
//! the choices of an earlier run (not its timing).

#[path = "../common/mod.rs"]
mod common;
#[path = "../crash_loop/consuming.rs"]
#[allow(dead_code)] // the crash loop uses the rest
mod consuming;
#[path = "../crash_loop/finale.rs"]
mod finale;
mod nodes;
#[path = "../crash_loop/producing.rs"]
mod producing;
#[path = "../../../cli/tests/network/runs.rs"]
#[allow(dead_code)] // tests of native clients use the rest
mod runs;
#[path = "../crash_loop/world.rs"]
#[allow(dead_code)] // the crash loop uses the rest
mod world;

mod apart;
mod near;
mod transactions;

use kera_testkit::{clock, etcd, namespaces};
use std::time::Duration;

use kera_history::{Event, Expectations, Report, check};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use clock::Clock;
use common::{PATIENCE, home, until};
use consuming::Members;
use etcd::Etcd;
use nodes::{BROKERS, LEASE, Nodes};
use producing::Producers;
use world::{PARTITIONS, TOPIC, World};

const TEST: &str = "librdkafka_finds_the_owner_whoever_it_is";

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// Some time, from a random choice.
#[expect(
    clippy::disallowed_methods,
    reason = "a random moment is what is wanted"
)]
fn wait(delay: Duration) {
    std::thread::sleep(delay);
}

#[test]
fn librdkafka_finds_the_owner_whoever_it_is() {
    if let Some(reason) = Etcd::lacking().or_else(Clock::lacking) {
        return common::machine::skip(TEST, &reason);
    }
    let rounds = number("KERA_KAFKA_CLUSTER_ROUNDS").unwrap_or(6);
    let seed = number("KERA_KAFKA_CLUSTER_SEED").unwrap_or_else(|| rand::rng().random());
    eprintln!("{rounds} rounds, KERA_KAFKA_CLUSTER_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut nodes = Nodes::start();
    let (sent, kills) = under_load(
        &mut nodes,
        seed,
        rounds,
        Vec::new(),
        |nodes, world, round| {
            fault(round % 6, nodes, world, &mut rng);
        },
    );
    // `make test-long` takes this line into its results.
    println!(
        "cluster: librdkafka, {rounds} faults, {kills} kills, {sent} records, none lost, twice or out of order, seed {seed}"
    );
}

/// Lets clients work at a topic while `fault` happens so many times, and judges what they saw: records sent,
/// and kills of brokers.
fn under_load(
    nodes: &mut Nodes,
    seed: u64,
    rounds: u64,
    settings: Vec<(&'static str, &'static str)>,
    mut fault: impl FnMut(&mut Nodes, &World, u64),
) -> (u64, u64) {
    let mut rng = StdRng::seed_from_u64(!seed);
    create(nodes);
    let home = home();
    let path = home.path().join(format!("kafka-cluster-{seed}.jsonl"));
    let title = format!("cluster through librdkafka, seed {seed}");
    let world = World::with(&path, &title, &nodes.bootstrap(), settings);
    world.recorder().record(Event::BrokerStarted);
    let producers = Producers::start(&world, seed);
    let mut members = Members::start(&world, seed);
    for round in 0..rounds {
        progress(&world);
        if rng.random_bool(0.5) {
            members.change(&world);
        }
        wait(Duration::from_micros(rng.random_range(0..500_000)));
        fault(nodes, &world, round);
    }
    progress(&world);
    let sent = producers.finish();
    let drained = finale::drain(&world);
    members.finish();
    finale::read_everything(&world);
    let complaints = world.complaints();
    let history = world.finish();
    let expectations = Expectations {
        complete: true,
        ..Expectations::default()
    };
    let report = check(&history, &expectations).expect("the history can be judged");
    println!("{report}");
    let verdicts = [judge(&report, sent, rounds), drained, complaints];
    let failed: Vec<_> = verdicts.into_iter().filter_map(Result::err).collect();
    if !failed.is_empty() {
        let kept = home.keep();
        eprintln!("seed {seed}, the history is in {}", kept.display());
        panic!("{}; {}", report.headline(), failed.join("; "));
    }
    (sent, report.counts.kills)
}

fn create(nodes: &Nodes) {
    let partitions = PARTITIONS.to_string();
    let words = [
        "stream",
        "create",
        // An attempt whose answer was lost may have made it.
        "--if-not-exists",
        TOPIC,
        "--streamlets",
        &partitions,
        "--lanes",
        "1",
        "--segment-size",
        "64KiB",
        "--segments-per-group",
        "2",
        "--replicas",
        "3",
        "--min-insync-replicas",
        "2",
        // Longer than any run, and shorter than a clock jumps.
        "--retention-time",
        "1h",
    ];
    // Brokers that serve may not have heard of each other yet.
    until("the stream is created", || nodes.kera(&words).then_some(()));
}

/// More is acknowledged than was.
fn progress(world: &World) {
    let before = world.acknowledged();
    until("records are acknowledged", || {
        (world.acknowledged() > before + 200).then_some(())
    });
}

fn fault(kind: u64, nodes: &mut Nodes, world: &World, rng: &mut StdRng) {
    let number = rng.random_range(0..BROKERS);
    eprintln!("fault {kind} at broker {}", number + 1);
    match kind {
        // Others take over while it is away.
        0 => {
            kill(nodes, world, number);
            progress(world);
            restart(nodes, world, number);
        }
        1 => {
            nodes.pause(number, true);
            wait(LEASE + Duration::from_millis(rng.random_range(0..1_000)));
            progress(world);
            nodes.pause(number, false);
        }
        2 => {
            kill(nodes, world, number);
            restart(nodes, world, number);
        }
        3 => {
            nodes.store.kill();
            nodes.store.restart();
        }
        // All wait until it is back.
        4 => {
            nodes.store.pause(true);
            wait(LEASE + Duration::from_millis(rng.random_range(0..1_000)));
            nodes.store.pause(false);
        }
        _ => {
            world.recorder().record(Event::BrokerStopped);
            nodes.stop(number);
            progress(world);
            restart(nodes, world, number);
        }
    }
}

fn kill(nodes: &mut Nodes, world: &World, number: usize) {
    world.recorder().record(Event::BrokerKilled);
    nodes.kill(number);
}

fn restart(nodes: &mut Nodes, world: &World, number: usize) {
    nodes.restart(number);
    world.recorder().record(Event::BrokerStarted);
}

/// Beyond what the checker asks for: that there was enough to check.
fn judge(report: &Report, sent: u64, rounds: u64) -> Result<(), String> {
    let counts = &report.counts;
    if !report.is_clean() {
        return Err("the cluster did not keep its promises".to_owned());
    }
    if counts.sent != sent || counts.acknowledged != sent {
        return Err(format!(
            "{sent} records were to be sent, {} were, and {} acknowledged within {PATIENCE:?}",
            counts.sent, counts.acknowledged
        ));
    }
    if counts.unread > 0 || counts.read < sent {
        return Err(format!("{} records were not read", sent - counts.read));
    }
    if sent < rounds * 100 {
        return Err(format!("{sent} records are no test"));
    }
    Ok(())
}
