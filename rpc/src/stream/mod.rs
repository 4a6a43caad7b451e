//! A connection's stream of bytes, with TLS or without.
//!
//! An enum and not a trait object: without TLS each operation is one comparison more than the socket's own.

mod blocking;
mod session;

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::TcpStream;
use tokio::time::sleep;

pub use blocking::BlockingTls;
pub use session::{TlsFailure, TlsStream};

/// Between the first two looks at bytes that are not enough yet.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// What both sides of a TLS handshake call gRPC's protocol,
pub const HTTP2: &[u8] = b"h2";
/// that of frames, and
pub const FRAMES: &[u8] = b"kera";
/// HTTP/1.1, as browsers, scrapers and probes speak it.
pub const HTTP1: &[u8] = b"http/1.1";

/// A connection, with TLS or without. All operations take `&self`, as those of a socket do.
#[derive(Debug)]
pub enum Stream {
    /// The socket.
    Plain(TcpStream),
    /// A TLS session over a socket, after its handshake.
    Tls(Box<TlsStream>),
}

impl Stream {
    /// Does the server's side of a TLS handshake, for as long as it takes: the caller bounds it.
    ///
    /// # Errors
    /// The socket's. What TLS says against it is a [`TlsFailure`] within.
    pub async fn accept(socket: TcpStream, config: Arc<ServerConfig>) -> io::Result<Self> {
        Self::accept_noting(socket, config, |_| ()).await
    }

