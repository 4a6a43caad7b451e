//! The primary's end of a connection: writes go into the backup's memory without its process.
//!
//! Bytes are copied once, into memory that the card has registered, and leave from there. Posting
//! happens where the writes are handed over; what the ring or the queue has no room for goes on when
//! the link is polled. Of each list only every so many writes are told when they complete, and the
//! last: writes complete in order, so one speaks for all before it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::unix::AsyncFd;

use super::RdmaOptions;
use super::key::RemoteBuffer;
use super::patience::Patience;
use super::verbs::{
    CmEvent, CmEventKind, CmId, Completion, CompletionChannel, EventChannel, Outcome, Qp,
    WriteRequest,
};
use super::window::Window;
use crate::ids::{BrokerId, BufferKey};
use crate::transport::under_way::UnderWay;
use crate::transport::{Link, LinkError, Write};

/// Most bytes of one request, so that a ring is not waited for as a whole.
const MAX_REQUEST_BYTES: usize = 1 << 20;
/// Requests of one posting.
const LIST: usize = 64;
/// How long an ended queue pair has to hand back what was under way.
const REAPING: Duration = Duration::from_secs(1);

/// A write that is not posted to its end.
#[derive(Debug)]
struct Piece {
    buffer: BufferKey,
    remote: RemoteBuffer,
    offset: u64,
    parts: VecDeque<Bytes>,
    left: usize,
}

/// A connection to one backup.
pub(super) struct RdmaLink {
    backup: BrokerId,
    options: RdmaOptions,
    /// Before `id`, so that nobody waits for descriptors that are closed.
    events: AsyncFd<Arc<EventChannel>>,
    completions: AsyncFd<Arc<CompletionChannel>>,
    id: CmId,
    window: Window,
    unsent: VecDeque<Piece>,
    unsent_bytes: usize,
    /// Writes that were posted to their end.
    posted: u64,
    under_way: UnderWay,
    list: Vec<WriteRequest>,
    found: Vec<Completion>,
    /// The next completion will be announced.
    asked: bool,
    patience: Patience,
    /// The connection has ended for this reason, and what was under way is handed back.
    ending: Option<LinkError>,
    failed: Option<LinkError>,
}

impl RdmaLink {
    /// A link over `id`, which is connected; its events come on `events`.
    ///
    /// # Errors
    /// If the descriptors cannot be waited for.
    pub(super) fn new(
        backup: BrokerId,
        events: AsyncFd<Arc<EventChannel>>,
        completions: &Arc<CompletionChannel>,
        id: CmId,
        requests: u32,
        options: RdmaOptions,
    ) -> io::Result<Self> {
        Ok(Self {
            backup,
            events,
            completions: completions.watched()?,
            id,
            window: Window::new(options.send_bytes, requests as usize),
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            posted: 0,
            under_way: UnderWay::new(options.stall_timeout),
            list: Vec::with_capacity(LIST),
            found: Vec::new(),
            asked: false,
            patience: Patience::new(options.look_for),
            ending: None,
            failed: None,
            options,
        })
    }

    fn fail(&mut self, error: LinkError) -> LinkError {
        self.unsent.clear();
        self.unsent_bytes = 0;
        if self.failed.is_none() {
            // What is still under way comes back as flushed, and nothing more lands there.
            if let Err(error) = self.id.fail_qp() {
                tracing::debug!(%error, backup = %self.backup, "the queue pair had ended already");
            }
        }
        self.failed.get_or_insert(error).clone()
    }

    fn broken(&mut self, reason: impl ToString) -> LinkError {
        let backup = self.backup;
        let reason = reason.to_string();
        self.fail(LinkError::Broken { backup, reason })
    }

