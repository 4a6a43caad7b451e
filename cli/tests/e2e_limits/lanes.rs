//! Many lanes in little memory.

use std::time::Duration;

use kera_producer::Producer;
use tokio::task::block_in_place;
use tokio::time::{interval, timeout};

use super::load::{Shape, read_back, send};
use crate::common::machine::{Memory, mib, skip};
use crate::common::{Broker, PATIENCE};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// What a broker may need beside `memory.pool`: code, threads, buffers of connections, and the
/// records in flight.
const BESIDE_THE_POOL: u64 = 256 * MIB;
/// An idle broker's memory, beside the program itself, of which a debug build alone has 45 MiB.
const IDLE: u64 = 12 * MIB;

async fn producer(broker: &Broker, stream: &str, batch_size: usize) -> Producer {
    Producer::builder()
        .bootstrap(broker.address())
        .stream(stream)
        .batch_size(batch_size)
        .deadline(PATIENCE)
        .build()
        .await
        .expect("a producer can be built")
}

/// The broker's memory; none, said loudly, where the system does not tell.
fn memory(broker: &Broker, test: &str) -> Option<Memory> {
    let memory = Memory::of(broker.pid());
    match memory {
        Some(memory) => eprintln!(
            "{test}: {} now, {} at the most",
            mib(memory.now),
            mib(memory.peak)
        ),
        None => skip(
            &format!("e2e_limits {test}"),
            "no /proc here to look up a process's memory",
        ),
    }
    memory
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_started_broker_needs_little_memory() {
    let broker = block_in_place(Broker::start);
    block_in_place(|| broker.run(&["stream", "create", "s"]));
    let Some(memory) = memory(&broker, "an idle broker") else {
        return;
    };
    assert!(memory.own < IDLE, "{} of its own", mib(memory.own));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_busy_lanes_fit_a_pool_of_a_gibibyte() {
    let broker = block_in_place(|| Broker::with(&["--memory-pool", "1GiB"]));
    let shape = Shape {
        streamlets: 8,
        lanes: 128,
    };
    block_in_place(|| shape.create(&broker, "s", &[]));
    let producer = producer(&broker, "s", 32 << 10).await;
    // More for each lane than the broker keeps in memory of it.
    let rounds = 48;
    send(&producer, &shape.keys(), rounds, 8 << 10).await;
    producer.close().await.expect("a producer can be closed");
    read_back(&broker, "s", shape, rounds).await;
    let Some(memory) = memory(&broker, "1,024 busy lanes") else {
        return;
    };
    let allowed = GIB + BESIDE_THE_POOL;
    assert!(memory.peak < allowed, "{} at the most", mib(memory.peak));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_lanes_with_a_trickle_give_their_memory_back() {
    let broker = block_in_place(|| Broker::with(&["--memory-idle-release", "200ms"]));
    let shape = Shape {
        streamlets: 20,
        lanes: 500,
    };
    if let Some(reason) = few_files(shape.all()) {
        skip("e2e_limits ten thousand lanes", &reason);
        return;
    }
    block_in_place(|| shape.create(&broker, "s", &[]));
    let producer = producer(&broker, "s", 4 << 10).await;
    let rounds = 3;
    send(&producer, &shape.keys(), rounds, 100).await;
    producer.close().await.expect("a producer can be closed");
    read_back(&broker, "s", shape, rounds).await;
    if let Some(memory) = memory(&broker, "10,000 lanes") {
        assert!(memory.peak < 2 * GIB, "{} at the most", mib(memory.peak));
    }
    // Nobody appends or reads any more.
    let given_back = timeout(PATIENCE, async {
        let mut looks = interval(Duration::from_millis(100));
        while pool_used(&broker) > 0 {
            looks.tick().await;
        }
    });
    given_back
        .await
        .unwrap_or_else(|_| panic!("{} bytes of the pool stay in use", pool_used(&broker)));
}

/// Bytes of the pool that are in use.
fn pool_used(broker: &Broker) -> u64 {
    let described = block_in_place(|| broker.json(&["broker", "describe"]));
    described["pool_used_bytes"].as_u64().expect("a number")
}

/// Why not so many files can be open at a time, if they cannot.
fn few_files(wanted: usize) -> Option<String> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum?;
    // A file for each lane, and some.
    (limit < wanted as u64 + 200).then(|| format!("a process may open {limit} files at most"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_lanes_take_turns_in_a_small_pool() {
    // 256 chunks for 1,000 lanes.
    let broker = block_in_place(|| Broker::with(&["--memory-pool", "16MiB"]));
    let shape = Shape {
        streamlets: 4,
        lanes: 250,
    };
    block_in_place(|| shape.create(&broker, "s", &["--segment-size", "64KiB"]));
    let (one, other) = tokio::join!(
        producer(&broker, "s", 8 << 10),
        producer(&broker, "s", 8 << 10)
    );
    let keys = shape.keys();
    // Each half from a connection of its own, so that one's lanes hold what the other waits for.
    let (even, odd): (Vec<_>, Vec<_>) = keys.iter().partition(|key| key[0] % 2 == 0);
    let rounds = 20;
    tokio::join!(
        send(&one, &even, rounds, 2 << 10),
        send(&other, &odd, rounds, 2 << 10)
    );
    read_back(&broker, "s", shape, rounds).await;
    let described = block_in_place(|| broker.json(&["broker", "describe"]));
    assert_eq!(described["pool_bytes"], 16 << 20);
    if let Some(memory) = memory(&broker, "1,000 lanes in 16 MiB") {
        let allowed = 16 * MIB + BESIDE_THE_POOL;
        assert!(memory.peak < allowed, "{} at the most", mib(memory.peak));
    }
}
