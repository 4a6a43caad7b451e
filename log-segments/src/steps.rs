//! Steps from batch to batch that no damaged length leads astray.
//!
//! A batch's checksum covers neither its length nor its ordinal, and a record may hold bytes that look like whole batches:
//! its producer chooses them. So a header tells where the next batch begins once the batch's checksum has proven the length.
//! Behind a damaged batch there are two ways on:
//! 1. If the checksum fits with one bit of the length turned back, that was the damage, and the length is known again.
//! 2. Otherwise its header leads on only if the headers behind it end exactly at the next place of the index, or where the
//!    group ends. If they do not, that place is where to go on.
//!
//! What is in memory was never on a disk that may have damaged it: its headers are believed.

use kera_protocol::batch::{self, BatchHeader, HEADER_BYTES};
use kera_protocol::ids::Ordinal;

use crate::buffers::Buffer;
use crate::footer::INDEX_STRIDE;
use crate::group::Group;
use crate::place::Place;
use crate::read::ReadError;

/// A batch that a step has come to, by its header.
pub(crate) struct Met {
    pub(crate) header: BatchHeader,
    /// Where it begins.
    pub(crate) at: Place,
    /// Where the next one does, if the header is right.
    next: Place,
}

/// Steps through one group, with the bytes of its file that were read for them.
pub(crate) struct Steps<'a> {
    group: &'a Group,
    end: Place,
    cached_only: bool,
    /// Where `block` begins.
    from: u64,
    block: Option<Buffer>,
    /// The first damage that a step has passed over.
    pub(crate) damage: Option<ReadError>,
}

impl<'a> Steps<'a> {
    /// `end`: where the group ends.
    pub(crate) fn new(group: &'a Group, end: Place, cached_only: bool) -> Self {
        Self {
            group,
            end,
            cached_only,
            from: 0,
            block: None,
            damage: None,
        }
    }

    /// The batch at `place` by its header; `None` where the group ends.
    ///
    /// # Errors
    /// If the header does not fit what stands before it and where the group ends, or cannot be read.
    pub(crate) fn meet(&mut self, place: Place) -> Result<Option<Met>, ReadError> {
        if place.ordinal >= self.end.ordinal {
            return Ok(None);
        }
        let (address, stop) = {
            let window = self.group.loaded_window(self.cached_only)?;
            window.within(place.address)
        };
        let known = self.loaded(address, HEADER_BYTES).map(BatchHeader::peek);
        let (header, address) = match known {
            Some(Ok(header)) if address + HEADER_BYTES as u64 <= stop => (header, address),
            // Its error says why it is none.
            _ => match self.group.header_at(place.address, self.cached_only)? {
                Some(found) => found,
                None => {
                    let reason = "no batch follows, and the group goes on".to_owned();
                    return Err(self.group.damaged(place.address, place.ordinal, reason));
                }
            },
        };
        let next = self.group.follows(place, &header, address, self.end)?;
        let at = Place {
            address,
            ordinal: place.ordinal,
        };
        Ok(Some(Met { header, at, next }))
    }

    /// The place behind a batch: at once if it is whole, and as far as anything leads there if it is not.
    ///
    /// # Errors
    /// If it cannot be read for now, or nothing of the file can be.
    pub(crate) fn over(&mut self, met: &Met) -> Result<Place, ReadError> {
        match self.prove(met) {
            Ok(()) => Ok(met.next),
            Err(error) => self.pass(met.at, error),
        }
    }

    /// The place behind a batch of which this is wrong, as far as anything leads there.
    ///
    /// # Errors
    /// As of [`over`](Self::over).
    pub(crate) fn pass(&mut self, at: Place, error: ReadError) -> Result<Place, ReadError> {
        if !error.is_of_a_place() {
            return Err(error);
        }
        // What follows is looked for on a thread that may wait.
        if self.cached_only {
            return Err(ReadError::WouldBlock);
        }
        self.damage.get_or_insert(error);
        Ok(self.group.behind_damaged(at, self.end))
    }

    /// The place behind whatever stands at `place`, which lies before the group's end.
    ///
    /// # Errors
    /// As of [`over`](Self::over).
    pub(crate) fn behind(&mut self, place: Place) -> Result<Place, ReadError> {
        match self.meet(place) {
            Ok(Some(met)) => self.over(&met),
            Ok(None) => Ok(self.end),
            Err(error) => self.pass(place, error),
        }
    }

    /// Checks that a batch of the file is whole.
    fn prove(&mut self, met: &Met) -> Result<(), ReadError> {
        let (group, address, total) = (self.group, met.at.address, met.header.total_bytes);
        let stop = {
            let window = group.loaded_window(self.cached_only)?;
            if address >= window.memory_start() {
                return Ok(());
            }
            window.within(address).1.min(window.written.address)
        };
        let damaged = |reason: String| group.damaged(address, met.at.ordinal, reason);
        if met.next.address > stop {
            return Err(damaged("it runs past the end of the data".to_owned()));
        }
        if self.loaded(address, total).is_none() {
            let ahead = (stop - address).min(INDEX_STRIDE.max(total as u64));
            let cached_only = self.cached_only;
            let read = |bytes| group.read_exact(address, bytes, cached_only);
            let block = match read(usize::try_from(ahead).unwrap_or(total)) {
                // A bad sector may lie behind the batch.
                Err(error) if error.is_of_a_place() => read(total)?,
                block => block?,
            };
            self.from = address;
            self.block = Some(block);
        }
        let bytes = self.loaded(address, total).unwrap_or_default();
        let verified = batch::verify(bytes);
        verified.map_err(|error| damaged(error.to_string()))?;
        Ok(())
    }

