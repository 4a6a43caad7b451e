//! The `Consumers` service: each call goes to the coordinator of its group.

use std::sync::Arc;
use std::time::Duration;

use kera_coordinator::{Reply, Request as Ask};
use kera_grpc::serve::Caller;
use kera_grpc::v1::consumers_server::Consumers;
use kera_metadata::Feature;
use kera_metadata::access::Kind;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;
use tonic::{Request, Response, Status};

use super::{page_of, status};
use crate::access::{hide_progress, hide_streams, may_read_all, may_see, via};
use crate::admin;
use crate::coordination::CoordinatorKind;
use crate::others;
use crate::shared::Shared;
use crate::transactions;

/// How long another broker is given to tell its groups.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Serves consumer groups.
pub(super) struct ConsumersService {
    shared: Arc<Shared>,
}

impl ConsumersService {
    /// A service over the broker's coordinators.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
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

/// The host of a client, as Kafka's clients are written: both count together.
fn client_host<R>(request: &Request<R>) -> String {
    let caller = request.extensions().get::<Caller>();
    caller.map_or_else(String::new, |caller| format!("/{}", caller.address))
}

fn mismatch(reply: &Reply) -> Status {
    tracing::error!(?reply, "a coordinator answered another question");
    status(WireError::new(
        ErrorCode::Internal,
        "the coordinator gave an answer of another kind; see the broker's log",
    ))
}

/// The groups that other brokers coordinate.
///
/// # Errors
/// The first broker's that does not answer: a list that lacks groups would be taken for all of them.
async fn groups_elsewhere(shared: &Shared) -> Result<Vec<v1::GroupSummary>, WireError> {
    let lists = others::ask_all(shared, |broker| async move {
        let mut stub = others::consumers(shared, broker)?;
        let request = v1::ListGroupsRequest {
            local: true,
            ..v1::ListGroupsRequest::default()
        };
        others::answer(broker, ANSWER_WITHIN, stub.list_groups(request)).await
    });
    let lists = lists.await?;
    Ok(lists.into_iter().flat_map(|list| list.groups).collect())
}

#[tonic::async_trait]
impl Consumers for ConsumersService {
    async fn join(
        &self,
        request: Request<v1::JoinRequest>,
    ) -> Result<Response<v1::JoinResponse>, Status> {
        let client_host = client_host(&request);
        let request = request.into_inner();
        if request.order() == v1::Order::Key {
            self.shared.require(Feature::KeyOrder).map_err(status)?;
        }
        let group = request.group.clone();
        let ask = Ask::Join {
            request,
            client_host,
        };
        match self.ask(&group, ask).await? {
            Reply::Join(reply) => Ok(Response::new(reply)),
            other => Err(mismatch(&other)),
        }
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

    async fn commit_positions(
        &self,
        request: Request<v1::CommitPositionsRequest>,
    ) -> Result<Response<v1::CommitPositionsResponse>, Status> {
        let client_host = client_host(&request);
        let request = request.into_inner();
        if !request.stream_id.is_empty() {
            let stream = admin::named_anywhere(&self.shared, &request.stream).await;
            let stream = stream.map_err(status)?;
            admin::is_meant(&stream, &request.stream_id).map_err(status)?;
        }
        let group = request.group.clone();
        let ask = Ask::CommitPositions {
            request,
            client_host,
        };
        match self.ask(&group, ask).await? {
            Reply::CommitPositions(reply) => Ok(Response::new(reply)),
            other => Err(mismatch(&other)),
        }
    }

    async fn send_positions(
        &self,
        request: Request<v1::SendPositionsRequest>,
    ) -> Result<Response<v1::SendPositionsResponse>, Status> {
        let sent = transactions::send_positions(&self.shared, request.into_inner()).await;
        sent.map(Response::new).map_err(status)
    }

    async fn list_groups(
        &self,
        request: Request<v1::ListGroupsRequest>,
    ) -> Result<Response<v1::ListGroupsResponse>, Status> {
        let mut groups =
            tokio::task::block_in_place(|| self.shared.coordination.summaries(&self.shared));
        let caller = request.extensions().get::<Caller>().cloned();
        let request = request.into_inner();
        if !request.local && self.shared.data.directory.is_shared() {
            let others = groups_elsewhere(&self.shared).await;
            groups.extend(others.map_err(status)?);
            groups.sort_by(|a, b| a.group.cmp(&b.group));
        }
        groups.retain(|group| may_see(&self.shared, caller.as_ref(), (Kind::Group, &group.group)));
        let groups = groups.into_iter().filter(|g| g.group > request.after);
        let (mut groups, more) = page_of(groups, request.max_groups);
        for group in &mut groups {
            hide_streams(&self.shared, caller.as_ref(), group);
        }
        Ok(Response::new(v1::ListGroupsResponse { groups, more }))
    }

    async fn find_coordinator(
        &self,
        request: Request<v1::FindCoordinatorRequest>,
    ) -> Result<Response<v1::FindCoordinatorResponse>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let request = request.into_inner();
        let (kind, name) = match request.transactional_id.is_empty() {
            true => (CoordinatorKind::Groups, request.group),
            false => (CoordinatorKind::Transactions, request.transactional_id),
        };
        let place = self
            .shared
            .coordination
            .place(&self.shared, kind, &name)
            .await;
        let one = kind.one(&name);
        let broker_id = place.map_err(status)?.broker;
        if broker_id == self.shared.data.directory.me() && !self.shared.data.directory.is_current()
        {
            let text = format!(
                "this broker has lost its lease and cannot know who coordinates {one} now; ask another"
            );
            return Err(status(WireError::new(ErrorCode::NotCoordinator, text)));
        }
        let Some(broker) = self.shared.data.directory.broker(broker_id) else {
            let text = format!(
                "{one} is coordinated by broker {broker_id}, which is not running; try again: another takes over if it can"
            );
            return Err(status(WireError::new(ErrorCode::CoordinatorLoading, text)));
        };
        let listener = caller.and_then(|caller| caller.listener);
        let Some(address) = broker.native_at(listener) else {
            let text = format!(
                "{one} is coordinated by broker {broker_id}, which has no address with the name of the listener that was asked; give all brokers the same names in server.listen, or ask at another address"
            );
            return Err(status(WireError::new(ErrorCode::NotCoordinator, text)));
        };
        Ok(Response::new(v1::FindCoordinatorResponse {
            broker_id,
            address: address.to_owned(),
        }))
    }

