use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::{
    ApiKey, ListOffsetsRequest, ListOffsetsResponse, OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
};
use kera_protocol::batch::{BatchBuilder, Compression, NewRecord, ProducerStamp};

use crate::common::{Client, World};
use crate::topics::deleted;
use crate::{assert_code, created, name, produce, versions};

async fn ask(
    client: &mut Client,
    version: i16,
    text: &str,
    partition: ListOffsetsPartition,
) -> (i16, i64, i64, i32) {
    let topic = ListOffsetsTopic::default()
        .with_name(name(text))
        .with_partitions(vec![partition]);
    let request = ListOffsetsRequest::default()
        .with_replica_id((-1).into())
        .with_topics(vec![topic]);
    let response: ListOffsetsResponse = client.call(ApiKey::ListOffsets, version, &request).await;
    let answer = &response.topics[0].partitions[0];
    (
        answer.error_code,
        answer.offset,
        answer.timestamp,
        answer.leader_epoch,
    )
}

/// Error, offset, timestamp and epoch.
pub async fn list(
    client: &mut Client,
    version: i16,
    text: &str,
    partition: i32,
    timestamp: i64,
) -> (i16, i64, i64, i32) {
    let partition = ListOffsetsPartition::default()
        .with_partition_index(partition)
        .with_timestamp(timestamp);
    ask(client, version, text, partition).await
}

fn at_times(times: &[i64], codec: Compression) -> bytes::Bytes {
    let mut builder = BatchBuilder::new();
    for timestamp in times {
        let record = NewRecord {
            value: Some(b"v"),
            timestamp: *timestamp,
            ..NewRecord::default()
        };
        builder.push(&record).expect("room");
    }
    builder.finish(codec, ProducerStamp::NONE).expect("a batch")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_version_lists_ends_and_times() {
    let world = World::start().await;
    let mut client = world.client().await;
    created(&mut client, "t", 2).await;
    for (times, codec) in [
        ([100, 105, 103], Compression::Zstd),
        ([104, 120, 120], Compression::Gzip),
        ([110, 111, 112], Compression::None),
    ] {
        produce(&mut client, "t", 1, at_times(&times, codec)).await;
    }
    let unsupported = ResponseError::UnsupportedVersion.code();
    for version in versions(ApiKey::ListOffsets) {
        let epoch = if version >= 4 { 1 } else { -1 };
        for (timestamp, offset, at) in [
            (-1, 9, -1),
            (-2, 0, -1),
            (0, 0, 100),
            (101, 1, 105),
            (105, 1, 105),
            (106, 4, 120),
            (120, 4, 120),
        ] {
            let found = list(&mut client, version, "t", 1, timestamp).await;
            assert_eq!(
                found,
                (0, offset, at, epoch),
                "version {version}, {timestamp}"
            );
        }
        let nothing = (0, -1, -1, -1);
        let refused = (unsupported, -1, -1, -1);
        assert_eq!(list(&mut client, version, "t", 1, 121).await, nothing);
        assert_eq!(list(&mut client, version, "t", 0, 0).await, nothing);
        assert_eq!(
            list(&mut client, version, "t", 0, -1).await,
            (0, 0, -1, epoch)
        );
        let latest = list(&mut client, version, "t", 1, -3).await;
        assert_eq!(
            latest,
            if version >= 7 {
                (0, 4, 120, 1)
            } else {
                refused
            }
        );
        let local = list(&mut client, version, "t", 1, -4).await;
        assert_eq!(local, if version >= 8 { (0, 0, -1, 1) } else { refused });
        let tiered = list(&mut client, version, "t", 1, -5).await;
        assert_eq!(tiered, if version >= 9 { nothing } else { refused });
        assert_eq!(list(&mut client, version, "t", 1, -9).await, refused);
        for (text, partition) in [("t", 2), ("t", -1), ("u", 0), ("_kera_groups", 0)] {
            let (code, ..) = list(&mut client, version, text, partition, -1).await;
            assert_code(code, ResponseError::UnknownTopicOrPartition);
        }
        if version >= 4 {
            for (epoch, error) in [
                (0, Some(ResponseError::FencedLeaderEpoch)),
                (1, None),
                (2, Some(ResponseError::UnknownLeaderEpoch)),
            ] {
                let partition = ListOffsetsPartition::default()
                    .with_partition_index(1)
                    .with_timestamp(-1)
                    .with_current_leader_epoch(epoch);
                let (code, ..) = ask(&mut client, version, "t", partition).await;
                assert_eq!(ResponseError::try_from_code(code), error);
            }
        }
    }
}

async fn end(client: &mut Client, version: i16, epoch: i32, present: i32) -> (i16, i32, i64) {
    let partition = OffsetForLeaderPartition::default()
        .with_partition(0)
        .with_current_leader_epoch(present)
        .with_leader_epoch(epoch);
    let topic = OffsetForLeaderTopic::default()
        .with_topic(name("t"))
        .with_partitions(vec![partition]);
    let mut request = OffsetForLeaderEpochRequest::default().with_topics(vec![topic]);
    if version >= 3 {
        request.replica_id = (-1).into();
    }
    let response: OffsetForLeaderEpochResponse = client
        .call(ApiKey::OffsetForLeaderEpoch, version, &request)
        .await;
    let answer = &response.topics[0].partitions[0];
    (answer.error_code, answer.leader_epoch, answer.end_offset)
}

#[tokio::test(flavor = "multi_thread")]
async fn epochs_end_where_the_next_begins() {
    let mut world = World::start().await;
    created(&mut world.client().await, "t", 1).await;
    // Epochs 1 and 2 write, 3 does not, 4 does.
    for records in [3, 2, 0, 4] {
        let mut client = world.client().await;
        if records > 0 {
            produce(
                &mut client,
                "t",
                0,
                at_times(&vec![7; records], Compression::None),
            )
            .await;
        }
        drop(client);
        world.broker.shutdown().await;
        world = World::at(world.dir, |_| {}).await;
    }
    let mut client = world.client().await;
    for version in versions(ApiKey::OffsetForLeaderEpoch) {
        for (epoch, expected) in [
            (0, (0, 0, 0)),
            (1, (0, 1, 3)),
            (2, (0, 2, 5)),
            (3, (0, 2, 5)),
            (4, (0, 4, 9)),
            (5, (0, 5, 9)),
            (6, (0, -1, -1)),
            (-1, (0, -1, -1)),
        ] {
            let found = end(&mut client, version, epoch, -1).await;
            assert_eq!(found, expected, "version {version}, epoch {epoch}");
        }
        let (code, ..) = end(&mut client, version, 2, 4).await;
        assert_code(code, ResponseError::FencedLeaderEpoch);
        let (code, ..) = end(&mut client, version, 2, 6).await;
        assert_code(code, ResponseError::UnknownLeaderEpoch);
        assert_eq!(end(&mut client, version, 2, 5).await, (0, 2, 5));
    }
    deleted(&mut client, "t").await;
    let (code, ..) = end(&mut client, 4, 1, -1).await;
    assert_code(code, ResponseError::UnknownTopicOrPartition);
}
