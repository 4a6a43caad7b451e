//! The way to a broker: with TLS or without, as a user or as nobody in particular.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

use crate::login::Login;
use crate::stream::Stream;
use crate::tls::ClientTls;

/// How a client reaches brokers. Cheap to clone; the default is without TLS and as nobody.
#[derive(Clone, Debug, Default)]
pub struct Way {
    /// TLS; `None` connects without.
    pub tls: Option<ClientTls>,
    /// Who the client proves to be on each connection, if it does.
    pub login: Option<Login>,
}

impl Way {
    /// True if a connection begins at once.
    fn is_plain(&self) -> bool {
        self.tls.is_none() && self.login.is_none()
    }

    /// Connects to the broker at `address`, HOST:PORT, for frames.
    ///
    /// # Errors
    /// The socket's, or why one of the two refused the other.
    pub async fn frames(&self, address: &str) -> io::Result<Stream> {
        let socket = connect(address).await?;
        let stream = match &self.tls {
            None => Stream::Plain(socket),
            Some(tls) => tls.frames(socket, address).await?,
        };
        self.prove(stream).await
    }

    /// The same for gRPC.
    async fn calls(&self, address: &str) -> io::Result<Stream> {
        let socket = connect(address).await?;
        let stream = match &self.tls {
            None => Stream::Plain(socket),
            Some(tls) => tls.calls(socket, address).await?,
        };
        self.prove(stream).await
    }

    async fn prove(&self, mut stream: Stream) -> io::Result<Stream> {
        if let Some(login) = &self.login {
            login.prove(&mut stream).await?;
        }
        Ok(stream)
    }

    /// A channel for gRPC to the broker at `address`, HOST:PORT, which is where `endpoint` leads; connects with its first
    /// call. To be called within a tokio runtime.
    pub fn channel(&self, endpoint: Endpoint, address: &str) -> Channel {
        match self.is_plain() {
            true => endpoint.connect_lazy(),
            false => endpoint.connect_with_connector_lazy(self.connector(address)),
        }
    }

    /// Connects to the broker at `address`, HOST:PORT, for gRPC.
    pub fn connector(&self, address: &str) -> Connector {
        Connector {
            way: self.clone(),
            address: address.to_owned(),
        }
    }
}

async fn connect(address: &str) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Connects to the broker at one address for gRPC.
#[derive(Clone, Debug)]
pub struct Connector {
    way: Way,
    address: String,
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
        Box::pin(async move { way.calls(&address).await.map(TokioIo::new) })
    }
}