    async fn describe_group(
        &self,
        request: Request<v1::DescribeGroupRequest>,
    ) -> Result<Response<v1::DescribeGroupResponse>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let mut told: Response<v1::DescribeGroupResponse> = forward!(self, request, DescribeGroup)?;
        hide_progress(&self.shared, caller.as_ref(), told.get_mut());
        Ok(told)
    }

    async fn reset_group(
        &self,
        request: Request<v1::ResetGroupRequest>,
    ) -> Result<Response<v1::ResetGroupResponse>, Status> {
        let of_all = request.get_ref().stream.is_none();
        if of_all && self.shared.access.is_enforced() {
            let group = request.get_ref().group.clone();
            let describe = v1::DescribeGroupRequest {
                group: group.clone(),
            };
            let told = match self.ask(&group, Ask::DescribeGroup(describe)).await? {
                Reply::DescribeGroup(told) => told,
                other => return Err(mismatch(&other)),
            };
            let caller = request.extensions().get::<Caller>();
            may_read_all(&self.shared, (via(&request), caller), &told).map_err(status)?;
        }
        forward!(self, request, ResetGroup)
    }

    async fn delete_group(
        &self,
        request: Request<v1::DeleteGroupRequest>,
    ) -> Result<Response<v1::DeleteGroupResponse>, Status> {
        forward!(self, request, DeleteGroup)
    }
}
