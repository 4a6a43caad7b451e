//! Who takes requests off a connection: one thread for each, which places nothing itself.

use std::io::{self, IoSliceMut, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use kera_replication::ids::BufferKey;
use kera_replication::transport::tcp::WRITE_BYTES;

use super::queue::{Buffer, Queue, Request};
use super::server::Seat;
use super::wire::{self, Cause, Word};

/// Small requests are received so many bytes at once.
const SPARE_BYTES: usize = 128 << 10;
/// From this length on a request counts as large: another is expected to follow it, of which no more
/// than [`LOOK_AHEAD`] bytes should be copied once more.
const LARGE: usize = 8 << 10;
const LOOK_AHEAD: usize = 1 << 10;
/// How long, and how much, is read from a primary that is being sent away, so that it gets to read why.
const PARTING: Duration = Duration::from_secs(1);
const PARTING_BYTES: usize = 16 << 20;

/// A connection's bytes on their way into requests.
struct Incoming {
    stream: TcpStream,
    spare: Box<[u8]>,
    start: usize,
    end: usize,
    /// The latest request was large.
    large: bool,
}

impl Incoming {
    /// The next request's head; `None` at the stream's end.
    fn head(&mut self) -> io::Result<Option<[u8; WRITE_BYTES]>> {
        loop {
            if let Some(head) = self.spare[self.start..self.end].first_chunk() {
                self.start += WRITE_BYTES;
                return Ok(Some(*head));
            }
            self.spare.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            let reach = if self.large {
                (self.end + LOOK_AHEAD).min(SPARE_BYTES)
            } else {
                SPARE_BYTES
            };
            match self.stream.read(&mut self.spare[self.end..reach]) {
                Ok(0) => return Ok(None),
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The bytes of a request whose head was just taken.
    fn body(&mut self, body: &mut [u8]) -> io::Result<()> {
        self.large = body.len() >= LARGE;
        let mut there = body.len().min(self.end - self.start);
        body[..there].copy_from_slice(&self.spare[self.start..self.start + there]);
        self.start += there;
        while there < body.len() {
            // The spare bytes are used up: what comes after the body begins there anew.
            let left = body.len() - there;
            let reach = if self.large { LOOK_AHEAD } else { SPARE_BYTES };
            let mut slices = [
                IoSliceMut::new(&mut body[there..]),
                IoSliceMut::new(&mut self.spare[..reach]),
            ];
            match self.stream.read_vectored(&mut slices) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    (self.start, self.end) = (0, read.saturating_sub(left));
                    there += read.min(left);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Takes requests off `stream` and hands them to the workers, until it ends.
pub(super) fn dispatch(stream: TcpStream, seat: &Arc<Seat>, queue: &Queue) {
    let mut incoming = Incoming {
        stream,
        spare: vec![0; SPARE_BYTES].into_boxed_slice(),
        start: 0,
        end: 0,
        large: false,
    };
    let mut number = 0;
    loop {
        let head = match incoming.head() {
            Ok(Some(head)) => head,
            _ => return,
        };
        let Some(head) = wire::head(&head) else {
            let text = "a request should begin here and does not".to_owned();
            seat.say(&Word::Farewell(Cause::Malformed, BufferKey(0), text));
            return part(&mut incoming.stream);
        };
        let mut bytes: Buffer = queue.buffer(head.len as usize);
        if incoming.body(bytes.bytes_mut()).is_err() {
            return;
        }
        if seat.has_parted() {
            return part(&mut incoming.stream);
        }
        number += 1;
        seat.enter();
        let request = Request {
            seat: seat.clone(),
            number,
            head,
            bytes,
        };
        if !queue.push(request) {
            return seat.leave();
        }
    }
}

/// Reads on for a moment: closing with unread bytes would take back the word that was said.
fn part(stream: &mut TcpStream) {
    if stream.set_read_timeout(Some(PARTING)).is_err() {
        return;
    }
    let mut unread = vec![0; 64 << 10];
    let mut total = 0;
    while total < PARTING_BYTES {
        match stream.read(&mut unread) {
            Ok(read @ 1..) => total += read,
            _ => return,
        }
    }
}
