//! Closed groups are read from copies while their owner is dead and nobody has taken its place.

use kera_consumer::{Fetch, Reader};

use super::together::{Together, lines};
use super::{LONG, PATIENCE};

/// What the first lane's full groups reach to.
fn closed_to(cluster: &Together, stream: &str) -> u64 {
    let described = cluster.json(&["stream", "describe", stream]);
    let lane = &described["lane_descriptions"][0];
    let groups = lane["groups"].as_array().expect("groups are listed");
    let closed = groups.iter().filter(|group| group["closed"] == true);
    let ends = closed.map(|group| group["end_ordinal"].as_u64().expect("an ordinal"));
    ends.max().unwrap_or(0)
}

#[test]
fn closed_groups_are_read_while_their_owner_is_dead() {
    let Some(mut cluster) = Together::start(3, LONG) else {
        return;
    };
    cluster.create_whole("flights", 1, 3);
    let sent = lines(0..6000);
    cluster.produce("flights", &sent);
    let closed = closed_to(&cluster, "flights") as usize;
    assert!(closed > 1000, "{closed}");
    // Who holds copies serves what is recorded as closed: it is everywhere, and no record is smaller.
    cluster.until(|status| {
        let brokers = status["brokers"].as_array().into_iter().flatten();
        let held = brokers.map(|one| one["held_bytes"].as_u64());
        held.min().flatten() >= Some(100 * closed as u64)
    });
    let owner = cluster.owner_of("flights", 0);
    let controller = cluster.status()["controller"].as_u64().expect("a number") as u32;
    let survivors: Vec<u32> = (1..=3)
        .filter(|id| *id != owner && *id != controller)
        .collect();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let mut reader = Reader::builder()
            .bootstrap(cluster.bootstrap())
            .stream("flights")
            .fetch(Fetch::Pull)
            .follow(true)
            // Little is read ahead, so that most is read when the owner is gone.
            .memory_limit(64 << 10)
            .fetch_bytes(16 << 10)
            .open()
            .await
            .expect("it opens");
        // Who would decide on another owner goes too; whoever follows it finds too few brokers for the copies
        // that the stream wants.
        cluster.broker(owner).kill();
        if controller != owner {
            cluster.broker(controller).kill();
        }
        let mut seen: Vec<String> = Vec::new();
        let reading = async {
            while seen.len() < closed {
                let batch = match reader.next_batch().await {
                    Ok(batch) => batch.expect("it follows"),
                    Err(error) => panic!("{error}"),
                };
                for record in batch.records() {
                    let value = record.expect("a record").value.expect("a value").to_vec();
                    seen.push(String::from_utf8(value).expect("text"));
                }
            }
        };
        tokio::time::timeout(PATIENCE, reading)
            .await
            .unwrap_or_else(|_| panic!("copies at {survivors:?} are not read"));
        assert_eq!(seen, sent[..seen.len()]);
        let from_copies = reader.metrics().copy_bytes;
        assert!(from_copies > 100 * 1000, "{from_copies}");
    });
    let status = cluster.status();
    assert_eq!(super::owned(&status, owner), 1, "nobody has taken over");
}
