//! The receiving half: bytes to frames, without copying what is large.

use std::io::ErrorKind;
use std::sync::Arc;

use bytes::BytesMut;
use kera_protocol::frame::{Decoded, Frame, FrameError, FrameHeader, decode};

use super::Shared;
use super::pool::BufferPool;
use crate::error::ConnectionError;
use crate::stream::Stream;

/// Room that a read is given at least, for small frames.
const READ_BYTES: usize = 64 << 10;
/// Frames above this get a buffer of their own, which the socket is read into directly.
const LARGE_BYTES: usize = 32 << 10;

pub(super) struct Receiver {
    socket: Arc<Stream>,
    buffer: BytesMut,
    pool: BufferPool,
    max_frame_bytes: usize,
}

impl Receiver {
    pub(super) fn new(socket: Arc<Stream>, max_frame_bytes: usize, pool_bytes: usize) -> Self {
        Self {
            socket,
            buffer: BytesMut::with_capacity(READ_BYTES),
            pool: BufferPool::new(pool_bytes),
            max_frame_bytes,
        }
    }

    /// The next frame that has arrived whole.
    fn next_whole(&mut self) -> Result<Option<Frame>, FrameError> {
        Frame::split_from(&mut self.buffer, self.max_frame_bytes)
    }

    /// Waits for more bytes; if they are a large frame's, for all of that frame.
    async fn receive(&mut self) -> std::io::Result<Option<Frame>> {
        // What is no frame was refused by `next_whole` before.
        if let Ok(Decoded::Frame(header)) = decode(&self.buffer, self.max_frame_bytes)
            && header.total_bytes() > LARGE_BYTES
        {
            return self.receive_large(&header).await.map(Some);
        }
        if self.buffer.capacity() - self.buffer.len() < READ_BYTES / 4 {
            self.buffer.reserve(READ_BYTES);
        }
        let room = self.buffer.capacity() - self.buffer.len();
        read(&self.socket, &mut self.buffer, room).await?;
        Ok(None)
    }

    async fn receive_large(&mut self, header: &FrameHeader) -> std::io::Result<Frame> {
        let total = header.total_bytes();
        let mut own = self.pool.take(total);
        // All of the buffer belongs to this frame: otherwise the frame were whole already.
        own.extend_from_slice(&self.buffer);
        self.buffer.clear();
        while own.len() < total {
            let missing = total - own.len();
            read(&self.socket, &mut own, missing).await?;
        }
        let whole = self.pool.give(own);
        Ok(Frame::from_parts(header, &whole))
    }
}

/// Reads at least one and at most `limit` bytes.
async fn read(socket: &Stream, buffer: &mut BytesMut, limit: usize) -> std::io::Result<()> {
    loop {
        socket.readable().await?;
        match socket.try_read_behind(buffer, limit) {
            Ok(0) => {
                return Err(std::io::Error::new(
                    ErrorKind::UnexpectedEof,
                    "the broker closed it",
                ));
            }
            Ok(_) => return Ok(()),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Receives until the connection ends.
pub(super) async fn run(shared: Arc<Shared>, mut receiver: Receiver) {
    let error = loop {
        if let Err(error) = step(&shared, &mut receiver).await {
            break error;
        }
    };
    shared.fail(error);
}

async fn step(shared: &Shared, receiver: &mut Receiver) -> Result<(), ConnectionError> {
    let mut any = false;
    let outcome = hand_over(shared, receiver, &mut any);
    // Also before the end: the sink may have kept something for this.
    if any {
        drained(shared);
    }
    outcome?;
    match receiver.receive().await {
        Ok(None) => Ok(()),
        Ok(Some(frame)) => {
            let outcome = shared.dispatch(frame);
            drained(shared);
            outcome
        }
        Err(error) => Err(shared.lost(error.to_string())),
    }
}

/// Hands over all frames that have arrived whole.
fn hand_over(
    shared: &Shared,
    receiver: &mut Receiver,
    any: &mut bool,
) -> Result<(), ConnectionError> {
    let broken = |error: FrameError| shared.lost(format!("broker sent no frame: {error}"));
    while let Some(frame) = receiver.next_whole().map_err(broken)? {
        *any = true;
        shared.dispatch(frame)?;
    }
    Ok(())
}

fn drained(shared: &Shared) {
    if let Some(sink) = &shared.sink {
        sink.drained();
    }
}
