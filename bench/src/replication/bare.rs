//! The floor: a backup that receives the same bytes in the same pieces and does nothing with them.
//!
//! The primary is the same, and so is the load; what it is told of buffers is made up on its own
//! side. The other end is one thread that reads into memory of a fixed size, round and round, and
//! says how many bytes it has read. Nothing that keeps copies can take less.

use std::collections::HashMap;
use std::io::{self, Read, Write as _};
use std::net::TcpListener;
use std::task::{Context, Poll};

use anyhow::Result;
use bytes::{Buf, Bytes, BytesMut};
use kera_replication::ids::{BrokerId, BufferKey, Incarnation, ProcessId};
use kera_replication::transport::{
    Buffer, CallError, Description, Link, LinkError, Opened, Pending, Reply, Request, Transport,
    Write,
};
use tokio::net::TcpStream;

use super::rpc::{Completions, Outgoing};

/// Read at once.
const READ_BYTES: usize = 256 << 10;
/// After so many bytes the sender hears of them, however many more there are to be read.
const BYTES_PER_WORD: usize = 512 << 10;
/// Stands for what a write's head takes.
const HEAD: [u8; 24] = [0; 24];
/// The one process there is.
const PROCESS: ProcessId = ProcessId(1);

/// Receives from each connection into `memory` bytes, until the process ends.
pub fn receive(listener: &TcpListener, memory: usize) -> Result<()> {
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        std::thread::spawn(move || {
            // Touched here, not in the middle of a measurement.
            let mut memory = vec![1; memory.max(READ_BYTES)];
            let (mut at, mut total, mut untold) = (0, 0u64, 0);
            loop {
                if at + READ_BYTES > memory.len() {
                    at = 0;
                }
                let read = match stream.read(&mut memory[at..at + READ_BYTES]) {
                    Ok(read @ 1..) => read,
                    _ => return,
                };
                at += read;
                total += read as u64;
                untold += read;
                if read < READ_BYTES || untold >= BYTES_PER_WORD {
                    if stream.write_all(&total.to_le_bytes()).is_err() {
                        return;
                    }
                    untold = 0;
                }
            }
        });
    }
}

/// Connects a primary with receivers that keep nothing.
pub struct BareTransport {
    addresses: HashMap<BrokerId, String>,
}

impl BareTransport {
    /// The receivers and where they are.
    pub fn new(addresses: HashMap<BrokerId, String>) -> Self {
        Self { addresses }
    }
}

impl Transport for BareTransport {
    fn connect(&self, to: BrokerId, _: ProcessId) -> Pending<Result<Box<dyn Link>, LinkError>> {
        let address = self.addresses.get(&to).cloned().unwrap_or_default();
        Box::pin(async move {
            let connected = async {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                io::Result::Ok(stream)
            };
            let stream = connected.await.map_err(|error| LinkError::Unreachable {
                backup: to,
                reason: error.to_string(),
            })?;
            Ok(Box::new(BareLink {
                backup: to,
                stream,
                outgoing: Outgoing::default(),
                completions: Completions::default(),
                sent: 0,
                received: 0,
                heard: BytesMut::new(),
            }) as Box<dyn Link>)
        })
    }

    fn call(&self, _: BrokerId, request: Request) -> Pending<Result<Reply, CallError>> {
        let reply = match request {
            Request::Describe => Reply::Description(Description {
                incarnation: Incarnation::default(),
                process: PROCESS,
                free_bytes: u64::MAX,
            }),
            Request::Open {
                address,
                segment_size,
                ..
            } => Reply::Opened(Opened {
                buffers: vec![Buffer {
                    key: BufferKey(rand::random()),
                    address,
                    bytes: (u64::from(segment_size) - address % u64::from(segment_size)) as u32,
                }],
                process: PROCESS,
            }),
            Request::Flush { length, .. } => Reply::Flushed {
                length,
                end_ordinal: 0,
            },
            Request::Seal { .. } => Reply::Sealed(Vec::new()),
            Request::Read { .. } => Reply::Bytes(Bytes::new()),
            Request::List { .. } => Reply::Copies(Vec::new()),
            _ => Reply::Done,
        };
        Box::pin(std::future::ready(Ok(reply)))
    }
}

struct BareLink {
    backup: BrokerId,
    stream: TcpStream,
    outgoing: Outgoing,
    completions: Completions,
    /// Bytes, heads included.
    sent: u64,
    received: u64,
    heard: BytesMut,
}

impl BareLink {
    fn listen(&mut self) -> io::Result<()> {
        loop {
            self.heard.reserve(1024);
            match self.stream.try_read_buf(&mut self.heard) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
            while let Some(total) = self.heard.first_chunk() {
                self.received = u64::from_le_bytes(*total);
                self.heard.advance(8);
            }
        }
    }

    fn drive(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.outgoing.drive(&self.stream, cx)?;
        loop {
            self.listen()?;
            match self.stream.poll_read_ready(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => return Ok(()),
            }
        }
    }
}

impl Link for BareLink {
    fn submit(&mut self, writes: Vec<Write>) -> Result<u64, LinkError> {
        for write in writes {
            self.sent += HEAD.len() as u64 + write.len();
            self.outgoing.push(Bytes::from_static(&HEAD));
            for part in write.parts {
                self.outgoing.push(part);
            }
        }
        let number = self.completions.add(self.sent);
        let _ = self.outgoing.send(&self.stream);
        Ok(number)
    }

    fn poll_completed(&mut self, cx: &mut Context<'_>) -> Poll<Result<u64, LinkError>> {
        let driven = self.drive(cx);
        if let Some(number) = self.completions.take(self.received) {
            return Poll::Ready(Ok(number));
        }
        match driven {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(LinkError::Broken {
                backup: self.backup,
                reason: error.to_string(),
            })),
        }
    }
}
