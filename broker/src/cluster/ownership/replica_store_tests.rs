//! A replica store among the brokers that share a store: it is given replicas, and nothing else.

use kera_metadata::Role;

use super::*;
use crate::admin::{cluster, delete_stream};
use crate::cluster::BackupProcess;

impl Trio {
    /// Number 3, as a replica store.
    async fn replica_store(&self) -> Result<BackupProcess, BrokerError> {
        let config = self.config(3);
        BackupProcess::start_sharing(&config, self.view(3)).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_store_holds_what_brokers_own() {
    let trio = Trio::start_of(2, None).await;
    let store = trio.replica_store().await.expect("it starts");
    let live = trio.store.living().borrow().get(&3).cloned();
    let live = live.expect("it has a lease");
    assert_eq!((live.role, &*live.address), (Role::ReplicaStore, ""));
    assert_eq!(
        live.replication_address,
        store.backup().local_addr().to_string()
    );
    let recorded = trio.store.brokers().expect("they are read");
    let roles: Vec<_> = recorded.iter().map(|b| (b.id, b.role)).collect();
    let expected = [
        (1, Role::Broker),
        (2, Role::Broker),
        (3, Role::ReplicaStore),
    ];
    assert_eq!(roles, expected);
    for id in 1..=2 {
        let cluster = &trio
            .shared(id)
            .clustered
            .as_ref()
            .expect("it has peers")
            .peers;
        until(|| cluster.peers().iter().any(|peer| peer.id == 3)).await;
        // No client and no control call is led there.
        let directory = &trio.shared(id).data.directory;
        assert!(directory.broker(3).is_none());
        assert!(directory.brokers().iter().all(|info| info.id != 3));
    }

    // Its copies count: there are three with two brokers, and one of those may be lost.
    let config = StreamConfig {
        streamlets: 6,
        lanes: 1,
        replicas: 3,
        min_insync_replicas: 3,
        segment_size: 64 << 10,
        segments_per_group: 2,
        max_batch_bytes: 16 << 10,
        ..StreamConfig::default()
    };
    let stream = trio.create_with(1, "clicks", config).await;
    for number in 0..6 {
        let owner = trio.owner(1, stream, number).broker;
        assert!(owner == 1 || owner == 2, "streamlet {number}: {owner}");
        let shared = trio.shared(owner).clone();
        until(|| trio.streamlet(owner, stream, number).is_recovered()).await;
        append_all(&shared, &trio.streamlet(owner, stream, number), 0..5).await;
    }
    let held = store.backup().store().stats();
    assert!(held.copies_open >= 6, "{held:?}");

    // Nobody gives it a streamlet, and it is drained by nobody.
    let to_it = v1::MoveStreamletRequest {
        stream: "clicks".into(),
        streamlet: 0,
        to: 3,
        ..Default::default()
    };
    let refused = cluster::move_streamlet(trio.shared(1), to_it).await;
    let refused = refused.expect_err("it owns nothing").message;
    assert!(refused.contains("replica store 3"), "{refused}");
    let drain = v1::SetDrainingRequest {
        broker: 3,
        draining: true,
        ..Default::default()
    };
    let refused = cluster::set_draining(trio.shared(1), drain).await;
    let refused = refused.expect_err("it has nothing to give away").message;
    assert!(refused.contains("cluster.lost_after"), "{refused}");
    let told = cluster::describe_cluster(trio.shared(1), None).await;
    let told = told.expect("it is described");
    let three = told.brokers.iter().find(|one| one.id == 3);
    let three = three.expect("it is listed");
    assert!(three.replica_store && three.share == 0, "{three:?}");
    assert_eq!(three.state(), v1::BrokerState::Normal);

    // When it leaves, it is gone from the cluster at once.
    store.shutdown().await;
    let shared = trio.shared(1).clone();
    let cluster = &shared.clustered.as_ref().expect("it has peers").peers;
    until(|| cluster.peers().len() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_store_sees_by_itself_that_a_stream_is_gone() {
    let mut trio = Trio::start_of(2, None).await;
    let store = trio.replica_store().await.expect("it starts");
    for id in 1..=2 {
        let cluster = &trio
            .shared(id)
            .clustered
            .as_ref()
            .expect("it has peers")
            .peers;
        until(|| cluster.peers().iter().any(|peer| peer.id == 3)).await;
    }
    let stream = trio.create(1, "clicks").await;
    let owner = trio.owner(1, stream, 0).broker;
    until(|| trio.streamlet(owner, stream, 0).is_recovered()).await;
    append_all(trio.shared(owner), &trio.streamlet(owner, stream, 0), 0..5).await;
    let holds = |store: &BackupProcess| {
        let streams = store.backup().store().streams();
        streams.contains_key(&stream)
    };
    assert!(holds(&store));
    store.shutdown().await;
    let found = trio
        .shared(1)
        .data
        .catalog
        .get(stream)
        .expect("it is there");
    let deleted = delete_stream(trio.shared(1), &found).await;
    deleted.expect("it is deleted");
    // Nobody is left who could tell it.
    for id in 1..=2 {
        trio.end(id).await;
    }
    let store = trio.replica_store().await.expect("it starts");
    until(|| !holds(&store)).await;
    store.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_keeps_its_role() {
    let mut trio = Trio::start_of(2, None).await;
    trio.replica_store()
        .await
        .expect("it starts")
        .shutdown()
        .await;
    let Err(refused) = trio.beginning(3).await else {
        panic!("its files are no broker's");
    };
    let text = refused.to_string();
    assert!(
        text.contains("number 3 is that of a replica store"),
        "{text}"
    );
    assert!(!trio.store.living().borrow().contains_key(&3));
    trio.end(2).await;
    let config = trio.config(2);
    let started = BackupProcess::start_sharing(&config, trio.view(2)).await;
    let Err(refused) = started else {
        panic!("a broker's own files would be served by nobody");
    };
    let text = refused.to_string();
    assert!(text.contains("number 2 is that of a broker"), "{text}");
    trio.begin(2).await;
}
