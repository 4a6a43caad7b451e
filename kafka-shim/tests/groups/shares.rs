//! Share groups: sessions, locks, and what becomes of them when connections end.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::alter_configs_request::{AlterConfigsResource, AlterableConfig};
use kafka_protocol::messages::alter_share_group_offsets_request::{
    AlterShareGroupOffsetsRequestPartition, AlterShareGroupOffsetsRequestTopic,
};
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResponse, AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse, ApiKey, CreatePartitionsRequest, CreatePartitionsResponse,
    GroupId, ListGroupsRequest, ListGroupsResponse, ProduceRequest, ProduceResponse,
    ShareFetchResponse,
};
use kafka_protocol::protocol::Decodable;
use kera_protocol::batch::{Compression, ProducerStamp};
use uuid::Uuid;

use crate::common::newer_bodies::share_fetch;
use crate::common::shares::{ACCEPT, REJECT, RELEASE, RENEW, Sharer, acquired, alter, parts};
use crate::common::{Client, World, batch};
use crate::{topic, words};

/// A group that begins with the first record.
pub(crate) async fn begin(world: &World, client: &mut Client, set: &[(&str, &str)]) -> Uuid {
    world.topic("t", 1);
    let earliest = [("share.auto.offset.reset", "earliest")];
    let is_set = |name: &str| set.iter().any(|(known, _)| *known == name);
    let all = earliest.iter().filter(|(name, _)| !is_set(name)).chain(set);
    let configs = all.map(|(name, value)| {
        AlterableConfig::default()
            .with_name(words(name))
            .with_value(Some(words(value)))
    });
    let resource = AlterConfigsResource::default()
        .with_resource_type(32)
        .with_resource_name(words("g"))
        .with_configs(configs.collect());
    let request = AlterConfigsRequest::default().with_resources(vec![resource]);
    let altered: AlterConfigsResponse = client.call(ApiKey::AlterConfigs, 2, &request).await;
    assert_eq!(altered.responses[0].error_code, 0, "{altered:?}");
    let stream = world.broker.shared().data.catalog.named("t");
    stream.expect("the topic").id().0
}

pub(crate) async fn send(client: &mut Client, records: usize) {
    send_to(client, 0, records).await;
}

async fn send_to(client: &mut Client, partition: i32, records: usize) {
    let records = batch("v", records, Compression::None, ProducerStamp::NONE);
    let data = PartitionProduceData::default()
        .with_index(partition)
        .with_records(Some(records));
    let data = TopicProduceData::default()
        .with_name(topic("t"))
        .with_partition_data(vec![data]);
    let request = ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![data]);
    let reply: ProduceResponse = client.call(ApiKey::Produce, 9, &request).await;
    assert_eq!(reply.responses[0].partition_responses[0].error_code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_holds_no_other_gets_until_it_is_given_back() {
    let world = World::start().await;
    let (mut one, mut two) = (world.client().await, world.client().await);
    let stream = begin(&world, &mut one, &[]).await;
    let (mut a, mut b) = (Sharer::new("g", "a"), Sharer::new("g", "b"));
    assert_eq!(a.beat(&mut one, 0, "t").await.error_code, 0);
    let joined = b.beat(&mut two, 0, "t").await;
    let assigned = joined.assignment.expect("partitions").topic_partitions;
    assert_eq!(assigned[0].partitions, [0], "members share it");
    send(&mut one, 10).await;
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(0, 9, 1)]);
    let nothing = b.fetch(&mut two, stream, 0, 0).await;
    assert_eq!(acquired(&nothing), []);
    let wrong = ResponseError::InvalidRecordState.code();
    assert_eq!(b.say(&mut two, stream, 0, (0, 9), ACCEPT).await, wrong);
    assert_eq!(a.say(&mut one, stream, 0, (0, 3), ACCEPT).await, 0);
    assert_eq!(a.say(&mut one, stream, 0, (4, 5), RELEASE).await, 0);
    assert_eq!(a.say(&mut one, stream, 0, (6, 6), REJECT).await, 0);
    assert_eq!(
        a.say(&mut one, stream, 0, (5, 7), ACCEPT).await,
        wrong,
        "all or nothing"
    );
    assert_eq!(b.acquire(&mut two, stream, 0).await, [(4, 5, 2)]);
    // A fetch that waits gets what a connection that ends leaves behind.
    let request = b.fetch_request(stream, &[0], 60_000);
    let waits = two.send(ApiKey::ShareFetch, 1, &request).await;
    b.epoch += 1;
    drop(one);
    let told = two.receive(ApiKey::ShareFetch, 1, waits).await;
    assert_eq!(acquired(&told), [(7, 9, 2)]);
    assert_eq!(b.say(&mut two, stream, 0, (4, 5), ACCEPT).await, 0);
    assert_eq!(b.say(&mut two, stream, 0, (7, 9), ACCEPT).await, 0);
    // Or what is appended.
    let request = b.fetch_request(stream, &[0], 60_000);
    let waits = two.send(ApiKey::ShareFetch, 1, &request).await;
    let mut three = world.client().await;
    send(&mut three, 2).await;
    let told = two.receive(ApiKey::ShareFetch, 1, waits).await;
    assert_eq!(acquired(&told), [(10, 11, 1)]);
    b.epoch += 1;
    // Or what another gives back.
    let request = a.fetch_request(stream, &[0], 60_000);
    let request = request.with_share_session_epoch(0);
    let mut four = world.client().await;
    let waits = four.send(ApiKey::ShareFetch, 1, &request).await;
    assert_eq!(b.say(&mut two, stream, 0, (11, 11), RELEASE).await, 0);
    let told = four.receive(ApiKey::ShareFetch, 1, waits).await;
    assert_eq!(acquired(&told), [(11, 11, 2)]);
    let listed: ListGroupsResponse = three
        .call(ApiKey::ListGroups, 5, &ListGroupsRequest::default())
        .await;
    let listed = &listed.groups[0];
    assert_eq!(
        (listed.group_type.as_str(), listed.group_state.as_str()),
        ("share", "Stable")
    );
    assert_eq!(listed.protocol_type.as_str(), "share");
}

