//! From a request's API to its handler, and from the handler's answer to bytes.
//!
//! Produce, Fetch and ApiVersions are not here: the connection answers them itself.

use std::future::Future;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::ApiKey;
use kafka_protocol::protocol::{Decodable, Encodable};

use crate::context::Ctx;
use crate::wire::{init_producer_id, share, walk};
use crate::{
    absent, acls, active_producers, apis, cluster, configs, groups, metadata, offsets,
    producer_ids, quotas, records, scram_users, shares, topics, transactions,
};

/// Why a request has no answer; its connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DispatchError {
    /// Nothing serves it.
    #[error("api {0} has no handler")]
    NoHandler(i16),
    /// Its body is malformed.
    #[error("the body of api {key} version {version} is refused: {reason}")]
    Malformed {
        key: i16,
        version: i16,
        reason: String,
    },
    /// The answer cannot be put into bytes.
    #[error("the reply to api {key} version {version} cannot be encoded: {reason}")]
    Reply {
        key: i16,
        version: i16,
        reason: String,
    },
}

/// Answers one request: the whole reply, its length first.
pub(crate) async fn answer(
    mut ctx: Ctx,
    key: i16,
    version: i16,
    correlation: i32,
    body: Bytes,
) -> Result<Bytes, DispatchError> {
    let api = ApiKey::try_from(key).map_err(|()| DispatchError::NoHandler(key))?;
    ctx.api = apis::find(key).ok_or(DispatchError::NoHandler(key))?;
    let call = Call {
        ctx: &ctx,
        api,
        version,
        correlation,
        body,
    };
    // One line for each API; every handler has the same form.
    match api {
        ApiKey::ListOffsets => call.on(offsets::list_offsets).await,
        ApiKey::Metadata => call.on(metadata::metadata).await,
        ApiKey::OffsetCommit => call.on(groups::offset_commit).await,
        ApiKey::OffsetFetch => call.on(groups::offset_fetch).await,
        ApiKey::FindCoordinator => call.on(groups::find_coordinator).await,
        ApiKey::JoinGroup => call.on(groups::join_group).await,
        ApiKey::Heartbeat => call.on(groups::heartbeat).await,
        ApiKey::LeaveGroup => call.on(groups::leave_group).await,
        ApiKey::SyncGroup => call.on(groups::sync_group).await,
        ApiKey::DescribeGroups => call.on(groups::describe_groups).await,
        ApiKey::ListGroups => call.on(groups::list_groups).await,
        ApiKey::CreateTopics => call.on(topics::create_topics).await,
        ApiKey::DeleteTopics => call.on(topics::delete_topics).await,
        ApiKey::DeleteRecords => call.on(records::delete_records).await,
        ApiKey::InitProducerId => {
            let decode = init_producer_id::decode;
            call.by(decode, producer_ids::init_producer_id).await
        }
        ApiKey::OffsetForLeaderEpoch => call.on(offsets::offset_for_leader_epoch).await,
        ApiKey::DescribeAcls => call.on(acls::describe_acls).await,
        ApiKey::CreateAcls => call.on(acls::create_acls).await,
        ApiKey::DeleteAcls => call.on(acls::delete_acls).await,
        ApiKey::DescribeConfigs => call.on(configs::describe_configs).await,
        ApiKey::AlterConfigs => call.on(configs::alter_configs).await,
        ApiKey::DescribeLogDirs => call.on(cluster::describe_log_dirs).await,
        ApiKey::CreatePartitions => call.on(topics::create_partitions).await,
        ApiKey::DeleteGroups => call.on(groups::delete_groups).await,
        ApiKey::IncrementalAlterConfigs => call.on(configs::incremental_alter_configs).await,
        ApiKey::OffsetDelete => call.on(groups::offset_delete).await,
        ApiKey::DescribeCluster => call.on(cluster::describe_cluster).await,
        ApiKey::DescribeTopicPartitions => call.on(metadata::describe_topic_partitions).await,
        ApiKey::AddPartitionsToTxn => call.on(transactions::add_partitions).await,
        ApiKey::AddOffsetsToTxn => call.on(transactions::add_offsets).await,
        ApiKey::EndTxn => call.on(transactions::end).await,
        ApiKey::WriteTxnMarkers => call.on(transactions::write_markers).await,
        ApiKey::TxnOffsetCommit => call.on(transactions::offset_commit).await,
        ApiKey::ConsumerGroupHeartbeat => call.on(groups::consumer_heartbeat).await,
        ApiKey::ConsumerGroupDescribe => call.on(groups::consumer_describe).await,
        ApiKey::ShareGroupHeartbeat => call.on(groups::share_heartbeat).await,
        ApiKey::ShareGroupDescribe => call.on(groups::share_describe).await,
        ApiKey::ShareFetch => call.by(share::decode_fetch, shares::share_fetch).await,
        ApiKey::ShareAcknowledge => {
            let decode = share::decode_acknowledge;
            call.by(decode, shares::share_acknowledge).await
        }
        ApiKey::DescribeShareGroupOffsets => call.on(groups::describe_share_offsets).await,
        ApiKey::AlterShareGroupOffsets => call.on(groups::alter_share_offsets).await,
        ApiKey::DeleteShareGroupOffsets => call.on(groups::delete_share_offsets).await,
        ApiKey::ElectLeaders => call.on(absent::elect_leaders).await,
        ApiKey::ListPartitionReassignments => call.on(absent::list_partition_reassignments).await,
        ApiKey::DescribeClientQuotas => call.on(quotas::describe_client_quotas).await,
        ApiKey::AlterClientQuotas => call.on(quotas::alter_client_quotas).await,
        ApiKey::DescribeUserScramCredentials => call.on(scram_users::describe).await,
        ApiKey::AlterUserScramCredentials => call.on(scram_users::alter).await,
        ApiKey::DescribeQuorum => call.on(absent::describe_quorum).await,
        ApiKey::DescribeProducers => call.on(active_producers::describe_producers).await,
        ApiKey::DescribeTransactions => call.on(transactions::describe_transactions).await,
        ApiKey::ListTransactions => call.on(transactions::list_transactions).await,
        ApiKey::ListConfigResources => call.on(absent::list_config_resources).await,
        _ => Err(DispatchError::NoHandler(key)),
    }
}

