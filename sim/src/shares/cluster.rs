//! Who leads partitions, and who coordinates the group, as brokers say.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    ApiKey, FindCoordinatorRequest, FindCoordinatorResponse, MetadataRequest, MetadataResponse,
    TopicName,
};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::GROUP_NAME;
use super::wire::Connection;

pub fn words(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// What brokers said last.
#[derive(Default)]
pub struct View {
    pub topic: Uuid,
    /// By partition.
    pub leaders: BTreeMap<i32, i32>,
    pub brokers: BTreeMap<i32, SocketAddr>,
}

/// Asks brokers, one after the other.
pub struct Cluster {
    addresses: Vec<SocketAddr>,
    turn: usize,
}

impl Cluster {
    /// `first` is which of the addresses is asked first.
    pub fn new(addresses: Vec<SocketAddr>, first: usize) -> Self {
        Self {
            addresses,
            turn: first,
        }
    }

    async fn any(&mut self) -> Result<Connection, String> {
        self.turn += 1;
        let address = self.addresses[self.turn % self.addresses.len()];
        Connection::open(address).await
    }

    /// What a broker says of the topic.
    pub async fn view(&mut self, name: &str) -> Result<View, String> {
        let topic = MetadataRequestTopic::default().with_name(Some(TopicName(words(name))));
        let request = MetadataRequest::default().with_topics(Some(vec![topic]));
        let mut connection = self.any().await?;
        let answer = connection.call(ApiKey::Metadata, 12, &request, Duration::ZERO);
        let answer: MetadataResponse = answer.await?;
        let Some(topic) = answer.topics.first() else {
            return Err(format!("nothing is told of {name}"));
        };
        if topic.error_code != 0 {
            return Err(format!("{name}: error {}", topic.error_code));
        }
        let brokers = answer.brokers.iter().filter_map(|broker| {
            let ip = broker.host.parse().ok()?;
            let port = u16::try_from(broker.port).ok()?;
            Some((broker.node_id.0, SocketAddr::new(ip, port)))
        });
        let partitions = topic.partitions.iter();
        Ok(View {
            topic: topic.topic_id,
            leaders: partitions
                .map(|one| (one.partition_index, one.leader_id.0))
                .collect(),
            brokers: brokers.collect(),
        })
    }

    /// A connection to the group's coordinator.
    pub async fn coordinator(&mut self) -> Result<Connection, String> {
        let request =
            FindCoordinatorRequest::default().with_coordinator_keys(vec![words(GROUP_NAME)]);
        let mut connection = self.any().await?;
        let answer = connection.call(ApiKey::FindCoordinator, 4, &request, Duration::ZERO);
        let answer: FindCoordinatorResponse = answer.await?;
        let Some(found) = answer.coordinators.first() else {
            return Err("nobody is said to coordinate the group".to_owned());
        };
        if found.error_code != 0 {
            return Err(format!("the coordinator: error {}", found.error_code));
        }
        let address = format!("{}:{}", found.host.as_str(), found.port);
        let address = address.parse::<SocketAddr>();
        let address = address.map_err(|error| format!("the coordinator: {error}"))?;
        Connection::open(address).await
    }
}
