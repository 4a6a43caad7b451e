//! The native address: accepts connections and tells data frames from control calls by their first
//! bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use kera_grpc::serve::{CallServer, Caller};
use kera_grpc::status_of;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::{self, FrameError, Hello, HelloReply};
use kera_protocol::login::{self, FULL};
use kera_rpc::stream::Stream;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::admin::calls;
use crate::admin::calls::framed_calls::FramedCalls;
use crate::admission::TooMany;
use crate::audit::Peer;
use crate::auth::{begins_with_proof, prove};
use crate::config::{BrokerConfig, Entrance, Listener, ListenerName, Security, Via};
use crate::connection;
use crate::counted::Counted;
use crate::shared::Shared;
use crate::socket::next;
use crate::tls;
use crate::unheard::Wanted;

/// The first bytes of HTTP/2, which gRPC speaks.
const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longest pause between two looks at first bytes that are not all there.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// Silence after which the system asks whether the peer's machine is still there.
const PROBE_AFTER: Duration = Duration::from_secs(60);
/// What a refused client may have sent already is read so far, for the refusal to reach it.
const READ_FROM_REFUSED: usize = 64 * 1024;
/// Refused connections that are told so at a time. Others are closed without a word: each holds a descriptor.
const TOLD_AT_ONCE: usize = 64;
/// About what HTTP/2 takes beside that.
const OF_CONTROL_CONNECTION: usize = 16 << 10;

/// How clients come in at a native address.
pub struct Way {
    name: Option<ListenerName>,
    security: Security,
}

impl Way {
    /// At the address of this name.
    pub fn new(config: &BrokerConfig, name: Option<ListenerName>) -> Arc<Self> {
        let security = config.security_at(Listener::Native, name.as_ref());
        Arc::new(Self { name, security })
    }

    fn name(&self) -> Option<&'static str> {
        self.name.as_ref().map(ListenerName::as_str)
    }
}

/// Accepts at each address until the broker stops.
pub fn serve(listening: Vec<(TcpListener, Arc<Way>)>, shared: &Arc<Shared>) -> Vec<JoinHandle<()>> {
    let (control, ended) = calls::server(shared);
    let calls = Arc::new(FramedCalls::new(shared));
    let accepting = listening.into_iter().map(|(listener, way)| {
        let served = (control.clone(), calls.clone());
        tokio::spawn(accept(listener, way, served, shared.clone()))
    });
    let mut tasks: Vec<_> = accepting.collect();
    tasks.push(tokio::spawn(ended.wait()));
    tasks
}

