//! Dead letters of share groups whose topic is at another broker than what they come from.

use kera_broker::cluster::ownership;
use kera_metadata::StreamConfig;
use kera_protocol::ids::StreamletId;

use crate::common::shares::{REJECT, Sharer, dead_letters};
use crate::shares::{EARLIEST, configure, node_of};
use crate::{Cluster, leaders, metadata, produce, records};

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_find_the_owner_of_their_topic() {
    let cluster = Cluster::start().await;
    cluster.topic("t").await;
    let config = StreamConfig {
        replicas: 3,
        min_insync_replicas: 2,
        dead_letters: true,
        ..StreamConfig::default()
    };
    cluster.create("dlq.g", config).await;
    let mut anywhere = cluster.client(1).await;
    let node = node_of(&mut anywhere, "g").await;
    let set = [
        EARLIEST[0],
        ("errors.deadletterqueue.topic.name", "dlq.g"),
        ("errors.deadletterqueue.copy.record.enable", "true"),
    ];
    let mut at_coordinator = cluster.client(node).await;
    configure(&mut at_coordinator, "g", &set).await;
    let mut a = Sharer::new("g", "a");
    assert_eq!(a.beat(&mut at_coordinator, 0, "t").await.error_code, 0);
    let (letters_at, _) = leaders(&metadata(&mut anywhere, "dlq.g").await)[&0];
    let sources = leaders(&metadata(&mut anywhere, "t").await);
    let elsewhere = sources
        .iter()
        .find(|(_, (leader, _))| *leader != letters_at);
    let (&partition, &(leader, _)) = elsewhere.expect("leaders are spread");
    let shared = cluster.brokers[leader as usize - 1].0.shared();
    let stream = shared.data.catalog.named("t").unwrap().id();
    let mut at_leader = cluster.client(leader).await;
    assert_eq!(
        produce(&mut at_leader, "t", partition, records(4)).await,
        (0, 0)
    );
    let got = a.acquire(&mut at_leader, stream.0, partition).await;
    assert_eq!(got, [(0, 3, 1)]);
    let said = a
        .say(&mut at_leader, stream.0, partition, (0, 1), REJECT)
        .await;
    assert_eq!(said, 0);
    let mut at_letters = cluster.client(letters_at).await;
    let letters = dead_letters(&mut at_letters, "dlq.g", 0, 2).await;
    assert_eq!(letters[1].told("partition"), partition.to_string());
    assert_eq!(letters[1].value.as_deref(), Some("v1"));

    // Another broker owns it by now.
    let other = (1..=3)
        .find(|id| *id != leader && *id != letters_at)
        .unwrap();
    let before = cluster.brokers[letters_at as usize - 1].0.shared();
    let id = before.data.catalog.named("dlq.g").unwrap().id();
    ownership::hand_over(before, id, StreamletId(0), other as u32)
        .await
        .expect("the other takes it");
    let said = a
        .say(&mut at_leader, stream.0, partition, (2, 3), REJECT)
        .await;
    assert_eq!(said, 0);
    let mut at_other = cluster.client(other).await;
    let letters = dead_letters(&mut at_other, "dlq.g", 0, 4).await;
    assert_eq!(letters[3].told("offset"), "3");
    assert_eq!(shared.shares.counts.unwritten_dead_letters.get(), 0);
}
