//! What brokers tell each other of themselves, and where they cannot reach each other.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn brokers_on_several_machines_are_to_tell_addresses_that_others_reach() {
    let trio = Trio::start_of(2, None).await;
    let view: Arc<dyn ClusterStore> = Arc::new(View {
        store: trio.store.clone(),
        held: Held::default(),
        streams_read: Arc::default(),
        late: trio.late[2].subscribe(),
        starting: trio.starting[2].subscribe(),
    });
    let mut config = trio.config(3);
    config.cluster.host = Some("far".into());
    let Err(refused) = Broker::start_sharing(config, Some(view)).await else {
        panic!("its copies would lie at the machine of those that send them");
    };
    let BrokerError::Astray { broker: 3, .. } = &refused else {
        panic!("refused for something else: {refused}");
    };
    let left = |id: &u32| !trio.store.living().borrow().contains_key(id);
    assert!(left(&3), "it gives its place back");

    // Two that joined at the same moment may both be there.
    let join = |id: u32, replication: &str| {
        let incarnation = Incarnation {
            store_id: Uuid::from_u128(id.into()),
            boot_id: Uuid::nil(),
        };
        let live = LiveBroker {
            host: "far".into(),
            replication_address: replication.into(),
            ..LiveBroker::new(id, incarnation)
        };
        let seat = trio.store.join(live, Duration::from_secs(60));
        seat.expect("nobody has that number")
    };
    let _astray = join(8, "127.0.0.1:1");
    let _reached = join(9, "192.0.2.9:1");
    for id in 1..=2 {
        let cluster = &trio
            .shared(id)
            .clustered
            .as_ref()
            .expect("it has peers")
            .peers;
        let knows = |id: u32| cluster.peers().iter().any(|peer| peer.id == id);
        until(|| knows(9)).await;
        assert!(knows(3 - id) && !knows(8), "{:?}", cluster.peers());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_for_kafkas_clients_are_told_until_they_are_known() {
    let trio = Trio::start_of(2, None).await;
    trio.store.refuse_descriptions(2);
    let told = vec!["192.0.2.1:9092".to_owned()];
    trio.shared(1).data.directory.announce_kafka(told.clone());
    let known = || {
        let found = trio.shared(2).data.directory.broker(1);
        found.is_some_and(|found| found.kafka == told)
    };
    until(known).await;
    assert_eq!(trio.store.refusals_left(), 0);
}
