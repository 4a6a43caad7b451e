//! What a group file holds besides batches: segment headers and the durable marks.
//!
//! ```text
//! 0                S                2S                    P*S        +4096      +8192
//! | segment 0      | segment 1      | ...  segment P-1    | mark A   | mark B   | footer (closed groups)
//! | header         | header         |
//! | lane snapshot  | batches ...    |
//! | batches ...    |
//! ```
//! `S` is the segment size, `P` the segments of a group. The file is sparse: what was never written
//! reads as zeros, and zeros end a scan. Numbers are little-endian, except inside batches.

use kera_protocol::ack::AckPolicy;
use kera_protocol::batch::crc32c;
use kera_protocol::ids::{Epoch, GroupId, Incarnation, LaneId, Ordinal, StreamId, StreamletId};
use thiserror::Error;
use uuid::Uuid;

use crate::place::Place;

/// Bytes of a segment header.
pub const SEGMENT_HEADER_BYTES: usize = 96;
/// The format this build writes, and the highest it reads.
pub const FORMAT_VERSION: u16 = 1;
/// Smallest and largest segment that a header may claim.
const MIN_SEGMENT_BYTES: u32 = 1024;
const MAX_SEGMENT_BYTES: u32 = 1 << 30;
/// Distance between the two mark slots; each has a device block of its own.
pub const MARK_SLOT_STRIDE: u64 = 4096;
/// Where the footer begins, counted from the end of the last segment.
pub const FOOTER_OFFSET: u64 = 2 * MARK_SLOT_STRIDE;
/// Bytes of an encoded mark.
pub const MARK_BYTES: usize = 96;

const SEGMENT_MAGIC: [u8; 8] = *b"KERASEG\0";
const MARK_MAGIC: [u8; 8] = *b"KERAMARK";

/// Why a header or mark cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// All zeros: never written.
    #[error("nothing is written here")]
    Blank,
    /// Not what should stand here.
    #[error("bytes are not a {0}")]
    BadMagic(&'static str),
    /// Written by a newer build.
    #[error(
        "format version {found} is newer than {FORMAT_VERSION}, the newest this build reads; use the newer build"
    )]
    NewerFormat {
        /// Version found.
        found: u16,
    },
    /// Damaged or torn.
    #[error("checksum of the {0} does not match")]
    BadChecksum(&'static str),
    /// Values out of range.
    #[error("the {0} is inconsistent")]
    Inconsistent(&'static str),
}

/// Identity and place of one segment; stands at its start, written at the roll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The stream.
    pub stream: StreamId,
    /// The streamlet.
    pub streamlet: StreamletId,
    /// The lane.
    pub lane: LaneId,
    /// The group.
    pub group: GroupId,
    /// The file generation: 0 as appended, more after a job rewrote it.
    pub generation: u32,
    /// Index of this segment in its group.
    pub segment: u32,
    /// The group's one epoch.
    pub epoch: Epoch,
    /// Bytes of each segment.
    pub segment_size: u32,
    /// Segments a group may have.
    pub segments: u32,
    /// Ordinal of the first record in this segment.
    pub first_ordinal: Ordinal,
    /// Bytes of the lane snapshot that follows (segment 0 only).
    pub snapshot_bytes: u32,
    /// CRC-32C of the lane snapshot.
    pub snapshot_crc: u32,
    /// When the segment was begun, milliseconds since 1970.
    pub created_ms: u64,
    /// What acknowledgements promised when the group was begun; decides what a crash may have cost.
    pub ack: AckPolicy,
    /// The file had a durable mark before this header: one without a mark has lost bytes.
    pub marked: bool,
    /// Nothing of the group was written before every group of its lane before it was whole in its file: where
    /// one of those ends earlier than this begins, it has lost bytes.
    pub in_order: bool,
}

/// Bits of a segment header's byte 93; builds that do not know them wrote none.
const MARKED: u8 = 1;
const IN_ORDER: u8 = 2;

