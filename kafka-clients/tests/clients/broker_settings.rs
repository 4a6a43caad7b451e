//! Broker settings that librdkafka's admin client changes while the broker runs.

use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, ConfigEntry, ConfigSource, NewTopic, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};

use crate::common::{Broker, Setup};

type Admin = AdminClient<DefaultClientContext>;

fn config(broker: &Broker) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", broker.bootstrap());
    config
}

async fn setting(admin: &Admin, broker: i32, name: &str) -> ConfigEntry {
    let resource = ResourceSpecifier::Broker(broker);
    let described = admin.describe_configs([&resource], &AdminOptions::new());
    let described = described.await.expect("an answer").remove(0);
    let entries = described.expect("the broker's settings").entries;
    let mut entries = entries.into_iter();
    entries.find(|entry| entry.name == name).expect("a setting")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_setting_is_changed_takes_effect_and_outlives_a_kill() {
    let started = Broker::start("broker_settings", Setup::KILLED);
    let Some(mut broker) = started.filter(Broker::is_kera) else {
        return;
    };
    let admin: Admin = config(&broker).create().expect("an admin client");
    let before = setting(&admin, 1, "num.partitions").await;
    assert_eq!(before.value.as_deref(), Some("1"));
    assert!(matches!(before.source, ConfigSource::Default) && !before.is_read_only);

    let options = AdminOptions::new();
    let change = AlterConfig::new(ResourceSpecifier::Broker(1)).set("num.partitions", "5");
    let changed = admin.alter_configs([&change], &options).await;
    changed.expect("an answer").remove(0).expect("it is taken");
    assert!(setting(&admin, 1, "data_dir").await.is_read_only);

    tokio::task::block_in_place(|| {
        broker.kill();
        broker.restart();
    });
    let after = setting(&admin, 1, "num.partitions").await;
    assert_eq!(after.value.as_deref(), Some("5"));
    assert!(matches!(after.source, ConfigSource::DynamicBroker));
    let new = NewTopic::new("of-five", -1, TopicReplication::Fixed(1));
    let created = admin.create_topics([&new], &options).await;
    created.expect("an answer").remove(0).expect("a topic");
    let consumer: BaseConsumer = config(&broker).create().expect("a consumer");
    let metadata = consumer.fetch_metadata(Some("of-five"), std::time::Duration::from_secs(30));
    let metadata = metadata.expect("metadata");
    assert_eq!(metadata.topics()[0].partitions().len(), 5);
}
