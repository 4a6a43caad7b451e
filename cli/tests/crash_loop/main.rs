//! Kills a loaded broker at random moments, again and again, and checks what its clients saw.
//!
//! `KERA_CRASH_ROUNDS` (default 10) is the number of kills, `KERA_CRASH_SEED` repeats the choices of
//! an earlier run (not its timing). Each round prints its seed. A run that fails leaves its history
//! where it says; `cargo run -p kera-history --example check -- FILE --complete` judges it again.
//!
//! Under `memory` acknowledged records may be lost with the broker, but only those sent before, and
//! nothing else may happen to them: none comes twice, late or under an ordinal that was used. Trims
//! and retention run in rounds of their own: what they took is not lost, and never served again.

#[path = "../common/mod.rs"]
mod common;

mod consuming;
mod finale;
mod harming;
mod producing;
mod trimming;
#[allow(dead_code)] // tests of several brokers use the rest
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
use trimming::Trimmer;
use world::{KEYED, LANES, PINNED, STREAMLETS, World};

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
    )
}

/// What a run is to show.
struct Plan {
    ack: AckPolicy,
    rounds: u64,
    /// Trims and retention go on all the time.
    trims: bool,
}

impl Plan {
    fn of(ack: AckPolicy, rounds: u64) -> Self {
        Self {
            ack,
            rounds,
            trims: false,
        }
    }

    fn ack(&self) -> &'static str {
        match self.ack {
            AckPolicy::Memory => "memory",
            AckPolicy::Written => "written",
            AckPolicy::Synced => "synced",
        }
    }

    fn name(&self) -> String {
        let trims = if self.trims { " with trims" } else { "" };
        format!("{}{trims}", self.ack())
    }
}

/// The number of kills, of which other runs than the first make a part.
fn rounds() -> u64 {
    number("KERA_CRASH_ROUNDS").unwrap_or(10)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn written_survives_kills_at_any_moment() {
    crash_loop(Plan::of(AckPolicy::Written, rounds())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn synced_survives_kills_at_any_moment() {
    crash_loop(Plan::of(AckPolicy::Synced, rounds().div_ceil(4))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_loses_what_it_may_and_mixes_up_nothing() {
    crash_loop(Plan::of(AckPolicy::Memory, rounds().div_ceil(3))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trims_and_retention_take_no_more_than_they_are_to() {
    let plan = Plan {
        trims: true,
        ..Plan::of(AckPolicy::Written, rounds().div_ceil(3))
    };
    crash_loop(plan).await;
}

fn create_streams(broker: &Broker, plan: &Plan) {
    let (streamlets, lanes) = (STREAMLETS.to_string(), LANES.to_string());
    for stream in [KEYED, PINNED] {
        let mut words = vec!["stream", "create", World::stream_name(stream)];
        words.extend(["--ack", plan.ack()]);
        words.extend(["--streamlets", &streamlets, "--lanes", &lanes]);
        let by_producer = stream == PINNED;
        words.extend(["--lane-by", if by_producer { "producer" } else { "key" }]);
        // Small, so that segments and groups roll all the time.
        words.extend(["--segment-size", "64KiB", "--segments-per-group", "2"]);
        if plan.trims && by_producer {
            words.extend(["--retention-bytes", "512KiB"]);
        }
        broker.run(&words);
    }
}

async fn crash_loop(plan: Plan) {
    let (name, rounds) = (plan.name(), plan.rounds);
    let seed = number("KERA_CRASH_SEED").unwrap_or_else(|| rand::rng().random());
    let home = home();
    let path = home.path().join(format!("{name}-{seed}.jsonl"));
    eprintln!("{name}: {rounds} rounds, KERA_CRASH_SEED={seed}");
    let mut broker = block_in_place(|| {
        Broker::with(&[
            // The broker's own shortest session, so that a round is long enough to see one expire.
            "--consumers-session-min",
            "500ms",
            "--retention-check-interval",
            "100ms",
        ])
    });
    let world = World::new(
        &path,
        &format!("crash loop, {name}, seed {seed}"),
        broker.address(),
        plan.ack == AckPolicy::Memory,
    );
    block_in_place(|| create_streams(&broker, &plan));
    world.learn_streams().await;
    world.recorder().record(Event::BrokerStarted);

    let producers = Producers::start(&world, seed);
    let mut members = Members::start(&world, seed);
    let trimmer = plan.trims.then(|| Trimmer::start(&world, seed));
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

    // What is sent now is never lost.
    world.acknowledged_above(world.acknowledged()).await;
    let sent = producers.finish().await;
    if let Some(trimmer) = trimmer {
        trimmer.finish().await;
    }
    let drained = finale::drain(&world).await;
    members.finish().await;
    finale::read_everything(&world, &plan).await;
    let complaints = world.complaints();
    let history = world.finish();
    let report = check(&history, &expectations(&plan)).expect("the history can be judged");
    println!("{report}");
    let verdict = judge(&report, sent, &plan).and(drained).and(complaints);
    if let Err(reason) = verdict {
        let kept = home.keep();
        panic!(
            "{reason}: {}\nseed {seed}, the history is in {}",
            report.headline(),
            kept.display()
        );
    }
    let lost = match plan.ack {
        AckPolicy::Memory => format!("{} lost as announced, none", report.counts.unread),
        _ => "none lost,".to_owned(),
    };
    // `make test-long` takes this line into its results.
    println!(
        "crash loop: {name}, {rounds} kills, {sent} records, {lost} twice or out of order, seed {seed}"
    );
}

fn expectations(plan: &Plan) -> Expectations {
    Expectations {
        ack: plan.ack,
        fault: Fault::Kill,
        complete: true,
        ..Expectations::default()
    }
}

/// Beyond what the checker asks for: that there was enough to check.
fn judge(report: &Report, sent: u64, plan: &Plan) -> Result<(), String> {
    let counts = &report.counts;
    let may_lose = plan.ack == AckPolicy::Memory;
    if !report.is_clean() {
        return Err("the broker did not keep its promises".to_owned());
    }
    // Some that were under way when everything was forgotten; the bulk is acknowledged.
    let uncertain = if may_lose {
        counts.unknown.min(sent / 4)
    } else {
        0
    };
    if counts.sent != sent || counts.acknowledged + uncertain != sent {
        return Err(format!(
            "{sent} records were to be sent, {} were, and {} acknowledged within {PATIENCE:?}",
            counts.sent, counts.acknowledged
        ));
    }
    if !may_lose && !plan.trims && (counts.unread > 0 || counts.read < sent) {
        return Err(format!("{} records were not read", sent - counts.read));
    }
    if !may_lose && counts.gap_ordinals > 0 {
        return Err(format!(
            "{} ordinals were given up although nothing was lost",
            counts.gap_ordinals
        ));
    }
    if counts.kills != plan.rounds || sent < plan.rounds * 100 || counts.read < sent / 10 {
        return Err(format!(
            "{} kills, {sent} records and {} of them read are no test",
            counts.kills, counts.read
        ));
    }
    Ok(())
}
