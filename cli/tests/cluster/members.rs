//! Brokers that come to stay for a while, and that leave as documents say: drained first.

use kera_history::Event;
use serde_json::Value;
use tokio::task::block_in_place;

use crate::asking::until;
use crate::nodes::{FOURTH, Nodes};
use crate::world::World;

/// A fourth broker starts, and is given streamlets.
pub async fn joins(nodes: &mut Nodes, world: &World) {
    block_in_place(|| nodes.join());
    world.recorder().record(Event::BrokerStarted);
    let words = ["cluster", "status", "--json"];
    block_in_place(|| {
        until(&nodes.bootstrap(), &words, |text| {
            let status: Value = serde_json::from_str(text).ok()?;
            let mut brokers = status["brokers"].as_array()?.iter();
            let found = brokers.find(|found| found["broker_id"] == FOURTH)?;
            found["streamlets"].as_u64().filter(|count| *count > 0)
        })
    });
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
    block_in_place(|| {
        until(&nodes.bootstrap(), &words, |text| {
            let left: Value = serde_json::from_str(text.lines().last()?).ok()?;
            (left["may_stop"] == true).then_some(())
        })
    });
    eprintln!("broker {number} is drained");
    world.recorder().record(Event::BrokerStopped);
    block_in_place(|| nodes.stop(number));
    world.acknowledged_everywhere().await;
}
