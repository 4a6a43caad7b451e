//! Errors that are those of one file.

use std::io::{Error, ErrorKind};

/// `EBADMSG`: a checksum of the file system is wrong, as ext4 finds in an inode.
const WRONG_CHECKSUM: i32 = 74;
/// `EUCLEAN`: the file system's own structure is wrong there.
const NEEDS_CLEANING: i32 = 117;
/// `ELOOP`: links that lead to themselves stand under the name.
const LOOP: i32 = 40;

/// Whether the error is of what stands under a name: the file system cannot make it out, or it is no file. Asking again
/// brings the same, and all else can be used. `EIO` does not count: the whole disk may be away for a moment.
pub fn is_broken_file(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::IsADirectory | ErrorKind::NotADirectory
    ) || matches!(
        error.raw_os_error(),
        Some(WRONG_CHECKSUM | NEEDS_CLEANING | LOOP)
    )
}
