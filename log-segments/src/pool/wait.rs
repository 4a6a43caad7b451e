//! Waiting for a chunk in turn.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::{ChunkPool, ChunkWriter};

/// The future of [`ChunkPool::take`]: resolves to a chunk once one is free.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Take {
    pool: ChunkPool,
    ticket: Option<u64>,
}

impl Take {
    pub(super) fn new(pool: ChunkPool) -> Self {
        Self { pool, ticket: None }
    }
}

impl Future for Take {
    type Output = ChunkWriter;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<ChunkWriter> {
        let this = self.get_mut();
        match this
            .pool
            .shared
            .free
            .take_or_queue(&mut this.ticket, context.waker())
        {
            Some(index) => Poll::Ready(ChunkWriter::new(this.pool.shared.clone(), index)),
            None => Poll::Pending,
        }
    }
}

impl Drop for Take {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.pool.shared.free.leave(ticket);
        }
    }
}

impl std::fmt::Debug for Take {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Take")
            .field("waiting", &self.ticket.is_some())
            .finish()
    }
}
