//! System calls that have no safe wrapper.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Writes a range of the page cache to the device and waits for it.
#[cfg(target_os = "linux")]
pub(super) fn write_back(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the descriptor is borrowed, so it is open; the call takes no pointers.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, flags) };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EINVAL | libc::ESPIPE | libc::EOPNOTSUPP | libc::EPERM) => Ok(()),
        _ => Err(error),
    }
}

/// Elsewhere there is no such call, and none is needed for correctness.
#[cfg(not(target_os = "linux"))]
pub(super) fn write_back(_file: BorrowedFd<'_>, _offset: u64, _len: u64) -> io::Result<()> {
    Ok(())
}
