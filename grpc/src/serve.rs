//! Serving control calls on connections that a listener accepted.
//!
//! HTTP/2 takes about 16 KiB for each connection, however little it does. So a connection without a call is
//! ended after a while, as are those that have been quiet for longest where there are many; clients connect
//! again with their next call. What requests take is counted while they arrive and while they are worked on.

mod body;
mod quiet;

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kera_protocol::error::{ErrorCode, WireError};
use kera_rpc::stream::Stream;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::Request;
use tonic::service::Routes;

use crate::status::status_of;
use body::{ReplyBody, RequestBody, over, too_many};
use quiet::{Calls, Quiet, Word};

/// How long a connection that was told that it ends may take for it.
const GRACE: Duration = Duration::from_secs(1);
/// A peer that sends nothing while a call is under way is asked whether it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Most bytes of the headers of a call, as HTTP/2 counts them. Those of Kera's clients have a few hundred.
const MAX_HEADERS: u32 = 8 << 10;
/// What a header takes beside its name and its value.
const HEADER_BYTES: usize = 128;

/// What bounds the control connections of one address.
#[derive(Clone, Copy, Debug)]
pub struct CallLimits {
    /// How long a connection may take for its first call.
    pub first_call: Duration,
    /// A connection that has had no call for so long is ended.
    pub idle: Duration,
    /// How long a request may take to arrive.
    pub receive: Duration,
    /// A peer that takes nothing of its replies for so long loses its connection.
    pub send: Duration,
    /// Connections without a call at a time; beyond, those that have been quiet for longest are ended.
    pub quiet_connections: usize,
    /// Calls of one connection at a time, fewer of those that come while many are open: then its part of
    /// `total_calls`, and at least 64. Others wait at the client.
    pub calls: u32,
    /// Calls of all connections at a time, most of which wait for something at about 9 KiB each. Beyond it a
    /// connection may still have eight.
    pub total_calls: usize,
    /// Calls of one connection that are worked on at once.
    pub calls_at_work: usize,
    /// Bytes of the requests of one connection that arrive or are worked on; 16 KiB more for each that arrives, and more
    /// where its headers are long.
    pub connection_bytes: usize,
    /// Bytes of the requests of all connections, likewise; beyond it a connection may still have 32 KiB.
    pub total_bytes: usize,
}

/// Who calls, as calls find it among a request's extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The caller's address.
    pub address: IpAddr,
    /// The user that the caller has proved to be, if it has.
    pub user: Option<Arc<str>>,
    /// The name of the address that the caller came in by, if it has one: it is told the addresses of that name.
    pub listener: Option<&'static str>,
}

/// A caller that has proved nothing.
impl From<IpAddr> for Caller {
    fn from(address: IpAddr) -> Self {
        Self {
            address,
            user: None,
            listener: None,
        }
    }
}

/// Serves control calls. Clones share everything.
#[derive(Clone, Debug)]
pub struct CallServer {
    routes: Routes,
    limits: CallLimits,
    quiet: Arc<Quiet>,
    stopping: watch::Receiver<bool>,
    /// Dropped with the last connection.
    open: mpsc::Sender<Infallible>,
}

/// Ends once all connections of a [`CallServer`] have ended.
#[derive(Debug)]
pub struct CallsEnded(mpsc::Receiver<Infallible>);

impl CallsEnded {
    /// Waits until the server and all its connections have gone.
    pub async fn wait(mut self) {
        // Nothing is ever sent.
        let _ = self.0.recv().await;
    }
}

/// What the headers of a request take.
fn header_bytes<B>(request: &Request<B>) -> usize {
    let headers = request.headers().iter();
    let bytes = headers.map(|(name, value)| name.as_str().len() + value.len() + HEADER_BYTES);
    request.uri().path().len() + bytes.sum::<usize>()
}

