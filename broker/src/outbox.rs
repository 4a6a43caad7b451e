//! Bytes that wait to be sent on a connection.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::{Buf, Bytes, BytesMut};
use kera_protocol::Message;
use kera_protocol::frame::{self, FrameKind};
use kera_rpc::stream::Stream;

/// Slices handed to one system call.
const SLICES: usize = 64;
/// Small frames are gathered up to this many bytes before they become a slice of their own.
const GATHER: usize = 16 * 1024;

/// Frames on their way out: small ones gathered, bodies as slices of the broker's memory.
#[derive(Default)]
pub struct Outbox {
    ready: VecDeque<Bytes>,
    gathering: BytesMut,
    bytes: usize,
    /// About how many of the bytes that were handed to TLS have not reached the socket.
    kept_by_tls: usize,
    /// Bytes sent since the connection began.
    sent: u64,
    /// Slices of the broker's memory may be among `ready`.
    borrows: bool,
}

impl Outbox {
    /// Bytes waiting.
    pub fn bytes(&self) -> usize {
        self.bytes + self.kept_by_tls
    }

    /// Bytes sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Copies what waits out of the broker's memory: a peer that does not read must not keep the
    /// memory that appends of others wait for.
    pub fn detach(&mut self) {
        if std::mem::take(&mut self.borrows) {
            for bytes in &mut self.ready {
                *bytes = Bytes::copy_from_slice(bytes);
            }
        }
    }

    /// Gives back memory while nothing waits; so many bytes.
    pub fn shrink(&mut self) -> usize {
        if !self.is_empty() {
            return 0;
        }
        let freed = self.gathering.capacity() + self.ready.capacity() * size_of::<Bytes>();
        (self.ready, self.gathering) = (VecDeque::new(), BytesMut::new());
        freed
    }

    /// True if nothing waits.
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Adds a frame whose body is sent as it is, without a copy.
    pub fn push<M: Message>(
        &mut self,
        kind: FrameKind,
        correlation: u32,
        header: &M,
        body: Vec<Bytes>,
    ) {
        let body_bytes: usize = body.iter().map(Bytes::len).sum();
        let before = self.gathering.len();
        if frame::encode_head(&mut self.gathering, kind, correlation, header, body_bytes).is_err() {
            // Headers are small messages made here; one that does not fit is a defect, not input.
            tracing::error!(?kind, "a reply's header is too large; the reply is dropped");
            self.gathering.truncate(before);
            return;
        }
        self.bytes += self.gathering.len() - before + body_bytes;
        if body_bytes > 0 {
            self.flush_gathering();
            self.borrows = true;
            self.ready.extend(body);
        } else if self.gathering.len() >= GATHER {
            self.flush_gathering();
        }
    }

    /// Adds bytes that are encoded already.
    pub fn push_raw(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        let before = self.gathering.len();
        encode(&mut self.gathering);
        self.bytes += self.gathering.len() - before;
    }

    /// Adds slices that belong together, without a copy; they may be of the broker's memory.
    pub fn push_parts(&mut self, parts: impl IntoIterator<Item = Bytes>) {
        self.flush_gathering();
        self.borrows = true;
        for part in parts {
            self.bytes += part.len();
            self.ready.push_back(part);
        }
    }

    fn flush_gathering(&mut self) {
        if !self.gathering.is_empty() {
            self.ready.push_back(self.gathering.split().freeze());
        }
    }

    /// Sends as much as the socket takes without waiting. Returns the bytes sent.
    ///
    /// # Errors
    /// The socket's; the connection is of no more use.
    pub fn send(&mut self, stream: &Stream) -> io::Result<usize> {
        self.flush_gathering();
        let mut sent = 0;
        while !self.ready.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut count = 0;
            for (slot, bytes) in slices.iter_mut().zip(&self.ready) {
                *slot = IoSlice::new(bytes);
                count += 1;
            }
            match stream.try_write_vectored(&slices[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    sent += written;
                    self.consume(written);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let kept = stream.try_flush()?;
        // A peer that takes what TLS keeps for it reads.
        self.sent += self.kept_by_tls.saturating_sub(kept) as u64;
        self.kept_by_tls = kept;
        Ok(sent)
    }

    fn consume(&mut self, mut written: usize) {
        self.bytes -= written;
        self.sent += written as u64;
        while written > 0 {
            let Some(front) = self.ready.front_mut() else {
                break;
            };
            if front.len() > written {
                front.advance(written);
                break;
            }
            written -= front.len();
            self.ready.pop_front();
        }
    }
}
