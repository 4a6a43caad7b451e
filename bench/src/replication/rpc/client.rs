//! The primary's end: sends each write as a request and counts the answers.

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use kera_replication::ids::{BrokerId, BufferKey, ProcessId};
use kera_replication::transport::tcp::{LinkOptions, TcpTransport, WriteHead};
use kera_replication::transport::{
    CallError, Link, LinkError, Pending, Reply, Request, Transport, Write,
};
use parking_lot::RwLock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, timeout};

use super::outgoing::{Completions, Outgoing};
use super::wire::{Cause, Hello, MAX_REQUEST, Word};

/// Bytes read at once: a backup says little.
const READ_BYTES: usize = 4096;

/// Connects one broker, as a primary, with backups whose workers handle its shipments. To be used
/// within a tokio runtime.
pub struct RpcTransport {
    me: BrokerId,
    options: LinkOptions,
    /// Calls for control are the same.
    calls: TcpTransport,
    addresses: RwLock<HashMap<BrokerId, String>>,
}

impl RpcTransport {
    /// The transport of broker `me`, which knows no backups yet.
    pub fn new(me: BrokerId, options: LinkOptions) -> Self {
        Self {
            me,
            options,
            calls: TcpTransport::new(me, options),
            addresses: RwLock::default(),
        }
    }

    /// Says where a backup is to be found: HOST:PORT.
    ///
    /// # Errors
    /// `InvalidInput` if it is not HOST:PORT.
    pub fn set_address(&self, backup: BrokerId, address: &str) -> io::Result<()> {
        self.calls.set_address(backup, address)?;
        self.addresses.write().insert(backup, address.to_owned());
        Ok(())
    }
}

impl Transport for RpcTransport {
    fn connect(
        &self,
        to: BrokerId,
        process: ProcessId,
    ) -> Pending<Result<Box<dyn Link>, LinkError>> {
        let address = self.addresses.read().get(&to).cloned();
        let options = self.options;
        let hello = Hello {
            primary: self.me,
            process,
        };
        Box::pin(async move {
            let unreachable = |reason: String| LinkError::Unreachable { backup: to, reason };
            let address = address.ok_or_else(|| unreachable("its address is not known".into()))?;
            match timeout(options.connect_timeout, greet(&address, hello)).await {
                Ok(Ok((Word::Welcome, stream))) => {
                    Ok(Box::new(RpcLink::new(to, stream, options)) as Box<dyn Link>)
                }
                Ok(Ok((word, _))) => Err(ended(to, word)),
                Ok(Err(error)) => Err(unreachable(error.to_string())),
                Err(_) => Err(unreachable("no welcome in time".into())),
            }
        })
    }

    fn call(&self, to: BrokerId, request: Request) -> Pending<Result<Reply, CallError>> {
        self.calls.call(to, request)
    }
}

