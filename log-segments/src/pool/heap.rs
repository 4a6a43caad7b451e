//! The allocator's memory, beside the pool's.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

/// Freed bytes from which on it pays to give them back.
const MUCH_FREED: u64 = 1 << 20;

/// Whether so much was freed that it is to be [given back](give_back); if so, `freed` begins anew. Count bytes once
/// they are free: what is counted before this returns is given back by the call that follows.
pub fn is_due(freed: &AtomicU64) -> bool {
    let is_due = freed.load(Ordering::Relaxed) >= MUCH_FREED;
    if is_due {
        freed.store(0, Ordering::Relaxed);
    }
    is_due
}

/// Gives pages that the allocator keeps free back to the operating system. It holds the allocator's locks
/// for milliseconds: call it seldom, and only after much was freed.
pub fn give_back() {
    // SAFETY: it takes no pointer, and only drops pages that hold no allocation.
    #[cfg(all(target_env = "gnu", not(miri)))]
    unsafe {
        libc::malloc_trim(0);
    }
}
