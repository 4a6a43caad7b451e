//! Which epochs have lost their right to write, as a store remembers it.
//!
//! ```text
//! "KERASEAL" | version u32 | entries u32 | entry... | crc32c of all before, u32 | removed | zeros
//! entry: stream uuid (16) | streamlet u32 | sealed epoch u32 | ranges u32 | (first u64 | last u64)...
//! removed: "KERAGONE" | version u32 | entries u32 | entry... | crc32c of all of it before, u32
//! ```
//! Numbers are little-endian. The zeros are room for more, of any length; version 1 had none. The ranges are of groups of which a copy was freed: such a group is
//! never opened again, and nobody is told that it was never here. There are at most
//! [`MAX_RANGES`] of a streamlet; beyond, the lowest two become one, and a group between them counts
//! as freed too. Opening it costs its primary a roll; and where it was recorded and never opened, its
//! next owner hears "unknown" here instead of "never opened", so that it needs another holder's word
//! to go on. It costs nobody a record.
//!
//! What was removed are those of the freed groups whose copies were freed by an owner's word, since no record named them. Of
//! these the lowest are forgotten where there are too many. Builds that do not know of it leave it out.

use std::collections::HashMap;

use kera_log_segments::layout::{read_u32, read_u64};
use kera_protocol::batch::crc32c;
use kera_protocol::ids::{Epoch, GroupId, StreamId, StreamletId};

use crate::ids::StreamletKey;

const MAGIC: [u8; 8] = *b"KERASEAL";
const VERSION: u32 = 2;
const REMOVED_MAGIC: [u8; 8] = *b"KERAGONE";
const REMOVED_VERSION: u32 = 1;
const HEAD_BYTES: usize = 16;
const ENTRY_BYTES: usize = 28;
const RANGE_BYTES: usize = 16;
/// Ranges of freed groups that are remembered of each streamlet.
const MAX_RANGES: usize = 256;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    sealed: Epoch,
    /// Sorted, apart from each other; both ends are within.
    freed: Vec<(u64, u64)>,
    /// Those of which no record named the copy any more; as `freed`, and exact.
    removed: Vec<(u64, u64)>,
}

fn holds(ranges: &[(u64, u64)], group: u64) -> bool {
    let at = ranges.partition_point(|(_, last)| *last < group);
    ranges.get(at).is_some_and(|(first, _)| *first <= group)
}

fn insert(ranges: &mut Vec<(u64, u64)>, range: (u64, u64)) {
    let at = ranges.partition_point(|(first, _)| *first < range.0);
    ranges.insert(at, range);
    ranges.dedup_by(|later, earlier| {
        let joined = later.0 <= earlier.1.saturating_add(1);
        if joined {
            earlier.1 = earlier.1.max(later.1);
        }
        joined
    });
}

impl Entry {
    fn holds(&self, group: u64) -> bool {
        holds(&self.freed, group)
    }

    fn add(&mut self, range: (u64, u64)) {
        insert(&mut self.freed, range);
        if self.freed.len() > MAX_RANGES {
            let lowest = self.freed.remove(0);
            self.freed[0].0 = lowest.0;
        }
    }

    fn has_removed(&mut self, range: (u64, u64)) {
        insert(&mut self.removed, range);
        if self.removed.len() > MAX_RANGES {
            self.removed.remove(0);
        }
    }
}

/// The seals of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SealTable {
    entries: HashMap<StreamletKey, Entry>,
}

impl SealTable {
    /// The epoch below which nobody may open or write; 0 if nobody has sealed.
    pub fn sealed(&self, streamlet: &StreamletKey) -> Epoch {
        self.entries.get(streamlet).map_or(Epoch(0), |e| e.sealed)
    }

    /// True if a copy of `group` was freed here, as far as is remembered.
    pub fn was_freed(&self, streamlet: &StreamletKey, group: GroupId) -> bool {
        let entry = self.entries.get(streamlet);
        entry.is_some_and(|e| e.holds(group.0))
    }