/// Connects, says who it is, and waits for the first word.
async fn greet(address: &str, hello: Hello) -> io::Result<(Word, TcpStream)> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    stream.write_all(&hello.encode()).await?;
    let mut heard = BytesMut::new();
    loop {
        let said = Word::decode(&heard);
        if let Some((word, _)) = said.map_err(io::Error::other)? {
            return Ok((word, stream));
        }
        if stream.read_buf(&mut heard).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// What a backup's last word means.
fn ended(backup: BrokerId, word: Word) -> LinkError {
    match word {
        Word::Farewell(Cause::OtherProcess, ..) => LinkError::OtherProcess(backup),
        Word::Farewell(Cause::Refused, buffer, reason) => LinkError::Refused {
            backup,
            buffer: Some(buffer),
            reason,
        },
        Word::Farewell(Cause::Malformed, _, reason) => LinkError::Broken { backup, reason },
        Word::Welcome | Word::Answer(_) => LinkError::Broken {
            backup,
            reason: "it said what makes no sense there".into(),
        },
    }
}

/// A data connection to one backup.
struct RpcLink {
    backup: BrokerId,
    stream: TcpStream,
    options: LinkOptions,
    outgoing: Outgoing,
    completions: Completions,
    /// Requests sent, or waiting to be.
    requests: u64,
    /// All requests up to this one are answered.
    answered: u64,
    /// Answered above that, ahead of others.
    ahead: BTreeSet<u64>,
    heard: BytesMut,
    failed: Option<LinkError>,
    /// When something was last heard, or became due.
    last: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl RpcLink {
    fn new(backup: BrokerId, stream: TcpStream, options: LinkOptions) -> Self {
        let now = Instant::now();
        Self {
            backup,
            stream,
            options,
            outgoing: Outgoing::default(),
            completions: Completions::default(),
            requests: 0,
            answered: 0,
            ahead: BTreeSet::new(),
            heard: BytesMut::with_capacity(READ_BYTES),
            failed: None,
            last: now,
            alarm: Box::pin(tokio::time::sleep_until(now + options.stall_timeout)),
        }
    }

    fn broken(&self, reason: impl ToString) -> LinkError {
        LinkError::Broken {
            backup: self.backup,
            reason: reason.to_string(),
        }
    }

    /// Reads what the backup has said.
    fn listen(&mut self) -> Result<(), LinkError> {
        loop {
            self.heard.reserve(READ_BYTES);
            match self.stream.try_read_buf(&mut self.heard) {
                Ok(0) => return Err(self.broken("the backup closed the connection")),
                Ok(_) => self.understand()?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(error)),
            }
        }
    }

    fn understand(&mut self) -> Result<(), LinkError> {
        while let Some((word, len)) = Word::decode(&self.heard).map_err(|e| self.broken(e))? {
            self.heard.advance(len);
            match word {
                Word::Answer(number) if number > self.answered && number <= self.requests => {
                    self.ahead.insert(number);
                    while self.ahead.remove(&(self.answered + 1)) {
                        self.answered += 1;
                    }
                    self.last = Instant::now();
                }
                word => return Err(ended(self.backup, word)),
            }
        }
        Ok(())
    }

    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Result<(), LinkError> {
        if self.completions.len() == 0 {
            return Ok(());
        }
        while self.alarm.as_mut().poll(cx).is_ready() {
            let due = self.last + self.options.stall_timeout;
            if Instant::now() >= due {
                return Err(self.broken("nothing was heard in time"));
            }
            self.alarm.as_mut().reset(due);
        }
        Ok(())
    }

    fn drive(&mut self, cx: &mut Context<'_>) -> Result<(), LinkError> {
        if let Err(error) = self.outgoing.drive(&self.stream, cx) {
            // The backup may have said why before it closed.
            self.listen()?;
            return Err(self.broken(error));
        }
        loop {
            self.listen()?;
            match self.stream.poll_read_ready(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Err(self.broken(error)),
                Poll::Pending => return self.poll_alarm(cx),
            }
        }
    }

    /// Sends `parts` to `offset` of a buffer, as one request or several.
    fn request(&mut self, buffer: BufferKey, mut offset: u64, parts: Vec<Bytes>) {
        let mut left: usize = parts.iter().map(Bytes::len).sum();
        let mut room = 0;
        for mut part in parts {
            while !part.is_empty() {
                if room == 0 {
                    room = left.min(MAX_REQUEST);
                    let len = room as u32;
                    let head = WriteHead {
                        buffer,
                        offset,
                        len,
                        signalled: false,
                    };
                    let head = Bytes::copy_from_slice(&head.encode());
                    self.outgoing.push(head);
                    self.requests += 1;
                    offset += u64::from(len);
                }
                let piece = part.split_to(part.len().min(room));
                room -= piece.len();
                left -= piece.len();
                self.outgoing.push(piece);
            }
        }
    }
}

impl Link for RpcLink {
    fn submit(&mut self, writes: Vec<Write>) -> Result<u64, LinkError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let full = self.outgoing.len() >= self.options.unsent_bytes
            || self.completions.len() >= self.options.submissions;
        if full {
            return Err(LinkError::Full(self.backup));
        }
        if self.completions.len() == 0 {
            self.last = Instant::now();
        }
        for write in writes {
            self.request(write.buffer, write.offset, write.parts);
        }
        let number = self.completions.add(self.requests);
        // An error is told by the next poll.
        let _ = self.outgoing.send(&self.stream);
        Ok(number)
    }

    fn poll_completed(&mut self, cx: &mut Context<'_>) -> Poll<Result<u64, LinkError>> {
        if self.failed.is_none()
            && let Err(error) = self.drive(cx)
        {
            self.outgoing.clear();
            self.failed = Some(error);
        }
        // What was answered before the end is placed.
        if let Some(number) = self.completions.take(self.answered) {
            if self.failed.is_some() {
                cx.waker().wake_by_ref();
            }
            return Poll::Ready(Ok(number));
        }
        match &self.failed {
            Some(error) => Poll::Ready(Err(error.clone())),
            None => Poll::Pending,
        }
    }
}
