//! A data connection at its backup: a thread that reads, places and says how far it has come.
//!
//! All that a backup does for data is one read, one copy and, for a whole submission, one word. A task would
//! add its share of an event loop to that: waiting for readiness, a read that finds nothing, timers around
//! each wait. There is one such connection for each broker that has copies here, so that threads are few.

use std::io::{self, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kera_rpc::stream::{BlockingTls, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::oneshot;

use super::quiet::{Patience, ask_when_quiet};
use super::receiver::{Farewell, Receiver, Step};
use super::seats::LastWrite;
use super::wire::{Cause, Word};

/// Bytes after which a primary hears of what is placed, although it waits for more: a large submission over
/// a slow network is no silence.
const BYTES_PER_WORD: usize = 512 << 10;

/// What a connection's thread does by the clock.
#[derive(Clone, Debug)]
pub(super) struct Times {
    /// For the rest of a write that has begun, and for the primary to take a word.
    pub(super) stalled: Duration,
    /// For a primary without an open copy to say something.
    pub(super) rested: Duration,
    /// Told of writes.
    pub(super) wrote: Arc<LastWrite>,
}

/// A connection whose thread is at work. Dropped, it has placed its last byte.
#[derive(Debug)]
pub(super) struct DataConnection {
    socket: TcpStream,
    leave: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// Once this has come, the thread touches the socket no more.
    ended: oneshot::Receiver<(Result<(), Farewell>, Incoming)>,
    /// What the thread had of the connection, after it has ended.
    left: Option<Incoming>,
}

/// Where the bytes of a connection come from.
#[derive(Debug)]
enum Incoming {
    Plain(TcpStream),
    Tls(Box<BlockingTls>),
}

impl Incoming {
    fn of(stream: Stream) -> io::Result<Self> {
        match stream {
            Stream::Plain(stream) => {
                let socket = stream.into_std()?;
                socket.set_nonblocking(false)?;
                Ok(Self::Plain(socket))
            }
            Stream::Tls(stream) => Ok(Self::Tls(Box::new(BlockingTls::new(*stream)?))),
        }
    }

    fn into_stream(self) -> io::Result<Stream> {
        match self {
            Self::Plain(socket) => {
                socket.set_nonblocking(true)?;
                Ok(tokio::net::TcpStream::from_std(socket)?.into())
            }
            Self::Tls(stream) => stream.into_stream(),
        }
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.socket(),
        }
    }
}

impl DataConnection {
    /// Welcomes the primary and begins to receive; `received` counts bytes.
    ///
    /// # Errors
    /// The system's, as when it has no more threads.
    pub(super) fn begin(
        stream: Stream,
        receiver: Receiver,
        times: Times,
        received: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let incoming = Incoming::of(stream)?;
        let socket = incoming.socket().try_clone()?;
        let stalled = times.stalled;
        let patience = Patience {
            quiet: stalled,
            silent: None,
        };
        ask_when_quiet(&socket, patience)?;
        socket.set_read_timeout(Some(stalled))?;
        socket.set_write_timeout(Some(stalled))?;
        let leave = Arc::new(AtomicBool::new(false));
        let (end, ended) = oneshot::channel();
        let mut line = Line {
            incoming,
            receiver,
            times,
            leave: leave.clone(),
            received,
            rested: Duration::ZERO,
            begun: None,
        };
        let thread = std::thread::Builder::new().name("kera-replicas".into());
        let thread = thread.spawn(move || {
            let outcome = line.receive();
            // Nobody waits for it any more where the task behind it was dropped.
            let _ = end.send((outcome, line.incoming));
        })?;
        Ok(Self {
            socket,
            leave,
            thread: Some(thread),
            ended,
            left: None,
        })
    }

    /// Waits until the primary closes, or breaks a rule.
    pub(super) async fn ended(&mut self) -> Result<(), Farewell> {
        // A thread that panicked says nothing.
        let Ok((outcome, incoming)) = (&mut self.ended).await else {
            return Ok(());
        };
        self.left = Some(incoming);
        outcome
    }

    /// Ends it; once this returns, its last byte is placed.
    pub(super) async fn leave(&mut self) {
        self.leave.store(true, Ordering::Release);
        // The read that waits ends, and so does the next one that would.
        let _ = self.socket.shutdown(Shutdown::Read);
        let _ = self.ended().await;
    }

    /// The connection after its thread has ended, to say why; `None` where there is nothing left of it.
    pub(super) fn parting(mut self) -> Option<Stream> {
        self.left.take()?.into_stream().ok()
    }
}

impl Drop for DataConnection {
    fn drop(&mut self) {
        self.leave.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // Whatever it waits for ends. The last words go over the same socket, so not after it ended.
            if !self.ended.is_terminated() {
                let _ = self.socket.shutdown(Shutdown::Both);
            }
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Line {
    incoming: Incoming,
    receiver: Receiver,
    times: Times,
    leave: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    /// For how long nothing has come.
    rested: Duration,
    /// Writes that were done, and when it was seen, when the head of the next one had begun and not ended.
    begun: Option<(u64, Instant)>,
}

impl Line {
    fn receive(&mut self) -> Result<(), Farewell> {
        if !self.say(Word::Welcome) {
            return Ok(());
        }
        let (mut told, mut untold) = (0, 0);
        while !self.leave.load(Ordering::Acquire) {
            let step = match &mut self.incoming {
                Incoming::Plain(socket) => self.receiver.step(socket.as_fd()),
                Incoming::Tls(stream) => self.receiver.step_decrypting(&mut **stream),
            };
            match step {
                Ok(Ok(Step::Read(read))) => {
                    self.received.fetch_add(read as u64, Ordering::Relaxed);
                    untold += read;
                    self.rested = Duration::ZERO;
                    if self.receiver.has_written() {
                        self.times.wrote.note();
                    }
                    self.check_head()?;
                }
                // A connection may rest, but not in the middle of a write.
                Ok(Ok(Step::Empty)) => self.rest()?,
                Ok(Ok(Step::Ended)) | Ok(Err(_)) => return Ok(()),
                Err(farewell) => {
                    // What was placed before is placed: say so first.
                    self.say(Word::Done(self.receiver.done()));
                    return Err(farewell);
                }
            }
            let done = self.receiver.done();
            if self.receiver.signalled() > told || (untold >= BYTES_PER_WORD && done > told) {
                (told, untold) = (done, 0);
                if !self.say(Word::Done(done)) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn rest(&mut self) -> Result<(), Farewell> {
        if !self.receiver.is_amid() {
            return self.rest_between_writes();
        }
        let comes = match &self.incoming {
            // That step did not wait.
            Incoming::Plain(socket) if self.receiver.is_in_copy() => {
                readable(socket.as_fd(), self.times.stalled)
            }
            _ => false,
        };
        if comes { Ok(()) } else { Err(self.halfway()) }
    }

    /// The socket has waited once more, and the primary has begun nothing.
    fn rest_between_writes(&mut self) -> Result<(), Farewell> {
        self.rested += self.times.stalled;
        // One with open copies keeps its connection: it would connect again at once.
        if self.rested < self.times.rested || self.receiver.has_open_copies() {
            return Ok(());
        }
        let seconds = self.rested.as_secs_f32();
        Err(Farewell::new(
            Cause::Ending,
            format!(
                "nothing was written for {seconds} s and no replica is open; connect again to write"
            ),
        ))
    }

    /// A head that comes byte by byte would hold the thread for as long as somebody likes.
    fn check_head(&mut self) -> Result<(), Farewell> {
        if self.receiver.is_in_copy() || !self.receiver.is_amid() {
            self.begun = None;
            return Ok(());
        }
        let (now, done) = (Instant::now(), self.receiver.done());
        match self.begun {
            Some((of, since)) if of == done => match now - since < self.times.stalled {
                true => Ok(()),
                false => Err(self.halfway()),
            },
            _ => {
                self.begun = Some((done, now));
                Ok(())
            }
        }
    }

    fn halfway(&self) -> Farewell {
        Farewell::malformed(format!(
            "the rest of a write did not come within {} s",
            self.times.stalled.as_secs_f32()
        ))
    }

    /// Sends a word; false if the primary is gone, or does not read.
    fn say(&mut self, word: Word) -> bool {
        let word = word.encode();
        match &mut self.incoming {
            Incoming::Plain(socket) => socket.write_all(&word).is_ok(),
            Incoming::Tls(stream) => stream.write_all(&word).is_ok(),
        }
    }
}

/// Waits until there is something to read, or the connection has ended; false if neither in time.
fn readable(socket: BorrowedFd<'_>, within: Duration) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    let within = Timespec::try_from(within).ok();
    match poll(&mut polled, within.as_ref()) {
        Ok(ready) => ready > 0,
        // The next step tells what is wrong, or that there is nothing yet.
        Err(_) => true,
    }
}