    /// True if a copy of `group` was freed here since no record named it any more, as far as is remembered.
    pub fn was_removed(&self, streamlet: &StreamletKey, group: GroupId) -> bool {
        let entry = self.entries.get(streamlet);
        entry.is_some_and(|e| holds(&e.removed, group.0))
    }

    /// Raises a seal; true if anything changed.
    pub fn seal(&mut self, streamlet: StreamletKey, epoch: Epoch) -> bool {
        let entry = self.entries.entry(streamlet).or_default();
        let raised = epoch > entry.sealed;
        entry.sealed = entry.sealed.max(epoch);
        raised
    }

    /// Remembers the streamlet, of which there is nothing to say yet.
    pub fn meet(&mut self, streamlet: StreamletKey) {
        self.entries.entry(streamlet).or_default();
    }

    /// The streamlets of which anything is remembered, and who has sealed each.
    pub fn streamlets(&self) -> impl Iterator<Item = (StreamletKey, Epoch)> {
        self.entries.iter().map(|(key, entry)| (*key, entry.sealed))
    }

    /// Remembers that a copy of `group` was freed; true if anything changed. There is no limit on that:
    /// an owner that is told that a copy never was here takes the group for one that never had records.
    pub fn free(&mut self, streamlet: StreamletKey, group: GroupId) -> bool {
        let entry = self.entries.entry(streamlet).or_default();
        let new = !entry.holds(group.0);
        if new {
            entry.add((group.0, group.0));
        }
        new
    }

    /// As [`free`](Self::free), of a copy that no record names any more.
    pub fn remove(&mut self, streamlet: StreamletKey, group: GroupId) -> bool {
        let is_new = self.free(streamlet, group);
        let entry = self.entries.entry(streamlet).or_default();
        let was_known = holds(&entry.removed, group.0);
        entry.has_removed((group.0, group.0));
        is_new || !was_known
    }

    /// A copy of `group` is made here again by an owner's word: if it goes, that is another end than the one that is remembered.
    /// True if anything changed.
    pub fn made_again(&mut self, streamlet: &StreamletKey, group: GroupId) -> bool {
        let Some(Entry { removed, .. }) = self.entries.get_mut(streamlet) else {
            return false;
        };
        let GroupId(group) = group;
        let at = removed.partition_point(|(_, last)| *last < group);
        let range = removed.get(at).copied();
        let Some((first, last)) = range.filter(|(first, _)| *first <= group) else {
            return false;
        };
        let below = (first < group).then(|| (first, group - 1));
        let above = (group < last).then(|| (group + 1, last));
        removed.splice(at..=at, below.into_iter().chain(above));
        if removed.len() > MAX_RANGES {
            removed.remove(0);
        }
        true
    }

    /// Takes over what `other` knows beyond this table.
    pub fn merge(&mut self, other: &SealTable) {
        for (streamlet, theirs) in &other.entries {
            let entry = self.entries.entry(*streamlet).or_default();
            entry.sealed = entry.sealed.max(theirs.sealed);
            for range in &theirs.freed {
                entry.add(*range);
            }
            for range in &theirs.removed {
                entry.has_removed(*range);
            }
        }
    }

    /// Streamlets of which anything is remembered.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if nothing is.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// True if anything is remembered of the streamlet.
    pub fn knows(&self, streamlet: &StreamletKey) -> bool {
        self.entries.contains_key(streamlet)
    }

    /// Forgets all of a stream that is gone; true if there was anything.
    pub fn forget(&mut self, stream: StreamId) -> bool {
        let before = self.entries.len();
        self.entries
            .retain(|streamlet, _| streamlet.stream != stream);
        self.entries.len() < before
    }

    /// Forgets who has sealed, and nothing else: a rule broken on purpose.
    pub(super) fn forget_seals(&mut self) {
        for entry in self.entries.values_mut() {
            entry.sealed = Epoch(0);
        }
    }

