//! The native address: accepts connections and tells data frames from control calls by their first
//! bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::BytesMut;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::{self, FrameError, Hello, HelloReply};
use kera_rpc::serve::CallServer;
use kera_rpc::status_of;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::connection::Connection;
use crate::control;
use crate::error::BrokerError;
use crate::start::Shared;

/// The first bytes of HTTP/2, which gRPC speaks.
const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longest pause between two looks at first bytes that are not all there.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// Silence after which the system asks whether the peer's machine is still there.
const PROBE_AFTER: Duration = Duration::from_secs(60);
/// What a refused client may have sent already is read so far, for the refusal to reach it.
const READ_FROM_REFUSED: usize = 64 * 1024;
/// How often an address in use is tried, and the pause between.
const BIND_ATTEMPTS: u32 = 100;
const BIND_PAUSE: Duration = Duration::from_millis(20);
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// About what a connection takes of the allocator.
const OF_CONNECTION: usize = 4 << 10;
/// About what HTTP/2 takes beside that.
const OF_CONTROL_CONNECTION: usize = 16 << 10;
/// Of so many failures in a row one is logged: 10 s of them.
const FAILURES_PER_WARNING: u32 = 200;
/// Connections the system may hold that are not accepted yet.
const BACKLOG: u32 = 4096;

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
    let (control, ended) = control::server(&shared);
    vec![
        tokio::spawn(ended.wait()),
        tokio::spawn(accept(listener, control, shared)),
    ]
}

/// The next connection; `None` once the broker stops.
pub async fn next(
    listener: &TcpListener,
    stopping: &mut watch::Receiver<bool>,
) -> Option<(TcpStream, SocketAddr)> {
    tokio::select! {
        accepted = accept_next(listener) => Some(accepted),
        _ = stopping.wait_for(|stop| *stop) => None,
    }
}

/// The next connection, however long the system has none to give.
pub(crate) async fn accept_next(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    let mut failures = 0_u32;
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                // Out of descriptors, mostly: the queue holds the others while we wait.
                if failures.is_multiple_of(FAILURES_PER_WARNING) {
                    tracing::warn!(%error, "accepting a connection failed; trying again until it does not");
                }
                failures = failures.wrapping_add(1);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn accept(listener: TcpListener, control: CallServer, shared: Arc<Shared>) {
    let mut stopping = shared.stopping.subscribe();
    while let Some((stream, peer)) = next(&listener, &mut stopping).await {
        let guard = Counted::new(shared.clone());
        let open = shared.connections.load(Ordering::Relaxed);
        shared.metrics.connections_accepted.inc();
        let control = control.clone();
        tokio::spawn(async move {
            let refused = !guard.shared.admits(open, peer.ip()).await;
            if let Err(error) = sniff(stream, peer, refused, control, guard).await {
                tracing::debug!(%peer, %error, "connection ended");
            }
        });
    }
}

/// Counts a connection while it lives.
pub struct Counted {
    shared: Arc<Shared>,
    carries_data: bool,
}

impl Counted {
    /// Counts one more connection.
    pub fn new(shared: Arc<Shared>) -> Self {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        Self {
            shared,
            carries_data: false,
        }
    }

    /// Counts it among those that drain when the broker stops.
    pub fn of_data(mut self) -> Self {
        self.shared.data_connections.fetch_add(1, Ordering::Relaxed);
        self.carries_data = true;
        self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        self.shared.note_freed(OF_CONNECTION);
        if self.carries_data {
            self.shared.data_connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Sets what every connection's socket needs.
///
/// # Errors
/// The system's.
pub fn set_up(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    // A peer that vanished would hold its place for ever.
    SockRef::from(stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(PROBE_AFTER))
}

async fn sniff(
    mut stream: TcpStream,
    peer: SocketAddr,
    refused: bool,
    control: CallServer,
    guard: Counted,
) -> std::io::Result<()> {
    let shared = guard.shared.clone();
    set_up(&stream)?;
    let patience = shared.config.server.hello_timeout;
    let first = timeout(patience, speaks_http2(&stream)).await;
    let http2 = first.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    if refused {
        shared.metrics.connections_refused.inc();
        let limit = shared.admission.limit();
        let error = WireError::new(
            ErrorCode::TooManyConnections,
            format!(
                "the broker has {limit} connections, its limit; close some or raise server.max_connections"
            ),
        );
        if http2 {
            let refusal = Some(status_of(&error));
            Box::pin(control.connection(stream, peer.ip(), refusal)).await;
            return Ok(());
        }
        return refuse(&mut stream, &error, patience).await;
    }
    if http2 {
        Box::pin(control.connection(stream, peer.ip(), None)).await;
        shared.note_freed(OF_CONTROL_CONNECTION);
        return Ok(());
    }
    let mut bytes = [0; frame::HELLO_BYTES];
    let read = stream.read_exact(&mut bytes);
    timeout(patience, read)
        .await
        .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    let hello = match Hello::decode(&bytes) {
        Ok(hello) => hello,
        Err(error) => return refuse(&mut stream, &error.into(), patience).await,
    };
    let max_frame_bytes = u32::try_from(shared.config.server.max_frame_bytes).unwrap_or(u32::MAX);
    let reply = HelloReply {
        version: frame::PROTOCOL_VERSION,
        max_frame_bytes,
    };
    stream.write_all(&reply.encode()).await?;
    if hello.version != frame::PROTOCOL_VERSION {
        let error = FrameError::UnsupportedProtocol(hello.version).into();
        return refuse(&mut stream, &error, patience).await;
    }
    drop(control);
    let connection = Connection::new(stream, peer, shared, guard.of_data());
    Box::pin(connection.run()).await
}

/// Says why, and closes.
async fn refuse(
    stream: &mut TcpStream,
    error: &WireError,
    patience: Duration,
) -> std::io::Result<()> {
    let mut said = BytesMut::new();
    frame::encode_go_away(&mut said, error);
    stream.write_all(&said).await?;
    stream.shutdown().await?;
    // Closing with bytes unread would take back what was just said.
    let mut unread = [0; 1024];
    let drain = async {
        let mut read = 0;
        while read < READ_FROM_REFUSED {
            match stream.read(&mut unread).await {
                Ok(0) | Err(_) => break,
                Ok(bytes) => read += bytes,
            }
        }
    };
    // It has been told; whether it listens is its own affair.
    let _ = timeout(patience, drain).await;
    Ok(())
}

/// Looks at the first bytes without taking them, until they tell HTTP/2 from anything else.
async fn speaks_http2(stream: &TcpStream) -> std::io::Result<bool> {
    let mut bytes = [0; HTTP2_PREFACE.len()];
    let mut pause = Duration::from_millis(1);
    loop {
        stream.readable().await?;
        let there = match stream.peek(&mut bytes).await? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            there => &bytes[..there],
        };
        if there == HTTP2_PREFACE {
            return Ok(true);
        }
        let undecided = HTTP2_PREFACE.starts_with(there)
            || (there.len() < frame::MAGIC.len() && frame::MAGIC.starts_with(there));
        if !undecided {
            return Ok(false);
        }
        // Peeking again at once would spin: the rest is on its way.
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LOOK_PAUSE);
    }
}