    /// The same. `held` is told, again and again, about how many bytes of memory the handshake holds.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub async fn accept_noting(
        socket: TcpStream,
        config: Arc<ServerConfig>,
        held: impl FnMut(usize),
    ) -> io::Result<Self> {
        let session = ServerConnection::new(config).map_err(io::Error::other)?;
        let stream = TlsStream::new(socket, session.into());
        stream.handshake(held).await?;
        Ok(Self::Tls(Box::new(stream)))
    }

    /// Does the client's side of a TLS handshake with a server that must prove to be `name`.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub async fn connect(
        socket: TcpStream,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<Self> {
        let session = ClientConnection::new(config, name).map_err(io::Error::other)?;
        let stream = TlsStream::new(socket, session.into());
        stream.handshake(|_| ()).await?;
        Ok(Self::Tls(Box::new(stream)))
    }

    /// Takes only a little from the socket at a time, or as much as usual: a peer that nothing is known of yet gets little
    /// memory.
    pub fn take_little(&self, is_little: bool) {
        if let Self::Tls(stream) = self {
            stream.take_little(is_little);
        }
    }

    /// Bytes of memory that are held for what comes and goes, about.
    pub fn held(&self) -> usize {
        match self {
            Self::Plain(_) => 0,
            Self::Tls(stream) => stream.held(),
        }
    }

    /// The protocol that both sides agreed on in the TLS handshake, if they did.
    pub fn agreed_protocol(&self) -> Option<Vec<u8>> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => stream.agreed_protocol(),
        }
    }

    /// The certificate, in DER, with which the peer has proved who it is, if it has.
    pub fn peer_certificate(&self) -> Option<Vec<u8>> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => stream.peer_certificate(),
        }
    }

    /// Reads what there is.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing yet; the socket's.
    #[inline]
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_read(buffer),
            Self::Tls(stream) => stream.try_read(buffer),
        }
    }

    /// Reads at most `limit` bytes behind those that `buffer` has.
    ///
    /// # Errors
    /// As [`try_read`](Self::try_read).
    pub fn try_read_behind(&self, buffer: &mut BytesMut, limit: usize) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_read_buf(&mut buffer.limit(limit)),
            Self::Tls(stream) => stream.try_read_behind(buffer, limit),
        }
    }

    /// Writes as much of `slices` as is taken without waiting. With TLS, some of that may still have to
    /// [reach the socket](Self::try_flush).
    ///
    /// # Errors
    /// `WouldBlock` if nothing is taken; the socket's.
    #[inline]
    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_write_vectored(slices),
            Self::Tls(stream) => stream.try_write_vectored(slices),
        }
    }

    /// Hands the socket what TLS keeps for it. Returns about how many bytes it still keeps: none without TLS.
    ///
    /// # Errors
    /// The socket's, but not `WouldBlock`.
    #[inline]
    pub fn try_flush(&self) -> io::Result<usize> {
        match self {
            Self::Plain(_) => Ok(0),
            Self::Tls(stream) => stream.try_flush(),
        }
    }

    /// Waits until an operation of `interest` is worth a try.
    ///
    /// # Errors
    /// The socket's.
    #[inline]
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match self {
            Self::Plain(socket) => socket.ready(interest).await,
            Self::Tls(stream) => stream.ready(interest).await,
        }
    }

    /// Waits until a read is worth a try.
    ///
    /// # Errors
    /// The socket's.
    pub async fn readable(&self) -> io::Result<()> {
        self.ready(Interest::READABLE).await.map(drop)
    }

    /// Waits until a write is worth a try.
    ///
    /// # Errors
    /// The socket's.
    pub async fn writable(&self) -> io::Result<()> {
        self.socket().writable().await
    }

    /// As [`readable`](Self::readable), for whoever polls.
    ///
    /// # Errors
    /// The socket's.
    #[inline]
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(socket) => socket.poll_read_ready(context),
            Self::Tls(stream) => stream.poll_readable(context),
        }
    }

    /// As [`writable`](Self::writable), for whoever polls.
    ///
    /// # Errors
    /// The socket's.
    #[inline]
    pub fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket().poll_write_ready(context)
    }

    /// Looks at the first bytes that a read would bring, and waits for the first of them; 0 at the end.
    ///
    /// # Errors
    /// The socket's.
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.peek(buffer).await,
            Self::Tls(stream) => stream.peek(buffer).await,
        }
    }

    /// Looks at the first bytes that a read would bring, again and again, until `decide` has seen enough of them. Between two
    /// looks it rests for at most `longest`: to look waits for no more bytes than there are.
    ///
    /// # Errors
    /// The socket's; `UnexpectedEof` if the peer ends before that. Who has gone holds no place until a time is over.
    pub async fn look<T>(
        &self,
        buffer: &mut [u8],
        longest: Duration,
        mut decide: impl FnMut(&[u8]) -> Option<T>,
    ) -> io::Result<T> {
        let mut pause = FIRST_LOOK.min(longest);
        loop {
            // Asked before the look, which shows all that came before the end.
            let ready = self.ready(Interest::READABLE).await?;
            let there = self.peek(buffer).await?;
            if there > 0
                && let Some(decided) = decide(&buffer[..there])
            {
                return Ok(decided);
            }
            let is_at_end = match self {
                Self::Plain(_) => there == 0 || ready.is_read_closed(),
                Self::Tls(stream) => there == 0 || stream.has_ended(),
            };
            if is_at_end {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // Looking again at once would spin: the rest is on its way.
            sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// Waits for bytes, drops them and says how many there were; 0 at the end. For a side that has ended its TLS session:
    /// it must not answer what comes after that, whatever is wrong with it.
    ///
    /// # Errors
    /// The socket's.
    pub async fn discard(&self) -> io::Result<usize> {
        loop {
            self.socket().readable().await?;
            // Not held while it waits.
            let mut dropped = [0; 16 << 10];
            match self.socket().try_read(&mut dropped) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }

    /// The socket's error, if it has one.
    ///
    /// # Errors
    /// The system's.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket().take_error()
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.socket(),
        }
    }
}

impl From<TcpStream> for Stream {
    fn from(socket: TcpStream) -> Self {
        Self::Plain(socket)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = match self.get_mut() {
            Self::Plain(socket) => return Pin::new(socket).poll_read(context, buffer),
            Self::Tls(stream) => stream,
        };
        loop {
            match stream.try_read(buffer.initialize_unfilled()) {
                Ok(read) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(stream.socket().poll_read_ready(context))?;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = match self.get_mut() {
            Self::Plain(socket) => return Pin::new(socket).poll_write_vectored(context, slices),
            Self::Tls(stream) => stream,
        };
        loop {
            match stream.try_write_vectored(slices) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(stream.socket().poll_write_ready(context))?;
                }
                written => return Poll::Ready(written),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(context),
            Self::Tls(stream) => stream.poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            Self::Tls(stream) => stream.poll_shutdown(context),
        }
    }
}
