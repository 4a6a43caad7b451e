//! Decodes the reply to a request of any API.

use bytes::Bytes;
use kafka_protocol::messages::{
    AddOffsetsToTxnResponse, AddPartitionsToTxnResponse, AlterClientQuotasResponse,
    AlterConfigsResponse, AlterShareGroupOffsetsResponse, AlterUserScramCredentialsResponse,
    ApiKey, ApiVersionsResponse, ConsumerGroupDescribeResponse, ConsumerGroupHeartbeatResponse,
    CreateAclsResponse, CreatePartitionsResponse, CreateTopicsResponse, DeleteAclsResponse,
    DeleteGroupsResponse, DeleteRecordsResponse, DeleteShareGroupOffsetsResponse,
    DeleteTopicsResponse, DescribeAclsResponse, DescribeClientQuotasResponse,
    DescribeClusterResponse, DescribeConfigsResponse, DescribeGroupsResponse,
    DescribeLogDirsResponse, DescribeProducersResponse, DescribeQuorumResponse,
    DescribeShareGroupOffsetsResponse, DescribeTopicPartitionsResponse,
    DescribeTransactionsResponse, DescribeUserScramCredentialsResponse, ElectLeadersResponse,
    EndTxnResponse, FetchResponse, FindCoordinatorResponse, HeartbeatResponse,
    IncrementalAlterConfigsResponse, InitProducerIdResponse, JoinGroupResponse, LeaveGroupResponse,
    ListConfigResourcesResponse, ListGroupsResponse, ListOffsetsResponse,
    ListPartitionReassignmentsResponse, ListTransactionsResponse, MetadataResponse,
    OffsetCommitResponse, OffsetDeleteResponse, OffsetFetchResponse, OffsetForLeaderEpochResponse,
    ProduceResponse, ResponseHeader, SaslAuthenticateResponse, SaslHandshakeResponse,
    ShareAcknowledgeResponse, ShareFetchResponse, ShareGroupDescribeResponse,
    ShareGroupHeartbeatResponse, SyncGroupResponse, TxnOffsetCommitResponse,
    WriteTxnMarkersResponse,
};
use kafka_protocol::protocol::Decodable;
use kera_kafka_shim::wire::reader::Reader;

/// The correlation of a reply, and the body in the form in which it is debugged.
///
/// # Panics
/// If it is no reply of this API and version, or has bytes behind it.
pub fn decode(api_key: i16, version: i16, mut reply: Bytes) -> (i32, String) {
    let api = ApiKey::try_from(api_key).expect("an API");
    let header = ResponseHeader::decode(&mut reply, api.response_header_version(version));
    let correlation = header.expect("a header").correlation_id;
    // The codec does not know their newest versions.
    let version = match api {
        ApiKey::ShareFetch => version.min(1),
        ApiKey::ShareAcknowledge if version >= 2 => {
            reply = without_lock(&reply);
            1
        }
        _ => version,
    };
    macro_rules! decode_as {
        ($($name:ident $response:ty,)*) => {
            match api {
                $( ApiKey::$name => {
                    <$response>::decode(&mut reply, version).map(|body| format!("{body:?}"))
                } )*
                _ => panic!("no replies of {api:?} are known here"),
            }
        };
    }
    let body = decode_as! {
        Produce ProduceResponse,
        Fetch FetchResponse,
        ListOffsets ListOffsetsResponse,
        Metadata MetadataResponse,
        OffsetCommit OffsetCommitResponse,
        OffsetFetch OffsetFetchResponse,
        FindCoordinator FindCoordinatorResponse,
        JoinGroup JoinGroupResponse,
        Heartbeat HeartbeatResponse,
        LeaveGroup LeaveGroupResponse,
        SyncGroup SyncGroupResponse,
        DescribeGroups DescribeGroupsResponse,
        ListGroups ListGroupsResponse,
        SaslHandshake SaslHandshakeResponse,
        SaslAuthenticate SaslAuthenticateResponse,
        DescribeUserScramCredentials DescribeUserScramCredentialsResponse,
        AlterUserScramCredentials AlterUserScramCredentialsResponse,
        ApiVersions ApiVersionsResponse,
        CreateTopics CreateTopicsResponse,
        DeleteTopics DeleteTopicsResponse,
        DeleteRecords DeleteRecordsResponse,
        InitProducerId InitProducerIdResponse,
        OffsetForLeaderEpoch OffsetForLeaderEpochResponse,
        DescribeAcls DescribeAclsResponse,
        CreateAcls CreateAclsResponse,
        DeleteAcls DeleteAclsResponse,
        DescribeConfigs DescribeConfigsResponse,
        AlterConfigs AlterConfigsResponse,
        DescribeLogDirs DescribeLogDirsResponse,
        CreatePartitions CreatePartitionsResponse,
        DeleteGroups DeleteGroupsResponse,
        IncrementalAlterConfigs IncrementalAlterConfigsResponse,
        OffsetDelete OffsetDeleteResponse,
        ShareGroupHeartbeat ShareGroupHeartbeatResponse,
        ShareGroupDescribe ShareGroupDescribeResponse,
        ShareFetch ShareFetchResponse,
        ShareAcknowledge ShareAcknowledgeResponse,
        DescribeShareGroupOffsets DescribeShareGroupOffsetsResponse,
        AlterShareGroupOffsets AlterShareGroupOffsetsResponse,
        DeleteShareGroupOffsets DeleteShareGroupOffsetsResponse,
        ConsumerGroupHeartbeat ConsumerGroupHeartbeatResponse,
        ConsumerGroupDescribe ConsumerGroupDescribeResponse,
        DescribeCluster DescribeClusterResponse,
        DescribeTopicPartitions DescribeTopicPartitionsResponse,
        AddPartitionsToTxn AddPartitionsToTxnResponse,
        AddOffsetsToTxn AddOffsetsToTxnResponse,
        EndTxn EndTxnResponse,
        WriteTxnMarkers WriteTxnMarkersResponse,
        TxnOffsetCommit TxnOffsetCommitResponse,
        ElectLeaders ElectLeadersResponse,
        ListPartitionReassignments ListPartitionReassignmentsResponse,
        DescribeClientQuotas DescribeClientQuotasResponse,
        AlterClientQuotas AlterClientQuotasResponse,
        DescribeQuorum DescribeQuorumResponse,
        DescribeProducers DescribeProducersResponse,
        DescribeTransactions DescribeTransactionsResponse,
        ListTransactions ListTransactionsResponse,
        ListConfigResources ListConfigResourcesResponse,
    };
    let body = body.unwrap_or_else(|error| panic!("{api:?} version {version}: {error}"));
    assert!(
        reply.is_empty(),
        "{api:?} version {version}: {} bytes behind the reply {body}",
        reply.len()
    );
    (correlation, body)
}

/// The answer to a ShareAcknowledge without how long locks last, which stands behind the text of its error.
fn without_lock(reply: &Bytes) -> Bytes {
    let mut reader = Reader::new(reply, true);
    let read = [
        reader.i32().map(drop),
        reader.i16().map(drop),
        reader.nullable_string().map(drop),
    ];
    read.into_iter().for_each(|field| field.expect("a field"));
    let at = reader.at();
    Bytes::from([&reply[..at], &reply[at + 4..]].concat())
}