/// No more than so many records of a partition are in flight; what is done makes room for others that wait.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_makes_room() {
    let world = World::start().await;
    let (mut one, mut two) = (world.client().await, world.client().await);
    let set = [("share.partition.max.record.locks", "100")];
    let stream = begin(&world, &mut one, &set).await;
    let (mut a, mut b) = (Sharer::new("g", "a"), Sharer::new("g", "b"));
    a.beat(&mut one, 0, "t").await;
    send(&mut one, 150).await;
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(0, 99, 1)]);
    let request = b.fetch_request(stream, &[0], 60_000);
    let waits = two.send(ApiKey::ShareFetch, 1, &request).await;
    b.epoch += 1;
    assert_eq!(a.say(&mut one, stream, 0, (20, 59), ACCEPT).await, 0);
    let told = two.receive(ApiKey::ShareFetch, 1, waits).await;
    assert_eq!(acquired(&told), [(100, 139, 1)]);
    assert_eq!(b.say(&mut two, stream, 0, (100, 139), ACCEPT).await, 0);
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(140, 149, 1)]);
}

/// A group that begins with what comes: of a partition that is made while it reads the topic, that is all there is.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_partition_is_read_from_its_beginning() {
    let world = World::start().await;
    let mut one = world.client().await;
    let set = [("share.auto.offset.reset", "latest")];
    let stream = begin(&world, &mut one, &set).await;
    send(&mut one, 5).await;
    let mut a = Sharer::new("g", "a");
    a.beat(&mut one, 0, "t").await;
    let nothing = a.fetch(&mut one, stream, 0, 0).await;
    assert_eq!(acquired(&nothing), [], "what was there before");
    let more = CreatePartitionsTopic::default()
        .with_name(topic("t"))
        .with_count(2)
        .with_assignments(None);
    let request = CreatePartitionsRequest::default()
        .with_timeout_ms(30_000)
        .with_topics(vec![more]);
    let grown: CreatePartitionsResponse = one.call(ApiKey::CreatePartitions, 3, &request).await;
    assert_eq!(grown.results[0].error_code, 0, "{grown:?}");
    send_to(&mut one, 1, 3).await;
    assert_eq!(a.acquire(&mut one, stream, 1).await, [(0, 2, 1)]);
    send(&mut one, 2).await;
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(5, 6, 1)]);
}

/// Offsets that are set count for the next member, though the connection of one that left is open still.
#[tokio::test(flavor = "multi_thread")]
async fn offsets_that_are_set_count_beside_a_session_that_was_left_open() {
    let world = World::start().await;
    let (mut one, mut two) = (world.client().await, world.client().await);
    let stream = begin(&world, &mut one, &[]).await;
    let (mut a, mut b) = (Sharer::new("g", "a"), Sharer::new("g", "b"));
    a.beat(&mut one, 0, "t").await;
    send(&mut one, 20).await;
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(0, 19, 1)]);
    assert_eq!(a.say(&mut one, stream, 0, (0, 19), ACCEPT).await, 0);
    assert_eq!(a.beat(&mut one, -1, "t").await.error_code, 0);
    let partition = AlterShareGroupOffsetsRequestPartition::default().with_start_offset(5);
    let of = AlterShareGroupOffsetsRequestTopic::default()
        .with_topic_name(topic("t"))
        .with_partitions(vec![partition]);
    let request = AlterShareGroupOffsetsRequest::default()
        .with_group_id(GroupId(words("g")))
        .with_topics(vec![of]);
    let set: AlterShareGroupOffsetsResponse =
        two.call(ApiKey::AlterShareGroupOffsets, 0, &request).await;
    assert_eq!(set.error_code, 0, "{set:?}");
    assert_eq!(set.responses[0].partitions[0].error_code, 0, "{set:?}");
    b.beat(&mut two, 0, "t").await;
    assert_eq!(b.acquire(&mut two, stream, 0).await, [(5, 19, 1)]);
    assert_eq!(b.say(&mut two, stream, 0, (5, 19), ACCEPT).await, 0);
}

