//! The HTTP address's connections: few, and none for long.
//!
//! Probes and scrapes take milliseconds. A client that sends half a request, or reads no answer, loses its
//! connection after [`HttpConfig::request_timeout`]; at [`HttpConfig::max_connections`] a new connection
//! takes the place of the one that has been quiet for longest, so that a probe always gets through.
//!
//! A proof comes with each request, so until it is answered each counts among what strangers hold, its head above all.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use kera_rpc::stream::Stream;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, Sleep, sleep};

use crate::config::{HttpConfig, TlsListener};
use crate::socket::accept_next;
use crate::tls::ServerTls;
use crate::unheard::{Strange, Unheard, Wanted};

/// About what a connection takes of the allocator, its request's buffer included.
const OF_CONNECTION: u64 = 8 << 10;
/// Bytes of a request that are part of that. Beyond them the count is raised by as many at a time.
const OF_REQUEST: usize = 8 << 10;

/// Accepts connections of the HTTP address.
pub(crate) struct HttpListener {
    inner: TcpListener,
    tls: Option<Arc<ServerTls>>,
    request_timeout: Duration,
    places: Arc<Semaphore>,
    open: Arc<Open>,
    freed: Arc<AtomicU64>,
    unheard: Arc<Unheard>,
}

/// The connections that are open.
#[derive(Default)]
struct Open(Mutex<Connections>);

#[derive(Default)]
struct Connections {
    next: u64,
    /// By their number: since when each has been quiet, and how to end it.
    all: BTreeMap<u64, (Instant, oneshot::Sender<()>)>,
}

impl Open {
    fn add(&self) -> (u64, oneshot::Receiver<()>) {
        let (end, ended) = oneshot::channel();
        let mut connections = self.0.lock();
        connections.next += 1;
        let number = connections.next;
        connections.all.insert(number, (Instant::now(), end));
        (number, ended)
    }

    /// A part of an answer was sent.
    fn touch(&self, number: u64, now: Instant) {
        if let Some((since, _)) = self.0.lock().all.get_mut(&number) {
            *since = now;
        }
    }

    fn remove(&self, number: u64) {
        self.0.lock().all.remove(&number);
    }

    /// Ends the one that has been quiet for longest.
    fn end_quietest(&self) {
        let mut connections = self.0.lock();
        let quietest = connections.all.iter().min_by_key(|(_, (since, _))| *since);
        let quietest = quietest.map(|(number, _)| *number);
        if let Some((_, end)) = quietest.and_then(|number| connections.all.remove(&number)) {
            // It may just have ended by itself.
            let _ = end.send(());
        }
    }
}

impl HttpListener {
    /// What connections took is added to `freed` once they have ended: the allocator keeps it. What their requests hold is
    /// held in `unheard`.
    pub(crate) fn new(
        inner: TcpListener,
        tls: Option<Arc<ServerTls>>,
        config: &HttpConfig,
        freed: Arc<AtomicU64>,
        unheard: &Arc<Unheard>,
    ) -> Self {
        Self {
            inner,
            tls: tls.filter(|tls| tls.serves(TlsListener::Http)),
            request_timeout: config.request_timeout,
            places: Arc::new(Semaphore::new(config.max_connections as usize)),
            open: Arc::default(),
            freed,
            unheard: unheard.clone(),
        }
    }
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

impl Connected<IncomingStream<'_, HttpListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, HttpListener>) -> Self {
        Self(*stream.remote_addr())
    }
}

impl axum::serve::Listener for HttpListener {
    type Io = HttpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (HttpStream, SocketAddr) {
        loop {
            let (stream, peer) = accept_next(&self.inner).await;
            if self.places.available_permits() == 0 {
                self.open.end_quietest();
            }
            let Ok(place) = self.places.clone().acquire_owned().await else {
                continue;
            };
            let (number, ended) = self.open.add();
            let stream = match self.tls.clone() {
                None => Begun::Open(stream.into()),
                // The first look at the connection does the handshake: others are accepted meanwhile.
                Some(tls) => {
                    let within = self.request_timeout;
                    Begun::Handshake(Box::pin(async move {
                        tls.accept(stream, peer, TlsListener::Http, within).await
                    }))
                }
            };
            let (strange, wanted) = Strange::enter(&self.unheard, peer.ip().into());
            let stream = HttpStream {
                stream,
                number,
                ended: Some((ended, wanted)),
                strange,
                unanswered: 0,
                timeout: self.request_timeout,
                end: Box::pin(sleep(self.request_timeout)),
                open: self.open.clone(),
                freed: self.freed.clone(),
                _place: place,
            };
            return (stream, peer);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}

/// How far a connection is.
enum Begun {
    Handshake(Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>),
    Open(Stream),
}

/// A connection that ends when it has been quiet for too long.
pub(crate) struct HttpStream {
    stream: Begun,
    number: u64,
    /// Its place is wanted for another, or its memory.
    ended: Option<(oneshot::Receiver<()>, Wanted)>,
    strange: Strange,
    /// Bytes received since it was last answered.
    unanswered: usize,
    timeout: Duration,
    end: Pin<Box<Sleep>>,
    open: Arc<Open>,
    freed: Arc<AtomicU64>,
    _place: OwnedSemaphorePermit,
}

impl HttpStream {
    fn check_end(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if let Some((ended, wanted)) = &mut self.ended
            && Pin::new(ended).poll(context).is_pending()
            && !wanted.is_wanted(context)
            && self.end.as_mut().poll(context).is_pending()
        {
            return Ok(());
        }
        self.ended = None;
        Err(io::ErrorKind::TimedOut.into())
    }

    /// The connection, once its handshake is done, if it is still to be served.
    fn poll_open(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Pin<&mut Stream>>> {
        self.check_end(context)?;
        if let Begun::Handshake(handshake) = &mut self.stream {
            self.stream = Begun::Open(ready!(handshake.as_mut().poll(context))?);
        }
        match &mut self.stream {
            Begun::Open(stream) => Poll::Ready(Ok(Pin::new(stream))),
            Begun::Handshake(_) => Poll::Pending,
        }
    }

    /// As much more was received: of a head that is not whole HTTP's parser keeps all.
    fn note_received(&mut self, bytes: usize) {
        let before = self.unanswered / OF_REQUEST;
        self.unanswered += bytes;
        if self.unanswered / OF_REQUEST > before {
            self.strange.holds(self.unanswered);
        }
    }

    fn note_sent(&mut self, sent: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(1..)) = sent {
            let now = Instant::now();
            self.end.as_mut().reset(now + self.timeout);
            self.open.touch(self.number, now);
            if std::mem::take(&mut self.unanswered) >= OF_REQUEST {
                self.strange.holds(0);
            }
        }
    }
}

impl Drop for HttpStream {
    fn drop(&mut self) {
        self.open.remove(self.number);
        self.freed.fetch_add(OF_CONNECTION, Ordering::Relaxed);
    }
}

impl AsyncRead for HttpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(ready!(this.poll_open(context))?.poll_read(context, buffer))?;
        this.note_received(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for HttpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let sent = ready!(this.poll_open(context))?.poll_write(context, bytes);
        this.note_sent(&sent);
        sent
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let sent = ready!(this.poll_open(context))?.poll_write_vectored(context, slices);
        this.note_sent(&sent);
        sent
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Begun::Open(stream) => Pin::new(stream).poll_flush(context),
            // Nothing was written.
            Begun::Handshake(_) => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Begun::Open(stream) => Pin::new(stream).poll_shutdown(context),
            Begun::Handshake(_) => Poll::Ready(Ok(())),
        }
    }
}
