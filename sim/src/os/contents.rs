//! What is in files of a disk and does not outlive a loss of power.
//!
//! | written | durable with |
//! |---|---|
//! | through the page cache, or to blocks that have no place on the disk yet | a flush of the file |
//! | around the page cache (`O_DIRECT`), over blocks that have their place | a flush of any file, which empties the device's cache, as on ext4 |
//!
//! The durable contents are kept, sector by sector, before others take their place.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use crate::dice::Dice;

/// What a disk writes as a whole or not at all.
const SECTOR: usize = 512;

/// A change of contents.
#[derive(Clone, Copy)]
pub(super) enum Changed {
    /// These bytes get others, around the page cache or not.
    Written { from: u64, to: u64, around: bool },
    /// The file ends there.
    Cut(u64),
}

/// What was in a file when a period began, of what has changed since.
struct Layer {
    period: u64,
    /// All of it was written around the page cache, over blocks that have their place.
    is_overwrite: bool,
    length: u64,
    sectors: BTreeMap<u64, [u8; SECTOR]>,
    /// Sectors that were written, with those behind the end.
    written: BTreeSet<u64>,
}

/// A file of which something was changed.
#[derive(Default)]
struct Contents {
    /// The oldest first.
    layers: Vec<Layer>,
    /// Sectors that have their place on the disk for good.
    placed: BTreeSet<u64>,
}

/// Files of a disk, by inode.
#[derive(Default)]
pub(super) struct DiskContents(BTreeMap<u64, Contents>);

impl DiskContents {
    /// Keeps what is about to change.
    pub(super) fn keep(&mut self, file: &File, changed: Changed, period: u64) -> io::Result<()> {
        let found = file.metadata()?;
        let of = self.0.entry(found.ino()).or_default();
        let size = SECTOR as u64;
        let (from, to) = match changed {
            Changed::Written { from, to, .. } => (from, to),
            Changed::Cut(length) => (length, found.len()),
        };
        let written = from / size..to.div_ceil(size);
        let mut is_overwrite = false;
        match changed {
            Changed::Written { around, .. } => {
                let placed = || written.clone().all(|sector| of.placed.contains(&sector));
                is_overwrite = around && to <= found.len() && placed();
            }
            Changed::Cut(_) => drop(of.placed.split_off(&written.start)),
        }
        let is_same = |layer: &Layer| (layer.period, layer.is_overwrite) == (period, is_overwrite);
        if !of.layers.last().is_some_and(is_same) {
            of.layers.push(Layer {
                period,
                is_overwrite,
                length: found.len(),
                sectors: BTreeMap::new(),
                written: BTreeSet::new(),
            });
        }
        let Some(layer) = of.layers.last_mut() else {
            return Ok(());
        };
        for sector in from / size..to.min(layer.length).div_ceil(size) {
            if let Entry::Vacant(free) = layer.sectors.entry(sector) {
                free.insert(read_sector(file, sector)?);
            }
        }
        match changed {
            Changed::Written { .. } => layer.written.extend(written),
            Changed::Cut(_) => drop(layer.written.split_off(&written.start)),
        }
        Ok(())
    }

    /// What was changed up to `period` is durable, of one file or of all; and what was written over blocks of any.
    pub(super) fn flushed(&mut self, inode: Option<u64>, period: u64) {
        for (number, of) in &mut self.0 {
            let is_meant = inode.is_none_or(|one| one == *number);
            let durable =
                |layer: &mut Layer| layer.period <= period && (is_meant || layer.is_overwrite);
            let layers: Vec<_> = of.layers.extract_if(.., durable).collect();
            for layer in layers {
                // What older changes left to be brought back there was written over.
                for before in of
                    .layers
                    .iter_mut()
                    .filter(|one| one.period <= layer.period)
                {
                    before.sectors.retain(|at, _| !layer.written.contains(at));
                }
                if is_meant {
                    of.placed.extend(layer.written);
                }
            }
        }
    }

    /// Another file has the number, or none.
    pub(super) fn forget(&mut self, inode: u64) {
        self.0.remove(&inode);
    }

    /// The power is lost: brings durable contents of a file back, none, all, or those of some sectors. What that changed,
    /// in words.
    pub(super) fn bring_back(&self, path: &Path, dice: &mut Dice) -> io::Result<Option<String>> {
        let file = File::options().read(true).write(true).open(path)?;
        let found = file.metadata()?;
        let layers = self.0.get(&found.ino()).map(|of| of.layers.as_slice());
        let layers = layers.unwrap_or_default();
        let Some(durable) = layers.first().map(|layer| layer.length) else {
            return Ok(None);
        };
        let of_1000 = match dice.below(10) {
            0..=3 => return Ok(None),
            4..=6 => 1000,
            _ => *dice.one(&[200, 500, 800]),
        };
        let mut kept: BTreeMap<u64, &[u8; SECTOR]> = BTreeMap::new();
        for (sector, bytes) in layers.iter().flat_map(|layer| &layer.sectors) {
            kept.entry(*sector).or_insert(bytes);
        }
        let written = found.len();
        let length = match of_1000 {
            1000 => durable,
            // It was cut, or not.
            _ if durable > written => *dice.one(&[durable, written]),
            _ => dice.between(durable, written),
        };
        let size = SECTOR as u64;
        // Of what was added some sectors did not come to the disk, and its length did.
        let added = durable.div_ceil(size)..length.div_ceil(size);
        let zeros = [0; SECTOR];
        let is_holed = of_1000 < 1000 && dice.chance(500);
        let added = added.filter(|_| is_holed).map(|sector| (sector, &zeros));
        file.set_len(length)?;
        let mut back = 0;
        for (sector, bytes) in kept.into_iter().chain(added) {
            let at = sector * size;
            if at < length && dice.chance(of_1000) {
                let len = (length - at).min(size) as usize;
                file.write_all_at(&bytes[..len], at)?;
                back += 1;
            }
        }
        let text = format!("{back} sectors, and {written} bytes are {length}");
        Ok((back > 0 || length != written).then_some(text))
    }
}

fn read_sector(file: &File, sector: u64) -> io::Result<[u8; SECTOR]> {
    let mut bytes = [0; SECTOR];
    let mut filled = 0;
    while filled < SECTOR {
        let at = sector * SECTOR as u64 + filled as u64;
        match file.read_at(&mut bytes[filled..], at)? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(bytes)
}
