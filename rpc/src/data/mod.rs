//! The data connection: frames both ways, pipelined, over one TCP connection.
//!
//! Any thread may send. A sender queues its frame, then tries to take the connection's writing turn
//! and writes everything queued with one vectored, non-blocking call; whoever holds the turn takes
//! along what others queue meanwhile. Only when the socket is full does a task take over. So a send
//! costs no hand-over between threads, and frames leave in the order they were queued.

mod pending;
mod pool;
mod receive;
mod send;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kera_protocol::Message;
use kera_protocol::error::WireError;
use kera_protocol::frame::{
    Frame, FrameError, FrameHeader, FrameKind, HELLO_REPLY_BYTES, Hello, HelloReply,
    PUSH_CORRELATION, TAKES_CALLS,
};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::error::ConnectionError;
use crate::login::Login;
use crate::stream::Stream;
use crate::tls::{ClientTls, WantsTls, refusal_in};
use crate::way::Way;
use pending::{Pending, PendingTable};
use receive::Receiver;
use send::Sender;

/// What a broker that wants TLS answers a hello without it,
const TLS_ALERT: [u8; 2] = [0x15, 0x03];

/// Most bytes of a goodbye that is said in place of a hello.
const MOST_GOODBYE_BYTES: usize = 4096;

/// How a data connection behaves.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Bounds connecting and the hello.
    pub connect_timeout: Duration,
    /// A ping is sent after this long without a frame; after three times as long the connection
    /// counts as lost.
    pub keepalive: Duration,
    /// A connection without a request is closed by this side after so long; `None` keeps it.
    pub idle_timeout: Option<Duration>,
    /// Most requests that wait for replies.
    pub max_pending: usize,
    /// Most bytes queued for sending; a single frame may go beyond.
    pub max_queued_bytes: usize,
    /// Largest frame accepted from the broker, in bytes.
    pub max_receive_frame_bytes: usize,
    /// Bytes of receive buffers kept for reuse.
    pub receive_pool_bytes: usize,
    /// TLS; `None` connects without.
    pub tls: Option<ClientTls>,
    /// Who the client proves to be, with a user's password; `None` is nobody in particular.
    pub login: Option<Login>,
}

impl ConnectOptions {
    fn way(&self) -> Way {
        Way {
            tls: self.tls.clone(),
            login: self.login.clone(),
        }
    }
}

impl Default for ConnectOptions {
    /// 5 s, 5 s, for ever, 65,536 requests, 64 MiB, 80 MiB, 8 MiB, no TLS, no user.
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            keepalive: Duration::from_secs(5),
            idle_timeout: None,
            max_pending: 1 << 16,
            max_queued_bytes: 64 << 20,
            max_receive_frame_bytes: 80 << 20,
            receive_pool_bytes: 8 << 20,
            tls: None,
            login: None,
        }
    }
}

/// Takes what a connection receives, without a task or channel per request. Called from the
/// connection's reading task, or from the thread on which the connection was found broken: it must
/// not block. No lock of the connection is held meanwhile.
pub trait FrameSink: Send + Sync + 'static {
    /// The reply to the request that was [submitted](DataConnection::submit) with `token`, or why
    /// there will be none. Called exactly once for each submitted request.
    fn reply(&self, token: u64, reply: Result<Frame, ConnectionError>);

    /// A frame that answers nothing.
    fn push(&self, frame: Frame);

    /// All frames that had arrived are handed over; more may come. After every reply comes either this or
    /// [`closed`](Self::closed), on the same thread, so that work can be put off until then.
    fn drained(&self) {}

    /// The connection has ended; every submitted request was told so.
    fn closed(&self, error: &ConnectionError);
}

/// One connection to a broker. Closed when dropped.
pub struct DataConnection {
    shared: Arc<Shared>,
    hello: HelloReply,
}

struct Shared {
    address: Arc<str>,
    sender: Sender,
    pending: Mutex<PendingTable>,
    sink: Option<Arc<dyn FrameSink>>,
    tasks: Mutex<Vec<AbortHandle>>,
    /// Frames received, for the keepalive.
    received: AtomicU64,
    ended: tokio::sync::Notify,
}

