//! The cable between two brokers is cut, and a third reaches both: how long records of either wait.

use std::time::Duration;

use kera_producer::{Producer, Record};
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::{Instant, sleep};

use crate::cluster::Cluster;
use crate::common::PATIENCE;
use crate::common::machine::skip;
use crate::runs::{told, within_namespaces};
use crate::world::World;
use crate::{INSIDE, lacking};

const TEST: &str = "severed::a_cut_between_two_brokers_holds_up_their_lanes_for_moments";
const STREAM: &str = "severed";
/// Two for each broker.
const STREAMLETS: u32 = 6;
const LANES: u32 = 2;
/// Enough for each lane to have some.
const KEYS: u32 = 16;
/// How long the cable is cut. It used to hold up every lane for 14 s.
const CUT: Duration = Duration::from_secs(5);
/// Three seconds on a machine that has nothing else to do, and less than it used to be on any.
const LENIENT: Duration = Duration::from_secs(12);

#[test]
fn a_cut_between_two_brokers_holds_up_their_lanes_for_moments() {
    if std::env::var(INSIDE).is_ok() {
        return told(|| {}, story());
    }
    if let Some(reason) = lacking() {
        return skip(TEST, &reason);
    }
    match within_namespaces(INSIDE, TEST, "severed") {
        Ok(text) => {
            let figures = text.lines().filter(|line| line.starts_with("severed: "));
            figures.for_each(|line| println!("{line}"));
        }
        Err(said) => panic!("{said}"),
    }
}

/// Sends records of one key, one after the other, until `end`; the longest wait for one of them.
fn sender(address: String, key: u32, end: Instant) -> JoinHandle<Duration> {
    tokio::spawn(async move {
        let producer = Producer::builder()
            .bootstrap(address)
            .stream(STREAM)
            .deadline(PATIENCE)
            .retry(World::retry())
            .build()
            .await
            .expect("a producer can be built");
        let mut longest = Duration::ZERO;
        let key = key.to_string();
        while Instant::now() < end {
            let begun = Instant::now();
            let record = Record::keyed(key.as_bytes(), b"a record");
            let sent = producer.append_wait(&record).await.expect("there is room");
            sent.await.expect("it is acknowledged");
            longest = longest.max(begun.elapsed());
            sleep(Duration::from_millis(5)).await;
        }
        producer.close().await.expect("everything is acknowledged");
        longest
    })
}

/// The longest wait for a record of the brokers at each of `addresses`.
async fn waits(addresses: &[String], time: Duration) -> Vec<Duration> {
    let end = Instant::now() + time;
    let senders = addresses.iter().map(|address| {
        let senders = (0..KEYS).map(|key| sender(address.clone(), key, end));
        senders.collect::<Vec<_>>()
    });
    let mut waits = Vec::new();
    for senders in senders.collect::<Vec<_>>() {
        let mut longest = Duration::ZERO;
        for sender in senders {
            longest = longest.max(sender.await.expect("senders do not panic"));
        }
        waits.push(longest);
    }
    waits
}

async fn story() {
    let mut cluster = block_in_place(Cluster::start);
    let (streamlets, lanes) = (STREAMLETS.to_string(), LANES.to_string());
    let mut words = vec!["stream", "create", STREAM];
    words.extend(["--streamlets", &streamlets, "--lanes", &lanes]);
    words.extend(["--replicas", "3", "--min-insync-replicas", "2"]);
    // Small, so that groups roll meanwhile.
    words.extend(["--segment-size", "64KiB", "--segments-per-group", "2"]);
    block_in_place(|| cluster.create(&words));
    let addresses = [1, 2].map(|number| cluster.broker(number).address().to_owned());
    let well = waits(&addresses, Duration::from_secs(1)).await;
    let cutting = async {
        // By then everything is under way.
        sleep(Duration::from_millis(500)).await;
        block_in_place(|| {
            cluster.network.cut(1, 2);
            cluster.network.cut(2, 1);
        });
    };
    let (severed, ()) = tokio::join!(waits(&addresses, CUT), cutting);
    block_in_place(|| cluster.network.heal());
    println!("\nsevered: longest waits {well:?} before the cut, {severed:?} with it");
    let longest = severed.into_iter().max().expect("two brokers");
    assert!(longest < LENIENT, "a record waited for {longest:?}");
}
