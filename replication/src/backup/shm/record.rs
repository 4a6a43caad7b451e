//! What a copy's file is, as stored beside it.
//!
//! ```text
//! "KERACOPY" | version u32 | epoch u32 | segment size u32 | segments u32 | group u64 | streamlet u32
//! | flags u32 | stream uuid (16) | store id (16) | boot id (16) | released u64 | generation u32
//! | crc32c of all before, u32
//! ```
//! Flags: 1, the copy was built from another; 2, on disk only, the file holds all that there was of
//! the copy, so that nothing is missing when shared memory has none. *Released*, on shared memory
//! only: what lies below this address is on disk and nowhere else, so that a copy whose disk is lost
//! is not taken for one that never held anything; all ones where that is so of the whole copy.
//! Version 1 had no such address, and released nothing. Versions 1 and 2 have no generation: they are of groups as
//! appended, generation 0, and such groups are written as version 2 still.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use kera_log_segments::layout::read_u32;
use kera_protocol::batch::crc32c;
use kera_protocol::ids::{Epoch, GroupId, StreamId, StreamletId};
use uuid::Uuid;

use super::super::memory::CopySpec;
use crate::ids::{CopyId, Incarnation, StreamletKey};

const MAGIC: [u8; 8] = *b"KERACOPY";
const VERSION: u32 = 3;
const BYTES: usize = 100;
/// Bytes of the longest record, its checksum included.
pub(super) const MOST_BYTES: usize = BYTES + 4;
/// Bytes of a record of version 1, which ends where the released address stands.
const FIRST_BYTES: usize = 88;
/// The version of records of groups as appended, which ends where the generation stands, and its bytes.
const APPENDED: u32 = 2;
const APPENDED_BYTES: usize = 96;

const BUILT: u32 = 1;
const WHOLE: u32 = 2;

/// [`Kept::released`] of a copy that is on disk alone.
pub(super) const ALL: u64 = u64::MAX;

/// What is where of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// Of a record on disk: the file there is all there was of the copy.
    pub(super) whole: bool,
    /// Of a record on shared memory: what lies below this address is on disk alone.
    pub(super) released: u64,
}

impl Kept {
    /// All that there was of the copy is on disk.
    pub(super) const WHOLE: Self = Self {
        whole: true,
        released: 0,
    };

    /// On shared memory but for what lies below `released`.
    pub(super) fn from(released: u64) -> Self {
        Self {
            whole: false,
            released,
        }
    }
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// The copy's facts, and what is where.
    Copy { spec: CopySpec, kept: Kept },
    /// A newer build wrote it.
    Newer { version: u32 },
    /// Nothing can be told from it.
    Damaged,
}

pub(super) fn encode(spec: &CopySpec, kept: Kept) -> Vec<u8> {
    let mut out = Vec::with_capacity(BYTES + 4);
    out.extend_from_slice(&MAGIC);
    let generation = spec.copy.generation;
    let version = if generation == 0 { APPENDED } else { VERSION };
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&spec.copy.epoch.0.to_le_bytes());
    out.extend_from_slice(&spec.segment_size.to_le_bytes());
    out.extend_from_slice(&spec.segments.to_le_bytes());
    out.extend_from_slice(&spec.copy.group.0.to_le_bytes());
    out.extend_from_slice(&spec.copy.streamlet.streamlet.0.to_le_bytes());
    let flags = if spec.built { BUILT } else { 0 } | if kept.whole { WHOLE } else { 0 };
    out.extend_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(spec.copy.streamlet.stream.as_bytes());
    out.extend_from_slice(spec.incarnation.store_id.as_bytes());
    out.extend_from_slice(spec.incarnation.boot_id.as_bytes());
    out.extend_from_slice(&kept.released.to_le_bytes());
    if generation > 0 {
        out.extend_from_slice(&generation.to_le_bytes());
    }
    let crc = crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

/// Puts other words into a record that is there. In its place, since there may be no room for another
/// file: it lies within one sector of a disk and one page of memory, which are written whole or not at
/// all, and torn it would tell so.
pub(super) fn rewrite(path: &Path, spec: &CopySpec, kept: Kept) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    file.write_all_at(&encode(spec, kept), 0)?;
    file.sync_data()
}

/// Makes a record say that there was a copy, of which nothing is known any more.
pub(super) fn blot(path: &Path) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    file.write_all_at(&[0; MOST_BYTES], 0)?;
    file.sync_data()
}

pub(super) fn decode(bytes: &[u8]) -> Record {
    if bytes.len() >= 12 && bytes[..8] == MAGIC {
        let version = read_u32(bytes, 8);
        if version > VERSION {
            return Record::Newer { version };
        }
    }
    read(bytes).unwrap_or(Record::Damaged)
}

