//! Control calls over gRPC: streams and consumer groups.

mod clusters;
mod consumers;
pub(crate) mod describe;
mod lanes;
mod socket;
mod streams;

use std::sync::Arc;

use kera_protocol::error::WireError;
use kera_rpc::status_of;
use kera_rpc::v1::clusters_server::ClustersServer;
use kera_rpc::v1::consumers_server::ConsumersServer;
use kera_rpc::v1::lanes_server::LanesServer;
use kera_rpc::v1::streams_server::StreamsServer;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::service::InterceptorLayer;
use tonic::transport::Server;

use crate::start::Shared;

pub use socket::ControlSocket;

/// Largest control request, in bytes.
const MAX_REQUEST_BYTES: usize = 4 << 20;

/// Serves control calls on the connections that the listener hands over.
pub async fn serve(connections: mpsc::Receiver<ControlSocket>, shared: Arc<Shared>) {
    let incoming = ReceiverStream::new(connections).map(Ok::<_, std::io::Error>);
    let mut stopping = shared.stopping.subscribe();
    let stop = async move {
        let _ = stopping.wait_for(|stop| *stop).await;
    };
    let streams = StreamsServer::new(streams::StreamsService::new(shared.clone()));
    let consumers = ConsumersServer::new(consumers::ConsumersService::new(shared.clone()));
    let lanes = LanesServer::new(lanes::LanesService::new(shared.clone()));
    let clusters = ClustersServer::new(clusters::ClustersService::new(shared.clone()));
    let served = Server::builder()
        .http2_keepalive_interval(Some(std::time::Duration::from_secs(30)))
        .layer(InterceptorLayer::new(socket::admit))
        .add_service(streams.max_decoding_message_size(MAX_REQUEST_BYTES))
        .add_service(consumers.max_decoding_message_size(MAX_REQUEST_BYTES))
        .add_service(lanes.max_decoding_message_size(MAX_REQUEST_BYTES))
        .add_service(clusters.max_decoding_message_size(MAX_REQUEST_BYTES))
        .serve_with_incoming_shutdown(incoming, stop)
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "serving control calls ended");
    }
}

fn status(error: WireError) -> Status {
    status_of(&error)
}
