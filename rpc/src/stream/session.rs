//! A TLS session over a socket that does not block, or over one that does.

use std::fmt;
use std::io::{self, BufRead, ErrorKind, IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use rustls::{Connection, Reader};
use tokio::io::{AsyncWrite, Interest, Ready};
use tokio::net::TcpStream;

use crate::tls::{MARK, advice};

/// Taken from the socket with one call: four of TLS's longest records.
const READ_BYTES: usize = 64 << 10;
/// The same of a peer that nothing is known of yet.
const READ_LITTLE: usize = 4 << 10;
/// About what a session takes that has no bytes under way.
const OF_SESSION: usize = 10 << 10;
/// The longest record.
const OF_RECORD: usize = 17 << 10;

/// Why a TLS session ended. To a client it says what to do.
#[derive(Debug)]
pub struct TlsFailure {
    /// What TLS says.
    pub error: rustls::Error,
    is_client: bool,
}

impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_client {
            true => write!(f, "{MARK}{}", advice(&self.error)),
            false => self.error.fmt(f),
        }
    }
}

impl std::error::Error for TlsFailure {}

/// A TLS session over a socket.
#[derive(Debug)]
pub struct TlsStream {
    socket: TcpStream,
    /// `None` once a [thread](super::BlockingTls) has it.
    session: Mutex<Option<Session>>,
}

#[derive(Debug)]
pub(super) struct Session {
    tls: Connection,
    /// Taken from the socket and not yet given to TLS. Without memory while nothing comes.
    arrived: BytesMut,
    /// Decrypted bytes that were looked at, and are still to be read.
    ahead: Vec<u8>,
    /// Decrypted bytes that TLS has.
    decrypted: usize,
    /// About how many bytes TLS has for the socket.
    unsent: usize,
    /// The peer sends no more.
    ended: bool,
    /// Taken from the socket at a time.
    at_a_time: usize,
    /// Bytes given to TLS since it last decrypted some: of a record that is not whole.
    undecrypted: usize,
}

/// What a session reads and writes.
pub(super) trait Socket {
    /// Reads about as many bytes at most behind what `buffer` has.
    fn take(&self, buffer: &mut BytesMut, most: usize) -> io::Result<usize>;
    /// Writes some of `slices`.
    fn give(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;
}

impl Socket for TcpStream {
    fn take(&self, buffer: &mut BytesMut, most: usize) -> io::Result<usize> {
        buffer.reserve(most);
        self.try_read_buf(buffer)
    }

    fn give(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.try_write_vectored(slices)
    }
}

impl Socket for std::net::TcpStream {
    fn take(&self, buffer: &mut BytesMut, most: usize) -> io::Result<usize> {
        let there = buffer.len();
        buffer.resize(there + most, 0);
        let read = (&mut &*self).read(&mut buffer[there..]);
        buffer.truncate(there + read.as_ref().map_or(0, |read| *read));
        read
    }

    fn give(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        (&mut &*self).write_vectored(slices)
    }
}

/// The socket, as TLS writes to it.
struct Given<'a, S>(&'a S);