impl std::fmt::Debug for DataConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataConnection")
            .field("address", &self.shared.address)
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

impl DataConnection {
    /// Connects to the broker at `address` (HOST:PORT) and exchanges hellos. Replies to
    /// [submitted](Self::submit) requests and pushed frames go to `sink`.
    ///
    /// # Errors
    /// [`ConnectionError::Connect`] if that fails or takes too long, [`ConnectionError::Login`] if the broker does not let
    /// the user in, [`ConnectionError::Tls`] if one of the two refuses the other.
    pub async fn connect(
        address: &str,
        options: &ConnectOptions,
        sink: Option<Arc<dyn FrameSink>>,
    ) -> Result<Arc<Self>, ConnectionError> {
        let address: Arc<str> = address.into();
        let way = options.way();
        let opened = tokio::time::timeout(options.connect_timeout, open(&address, &way)).await;
        let failed = |reason: String| ConnectionError::Connect {
            address: address.clone(),
            reason: reason.into(),
        };
        let (socket, hello) = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => {
                let refused = ConnectionError::refusal_in(&address, &error);
                return Err(refused.unwrap_or_else(|| failed(error.to_string())));
            }
            Err(_) => {
                let waited = options.connect_timeout;
                return Err(failed(format!("no answer within {waited:?}")));
            }
        };
        let socket = Arc::new(socket);
        let shared = Arc::new(Shared {
            address,
            sender: Sender::new(socket.clone(), options.max_queued_bytes),
            pending: Mutex::new(PendingTable::new(options.max_pending)),
            sink,
            tasks: Mutex::default(),
            received: AtomicU64::new(0),
            ended: tokio::sync::Notify::new(),
        });
        let receiver = Receiver::new(
            socket.clone(),
            options.max_receive_frame_bytes,
            options.receive_pool_bytes,
        );
        let reader = tokio::spawn(receive::run(shared.clone(), receiver));
        let writer = tokio::spawn(send::run(shared.clone(), socket, options.into()));
        shared.keep_tasks([reader.abort_handle(), writer.abort_handle()]);
        Ok(Arc::new(Self { shared, hello }))
    }

    /// The broker's HOST:PORT.
    pub fn address(&self) -> &str {
        &self.shared.address
    }

    /// Most bytes of a frame that the broker accepts.
    pub fn max_frame_bytes(&self) -> usize {
        self.hello.max_frame_bytes as usize
    }

    /// Whether the broker takes control calls as frames.
    pub fn takes_calls(&self) -> bool {
        self.hello.flags & TAKES_CALLS != 0
    }

    /// True once the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.shared.pending.lock().closed().is_some()
    }

    /// Waits for the end of the connection and tells why it came.
    pub async fn closed(&self) -> ConnectionError {
        loop {
            let ended = self.shared.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if let Some(error) = self.shared.pending.lock().closed() {
                return error.clone();
            }
            ended.await;
        }
    }

    /// Frames received so far, answers to pings among them: a broker that lives sends one at least every
    /// [`keepalive`](ConnectOptions::keepalive), whatever else it has to say.
    pub fn received_frames(&self) -> u64 {
        self.shared.received.load(Ordering::Relaxed)
    }

    /// Requests that wait for replies.
    pub fn pending(&self) -> usize {
        self.shared.pending.lock().len()
    }

    /// Sends a request and waits for its reply. Dropping the future gives the reply up.
    ///
    /// # Errors
    /// [`ConnectionError`]; once the connection is lost, the request may have taken effect.
    pub async fn call<M: Message>(
        &self,
        kind: FrameKind,
        header: &M,
        body: Bytes,
    ) -> Result<Frame, ConnectionError> {
        self.begin(kind, header, body)?.await
    }

    /// Sends a request at once; what is returned waits for its reply.
    ///
    /// # Errors
    /// [`ConnectionError`]; nothing was sent.
    pub(crate) fn begin<'a, M: Message>(
        &'a self,
        kind: FrameKind,
        header: &M,
        body: Bytes,
    ) -> Result<impl Future<Output = Result<Frame, ConnectionError>> + use<'a, M>, ConnectionError>
    {
        let (to_caller, reply) = oneshot::channel();
        self.enqueue(kind, header, body, Pending::Call(to_caller))?;
        self.flush();
        Ok(async move {
            match reply.await {
                Ok(reply) => reply,
                Err(_) => Err(self.shared.closed_error()),
            }
        })
    }

    /// Queues a request whose reply goes to the connection's sink together with `token`. Nothing is
    /// sent before [`flush`](Self::flush); requests queued by one thread after the other are sent in
    /// that order. Does not block and does not call the sink.
    ///
    /// # Errors
    /// [`ConnectionError`]; then the sink is not told.
    pub fn submit<M: Message>(
        &self,
        kind: FrameKind,
        header: &M,
        body: Bytes,
        token: u64,
    ) -> Result<(), ConnectionError> {
        self.enqueue(kind, header, body, Pending::Sink(token))
    }

    /// Sends a frame that has no reply, such as credit.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub fn post<M: Message>(&self, kind: FrameKind, header: &M) -> Result<(), ConnectionError> {
        if let Some(error) = self.shared.pending.lock().closed() {
            return Err(error.clone());
        }
        self.shared
            .sender
            .push(kind, PUSH_CORRELATION, header, Bytes::new())?;
        self.flush();
        Ok(())
    }

    /// Sends what is queued, as far as the socket takes it now; a task sends the rest. Returns at
    /// once if another thread is sending: it takes along what was queued before this call.
    pub fn flush(&self) {
        self.shared.flush();
    }

    /// Ends the connection: all that wait for replies are told so.
    pub fn close(&self) {
        self.shared.fail(ConnectionError::Closed {
            address: self.shared.address.clone(),
        });
    }

    fn enqueue<M: Message>(
        &self,
        kind: FrameKind,
        header: &M,
        body: Bytes,
        pending: Pending,
    ) -> Result<(), ConnectionError> {
        let bytes = kera_protocol::frame::PREFIX_BYTES + header.encoded_len() + body.len();
        if bytes > self.max_frame_bytes() {
            return Err(FrameError::TooLarge {
                bytes: bytes as u64,
                limit: self.max_frame_bytes(),
            }
            .into());
        }
        let full = || ConnectionError::Full {
            address: self.shared.address.clone(),
        };
        if self.shared.sender.is_full() {
            return Err(full());
        }
        let correlation = {
            let mut table = self.shared.pending.lock();
            if let Some(error) = table.closed() {
                return Err(error.clone());
            }
            table.insert(pending).ok_or_else(full)?
        };
        if let Err(error) = self.shared.sender.push(kind, correlation, header, body) {
            self.shared.pending.lock().take(correlation);
            return Err(error.into());
        }
        Ok(())
    }
}