    /// The table as it is stored.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_BYTES + self.entries.len() * ENTRY_BYTES + 4);
        let all = self.entries.iter();
        let freed = all.map(|(key, entry)| (*key, entry.sealed, &*entry.freed));
        write_table(&mut out, (MAGIC, VERSION), freed.collect());
        let some = self.entries.iter();
        let some = some.filter(|(_, entry)| !entry.removed.is_empty());
        let removed = some.map(|(key, entry)| (*key, entry.sealed, &*entry.removed));
        let removed: Vec<_> = removed.collect();
        if !removed.is_empty() {
            write_table(&mut out, (REMOVED_MAGIC, REMOVED_VERSION), removed);
        }
        out
    }

    /// Reads a stored table; `Err` says what is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let (version, freed, room) = read_table(bytes, MAGIC, VERSION)?;
        if version == 1 && !room.is_empty() {
            return Err("it is longer than it says");
        }
        let mut entries = HashMap::new();
        for (streamlet, sealed, ranges) in freed {
            let mut entry = Entry {
                sealed,
                ..Entry::default()
            };
            ranges.into_iter().for_each(|range| entry.add(range));
            entries.insert(streamlet, entry);
        }
        // What a later build wrote of it says nothing here.
        let removed = read_table(room, REMOVED_MAGIC, REMOVED_VERSION).ok();
        for (streamlet, _, ranges) in removed.into_iter().flat_map(|(_, removed, _)| removed) {
            let entry: &mut Entry = entries.entry(streamlet).or_default();
            let ranges = ranges.into_iter();
            ranges.for_each(|range| entry.has_removed(range));
        }
        Ok(Self { entries })
    }
}

/// Of each streamlet its seal and ranges of groups.
type Row<R> = (StreamletKey, Epoch, R);

fn write_table(out: &mut Vec<u8>, (magic, version): ([u8; 8], u32), rows: Vec<Row<&[(u64, u64)]>>) {
    let begin = out.len();
    out.extend_from_slice(&magic);
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&(rows.len() as u32).to_le_bytes());
    for (streamlet, sealed, ranges) in rows {
        out.extend_from_slice(streamlet.stream.as_bytes());
        out.extend_from_slice(&streamlet.streamlet.0.to_le_bytes());
        out.extend_from_slice(&sealed.0.to_le_bytes());
        out.extend_from_slice(&(ranges.len() as u32).to_le_bytes());
        for (first, last) in ranges {
            out.extend_from_slice(&first.to_le_bytes());
            out.extend_from_slice(&last.to_le_bytes());
        }
    }
    let crc = crc32c(&out[begin..]);
    out.extend_from_slice(&crc.to_le_bytes());
}

/// A table at the beginning of `bytes`: its version, its rows, and what follows it.
#[expect(clippy::type_complexity, reason = "it is taken apart where it is read")]
fn read_table(
    bytes: &[u8],
    magic: [u8; 8],
    latest: u32,
) -> Result<(u32, Vec<Row<Vec<(u64, u64)>>>, &[u8]), &'static str> {
    let (head, mut rest) = bytes
        .split_first_chunk::<HEAD_BYTES>()
        .ok_or("it is cut short")?;
    if head[..8] != magic {
        return Err("it does not hold seals");
    }
    let version = read_u32(head, 8);
    if version > latest {
        return Err("a newer build wrote it; use the newer build");
    }
    let body = &bytes[..body_bytes(bytes).ok_or("it is cut short")?];
    let (crc, room) = bytes[body.len()..]
        .split_first_chunk::<4>()
        .ok_or("it is cut short")?;
    if crc32c(body) != u32::from_le_bytes(*crc) {
        return Err("its checksum does not match");
    }
    let mut rows = Vec::new();
    for _ in 0..read_u32(head, 12) {
        let (entry, ranges) = rest
            .split_first_chunk::<ENTRY_BYTES>()
            .ok_or("it is shorter than it says")?;
        let stream = StreamId::from_slice(&entry[..16]).ok_or("it holds no stream id")?;
        let streamlet = StreamletId(read_u32(entry, 16));
        let sealed = Epoch(read_u32(entry, 20));
        let mut found = Vec::new();
        rest = ranges;
        for _ in 0..read_u32(entry, 24) {
            let (range, tail) = rest
                .split_first_chunk::<RANGE_BYTES>()
                .ok_or("it is shorter than it says")?;
            found.push((read_u64(range, 0), read_u64(range, 8)));
            rest = tail;
        }
        rows.push((StreamletKey { stream, streamlet }, sealed, found));
    }
    Ok((version, rows, room))
}

