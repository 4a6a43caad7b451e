//! Bytes received on a connection and not yet worked on.

use std::io;
use std::time::{Duration, Instant};

use kera_rpc::stream::Stream;

/// Read from the socket before what was read is worked on.
pub const READ_AHEAD: usize = 256 * 1024;
/// What a buffer begins with: most requests fit, and thousands of idle connections cost little.
pub(crate) const FIRST: usize = 2 * 1024;

/// A buffer that grows as bytes come, is kept while they do, and whose bytes are moved only when a frame
/// would not fit behind them: fresh pages for each read would cost more than the read.
#[derive(Default)]
pub struct Inbox {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes consumed since the connection began.
    consumed: u64,
    /// How many that were when the present front was first seen by a look at deadlines, and when that was.
    front_since: Option<(u64, Instant)>,
}

/// What a read from the socket brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes.
    Bytes(usize),
    /// Nothing right now.
    Nothing,
    /// The peer has closed its side.
    End,
}

impl Inbox {
    /// The bytes there are.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The bytes there are, to be patched in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..self.end]
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Bytes of memory held.
    pub fn capacity(&self) -> usize {
        self.buffer.len()
    }

    /// How many once [`receive`](Self::receive) has had so much room.
    pub fn capacity_with(&self, room: usize) -> usize {
        let wanted = self.wanted(room);
        match self.buffer.len() - self.len() < wanted {
            true => (self.len() + wanted).next_power_of_two(),
            false => self.buffer.len(),
        }
    }

    /// Four times what there is already: memory follows bytes that have come.
    fn wanted(&self, room: usize) -> usize {
        room.min((3 * self.len()).max(FIRST))
    }

    /// Drops the first `bytes`.
    pub fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        self.consumed += bytes as u64;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Gives back memory that the bytes there are do not need; so many bytes.
    pub fn shrink(&mut self) -> usize {
        let before = self.buffer.len();
        if before == self.len() {
            return 0;
        }
        (self.buffer, self.start, self.end) = (self.bytes().to_vec(), 0, self.len());
        before - self.buffer.len()
    }

    /// Room for the next read, when the request at the front lacks `missing` bytes and `ahead` bytes may be
    /// read before they are worked on. No more than doubled at a time: memory goes to bytes that come, not
    /// to a claim of them.
    pub fn room_for(&self, missing: usize, ahead: usize) -> usize {
        let there = self.len();
        ahead
            .saturating_sub(there)
            .max(missing.min(there.max(ahead)))
    }

    /// True if what is at the front has been there for longer than `within` and is still not a whole frame.
    /// Called at every look at deadlines; `waits` is false while it is not the peer that is waited for.
    pub fn is_late(&mut self, now: Instant, within: Duration, waits: bool) -> bool {
        if !waits || self.is_empty() {
            self.front_since = None;
            return false;
        }
        match self.front_since {
            Some((consumed, since)) if consumed == self.consumed => {
                now.duration_since(since) > within
            }
            _ => {
                self.front_since = Some((self.consumed, now));
                false
            }
        }
    }

    /// Reads what the socket has, as far as `room` more bytes fit.
    ///
    /// # Errors
    /// The socket's.
    pub fn receive(&mut self, stream: &Stream, room: usize) -> io::Result<Received> {
        let wanted = self.wanted(room);
        if self.buffer.len() - self.end < room {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.buffer.len() - self.end < wanted {
                let size = (self.end + wanted).next_power_of_two();
                self.buffer.resize(size, 0);
            }
        }
        match stream.try_read(&mut self.buffer[self.end..]) {
            Ok(0) => Ok(Received::End),
            Ok(read) => {
                self.end += read;
                Ok(Received::Bytes(read))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Received::Nothing),
            Err(error) => Err(error),
        }
    }
}