/// All that a request says of a partition counts, or nothing, however often it names the partition.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_is_named_twice_is_taken_as_a_whole() {
    let world = World::start().await;
    let mut one = world.client().await;
    let stream = begin(&world, &mut one, &[]).await;
    let mut a = Sharer::new("g", "a");
    a.beat(&mut one, 0, "t").await;
    send(&mut one, 10).await;
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(0, 9, 1)]);
    let twice = [(0, 4), (3, 9)];
    let said = a.say_all(&mut one, stream, 0, &twice, ACCEPT).await;
    assert_eq!(said, ResponseError::InvalidRequest.code());
    let code = a.say(&mut one, stream, 0, (0, 9), RELEASE).await;
    assert_eq!(code, 0, "none of them is done");
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(0, 9, 2)]);
    let twice = [(0, 4), (5, 9)];
    assert_eq!(a.say_all(&mut one, stream, 0, &twice, ACCEPT).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_ends_with_its_time_and_deliveries_with_their_limit() {
    let world = World::start().await;
    let mut one = world.client().await;
    let set = [
        ("share.record.lock.duration.ms", "1000"),
        ("share.delivery.count.limit", "2"),
    ];
    let stream = begin(&world, &mut one, &set).await;
    let mut a = Sharer::new("g", "a");
    a.beat(&mut one, 0, "t").await;
    send(&mut one, 3).await;
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(0, 2, 1)]);
    // It waits for its own locks to end.
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(0, 2, 2)]);
    assert_eq!(a.say(&mut one, stream, 0, (0, 2), RELEASE).await, 0);
    send(&mut one, 1).await;
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(3, 3, 1)]);
}

/// Whoever needs longer renews its locks (KIP-1222); those that it does not renew end.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_renewed_holds_on() {
    let world = World::start().await;
    let (mut one, mut two) = (world.client().await, world.client().await);
    let set = [("share.record.lock.duration.ms", "3600000")];
    let stream = begin(&world, &mut one, &set).await;
    let (mut a, mut b) = (Sharer::new("g", "a"), Sharer::new("g", "b"));
    a.beat(&mut one, 0, "t").await;
    send(&mut one, 4).await;
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(0, 3, 1)]);
    let invalid = ResponseError::InvalidRequest.code();
    let wrong = ResponseError::InvalidRecordState.code();
    // A client has to say that it renews.
    let (_, code) = a.renew(&mut one, stream, (0, 3), false).await;
    assert_eq!(code, invalid);
    assert_eq!(a.say(&mut one, stream, 0, (0, 3), RENEW).await, invalid);
    // Of nobody else's records, and of them all or none.
    let fetched = b.fetch(&mut two, stream, 0, 0).await;
    assert_eq!(acquired(&fetched), []);
    assert_eq!(b.renew(&mut two, stream, (1, 2), true).await.1, wrong);
    assert_eq!(a.renew(&mut one, stream, (1, 4), true).await.1, wrong);
    // With locks of a second those end that are not renewed for longer.
    let short = [("share.record.lock.duration.ms", "1000")];
    assert_eq!(alter(&mut one, 32, "g", &short).await, 0);
    // A release has the owner hear of it.
    assert_eq!(a.say(&mut one, stream, 0, (3, 3), RELEASE).await, 0);
    assert_eq!(b.acquire(&mut two, stream, 0).await, [(3, 3, 2)]);
    assert_eq!(b.say(&mut two, stream, 0, (3, 3), ACCEPT).await, 0);
    assert_eq!(a.renew(&mut one, stream, (1, 2), true).await, (1_000, 0));
    assert_eq!(b.acquire(&mut two, stream, 0).await, [(1, 2, 2)]);
    assert_eq!(
        a.renew(&mut one, stream, (1, 2), true).await.1,
        wrong,
        "late"
    );
    assert_eq!(a.say(&mut one, stream, 0, (0, 0), ACCEPT).await, 0);
    let off = [("share.renew.acknowledge.enable", "false")];
    assert_eq!(alter(&mut one, 32, "g", &off).await, 0);
    let released = b.say(&mut two, stream, 0, (2, 2), RELEASE).await;
    assert!([0, wrong].contains(&released), "its lock may be over");
    let (_, code) = b.renew(&mut two, stream, (1, 1), true).await;
    assert_eq!(code, wrong, "the group does not renew");
}

