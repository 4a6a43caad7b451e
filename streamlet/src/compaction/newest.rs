//! Which records are the newest of their keys, found within bounded memory.
//!
//! Each record is an entry of 24 bytes: 128 bits of its key's hash, under random keys of this process, and its ordinal.
//! Entries are gathered, sorted, and all but the newest of a key dropped; what memory has no room for is written to
//! sorted files. They are merged into the ordinals of the newest records, which are sorted in the same way: whoever
//! reads the records again, in their order, needs no more than the next ordinal.
//!
//! Memory is what [`Newest::new`] is given, and [`READ_AT_ONCE`] bytes for each file.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::path::PathBuf;

use kera_log_segments::io::{FileRef, Io, OpenHow};
use kera_log_segments::sync::Arc;
use kera_protocol::ids::Ordinal;

use super::BrokenPass;

/// Bytes of a key's hash.
const HASH_BYTES: usize = 16;
/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: usize = HASH_BYTES + 8;
/// Bytes read of a sorted file at once, a multiple of all entries' sizes.
pub(crate) const READ_AT_ONCE: usize = 24 * 2048;

/// Names the files that hold what memory has no room for. They are removed when they are not needed any more, and by
/// the next start if this one ends before.
#[derive(Clone)]
pub(crate) struct SpillFiles {
    pub(crate) io: Arc<dyn Io>,
    /// The name of the file of a number; no two compactions at a time use the same.
    pub(crate) path: Arc<dyn Fn(usize) -> PathBuf + Send + Sync>,
    pub(crate) next: usize,
}

/// Finds the newest records; they come in the order of their ordinals.
pub(crate) struct Newest {
    hashes: [RandomState; 2],
    entries: Sorter<ENTRY_BYTES>,
    spill: SpillFiles,
    broken: Option<BrokenPass>,
}

impl Newest {
    /// With about `memory` bytes.
    pub(crate) fn new(memory: usize, spill: SpillFiles) -> Self {
        Self {
            hashes: [RandomState::new(), RandomState::new()],
            entries: Sorter::new(memory, HASH_BYTES),
            spill,
            broken: None,
        }
    }

    /// With a rule that is broken on purpose.
    pub(crate) fn breaking(mut self, broken: Option<BrokenPass>) -> Self {
        self.broken = broken;
        self
    }

    /// The entry of a record.
    pub(crate) fn entry(&self, key: &[u8], ordinal: Ordinal) -> [u8; ENTRY_BYTES] {
        let mut entry = [0; ENTRY_BYTES];
        for (state, half) in self.hashes.iter().zip(entry.chunks_exact_mut(8)) {
            let mut hasher = state.build_hasher();
            hasher.write(key);
            half.copy_from_slice(&hasher.finish().to_be_bytes());
        }
        if self.broken == Some(BrokenPass::KeysConfused) {
            entry[1..HASH_BYTES].fill(0);
        }
        let rank = rank(ordinal, self.broken);
        entry[HASH_BYTES..].copy_from_slice(&rank.to_be_bytes());
        entry
    }

    /// Takes the entries of some records.
    ///
    /// # Errors
    /// The store's, if they cannot be written to a file.
    pub(crate) fn note(&mut self, entries: &[[u8; ENTRY_BYTES]]) -> Result<()> {
        for entry in entries {
            self.entries.push(*entry, &mut self.spill)?;
        }
        Ok(())
    }

    /// The newest record of each key.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn finish(self) -> Result<NewestOrdinals> {
        let Self {
            entries,
            mut spill,
            broken,
            ..
        } = self;
        let mut ordinals = Sorter::<8>::new(entries.most * ENTRY_BYTES / 4, 8);
        let mut by_key = entries.merge(&mut spill)?;
        while let Some(entry) = by_key.next_newest()? {
            let mut ordinal = [0; 8];
            ordinal.copy_from_slice(&entry[HASH_BYTES..]);
            let ordinal = rank(u64::from_be_bytes(ordinal), broken);
            ordinals.push(ordinal.to_be_bytes(), &mut spill)?;
        }
        drop(by_key);
        let mut ordinals = ordinals.merge(&mut spill)?;
        let next = ordinals.next_newest()?.map(u64::from_be_bytes);
        Ok(NewestOrdinals { ordinals, next })
    }
}