/// Returns at `until`, if there is such a time.
async fn expired(until: Option<std::time::Instant>) {
    match until {
        Some(until) => sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

/// What a call is answered that comes when the client's proof counts no more. It is sent again over another connection.
fn proof_over() -> Status {
    let text = "what this connection's client has proved counts no more; connect again";
    status_of(&WireError::new(ErrorCode::ShuttingDown, text))
}

impl CallServer {
    /// A server of `routes`, whose connections end once `stopping` says so and their calls are answered.
    /// What its calls took is added to `freed` once they are over: the allocator keeps it.
    pub fn new(
        routes: Routes,
        limits: CallLimits,
        stopping: watch::Receiver<bool>,
        freed: Arc<AtomicU64>,
    ) -> (Self, CallsEnded) {
        let (open, ended) = mpsc::channel(1);
        let server = Self {
            routes: routes.prepare(),
            limits,
            quiet: Arc::new(Quiet::new(
                limits.quiet_connections,
                limits.total_bytes,
                limits.total_calls,
                freed,
            )),
            stopping,
            open,
        };
        (server, CallsEnded(ended))
    }

    /// Connections without a call.
    pub fn quiet_connections(&self) -> usize {
        self.quiet.len()
    }

    /// Serves a connection until it ends. With a `refusal` each of its calls is answered with that, and it
    /// ends after the time for a first call.
    pub async fn connection(
        &self,
        stream: impl Into<Stream>,
        caller: impl Into<Caller>,
        refusal: Option<Status>,
    ) {
        self.connection_until(stream, caller, refusal, None).await;
    }

    /// The same. At `until` the client is told that the connection ends, and is to open another. It takes no more calls a
    /// second later, whatever the client does, and ends once those that it has are answered.
    pub async fn connection_until(
        &self,
        stream: impl Into<Stream>,
        caller: impl Into<Caller>,
        refusal: Option<Status>,
        until: Option<std::time::Instant>,
    ) {
        let (stream, caller) = (stream.into(), caller.into());
        let address = caller.address;
        let limits = self.limits;
        let calls = Calls::begin(self.quiet.clone(), limits.connection_bytes);
        let at_work = Arc::new(Semaphore::new(limits.calls_at_work));
        let (_is_open, may_begin) = self.quiet.open(limits.calls);
        let refused = refusal.is_some();
        let serve = {
            let (calls, routes) = (calls.clone(), self.routes.clone());
            service_fn(move |mut request: Request<hyper::body::Incoming>| {
                let call = calls.call();
                let (mut routes, at_work) = (routes.clone(), at_work.clone());
                let refusal = refusal.clone();
                let headers = header_bytes(&request);
                request.extensions_mut().insert(caller.clone());
                async move {
                    if let Some(refusal) = refusal {
                        return Ok::<_, Infallible>(refusal.into_http::<Body>());
                    }
                    // Whether the client has heard that the connection ends is for the client to say.
                    if until.is_some_and(|until| std::time::Instant::now() >= until + GRACE) {
                        return Ok(proof_over().into_http::<Body>());
                    }
                    if let Err(limit) = call.has_room() {
                        return Ok(too_many(limit).into_http::<Body>());
                    }
                    if let Err(limit) = call.begins(headers) {
                        return Ok(over(limit).into_http::<Body>());
                    }
                    // Never closed.
                    let _working = at_work.acquire().await;
                    let within = limits.receive;
                    let request =
                        request.map(|body| Body::new(RequestBody::new(body, call.clone(), within)));
                    let response = routes.call(request).await?;
                    call.answers();
                    Ok(response.map(|body| Body::new(ReplyBody::new(body, call))))
                }
            })
        };
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(may_begin)
            .max_header_list_size(MAX_HEADERS)
            .keep_alive_interval(KEEP_ALIVE);
        let mut connection = pin!(http2.serve_connection(TokioIo::new(stream), serve));
        let mut stopping = self.stopping.clone();
        let _open = self.open.clone();
        let refused_until = Instant::now() + limits.first_call;
        let mut ends_at = None;
        let mut told = false;
        loop {
            let look = match (ends_at, refused) {
                (Some(ends_at), _) => ends_at,
                (None, true) => refused_until,
                (None, false) => calls.next_look(&limits),
            };
            let word = tokio::select! {
                ended = &mut connection => {
                    if let Err(error) = ended {
                        tracing::debug!(%address, %error, "a control connection failed");
                    }
                    return;
                }
                // Its calls are answered first, however long they take: the broker bounds its stop.
                _ = stopping.wait_for(|stop| *stop), if !told => None,
                () = expired(until), if !told => Some(Word::End),
                word = calls.told(), if !refused => Some(word),
                () = sleep_until(look) => match calls.overdue(&limits) {
                    _ if refused || ends_at.is_some_and(|at| at <= Instant::now() && !calls.is_open()) => return,
                    Some(word) => Some(word),
                    None => {
                        // A call came before it had heard that it was to end.
                        ends_at = ends_at.map(|_| Instant::now() + GRACE);
                        continue;
                    }
                },
            };
            match word {
                Some(Word::Drop) => return,
                Some(Word::End) => ends_at = ends_at.or(Some(Instant::now() + GRACE)),
                None => {}
            }
            if !told {
                told = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}
