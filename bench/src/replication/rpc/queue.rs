//! What workers wait at: requests that a dispatcher has taken off the network.

use std::collections::VecDeque;
use std::sync::Arc;

use kera_replication::transport::tcp::WriteHead;
use parking_lot::{Condvar, Mutex};

use super::server::Seat;

/// Requests that wait at most; then dispatchers wait, and senders with them.
const MAX_WAITING: usize = 256;
/// Buffers kept to be used again.
const MAX_SPARE: usize = 64;

/// A request that was received whole.
pub(super) struct Request {
    /// Whose it is, and who hears the answer.
    pub(super) seat: Arc<Seat>,
    pub(super) number: u64,
    pub(super) head: WriteHead,
    pub(super) bytes: Buffer,
}

/// A buffer for a request's bytes, which may be longer than the request.
pub(super) struct Buffer {
    memory: Vec<u8>,
    len: usize,
}

impl Buffer {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[..self.len]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len]
    }
}

/// The queue of one backup, shared by its dispatchers and workers.
#[derive(Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    filled: Condvar,
    emptied: Condvar,
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<Request>,
    /// Workers that sleep.
    idle: usize,
    /// The last one given back is the warmest.
    spare: Vec<Vec<u8>>,
    closed: bool,
}

impl Queue {
    /// A buffer of `len` bytes, whatever they are.
    pub(super) fn buffer(&self, len: usize) -> Buffer {
        let mut memory = self.inner.lock().spare.pop().unwrap_or_default();
        if memory.len() < len {
            memory.resize(len, 0);
        }
        Buffer { memory, len }
    }

    pub(super) fn give_back(&self, buffer: Buffer) {
        let mut inner = self.inner.lock();
        if inner.spare.len() < MAX_SPARE {
            inner.spare.push(buffer.memory);
        }
    }

    /// Hands a request to the workers; false if there are none any more.
    pub(super) fn push(&self, request: Request) -> bool {
        let mut inner = self.inner.lock();
        while inner.waiting.len() >= MAX_WAITING && !inner.closed {
            self.emptied.wait(&mut inner);
        }
        if inner.closed {
            return false;
        }
        inner.waiting.push_back(request);
        let wake = inner.idle > 0;
        drop(inner);
        if wake {
            self.filled.notify_one();
        }
        true
    }

    /// The next request; `None` at the end.
    pub(super) fn pop(&self) -> Option<Request> {
        let mut inner = self.inner.lock();
        loop {
            if inner.closed {
                return None;
            }
            if let Some(request) = inner.waiting.pop_front() {
                let was_full = inner.waiting.len() + 1 == MAX_WAITING;
                drop(inner);
                if was_full {
                    self.emptied.notify_all();
                }
                return Some(request);
            }
            inner.idle += 1;
            self.filled.wait(&mut inner);
            inner.idle -= 1;
        }
    }

    /// Ends the workers. What waits is dropped: its senders never hear of it.
    pub(super) fn close(&self) {
        let dropped = {
            let mut inner = self.inner.lock();
            inner.closed = true;
            std::mem::take(&mut inner.waiting)
        };
        self.filled.notify_all();
        self.emptied.notify_all();
        for request in dropped {
            request.seat.leave();
        }
    }
}
