//! A TLS session for a thread of its own, whose reads and writes wait.

use std::io::{self, Read};
use std::net::TcpStream;

use super::session::Session;
use super::{Stream, TlsStream};

/// A TLS session over a socket that waits, as long as the socket's own limits say.
#[derive(Debug)]
pub struct BlockingTls {
    socket: TcpStream,
    session: Session,
}

impl BlockingTls {
    /// Takes over a session that was begun by tasks.
    ///
    /// # Errors
    /// The system's.
    pub fn new(stream: TlsStream) -> io::Result<Self> {
        let (socket, session) = stream.take()?;
        socket.set_nonblocking(false)?;
        Ok(Self { socket, session })
    }

    /// The socket, to say how long it waits, or to end it.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// The socket's; `WouldBlock` if it waited for as long as it may.
    pub fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.session.write_all(&self.socket, bytes)
    }

    /// Gives the session back to tasks. To be called within a tokio runtime.
    ///
    /// # Errors
    /// The system's.
    pub fn into_stream(self) -> io::Result<Stream> {
        self.socket.set_nonblocking(true)?;
        let socket = tokio::net::TcpStream::from_std(self.socket)?;
        Ok(Stream::Tls(Box::new(TlsStream::over(socket, self.session))))
    }
}

/// `WouldBlock` if nothing came for as long as the socket waits.
impl Read for BlockingTls {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.session.read(&self.socket, buffer)
    }
}
