//! The control calls that people make in the console: the functions that serve them over gRPC, so that rules, quotas, the audit
//! log and errors are those of the same call by the command line.

use std::sync::Arc;
use std::time::Duration;

use kera_grpc::serve::Caller;
use kera_grpc::v1::clusters_server::Clusters;
use kera_grpc::v1::consumers_server::Consumers;
use kera_grpc::v1::streams_server::Streams;
use kera_protocol::error::WireError;
use kera_protocol::v1;
use tonic::Request;

use super::cluster::ClustersService;
use super::consumers::ConsumersService;
use super::error_of;
use super::streams::StreamsService;
use crate::access::{Guarded, may_read_all};
use crate::config::Listener;
use crate::coordination::CoordinatorKind;
use crate::others;
use crate::shared::Shared;

/// How long the coordinator of a group has, if that is another broker.
const COORDINATOR_ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// What can be changed over HTTP.
pub(crate) struct Acts {
    shared: Arc<Shared>,
    streams: Guarded<StreamsService>,
    consumers: Guarded<ConsumersService>,
    clusters: Guarded<ClustersService>,
}

/// Calls the function of a service that gRPC would call.
macro_rules! acts {
    ($($call:ident($request:ident) -> $response:ident of $service:ident;)*) => {
        $(pub(crate) async fn $call(
            &self,
            caller: &Caller,
            request: v1::$request,
        ) -> Result<v1::$response, WireError> {
            let answer = self.$service.$call(over_http(caller, request)).await;
            Ok(answer.map_err(|status| error_of(&status))?.into_inner())
        })*
    };
}

impl Acts {
    /// Acts at this broker.
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: shared.clone(),
            streams: super::guarded_streams(shared),
            consumers: super::guarded_consumers(shared),
            clusters: super::guarded_clusters(shared),
        }
    }

    acts! {
        create_stream(CreateStreamRequest) -> StreamInfo of streams;
        alter_stream(AlterStreamRequest) -> StreamInfo of streams;
        trim_stream(TrimStreamRequest) -> TrimStreamResponse of streams;
        delete_stream(DeleteStreamRequest) -> DeleteStreamResponse of streams;
        set_draining(SetDrainingRequest) -> SetDrainingResponse of clusters;
    }

    /// Moves a group, at whichever broker coordinates it.
    pub(crate) async fn reset_group(
        &self,
        caller: &Caller,
        request: v1::ResetGroupRequest,
    ) -> Result<v1::ResetGroupResponse, WireError> {
        let group = request.group.clone();
        let request = over_http(caller, request);
        // First: a look for the coordinator may make the stream of groups.
        let checked = self.consumers.check(&request);
        checked.map_err(|status| error_of(&status))?;
        let coordination = &self.shared.coordination;
        let place = coordination.place(&self.shared, CoordinatorKind::Groups, &group);
        let broker = place.await?.broker;
        if broker == self.shared.data.directory.me() {
            let answer = self.consumers.reset_group(request).await;
            return Ok(answer.map_err(|status| error_of(&status))?.into_inner());
        }
        let passed_on = self.consumers.instead(request, |request| async move {
            let mut stub = others::consumers(&self.shared, broker)?;
            // The coordinator takes this broker for who asks.
            if request.stream.is_none() && self.shared.access.is_enforced() {
                let describe = v1::DescribeGroupRequest {
                    group: request.group.clone(),
                };
                let told = stub.describe_group(describe);
                let told = others::answer(broker, COORDINATOR_ANSWERS_WITHIN, told).await?;
                may_read_all(&self.shared, (Listener::Http, Some(caller)), &told)?;
            }
            let answer = stub.reset_group(request);
            others::answer(broker, COORDINATOR_ANSWERS_WITHIN, answer).await
        });
        passed_on.await.map_err(|status| error_of(&status))
    }
}

fn over_http<R>(caller: &Caller, request: R) -> Request<R> {
    let mut request = Request::new(request);
    request.extensions_mut().insert(caller.clone());
    request.extensions_mut().insert(Listener::Http);
    request
}