impl SegmentHeader {
    /// The bytes as they stand in the file.
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut out = [0u8; SEGMENT_HEADER_BYTES];
        out[0..8].copy_from_slice(&SEGMENT_MAGIC);
        out[8..10].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[10..12].copy_from_slice(&(SEGMENT_HEADER_BYTES as u16).to_le_bytes());
        out[16..32].copy_from_slice(self.stream.as_bytes());
        out[32..36].copy_from_slice(&self.streamlet.0.to_le_bytes());
        out[36..40].copy_from_slice(&self.lane.0.to_le_bytes());
        out[40..48].copy_from_slice(&self.group.0.to_le_bytes());
        out[48..52].copy_from_slice(&self.generation.to_le_bytes());
        out[52..56].copy_from_slice(&self.segment.to_le_bytes());
        out[56..60].copy_from_slice(&self.epoch.0.to_le_bytes());
        out[60..64].copy_from_slice(&self.segment_size.to_le_bytes());
        out[64..72].copy_from_slice(&self.first_ordinal.to_le_bytes());
        out[72..76].copy_from_slice(&self.segments.to_le_bytes());
        out[76..80].copy_from_slice(&self.snapshot_bytes.to_le_bytes());
        out[80..84].copy_from_slice(&self.snapshot_crc.to_le_bytes());
        out[84..92].copy_from_slice(&self.created_ms.to_le_bytes());
        out[92] = self.ack as u8;
        out[93] = if self.marked { MARKED } else { 0 } | if self.in_order { IN_ORDER } else { 0 };
        let crc = crc32c(&out[16..]);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a header back.
    ///
    /// # Errors
    /// [`LayoutError`] if the bytes are blank, foreign, newer, or damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let Some(head) = bytes.first_chunk::<SEGMENT_HEADER_BYTES>() else {
            return Err(LayoutError::Blank);
        };
        if head.iter().all(|b| *b == 0) {
            return Err(LayoutError::Blank);
        }
        if head[0..8] != SEGMENT_MAGIC {
            return Err(LayoutError::BadMagic("segment header"));
        }
        let version = u16::from_le_bytes([head[8], head[9]]);
        if version > FORMAT_VERSION {
            return Err(LayoutError::NewerFormat { found: version });
        }
        if crc32c(&head[16..]) != read_u32(head, 12) {
            return Err(LayoutError::BadChecksum("segment header"));
        }
        let mut stream = [0; 16];
        stream.copy_from_slice(&head[16..32]);
        let header = Self {
            stream: StreamId::from_slice(&stream)
                .ok_or(LayoutError::Inconsistent("segment header"))?,
            streamlet: StreamletId(read_u32(head, 32)),
            lane: LaneId(read_u32(head, 36)),
            group: GroupId(read_u64(head, 40)),
            generation: read_u32(head, 48),
            segment: read_u32(head, 52),
            epoch: Epoch(read_u32(head, 56)),
            segment_size: read_u32(head, 60),
            first_ordinal: read_u64(head, 64),
            segments: read_u32(head, 72),
            snapshot_bytes: read_u32(head, 76),
            snapshot_crc: read_u32(head, 80),
            created_ms: read_u64(head, 84),
            ack: AckPolicy::from_u8(head[92]),
            marked: head[93] & MARKED != 0,
            in_order: head[93] & IN_ORDER != 0,
        };
        if !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&header.segment_size) {
            return Err(LayoutError::Inconsistent("segment header"));
        }
        let room = (header.segment_size as u64).saturating_sub(SEGMENT_HEADER_BYTES as u64);
        if header.segments == 0
            || header.segment >= header.segments
            || u64::from(header.snapshot_bytes) > room
            || header.first_ordinal > i64::MAX as u64
        {
            return Err(LayoutError::Inconsistent("segment header"));
        }
        Ok(header)
    }
}

/// How far a group's bytes were seen to be durable. Two slots are written in turn, so that a torn
/// write of one leaves the other. A scan that ends below a mark means damage, not a torn tail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurableMark {
    /// Grows with every write; the higher valid slot counts.
    pub sequence: u64,
    /// Address up to which writes had completed (page cache). Binding while the boot id is the same.
    pub written: u64,
    /// Ordinal at `written`.
    pub written_ordinal: Ordinal,
    /// Address up to which bytes were synced. Always binding.
    pub synced: u64,
    /// Ordinal at `synced`.
    pub synced_ordinal: Ordinal,
    /// The store directory and the boot of the machine that wrote it.
    pub incarnation: Incarnation,
}

impl DurableMark {
    /// The mark after `self`.
    #[must_use]
    pub fn then(&self, written: Place, synced: Place, incarnation: Incarnation) -> Self {
        Self {
            sequence: self.sequence + 1,
            written: written.address,
            written_ordinal: written.ordinal,
            synced: synced.address,
            synced_ordinal: synced.ordinal,
            incarnation,
        }
    }

    /// The mark after `self` where nothing is known to be synced any more. How far the file was written stays: until
    /// it is that long again it counts as damaged, and not as short.
    #[must_use]
    pub fn then_lowered(&self) -> Self {
        Self {
            sequence: self.sequence + 1,
            written: self.written.max(self.synced),
            written_ordinal: self.written_ordinal.max(self.synced_ordinal),
            synced: 0,
            synced_ordinal: 0,
            ..*self
        }
    }