impl Drop for DataConnection {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn keep_tasks(&self, tasks: [AbortHandle; 2]) {
        self.tasks.lock().extend(tasks);
        // The connection may have ended before its tasks were known here.
        if self.pending.lock().closed().is_some() {
            self.abort_tasks();
        }
    }

    fn abort_tasks(&self) {
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
    }

    fn flush(&self) {
        if let Err(error) = self.sender.flush() {
            self.fail(self.lost(error.to_string()));
        }
    }

    fn lost(&self, reason: String) -> ConnectionError {
        ConnectionError::Lost {
            address: self.address.clone(),
            reason: reason.into(),
        }
    }

    fn closed_error(&self) -> ConnectionError {
        self.pending
            .lock()
            .closed()
            .cloned()
            .unwrap_or_else(|| self.lost("the reply was given up".to_owned()))
    }

    /// Closes the connection unless a request waits.
    fn close_idle(&self) {
        let error = ConnectionError::Closed {
            address: self.address.clone(),
        };
        let mut pending = self.pending.lock();
        if pending.len() > 0 || pending.close(error.clone()).is_none() {
            return;
        }
        drop(pending);
        self.ended(Vec::new(), &error);
    }

    /// Ends the connection for `error`, once: everyone waiting is told.
    fn fail(&self, error: ConnectionError) {
        let waiting = self.pending.lock().close(error.clone());
        if let Some(waiting) = waiting {
            self.ended(waiting, &error);
        }
    }