impl<S: Socket> Write for Given<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.give(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.give(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TlsStream {
    pub(super) fn new(socket: TcpStream, tls: Connection) -> Self {
        Self::over(
            socket,
            Session {
                tls,
                arrived: BytesMut::new(),
                ahead: Vec::new(),
                decrypted: 0,
                unsent: 0,
                ended: false,
                at_a_time: READ_BYTES,
                undecrypted: 0,
            },
        )
    }

    pub(super) fn over(socket: TcpStream, session: Session) -> Self {
        Self {
            socket,
            session: Mutex::new(Some(session)),
        }
    }

    /// The session, and a second handle of the socket; this one is of no use from now on.
    pub(super) fn take(self) -> io::Result<(std::net::TcpStream, Session)> {
        let socket = std::net::TcpStream::from(self.socket.as_fd().try_clone_to_owned()?);
        let session = self.session.lock().take();
        let gone = || io::Error::other("the TLS session has gone");
        Ok((socket, session.ok_or_else(gone)?))
    }

    fn session(&self) -> MappedMutexGuard<'_, Session> {
        MutexGuard::map(self.session.lock(), |session| {
            session.as_mut().expect("only who has the stream takes it")
        })
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(super) fn take_little(&self, is_little: bool) {
        self.session().at_a_time = match is_little {
            true => READ_LITTLE,
            false => READ_BYTES,
        };
    }

    pub(super) fn held(&self) -> usize {
        let session = self.session();
        let arrived = session.arrived.capacity() + session.ahead.capacity();
        let partial = (session.undecrypted + session.at_a_time).min(OF_RECORD);
        OF_SESSION + arrived + session.decrypted + session.unsent + partial
    }

    /// TLS keeps all that came of messages that are not whole.
    fn held_in_handshake(&self) -> usize {
        let session = self.session();
        OF_SESSION + session.arrived.capacity() + session.undecrypted
    }

    pub(super) fn agreed_protocol(&self) -> Option<Vec<u8>> {
        let session = self.session();
        session.tls.alpn_protocol().map(<[u8]>::to_vec)
    }

    pub(super) fn peer_certificate(&self) -> Option<Vec<u8>> {
        let session = self.session();
        let chain = session.tls.peer_certificates()?;
        chain.first().map(|certificate| certificate.to_vec())
    }

    /// Tells `held` of the bytes that it takes meanwhile.
    pub(super) async fn handshake(&self, mut held: impl FnMut(usize)) -> io::Result<()> {
        loop {
            let step = self.session().handshake(&self.socket)?;
            held(self.held_in_handshake());
            match step {
                Step::Done => return Ok(()),
                Step::Write => self.socket.writable().await?,
                Step::Read => self.socket.readable().await?,
            }
        }
    }

    pub(super) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.session().read(&self.socket, buffer)
    }

    /// Reads at most `most` bytes behind those that `buffer` has.
    pub(super) fn try_read_behind(&self, buffer: &mut BytesMut, most: usize) -> io::Result<usize> {
        self.session().read_behind(&self.socket, buffer, most)
    }

    pub(super) fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut session = self.session();
        // What was taken before goes first, so that TLS never keeps more than its own limit.
        session.flush(&self.socket)?;
        let taken = session.tls.writer().write_vectored(slices)?;
        session.unsent += taken;
        match session.flush(&self.socket) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    pub(super) fn try_flush(&self) -> io::Result<usize> {
        let mut session = self.session();
        match session.flush(&self.socket) {
            Ok(()) => Ok(0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(session.unsent.max(1)),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        if interest.is_readable() && self.session().has_more() {
            return Ok(Ready::READABLE);
        }
        self.socket.ready(interest).await
    }

    pub(super) fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.session().has_more() {
            true => Poll::Ready(Ok(())),
            false => self.socket.poll_read_ready(context),
        }
    }

    pub(super) async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let looked = self.session().look(&self.socket, buffer);
            match looked {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.socket.readable().await?;
                }
                looked => return looked,
            }
        }
    }

    /// True once the peer sends no more, and what it sent was decrypted.
    pub(super) fn has_ended(&self) -> bool {
        self.session().ended
    }

    pub(super) fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.try_flush()? > 0 {
            ready!(self.socket.poll_write_ready(context))?;
        }
        Poll::Ready(Ok(()))
    }

    pub(super) fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.session().tls.send_close_notify();
        ready!(self.poll_flush(context))?;
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        let Some(session) = self.session.get_mut() else {
            return;
        };
        if session.tls.is_handshaking() {
            return;
        }
        // Without it the peer cannot tell an end from a connection that was cut.
        session.tls.send_close_notify();
        // A peer that takes nothing is not waited for.
        let _ = session.flush(&self.socket);
    }
}

/// What a handshake needs next.
enum Step {
    Done,
    Read,
    Write,
}