struct Call<'a> {
    ctx: &'a Ctx,
    api: ApiKey,
    version: i16,
    correlation: i32,
    body: Bytes,
}

impl<'a> Call<'a> {
    async fn on<Q, R, F>(
        self,
        handler: impl FnOnce(&'a Ctx, i16, Q) -> F,
    ) -> Result<Bytes, DispatchError>
    where
        Q: Decodable,
        R: Encodable,
        F: Future<Output = R>,
    {
        let decode =
            |body: &mut Bytes, version| Q::decode(body, version).map_err(|e| e.to_string());
        self.by(decode, handler).await
    }

    /// As [`Self::on`], of a request that the codec does not decode in all of its versions.
    async fn by<Q, R, F>(
        mut self,
        decode: impl FnOnce(&mut Bytes, i16) -> Result<Q, String>,
        handler: impl FnOnce(&'a Ctx, i16, Q) -> F,
    ) -> Result<Bytes, DispatchError>
    where
        R: Encodable,
        F: Future<Output = R>,
    {
        let (key, version) = (self.api as i16, self.version);
        let malformed = |reason: String| DispatchError::Malformed {
            key,
            version,
            reason,
        };
        // Counts first: the codec allocates what they claim.
        walk::walk(key, version, &self.body, &walk::Limits::default())
            .map_err(|e| malformed(e.to_string()))?;
        let request = decode(&mut self.body, version).map_err(malformed)?;
        // A handler that waits keeps no more of the request than it needs.
        drop(std::mem::take(&mut self.body));
        let response = handler(self.ctx, version, request).await;
        encode(self.api, version, self.correlation, &response)
    }
}

/// Makes a reply: length, head and body.
pub(crate) fn encode<R: Encodable>(
    api: ApiKey,
    version: i16,
    correlation: i32,
    response: &R,
) -> Result<Bytes, DispatchError> {
    let mut out = begin(api, version, correlation);
    response
        .encode(&mut out, version)
        .map_err(|error| DispatchError::Reply {
            key: api as i16,
            version,
            reason: error.to_string(),
        })?;
    finish(&mut out, 0);
    Ok(out.freeze())
}

/// The head of a reply, with room for its length.
pub(crate) fn begin(api: ApiKey, version: i16, correlation: i32) -> BytesMut {
    let mut out = BytesMut::with_capacity(256);
    out.put_i32(0);
    out.put_i32(correlation);
    if api.response_header_version(version) >= 1 {
        out.put_u8(0);
    }
    out
}

/// Writes the length of a reply of which `beside` bytes are not in `out`.
pub(crate) fn finish(out: &mut BytesMut, beside: usize) {
    let length = i32::try_from(out.len() + beside - 4).unwrap_or(i32::MAX);
    out[..4].copy_from_slice(&length.to_be_bytes());
}
