//! Connections for gRPC, with TLS or without, as a user or as nobody in particular.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use kera_rpc::Way;
use kera_rpc::stream::Stream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

/// A channel to the broker at `address`, HOST:PORT, which is where `endpoint` leads; connects with its first call. To be
/// called within a tokio runtime.
pub fn channel(way: &Way, endpoint: Endpoint, address: &str) -> Channel {
    match way.tls.is_none() && way.login.is_none() {
        true => endpoint.connect_lazy(),
        false => endpoint.connect_with_connector_lazy(Connector::new(way, address)),
    }
}

/// Connects to the broker at one address.
#[derive(Clone, Debug)]
pub struct Connector {
    way: Way,
    address: String,
}

impl Connector {
    /// Connects to the broker at `address`, HOST:PORT.
    pub fn new(way: &Way, address: &str) -> Self {
        Self {
            way: way.clone(),
            address: address.to_owned(),
        }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { way, address } = self.clone();
        Box::pin(async move { way.http2(&address).await.map(TokioIo::new) })
    }
}