impl Session {
    fn handshake(&mut self, socket: &impl Socket) -> io::Result<Step> {
        self.at_a_time = READ_LITTLE;
        loop {
            match self.flush(socket) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Step::Write),
                Err(error) => return Err(error),
            }
            if !self.tls.is_handshaking() {
                self.at_a_time = READ_BYTES;
                return Ok(Step::Done);
            }
            match self.take_in(socket) {
                Ok(true) => {}
                Ok(false) => {
                    let text = "the peer closed the connection within the TLS handshake";
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, text));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Step::Read),
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn read(&mut self, socket: &impl Socket, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.ahead.is_empty() {
            let read = self.ahead.len().min(buffer.len());
            buffer[..read].copy_from_slice(&self.ahead[..read]);
            self.ahead.drain(..read);
            return Ok(read);
        }
        self.decrypt(socket, buffer)
    }

    /// As [`read`](Self::read), behind what `buffer` has: memory is taken for what comes, and not set to zero before.
    fn read_behind(
        &mut self,
        socket: &impl Socket,
        buffer: &mut BytesMut,
        most: usize,
    ) -> io::Result<usize> {
        if !self.ahead.is_empty() {
            let read = self.ahead.len().min(most);
            buffer.extend_from_slice(&self.ahead[..read]);
            self.ahead.drain(..read);
            return Ok(read);
        }
        self.decrypt_by(socket, most, |reader| {
            let decrypted = reader.fill_buf()?;
            let read = decrypted.len().min(most);
            buffer.extend_from_slice(&decrypted[..read]);
            reader.consume(read);
            Ok(read)
        })
    }

    fn decrypt(&mut self, socket: &impl Socket, buffer: &mut [u8]) -> io::Result<usize> {
        self.decrypt_by(socket, buffer.len(), |reader| reader.read(buffer))
    }

    /// `read` gets at most `most` decrypted bytes; it is called again once there are some.
    fn decrypt_by(
        &mut self,
        socket: &impl Socket,
        most: usize,
        mut read: impl FnMut(&mut Reader<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            match read(&mut self.tls.reader()) {
                Ok(read) => {
                    self.ended |= read == 0 && most > 0;
                    self.decrypted = self.decrypted.saturating_sub(read);
                    return Ok(read);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // Cut without a word. Frames and requests tell their own length, so what is missing is noticed.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    self.ended = true;
                    return Ok(0);
                }
                Err(error) => return Err(error),
            }
            self.take_in(socket)?;
        }
    }

    /// Copies what the next reads will bring; `WouldBlock` while that is nothing.
    fn look(&mut self, socket: &impl Socket, buffer: &mut [u8]) -> io::Result<usize> {
        let there = self.ahead.len();
        if there < buffer.len() {
            match self.decrypt(socket, &mut buffer[there..]) {
                Ok(read) => self.ahead.extend_from_slice(&buffer[there..there + read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock && there > 0 => {}
                Err(error) => return Err(error),
            }
        }
        let seen = self.ahead.len().min(buffer.len());
        buffer[..seen].copy_from_slice(&self.ahead[..seen]);
        Ok(seen)
    }

    /// Gives TLS more bytes of the socket; false at their end.
    fn take_in(&mut self, socket: &impl Socket) -> io::Result<bool> {
        if self.arrived.is_empty()
            && let Err(error) = socket.take(&mut self.arrived, self.at_a_time)
        {
            // Thousands of connections wait like this: they hold no buffer.
            self.arrived = BytesMut::new();
            return Err(error);
        }
        let mut bytes = &self.arrived[..];
        let taken = self.tls.read_tls(&mut bytes)?;
        self.arrived.advance(taken);
        self.undecrypted += taken;
        match self.tls.process_new_packets() {
            Ok(state) => {
                let decrypted = state.plaintext_bytes_to_read();
                if decrypted > self.decrypted {
                    self.undecrypted = 0;
                }
                self.decrypted = decrypted;
            }
            Err(error) => {
                // The peer is told why, if it still listens.
                let _ = self.flush(socket);
                let is_client = matches!(self.tls, Connection::Client(_));
                let failure = TlsFailure { error, is_client };
                return Err(io::Error::new(ErrorKind::InvalidData, failure));
            }
        }
        if !self.tls.is_handshaking() && self.tls.wants_write() {
            // An answer to a change of keys.
            match self.flush(socket) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        Ok(taken > 0)
    }

    /// Encrypts `bytes` and hands all of it to the socket.
    pub(super) fn write_all(&mut self, socket: &impl Socket, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let taken = self.tls.writer().write(bytes)?;
            bytes = &bytes[taken..];
            self.flush(socket)?;
        }
        Ok(())
    }

    fn flush(&mut self, socket: &impl Socket) -> io::Result<()> {
        while self.tls.wants_write() {
            let written = self.tls.write_tls(&mut Given(socket))?;
            if written == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            self.unsent = self.unsent.saturating_sub(written);
        }
        self.unsent = 0;
        Ok(())
    }

    /// A read brings something, or is needed to tell that it does not, whatever the socket has.
    fn has_more(&self) -> bool {
        !self.ahead.is_empty() || self.decrypted > 0 || !self.arrived.is_empty()
    }
}
