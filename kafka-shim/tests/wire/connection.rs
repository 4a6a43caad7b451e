//! Requests that nobody serves, of the wrong length, cut off, and many at once.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::TopicName;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, DescribeClusterRequest,
    DescribeClusterResponse, FetchRequest, FindCoordinatorRequest, FindCoordinatorResponse,
    MetadataRequest, MetadataResponse, ProduceRequest, ProduceResponse,
};
use kafka_protocol::protocol::StrBytes;
use kera_kafka_shim::apis::APIS;
use kera_protocol::batch::{Compression, ProducerStamp};
use tokio::io::AsyncWriteExt;

use crate::common::{Client, World, batch};
use crate::responses;

/// A request as it stands on the wire, with its length.
fn framed(api_key: i16, version: i16, correlation: i32, rest: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_i32(0);
    out.put_i16(api_key);
    out.put_i16(version);
    out.put_i32(correlation);
    // No client id.
    out.put_i16(-1);
    out.put_slice(rest);
    let length = out.len() as i32 - 4;
    out[..4].copy_from_slice(&length.to_be_bytes());
    out.freeze()
}

async fn send(client: &mut Client, bytes: &[u8]) {
    client.stream.write_all(bytes).await.unwrap();
}

/// Whether the broker still serves others.
async fn serves(world: &World) {
    let mut client = world.client().await;
    let request = ApiVersionsRequest::default();
    let reply: ApiVersionsResponse = client.call(ApiKey::ApiVersions, 0, &request).await;
    assert_eq!(reply.error_code, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_version_of_api_versions_is_told_what_there_is() {
    let world = World::start().await;
    let mut client = world.client().await;
    for (number, version) in [5, 99, i16::MAX].into_iter().enumerate() {
        // Whatever follows the header is not looked at.
        send(&mut client, &framed(18, version, number as i32, &[0xff; 9])).await;
        let reply: ApiVersionsResponse =
            client.receive(ApiKey::ApiVersions, 0, number as i32).await;
        assert_eq!(reply.error_code, 35);
        let told = reply.api_keys.iter().find(|api| api.api_key == 18).unwrap();
        assert_eq!((told.min_version, told.max_version), (0, 4));
    }
    // The connection goes on.
    let request = ApiVersionsRequest::default();
    let reply: ApiVersionsResponse = client.call(ApiKey::ApiVersions, 3, &request).await;
    let told = |api: &kafka_protocol::messages::api_versions_response::ApiVersion| {
        (api.api_key, api.min_version, api.max_version)
    };
    let told: Vec<_> = reply.api_keys.iter().map(told).collect();
    let known: Vec<_> = APIS.iter().map(|api| (api.key, api.min, api.max)).collect();
    assert_eq!(told, known);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_serves_ends_its_connection() {
    let world = World::start().await;
    // No such API, none that is supported, versions below and above, Produce as it was before
    // batches.
    for (api_key, version) in [
        (-1, 0),
        (27, 0),
        (76, 0),
        (1000, 0),
        (3, 99),
        (3, -1),
        (1, 3),
        (0, 0),
        (0, 2),
        (18, -1),
    ] {
        let mut client = world.client().await;
        send(&mut client, &framed(api_key, version, 1, &[0; 30])).await;
        // An ApiVersions of a negative version is one of a version that is not known.
        if api_key == 18 {
            let reply: ApiVersionsResponse = client.receive(ApiKey::ApiVersions, 0, 1).await;
            assert_eq!(reply.error_code, 35);
        } else {
            assert!(client.closed().await, "{api_key} {version}");
        }
    }
    serves(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lengths_that_are_none_or_too_large_end_the_connection_at_once() {
    let world = World::with(|config| config.kafka.max_request_bytes = 1 << 20).await;
    for length in [-1, i32::MIN, i32::MAX, (1 << 20) + 1] {
        let mut client = world.client().await;
        send(&mut client, &length.to_be_bytes()).await;
        assert!(client.closed().await, "{length}");
    }
    // A request too short for its own header.
    for length in [0_i32, 1, 7, 8] {
        let mut client = world.client().await;
        send(&mut client, &length.to_be_bytes()).await;
        send(&mut client, &vec![0; length as usize]).await;
        assert!(client.closed().await, "{length}");
    }
    serves(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killers_of_the_codec_end_their_connections_only() {
    let world = World::start().await;
    let produce = [0xff, 0xff, 0, 1, 0, 0, 0, 1, 0x7f, 0xff, 0xff, 0xff];
    let metadata = [0, 0xff, 0xff, 0xff, 0xff, 0x0f];
    let killers = [
        framed(0, 3, 1, &produce),
        framed(3, 9, 1, &metadata),
        framed(3, 1, 1, &produce[8..]),
        framed(19, 2, 1, &produce[8..]),
        framed(42, 0, 1, &produce[8..]),
    ];
    for killer in killers {
        let mut client = world.client().await;
        send(&mut client, &killer).await;
        assert!(client.closed().await, "{killer:02x?}");
    }
    serves(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_cut_off_anywhere_leave_nothing_behind() {
    let world = World::start().await;
    world.topic("t", 1);
    let request = framed(3, 1, 1, &[0, 0, 0, 1, 0, 1, b't']);
    for end in 0..request.len() {
        let mut client = world.client().await;
        send(&mut client, &request[..end]).await;
        client.stream.shutdown().await.unwrap();
        assert!(client.closed().await, "{end}");
    }
    let mut client = world.client().await;
    send(&mut client, &request).await;
    let _: MetadataResponse = client.receive(ApiKey::Metadata, 1, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_comes_in_drops_is_answered() {
    let world = World::start().await;
    let mut client = world.client().await;
    client.stream.set_nodelay(true).unwrap();
    for byte in framed(18, 0, 5, &[]) {
        send(&mut client, &[byte]).await;
    }
    let reply: ApiVersionsResponse = client.receive(ApiKey::ApiVersions, 0, 5).await;
    assert_eq!(reply.error_code, 0);
}

fn topic(name: &'static str) -> TopicName {
    TopicName(StrBytes::from_static_str(name))
}

/// Replies come in the order of the requests, whatever each waits for: the disk, other records, or
/// nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelined_requests_of_many_kinds_are_answered_in_order() {
    let world = World::start().await;
    world.topic("t", 1);
    let mut client = world.client().await;
    let mut sent = Vec::new();
    for round in 0..20 {
        let records = batch("v", 10, Compression::None, ProducerStamp::NONE);
        let data = PartitionProduceData::default()
            .with_index(0)
            .with_records(Some(records));
        let data = TopicProduceData::default()
            .with_name(topic("t"))
            .with_partition_data(vec![data]);
        let produce = ProduceRequest::default()
            .with_acks(-1)
            .with_timeout_ms(30_000)
            .with_topic_data(vec![data]);
        sent.push((0, 9, client.send(ApiKey::Produce, 9, &produce).await));
        let metadata = MetadataRequest::default().with_topics(None);
        sent.push((3, 12, client.send(ApiKey::Metadata, 12, &metadata).await));
        // Beyond the end: it waits as long as it may.
        let partition = FetchPartition::default()
            .with_fetch_offset(10 * (round + 1))
            .with_partition_max_bytes(1 << 20);
        let wanted = FetchTopic::default()
            .with_topic(topic("t"))
            .with_partitions(vec![partition]);
        let fetch = FetchRequest::default()
            .with_max_wait_ms(20)
            .with_min_bytes(1)
            .with_max_bytes(1 << 20)
            .with_session_epoch(-1)
            .with_topics(vec![wanted]);
        sent.push((1, 11, client.send(ApiKey::Fetch, 11, &fetch).await));
        let versions = ApiVersionsRequest::default();
        sent.push((18, 0, client.send(ApiKey::ApiVersions, 0, &versions).await));
    }
    for (api_key, version, correlation) in sent {
        let reply = client.frame().await.unwrap();
        let (answered, body) = responses::decode(api_key, version, reply);
        assert_eq!(answered, correlation, "{body}");
    }
}

/// What a client sent before it half closed the connection still counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stops_sending_loses_no_acknowledged_record() {
    let world = World::start().await;
    world.topic("t", 1);
    let records = batch("v", 1, Compression::None, ProducerStamp::NONE);
    let data = PartitionProduceData::default()
        .with_index(0)
        .with_records(Some(records));
    let data = TopicProduceData::default()
        .with_name(topic("t"))
        .with_partition_data(vec![data]);
    let produce = ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![data]);
    for expected in 0..10 {
        let mut client = world.client().await;
        let reply: ProduceResponse = client.call(ApiKey::Produce, 9, &produce).await;
        let answer = &reply.responses[0].partition_responses[0];
        assert_eq!((answer.error_code, answer.base_offset), (0, expected));
        drop(client);
    }
}

/// Clients are sent to the address of the listener that they came in by.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_listener_tells_its_own_address() {
    let world = World::with(|config| {
        config.kafka.listen = vec!["127.0.0.1:0".into(); 3];
        config.kafka.advertise = ["one.example:1111", "[::1]:2222", "three.example:0"]
            .map(Into::into)
            .to_vec();
    })
    .await;
    let listeners = kera_kafka_shim::start(world.broker.shared().clone()).await;
    let addresses = listeners.expect("free ports").addresses;
    let told = [
        ("one.example", 1111),
        ("::1", 2222),
        ("three.example", i32::from(addresses[2].port())),
    ];
    for (address, (host, port)) in addresses.into_iter().zip(told) {
        let mut client = Client::connect(address).await;
        let request = MetadataRequest::default().with_topics(None);
        let reply: MetadataResponse = client.call(ApiKey::Metadata, 12, &request).await;
        let broker = &reply.brokers[0];
        assert_eq!((broker.host.as_str(), broker.port), (host, port));
        let key = StrBytes::from_static_str("g");
        let request = FindCoordinatorRequest::default().with_coordinator_keys(vec![key]);
        let reply: FindCoordinatorResponse =
            client.call(ApiKey::FindCoordinator, 4, &request).await;
        let coordinator = &reply.coordinators[0];
        assert_eq!((coordinator.host.as_str(), coordinator.port), (host, port));
        let request = DescribeClusterRequest::default();
        let reply: DescribeClusterResponse =
            client.call(ApiKey::DescribeCluster, 0, &request).await;
        let broker = &reply.brokers[0];
        assert_eq!((broker.host.as_str(), broker.port), (host, port));
    }
}
