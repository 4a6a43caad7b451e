//! The `Consumers` service: each call goes to the coordinator of its group.

use std::sync::Arc;

use kera_coordinator::{Reply, Request as Ask};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;
use kera_rpc::v1::consumers_server::Consumers;
use tonic::{Request, Response, Status};

use super::status;
use crate::start::Shared;

/// Serves consumer groups.
pub struct ConsumersService {
    shared: Arc<Shared>,
}

impl ConsumersService {
    /// A service over the broker's coordinators.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    async fn ask(&self, group: &str, ask: Ask) -> Result<Reply, Status> {
        self.shared
            .coordination
            .call(&self.shared, group, ask)
            .await
            .map_err(status)
    }
}

/// One call: hands the request to its group's coordinator and unwraps the reply of the same name.
macro_rules! forward {
    ($self:ident, $request:ident, $variant:ident) => {{
        let request = $request.into_inner();
        let group = request.group.clone();
        match $self.ask(&group, Ask::$variant(request)).await? {
            Reply::$variant(reply) => Ok(Response::new(reply)),
            other => Err(mismatch(&other)),
        }
    }};
}

fn mismatch(reply: &Reply) -> Status {
    tracing::error!(?reply, "a coordinator answered another question");
    status(WireError::new(
        ErrorCode::Internal,
        "the coordinator gave an answer of another kind; see the broker's log",
    ))
}

#[tonic::async_trait]
impl Consumers for ConsumersService {
    async fn join(
        &self,
        request: Request<v1::JoinRequest>,
    ) -> Result<Response<v1::JoinResponse>, Status> {
        forward!(self, request, Join)
    }

    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatRequest>,
    ) -> Result<Response<v1::HeartbeatResponse>, Status> {
        forward!(self, request, Heartbeat)
    }

    async fn acquire(
        &self,
        request: Request<v1::AcquireRequest>,
    ) -> Result<Response<v1::AcquireResponse>, Status> {
        forward!(self, request, Acquire)
    }

    async fn commit(
        &self,
        request: Request<v1::CommitRequest>,
    ) -> Result<Response<v1::CommitResponse>, Status> {
        forward!(self, request, Commit)
    }

    async fn leave(
        &self,
        request: Request<v1::LeaveRequest>,
    ) -> Result<Response<v1::LeaveResponse>, Status> {
        forward!(self, request, Leave)
    }

    async fn list_groups(
        &self,
        _request: Request<v1::ListGroupsRequest>,
    ) -> Result<Response<v1::ListGroupsResponse>, Status> {
        let groups =
            tokio::task::block_in_place(|| self.shared.coordination.summaries(&self.shared));
        Ok(Response::new(v1::ListGroupsResponse { groups }))
    }

    async fn describe_group(
        &self,
        request: Request<v1::DescribeGroupRequest>,
    ) -> Result<Response<v1::DescribeGroupResponse>, Status> {
        forward!(self, request, DescribeGroup)
    }

    async fn reset_group(
        &self,
        request: Request<v1::ResetGroupRequest>,
    ) -> Result<Response<v1::ResetGroupResponse>, Status> {
        forward!(self, request, ResetGroup)
    }

    async fn delete_group(
        &self,
        request: Request<v1::DeleteGroupRequest>,
    ) -> Result<Response<v1::DeleteGroupResponse>, Status> {
        forward!(self, request, DeleteGroup)
    }
}
