//! Settings of brokers and topics where there are several brokers.

use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::{
    ApiKey, CreateTopicsRequest, CreateTopicsResponse, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
};

use kera_broker::principal::Principal;
use kera_broker::quotas::{self, Change, Meter, Metered};
use kera_metadata::quota::{QuotaEntity, Whom};

use crate::common::Client;
use crate::{Cluster, topic, until, words};

/// Sets `num.partitions` of a broker, or of all without a name.
async fn set(client: &mut Client, broker: &str, partitions: &str) {
    let config = AlterableConfig::default()
        .with_name(words("num.partitions"))
        .with_value(Some(words(partitions)));
    let resource = AlterConfigsResource::default()
        .with_resource_type(4)
        .with_resource_name(words(broker))
        .with_configs(vec![config]);
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    let answer: IncrementalAlterConfigsResponse = client
        .call(ApiKey::IncrementalAlterConfigs, 1, &request)
        .await;
    let answer = &answer.responses[0];
    assert_eq!(answer.error_code, 0, "{:?}", answer.error_message);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_set_of_all_brokers_reaches_all_and_a_brokers_own_comes_before_it() {
    let cluster = Cluster::start().await;
    let mut clients = Vec::new();
    for (_, address) in &cluster.brokers {
        clients.push(Client::connect(*address).await);
    }
    let has = |at: usize, partitions: u32| {
        cluster.brokers[at]
            .0
            .shared()
            .live()
            .kafka
            .default_partitions
            == partitions
    };
    set(&mut clients[1], "2", "9").await;
    set(&mut clients[0], "", "5").await;
    until(|| has(0, 5) && has(1, 9) && has(2, 5)).await;
    // At another broker, which has heard of it.
    set(&mut clients[2], "", "6").await;
    until(|| has(0, 6) && has(1, 9) && has(2, 6)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_that_one_broker_takes_counts_at_all() {
    let cluster = Cluster::start().await;
    let limit = |at: usize| {
        let quotas = cluster.brokers[at].0.shared().quotas.clone();
        let mut meter = Meter::new(quotas, &Principal::User("ann".into()));
        meter.most(Metered::Appends, 1 << 30)
    };
    for rate in [1000, 77] {
        let change = Change {
            entity: QuotaEntity {
                user: Some(Whom::Name("ann".to_owned())),
                ..QuotaEntity::default()
            },
            limits: vec![("producer_byte_rate".to_owned(), Some(rate as f64))],
        };
        let shared = cluster.brokers[1].0.shared();
        let made = quotas::alter(shared, &[change], false)
            .await
            .expect("stored");
        assert_eq!(made, [Ok(())]);
        until(|| (0..3).all(|at| limit(at) == rate)).await;
    }
}

/// Creates a topic with a replication factor; returns error and replication factor of the answer.
async fn create(client: &mut Client, name: &str, factor: i16) -> (i16, i16) {
    let asked = CreatableTopic::default()
        .with_name(topic(name))
        .with_num_partitions(2)
        .with_replication_factor(factor);
    let request = CreateTopicsRequest::default()
        .with_topics(vec![asked])
        .with_timeout_ms(30_000);
    let answer: CreateTopicsResponse = client.call(ApiKey::CreateTopics, 7, &request).await;
    let made = &answer.topics[0];
    (made.error_code, made.replication_factor)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_has_the_replicas_that_were_asked_for() {
    const INVALID_REPLICATION_FACTOR: i16 = 38;
    let cluster = Cluster::start().await;
    let mut client = Client::connect(cluster.brokers[0].1).await;
    for (name, factor, made) in [("one", 1, 1), ("usual", -1, 3), ("two", 2, 2)] {
        assert_eq!(create(&mut client, name, factor).await, (0, made), "{name}");
        let shared = cluster.brokers[0].0.shared();
        let stream = shared.data.catalog.named(name).expect("it was made here");
        assert_eq!(stream.record.load().config.replicas, made as u32, "{name}");
    }
    for factor in [0, -2, 4] {
        let (error, _) = create(&mut client, "none", factor).await;
        assert_eq!(error, INVALID_REPLICATION_FACTOR, "{factor}");
    }
}
