//! Kafka Streams with `exactly_once_v2`: two instances count words and join two topics within a window, while brokers
//! and instances are killed. Each result is there once, and state that was lost comes back from its changelog.
//!
//! `KERA_KAFKA_STREAMS_ROUNDS` (default 6) is the number of faults.

#[path = "../common/mod.rs"]
mod common;

mod instances;
mod work;

use std::time::Duration;

use common::broker::unique;
use common::{Broker, Kind, Session, Setup, machine, tools};
use instances::Instance;
use work::{PARTITIONS, WORDS, Work, topic};

/// What all instances are told.
fn settings() -> Vec<String> {
    let settings = [
        // A member that is killed is soon missed, and what it left open soon aborted.
        "session.timeout.ms=6000",
        "heartbeat.interval.ms=500",
        "transaction.timeout.ms=8000",
        "reconnect.backoff.max.ms=500",
        // The counts' changelog is compacted by and by.
        "topic.segment.ms=1000",
        "topic.min.cleanable.dirty.ratio=0.01",
    ];
    settings.map(str::to_owned).to_vec()
}

fn rounds() -> u64 {
    let text = std::env::var("KERA_KAFKA_STREAMS_ROUNDS");
    text.map_or(6, |text| {
        let number = text.parse();
        number.unwrap_or_else(|_| panic!("KERA_KAFKA_STREAMS_ROUNDS is not a number: {text}"))
    })
}

#[test]
fn results_are_there_once_whatever_is_killed() {
    const TEST: &str = "results_are_there_once_whatever_is_killed";
    if let Some(reason) = tools::missing(&["java", "javac", "mvn"]) {
        return machine::skip(&format!("{TEST}, Kafka Streams"), &reason);
    }
    let class_path = tools::java("streams", "streams", &[]);
    let Some(mut broker) = Broker::start(TEST, Setup::KILLED) else {
        return;
    };
    let application = unique("streams");
    let mut client = Session::open(Kind::Librdkafka, &broker);
    for what in ["lines", "left", "right", "counted", "joined"] {
        client.create_topic(&topic(&application, what), PARTITIONS, &[]);
    }
    let settings = settings();
    let instance = || Instance::new(&class_path, broker.bootstrap(), &application, &settings);
    let mut instances = [instance(), instance()];
    instances.iter_mut().for_each(Instance::start);
    let mut work = Work::new(client, &application);
    let rounds = rounds();
    for round in 0..rounds {
        advance(&mut work, &instances, 5 * WORDS);
        eprintln!("fault {}, {} words were counted", round % 6, work.counted());
        fault(
            round % 6,
            &mut broker,
            &mut instances,
            &mut work,
            &application,
        );
    }
    advance(&mut work, &instances, 5 * WORDS);
    work.finish(|| instances.iter().for_each(Instance::check));
    // `make test-long` takes this line into its results.
    println!(
        "cluster: Kafka Streams, {rounds} faults, {} words counted once",
        work.counted()
    );
}

fn advance(work: &mut Work, instances: &[Instance], words: usize) {
    work.advance(words, || instances.iter().for_each(Instance::check));
}

fn fault(
    kind: u64,
    broker: &mut Broker,
    instances: &mut [Instance; 2],
    work: &mut Work,
    application: &str,
) {
    match kind {
        0 => {
            broker.kill();
            broker.restart();
        }
        // Its state is there, and under exactly-once it is not used.
        1 => {
            instances[0].kill();
            instances[0].start();
            instances[0].wait();
        }
        // While it recovers, once more.
        2 => {
            broker.kill();
            broker.restart_in_vain(Duration::from_millis(50));
            broker.restart();
        }
        // The other one takes over; what was begun ends with its time.
        3 => {
            instances[1].kill();
            instances[1].forget();
            advance(work, instances, 2 * WORDS);
            instances[1].start();
            instances[1].wait();
        }
        4 => {
            instances[0].kill();
            broker.kill();
            instances[0].start();
            broker.restart();
        }
        // Only the changelogs are left.
        _ => {
            if broker.is_kera() {
                let changelog = format!("{application}-counts-changelog");
                broker.kera(&["stream", "compact", &changelog], b"");
            }
            instances.iter_mut().for_each(|instance| {
                instance.kill();
                instance.forget();
            });
            let counted = work.counted();
            instances.iter_mut().for_each(Instance::start);
            instances.iter().for_each(Instance::wait);
            let restored: u64 = instances.iter().map(Instance::restored).sum();
            assert!(restored > 0, "nothing came from the changelog");
            assert!(
                !broker.is_kera() || restored < counted as u64 / 2,
                "{restored} records came from the compacted changelog of {counted} counts"
            );
        }
    }
}
