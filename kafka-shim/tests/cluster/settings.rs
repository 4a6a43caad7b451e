//! Broker settings that are changed at one broker of several.

use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::{
    ApiKey, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
};

use crate::common::Client;
use crate::{Cluster, until, words};

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
