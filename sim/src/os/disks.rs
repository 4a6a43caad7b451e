//! Functions of libc for what is on disks. Disks take their time, and some of them are full or fail.

use std::ffi::{CStr, OsStr, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use libc::ssize_t;

use super::calls::sleep_until;
use super::real::{self, fail};
use super::world::{DiskTrouble, me, world};

/// Longest flush of a file.
const FLUSH: u64 = 2_000;
/// What a machine keeps on its disk lies below a directory of this name. The rest is in its memory.
const ON_DISK: &str = "data";

fn simulated() -> bool {
    me() != 0
}

/// The trouble of the disk of the machine that runs.
fn trouble_here() -> DiskTrouble {
    let world = world();
    let here = world.here();
    world.node(here).trouble
}

/// `…/b2/data/…` is.
fn is_on_disk(path: &Path) -> bool {
    let machine = |dir: &Path| {
        let name = dir.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix('b'));
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let mut above = path.ancestors();
    above.any(|dir| dir.ends_with(ON_DISK) && dir.parent().is_some_and(machine))
}

/// Where the file lies; nowhere if it has no name any more.
fn path_of(fd: c_int) -> PathBuf {
    std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default()
}

/// A write takes its time. Who is killed meanwhile has not written. Which error the disk answers, if it does.
fn about_to_write(fd: c_int) -> Option<c_int> {
    let world = world();
    let mood = world.disk;
    if mood.most > 0 {
        let longest = match world.dice.chance(mood.stalls) {
            true => mood.longest,
            false => mood.most,
        };
        let deadline = world.now + world.micros(0, longest);
        sleep_until(deadline);
    }
    refused(fd)
}

/// Which error the disk answers to a write of this machine to the file, if it does.
pub(super) fn refused(fd: c_int) -> Option<c_int> {
    let trouble = trouble_here();
    if !trouble.is_any() || !is_on_disk(&path_of(fd)) {
        return None;
    }
    if trouble.full {
        return Some(libc::ENOSPC);
    }
    world().dice.chance(trouble.writes).then_some(libc::EIO)
}

macro_rules! writes {
    ($($name:ident($($arg:ident: $ty:ty),*);)+) => { $(
        /// # Safety
        /// As of libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int $(, $arg: $ty)*) -> ssize_t {
            if simulated() && let Some(error) = about_to_write(fd) {
                return fail(error) as ssize_t;
            }
            // SAFETY: passed on.
            unsafe { real::$name(fd $(, $arg)*) }
        }
    )+ };
}

writes! {
    pwrite64(bytes: *const c_void, len: usize, offset: i64);
    pwritev64(parts: *const libc::iovec, count: c_int, offset: i64);
}

fn flushed(fd: c_int) -> c_int {
    let here = world();
    let deadline = here.now + here.micros(50, FLUSH);
    sleep_until(deadline);
    let trouble = trouble_here();
    let fails =
        trouble.flushes > 0 && is_on_disk(&path_of(fd)) && world().dice.chance(trouble.flushes);
    match fails {
        true => fail(libc::EIO),
        false => 0,
    }
}

macro_rules! flushes {
    ($($name:ident($($arg:ident: $ty:ty),*);)+) => { $(
        /// # Safety
        /// As of libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int $(, $arg: $ty)*) -> c_int {
            if !simulated() {
                // SAFETY: passed on.
                return unsafe { real::$name(fd $(, $arg)*) };
            }
            let _ = (fd, $($arg,)*);
            flushed(fd)
        }
    )+ };
}

flushes! {
    fsync();
    fdatasync();
    syncfs();
    sync_file_range(offset: i64, len: i64, flags: c_uint);
}

/// How much room a process of the running machine is told that there is where `path` lies.
fn tell_room(found: &mut libc::statvfs64, path: &Path) {
    (found.f_bsize, found.f_frsize) = (4096, 4096);
    (found.f_blocks, found.f_bfree, found.f_bavail) = (1 << 28, 1 << 27, 1 << 27);
    if trouble_here().full && is_on_disk(path) {
        (found.f_bfree, found.f_bavail) = (0, 0);
    }
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn statvfs64(
    path: *const libc::c_char,
    found: *mut libc::statvfs64,
) -> c_int {
    // SAFETY: passed on.
    let error = unsafe { real::statvfs64(path, found) };
    if simulated() && error == 0 {
        // SAFETY: libc's callers give a text that ends, and the rest was just filled in.
        let (path, found) = unsafe { (CStr::from_ptr(path), &mut *found) };
        tell_room(found, Path::new(OsStr::from_bytes(path.to_bytes())));
    }
    error
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstatvfs64(fd: c_int, found: *mut libc::statvfs64) -> c_int {
    // SAFETY: passed on.
    let error = unsafe { real::fstatvfs64(fd, found) };
    if simulated() && error == 0 {
        // SAFETY: it was just filled in.
        tell_room(unsafe { &mut *found }, &path_of(fd));
    }
    error
}
