//! What replies say about how long their client is to wait because of the time that its requests took.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::ApiKey;

use crate::reply_room::throttle_ms;

/// Length and correlation, which each reply begins with.
const HEAD_BYTES: usize = 8;

/// APIs whose replies begin with `throttle_time_ms`, and from which version on. Those of Produce and Fetch are written with it;
/// others have it elsewhere, or not at all, and their clients wait without being told.
const BEGIN_WITH_IT: &[(ApiKey, i16)] = &[
    (ApiKey::ListOffsets, 2),
    (ApiKey::Metadata, 3),
    (ApiKey::OffsetCommit, 3),
    (ApiKey::OffsetFetch, 3),
    (ApiKey::FindCoordinator, 1),
    (ApiKey::JoinGroup, 2),
    (ApiKey::Heartbeat, 1),
    (ApiKey::LeaveGroup, 1),
    (ApiKey::SyncGroup, 1),
    (ApiKey::DescribeGroups, 1),
    (ApiKey::ListGroups, 1),
    (ApiKey::CreateTopics, 2),
    (ApiKey::DeleteTopics, 1),
    (ApiKey::DeleteRecords, 0),
    (ApiKey::InitProducerId, 0),
    (ApiKey::OffsetForLeaderEpoch, 2),
    (ApiKey::AddPartitionsToTxn, 0),
    (ApiKey::AddOffsetsToTxn, 0),
    (ApiKey::EndTxn, 0),
    (ApiKey::TxnOffsetCommit, 0),
    (ApiKey::DescribeAcls, 0),
    (ApiKey::CreateAcls, 0),
    (ApiKey::DeleteAcls, 0),
    (ApiKey::DescribeConfigs, 0),
    (ApiKey::AlterConfigs, 0),
    (ApiKey::DescribeLogDirs, 0),
    (ApiKey::CreatePartitions, 0),
    (ApiKey::DeleteGroups, 0),
    (ApiKey::ElectLeaders, 0),
    (ApiKey::IncrementalAlterConfigs, 0),
    (ApiKey::ListPartitionReassignments, 0),
    (ApiKey::DescribeClientQuotas, 0),
    (ApiKey::AlterClientQuotas, 0),
    (ApiKey::DescribeUserScramCredentials, 0),
    (ApiKey::AlterUserScramCredentials, 0),
    (ApiKey::DescribeCluster, 0),
    (ApiKey::DescribeProducers, 0),
    (ApiKey::DescribeTransactions, 0),
    (ApiKey::ListTransactions, 0),
    (ApiKey::ConsumerGroupHeartbeat, 0),
    (ApiKey::ConsumerGroupDescribe, 0),
    (ApiKey::ShareGroupHeartbeat, 1),
    (ApiKey::ShareGroupDescribe, 1),
    (ApiKey::ShareFetch, 1),
    (ApiKey::ShareAcknowledge, 1),
    (ApiKey::DescribeShareGroupOffsets, 0),
    (ApiKey::AlterShareGroupOffsets, 0),
    (ApiKey::DeleteShareGroupOffsets, 0),
    (ApiKey::ListConfigResources, 0),
    (ApiKey::DescribeTopicPartitions, 0),
];

/// Writes into a reply that its client is to wait, if it does not say longer already.
pub(crate) fn tell(parts: &mut [Bytes], key: i16, version: i16, wait: Duration) {
    if wait.is_zero() {
        return;
    }
    let mut known = BEGIN_WITH_IT.iter();
    let is_it = |(api, from): &&(ApiKey, i16)| *api as i16 == key && *from <= version;
    let (Some((api, _)), Some(first)) = (known.find(is_it), parts.first_mut()) else {
        return;
    };
    let at = HEAD_BYTES + usize::from(api.response_header_version(version) >= 1);
    let mut reply = match std::mem::take(first).try_into_mut() {
        Ok(reply) => reply,
        Err(shared) => BytesMut::from(&shared[..]),
    };
    if let Some(field) = reply.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        let ms = throttle_ms(wait).max(i32::from_be_bytes(*field));
        *field = ms.to_be_bytes();
    }
    *first = reply.freeze();
}

#[cfg(test)]
mod tests {
    use bytes::Buf;
    use kafka_protocol::messages::*;
    use kafka_protocol::protocol::{Decodable, Encodable, Message};

    use super::*;
    use crate::apis::APIS;
    use crate::dispatch;

    const WAIT: Duration = Duration::from_micros(4_001);

