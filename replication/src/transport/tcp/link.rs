//! The primary's end of a data connection.
//!
//! Sending happens where the writes are handed over: no task of its own, no hand-over. What the
//! socket does not take at once goes on when the link is polled.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use kera_rpc::stream::Stream;

use super::quiet::Patience;
use super::wire::{Cause, WORD_BYTES, WRITE_BYTES, Word, WriteHead};
use crate::ids::{BrokerId, BufferKey};
use crate::transport::under_way::UnderWay;
use crate::transport::{Link, LinkError, Write};

/// Slices of one system call.
const SLICES: usize = 256;
/// A write of so many bytes is copied behind its head, and so are its neighbours: very many small writes
/// leave as one slice, where each would cost several.
const COPIED_BYTES: usize = 2 << 10;
/// Bytes read at once: a backup says little.
const READ_BYTES: usize = 1024;

/// What a link allows.
#[derive(Clone, Copy, Debug)]
pub struct LinkOptions {
    /// Bytes that wait for the socket; above, submissions are refused as full.
    pub unsent_bytes: usize,
    /// Submissions that are not completed.
    pub submissions: usize,
    /// For connecting, and for a welcome: the backup must first be done with an earlier connection.
    pub connect_timeout: Duration,
    /// For the next acknowledgement while one is due.
    pub stall_timeout: Duration,
    /// For the backup's system to take what was sent, which it does at once whatever its process does: the
    /// cable is cut, or the machine has no power. Whole milliseconds.
    pub silent_timeout: Duration,
}

impl LinkOptions {
    pub(super) fn patience(&self) -> Patience {
        Patience {
            quiet: self.stall_timeout,
            silent: Some(self.silent_timeout),
        }
    }
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            unsent_bytes: 64 << 20,
            submissions: 4096,
            connect_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(10),
            silent_timeout: Duration::from_secs(1),
        }
    }
}

/// A data connection to one backup.
#[derive(Debug)]
pub(super) struct TcpLink {
    backup: BrokerId,
    stream: Stream,
    options: LinkOptions,
    unsent: VecDeque<Bytes>,
    /// Heads, and small writes behind theirs, before they are unsent; memory that is used again.
    gathered: BytesMut,
    unsent_bytes: usize,
    under_way: UnderWay,
    /// Writes that the backup says are placed.
    placed: u64,
    unread: BytesMut,
    failed: Option<LinkError>,
}

impl TcpLink {
    pub(super) fn new(backup: BrokerId, stream: Stream, options: LinkOptions) -> Self {
        Self {
            backup,
            stream,
            options,
            unsent: VecDeque::new(),
            gathered: BytesMut::new(),
            unsent_bytes: 0,
            under_way: UnderWay::new(options.stall_timeout),
            placed: 0,
            unread: BytesMut::with_capacity(READ_BYTES),
            failed: None,
        }
    }

    fn fail(&mut self, error: LinkError) -> LinkError {
        self.unsent.clear();
        self.unsent_bytes = 0;
        self.failed.get_or_insert(error).clone()
    }

    fn broken(&mut self, reason: impl ToString) -> LinkError {
        let backup = self.backup;
        let reason = reason.to_string();
        self.fail(LinkError::Broken { backup, reason })
    }

    /// Gives the socket what it takes without waiting.
    fn send(&mut self) -> Result<(), LinkError> {
        while !self.unsent.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut count = 0;
            for (slice, bytes) in slices.iter_mut().zip(&self.unsent) {
                *slice = IoSlice::new(bytes);
                count += 1;
            }
            match self.stream.try_write_vectored(&slices[..count]) {
                Ok(sent) => self.sent(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The backup may have said why before it closed.
                Err(error) => {
                    self.listen()?;
                    return Err(self.broken(error));
                }
            }
        }
        Ok(())
    }

    fn sent(&mut self, mut sent: usize) {
        self.unsent_bytes -= sent;
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

    /// Reads what the backup has said.
    fn listen(&mut self) -> Result<(), LinkError> {
        loop {
            match self.stream.try_read_behind(&mut self.unread, READ_BYTES) {
                Ok(0) => return Err(self.broken("the replica store closed the connection")),
                Ok(_) => self.understand()?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(error)),
            }
        }
    }

