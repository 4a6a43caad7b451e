//! Buffers for large frames, used again once nobody reads them any more. First touch of fresh
//! memory costs many times what receiving into warm memory does.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Sizes are rounded up to this, so that frames of nearly equal size share buffers.
const ROUND_BYTES: usize = 64 << 10;
/// Buffers looked at before a new one is made.
const LOOK_AT: usize = 8;

/// Keeps handles of the buffers it gave out; a buffer whose other handles are gone is free.
pub(super) struct BufferPool {
    given: VecDeque<Given>,
    bytes: usize,
    limit: usize,
}

struct Given {
    handle: Bytes,
    capacity: usize,
}

impl BufferPool {
    /// A pool that keeps buffers of at most `limit` bytes in all.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            given: VecDeque::new(),
            bytes: 0,
            limit,
        }
    }

    /// An empty buffer with room for `bytes` bytes.
    pub(super) fn take(&mut self, bytes: usize) -> BytesMut {
        for _ in 0..self.given.len().min(LOOK_AT) {
            let Some(candidate) = self.given.pop_front() else {
                break;
            };
            if candidate.capacity < bytes || !candidate.handle.is_unique() {
                self.given.push_back(candidate);
                continue;
            }
            self.bytes -= candidate.capacity;
            match candidate.handle.try_into_mut() {
                Ok(mut buffer) => {
                    buffer.clear();
                    return buffer;
                }
                Err(shared) => drop(shared),
            }
        }
        BytesMut::with_capacity(bytes.next_multiple_of(ROUND_BYTES))
    }

    /// Hands out a filled buffer that came from [`take`](Self::take), and remembers it.
    pub(super) fn give(&mut self, filled: BytesMut) -> Bytes {
        let capacity = filled.capacity();
        let handle = filled.freeze();
        self.bytes += capacity;
        self.given.push_back(Given {
            handle: handle.clone(),
            capacity,
        });
        while self.bytes > self.limit {
            let Some(oldest) = self.given.pop_front() else {
                break;
            };
            self.bytes -= oldest.capacity;
        }
        handle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(pool: &mut BufferPool, bytes: usize) -> Bytes {
        let mut buffer = pool.take(bytes);
        assert!(buffer.is_empty() && buffer.capacity() >= bytes);
        buffer.resize(bytes, 1);
        pool.give(buffer)
    }

    #[test]
    fn a_buffer_is_used_again_only_when_nobody_reads_it() {
        let mut pool = BufferPool::new(1 << 20);
        let first = fill(&mut pool, 100_000);
        let part = first.slice(50_000..50_010);
        let memory = first.as_ptr();
        drop(first);
        assert_ne!(fill(&mut pool, 100_000).as_ptr(), memory);
        assert_eq!(&part[..], [1; 10]);
        drop(part);
        let reused: Vec<_> = (0..2).map(|_| fill(&mut pool, 90_000)).collect();
        assert!(reused.iter().any(|buffer| buffer.as_ptr() == memory));
    }

    #[test]
    fn the_pool_keeps_no_more_than_its_limit() {
        let mut pool = BufferPool::new(1 << 20);
        for _ in 0..50 {
            fill(&mut pool, 300_000);
        }
        let held: Vec<_> = (0..50).map(|_| fill(&mut pool, 300_000)).collect();
        assert!(pool.bytes <= 1 << 20);
        drop(held);
    }
}
