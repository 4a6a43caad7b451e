//! The allocator's memory, beside the pool's.
#![allow(unsafe_code)]

/// Gives pages that the allocator keeps free back to the operating system. It holds the allocator's locks
/// for milliseconds: call it seldom, and only after much was freed.
pub fn give_back() {
    // SAFETY: it takes no pointer, and only drops pages that hold no allocation.
    #[cfg(all(target_env = "gnu", not(miri)))]
    unsafe {
        libc::malloc_trim(0);
    }
}
