//! A closed group's bytes looked at again, a stretch at a time: whether every batch is whole, and a
//! digest by which copies of one group are compared.
//!
//! The digest is a chain over the checksums of all that counts: the first header, the lane snapshot,
//! every batch and every further header. What lies between the last batch of a segment and the next
//! segment counts for nothing and is left out. It does not depend on where stretches end.

use kera_protocol::batch::{HEADER_BYTES, crc32c};
use kera_protocol::ids::{Epoch, GroupId, StreamId, StreamletId};

use crate::io::ReadAt;
use crate::layout::SEGMENT_HEADER_BYTES;
use crate::scan::{
    BlockReader, Next, ScanError, ScanSpec, Scanned, check_batch, head, next_segment,
};
use crate::window::Place;

/// Whose bytes they must be, and where they end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckSpec {
    /// The stream.
    pub stream: StreamId,
    /// The streamlet.
    pub streamlet: StreamletId,
    /// The group.
    pub group: GroupId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Its file generation.
    pub generation: u32,
    /// Where its close says that it ends.
    pub end: Place,
}

/// How far a check has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Up to here everything is whole. The default is the group's begin.
    pub place: Place,
    /// The digest of what lies below.
    pub digest: u64,
}

/// A stretch that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// How far the bytes are whole.
    pub to: Progress,
    /// What is wrong there, for people; `None` as long as nothing is.
    pub wrong: Option<String>,
}

/// Checks about `bytes` bytes from `from` on, at least one batch; asked again from where it came to
/// until that is the group's end.
///
/// # Errors
/// The store's, if it cannot be read; bytes that are not the group's are no error but what is wrong.
pub fn check(
    file: &dyn ReadAt,
    spec: &CheckSpec,
    from: Progress,
    bytes: u64,
) -> std::io::Result<Checked> {
    let mut to = from;
    let wrong = match walk(file, spec, &mut to, bytes) {
        Ok(wrong) => wrong,
        Err(ScanError::Io(error)) => return Err(error),
        Err(error) => Some(error.to_string()),
    };
    Ok(Checked { to, wrong })
}

/// Walks on in `to`; what is wrong where it ends.
fn walk(
    file: &dyn ReadAt,
    spec: &CheckSpec,
    to: &mut Progress,
    bytes: u64,
) -> Result<Option<String>, ScanError> {
    let identity = ScanSpec {
        group: Some(spec.group),
        epoch: Some(spec.epoch),
        ..ScanSpec::default()
    };
    let mut reader = BlockReader::new(file);
    let (header, snapshot) = head(&mut reader, &identity)?;
    if header.stream != spec.stream || header.streamlet != spec.streamlet {
        let found = format!("{}/{}", header.stream, header.streamlet);
        return Ok(Some(format!("the file belongs to {found}")));
    }
    if header.generation != spec.generation {
        let (found, expected) = (header.generation, spec.generation);
        return Ok(Some(format!(
            "the file is of generation {found}, not {expected}"
        )));
    }
    let size = u64::from(header.segment_size);
    // What steps of a scan look at; the rest of it stays empty.
    let mut state = Scanned::begin(header, snapshot);
    let begin = to.place.address;
    let until = begin.saturating_add(bytes.max(1));
    if begin == 0 {
        to.place = state.end;
        to.digest = chain(0, reader.at(0, SEGMENT_HEADER_BYTES)?);
        to.digest = chain(to.digest, &state.snapshot);
    }
    while to.place.address < spec.end.address && to.place.address < until {
        let at = to.place.address;
        let segment = at / size;
        let left = (segment + 1) * size - at;
        state.end = to.place;
        let batch = if left < HEADER_BYTES as u64 {
            &[][..]
        } else {
            reader.at(at, HEADER_BYTES)?
        };
        if batch.len() < HEADER_BYTES || batch.iter().all(|b| *b == 0) {
            match next_segment(&mut reader, &state, segment as u32 + 1)? {
                Next::Continue => {
                    let begin = (segment + 1) * size;
                    to.digest = chain(to.digest, reader.at(begin, SEGMENT_HEADER_BYTES)?);
                    to.place.address = begin + SEGMENT_HEADER_BYTES as u64;
                    continue;
                }
                Next::Stop(stop) => return Ok(Some(stop.to_string())),
            }
        }
        match check_batch(&mut reader, &state, at, left, false)? {
            Ok(batch) => {
                to.digest = chain(to.digest, reader.at(at, batch.total_bytes)?);
                to.place = Place {
                    address: at + batch.total_bytes as u64,
                    ordinal: batch.next_ordinal(),
                };
            }
            Err(stop) => return Ok(Some(stop.to_string())),
        }
    }
    let (found, end) = (to.place, spec.end);
    let is_past = found.address > end.address;
    if is_past || found.address == end.address && found.ordinal != end.ordinal {
        return Ok(Some(format!(
            "a batch ends at byte {}, ordinal {}, and the group at byte {}, ordinal {}",
            found.address, found.ordinal, end.address, end.ordinal
        )));
    }
    Ok(None)
}

/// The digest with `bytes` added.
fn chain(digest: u64, bytes: &[u8]) -> u64 {
    (digest.rotate_left(5) ^ u64::from(crc32c(bytes))).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
