//! How far a copy's bytes are whole: no length is believed, the bytes say where they end.

use std::io;

use bytes::Bytes;
use kera_log_segments::io::ReadAt;
use kera_log_segments::scan::{ScanSpec, scan};
use kera_protocol::ids::{Incarnation, Ordinal};

use crate::faults::Faults;
use crate::ids::CopyId;

/// What a copy's bytes prove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// They are whole up to this address.
    pub length: u64,
    /// Ordinal of the group's first record.
    pub first_ordinal: Ordinal,
    /// One above the ordinal of the last whole batch's last record.
    pub end_ordinal: Ordinal,
    /// Batches found.
    pub batches: u64,
}

/// Walks a copy from its first byte; `None` if its first header or its lane snapshot is not whole.
/// Every checksum is checked: what one-sided writes left is known by nothing else.
///
/// # Errors
/// Whatever reading answers.
pub fn scan_copy(
    file: &dyn ReadAt,
    copy: CopyId,
    faults: Faults,
) -> io::Result<Option<Certificate>> {
    let spec = ScanSpec {
        lane: None,
        group: Some(copy.group),
        epoch: Some(copy.epoch),
        // A length that is given is believed, and headers only are walked.
        limit: faults.scan_trusts_length().then_some(u64::MAX),
        incarnation: Incarnation::default(),
        verify_all: !faults.scan_trusts_length(),
    };
    match scan(file, &spec, |_, _| {}) {
        Ok(scanned)
            if scanned.header.stream == copy.streamlet.stream
                && scanned.header.streamlet == copy.streamlet.streamlet
                && scanned.header.generation == copy.generation =>
        {
            Ok(Some(Certificate {
                length: scanned.end.address,
                first_ordinal: scanned.header.first_ordinal,
                end_ordinal: scanned.end.ordinal,
                batches: scanned.batches,
            }))
        }
        Err(kera_log_segments::scan::ScanError::Io(error)) => Err(error),
        Ok(_) | Err(_) => Ok(None),
    }
}

/// Bytes that were fetched, to be scanned as the file they came from.
#[derive(Debug)]
pub struct FetchedFile(pub Bytes);

impl ReadAt for FetchedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(self.0.len());
        let len = buf.len().min(self.0.len() - from);
        buf[..len].copy_from_slice(&self.0[from..from + len]);
        Ok(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }
}