    /// So many bytes at an address, if they were read before.
    fn loaded(&self, address: u64, bytes: usize) -> Option<&[u8]> {
        let at = usize::try_from(address.checked_sub(self.from)?).ok()?;
        self.block.as_ref()?.get(at..at.checked_add(bytes)?)
    }
}

impl Group {
    /// Where a reader may go on behind the damaged batch at `at`: see [above](self). Waits for the disk.
    pub(crate) fn behind_damaged(&self, at: Place, end: Place) -> Place {
        let indexed = self.indexed().into_iter();
        let mut behind = indexed.filter(|place| place.address > at.address);
        let anchor = behind.find(|place| place.ordinal > at.ordinal && place.ordinal < end.ordinal);
        let anchor = anchor.unwrap_or(end);
        self.led(at, anchor, end).unwrap_or(anchor)
    }

    /// Where the header of the damaged batch at `at` leads, if it leads to a batch. `anchor`: a batch is known to begin
    /// there, or the group ends.
    fn led(&self, at: Place, anchor: Place, end: Place) -> Option<Place> {
        let (header, address) = self.header_at(at.address, false).ok()??;
        let is_it = self.is_own_epoch(header.epoch) && header.base_ordinal == at.ordinal;
        let next = |total: usize| Place {
            address: address + total as u64,
            ordinal: header.next_ordinal(),
        };
        if !is_it || header.next_ordinal() > anchor.ordinal {
            return None;
        }
        let lands = |place: &Place| self.lands(*place, anchor, end);
        let turned = self.length_turned_back(address, anchor);
        let turned = turned.map(next).filter(lands);
        let stated = Some(next(header.total_bytes)).filter(lands);
        match (turned, stated) {
            // Whoever wrote the payload can have both lead on, and nobody can tell which is meant.
            (Some(turned), Some(stated)) if turned != stated => None,
            (turned, stated) => turned.or(stated),
        }
    }

    /// The length of the batch at an address, if the damage is one turned bit of it.
    fn length_turned_back(&self, address: u64, anchor: Place) -> Option<usize> {
        let stop = {
            let window = self.loaded_window(false).ok()?;
            window.within(address).1.min(window.written.address)
        };
        let most = stop.min(anchor.address.max(address)).checked_sub(address)?;
        let most = usize::try_from(most).ok()?.min(batch::MAX_BATCH_BYTES);
        let bytes = self.read_exact(address, most, false).ok()?;
        batch::length_turned_back(&bytes)
    }

    /// Whether the headers from `place` on end exactly at `anchor`.
    fn lands(&self, mut place: Place, anchor: Place, end: Place) -> bool {
        while place.ordinal < anchor.ordinal {
            match self.step(place, end, false) {
                Ok(Some((_, _, next))) => place = next,
                Ok(None) | Err(_) => return false,
            }
        }
        let within = |address| {
            self.loaded_window(false)
                .map(|window| window.within(address).0)
        };
        let (Ok(found), Ok(known)) = (within(place.address), within(anchor.address)) else {
            return false;
        };
        place.ordinal == anchor.ordinal && found == known
    }

    /// The place behind a batch at `address`, if its header fits what stands before it and where the group ends.
    ///
    /// # Errors
    /// It does not.
    pub(crate) fn follows(
        &self,
        place: Place,
        header: &BatchHeader,
        address: u64,
        end: Place,
    ) -> Result<Place, ReadError> {
        let next = Place {
            address: address + header.total_bytes as u64,
            ordinal: header.next_ordinal(),
        };
        let reason = if !self.is_own_epoch(header.epoch) || header.base_ordinal != place.ordinal {
            format!(
                "it belongs to epoch {}, ordinal {}",
                header.epoch, header.base_ordinal
            )
        } else if next.address > end.address
            || next.ordinal > end.ordinal
            || (next.address == end.address && next.ordinal < end.ordinal)
        {
            format!(
                "it ends at {}, ordinal {}; the group ends at {}, ordinal {}",
                next.address, next.ordinal, end.address, end.ordinal
            )
        } else {
            return Ok(next);
        };
        Err(self.damaged(address, place.ordinal, reason))
    }

    /// The places in the index.
    pub(crate) fn indexed(&self) -> Vec<Place> {
        let Ok(window) = self.loaded_window(false) else {
            return Vec::new();
        };
        let entries = window.index.entries().iter();
        let places = entries.map(|entry| Place {
            address: entry.address,
            ordinal: entry.ordinal,
        });
        places.collect()
    }

    /// The last place of the index at or below an ordinal, or where the group begins.
    pub(crate) fn indexed_before(&self, ordinal: Ordinal) -> Result<Place, ReadError> {
        let window = self.loaded_window(false)?;
        let entry = window.index.floor_ordinal(ordinal);
        Ok(entry.map_or(self.start(), |entry| Place {
            address: entry.address,
            ordinal: entry.ordinal,
        }))
    }
}