async fn accept(
    listener: TcpListener,
    way: Arc<Way>,
    (control, calls): (CallServer, Arc<FramedCalls>),
    shared: Arc<Shared>,
) {
    let mut stopping = shared.stopping.subscribe();
    let told = Arc::new(Semaphore::new(TOLD_AT_ONCE));
    let via = Via::new(Listener::Native, way.name());
    while let Some((stream, peer)) = next(&listener, &mut stopping).await {
        let control = control.clone();
        let reason = match Counted::admit(&shared, via, peer.ip()) {
            Ok(admitted) => {
                let (way, served) = (way.clone(), (control, calls.clone()));
                tokio::spawn(async move {
                    let Some((guard, wanted)) = admitted.turn().await else {
                        return;
                    };
                    if let Err(error) = sniff(stream, (peer, way), served, guard, wanted).await {
                        tracing::debug!(%peer, %error, "connection ended");
                    }
                });
                continue;
            }
            Err(reason) => reason,
        };
        shared.refuse(via, peer.ip(), reason);
        // To tell it takes a handshake, which is what is to be saved.
        let costs_much = matches!(reason, TooMany::TooFastInAll(_)) && way.security.has_tls;
        let turn = told.clone().try_acquire_owned();
        let Some(turn) = turn.ok().filter(|_| !costs_much) else {
            continue;
        };
        let (shared, way) = (shared.clone(), way.clone());
        tokio::spawn(async move {
            let told = tell_refused(stream, (peer, &way), control, reason, &shared);
            if let Err(error) = told.await {
                tracing::debug!(%peer, %error, "a refused connection ended");
            }
            drop(turn);
        });
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

/// What a connection begins with: TLS, where the address has it.
async fn begin(
    socket: TcpStream,
    (peer, way): (SocketAddr, &Way),
    shared: &Shared,
) -> std::io::Result<Stream> {
    set_up(&socket)?;
    if !way.security.has_tls {
        return Ok(socket.into());
    }
    match shared.tls.as_deref() {
        // A defect: a client that would be served without TLS here stays out.
        None => Err(std::io::Error::other(
            "the broker has no TLS, which this address is to have",
        )),
        Some(tls) => {
            let within = shared.config.server.receive_timeout;
            let entrance = Entrance::of_native(way.name.clone());
            tls.accept(socket, peer, entrance, within).await
        }
    }
}

/// Says, as long as the peer may take for a hello, why there are too many.
async fn tell_refused(
    socket: TcpStream,
    (peer, way): (SocketAddr, &Way),
    control: CallServer,
    reason: TooMany,
    shared: &Shared,
) -> std::io::Result<()> {
    let patience = shared.config.server.hello_timeout;
    let begun = timeout(patience, begin(socket, (peer, way), shared)).await;
    let mut stream = begun.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    let first = async {
        let proves = begins_with_proof(&stream).await?;
        std::io::Result::Ok((proves, !proves && speaks_http2(&stream).await?))
    };
    let first = timeout(patience, first).await;
    let (proves, http2) =
        first.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    if proves {
        let told = format!("{FULL}: {reason}");
        let told = login::reply(login::Status::Refused, told.as_bytes());
        return say_last(&mut stream, &told, patience).await;
    }
    let error = WireError::new(ErrorCode::TooManyConnections, reason.to_string());
    if http2 {
        let refusal = Some(status_of(&error));
        Box::pin(control.connection(stream, peer.ip(), refusal)).await;
        return Ok(());
    }
    refuse(&mut stream, &error, patience).await
}

async fn sniff(
    socket: TcpStream,
    (peer, way): (SocketAddr, Arc<Way>),
    (control, calls): (CallServer, Arc<FramedCalls>),
    mut guard: Counted,
    wanted: Wanted,
) -> std::io::Result<()> {
    let shared = guard.shared.clone();
    let patience = shared.config.server.hello_timeout;
    let first = async {
        let mut stream = Box::pin(begin(socket, (peer, &way), &shared)).await?;
        let within = shared.config.server.receive_timeout;
        let needed = (&shared.auth, &way.security);
        let from = Peer {
            via: Via::new(Listener::Native, way.name()),
            host: peer.ip(),
        };
        let proved = timeout(within, Box::pin(prove(needed, &mut stream, &guard, from))).await;
        let proved = proved.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
        let first = timeout(patience, first_words(&mut stream)).await;
        let first = first.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
        let Some(session) = proved else {
            Box::pin(tell_unproven(
                stream,
                peer,
                &control,
                first.is_some(),
                &shared,
            ))
            .await?;
            return Ok(None);
        };
        std::io::Result::Ok(Some((stream, session, first)))
    };
    let first = tokio::select! {
        first = first => first?,
        () = wanted.wait() => return Ok(()),
    };
    let Some((mut stream, session, first)) = first else {
        return Ok(());
    };
    guard.heard();
    let caller = Caller {
        address: peer.ip(),
        user: session.principal.user(),
        listener: way.name(),
    };
    let Some(bytes) = first else {
        Box::pin(control.connection_until(stream, caller, None, session.until)).await;
        shared.data.note_freed(OF_CONTROL_CONNECTION);
        return Ok(());
    };
    let hello = match Hello::decode(&bytes) {
        Ok(hello) => hello,
        Err(error) => {
            if tls::is_client_hello(&bytes) {
                tell_of_tls(&shared, peer);
            }
            return refuse(&mut stream, &error.into(), patience).await;
        }
    };
    stream.write_all(&hello_reply(&shared).encode()).await?;
    if hello.version != frame::PROTOCOL_VERSION {
        let error = FrameError::UnsupportedProtocol(hello.version).into();
        return refuse(&mut stream, &error, patience).await;
    }
    drop(control);
    Box::pin(connection::serve(
        stream,
        (peer, caller, session),
        shared,
        calls,
        guard.of_data(),
    ))
    .await
}

fn hello_reply(shared: &Shared) -> HelloReply {
    let max_frame_bytes = u32::try_from(shared.config.server.max_frame_bytes).unwrap_or(u32::MAX);
    HelloReply {
        version: frame::PROTOCOL_VERSION,
        flags: frame::TAKES_CALLS,
        max_frame_bytes,
    }
}

/// Says that the client has to prove who it is: to frames after a hello, to calls as their answer.
async fn tell_unproven(
    mut stream: Stream,
    peer: SocketAddr,
    control: &CallServer,
    is_frames: bool,
    shared: &Shared,
) -> std::io::Result<()> {
    let text = "the broker asks who you are; give a user's name and password (--user and --user-password-file), or a certificate (--tls-cert and --tls-key)";
    let error = WireError::new(ErrorCode::NotAuthorized, text);
    if !is_frames {
        let refusal = Some(status_of(&error));
        control.connection(stream, peer.ip(), refusal).await;
        return Ok(());
    }
    stream.write_all(&hello_reply(shared).encode()).await?;
    refuse(&mut stream, &error, shared.config.server.hello_timeout).await
}

/// A client wants TLS at an address without it: its own words for that say little.
fn tell_of_tls(shared: &Shared, peer: SocketAddr) {
    shared.data.metrics.protocol_errors.inc();
    let due = shared.bad_connections.lock().due(Instant::now());
    if let Some(others) = due {
        tracing::info!(%peer, others, "server.listen: a client speaks TLS, and this listener does not; add native to tls.listeners, or write SSL or SASL_SSL for its name in listeners.protocols, or have the client go without");
    }
}

/// Says why, and closes.
async fn refuse(stream: &mut Stream, error: &WireError, patience: Duration) -> std::io::Result<()> {
    let mut said = BytesMut::new();
    frame::encode_go_away(&mut said, error);
    say_last(stream, &said, patience).await
}

async fn say_last(stream: &mut Stream, said: &[u8], patience: Duration) -> std::io::Result<()> {
    stream.write_all(said).await?;
    stream.shutdown().await?;
    // Closing with bytes unread would take back what was just said.
    let drain = async {
        let mut read = 0;
        while read < READ_FROM_REFUSED {
            match stream.discard().await {
                Ok(0) | Err(_) => break,
                Ok(bytes) => read += bytes,
            }
        }
    };
    // It has been told; whether it listens is its own affair.
    let _ = timeout(patience, drain).await;
    Ok(())
}

/// A native hello; none where HTTP/2 begins.
async fn first_words(stream: &mut Stream) -> std::io::Result<Option<[u8; frame::HELLO_BYTES]>> {
    if speaks_http2(stream).await? {
        return Ok(None);
    }
    let mut bytes = [0; frame::HELLO_BYTES];
    stream.read_exact(&mut bytes).await?;
    Ok(Some(bytes))
}

/// Looks at the first bytes without taking them, until they tell HTTP/2 from anything else.
async fn speaks_http2(stream: &Stream) -> std::io::Result<bool> {
    // Under TLS most clients have said it in the handshake.
    match stream.agreed_protocol().as_deref() {
        Some(tls::HTTP2) => return Ok(true),
        Some(tls::FRAMES) => return Ok(false),
        _ => {}
    }
    let mut bytes = [0; HTTP2_PREFACE.len()];
    let decide = |there: &[u8]| {
        let is_undecided = (there.len() < HTTP2_PREFACE.len() && HTTP2_PREFACE.starts_with(there))
            || (there.len() < frame::MAGIC.len() && frame::MAGIC.starts_with(there));
        (!is_undecided).then_some(there == HTTP2_PREFACE)
    };
    stream.look(&mut bytes, LOOK_PAUSE, decide).await
}
