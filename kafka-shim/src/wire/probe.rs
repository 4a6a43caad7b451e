//! Decodes any request and forgets it: for tests and the fuzz target, which need no more than to
//! know that the codec neither panics nor takes too much.

use bytes::Bytes;
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, AlterClientQuotasRequest,
    AlterConfigsRequest, AlterShareGroupOffsetsRequest, AlterUserScramCredentialsRequest,
    ApiVersionsRequest, ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest,
    CreateAclsRequest, CreatePartitionsRequest, CreateTopicsRequest, DeleteAclsRequest,
    DeleteGroupsRequest, DeleteRecordsRequest, DeleteShareGroupOffsetsRequest, DeleteTopicsRequest,
    DescribeAclsRequest, DescribeClientQuotasRequest, DescribeClusterRequest,
    DescribeConfigsRequest, DescribeGroupsRequest, DescribeLogDirsRequest,
    DescribeProducersRequest, DescribeQuorumRequest, DescribeShareGroupOffsetsRequest,
    DescribeTopicPartitionsRequest, DescribeTransactionsRequest,
    DescribeUserScramCredentialsRequest, ElectLeadersRequest, EndTxnRequest, FetchRequest,
    FindCoordinatorRequest, HeartbeatRequest, IncrementalAlterConfigsRequest, JoinGroupRequest,
    LeaveGroupRequest, ListConfigResourcesRequest, ListGroupsRequest, ListOffsetsRequest,
    ListPartitionReassignmentsRequest, ListTransactionsRequest, MetadataRequest,
    OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest, OffsetForLeaderEpochRequest,
    ProduceRequest, SaslAuthenticateRequest, SaslHandshakeRequest, ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest, SyncGroupRequest, TxnOffsetCommitRequest, WriteTxnMarkersRequest,
};
use kafka_protocol::protocol::Decodable;

use super::{init_producer_id, share};
use crate::fetch;
use crate::produce;

/// What the codec says about the body of a request: how many bytes are left behind it, or what it
/// takes offence at. Give it only what [`super::walk::walk`] has accepted: the codec aborts the process
/// over some others.
///
/// # Errors
/// What the codec says, or that it is not asked about this API.
pub fn decode(api_key: i16, version: i16, mut body: Bytes) -> Result<usize, String> {
    macro_rules! decode_as {
        ($($key:literal $request:ty,)*) => {
            match api_key {
                $( $key => {
                    let decoded = <$request>::decode(&mut body, version);
                    decoded.map(drop).map_err(|error| error.to_string())
                } )*
                _ => Err(format!("api key {api_key} has no codec here")),
            }
        };
    }
    let by_hand = match api_key {
        22 => Some(init_producer_id::decode(&mut body, version).map(drop)),
        78 => Some(share::decode_fetch(&mut body, version).map(drop)),
        79 => Some(share::decode_acknowledge(&mut body, version).map(drop)),
        _ => None,
    };
    if let Some(decoded) = by_hand {
        return decoded.map(|()| body.len());
    }
    let decoded: Result<(), String> = decode_as! {
        0 ProduceRequest,
        1 FetchRequest,
        2 ListOffsetsRequest,
        3 MetadataRequest,
        8 OffsetCommitRequest,
        9 OffsetFetchRequest,
        10 FindCoordinatorRequest,
        11 JoinGroupRequest,
        12 HeartbeatRequest,
        13 LeaveGroupRequest,
        14 SyncGroupRequest,
        15 DescribeGroupsRequest,
        16 ListGroupsRequest,
        17 SaslHandshakeRequest,
        18 ApiVersionsRequest,
        36 SaslAuthenticateRequest,
        50 DescribeUserScramCredentialsRequest,
        51 AlterUserScramCredentialsRequest,
        19 CreateTopicsRequest,
        20 DeleteTopicsRequest,
        21 DeleteRecordsRequest,
        23 OffsetForLeaderEpochRequest,
        24 AddPartitionsToTxnRequest,
        25 AddOffsetsToTxnRequest,
        26 EndTxnRequest,
        27 WriteTxnMarkersRequest,
        28 TxnOffsetCommitRequest,
        43 ElectLeadersRequest,
        46 ListPartitionReassignmentsRequest,
        48 DescribeClientQuotasRequest,
        49 AlterClientQuotasRequest,
        55 DescribeQuorumRequest,
        61 DescribeProducersRequest,
        65 DescribeTransactionsRequest,
        66 ListTransactionsRequest,
        76 ShareGroupHeartbeatRequest,
        77 ShareGroupDescribeRequest,
        90 DescribeShareGroupOffsetsRequest,
        91 AlterShareGroupOffsetsRequest,
        92 DeleteShareGroupOffsetsRequest,
        68 ConsumerGroupHeartbeatRequest,
        69 ConsumerGroupDescribeRequest,
        74 ListConfigResourcesRequest,
        29 DescribeAclsRequest,
        30 CreateAclsRequest,
        31 DeleteAclsRequest,
        32 DescribeConfigsRequest,
        33 AlterConfigsRequest,
        35 DescribeLogDirsRequest,
        37 CreatePartitionsRequest,
        42 DeleteGroupsRequest,
        44 IncrementalAlterConfigsRequest,
        47 OffsetDeleteRequest,
        60 DescribeClusterRequest,
        75 DescribeTopicPartitionsRequest,
    };
    decoded.map(|()| body.len())
}

/// Whether the readers of the two requests that the codec does not read take `body`; true for all
/// others. What [`super::walk::walk`] accepts they must take.
pub fn is_read_by_hand(api_key: i16, version: i16, body: &[u8]) -> bool {
    match api_key {
        0 => produce::ProduceRequest::parse(body, version).is_ok(),
        1 => fetch::FetchRequest::parse(body, version).is_ok(),
        _ => true,
    }
}