/// What the newest of a key has most of, its ordinal; and the ordinal of that.
fn rank(ordinal: Ordinal, broken: Option<BrokenPass>) -> Ordinal {
    match broken {
        Some(BrokenPass::OldestLeft) => !ordinal,
        _ => ordinal,
    }
}

/// The ordinals of the newest records, in order.
pub(crate) struct NewestOrdinals {
    ordinals: Merge<8>,
    next: Option<Ordinal>,
}

impl NewestOrdinals {
    /// Whether a record is the newest of its key. Asked in the order of ordinals.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn is_newest(&mut self, ordinal: Ordinal) -> Result<bool> {
        while self.next.is_some_and(|next| next < ordinal) {
            self.next = self.ordinals.next_newest()?.map(u64::from_be_bytes);
        }
        Ok(self.next == Some(ordinal))
    }
}

/// Sorts entries of `N` bytes. Of those whose first `key` bytes are equal the greatest is kept.
struct Sorter<const N: usize> {
    entries: Vec<[u8; N]>,
    /// Entries in memory at most.
    most: usize,
    key: usize,
    files: Vec<Sorted>,
}

impl<const N: usize> Sorter<N> {
    fn new(memory: usize, key: usize) -> Self {
        Self {
            entries: Vec::new(),
            most: (memory / N).max(4),
            key,
            files: Vec::new(),
        }
    }

    fn push(&mut self, entry: [u8; N], spill: &mut SpillFiles) -> Result<()> {
        if self.entries.len() >= self.most {
            self.compact();
            // Less often than at every entry: what is kept fills at most half.
            if self.entries.len() > self.most / 2 {
                self.files.push(Sorted::write(&self.entries, spill)?);
                self.entries.clear();
            }
        }
        self.entries.push(entry);
        Ok(())
    }

    fn compact(&mut self) {
        let key = self.key;
        self.entries.sort_unstable();
        // The later of two equal keys stands behind: it takes the earlier one's place.
        self.entries.dedup_by(|later, earlier| {
            let same = later[..key] == earlier[..key];
            if same {
                *earlier = *later;
            }
            same
        });
    }

    fn merge(mut self, spill: &mut SpillFiles) -> Result<Merge<N>> {
        self.compact();
        if !self.files.is_empty() {
            self.files.push(Sorted::write(&self.entries, spill)?);
            self.entries = Vec::new();
        }
        let mut merge = Merge {
            memory: self.entries.into_iter(),
            files: self.files,
            heads: BinaryHeap::new(),
            key: self.key,
        };
        for index in 0..merge.files.len() {
            merge.refill(index)?;
        }
        Ok(merge)
    }
}

/// Sorted entries, from memory or from files.
struct Merge<const N: usize> {
    memory: std::vec::IntoIter<[u8; N]>,
    files: Vec<Sorted>,
    heads: BinaryHeap<Reverse<([u8; N], usize)>>,
    key: usize,
}

impl<const N: usize> Merge<N> {
    fn refill(&mut self, index: usize) -> Result<()> {
        if let Some(entry) = self.files[index].next::<N>()? {
            self.heads.push(Reverse((entry, index)));
        }
        Ok(())
    }

    /// The greatest entry of the next key.
    fn next_newest(&mut self) -> Result<Option<[u8; N]>> {
        if self.files.is_empty() {
            return Ok(self.memory.next());
        }
        let Some(Reverse((mut newest, index))) = self.heads.pop() else {
            return Ok(None);
        };
        self.refill(index)?;
        while let Some(Reverse((entry, index))) = self.heads.peek().copied()
            && entry[..self.key] == newest[..self.key]
        {
            self.heads.pop();
            newest = newest.max(entry);
            self.refill(index)?;
        }
        Ok(Some(newest))
    }
}

/// A file of sorted entries. It is removed with this.
struct Sorted {
    io: Arc<dyn Io>,
    path: PathBuf,
    file: FileRef,
    length: u64,
    at: u64,
    buffer: Vec<u8>,
    used: usize,
}

