//! The `Clusters` service: control calls to [`crate::admin::cluster`].

use std::sync::Arc;

use kera_grpc::serve::Caller;
use kera_grpc::v1::clusters_server::Clusters;
use kera_protocol::v1;
use tonic::{Request, Response, Status};

use super::status;
use crate::admin::cluster;
use crate::shared::Shared;

type Answer<T> = Result<Response<T>, Status>;

/// The name of the native address that the client came in by, if it has one.
fn listener_of<T>(request: &Request<T>) -> Option<&'static str> {
    let caller = request.extensions().get::<Caller>();
    caller.and_then(|caller| caller.listener)
}

/// Serves what concerns all brokers of a cluster.
pub(super) struct ClustersService {
    shared: Arc<Shared>,
}

impl ClustersService {
    /// A service over this broker's view of its cluster.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

#[tonic::async_trait]
impl Clusters for ClustersService {
    async fn describe_cluster(
        &self,
        request: Request<v1::DescribeClusterRequest>,
    ) -> Answer<v1::DescribeClusterResponse> {
        let described = cluster::describe_cluster(&self.shared, listener_of(&request)).await;
        described.map(Response::new).map_err(status)
    }

    async fn plan_moves(
        &self,
        request: Request<v1::PlanMovesRequest>,
    ) -> Answer<v1::PlanMovesResponse> {
        let planned = cluster::plan_moves(&self.shared, request.into_inner().most).await;
        planned.map(Response::new).map_err(status)
    }

    async fn move_streamlet(
        &self,
        request: Request<v1::MoveStreamletRequest>,
    ) -> Answer<v1::MoveStreamletResponse> {
        let moved = cluster::move_streamlet(&self.shared, request.into_inner()).await;
        moved.map(Response::new).map_err(status)
    }

    async fn set_draining(
        &self,
        request: Request<v1::SetDrainingRequest>,
    ) -> Answer<v1::SetDrainingResponse> {
        let set = cluster::set_draining(&self.shared, request.into_inner()).await;
        set.map(Response::new).map_err(status)
    }

    async fn describe_drain(
        &self,
        request: Request<v1::DescribeDrainRequest>,
    ) -> Answer<v1::DescribeDrainResponse> {
        let described = cluster::describe_drain(&self.shared, request.into_inner().broker).await;
        described.map(Response::new).map_err(status)
    }

    async fn plan_restart(
        &self,
        request: Request<v1::PlanRestartRequest>,
    ) -> Answer<v1::PlanRestartResponse> {
        let planned = cluster::plan_restart(&self.shared, listener_of(&request)).await;
        planned.map(Response::new).map_err(status)
    }

    async fn finalize_cluster(
        &self,
        request: Request<v1::FinalizeClusterRequest>,
    ) -> Answer<v1::FinalizeClusterResponse> {
        let without = request.into_inner().without_brokers;
        let finalized = cluster::finalize(&self.shared, &without).await;
        finalized.map(Response::new).map_err(status)
    }
}
