//! The footer of a closed group: its sparse index and the lane's state at its end.
//!
//! Both can be rebuilt by a scan; the footer only spares it. A footer that is missing or damaged is
//! therefore never an error, only slower.

use kera_protocol::batch::crc32c;
use kera_protocol::ids::Ordinal;

use crate::io::ReadAt;
use crate::layout::{FOOTER_OFFSET, read_u32, read_u64};

/// One entry per this many bytes of a group.
pub const INDEX_STRIDE: u64 = 64 * 1024;

const FOOTER_MAGIC: [u8; 8] = *b"KERAFOOT";
const FOOTER_HEAD: usize = 64;
const ENTRY_BYTES: usize = 24;
/// A footer larger than this is not read: what it tells is found by a scan.
const LARGEST_FOOTER: u64 = 64 << 20;

/// One step of the sparse index: a batch that begins at or after a multiple of [`INDEX_STRIDE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// First ordinal of the batch.
    pub ordinal: Ordinal,
    /// Highest timestamp of all batches before it in this group, `i64::MIN` if none.
    pub max_timestamp_before: i64,
    /// Address of the batch in the group.
    pub address: u64,
}

/// Entries in order of address, ordinal and timestamp alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SparseIndex {
    entries: Vec<IndexEntry>,
}

impl SparseIndex {
    /// Notes a batch; keeps it if the last entry lies a stride or more behind.
    pub fn note(&mut self, ordinal: Ordinal, address: u64, max_timestamp_before: i64) {
        let due = match self.entries.last() {
            None => true,
            Some(last) => address >= last.address + INDEX_STRIDE,
        };
        if due {
            self.entries.push(IndexEntry {
                ordinal,
                max_timestamp_before,
                address,
            });
        }
    }

    /// Forgets batches at `address` and above.
    pub(crate) fn cut(&mut self, address: u64) {
        self.entries.retain(|entry| entry.address < address);
    }

    /// The last entry at or below `ordinal`; where a walk to it starts.
    pub fn floor_ordinal(&self, ordinal: Ordinal) -> Option<IndexEntry> {
        let after = self.entries.partition_point(|e| e.ordinal <= ordinal);
        after.checked_sub(1).map(|i| self.entries[i])
    }

    /// The last entry before which no record is as late as `timestamp`; where a walk to the first
    /// such record starts.
    pub fn floor_time(&self, timestamp: i64) -> Option<IndexEntry> {
        let after = self
            .entries
            .partition_point(|e| e.max_timestamp_before < timestamp);
        after.checked_sub(1).map(|i| self.entries[i])
    }

    /// The entries.
    pub fn entries(&self) -> &[IndexEntry] {
        &self.entries
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<IndexEntry>()
    }
}

/// What stands behind the marks of a closed group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    /// Address where the group ends.
    pub length: u64,
    /// Ordinal after the group's last.
    pub end_ordinal: Ordinal,
    /// Highest timestamp in the group, `i64::MIN` if it is empty.
    pub max_timestamp: i64,
    /// Where the batches of each segment but the last end, as positions within it.
    pub segment_ends: Vec<u32>,
    /// The sparse index.
    pub index: SparseIndex,
    /// The lane's state after the group's last batch, as its snapshot is encoded.
    pub lane_state: Vec<u8>,
}

impl Footer {
    /// The bytes as they stand in the file.
    pub fn encode(&self) -> Vec<u8> {
        let entries = self.index.entries();
        let mut out =
            Vec::with_capacity(FOOTER_HEAD + entries.len() * ENTRY_BYTES + self.lane_state.len());
        out.extend_from_slice(&FOOTER_MAGIC);
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&self.length.to_le_bytes());
        out.extend_from_slice(&self.end_ordinal.to_le_bytes());
        out.extend_from_slice(&self.max_timestamp.to_le_bytes());
        out.extend_from_slice(&(entries.len() as u64).to_le_bytes());
        out.extend_from_slice(&(self.lane_state.len() as u64).to_le_bytes());
        out.extend_from_slice(&(self.segment_ends.len() as u64).to_le_bytes());
        out.resize(FOOTER_HEAD, 0);
        for end in &self.segment_ends {
            out.extend_from_slice(&end.to_le_bytes());
        }
        for entry in entries {
            out.extend_from_slice(&entry.ordinal.to_le_bytes());
            out.extend_from_slice(&entry.max_timestamp_before.to_le_bytes());
            out.extend_from_slice(&entry.address.to_le_bytes());
        }
        out.extend_from_slice(&self.lane_state);
        let crc = crc32c(&out[16..]);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The footer that stands in a group's file, whatever length of the group it tells; `None` if there is none
    /// that is whole. `group_bytes`: of all the group's segments.
    ///
    /// # Errors
    /// The store's, if the file cannot be read.
    pub fn find(file: &dyn ReadAt, group_bytes: u64) -> std::io::Result<Option<Self>> {
        let at = group_bytes + FOOTER_OFFSET;
        let size = file.len()?.saturating_sub(at).min(LARGEST_FOOTER);
        if size < FOOTER_HEAD as u64 {
            return Ok(None);
        }
        let mut bytes = vec![0; size as usize];
        let got = file.read_at(&mut bytes, at)?;
        bytes.truncate(got);
        if bytes.len() < FOOTER_HEAD {
            return Ok(None);
        }
        let told = read_u64(&bytes, 16);
        Ok(Self::decode(&bytes, told))
    }

