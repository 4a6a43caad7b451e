//! Brokers that come to stay for a while, and that leave as documents say: drained first.

use std::time::{Duration, Instant};

use kera_history::Event;
use serde_json::Value;
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::common::command::finish_within;
use crate::common::{Finished, PATIENCE, kera};
use crate::nodes::{FOURTH, Nodes};
use crate::world::World;

/// For what moves between brokers under load.
const LONG_PATIENCE: Duration = PATIENCE.saturating_mul(3);

/// A fourth broker starts, and is given streamlets.
pub async fn joins(nodes: &mut Nodes, world: &World) {
    block_in_place(|| nodes.join());
    world.recorder().record(Event::BrokerStarted);
    let words = ["cluster", "status", "--json"];
    until(nodes, &words, |text| {
        let status: Value = serde_json::from_str(text).ok()?;
        let mut brokers = status["brokers"].as_array()?.iter();
        let found = brokers.find(|found| found["broker_id"] == FOURTH)?;
        found["streamlets"].as_u64().filter(|count| *count > 0)
    })
    .await;
    world.acknowledged_everywhere().await;
}

/// The fourth broker leaves for good, if it is there.
pub async fn leaves(nodes: &mut Nodes, world: &World) {
    if nodes.has_joined() {
        goes(nodes, world, FOURTH).await;
        nodes.forget_fourth();
    }
}

/// A broker gives away what it owns, and stops. All goes on without it.
pub async fn goes(nodes: &mut Nodes, world: &World, number: u32) {
    let name = number.to_string();
    let words = ["broker", "drain", &name, "--json"];
    until(nodes, &words, |text| {
        let left: Value = serde_json::from_str(text.lines().last()?).ok()?;
        (left["may_stop"] == true).then_some(())
    })
    .await;
    eprintln!("broker {number} is drained");
    world.recorder().record(Event::BrokerStopped);
    block_in_place(|| nodes.stop(number));
    world.acknowledged_everywhere().await;
}

/// Runs a client command until it succeeds, and until its answer is as it is to be.
async fn until<T>(nodes: &Nodes, words: &[&str], look: impl Fn(&str) -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        let finished = block_in_place(|| attempt(nodes, words));
        let text = finished.text();
        let found = finished.status.success().then(|| look(&text)).flatten();
        if let Some(found) = found {
            return found;
        }
        assert!(
            begin.elapsed() < LONG_PATIENCE,
            "kera {}: {text} {}",
            words.join(" "),
            finished.stderr
        );
        // Nobody tells when a broker has heard of another.
        sleep(Duration::from_millis(100)).await;
    }
}

fn attempt(nodes: &Nodes, words: &[&str]) -> Finished {
    let mut command = kera();
    command.args(words).env("KERA_BOOTSTRAP", nodes.bootstrap());
    finish_within(command, b"", LONG_PATIENCE)
}
