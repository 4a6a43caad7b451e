//! Control calls over gRPC and as frames: streams, their lanes, and consumer groups.

mod access;
pub(crate) mod acts;
mod cluster;
mod consumers;
pub(crate) mod describe;
pub(crate) mod framed_calls;
mod generations;
mod lanes;
mod quotas;
mod streams;
mod transaction_tools;
mod transactions;
mod users;

use std::sync::Arc;

use kera_grpc::serve::{CallLimits, CallServer, CallsEnded};
use kera_grpc::v1::access_server::AccessServer;
use kera_grpc::v1::clusters_server::ClustersServer;
use kera_grpc::v1::consumers_server::ConsumersServer;
use kera_grpc::v1::lanes_server::LanesServer;
use kera_grpc::v1::quotas_server::QuotasServer;
use kera_grpc::v1::streams_server::StreamsServer;
use kera_grpc::v1::transaction_tools_server::TransactionToolsServer;
use kera_grpc::v1::transactions_server::TransactionsServer;
use kera_grpc::v1::users_server::UsersServer;
use kera_grpc::{status_of, wire_error_of_status};
use kera_protocol::error::{ErrorCode, WireError};
use tonic::Status;
use tonic::service::Routes;

use crate::access::Guarded;
use crate::shared::Shared;

/// Largest control request, in bytes.
const MAX_REQUEST_BYTES: usize = 4 << 20;
/// Of the requests of one connection, and of all, so much is received and worked on at a time.
const CONNECTION_BYTES: usize = 4 * MAX_REQUEST_BYTES;
const TOTAL_BYTES: usize = 16 * MAX_REQUEST_BYTES;
/// Control connections that do nothing, at about 16 KiB each.
const QUIET_CONNECTIONS: usize = 1024;
/// Calls of one connection; most wait for something.
const CALLS: u32 = 4096;
/// Calls of all connections: each member of a group may have two that wait.
const TOTAL_CALLS: usize = 16_384;

/// What serves control calls on the connections of the native address.
pub fn server(shared: &Arc<Shared>) -> (CallServer, CallsEnded) {
    let streams = StreamsServer::new(guarded_streams(shared));
    let consumers = ConsumersServer::new(guarded_consumers(shared));
    let lanes = LanesServer::new(guarded_lanes(shared));
    let transactions = TransactionsServer::new(guarded_transactions(shared));
    let clusters = ClustersServer::new(guarded_clusters(shared));
    let access = access::AccessService::new(shared.clone());
    let access = AccessServer::new(Guarded::new(access, shared));
    let users = users::UsersService::new(shared.clone());
    let users = UsersServer::new(Guarded::new(users, shared));
    let quotas = quotas::QuotasService::new(shared.clone());
    let quotas = QuotasServer::new(Guarded::new(quotas, shared));
    let tools = transaction_tools::TransactionToolsService::new(shared.clone());
    let tools = TransactionToolsServer::new(Guarded::new(tools, shared));
    let routes = Routes::new(streams.max_decoding_message_size(MAX_REQUEST_BYTES))
        .add_service(consumers.max_decoding_message_size(MAX_REQUEST_BYTES))
        .add_service(lanes.max_decoding_message_size(MAX_REQUEST_BYTES))
        .add_service(transactions.max_decoding_message_size(MAX_REQUEST_BYTES))
        .add_service(clusters.max_decoding_message_size(MAX_REQUEST_BYTES))
        .add_service(access.max_decoding_message_size(MAX_REQUEST_BYTES))
        .add_service(users.max_decoding_message_size(MAX_REQUEST_BYTES))
        .add_service(quotas.max_decoding_message_size(MAX_REQUEST_BYTES))
        .add_service(tools.max_decoding_message_size(MAX_REQUEST_BYTES));
    let config = &shared.config.server;
    let limits = CallLimits {
        first_call: config.hello_timeout,
        idle: config.control_idle_timeout,
        receive: config.receive_timeout,
        send: config.send_timeout,
        quiet_connections: QUIET_CONNECTIONS,
        calls: CALLS,
        total_calls: TOTAL_CALLS,
        calls_at_work: CALLS as usize,
        connection_bytes: CONNECTION_BYTES,
        total_bytes: TOTAL_BYTES,
    };
    let stopping = shared.stopping.subscribe();
    CallServer::new(routes, limits, stopping, shared.data.freed.clone())
}

fn guarded_streams(shared: &Arc<Shared>) -> Guarded<streams::StreamsService> {
    Guarded::new(streams::StreamsService::new(shared.clone()), shared)
}

fn guarded_consumers(shared: &Arc<Shared>) -> Guarded<consumers::ConsumersService> {
    Guarded::new(consumers::ConsumersService::new(shared.clone()), shared)
}

fn guarded_clusters(shared: &Arc<Shared>) -> Guarded<cluster::ClustersService> {
    Guarded::new(cluster::ClustersService::new(shared.clone()), shared)
}

fn guarded_lanes(shared: &Arc<Shared>) -> Guarded<lanes::LanesService> {
    Guarded::new(lanes::LanesService::new(shared.clone()), shared)
}

fn guarded_transactions(shared: &Arc<Shared>) -> Guarded<transactions::TransactionsService> {
    let service = transactions::TransactionsService::new(shared.clone());
    Guarded::new(service, shared)
}

fn status(error: WireError) -> Status {
    status_of(&error)
}

fn error_of(status: &Status) -> WireError {
    wire_error_of_status(status)
        .unwrap_or_else(|| WireError::new(ErrorCode::Internal, status.message().to_owned()))
}

/// A page of a list of at most so many, or all of it for 0; and whether the list goes on.
fn page_of<T>(mut list: impl Iterator<Item = T>, most: u32) -> (Vec<T>, bool) {
    let most = match most {
        0 => usize::MAX,
        most => most as usize,
    };
    let page = list.by_ref().take(most).collect();
    (page, list.next().is_some())
}