impl Sorted {
    fn write<const N: usize>(entries: &[[u8; N]], spill: &mut SpillFiles) -> Result<Self> {
        let path = (spill.path)(spill.next);
        spill.next += 1;
        match spill.io.remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = spill.io.open(&path, OpenHow::CreateNew, false)?;
        let mut sorted = Self {
            io: spill.io.clone(),
            path,
            file,
            length: 0,
            at: 0,
            buffer: Vec::new(),
            used: 0,
        };
        for some in entries.chunks(READ_AT_ONCE / N) {
            let bytes = some.as_flattened();
            sorted
                .file
                .write_vectored_at(&[IoSlice::new(bytes)], sorted.length)?;
            sorted.length += bytes.len() as u64;
        }
        Ok(sorted)
    }

    fn next<const N: usize>(&mut self) -> Result<Option<[u8; N]>> {
        if self.used == self.buffer.len() {
            let left = usize::try_from(self.length - self.at).unwrap_or(usize::MAX);
            self.buffer.resize(left.min(READ_AT_ONCE), 0);
            self.used = 0;
            if self.buffer.is_empty() {
                return Ok(None);
            }
            let got = self.file.read_at(&mut self.buffer, self.at)?;
            if got < self.buffer.len() {
                return Err(Error::from(ErrorKind::UnexpectedEof));
            }
            self.at += got as u64;
        }
        let entry = self.buffer[self.used..].first_chunk::<N>().copied();
        self.used += N;
        Ok(entry)
    }
}

impl Drop for Sorted {
    fn drop(&mut self) {
        if let Err(error) = self.io.remove_file(&self.path) {
            let file = self.path.display();
            tracing::warn!(%file, %error, "a file that a compaction needed could not be removed; the next start removes it");
        }
    }
}

#[cfg(all(test, not(kera_shuttle)))]
mod tests {
    use std::collections::HashMap;

    use kera_log_segments::io::fault::FaultIo;

    use super::*;

    fn spill() -> (FaultIo, SpillFiles) {
        let io = FaultIo::new(1);
        io.create_dir_all(std::path::Path::new("/spill"))
            .expect("a directory");
        let files = SpillFiles {
            io: Arc::new(io.clone()),
            path: Arc::new(|number| PathBuf::from(format!("/spill/{number}"))),
            next: 0,
        };
        (io, files)
    }

    /// Keys as a stream has them, some of them often.
    fn keys(count: u64) -> impl Iterator<Item = (Ordinal, u64)> {
        (0..count).map(move |index| {
            (
                index * 3,
                (index * index * 31 + index / 7) % (1 + count / 3),
            )
        })
    }

    #[test]
    fn the_newest_are_found_with_much_memory_and_with_hardly_any() {
        for memory in [1 << 20, 5000, 100, 0] {
            let (io, files) = spill();
            let mut newest = Newest::new(memory, files);
            let mut expected = HashMap::new();
            for (ordinal, key) in keys(3000) {
                let entry = newest.entry(&key.to_le_bytes(), ordinal);
                newest.note(&[entry]).expect("room");
                expected.insert(key, ordinal);
            }
            let mut found = newest.finish().expect("room");
            for (ordinal, key) in keys(3000) {
                let is_newest = found.is_newest(ordinal).expect("readable");
                assert_eq!(
                    is_newest,
                    expected[&key] == ordinal,
                    "{ordinal}, {memory} bytes"
                );
                assert!(!found.is_newest(ordinal + 1).expect("readable"));
            }
            drop(found);
            let left = io.list(std::path::Path::new("/spill")).expect("listed");
            assert!(left.is_empty(), "{left:?} with {memory} bytes");
        }
    }

    #[test]
    fn memory_is_bounded_by_what_is_given() {
        let (io, files) = spill();
        let memory = 1 << 16;
        let mut newest = Newest::new(memory, files);
        let mut most = 0;
        for (ordinal, key) in keys(100_000) {
            let entry = newest.entry(&key.to_le_bytes(), ordinal);
            newest.note(&[entry]).expect("room");
            most = most.max(newest.entries.entries.len() * ENTRY_BYTES);
        }
        assert!(most <= memory, "{most}");
        let written = io.list(std::path::Path::new("/spill")).expect("listed");
        assert!(
            written.len() > 3,
            "nothing was written to files: {written:?}"
        );
    }
}
