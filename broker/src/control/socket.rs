//! A control connection's socket, counted as long as gRPC has it.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use kera_protocol::error::WireError;
use kera_rpc::status_of;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use tonic::transport::server::Connected;
use tonic::{Request, Status};

use crate::listener::Counted;

/// A socket whose first bytes are HTTP/2's, not yet read.
pub struct ControlSocket {
    stream: TcpStream,
    refusal: Option<Refusal>,
    _counted: Counted,
}

/// Why every call on a connection is refused, and when it is closed.
struct Refusal {
    error: WireError,
    close: Pin<Box<Sleep>>,
}

/// What calls are told of their connection.
#[derive(Clone)]
pub struct ControlInfo {
    refusal: Option<WireError>,
}

/// Refuses the calls of a connection that is refused.
///
/// # Errors
/// The connection's refusal.
pub fn admit(request: Request<()>) -> Result<Request<()>, Status> {
    let info = request.extensions().get::<ControlInfo>();
    match info.and_then(|info| info.refusal.as_ref()) {
        None => Ok(request),
        Some(error) => Err(status_of(error)),
    }
}

impl ControlSocket {
    /// The socket, with its place among the connections.
    pub fn new(stream: TcpStream, counted: Counted) -> Self {
        Self {
            stream,
            refusal: None,
            _counted: counted,
        }
    }

    /// A socket on which every call is answered with `error`, and which is closed after `within`.
    pub fn refused(
        stream: TcpStream,
        counted: Counted,
        error: WireError,
        within: Duration,
    ) -> Self {
        let close = Box::pin(sleep(within));
        Self {
            stream,
            refusal: Some(Refusal { error, close }),
            _counted: counted,
        }
    }
}

impl Connected for ControlSocket {
    type ConnectInfo = ControlInfo;

    fn connect_info(&self) -> ControlInfo {
        let refusal = self.refusal.as_ref();
        ControlInfo {
            refusal: refusal.map(|refusal| refusal.error.clone()),
        }
    }
}

impl AsyncRead for ControlSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(refusal) = &mut this.refusal
            && refusal.close.as_mut().poll(context).is_ready()
        {
            // As if the client had ended it.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for ControlSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