    /// The bytes of one slot.
    pub fn encode(&self) -> [u8; MARK_BYTES] {
        let mut out = [0u8; MARK_BYTES];
        out[0..8].copy_from_slice(&MARK_MAGIC);
        out[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        out[24..32].copy_from_slice(&self.written.to_le_bytes());
        out[32..40].copy_from_slice(&self.written_ordinal.to_le_bytes());
        out[40..48].copy_from_slice(&self.synced.to_le_bytes());
        out[48..56].copy_from_slice(&self.synced_ordinal.to_le_bytes());
        out[56..72].copy_from_slice(self.incarnation.store_id.as_bytes());
        out[72..88].copy_from_slice(self.incarnation.boot_id.as_bytes());
        let crc = crc32c(&out[16..]);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads one slot back.
    ///
    /// # Errors
    /// [`LayoutError`] if the slot is blank, foreign or torn.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let Some(slot) = bytes.first_chunk::<MARK_BYTES>() else {
            return Err(LayoutError::Blank);
        };
        if slot.iter().all(|b| *b == 0) {
            return Err(LayoutError::Blank);
        }
        if slot[0..8] != MARK_MAGIC {
            return Err(LayoutError::BadMagic("durable mark"));
        }
        if crc32c(&slot[16..]) != read_u32(slot, 8) {
            return Err(LayoutError::BadChecksum("durable mark"));
        }
        Ok(Self {
            sequence: read_u64(slot, 16),
            written: read_u64(slot, 24),
            written_ordinal: read_u64(slot, 32),
            synced: read_u64(slot, 40),
            synced_ordinal: read_u64(slot, 48),
            incarnation: Incarnation {
                store_id: read_uuid(slot, 56),
                boot_id: read_uuid(slot, 72),
            },
        })
    }

    /// The newer of two slots; a torn one is passed over.
    pub fn newest(a: &[u8], b: &[u8]) -> Option<Self> {
        match (Self::decode(a).ok(), Self::decode(b).ok()) {
            (Some(a), Some(b)) => Some(if a.sequence >= b.sequence { a } else { b }),
            (a, b) => a.or(b),
        }
    }

    /// Where in the file the slot for this mark's sequence stands.
    pub fn slot_offset(&self, group_bytes: u64) -> u64 {
        group_bytes + (self.sequence % 2) * MARK_SLOT_STRIDE
    }

    /// The length below which missing bytes are damage: what was synced and, in the same boot of
    /// the same store, what was written.
    pub fn binding_length(&self, here: &Incarnation) -> u64 {
        if self.incarnation == *here {
            self.written.max(self.synced)
        } else {
            self.synced
        }
    }
}

/// Little-endian `u32` at `at`.
///
/// # Panics
/// If `bytes` end before its end.
pub fn read_u32(bytes: &[u8], at: usize) -> u32 {
    let mut out = [0; 4];
    out.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(out)
}

/// The 16 bytes of an id at `at`.
pub(crate) fn read_uuid(bytes: &[u8], at: usize) -> Uuid {
    let mut out = [0; 16];
    out.copy_from_slice(&bytes[at..at + 16]);
    Uuid::from_bytes(out)
}

/// Little-endian `u64` at `at`.
///
/// # Panics
/// If `bytes` end before its end.
pub fn read_u64(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0; 8];
    out.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader {
            stream: StreamId::random(),
            streamlet: StreamletId(3),
            lane: LaneId(9),
            group: GroupId(77),
            generation: 0,
            segment: 2,
            epoch: Epoch(5),
            segment_size: 1 << 20,
            segments: 16,
            first_ordinal: 123_456,
            snapshot_bytes: 0,
            snapshot_crc: 0,
            created_ms: 1_700_000_000_000,
            ack: AckPolicy::Synced,
            marked: true,
            in_order: true,
        }
    }

    #[test]
    fn a_header_survives_encoding_and_no_flipped_bit_does() {
        let header = header();
        let bytes = header.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Ok(header));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            // The version has a test of its own; the length repeats a constant no reader uses.
            if matches!(bit / 8, 8..=11) {
                continue;
            }
            assert!(
                SegmentHeader::decode(&bad).is_err(),
                "bit {bit} flipped unnoticed"
            );
        }
    }

    #[test]
    fn a_newer_format_is_named() {
        let mut bytes = header().encode();
        bytes[8] = 9;
        assert_eq!(
            SegmentHeader::decode(&bytes),
            Err(LayoutError::NewerFormat { found: 9 })
        );
        assert_eq!(SegmentHeader::decode(&[0; 96]), Err(LayoutError::Blank));
        assert_eq!(SegmentHeader::decode(&[1; 12]), Err(LayoutError::Blank));
    }

    #[test]
    fn the_newer_whole_slot_counts() {
        let old = DurableMark {
            sequence: 4,
            written: 100,
            ..Default::default()
        };
        let new = DurableMark {
            sequence: 5,
            written: 200,
            ..Default::default()
        };
        assert_eq!(DurableMark::newest(&old.encode(), &new.encode()), Some(new));
        let mut torn = new.encode();
        torn[50] ^= 1;
        assert_eq!(DurableMark::newest(&old.encode(), &torn), Some(old));
        assert_ne!(old.slot_offset(0), new.slot_offset(0));
    }

    #[test]
    fn written_binds_only_within_its_boot() {
        let here = Incarnation {
            store_id: Uuid::from_u128(2),
            boot_id: Uuid::from_u128(1),
        };
        let mark = DurableMark {
            written: 10,
            synced: 4,
            incarnation: here,
            ..Default::default()
        };
        assert_eq!(mark.binding_length(&here), 10);
        let later = Incarnation {
            boot_id: Uuid::from_u128(9),
            ..here
        };
        assert_eq!(mark.binding_length(&later), 4);
    }
}
