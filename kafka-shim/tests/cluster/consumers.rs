//! A group of the consumer protocol whose coordinator changes.

use std::collections::BTreeSet;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::messages::{
    ApiKey, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, GroupId,
};
use kera_broker::cluster::ownership;
use kera_broker::coordination::GROUPS_STREAM;
use uuid::Uuid;

use crate::common::Client;
use crate::{Cluster, coordinator, topic, words};

/// A member as its client is, which does at once what it is told.
struct Member {
    id: &'static str,
    epoch: i32,
    owned: BTreeSet<i32>,
}

impl Member {
    fn new(id: &'static str) -> Self {
        Self {
            id,
            epoch: 0,
            owned: BTreeSet::new(),
        }
    }

    /// One heartbeat that says everything. The error code, once the broker knows who coordinates the group.
    async fn beat(&mut self, client: &mut Client, stream: Uuid) -> i16 {
        let owned = TopicPartitions::default()
            .with_topic_id(stream)
            .with_partitions(self.owned.iter().copied().collect());
        let owned = (!self.owned.is_empty()).then_some(owned);
        let request = ConsumerGroupHeartbeatRequest::default()
            .with_group_id(GroupId(words("g")))
            .with_member_id(words(self.id))
            .with_member_epoch(self.epoch)
            .with_rebalance_timeout_ms(60_000)
            .with_subscribed_topic_names(Some(vec![topic("t")]))
            .with_topic_partitions(Some(owned.into_iter().collect()));
        let loading = ResponseError::CoordinatorLoadInProgress.code();
        loop {
            let answer: ConsumerGroupHeartbeatResponse = client
                .call(ApiKey::ConsumerGroupHeartbeat, 1, &request)
                .await;
            match answer.error_code {
                0 => {}
                code if code == loading => continue,
                code => return code,
            }
            self.epoch = answer.member_epoch;
            if let Some(assignment) = answer.assignment {
                let topics = assignment.topic_partitions.into_iter();
                self.owned = topics.flat_map(|topic| topic.partitions).collect();
            }
            return 0;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_go_on_at_another_coordinator_and_no_partition_has_two() {
    let cluster = Cluster::start().await;
    cluster.topic("t").await;
    let shared = cluster.brokers[0].0.shared();
    let stream = shared.data.catalog.named("t").unwrap().id().0;
    let mut anywhere = cluster.client(1).await;
    let mut found = coordinator(&mut anywhere, "g").await;
    while found.0 != 0 {
        found = coordinator(&mut anywhere, "g").await;
    }
    let node = found.1;
    let (mut a, mut b) = (Member::new("a"), Member::new("b"));
    let mut before = cluster.client(node).await;
    assert_eq!(a.beat(&mut before, stream).await, 0);
    assert_eq!((a.epoch, a.owned.len()), (1, 6));
    // b waits for what a has not given back when the coordinator changes.
    assert_eq!(b.beat(&mut before, stream).await, 0);
    assert_eq!((b.epoch, b.owned.len()), (2, 0));
    let other = node % 3 + 1;
    let shared = cluster.brokers[node as usize - 1].0.shared();
    let groups = shared.data.catalog.named(GROUPS_STREAM).unwrap();
    for streamlet in &groups.streamlets {
        if shared.owner_of(&streamlet).broker == node as u32 {
            let (stream, to) = (groups.id(), other as u32);
            let given = ownership::hand_over(shared, stream, streamlet.id(), to).await;
            given.expect("the other takes it");
        }
    }
    let mut after = cluster.client(other).await;
    let not_here = ResponseError::NotCoordinator.code();
    assert_eq!(b.beat(&mut before, stream).await, not_here);
    let mut rounds = 0;
    while (a.owned.len(), b.owned.len()) != (3, 3) || (a.epoch, b.epoch) != (2, 2) {
        for member in [&mut b, &mut a] {
            let code = member.beat(&mut after, stream).await;
            // Until the other has heard that it is the owner.
            assert!(code == 0 || code == not_here, "{code}");
            rounds += i32::from(code == 0);
        }
        assert!(a.owned.is_disjoint(&b.owned), "{:?} {:?}", a.owned, b.owned);
        assert!(rounds < 20, "members do not get to their shares");
    }
    let all: BTreeSet<i32> = a.owned.union(&b.owned).copied().collect();
    assert_eq!(all, (0..6).collect());
}
