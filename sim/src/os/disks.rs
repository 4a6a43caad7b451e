//! Functions of libc for what is on disks. Disks take their time, and some of them are full or fail.

use std::ffi::{CStr, OsStr, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use libc::ssize_t;

use super::calls::sleep_until;
use super::contents::Changed;
use super::names::{self, unflushed};
use super::real::{self, fail};
use super::unflushed::{bytes_of, machine_of, metadata, path_of};
use super::world::{DiskTrouble, me, world};

/// Longest flush of a file.
const FLUSH: u64 = 2_000;
fn simulated() -> bool {
    me() != 0
}

/// The trouble of the disk of the machine that runs.
fn trouble_here() -> DiskTrouble {
    let world = world();
    let here = world.here();
    world.node(here).trouble
}

pub(super) fn is_on_disk(path: &Path) -> bool {
    machine_of(path).is_some()
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
    ($($name:ident($($arg:ident: $ty:ty),*) of $bytes:expr;)+) => { $(
        /// # Safety
        /// As of libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int $(, $arg: $ty)*, offset: i64) -> ssize_t {
            if simulated() && let Some(error) = about_to_write(fd) {
                return fail(error) as ssize_t;
            }
            writes(fd, offset.max(0) as u64, || $bytes);
            // SAFETY: passed on.
            unsafe { real::$name(fd $(, $arg)*, offset) }
        }
    )+ };
}

writes! {
    pwrite64(bytes: *const c_void, len: usize) of len as u64;
    pwritev64(parts: *const libc::iovec, count: c_int) of unsafe {
        // SAFETY: libc's callers give as many parts as they say.
        bytes_of(parts, count)
    };
}

/// What maps a file hands to a disk so, and takes no time.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite(
    fd: c_int,
    bytes: *const c_void,
    len: usize,
    offset: i64,
) -> ssize_t {
    writes(fd, offset.max(0) as u64, || len as u64);
    // SAFETY: passed on.
    unsafe { real::pwrite(fd, bytes, len, offset) }
}

/// So many bytes of a file are about to be written.
fn writes(fd: c_int, from: u64, bytes: impl FnOnce() -> u64) {
    let around = simulated() && world().around.contains(&fd);
    if let Some(unflushed) = unflushed() {
        let to = from.saturating_add(bytes());
        unflushed.changes(fd, Changed::Written { from, to, around });
    }
}

/// Bytes are about to be written where the file's own place is.
pub(super) fn about_to_append(fd: c_int, bytes: u64) {
    if unflushed().is_none() {
        return;
    }
    // SAFETY: plain values; a file without places says so.
    let (flags, at) = unsafe {
        (
            real::fcntl(fd, libc::F_GETFL, 0),
            libc::lseek64(fd, 0, libc::SEEK_CUR),
        )
    };
    let end = || metadata(fd).map_or(0, |found| found.len());
    let at = match flags & libc::O_APPEND {
        0 => at.max(0) as u64,
        _ => end(),
    };
    writes(fd, at, || bytes);
}

/// How much a call makes durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Nothing,
    File,
    Disk,
}

fn flushed(fd: c_int, reach: Reach) -> c_int {
    let flush = unflushed().filter(|_| reach != Reach::Nothing);
    let flush = flush.and_then(|all| all.flush_begins(fd, reach == Reach::Disk));
    let here = world();
    let deadline = here.now + here.micros(50, FLUSH);
    sleep_until(deadline);
    let trouble = trouble_here();
    let fails =
        trouble.flushes > 0 && is_on_disk(&path_of(fd)) && world().dice.chance(trouble.flushes);
    if fails {
        return fail(libc::EIO);
    }
    if let (Some(unflushed), Some(flush)) = (unflushed(), flush) {
        unflushed.flushed(&flush);
    }
    0
}

macro_rules! flushes {
    ($($name:ident($($arg:ident: $ty:ty),*) reaches $reach:expr;)+) => { $(
        /// # Safety
        /// As of libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int $(, $arg: $ty)*) -> c_int {
            if !simulated() {
                // SAFETY: passed on.
                return unsafe { real::$name(fd $(, $arg)*) };
            }
            let _ = (fd, $($arg,)*);
            flushed(fd, $reach)
        }
    )+ };
}

flushes! {
    fsync() reaches Reach::File;
    fdatasync() reaches Reach::File;
    syncfs() reaches Reach::Disk;
    sync_file_range(offset: i64, len: i64, flags: c_uint) reaches Reach::Nothing;
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

/// Which file system it is, as far as programs ask and whatever the simulation is played on: ext4 on each disk, and
/// tmpfs for what machines have in memory.
fn file_system(path: &Path) -> i64 {
    match is_on_disk(path) {
        true => 0xef53,
        false => 0x0102_1994,
    }
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn statfs64(path: *const libc::c_char, found: *mut libc::statfs64) -> c_int {
    // SAFETY: passed on.
    let error = unsafe { real::statfs64(path, found) };
    if error == 0 && simulated() {
        // SAFETY: libc's callers give a text that ends, and the rest was just filled in.
        unsafe { (*found).f_type = file_system(names::path(path)) };
    }
    error
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstatfs64(fd: c_int, found: *mut libc::statfs64) -> c_int {
    // SAFETY: passed on.
    let error = unsafe { real::fstatfs64(fd, found) };
    if error == 0 && simulated() {
        // SAFETY: it was just filled in.
        unsafe { (*found).f_type = file_system(&path_of(fd)) };
    }
    error
}

/// Tells of a file that is written around the page cache how.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn statx(
    dir: c_int,
    path: *const libc::c_char,
    flags: c_int,
    mask: c_uint,
    found: *mut libc::statx,
) -> c_int {
    // SAFETY: passed on.
    let error = unsafe { real::statx(dir, path, flags, mask, found) };
    if error == 0
        && mask & libc::STATX_DIOALIGN != 0
        && simulated()
        && world().around.contains(&dir)
    {
        // SAFETY: it was just filled in.
        let found = unsafe { &mut *found };
        found.stx_mask |= libc::STATX_DIOALIGN;
        (found.stx_dio_mem_align, found.stx_dio_offset_align) = (512, 512);
    }
    error
}
