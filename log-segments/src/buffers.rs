//! Memory that a file's bytes are read into, used again while it is warm.
//!
//! A buffer fresh from the allocator costs a page fault for every page and is filled with zeros
//! before the bytes come: together a sixth of what serving a consumer from the page cache takes.

use bytes::Bytes;
use parking_lot::Mutex;

/// Shorter reads are not worth keeping a buffer for.
const LEAST: usize = 16 * 1024;
/// Longer ones are so rare that their memory is better given back.
const MOST: usize = 2 * 1024 * 1024;
/// Bytes kept for all readers together.
const KEPT: usize = 16 * 1024 * 1024;

/// Those of this process.
static SPARE: Pool = Mutex::new(Spare::new());

type Pool = Mutex<Spare>;

/// Buffers that nobody uses, the last used on top.
#[derive(Debug)]
struct Spare {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
    /// Fewest there were since [`give_back`] last looked: so many nobody needed.
    least: usize,
}

impl Spare {
    const fn new() -> Self {
        Self {
            buffers: Vec::new(),
            bytes: 0,
            least: usize::MAX,
        }
    }

    fn pop(&mut self, len: usize) -> Option<Vec<u8>> {
        let at = self
            .buffers
            .iter()
            .rposition(|buffer| buffer.len() == len)?;
        let buffer = self.buffers.remove(at);
        self.bytes -= buffer.len();
        self.least = self.least.min(self.buffers.len());
        Some(buffer)
    }
}

/// A buffer to read into. Dropped, its memory waits for the next read.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Vec<u8>,
    len: usize,
    home: &'static Pool,
}

impl Buffer {
    /// Of `len` bytes; what stands in them is anything.
    pub(crate) fn take(len: usize) -> Self {
        Self::take_from(&SPARE, len)
    }

    fn take_from(home: &'static Pool, len: usize) -> Self {
        let memory = if (LEAST..=MOST).contains(&len) {
            let whole = len.next_power_of_two();
            let spare = home.lock().pop(whole);
            spare.unwrap_or_else(|| vec![0; whole])
        } else {
            vec![0; len]
        };
        Self { memory, len, home }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len]
    }

    /// The first `len` of its bytes, which keep the buffer until they are dropped.
    pub(crate) fn into_bytes(self, len: usize) -> Bytes {
        Bytes::from_owner(self).slice(..len)
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        if !(LEAST..=MOST).contains(&memory.len()) {
            return;
        }
        let mut spare = self.home.lock();
        if spare.bytes + memory.len() <= KEPT {
            spare.bytes += memory.len();
            spare.buffers.push(memory);
        }
    }
}

/// Gives the system back the buffers that no read has needed since the last call; to be called every
/// few seconds.
pub fn give_back() {
    give_back_of(&SPARE);
}

fn give_back_of(pool: &Pool) {
    let mut spare = pool.lock();
    // The longest unused lie at the bottom.
    let count = spare.least.min(spare.buffers.len());
    let unused: Vec<Vec<u8>> = spare.buffers.drain(..count).collect();
    spare.bytes -= unused.iter().map(Vec::len).sum::<usize>();
    spare.least = spare.buffers.len();
    // To the system without the lock, which readers wait for.
    drop(spare);
    drop(unused);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> &'static Pool {
        Box::leak(Box::new(Mutex::new(Spare::new())))
    }

    #[test]
    fn memory_is_used_again_the_last_first() {
        let pool = pool();
        let mut buffer = Buffer::take_from(pool, 100_000);
        assert_eq!(buffer.len(), 100_000);
        buffer.bytes_mut().fill(7);
        let at = buffer.as_ptr();
        let bytes = buffer.into_bytes(10);
        assert_eq!(&bytes[..], &[7; 10]);
        let other = Buffer::take_from(pool, 100_000);
        assert_ne!(other.as_ptr(), at, "it is in use");
        drop(other);
        drop(bytes);
        assert_eq!(Buffer::take_from(pool, 131_072).as_ptr(), at);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let pool = pool();
        let many: Vec<_> = (0..64).map(|_| Buffer::take_from(pool, MOST)).collect();
        drop(many);
        assert_eq!(pool.lock().bytes, KEPT);
        let pool = self::pool();
        drop(Buffer::take_from(pool, LEAST - 1));
        drop(Buffer::take_from(pool, MOST + 1));
        assert!(pool.lock().buffers.is_empty());
    }

    #[test]
    fn what_nobody_needs_is_given_back() {
        let pool = pool();
        let two = [0; 2].map(|_| Buffer::take_from(pool, LEAST));
        drop(two);
        give_back_of(pool);
        // One is needed now and then.
        drop(Buffer::take_from(pool, LEAST));
        give_back_of(pool);
        assert_eq!(pool.lock().buffers.len(), 1);
        give_back_of(pool);
        let spare = pool.lock();
        assert_eq!((spare.buffers.len(), spare.bytes), (0, 0));
    }
}
