//! Performing one operation through a file's own methods: what every engine can fall back to.

use std::io::{self, IoSlice};

use super::aligned::ZEROS;
use super::{Directness, Done, Op};

/// Performs `op` on the calling thread.
pub(super) fn perform(mut op: Op) -> Done {
    let result = match &mut op {
        Op::Write { file, offset, bufs } => {
            let slices: Vec<IoSlice<'_>> = bufs.iter().map(|buf| IoSlice::new(buf)).collect();
            let len = bufs.iter().map(|buf| buf.len()).sum();
            file.write_vectored_at(&slices, *offset).map(|()| len)
        }
        Op::WriteDirect {
            file,
            offset,
            buf,
            len,
        } => match checked(buf.len(), *len) {
            Ok(len) => file
                .write_vectored_at(&[IoSlice::new(&buf[..len])], *offset)
                .map(|()| len),
            Err(error) => Err(error),
        },
        Op::WriteZeros { file, offset, len } => file
            .write_vectored_at(&zero_slices(*len), *offset)
            .map(|()| *len),
        Op::Read {
            file,
            offset,
            buf,
            len,
        } => match checked(buf.len(), *len) {
            Ok(len) => file.read_at(&mut buf[..len], *offset),
            Err(error) => Err(error),
        },
        Op::SyncData { file } => file.sync_data().map(|()| 0),
        Op::SyncFileSystem { file } => file.sync_file_system().map(|()| 0),
    };
    Done::of(op, result)
}

/// The length of an operation, if its buffer has as much.
pub(super) fn checked(buffer: usize, len: usize) -> io::Result<usize> {
    if len <= buffer {
        return Ok(len);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("operation of {len} bytes has a buffer of {buffer}; give it a longer one"),
    ))
}

/// Slices of the one block of zeros that make `len` bytes.
pub(super) fn zero_slices(len: usize) -> Vec<IoSlice<'static>> {
    let whole = ZEROS.0.len();
    (0..len.div_ceil(whole))
        .map(|i| IoSlice::new(&ZEROS.0[..whole.min(len - i * whole)]))
        .collect()
}

/// Whether performing `op` waits for the device, so that several at a time are worth a thread each.
pub(super) fn waits_for_device(op: &Op) -> bool {
    match op {
        Op::Write { file, .. } | Op::WriteDirect { file, .. } | Op::WriteZeros { file, .. } => {
            file.directness() != Directness::Cached
        }
        Op::Read { .. } | Op::SyncData { .. } | Op::SyncFileSystem { .. } => true,
    }
}
