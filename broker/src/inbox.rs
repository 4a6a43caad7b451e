//! Bytes received on a connection and not yet worked on.

use std::io;

use tokio::net::TcpStream;

/// Read from the socket before what was read is worked on.
pub const READ_AHEAD: usize = 256 * 1024;

/// A buffer that is allocated once and whose bytes are moved only when a frame would not fit behind
/// them: fresh pages for each read would cost more than the read.
#[derive(Default)]
pub struct Inbox {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
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

    /// Drops the first `bytes`.
    pub fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Gives back memory that the bytes there are do not need.
    pub fn shrink(&mut self) {
        *self = Self {
            buffer: self.bytes().to_vec(),
            start: 0,
            end: self.len(),
        };
    }

    /// Room for the next read, when the request at the front lacks `missing` bytes. No more than doubled
    /// at a time: memory goes to bytes that come, not to a claim of them.
    pub fn room_for(&self, missing: usize) -> usize {
        let there = self.len();
        READ_AHEAD
            .saturating_sub(there)
            .max(missing.min(there.max(READ_AHEAD)))
    }

    /// Reads what the socket has, as far as `room` more bytes fit.
    ///
    /// # Errors
    /// The socket's.
    pub fn receive(&mut self, stream: &TcpStream, room: usize) -> io::Result<Received> {
        if self.buffer.len() - self.end < room {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.buffer.len() - self.end < room {
                self.buffer.resize((self.end + room).next_power_of_two(), 0);
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
