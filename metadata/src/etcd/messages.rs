//! The part of etcd's protocol (version 3) that is spoken here: messages written out by hand, with
//! the numbers that etcd's own files give them. Fields that nothing reads are left out.

use prost::{Message, Oneof};

pub(super) const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
pub(super) const RANGE: &str = "/etcdserverpb.KV/Range";
pub(super) const TXN: &str = "/etcdserverpb.KV/Txn";
pub(super) const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
pub(super) const LEASE_REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
pub(super) const LEASE_KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
pub(super) const WATCH: &str = "/etcdserverpb.Watch/Watch";

/// `Compare.result`.
pub(super) const EQUAL: i32 = 0;
pub(super) const LESS: i32 = 2;
/// `Compare.target`: the revision that wrote the key last, 0 where it is absent.
pub(super) const MOD: i32 = 2;
/// `Compare.target`: the value of the key, which must be there.
pub(super) const VALUE: i32 = 3;
/// `Event.type`.
pub(super) const DELETE: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResponseHeader {
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
}

/// The revision of a header, which etcd always sends.
pub(super) fn revision(header: &Option<ResponseHeader>) -> u64 {
    header.as_ref().map_or(0, |h| h.revision.max(0) as u64)
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) password: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub(super) token: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub(super) lease: i64,
}

impl KeyValue {
    pub(super) fn revision(&self) -> u64 {
        self.mod_revision.max(0) as u64
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) limit: i64,
    #[prost(int64, tag = "4")]
    pub(super) revision: i64,
    #[prost(bool, tag = "8")]
    pub(super) keys_only: bool,
}

impl RangeRequest {
    /// Reads one key.
    pub(super) fn of(key: Vec<u8>) -> Self {
        Self {
            key,
            ..Self::default()
        }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
}

/// The answer to a put or a deletion, of which only that it came matters.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Done {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RequestOp {
    #[prost(oneof = "Request", tags = "1, 2, 3")]
    pub(super) request: Option<Request>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Request {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResponseOp {
    #[prost(oneof = "Response", tags = "1, 2, 3")]
    pub(super) response: Option<Response>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Response {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "2")]
    Put(Done),
    #[prost(message, tag = "3")]
    DeleteRange(Done),
}

/// An operation of a transaction.
pub(super) fn operation(request: Request) -> RequestOp {
    RequestOp {
        request: Some(request),
    }
}

/// An operation of a transaction that reads.
pub(super) fn reading(range: RangeRequest) -> RequestOp {
    operation(Request::Range(range))
}

/// The first that a read of a transaction found.
pub(super) fn in_range(op: &ResponseOp) -> Option<&KeyValue> {
    match op.response.as_ref()? {
        Response::Range(range) => range.kvs.first(),
        _ => None,
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Compare {
    #[prost(int32, tag = "1")]
    pub(super) result: i32,
    #[prost(int32, tag = "2")]
    pub(super) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) key: Vec<u8>,
    #[prost(oneof = "Target", tags = "6, 7")]
    pub(super) operand: Option<Target>,
    /// Where a whole range is compared: each key in it must pass. Since etcd 3.3.
    #[prost(bytes = "vec", tag = "64")]
    pub(super) range_end: Vec<u8>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Target {
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    #[prost(bytes = "vec", tag = "7")]
    Value(Vec<u8>),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(super) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(super) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(super) responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    pub(super) ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
    #[prost(string, tag = "4")]
    pub(super) error: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseRevokeRequest {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseKeepAliveRequest {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseKeepAliveResponse {
    /// Seconds; 0 or less where the lease has ended.
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchRequest {
    #[prost(oneof = "WatchUnion", tags = "1")]
    pub(super) union: Option<WatchUnion>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum WatchUnion {
    #[prost(message, tag = "1")]
    Create(WatchCreateRequest),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) start_revision: i64,
    #[prost(bool, tag = "4")]
    pub(super) progress_notify: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(bool, tag = "3")]
    pub(super) created: bool,
    #[prost(bool, tag = "4")]
    pub(super) canceled: bool,
    #[prost(int64, tag = "5")]
    pub(super) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(super) cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<Event>,
}

/// What is stored under the cluster's key.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ClusterMessage {
    #[prost(uint32, tag = "1")]
    pub(super) format: u32,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) cluster: Vec<u8>,
}

/// What is stored under a living broker's key.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LiveMessage {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) store_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) boot_id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub(super) address: String,
    #[prost(string, tag = "4")]
    pub(super) replication_address: String,
    #[prost(string, optional, tag = "5")]
    pub(super) kafka_address: Option<String>,
    #[prost(string, tag = "6")]
    pub(super) host: String,
    #[prost(string, optional, tag = "7")]
    pub(super) rack: Option<String>,
    /// 0 serving, 1 draining.
    #[prost(uint32, tag = "8")]
    pub(super) state: u32,
    #[prost(string, tag = "9")]
    pub(super) version: String,
    /// 0 broker, 1 replica store. Versions that do not know it go by `state`, which is 1 then.
    #[prost(uint32, tag = "10")]
    pub(super) role: u32,
    /// The newest cluster version that the program can.
    #[prost(uint32, tag = "11")]
    pub(super) cluster_version: u32,
    /// The brokers whose certificates it refuses. Versions that do not know it refuse nobody.
    #[prost(message, repeated, tag = "12")]
    pub(super) refuses: Vec<RefusalMessage>,
    /// Another number when its files for TLS have changed.
    #[prost(uint32, tag = "13")]
    pub(super) tls_files: u32,
    /// Why it cannot write its own files. Versions that do not know it give it streamlets all the same.
    #[prost(string, optional, tag = "14")]
    pub(super) cannot_write: Option<String>,
    /// Its addresses with names. Versions that do not know it go by `address` and `kafka_address`.
    #[prost(message, repeated, tag = "15")]
    pub(super) named: Vec<AdvertisedMessage>,
}

/// An address with a name of a living broker.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AdvertisedMessage {
    /// 0 native clients, 1 Kafka's.
    #[prost(uint32, tag = "1")]
    pub(super) clients: u32,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(string, tag = "3")]
    pub(super) address: String,
}

/// A certificate that a living broker refuses.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RefusalMessage {
    #[prost(uint32, tag = "1")]
    pub(super) broker: u32,
    #[prost(string, tag = "2")]
    pub(super) reason: String,
}

/// What is stored under the controller's key.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ControllerMessage {
    #[prost(uint32, tag = "1")]
    pub(super) broker: u32,
}