    fn ended(&self, waiting: Vec<Pending>, error: &ConnectionError) {
        tracing::debug!(broker = %self.address, %error, "data connection ended");
        self.sender.close();
        for pending in waiting {
            self.deliver(pending, Err(error.clone()));
        }
        if let Some(sink) = &self.sink {
            sink.closed(error);
        }
        self.ended.notify_waiters();
        self.abort_tasks();
    }

    fn deliver(&self, pending: Pending, reply: Result<Frame, ConnectionError>) {
        match pending {
            // A caller that went away does not want the reply.
            Pending::Call(caller) => drop(caller.send(reply)),
            Pending::Sink(token) => {
                if let Some(sink) = &self.sink {
                    sink.reply(token, reply);
                }
            }
        }
    }

    /// Hands one received frame to whom it is for.
    fn dispatch(&self, frame: Frame) -> Result<(), ConnectionError> {
        self.received.fetch_add(1, Ordering::Relaxed);
        match frame.kind {
            FrameKind::AppendReply
            | FrameKind::ReadReply
            | FrameKind::SubscribeReply
            | FrameKind::CallReply => {
                let pending = self.pending.lock().take(frame.correlation);
                let Some(pending) = pending else {
                    return Err(self.lost(format!(
                        "broker answered request {}, which was never made",
                        frame.correlation
                    )));
                };
                self.deliver(pending, Ok(frame));
            }
            FrameKind::PushData => {
                if let Some(sink) = &self.sink {
                    sink.push(frame);
                }
            }
            FrameKind::Pong => {}
            FrameKind::Ping => {
                self.sender.push_empty(FrameKind::Pong, frame.correlation);
                self.flush();
            }
            FrameKind::GoAway => {
                let message: kera_protocol::v1::GoAway = frame
                    .message()
                    .map_err(|error| self.lost(error.to_string()))?;
                return Err(ConnectionError::GoAway {
                    address: self.address.clone(),
                    error: WireError::from_number(message.error, message.message),
                });
            }
            other => {
                return Err(self.lost(format!("broker sent an unexpected {other:?} frame")));
            }
        }
        Ok(())
    }
}

async fn open(address: &str, way: &Way) -> io::Result<(Stream, HelloReply)> {
    let mut stream = way.frames(address).await?;
    stream.write_all(&Hello::CURRENT.encode()).await?;
    let mut reply = [0; HELLO_REPLY_BYTES];
    let read = stream.read_exact(&mut reply).await;
    if reply.starts_with(&TLS_ALERT) {
        return Err(io::Error::other(WantsTls));
    }
    read.map_err(|error| match refusal_in(&error) {
        Some(_) => error,
        None => io::Error::other(format!("no hello came back: {error}")),
    })?;
    match HelloReply::decode(&reply) {
        Ok(hello) => Ok((stream, hello)),
        Err(error) => Err(match goodbye(&mut stream, &reply).await {
            Some(said) => io::Error::other(said),
            None => io::Error::other(error),
        }),
    }
}

/// What a broker says in place of its hello that takes no connection now; `begun` is what came. `None` if that is something
/// else.
async fn goodbye(stream: &mut Stream, begun: &[u8; HELLO_REPLY_BYTES]) -> Option<WireError> {
    let header = FrameHeader::decode(begun, MOST_GOODBYE_BYTES).ok()?;
    if header.kind != FrameKind::GoAway {
        return None;
    }
    let mut whole = begun.to_vec();
    whole.resize(header.total_bytes(), 0);
    stream.read_exact(&mut whole[begun.len()..]).await.ok()?;
    let frame = Frame::from_parts(&header, &whole.into());
    let said: kera_protocol::v1::GoAway = frame.message().ok()?;
    Some(WireError::from_number(said.error, said.message))
}