fn read(bytes: &[u8]) -> Option<Record> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    let fits = match read_u32(body.get(..12)?, 8) {
        1 => body.len() == FIRST_BYTES,
        APPENDED => body.len() == APPENDED_BYTES,
        _ => body.len() == BYTES,
    };
    if !fits || body[..8] != MAGIC || crc32c(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    let released = body[FIRST_BYTES..].first_chunk::<8>().copied();
    let generation = body.get(APPENDED_BYTES..).and_then(<[u8]>::first_chunk);
    let generation = generation.map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let uuid_at = |at: usize| body[at..].first_chunk::<16>().copied();
    let flags = read_u32(body, 36);
    let spec = CopySpec {
        copy: CopyId {
            streamlet: StreamletKey {
                stream: StreamId::from_slice(&uuid_at(40)?)?,
                streamlet: StreamletId(read_u32(body, 32)),
            },
            group: GroupId(u64::from_le_bytes(*body[24..].first_chunk::<8>()?)),
            epoch: Epoch(read_u32(body, 12)),
            generation,
        },
        segment_size: read_u32(body, 16),
        segments: read_u32(body, 20),
        incarnation: Incarnation {
            store_id: Uuid::from_bytes(uuid_at(56)?),
            boot_id: Uuid::from_bytes(uuid_at(72)?),
        },
        built: flags & BUILT != 0,
    };
    Some(Record::Copy {
        spec,
        kept: Kept {
            whole: flags & WHOLE != 0,
            released: released.map_or(0, u64::from_le_bytes),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_encoding_and_no_flipped_bit_does() {
        let appended = CopySpec {
            copy: CopyId {
                streamlet: StreamletKey {
                    stream: StreamId::random(),
                    streamlet: StreamletId(3),
                },
                group: GroupId(1 << 40),
                epoch: Epoch(9),
                generation: 0,
            },
            segment_size: 8 << 20,
            segments: 16,
            incarnation: Incarnation {
                store_id: Uuid::from_u128(1),
                boot_id: Uuid::from_u128(2),
            },
            built: true,
        };
        let mut compacted = appended;
        compacted.copy.generation = 7;
        let kept = [Kept::default(), Kept::WHOLE, Kept::from(8 << 20)];
        let all = kept.map(|kept| [(appended, kept), (compacted, kept)]);
        for (spec, kept) in all.into_iter().flatten() {
            let bytes = encode(&spec, kept);
            assert_eq!(decode(&bytes), Record::Copy { spec, kept });
            for bit in 0..bytes.len() * 8 {
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                let read = decode(&bad);
                assert!(!matches!(read, Record::Copy { .. }), "bit {bit}");
            }
            for len in 0..bytes.len() {
                assert_eq!(decode(&bytes[..len]), Record::Damaged, "{len} bytes");
            }
        }
    }

    #[test]
    fn a_record_of_version_1_released_nothing() {
        let spec = CopySpec {
            copy: CopyId {
                streamlet: StreamletKey {
                    stream: StreamId::random(),
                    streamlet: StreamletId(0),
                },
                group: GroupId(2),
                epoch: Epoch(3),
                generation: 0,
            },
            segment_size: 8 << 20,
            segments: 2,
            incarnation: Incarnation::default(),
            built: false,
        };
        let mut bytes = encode(&spec, Kept::WHOLE);
        bytes.truncate(FIRST_BYTES);
        bytes[8..12].copy_from_slice(&1u32.to_le_bytes());
        let crc = crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        let kept = Kept::WHOLE;
        assert_eq!(decode(&bytes), Record::Copy { spec, kept });
    }

    /// As the version before compaction with replicas stored it.
    #[test]
    fn a_record_without_a_generation_is_of_a_group_as_appended() {
        let spec = CopySpec {
            copy: CopyId {
                streamlet: StreamletKey {
                    stream: StreamId(Uuid::from_bytes([0x11; 16])),
                    streamlet: StreamletId(3),
                },
                group: GroupId(5),
                epoch: Epoch(9),
                generation: 0,
            },
            segment_size: 8 << 20,
            segments: 16,
            incarnation: Incarnation {
                store_id: Uuid::from_bytes([0x22; 16]),
                boot_id: Uuid::from_bytes([0x33; 16]),
            },
            built: true,
        };
        let kept = Kept::from(4096);
        let mut stored = b"KERACOPY".to_vec();
        for word in [2, 9, 8 << 20, 16, 5, 0, 3, 1] {
            stored.extend_from_slice(&u32::to_le_bytes(word));
        }
        for byte in [0x11, 0x22, 0x33] {
            stored.extend_from_slice(&[byte; 16]);
        }
        stored.extend_from_slice(&4096u64.to_le_bytes());
        stored.extend_from_slice(&0x1bbe_5d72_u32.to_le_bytes());
        assert_eq!(decode(&stored), Record::Copy { spec, kept });
        assert_eq!(encode(&spec, kept), stored, "older builds read it too");
    }

    #[test]
    fn a_newer_builds_record_is_not_taken_for_a_damaged_one() {
        let mut newer = b"KERACOPY".to_vec();
        newer.extend_from_slice(&(VERSION + 1).to_le_bytes());
        newer.extend_from_slice(b"whatever comes then");
        let version = VERSION + 1;
        assert_eq!(decode(&newer), Record::Newer { version });
    }
}