/// A fetch that renews gets nothing, and waits for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_that_renews_gets_no_records() {
    let world = World::start().await;
    let mut one = world.client().await;
    let stream = begin(&world, &mut one, &[]).await;
    let mut a = Sharer::new("g", "a");
    a.beat(&mut one, 0, "t").await;
    send(&mut one, 4).await;
    assert_eq!(a.fetch(&mut one, stream, 9, 0).await.error_code, 0);
    for (wait_ms, mode, code) in [(1, 0, 42), (0, 2, 42), (0, 1, 0)] {
        let request = a.fetch_request(stream, &[0], wait_ms);
        let request = request
            .with_min_bytes(0)
            .with_max_bytes(0)
            .with_max_records(0);
        let body = share_fetch(&request, 2, mode, true);
        let answer = one.call_with(ApiKey::ShareFetch, 2, &body).await;
        let answer = ShareFetchResponse::decode(&mut answer.clone(), 1).expect("an answer");
        assert_eq!(answer.error_code, code, "{answer:?}");
        assert_eq!(acquired(&answer), []);
    }
    a.epoch += 1;
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(0, 3, 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_have_epochs() {
    let world = World::start().await;
    let mut one = world.client().await;
    let stream = begin(&world, &mut one, &[]).await;
    let mut a = Sharer::new("g", "a");
    a.beat(&mut one, 0, "t").await;
    let unknown = ResponseError::ShareSessionNotFound.code();
    assert_eq!(a.fetch(&mut one, stream, 0, 0).await.error_code, 0);
    assert_eq!(a.epoch, 1);
    a.epoch = 7;
    let refused = a.fetch(&mut one, stream, 0, 0).await;
    let wrong = ResponseError::InvalidShareSessionEpoch.code();
    assert_eq!(refused.error_code, wrong);
    a.epoch = -2;
    assert_eq!(a.fetch(&mut one, stream, 0, 0).await.error_code, wrong);
    a.epoch = 1;
    assert_eq!(a.fetch(&mut one, stream, 0, 0).await.error_code, 0);
    send(&mut one, 2).await;
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(0, 1, 1)]);
    // Begun anew, what was acquired stays with it.
    let at = a.epoch;
    a.epoch = 0;
    assert_eq!(a.fetch(&mut one, stream, 0, 0).await.error_code, 0);
    assert!(at > 1);
    assert_eq!(a.say(&mut one, stream, 0, (0, 0), ACCEPT).await, 0);
    // The end of the session gives back the rest.
    a.epoch = -1;
    assert_eq!(a.fetch(&mut one, stream, 0, 0).await.error_code, 0);
    a.epoch = 2;
    assert_eq!(a.fetch(&mut one, stream, 0, 0).await.error_code, unknown);
    a.epoch = 0;
    assert_eq!(a.acquire(&mut one, stream, 0).await, [(1, 1, 2)]);
    // Another connection does not have it, and partitions are looked at one by one.
    let mut two = world.client().await;
    assert_eq!(a.fetch(&mut two, stream, 0, 0).await.error_code, unknown);
    a.epoch = 0;
    let answer = a.fetch(&mut two, stream, 9, 0).await;
    let code = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(parts(&answer)[0].error_code, code);
}

/// Sessions are remembered by the names of their groups and members, which a client chooses.
#[tokio::test(flavor = "multi_thread")]
async fn long_names_begin_no_session() {
    let world = World::start().await;
    let mut one = world.client().await;
    let stream = begin(&world, &mut one, &[]).await;
    let a = Sharer::new("g", "a");
    a.beat(&mut one, 0, "t").await;
    let names = [1_024, 1_025].map(|bytes| "m".repeat(bytes));
    let invalid = ResponseError::InvalidRequest.code();
    for (name, code) in names.iter().zip([0, invalid]) {
        let request = a.fetch_request(stream, &[0], 0);
        let request = request.with_member_id(Some(words(name)));
        let answer: ShareFetchResponse = one.call(ApiKey::ShareFetch, 1, &request).await;
        assert_eq!(answer.error_code, code, "{answer:?}");
    }
    let request = a.fetch_request(stream, &[0], 0);
    let request = request.with_group_id(Some(GroupId(words(&names[1]))));
    let answer: ShareFetchResponse = one.call(ApiKey::ShareFetch, 1, &request).await;
    assert_eq!(answer.error_code, invalid, "{answer:?}");
}
