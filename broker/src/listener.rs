//! The native address: accepts connections and tells data frames from control calls by their first
//! bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::{self, FrameError, Hello, HelloReply};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::connection::Connection;
use crate::control;
use crate::error::BrokerError;
use crate::start::Shared;

/// The first bytes of HTTP/2, which gRPC speaks.
const HTTP2_PREFACE: &[u8] = b"PRI ";
/// How often an address in use is tried, and the pause between.
const BIND_ATTEMPTS: u32 = 100;
const BIND_PAUSE: Duration = Duration::from_millis(20);
/// Connections the system may hold that are not accepted yet.
const BACKLOG: u32 = 4096;
/// Control connections handed to gRPC but not yet taken.
const CONTROL_QUEUE: usize = 1024;

/// Binds `address`; `key` is the configuration key to name in an error.
///
/// # Errors
/// [`BrokerError::Listen`].
pub async fn bind(address: &str, key: &'static str) -> Result<TcpListener, BrokerError> {
    let fail = |error| BrokerError::Listen {
        address: address.to_string(),
        key,
        error,
    };
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    // The data directory is ours by now: whoever still has the address is most likely our killed
    // predecessor, whose sockets the system is taking back.
    for attempt in 0..BIND_ATTEMPTS {
        for resolved in tokio::net::lookup_host(address).await.map_err(fail)? {
            match try_bind(resolved) {
                Ok(listener) => return Ok(listener),
                Err(error) => last = error,
            }
        }
        if last.kind() != std::io::ErrorKind::AddrInUse {
            break;
        }
        if attempt == 0 {
            tracing::info!(
                address,
                "the address is in use; waiting for it to become free"
            );
        }
        tokio::time::sleep(BIND_PAUSE).await;
    }
    Err(fail(last))
}

fn try_bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    // A restarted broker takes its port back while old connections are still winding down.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts until the broker stops.
pub fn serve(listener: TcpListener, shared: Arc<Shared>) -> Vec<JoinHandle<()>> {
    let (to_control, control_queue) = mpsc::channel(CONTROL_QUEUE);
    let control = tokio::spawn(control::serve(control_queue, shared.clone()));
    vec![control, tokio::spawn(accept(listener, to_control, shared))]
}

async fn accept(listener: TcpListener, to_control: mpsc::Sender<TcpStream>, shared: Arc<Shared>) {
    let mut stopping = shared.stopping.subscribe();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|stop| *stop) => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, mostly: the queue holds the others while we wait.
                tracing::warn!(%error, "accepting a connection failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let open = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let guard = Counted(shared.clone());
        shared.metrics.connections_accepted.inc();
        let refused = open > u64::from(shared.config.server.max_connections);
        let to_control = to_control.clone();
        tokio::spawn(async move {
            let guard = guard;
            if let Err(error) = sniff(stream, peer, refused, to_control, guard).await {
                tracing::debug!(%peer, %error, "connection ended");
            }
        });
    }
}

/// Counts a connection while it lives.
pub struct Counted(pub Arc<Shared>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn sniff(
    mut stream: TcpStream,
    peer: SocketAddr,
    refused: bool,
    to_control: mpsc::Sender<TcpStream>,
    guard: Counted,
) -> std::io::Result<()> {
    let shared = guard.0.clone();
    stream.set_nodelay(true)?;
    let first =
        tokio::time::timeout(shared.config.server.hello_timeout, first_bytes(&stream)).await;
    let first = first.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    if refused {
        let limit = shared.config.server.max_connections;
        let error = WireError::new(
            ErrorCode::TooManyConnections,
            format!(
                "the broker has {limit} connections, its limit; close some or raise server.max_connections"
            ),
        );
        return refuse(&mut stream, &error).await;
    }
    if first.starts_with(HTTP2_PREFACE) {
        // tonic owns it from here; the count ends with the hand-over, as streams are multiplexed.
        return to_control.send(stream).await.map_err(std::io::Error::other);
    }
    let mut bytes = [0; frame::HELLO_BYTES];
    let read = tokio::io::AsyncReadExt::read_exact(&mut stream, &mut bytes);
    tokio::time::timeout(shared.config.server.hello_timeout, read)
        .await
        .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    let hello = match Hello::decode(&bytes) {
        Ok(hello) => hello,
        Err(error) => return refuse(&mut stream, &error.into()).await,
    };
    let max_frame_bytes = u32::try_from(shared.config.server.max_frame_bytes).unwrap_or(u32::MAX);
    let reply = HelloReply {
        version: frame::PROTOCOL_VERSION,
        max_frame_bytes,
    };
    stream.write_all(&reply.encode()).await?;
    if hello.version != frame::PROTOCOL_VERSION {
        return refuse(
            &mut stream,
            &FrameError::UnsupportedProtocol(hello.version).into(),
        )
        .await;
    }
    Connection::new(stream, peer, shared, guard).run().await
}

async fn refuse(stream: &mut TcpStream, error: &WireError) -> std::io::Result<()> {
    let mut out = bytes::BytesMut::new();
    frame::encode_go_away(&mut out, error);
    stream.write_all(&out).await?;
    stream.shutdown().await
}

/// Looks at the first four bytes without taking them.
async fn first_bytes(stream: &TcpStream) -> std::io::Result<[u8; 4]> {
    let mut bytes = [0; 4];
    loop {
        stream.readable().await?;
        match stream.peek(&mut bytes).await? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            4 => return Ok(bytes),
            n if !HTTP2_PREFACE.starts_with(&bytes[..n])
                && !frame::MAGIC.starts_with(&bytes[..n]) =>
            {
                return Ok(bytes);
            }
            // Peeking again at once would spin: the rest of four bytes is on its way.
            _ => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}
