//! Connections without a call, and what the requests of the others take.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::CallLimits;

/// What a call takes until its request has arrived, beside the request's bytes: HTTP/2's state of it, its
/// headers and its task.
pub(super) const CALL_BYTES: usize = 16 << 10;
/// Headers up to this size are among these.
const USUAL_HEADERS: usize = 2 << 10;
/// A connection that holds no more than this is not refused for what others hold: a stranger's requests that
/// never arrive keep nobody from a small call.
const SMALL_BYTES: usize = 32 << 10;
/// Likewise of calls that wait: a connection that has no more is not refused for what others have.
const FEW_CALLS: usize = 8;
/// Calls that a connection may always have begun.
const LEAST_BEGUN: u32 = 64;

/// What a connection is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// End once the calls under way are answered.
    End,
    /// End at once.
    Drop,
}

/// The connections of one address that have no call.
#[derive(Debug)]
pub(super) struct Quiet {
    most: usize,
    connections: Mutex<Connections>,
    total_bytes: usize,
    bytes: AtomicUsize,
    total_calls: usize,
    calls: AtomicUsize,
    open: AtomicUsize,
    /// Bytes given back to the allocator by calls that are over.
    freed: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Connections {
    next: u64,
    /// By number, those that have been quiet for longest first.
    quiet: BTreeMap<u64, Arc<Bell>>,
    /// Those that were told to end, and have not done so.
    ending: BTreeMap<u64, Arc<Bell>>,
}

#[derive(Debug, Default)]
struct Bell {
    word: Mutex<Option<Word>>,
    rings: Notify,
}

impl Bell {
    fn tell(&self, word: Word) {
        *self.word.lock() = Some(word);
        self.rings.notify_one();
    }
}

impl Quiet {
    pub(super) fn new(
        most: usize,
        total_bytes: usize,
        total_calls: usize,
        freed: Arc<AtomicU64>,
    ) -> Self {
        Self {
            most,
            connections: Mutex::default(),
            total_bytes,
            bytes: AtomicUsize::new(0),
            total_calls,
            calls: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            freed,
        }
    }

    /// One connection more, until what is returned is dropped, and how many calls it may have begun: HTTP/2 keeps
    /// about 2 KiB of each from its first bytes, before anybody can refuse it, for as long as the connection lasts. So
    /// it may have its part of what all may have, and at most `most`.
    pub(super) fn open(self: &Arc<Self>, most: u32) -> (Open, u32) {
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        let part = u32::try_from(self.total_calls / open).unwrap_or(u32::MAX);
        let may_begin = part.clamp(LEAST_BEGUN.min(most), most);
        (Open(self.clone()), may_begin)
    }

    pub(super) fn len(&self) -> usize {
        let connections = self.connections.lock();
        connections.quiet.len() + connections.ending.len()
    }

    /// Adds a connection that is quiet from now on, and ends those that are too many.
    fn add(&self, bell: &Arc<Bell>) -> u64 {
        let mut connections = self.connections.lock();
        let number = connections.next;
        connections.next += 1;
        connections.quiet.insert(number, bell.clone());
        while connections.quiet.len() > self.most
            && let Some((number, quietest)) = connections.quiet.pop_first()
        {
            quietest.tell(Word::End);
            connections.ending.insert(number, quietest);
        }
        // They may have a moment for it, but not all of them.
        while connections.ending.len() > self.most / 4
            && let Some((_, slowest)) = connections.ending.pop_first()
        {
            slowest.tell(Word::Drop);
        }
        number
    }