    /// What the client of an API reads in each version, of a reply that says to wait, and of one that says to wait longer.
    fn check<R: Default + Encodable + Decodable + Message>(
        api: ApiKey,
        throttle: impl Fn(&mut R) -> &mut i32,
    ) {
        let key = api as i16;
        let (_, from) = BEGIN_WITH_IT.iter().find(|(one, _)| *one == api).unwrap();
        let served = APIS.iter().find(|one| one.key == key).unwrap();
        // Newer ones than the codec knows begin alike.
        for version in served.min.max(*from)..=served.max.min(R::VERSIONS.max) {
            for (said, told) in [(0, 5), (9, 9)] {
                let mut response = R::default();
                *throttle(&mut response) = said;
                let reply = dispatch::encode(api, version, 7, &response).unwrap();
                let mut parts = [reply, Bytes::new()];
                tell(&mut parts, key, version, WAIT);
                let mut body = parts[0].clone();
                body.advance(4);
                let head = ResponseHeader::decode(&mut body, api.response_header_version(version));
                assert_eq!(head.unwrap().correlation_id, 7);
                let mut read = R::decode(&mut body, version).unwrap();
                assert_eq!(*throttle(&mut read), told, "{api:?} {version}");
            }
        }
    }

    macro_rules! check_all {
        ($($api:ident: $response:ty,)+) => {
            [$({
                check::<$response>(ApiKey::$api, |response| &mut response.throttle_time_ms);
                ApiKey::$api
            }),+]
        };
    }

    #[test]
    fn replies_say_how_long_to_wait_where_their_clients_look_for_it() {
        let checked = check_all! {
            ListOffsets: ListOffsetsResponse,
            Metadata: MetadataResponse,
            OffsetCommit: OffsetCommitResponse,
            OffsetFetch: OffsetFetchResponse,
            FindCoordinator: FindCoordinatorResponse,
            JoinGroup: JoinGroupResponse,
            Heartbeat: HeartbeatResponse,
            LeaveGroup: LeaveGroupResponse,
            SyncGroup: SyncGroupResponse,
            DescribeGroups: DescribeGroupsResponse,
            ListGroups: ListGroupsResponse,
            CreateTopics: CreateTopicsResponse,
            DeleteTopics: DeleteTopicsResponse,
            DeleteRecords: DeleteRecordsResponse,
            InitProducerId: InitProducerIdResponse,
            OffsetForLeaderEpoch: OffsetForLeaderEpochResponse,
            AddPartitionsToTxn: AddPartitionsToTxnResponse,
            AddOffsetsToTxn: AddOffsetsToTxnResponse,
            EndTxn: EndTxnResponse,
            TxnOffsetCommit: TxnOffsetCommitResponse,
            DescribeAcls: DescribeAclsResponse,
            CreateAcls: CreateAclsResponse,
            DeleteAcls: DeleteAclsResponse,
            DescribeConfigs: DescribeConfigsResponse,
            AlterConfigs: AlterConfigsResponse,
            DescribeLogDirs: DescribeLogDirsResponse,
            CreatePartitions: CreatePartitionsResponse,
            DeleteGroups: DeleteGroupsResponse,
            ElectLeaders: ElectLeadersResponse,
            IncrementalAlterConfigs: IncrementalAlterConfigsResponse,
            ListPartitionReassignments: ListPartitionReassignmentsResponse,
            DescribeClientQuotas: DescribeClientQuotasResponse,
            AlterClientQuotas: AlterClientQuotasResponse,
            DescribeUserScramCredentials: DescribeUserScramCredentialsResponse,
            AlterUserScramCredentials: AlterUserScramCredentialsResponse,
            DescribeCluster: DescribeClusterResponse,
            DescribeProducers: DescribeProducersResponse,
            DescribeTransactions: DescribeTransactionsResponse,
            ListTransactions: ListTransactionsResponse,
            ConsumerGroupHeartbeat: ConsumerGroupHeartbeatResponse,
            ConsumerGroupDescribe: ConsumerGroupDescribeResponse,
            ShareGroupHeartbeat: ShareGroupHeartbeatResponse,
            ShareGroupDescribe: ShareGroupDescribeResponse,
            ShareFetch: ShareFetchResponse,
            ShareAcknowledge: ShareAcknowledgeResponse,
            DescribeShareGroupOffsets: DescribeShareGroupOffsetsResponse,
            AlterShareGroupOffsets: AlterShareGroupOffsetsResponse,
            DeleteShareGroupOffsets: DeleteShareGroupOffsetsResponse,
            ListConfigResources: ListConfigResourcesResponse,
            DescribeTopicPartitions: DescribeTopicPartitionsResponse,
        };
        let all: Vec<_> = BEGIN_WITH_IT.iter().map(|(api, _)| *api).collect();
        assert_eq!(checked[..], all);
        // Produce and Fetch are written with it, and these have it elsewhere or not at all.
        let others = APIS.iter().map(|api| api.key);
        let others = others.filter(|key| !all.iter().any(|api| *api as i16 == *key));
        assert_eq!(others.collect::<Vec<_>>(), [0, 1, 17, 18, 27, 36, 47, 55]);
    }
}