    fn understand(&mut self) -> Result<(), LinkError> {
        while let Some(word) = self.unread.first_chunk::<WORD_BYTES>() {
            match Word::decode(word) {
                Some(Word::Done(placed))
                    if placed >= self.placed && placed <= self.under_way.writes() =>
                {
                    self.placed = placed;
                    self.under_way.heard();
                    self.unread.advance(WORD_BYTES);
                }
                Some(Word::Farewell(_, _, text)) if self.unread.len() < WORD_BYTES + text => {
                    return Ok(());
                }
                Some(Word::Farewell(cause, buffer, text)) => {
                    let text = &self.unread[WORD_BYTES..WORD_BYTES + text];
                    let reason = String::from_utf8_lossy(text).into_owned();
                    let error = farewell(self.backup, cause, buffer, reason);
                    return Err(self.fail(error));
                }
                Some(_) | None => {
                    return Err(self.broken("the replica store's answer makes no sense"));
                }
            }
        }
        Ok(())
    }

    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Result<(), LinkError> {
        if self.under_way.is_empty() {
            return Ok(());
        }
        let patience = self.options.stall_timeout;
        if self.under_way.is_overdue(cx, patience) {
            let waited = patience.as_secs_f32();
            return Err(self.broken(format!("nothing was heard for {waited} s")));
        }
        Ok(())
    }

    fn drive(&mut self, cx: &mut Context<'_>) -> Result<(), LinkError> {
        loop {
            self.send()?;
            // What TLS keeps has still to reach the socket.
            let kept = match self.stream.try_flush() {
                Ok(kept) => kept,
                Err(error) => {
                    self.listen()?;
                    return Err(self.broken(error));
                }
            };
            if self.unsent.is_empty() && kept == 0 {
                break;
            }
            match self.stream.poll_writable(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Err(self.broken(error)),
                Poll::Pending => break,
            }
        }
        loop {
            self.listen()?;
            match self.stream.poll_readable(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Err(self.broken(error)),
                Poll::Pending => return self.poll_alarm(cx),
            }
        }
    }
}

impl Link for TcpLink {
    fn submit(&mut self, writes: Vec<Write>) -> Result<u64, LinkError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let full = self.unsent_bytes >= self.options.unsent_bytes
            || self.under_way.len() >= self.options.submissions;
        if full {
            return Err(LinkError::Full(self.backup));
        }
        let mut copied = 0;
        for write in &writes {
            let len = write.len();
            if len > u64::from(u32::MAX) {
                let backup = self.backup;
                let reason = format!("{len} bytes do not fit one write");
                return Err(LinkError::Refused {
                    backup,
                    buffer: Some(write.buffer),
                    reason,
                });
            }
            copied += WRITE_BYTES;
            if len as usize <= COPIED_BYTES {
                copied += len as usize;
            }
        }
        self.gathered.reserve(copied);
        let mut handed_over = 0;
        let last = writes.iter().rposition(|write| !write.is_empty());
        for (index, write) in writes.into_iter().enumerate() {
            let len = write.len();
            if len == 0 {
                continue;
            }
            let head = WriteHead {
                buffer: write.buffer,
                offset: write.offset,
                len: len as u32,
                // What is told of the others would complete nothing.
                signalled: Some(index) == last,
            };
            handed_over += 1;
            self.unsent_bytes += WRITE_BYTES + len as usize;
            self.gathered.extend_from_slice(&head.encode());
            if len as usize <= COPIED_BYTES {
                for part in &write.parts {
                    self.gathered.extend_from_slice(part);
                }
                continue;
            }
            self.unsent.push_back(self.gathered.split().freeze());
            let parts = write.parts.into_iter();
            self.unsent.extend(parts.filter(|part| !part.is_empty()));
        }
        if !self.gathered.is_empty() {
            self.unsent.push_back(self.gathered.split().freeze());
        }
        let number = self.under_way.submit(handed_over);
        // An error is told by the next poll, with the number it is about.
        let _ = self.send();
        Ok(number)
    }

    fn poll_completed(&mut self, cx: &mut Context<'_>) -> Poll<Result<u64, LinkError>> {
        if self.failed.is_none() {
            let _ = self.drive(cx);
        }
        let (placed, failed) = (self.placed, self.failed.as_ref());
        self.under_way.poll_completed(cx, placed, failed)
    }
}

pub(super) fn farewell(
    backup: BrokerId,
    cause: Cause,
    buffer: BufferKey,
    reason: String,
) -> LinkError {
    match cause {
        Cause::OtherProcess => LinkError::OtherProcess(backup),
        Cause::Refused => LinkError::Refused {
            backup,
            buffer: Some(buffer),
            reason,
        },
        Cause::Malformed | Cause::Ending => LinkError::Broken { backup, reason },
    }
}
