//! The sending half: a queue, and the turn to write it.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use kera_protocol::Message;
use kera_protocol::frame::{FrameError, FrameKind, PUSH_CORRELATION, encode_empty, encode_head};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{ConnectOptions, Shared};
use crate::stream::Stream;

/// Bodies up to this many bytes are copied behind their header: cheaper than a vector of their own.
const COPY_BYTES: usize = 512;
/// A ping now and then costs nothing.
const LONGEST_KEEPALIVE: Duration = Duration::from_secs(3600);
/// Vectors per write call.
const VECTORS: usize = 64;
/// Write calls a sender makes for others before a task takes over.
const WRITES_PER_TURN: usize = 16;

/// Frames that wait to be written. `tail` comes after all of `chunks`.
#[derive(Default)]
struct Queue {
    chunks: VecDeque<Bytes>,
    tail: BytesMut,
}

/// Who holds this writes.
struct Turn {
    /// `None` once the connection has ended.
    socket: Option<Arc<Stream>>,
    /// Taken from the queue and not wholly written.
    chunks: VecDeque<Bytes>,
}

enum Progress {
    /// All that was taken is written.
    Written,
    /// The socket is full, or the turn has lasted long enough.
    Paused,
}

pub(super) struct Sender {
    queue: Mutex<Queue>,
    turn: Mutex<Turn>,
    /// Bytes queued and not yet written.
    queued_bytes: AtomicUsize,
    max_queued_bytes: usize,
    /// TLS keeps bytes that the socket did not take.
    kept_by_tls: AtomicBool,
    /// Set while the writing task is to go on: others need not try.
    paused: AtomicBool,
    resume: Notify,
}