    fn remove(&self, number: u64) {
        let mut connections = self.connections.lock();
        if connections.quiet.remove(&number).is_none() {
            connections.ending.remove(&number);
        }
    }
}

/// A connection that is open.
#[derive(Debug)]
pub(super) struct Open(Arc<Quiet>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The calls of one connection.
#[derive(Debug)]
pub(super) struct Calls {
    all: Arc<Quiet>,
    bell: Arc<Bell>,
    most_bytes: usize,
    state: Mutex<CallsState>,
}

#[derive(Debug)]
struct CallsState {
    had_one: bool,
    /// Calls whose reply was not yet taken entirely.
    open: usize,
    /// Of those, the ones that were answered.
    answered: usize,
    /// When the last call ended, or the peer took a part of a reply.
    since: Instant,
    /// Its number among the quiet ones while it has no call.
    number: Option<u64>,
    bytes: usize,
}

impl Calls {
    pub(super) fn begin(all: Arc<Quiet>, most_bytes: usize) -> Arc<Self> {
        let bell = Arc::new(Bell::default());
        let number = Some(all.add(&bell));
        Arc::new(Self {
            all,
            bell,
            most_bytes,
            state: Mutex::new(CallsState {
                had_one: false,
                open: 0,
                answered: 0,
                since: Instant::now(),
                number,
                bytes: 0,
            }),
        })
    }

    /// One call more, which lasts until the last clone of this is gone.
    pub(super) fn call(self: &Arc<Self>) -> Arc<Call> {
        let mut state = self.state.lock();
        state.had_one = true;
        state.open += 1;
        self.all.calls.fetch_add(1, Ordering::Relaxed);
        let number = state.number.take();
        drop(state);
        if let Some(number) = number {
            self.all.remove(number);
        }
        Arc::new(Call {
            calls: self.clone(),
            state: Mutex::default(),
        })
    }

    pub(super) fn is_open(&self) -> bool {
        self.state.lock().open > 0
    }

    /// What others tell this connection.
    pub(super) async fn told(&self) -> Word {
        loop {
            self.bell.rings.notified().await;
            if let Some(word) = self.bell.word.lock().take() {
                return word;
            }
        }
    }

    /// When to look whether the connection is overdue.
    pub(super) fn next_look(&self, limits: &CallLimits) -> Instant {
        let state = self.state.lock();
        let from_now = |within| Instant::now() + within;
        match (state.open, state.answered, state.had_one) {
            (0, _, false) => state.since + limits.first_call,
            (0, _, true) => state.since + limits.idle,
            (_, 0, _) => from_now(limits.send.min(limits.idle)),
            _ => state.since + limits.send,
        }
    }

    /// What is to be done about a connection that has been quiet for too long, or reads no replies.
    pub(super) fn overdue(&self, limits: &CallLimits) -> Option<Word> {
        let state = self.state.lock();
        let quiet_for = state.since.elapsed();
        match (state.open, state.answered, state.had_one) {
            (0, _, false) => (quiet_for >= limits.first_call).then_some(Word::End),
            (0, _, true) => (quiet_for >= limits.idle).then_some(Word::End),
            (_, 0, _) => None,
            _ => (quiet_for >= limits.send).then_some(Word::Drop),
        }
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        if let Some(number) = self.state.get_mut().number {
            self.all.remove(number);
        }
    }
}

/// A call while it arrives, is worked on, and is answered.
#[derive(Debug)]
pub(super) struct Call {
    calls: Arc<Calls>,
    state: Mutex<CallState>,
}

#[derive(Debug, Default)]
struct CallState {
    bytes: usize,
    /// Of these what the call takes by itself, as long as its request arrives.
    arriving: usize,
    is_answered: bool,
}

impl Call {
    /// Whether there may be one more call, with this one; if not, the limit.
    pub(super) fn has_room(&self) -> Result<(), usize> {
        let all = &self.calls.all;
        let is_full = all.calls.load(Ordering::Relaxed) > all.total_calls;
        match is_full && self.calls.state.lock().open > FEW_CALLS {
            true => Err(all.total_calls),
            false => Ok(()),
        }
    }

    /// Counts what the call takes by itself, with so many bytes of headers, until its request
    /// [has arrived](Self::has_arrived); the limit that it exceeds, if one.
    pub(super) fn begins(&self, headers: usize) -> Result<(), usize> {
        let bytes = CALL_BYTES + headers.saturating_sub(USUAL_HEADERS);
        self.take(bytes)?;
        self.state.lock().arriving = bytes;
        Ok(())
    }

    /// Its request is there, or is wanted no more.
    pub(super) fn has_arrived(&self) {
        let mut calls = self.calls.state.lock();
        let mut call = self.state.lock();
        let arrived = std::mem::take(&mut call.arriving);
        call.bytes -= arrived;
        calls.bytes -= arrived;
        self.calls.all.bytes.fetch_sub(arrived, Ordering::Relaxed);
    }

    /// Counts `bytes` more of its request; the limit that they exceed, if one.
    pub(super) fn take(&self, bytes: usize) -> Result<(), usize> {
        let mut state = self.calls.state.lock();
        if state.bytes + bytes > self.calls.most_bytes {
            return Err(self.calls.most_bytes);
        }
        let all = &self.calls.all;
        let before = all.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > all.total_bytes && state.bytes + bytes > SMALL_BYTES {
            all.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(all.total_bytes);
        }
        state.bytes += bytes;
        self.state.lock().bytes += bytes;
        Ok(())
    }

    /// Its reply begins.
    pub(super) fn answers(&self) {
        self.state.lock().is_answered = true;
        let mut state = self.calls.state.lock();
        if state.answered == 0 {
            state.since = Instant::now();
        }
        state.answered += 1;
    }

    /// The peer has room for more of the reply.
    pub(super) fn progresses(&self) {
        self.calls.state.lock().since = Instant::now();
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let call = self.state.get_mut();
        let all = &self.calls.all;
        all.bytes.fetch_sub(call.bytes, Ordering::Relaxed);
        all.calls.fetch_sub(1, Ordering::Relaxed);
        let freed = (CALL_BYTES + call.bytes) as u64;
        all.freed.fetch_add(freed, Ordering::Relaxed);
        let mut state = self.calls.state.lock();
        state.bytes -= call.bytes;
        state.answered -= usize::from(call.is_answered);
        state.open -= 1;
        if state.open == 0 {
            state.since = Instant::now();
            state.number = Some(all.add(&self.calls.bell));
        }
    }
}
