//! Kills a loaded broker at random moments, again and again, and checks what librdkafka saw:
//! idempotent producers with acks = all, and a consumer group whose members come and go.
//!
//! `KERA_KAFKA_CRASH_ROUNDS` (default 5) is the number of kills, `KERA_KAFKA_CRASH_SEED` repeats the
//! choices of an earlier run (not its timing). Each round prints its seed. A run that fails leaves
//! its history where it says; `cargo run -p kera-history --example check -- FILE --complete` judges
//! it again.

#[path = "../common/mod.rs"]
mod common;

mod consuming;
mod finale;
mod producing;
mod world;

use std::time::Duration;

use kera_history::{AckPolicy, Event, Expectations, Fault, Report, check};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use common::home;
use common::{Broker, Kind, PATIENCE, Session, Setup, until};
use consuming::Members;
use producing::Producers;
use world::{PARTITIONS, TOPIC, World};

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
fn acknowledged_records_survive_kills_at_any_moment() {
    let name = "acknowledged_records_survive_kills_at_any_moment";
    let Some(mut broker) = Broker::start(name, Setup::KILLED) else {
        return;
    };
    let rounds = number("KERA_KAFKA_CRASH_ROUNDS").unwrap_or(5);
    let seed = number("KERA_KAFKA_CRASH_SEED").unwrap_or_else(|| rand::rng().random());
    eprintln!("{rounds} rounds, KERA_KAFKA_CRASH_SEED={seed}");
    if broker.is_kera() {
        // Small segments and groups, so that they roll all the time.
        let partitions = PARTITIONS.to_string();
        let words = [
            "stream",
            "create",
            TOPIC,
            "--streamlets",
            &partitions,
            "--lanes",
            "1",
            "--segment-size",
            "64KiB",
            "--segments-per-group",
            "2",
        ];
        broker.kera(&words, b"");
    } else {
        let mut session = Session::open(Kind::Librdkafka, &broker);
        session.create_topic(TOPIC, PARTITIONS, &[("segment.bytes", "1048576")]);
    }
    let home = home();
    let path = home.path().join(format!("kafka-{seed}.jsonl"));
    let title = format!("crash loop through librdkafka, seed {seed}");
    let world = World::new(&path, &title, broker.bootstrap());
    world.recorder().record(Event::BrokerStarted);

    let producers = Producers::start(&world, seed);
    let mut members = Members::start(&world, seed);
    for round in 0..rounds {
        let round_seed = seed.wrapping_add(round + 1);
        let mut rng = StdRng::seed_from_u64(round_seed);
        let acknowledged = world.acknowledged();
        // The moment: some time after the load has come back, or before it could.
        let early = rng.random_bool(0.2);
        if !early {
            until("records are acknowledged", || {
                (world.acknowledged() > acknowledged).then_some(())
            });
        }
        // Under load, so that a member that vanishes leaves work behind.
        if rng.random_bool(0.7) {
            members.change(&world);
        }
        let delay = Duration::from_micros(rng.random_range(0..800_000));
        wait(delay);
        world.recorder().record(Event::BrokerKilled);
        broker.kill();
        // Recovery is not spared either.
        let in_vain = rng.random_range(0..3_u32);
        for _ in 0..in_vain {
            broker.restart_in_vain(Duration::from_micros(rng.random_range(0..150_000)));
        }
        broker.restart();
        world.recorder().record(Event::BrokerStarted);
        eprintln!(
            "round {round}, seed {round_seed}: killed {delay:?} after {} and {in_vain} times more \
             while it started, {} records acknowledged before",
            if early {
                "the start"
            } else {
                "an acknowledgement"
            },
            world.acknowledged() - acknowledged,
        );
    }
    // The last start is followed by load, too.
    let acknowledged = world.acknowledged();
    until("records are acknowledged after the last kill", || {
        (world.acknowledged() > acknowledged).then_some(())
    });

    let sent = producers.finish();
    let drained = finale::drain(&world);
    members.finish();
    finale::read_everything(&world);
    let complaints = world.complaints();
    let history = world.finish();
    let expectations = Expectations {
        ack: AckPolicy::Written,
        fault: Fault::Kill,
        complete: true,
        ..Expectations::default()
    };
    let report = check(&history, &expectations).expect("the history can be judged");
    println!("{report}");
    let verdict = judge(&report, sent, rounds).and(drained).and(complaints);
    if let Err(reason) = verdict {
        let kept = home.keep();
        panic!(
            "{reason}: {}\nseed {seed}, the history is in {}",
            report.headline(),
            kept.display()
        );
    }
    // `make test-long` takes this line into its results.
    println!(
        "crash loop: librdkafka, {rounds} kills, {sent} records, none lost, twice or out of order, seed {seed}"
    );
}

/// Beyond what the checker asks for: that there was enough to check.
fn judge(report: &Report, sent: u64, rounds: u64) -> Result<(), String> {
    let counts = &report.counts;
    if !report.is_clean() {
        return Err("the broker did not keep its promises".to_owned());
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
    if counts.gap_ordinals > 0 {
        return Err("offsets were given up although nothing was lost".to_owned());
    }
    if counts.kills != rounds || sent < rounds * 100 {
        return Err(format!(
            "{} kills and {sent} records are no test",
            counts.kills
        ));
    }
    Ok(())
}