impl Sender {
    pub(super) fn new(socket: Arc<Stream>, max_queued_bytes: usize) -> Self {
        Self {
            queue: Mutex::default(),
            turn: Mutex::new(Turn {
                socket: Some(socket),
                chunks: VecDeque::new(),
            }),
            queued_bytes: AtomicUsize::new(0),
            max_queued_bytes,
            kept_by_tls: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            resume: Notify::new(),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.queued_bytes.load(Ordering::Relaxed) >= self.max_queued_bytes
    }

    pub(super) fn push<M: Message>(
        &self,
        kind: FrameKind,
        correlation: u32,
        header: &M,
        body: Bytes,
    ) -> Result<(), FrameError> {
        let mut queue = self.queue.lock();
        let before = queue.tail.len();
        encode_head(&mut queue.tail, kind, correlation, header, body.len())?;
        let bytes = queue.tail.len() - before + body.len();
        if body.len() <= COPY_BYTES {
            queue.tail.extend_from_slice(&body);
        } else {
            let head = queue.tail.split().freeze();
            queue.chunks.push_back(head);
            queue.chunks.push_back(body);
        }
        self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn push_empty(&self, kind: FrameKind, correlation: u32) {
        let mut queue = self.queue.lock();
        let before = queue.tail.len();
        encode_empty(&mut queue.tail, kind, correlation);
        let bytes = queue.tail.len() - before;
        self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Writes what is queued unless another does.
    pub(super) fn flush(&self) -> std::io::Result<()> {
        while self.has_unsent() && !self.paused.load(Ordering::Acquire) {
            // Whoever has the turn looks at the queue again after giving it back.
            let Some(mut turn) = self.turn.try_lock() else {
                return Ok(());
            };
            if turn.socket.is_none() {
                return Ok(());
            }
            if let Progress::Paused = self.write(&mut turn)? {
                self.paused.store(true, Ordering::Release);
                drop(turn);
                self.resume.notify_one();
                return Ok(());
            }
        }
        Ok(())
    }

    fn has_unsent(&self) -> bool {
        self.queued_bytes.load(Ordering::Acquire) > 0 || self.kept_by_tls.load(Ordering::Relaxed)
    }

    fn write(&self, turn: &mut Turn) -> std::io::Result<Progress> {
        let Some(socket) = turn.socket.clone() else {
            return Ok(Progress::Written);
        };
        for _ in 0..WRITES_PER_TURN {
            self.take_queue(&mut turn.chunks);
            if turn.chunks.is_empty() {
                let keeps = socket.try_flush()? > 0;
                self.kept_by_tls.store(keeps, Ordering::Relaxed);
                return Ok(match keeps {
                    true => Progress::Paused,
                    false => Progress::Written,
                });
            }
            let mut vectors = [IoSlice::new(&[]); VECTORS];
            let mut count = 0;
            for (vector, chunk) in vectors.iter_mut().zip(&turn.chunks) {
                *vector = IoSlice::new(chunk);
                count += 1;
            }
            match socket.try_write_vectored(&vectors[..count]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => self.written(turn, written),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(Progress::Paused);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Progress::Paused)
    }

    fn take_queue(&self, chunks: &mut VecDeque<Bytes>) {
        let mut queue = self.queue.lock();
        chunks.append(&mut queue.chunks);
        if !queue.tail.is_empty() {
            chunks.push_back(queue.tail.split().freeze());
        }
    }

    fn written(&self, turn: &mut Turn, mut bytes: usize) {
        self.queued_bytes.fetch_sub(bytes, Ordering::Release);
        while let Some(front) = turn.chunks.front_mut() {
            if bytes < front.len() {
                front.advance(bytes);
                break;
            }
            bytes -= front.len();
            turn.chunks.pop_front();
        }
    }

    /// Lets go of the socket and all that is queued.
    pub(super) fn close(&self) {
        let mut turn = self.turn.lock();
        turn.socket = None;
        turn.chunks.clear();
        drop(turn);
        *self.queue.lock() = Queue::default();
    }
}

/// How long nothing has come but answers to pings.
#[derive(Debug, Default)]
struct Quiet {
    /// Frames received at the last tick.
    seen: u64,
    /// Ticks since which nothing has come at all.
    silent: u32,
    /// A ping was sent at the last tick.
    pinged: bool,
}

/// What is to be done at a tick.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Ping,
    End,
}

impl Quiet {
    /// `received` frames have come so far. A connection that has nothing to say is pinged at every tick, not at
    /// every other one: the answer to the last ping is not what would make the next unnecessary.
    fn tick(&mut self, received: u64) -> Due {
        let news = received - self.seen;
        self.seen = received;
        self.silent = if news == 0 { self.silent + 1 } else { 0 };
        if self.silent >= 4 {
            return Due::End;
        }
        self.pinged = news <= u64::from(self.pinged);
        if self.pinged { Due::Ping } else { Due::Nothing }
    }
}

/// For how long a connection may be silent, and without a request.
pub(super) struct Patience {
    keepalive: Duration,
    idle: Option<Duration>,
}

impl From<&ConnectOptions> for Patience {
    fn from(options: &ConnectOptions) -> Self {
        Self {
            keepalive: options.keepalive,
            idle: options.idle_timeout,
        }
    }
}

/// Goes on writing when the socket was full, and keeps the connection alive, or ends it when nobody needs it.
pub(super) async fn run(shared: Arc<Shared>, socket: Arc<Stream>, patience: Patience) {
    let keepalive = patience.keepalive;
    let keepalive = keepalive.clamp(Duration::from_millis(1), LONGEST_KEEPALIVE);
    let first = tokio::time::Instant::now() + keepalive;
    let mut tick = tokio::time::interval_at(first, keepalive);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut quiet = Quiet::default();
    let mut full = false;
    let mut used = tokio::time::Instant::now();
    loop {
        tokio::select! {
            () = shared.sender.resume.notified(), if !full => full = true,
            // The keepalive goes on meanwhile: a broker that reads no more may have vanished.
            ready = socket.writable(), if full => {
                if let Err(error) = ready {
                    return shared.fail(shared.lost(error.to_string()));
                }
                full = false;
                shared.sender.paused.store(false, Ordering::Release);
                shared.flush();
            }
            _ = tick.tick() => {
                let due = quiet.tick(shared.received.load(Ordering::Relaxed));
                if due == Due::End {
                    let reason = format!("no answer within {:?}", keepalive * 3);
                    return shared.fail(shared.lost(reason));
                }
                if due == Due::Nothing || shared.pending.lock().len() > 0 {
                    used = tokio::time::Instant::now();
                } else if patience.idle.is_some_and(|idle| used.elapsed() >= idle) {
                    shared.close_idle();
                }
                if due == Due::Ping {
                    shared.sender.push_empty(FrameKind::Ping, PUSH_CORRELATION);
                    shared.flush();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_without_news_is_pinged_at_every_tick() {
        let mut quiet = Quiet::default();
        assert_eq!(quiet.tick(5), Due::Nothing);
        for answers in 0..10 {
            assert_eq!(quiet.tick(5 + answers), Due::Ping, "{answers} answers");
        }
        assert_eq!(quiet.tick(20), Due::Nothing, "there were others");
        let silent = [20; 4].map(|received| quiet.tick(received));
        assert_eq!(silent, [Due::Ping, Due::Ping, Due::Ping, Due::End]);
    }
}