/// Bytes before the checksum, as the numbers of entries and ranges say; `None` if there are not so many.
fn body_bytes(bytes: &[u8]) -> Option<usize> {
    let (count, mut at) = (read_u32(bytes, 12), HEAD_BYTES);
    for _ in 0..count {
        let entry = bytes.get(at..at + ENTRY_BYTES)?;
        at += ENTRY_BYTES + read_u32(entry, 24) as usize * RANGE_BYTES;
    }
    (at <= bytes.len()).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(streamlet: u32) -> StreamletKey {
        StreamletKey {
            stream: StreamId::random(),
            streamlet: StreamletId(streamlet),
        }
    }

    #[test]
    fn what_was_made_again_is_not_removed_any_more() {
        let a = key(1);
        let removed = |table: &SealTable| -> Vec<_> {
            let ids = (1..9).filter(|id| table.was_removed(&a, GroupId(*id)));
            ids.collect()
        };
        let mut table = SealTable::default();
        assert!(!table.made_again(&a, GroupId(3)));
        for id in [2, 3, 4, 5, 7] {
            table.remove(a, GroupId(id));
        }
        assert!(!table.made_again(&a, GroupId(6)) && !table.made_again(&a, GroupId(8)));
        // In the middle, at either end, and alone.
        for (id, left) in [
            (3, vec![2, 4, 5, 7]),
            (5, vec![2, 4, 7]),
            (7, vec![2, 4]),
            (2, vec![4]),
        ] {
            assert!(table.made_again(&a, GroupId(id)));
            assert_eq!(removed(&table), left);
            assert!(table.was_freed(&a, GroupId(id)));
            let read = SealTable::decode(&table.encode()).expect("a table");
            assert_eq!(removed(&read), left);
        }
        // It can be removed again.
        assert!(table.remove(a, GroupId(3)));
        assert_eq!(removed(&table), [3, 4]);
        // There are as many as there may be.
        for id in 0..MAX_RANGES as u64 {
            table.remove(a, GroupId(100 + id * 4));
            table.remove(a, GroupId(101 + id * 4));
            table.remove(a, GroupId(102 + id * 4));
        }
        assert!(table.made_again(&a, GroupId(501)));
        let found = |id| table.was_removed(&a, GroupId(id));
        assert!(found(500) && found(502) && !found(501) && !found(100));
    }

    #[test]
    fn a_table_survives_encoding_and_no_flipped_bit_does() {
        let mut table = SealTable::default();
        let (a, b) = (key(1), key(2));
        assert!(table.seal(a, Epoch(7)) && !table.seal(a, Epoch(6)));
        assert!(table.free(b, GroupId(0)) && table.was_freed(&b, GroupId(0)));
        assert!(!table.was_freed(&b, GroupId(1)) && !table.was_freed(&a, GroupId(0)));
        table.free(b, GroupId(1 << 40));
        let bytes = table.encode();
        assert_eq!(SealTable::decode(&bytes), Ok(table));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(SealTable::decode(&bad).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(SealTable::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn a_table_of_version_1_is_read_and_one_of_today_may_have_room_behind_it() {
        let (a, mut table) = (key(1), SealTable::default());
        table.seal(a, Epoch(7));
        table.free(a, GroupId(3));
        let mut roomy = table.encode();
        roomy.resize(4096, 0);
        assert_eq!(SealTable::decode(&roomy), Ok(table.clone()));
        // What was there before and was longer, is no part of it.
        roomy[200..300].fill(7);
        assert_eq!(SealTable::decode(&roomy), Ok(table.clone()));

        let mut old = table.encode();
        old.truncate(old.len() - 4);
        old[8..12].copy_from_slice(&1u32.to_le_bytes());
        let crc = crc32c(&old);
        old.extend_from_slice(&crc.to_le_bytes());
        assert_eq!(SealTable::decode(&old), Ok(table));
        old.push(0);
        assert!(SealTable::decode(&old).is_err());
    }

    #[test]
    fn freed_groups_are_remembered_one_by_one_and_boundedly() {
        let (a, mut table) = (key(1), SealTable::default());
        for group in [7, 5, 9, 6] {
            assert!(table.free(a, GroupId(group)));
            assert!(!table.free(a, GroupId(group)));
        }
        assert_eq!(table.entries[&a].freed, [(5, 7), (9, 9)]);
        assert!(!table.was_freed(&a, GroupId(8)) && !table.was_freed(&a, GroupId(4)));
        for group in 10..2000 {
            table.free(a, GroupId(group * 2));
        }
        assert_eq!(table.entries[&a].freed.len(), MAX_RANGES);
        assert!((10..2000).all(|group| table.was_freed(&a, GroupId(group * 2))));
        assert!(!table.was_freed(&a, GroupId(3997)), "the latest are exact");
        assert_eq!(SealTable::decode(&table.encode()), Ok(table));
    }

    #[test]
    fn what_was_removed_by_the_records_is_told_from_what_was_freed_and_exactly() {
        let (a, mut table) = (key(1), SealTable::default());
        assert!(table.free(a, GroupId(3)) && table.remove(a, GroupId(3)));
        assert!(table.remove(a, GroupId(4)) && !table.remove(a, GroupId(4)));
        table.free(a, GroupId(5));
        let removed = |table: &SealTable| -> Vec<_> {
            (0..8)
                .filter(|id| table.was_removed(&a, GroupId(*id)))
                .collect()
        };
        assert_eq!(removed(&table), [3, 4]);
        assert!(table.was_freed(&a, GroupId(4)));
        let stored = table.encode();
        assert_eq!(SealTable::decode(&stored), Ok(table.clone()));
        let padded = [&stored[..], &[0; 64]].concat();
        assert_eq!(SealTable::decode(&padded), Ok(table.clone()));
        // As a build of before it reads it: its own table, and what follows is room.
        let without = &stored[..body_bytes(&stored).expect("a table") + 4];
        let old = SealTable::decode(without).expect("a table");
        assert!(removed(&old).is_empty() && old.was_freed(&a, GroupId(4)));
        for group in 10..2000 {
            table.remove(a, GroupId(group * 2));
        }
        // None that was not; the lowest are forgotten.
        assert!((10..2000).all(|group| !table.was_removed(&a, GroupId(group * 2 + 1))));
        assert!(removed(&table).is_empty() && table.was_removed(&a, GroupId(3998)));
    }

    #[test]
    fn a_stream_that_is_gone_is_forgotten() {
        let (a, b, mut table) = (key(1), key(2), SealTable::default());
        table.seal(a, Epoch(3));
        table.seal(b, Epoch(4));
        assert!(table.forget(a.stream) && !table.forget(a.stream));
        assert!(!table.knows(&a) && table.knows(&b) && table.len() == 1);
    }

    #[test]
    fn merging_keeps_the_higher() {
        let (a, mut one, mut other) = (key(1), SealTable::default(), SealTable::default());
        one.seal(a, Epoch(3));
        other.seal(a, Epoch(5));
        other.free(a, GroupId(2));
        one.merge(&other);
        assert_eq!(one, other);
    }
}