    fn qp(&mut self) -> io::Result<&mut Qp> {
        self.id
            .qp()
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Posts what ring and queue have room for.
    fn feed(&mut self) -> Result<(), LinkError> {
        if self.ending.is_some() {
            return Ok(());
        }
        loop {
            if let Err(error) = self.fill_list() {
                return Err(self.broken(error));
            }
            let Some(last) = self.list.last_mut() else {
                return Ok(());
            };
            last.told = true;
            if let Err(error) = self.id.post(&self.list) {
                return Err(self.broken(format!("a write could not be posted: {error}")));
            }
        }
    }

    /// Copies bytes into the ring and writes down where they go.
    fn fill_list(&mut self) -> io::Result<()> {
        self.list.clear();
        while self.list.len() < LIST
            && let Some(piece) = self.unsent.front_mut()
        {
            let Some(place) = self.window.room(piece.left.min(MAX_REQUEST_BYTES)) else {
                break;
            };
            let qp = self.id.qp().ok_or(io::ErrorKind::NotConnected)?;
            let mut at = place.at;
            let mut wanted = place.len;
            while wanted > 0
                && let Some(part) = piece.parts.front_mut()
            {
                let taken = part.len().min(wanted);
                qp.fill(at, &part[..taken])?;
                part.advance(taken);
                at += taken;
                wanted -= taken;
                if part.is_empty() {
                    piece.parts.pop_front();
                }
            }
            piece.left -= place.len;
            let whole = piece.left == 0;
            let buffer = piece.buffer;
            let remote = piece.remote;
            let offset = piece.offset;
            piece.offset += place.len as u64;
            if whole {
                self.unsent.pop_front();
                self.posted += 1;
            }
            self.unsent_bytes -= place.len;
            let number = self.window.take(place.len, self.posted, buffer);
            self.list.push(WriteRequest {
                number,
                at: place.at,
                len: place.len as u32,
                // Past the buffer's end the backup's card refuses it.
                remote_at: remote.base + offset,
                remote_key: remote.key,
                told: number.is_multiple_of(u64::from(self.options.told_every.max(1))),
            });
        }
        Ok(())
    }

    /// Takes what has completed; true if there was anything.
    fn reap(&mut self) -> Result<bool, LinkError> {
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        let polled = match self.qp() {
            Ok(qp) => qp.poll(&mut found),
            Err(error) => Err(error),
        };
        let any = !found.is_empty();
        let mut result = match polled {
            Ok(()) => Ok(any),
            Err(error) => Err(error.to_string()),
        };
        let mut ended = None;
        for completion in &found {
            match completion.outcome {
                Outcome::Done => {
                    self.window.completed(completion.number);
                    self.under_way.heard();
                }
                // They complete in order, so all before the first that failed are done.
                outcome if self.failed.is_none() && ended.is_none() => {
                    ended = Some((outcome, self.window.buffer(completion.number)));
                    self.window.completed(completion.number.saturating_sub(1));
                }
                _ => {}
            }
        }
        self.found = found;
        if let Some((outcome, buffer)) = ended {
            return Err(self.ended(outcome, buffer));
        }
        if let Err(reason) = &mut result {
            let reason = std::mem::take(reason);
            return Err(self.broken(reason));
        }
        Ok(any)
    }

    /// The first request that failed says why the link does, unless that was known before.
    fn ended(&mut self, outcome: Outcome, buffer: Option<BufferKey>) -> LinkError {
        let backup = self.backup;
        let error = match (self.ending.take(), outcome) {
            (Some(known), Outcome::Flushed) => known,
            (_, Outcome::AccessRefused) => LinkError::Refused {
                backup,
                buffer,
                reason: outcome.to_string(),
            },
            (_, Outcome::Unheard) => LinkError::Broken {
                backup,
                reason: format!(
                    "{outcome}, tried {} times over {:?} each",
                    u32::from(self.options.retries) + 1,
                    self.options.acknowledgement_timeout()
                ),
            },
            _ => LinkError::Broken {
                backup,
                reason: outcome.to_string(),
            },
        };
        self.fail(error)
    }

    /// Takes what the connection manager has to tell.
    fn hear(&mut self, cx: &mut Context<'_>) -> Result<(), LinkError> {
        loop {
            match poll_event(&self.events, cx) {
                Poll::Ready(Ok(event)) => {
                    if matches!(event.kind, CmEventKind::Disconnected | CmEventKind::Failed) {
                        self.end("the replica store ended the connection")?;
                    }
                }
                Poll::Ready(Err(error)) => return Err(self.broken(error)),
                Poll::Pending => return Ok(()),
            }
        }
    }

    /// The connection is over; what completed before is told first.
    fn end(&mut self, reason: &str) -> Result<(), LinkError> {
        if self.window.is_empty() {
            return Err(self.broken(reason));
        }
        if self.ending.is_none() && self.failed.is_none() {
            let backup = self.backup;
            let reason = reason.to_string();
            self.ending = Some(LinkError::Broken { backup, reason });
            let _ended_already = self.id.fail_qp();
            self.under_way.hurry(REAPING);
        }
        Ok(())
    }

    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Result<(), LinkError> {
        if self.under_way.is_empty() && self.ending.is_none() {
            return Ok(());
        }
        let patience = match self.ending {
            Some(_) => REAPING,
            None => self.options.stall_timeout,
        };
        if self.under_way.is_overdue(cx, patience) {
            return Err(match self.ending.take() {
                Some(known) => self.fail(known),
                None => self.broken(format!("nothing completed for {patience:?}")),
            });
        }
        Ok(())
    }

    /// Looks for completions for as long as it pays.
    fn look(&mut self) -> Result<bool, LinkError> {
        let time = self.patience.look_for();
        if time.is_zero() {
            return Ok(false);
        }
        let until = std::time::Instant::now() + time;
        while std::time::Instant::now() < until {
            if self.reap()? {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        self.patience.in_vain();
        Ok(false)
    }

    /// Goes on until there is nothing to do but to wait, or something to tell.
    fn drive(&mut self, cx: &mut Context<'_>) -> Result<(), LinkError> {
        self.hear(cx)?;
        loop {
            while self.reap()? {}
            self.feed()?;
            if self.has_completed() || self.window.is_empty() {
                break;
            }
            if self.look()? {
                continue;
            }
            if !self.asked {
                // What completes between the last look and the question would not be announced:
                // look once more.
                if let Err(error) = self.qp().and_then(Qp::ask_for_word) {
                    return Err(self.broken(error));
                }
                self.asked = true;
                continue;
            }
            self.patience.waits(std::time::Instant::now());
            match poll_word(&self.completions, &mut self.id, cx) {
                Poll::Ready(Ok(())) => {
                    self.asked = false;
                    self.patience.told(std::time::Instant::now());
                }
                Poll::Ready(Err(error)) => return Err(self.broken(error)),
                Poll::Pending => break,
            }
        }
        self.poll_alarm(cx)
    }

    fn has_completed(&self) -> bool {
        self.under_way.has_completed(self.window.writes())
    }
}

/// The next event of the connection manager.
pub(super) fn poll_event(
    events: &AsyncFd<Arc<EventChannel>>,
    cx: &mut Context<'_>,
) -> Poll<io::Result<CmEvent>> {
    loop {
        let mut guard = ready!(events.poll_read_ready(cx))?;
        match guard.get_inner().next() {
            Ok(Some(event)) => return Poll::Ready(Ok(event)),
            Ok(None) => guard.clear_ready(),
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
}

/// Waits for an announcement of completions.
fn poll_word(
    completions: &AsyncFd<Arc<CompletionChannel>>,
    id: &mut CmId,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    loop {
        let mut guard = ready!(completions.poll_read_ready(cx))?;
        let qp = id.qp().ok_or(io::ErrorKind::NotConnected)?;
        match qp.take_word() {
            Ok(true) => return Poll::Ready(Ok(())),
            Ok(false) => guard.clear_ready(),
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
}

impl Link for RdmaLink {
    fn submit(&mut self, writes: Vec<Write>) -> Result<u64, LinkError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let full = self.unsent_bytes >= self.options.unsent_bytes
            || self.under_way.len() >= self.options.submissions;
        if full {
            return Err(LinkError::Full(self.backup));
        }
        for write in &writes {
            // Beyond all addresses some cards count from the beginning again.
            let end = write.offset.checked_add(write.len());
            if end.is_none_or(|end| end > u64::from(u32::MAX)) {
                return Err(self.fail(LinkError::Refused {
                    backup: self.backup,
                    buffer: Some(write.buffer),
                    reason: format!("no buffer reaches beyond offset {}", write.offset),
                }));
            }
        }
        let mut handed_over = 0;
        for write in writes {
            let left = write.parts.iter().map(Bytes::len).sum();
            if left == 0 {
                continue;
            }
            self.unsent_bytes += left;
            handed_over += 1;
            self.unsent.push_back(Piece {
                buffer: write.buffer,
                remote: RemoteBuffer::named(write.buffer),
                offset: write.offset,
                parts: write.parts.into_iter().filter(|p| !p.is_empty()).collect(),
                left,
            });
        }
        let number = self.under_way.submit(handed_over);
        // An error is told by the next poll, with the number it is about.
        let _ = self.feed();
        Ok(number)
    }

    fn poll_completed(&mut self, cx: &mut Context<'_>) -> Poll<Result<u64, LinkError>> {
        if self.failed.is_none() {
            let _ = self.drive(cx);
        }
        let writes = self.window.writes();
        self.under_way
            .poll_completed(cx, writes, self.failed.as_ref())
    }
}
