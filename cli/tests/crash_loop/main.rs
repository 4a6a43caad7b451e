//! Kills a loaded broker at random moments, again and again, and checks what its clients saw.
//!
//! `KERA_CRASH_ROUNDS` (default 10) is the number of kills, `KERA_CRASH_SEED` repeats the choices of
//! an earlier run (not its timing). Each round prints its seed. A run that fails leaves its history
//! where it says; `cargo run -p kera-history --example check -- FILE --complete` judges it again.

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
use tokio::task::block_in_place;
use tokio::time::sleep;

use common::{Broker, PATIENCE, home};
use consuming::Members;
use producing::Producers;
use world::{KEYED, LANES, PINNED, STREAMLETS, World};

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn written_survives_kills_at_any_moment() {
    let rounds = number("KERA_CRASH_ROUNDS").unwrap_or(10);
    crash_loop("written", rounds).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn synced_survives_kills_at_any_moment() {
    let rounds = number("KERA_CRASH_ROUNDS").unwrap_or(10);
    crash_loop("synced", rounds.div_ceil(4)).await;
}

async fn crash_loop(ack: &str, rounds: u64) {
    let seed = number("KERA_CRASH_SEED").unwrap_or_else(|| rand::rng().random());
    let home = home();
    let path = home.path().join(format!("{ack}-{seed}.jsonl"));
    eprintln!("{ack}: {rounds} rounds, KERA_CRASH_SEED={seed}");
    let mut broker = block_in_place(|| {
        // The broker's own shortest session, so that a round is long enough to see one expire.
        Broker::with(&["--consumers-session-min", "500ms"])
    });
    let world = World::new(
        &path,
        &format!("crash loop, {ack}, seed {seed}"),
        broker.address(),
    );
    for stream in [KEYED, PINNED] {
        let lane_by = if stream == PINNED { "producer" } else { "key" };
        let (streamlets, lanes) = (STREAMLETS.to_string(), LANES.to_string());
        block_in_place(|| {
            broker.run(&[
                "stream",
                "create",
                World::stream_name(stream),
                "--ack",
                ack,
                "--streamlets",
                &streamlets,
                "--lanes",
                &lanes,
                "--lane-by",
                lane_by,
                // Small, so that segments and groups roll all the time.
                "--segment-size",
                "64KiB",
                "--segments-per-group",
                "2",
            ])
        });
    }
    world.learn_streams().await;
    world.recorder().record(Event::BrokerStarted);

    let producers = Producers::start(&world, seed);
    let mut members = Members::start(&world, seed);
    for round in 0..rounds {
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(round + 1));
        let acknowledged = world.acknowledged();
        if round == rounds / 2 {
            let lanes = (LANES * 2).to_string();
            block_in_place(|| {
                broker.run(&[
                    "stream",
                    "alter",
                    World::stream_name(KEYED),
                    "--lanes",
                    &lanes,
                ])
            });
            world.recorder().record(Event::LanesGrown {
                stream: KEYED,
                lanes: LANES * 2,
            });
        }
        if rng.random_bool(0.8) {
            members.change(&world, &mut rng).await;
        }
        // The moment: some time after the load has come back, or before it could.
        let early = rng.random_bool(0.2);
        if !early {
            world.acknowledged_above(acknowledged).await;
        }
        let delay = Duration::from_micros(rng.random_range(0..600_000));
        sleep(delay).await;
        world.recorder().record(Event::BrokerKilled);
        // Recovery is not spared either.
        let in_vain: Vec<Duration> = (0..rng.random_range(0..3_u32))
            .map(|_| Duration::from_micros(rng.random_range(0..150_000)))
            .collect();
        let took = block_in_place(|| {
            broker.kill();
            for delay in &in_vain {
                broker.restart_in_vain(*delay);
            }
            broker.restart()
        });
        world.recorder().record(Event::BrokerStarted);
        eprintln!(
            "round {round}, seed {}: killed {delay:?} after {} and {} times more while it started, \
             {} records acknowledged before, back in {took:?}",
            seed.wrapping_add(round + 1),
            if early {
                "the start"
            } else {
                "an acknowledgement"
            },
            in_vain.len(),
            world.acknowledged() - acknowledged,
        );
    }

    let sent = producers.finish().await;
    let drained = finale::drain(&world).await;
    members.finish().await;
    finale::read_everything(&world).await;
    let complaints = world.complaints();
    let history = world.finish();
    let report = check(&history, &expectations(ack)).expect("the history can be judged");
    println!("{report}");
    let verdict = judge(&report, sent, rounds).and(drained).and(complaints);
    if let Err(reason) = verdict {
        let kept = home.keep();
        panic!(
            "{reason}\nseed {seed}, the history is in {}\n{report}",
            kept.display()
        );
    }
    // `make test-long` takes this line into its results.
    println!(
        "crash loop: {ack}, {rounds} kills, {sent} records, none lost, twice or out of order, seed {seed}"
    );
}

fn expectations(ack: &str) -> Expectations {
    Expectations {
        ack: if ack == "synced" {
            AckPolicy::Synced
        } else {
            AckPolicy::Written
        },
        fault: Fault::Kill,
        complete: true,
        ..Expectations::default()
    }
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
        return Err(format!(
            "{} ordinals were given up although nothing was lost",
            counts.gap_ordinals
        ));
    }
    if counts.kills != rounds || sent < rounds * 100 {
        return Err(format!(
            "{} kills and {sent} records are no test",
            counts.kills
        ));
    }
    Ok(())
}
