//! Functions of libc that change names and lengths of files: what they change is kept until it is flushed. And that list
//! names, which come in their order: another file system has another, and so has another disk.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use libc::{DIR, dirent64};

use super::contents::Changed;
use super::real;
use super::unflushed::{Unflushed, path_of};
use super::world::{me, world};

/// What is not flushed yet, in runs whose machines lose it.
pub(super) fn unflushed() -> Option<&'static mut Unflushed> {
    match me() {
        0 => None,
        _ => world().unflushed.as_mut(),
    }
}

/// # Safety
/// `path` is a text that ends.
pub(super) unsafe fn path<'a>(path: *const c_char) -> &'a Path {
    // SAFETY: as the caller promises.
    Path::new(OsStr::from_bytes(
        unsafe { CStr::from_ptr(path) }.to_bytes(),
    ))
}

fn remove(name: &Path, remove: impl FnOnce() -> c_int) -> c_int {
    let saved = unflushed().and_then(|unflushed| unflushed.saves(name));
    let done = remove();
    if let Some(unflushed) = unflushed() {
        match done {
            0 => unflushed.removed(name, saved),
            _ => unflushed.stays(saved),
        }
    }
    done
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unlink(name: *const c_char) -> c_int {
    // SAFETY: passed on.
    remove(unsafe { path(name) }, || unsafe { real::unlink(name) })
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rmdir(name: *const c_char) -> c_int {
    // SAFETY: passed on.
    remove(unsafe { path(name) }, || unsafe { real::rmdir(name) })
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unlinkat(dir: c_int, name: *const c_char, flags: c_int) -> c_int {
    // SAFETY: libc's callers give a text that ends.
    let within = unsafe { path(name) };
    let above = match dir {
        _ if unflushed().is_none() => PathBuf::new(),
        libc::AT_FDCWD => PathBuf::new(),
        dir => path_of(dir),
    };
    remove(&above.join(within), || {
        // SAFETY: passed on.
        unsafe { real::unlinkat(dir, name, flags) }
    })
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mkdir(name: *const c_char, mode: libc::mode_t) -> c_int {
    // SAFETY: passed on.
    let done = unsafe { real::mkdir(name, mode) };
    if let Some(unflushed) = unflushed().filter(|_| done == 0) {
        // SAFETY: libc's callers give a text that ends.
        unflushed.made(unsafe { path(name) });
    }
    done
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: libc's callers give texts that end.
    let (before, after) = unsafe { (path(from), path(to)) };
    let replaced = unflushed().and_then(|unflushed| unflushed.saves(after));
    // SAFETY: passed on.
    let done = unsafe { real::rename(from, to) };
    if let Some(unflushed) = unflushed() {
        match done {
            0 => unflushed.renamed(before, after, replaced),
            _ => unflushed.stays(replaced),
        }
    }
    done
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ftruncate64(fd: c_int, length: i64) -> c_int {
    if let Some(unflushed) = unflushed() {
        unflushed.changes(fd, Changed::Cut(length.max(0) as u64));
    }
    // SAFETY: passed on.
    unsafe { real::ftruncate64(fd, length) }
}

/// Names of open directories that were not handed out yet.
#[derive(Default)]
pub(super) struct Listings(BTreeMap<usize, Listing>);

struct Listing {
    left: std::vec::IntoIter<Box<dirent64>>,
    /// What the caller looks at until it asks again.
    told: Option<Box<dirent64>>,
}

impl Listing {
    /// # Safety
    /// `dir` is open.
    unsafe fn of(dir: *mut DIR) -> Self {
        let mut entries = Vec::new();
        // SAFETY: as the caller promises; an entry is valid until the next is asked for.
        while let Some(entry) = unsafe { real::readdir64(dir).as_ref() } {
            entries.push(Box::new(*entry));
        }
        // SAFETY: names end with a zero.
        let name = |entry: &dirent64| unsafe { CStr::from_ptr(entry.d_name.as_ptr()) }.to_owned();
        entries.sort_by_cached_key(|entry| name(entry));
        Self {
            left: entries.into_iter(),
            told: None,
        }
    }
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readdir64(dir: *mut DIR) -> *mut dirent64 {
    if me() == 0 {
        // SAFETY: passed on.
        return unsafe { real::readdir64(dir) };
    }
    let listings = &mut world().listings.0;
    let listing = listings
        .entry(dir as usize)
        // SAFETY: libc's callers give one that is open.
        .or_insert_with(|| unsafe { Listing::of(dir) });
    listing.told = listing.left.next();
    match &mut listing.told {
        Some(entry) => &raw mut **entry,
        None => std::ptr::null_mut(),
    }
}

/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closedir(dir: *mut DIR) -> c_int {
    if me() != 0 {
        world().listings.0.remove(&(dir as usize));
    }
    // SAFETY: passed on.
    unsafe { real::closedir(dir) }
}
