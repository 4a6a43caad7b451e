//! Timers that are files.

use super::connections::Kind;
use super::real::{self, file};
use super::world::World;

/// # Safety
/// `fd` is a count.
pub(super) unsafe fn forget(fd: i32, count: &mut [u8; 8]) {
    let mut polled = [file(fd, libc::POLLIN)];
    // SAFETY: one entry, and room for a count.
    unsafe {
        if real::poll(polled.as_mut_ptr(), 1, 0) > 0 {
            real::read(fd, count.as_mut_ptr().cast(), 8);
        }
    }
}

/// A timer has run out, if it was not set anew.
pub(super) fn run_out(world: &mut World, fd: i32, set: u64) {
    if let Some(Kind::Timer(now)) = world.kind(fd)
        && now == set
    {
        // SAFETY: it is a count, to which eight bytes are written.
        unsafe { real::write(fd, 1_u64.to_ne_bytes().as_ptr().cast(), 8) };
        world.stirred = true;
    }
}