    /// Reads a footer back; `None` if it is missing, damaged, or of another length than `expected`.
    pub fn decode(bytes: &[u8], expected_length: u64) -> Option<Self> {
        if bytes.len() < FOOTER_HEAD || bytes[0..8] != FOOTER_MAGIC {
            return None;
        }
        let count = usize::try_from(read_u64(bytes, 40)).ok()?;
        let state_len = usize::try_from(read_u64(bytes, 48)).ok()?;
        let ends_len = usize::try_from(read_u64(bytes, 56)).ok()?.checked_mul(4)?;
        let index_at = FOOTER_HEAD.checked_add(ends_len)?;
        let state_at = count.checked_mul(ENTRY_BYTES)?.checked_add(index_at)?;
        let total = state_at.checked_add(state_len)?;
        if bytes.len() < total || crc32c(&bytes[16..total]) != read_u32(bytes, 8) {
            return None;
        }
        let length = read_u64(bytes, 16);
        if length != expected_length {
            return None;
        }
        let segment_ends = bytes[FOOTER_HEAD..index_at]
            .chunks_exact(4)
            .map(|e| read_u32(e, 0))
            .collect();
        let entries = bytes[index_at..state_at]
            .chunks_exact(ENTRY_BYTES)
            .map(|e| IndexEntry {
                ordinal: read_u64(e, 0),
                max_timestamp_before: read_u64(e, 8) as i64,
                address: read_u64(e, 16),
            })
            .collect();
        Some(Self {
            length,
            end_ordinal: read_u64(bytes, 24),
            max_timestamp: read_u64(bytes, 32) as i64,
            segment_ends,
            index: SparseIndex { entries },
            lane_state: bytes[state_at..total].to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> SparseIndex {
        let mut index = SparseIndex::default();
        let mut max = i64::MIN;
        for i in 0..1000u64 {
            index.note(i * 10, 96 + i * 1000, max);
            max = max.max(i as i64 * 7);
        }
        index
    }

    #[test]
    fn the_index_is_sparse_and_finds_the_floor() {
        let index = index();
        assert!(index.entries().len() <= 1 + 1_000_000 / INDEX_STRIDE as usize);
        assert_eq!(index.floor_ordinal(0).map(|e| e.ordinal), Some(0));
        let e = index.floor_ordinal(5005).expect("an entry");
        assert!(e.ordinal <= 5005 && 5005 - e.ordinal <= 10 * 66);
        let t = index.floor_time(3500).expect("an entry");
        assert!(t.max_timestamp_before < 3500);
    }

    #[test]
    fn a_footer_round_trips_and_damage_makes_it_absent() {
        let footer = Footer {
            length: 999,
            end_ordinal: 10_000,
            max_timestamp: 5,
            segment_ends: vec![4000, 5000],
            index: index(),
            lane_state: vec![1, 2, 3],
        };
        let bytes = footer.encode();
        assert_eq!(Footer::decode(&bytes, 999), Some(footer));
        assert_eq!(Footer::decode(&bytes, 998), None);
        for at in [0, 9, 20, 45, 70, bytes.len() - 1] {
            let mut bad = bytes.clone();
            bad[at] ^= 0x40;
            assert_eq!(Footer::decode(&bad, 999), None, "byte {at}");
        }
        assert_eq!(Footer::decode(&bytes[..bytes.len() - 1], 999), None);
    }
}
