//! A broker that breaks the rule on purpose, so that the checker is seen to notice: it acknowledges
//! what one of a group's copies does not have. Only builds with debug assertions can be told to.

use kera_history::{Event, Expectations, Report, check};
use tokio::task::block_in_place;

use crate::cluster::{BROKERS, Cluster};
use crate::common::machine::skip;
use crate::common::{Broker, PATIENCE, home};
use crate::producing::Producers;
use crate::runs::{judge, told, within_namespaces};
use crate::world::{KEYED, LANES, PINNED, STREAMLETS, World};
use crate::{INSIDE, Plan, finale, lacking};

const TEST: &str = "mutation::an_acknowledgement_that_does_not_wait_for_a_copy_is_noticed";
const BROKEN: &str = "KERA_BROKEN_RULE=acknowledge_without_copy";

#[test]
fn an_acknowledgement_that_does_not_wait_for_a_copy_is_noticed() {
    match std::env::var(INSIDE).as_deref() {
        Ok("kept") => return told(|| {}, kept()),
        Ok(_) => return told(|| {}, broken()),
        Err(_) => {}
    }
    if let Some(reason) = lacking() {
        return skip(TEST, &reason);
    }
    if !cfg!(debug_assertions) {
        return skip(TEST, "brokers of this build break no rule");
    }
    for rule in ["kept", "broken"] {
        if let Err(said) = within_namespaces(INSIDE, TEST, rule) {
            panic!("with the rule {rule}:\n{said}");
        }
    }
}

async fn kept() {
    let (report, sent) = story(&[]).await;
    judge(&report, sent).unwrap_or_else(|reason| panic!("{reason}\n{report}"));
}

async fn broken() {
    let (report, _) = story(&[BROKEN]).await;
    assert!(
        !report.is_clean(),
        "records were lost, and nobody noticed\n{report}"
    );
    let said = report.to_string();
    assert!(said.contains("lost"), "{said}");
}

fn create_streams(broker: &Broker) {
    let (streamlets, lanes) = (STREAMLETS.to_string(), LANES.to_string());
    for stream in [KEYED, PINNED] {
        let mut words = vec!["stream", "create", World::stream_name(stream)];
        words.extend(["--streamlets", &streamlets, "--lanes", &lanes]);
        let by_producer = stream == PINNED;
        words.extend(["--lane-by", if by_producer { "producer" } else { "key" }]);
        // So large that no group ends.
        words.extend(["--segment-size", "4MiB", "--segments-per-group", "4"]);
        words.extend(["--replicas", "3", "--min-insync-replicas", "2"]);
        broker.run(&words);
    }
    let lanes = (LANES * 2).to_string();
    let keyed = World::stream_name(KEYED);
    broker.run(&["stream", "alter", keyed, "--lanes", &lanes]);
}

/// The second replica store is cut off from the broker, which goes on, dies, and loses its own
/// files while the first is away. Whatever it has acknowledged is at those that were not cut off, if it waited.
async fn story(environment: &[&str]) -> (Report, u64) {
    let home = home();
    let mut cluster = block_in_place(|| Cluster::with_stores(environment));
    let path = home.path().join("history.jsonl");
    let world = World::new(&path, "a rule", cluster.broker(1).address(), false);
    block_in_place(|| create_streams(cluster.broker(1)));
    world.learn_streams().await;
    world.recorder().record(Event::LanesGrown {
        stream: KEYED,
        lanes: LANES * 2,
    });
    world.recorder().record(Event::BrokerStarted);
    let producers = Producers::some(&world, 7, 4);
    for _ in 0..20 {
        world.acknowledged_above(world.acknowledged()).await;
    }
    block_in_place(|| {
        cluster.network.cut(1, 3);
        cluster.network.cut(3, 1);
    });
    // Whoever waits for it goes on once that counts as lost.
    for _ in 0..20 {
        world.acknowledged_above(world.acknowledged()).await;
    }
    let sent = producers.finish().await;
    world.recorder().record(Event::BrokerKilled);
    block_in_place(|| {
        let names = [KEYED, PINNED].map(World::stream_name);
        let streams = cluster.streams(1, &names);
        for number in 1..=BROKERS {
            cluster.kill(number);
        }
        assert!(cluster.lose_files(1, &streams) > 0, "it has no files");
        cluster.network.heal();
        // What the network held for its predecessor reaches it no more.
        cluster.restart(3);
        cluster.restart(1);
        if !environment.is_empty() {
            recovered(&cluster, &names);
        }
        cluster.restart(2);
        recovered(&cluster, &names);
    });
    world.recorder().record(Event::BrokerStarted);
    finale::read_everything(&world, &Plan { trims: false }).await;
    let history = world.finish();
    let expectations = Expectations {
        complete: true,
        ..Expectations::default()
    };
    let report = check(&history, &expectations).expect("the history can be judged");
    (report, sent)
}

/// Waits until the first broker serves these streams.
fn recovered(cluster: &Cluster, streams: &[&str]) {
    let begun = std::time::Instant::now();
    for stream in streams {
        loop {
            let described = cluster.broker(1).json(&["stream", "describe", stream]);
            let waiting = described["unrecovered"].as_array().expect("a list");
            if waiting.is_empty() {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "not recovered: {waiting:?}");
            std::thread::yield_now();
        }
    }
}
