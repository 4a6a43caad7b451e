//! Bytes on their way into a socket, and submissions on their way to completion: what all links of
//! the comparison have in common with the one that is compared.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::net::TcpStream;

/// Slices of one system call.
const SLICES: usize = 128;

/// What waits for the socket.
#[derive(Debug, Default)]
pub struct Outgoing {
    unsent: VecDeque<Bytes>,
    bytes: usize,
}

impl Outgoing {
    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Adds to what waits.
    pub fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.bytes += bytes.len();
            self.unsent.push_back(bytes);
        }
    }

    /// Forgets what waits.
    pub fn clear(&mut self) {
        self.unsent.clear();
        self.bytes = 0;
    }

    /// Gives the socket what it takes without waiting.
    ///
    /// # Errors
    /// The socket's.
    pub fn send(&mut self, stream: &TcpStream) -> io::Result<()> {
        while !self.unsent.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut count = 0;
            for (slice, bytes) in slices.iter_mut().zip(&self.unsent) {
                *slice = IoSlice::new(bytes);
                count += 1;
            }
            match stream.try_write_vectored(&slices[..count]) {
                Ok(sent) => self.sent(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends until all is sent or the socket is full, in which case the task is woken when it is not.
    ///
    /// # Errors
    /// The socket's.
    pub fn drive(&mut self, stream: &TcpStream, cx: &mut Context<'_>) -> io::Result<()> {
        loop {
            self.send(stream)?;
            if self.unsent.is_empty() {
                return Ok(());
            }
            match stream.poll_write_ready(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => return Ok(()),
            }
        }
    }

    fn sent(&mut self, mut sent: usize) {
        self.bytes -= sent;
        while sent > 0 {
            let Some(first) = self.unsent.front_mut() else {
                return;
            };
            if first.len() > sent {
                first.advance(sent);
                return;
            }
            sent -= first.len();
            self.unsent.pop_front();
        }
    }
}

/// Submissions under way. Each is complete at some value of a count that only grows: of answers
/// without a gap, or of bytes received.
#[derive(Debug, Default)]
pub struct Completions {
    under_way: VecDeque<(u64, u64)>,
    last: u64,
}

impl Completions {
    /// Submissions that are not complete.
    pub fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Adds a submission that is complete at `count`; its number.
    pub fn add(&mut self, count: u64) -> u64 {
        self.last += 1;
        self.under_way.push_back((self.last, count));
        self.last
    }

    /// The highest submission that is complete at `count` and was not returned yet.
    pub fn take(&mut self, count: u64) -> Option<u64> {
        let mut highest = None;
        while let Some((number, _)) = self.under_way.pop_front_if(|(_, at)| *at <= count) {
            highest = Some(number);
        }
        highest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_completion_speaks_for_all_before_it() {
        let mut completions = Completions::default();
        assert_eq!(completions.add(10), 1);
        assert_eq!(completions.add(10), 2);
        assert_eq!(completions.add(30), 3);
        assert_eq!(completions.take(9), None);
        assert_eq!(completions.take(29), Some(2));
        assert_eq!(completions.take(29), None);
        assert_eq!(completions.len(), 1);
        assert_eq!(completions.take(30), Some(3));
    }
}
