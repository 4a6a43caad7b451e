//! A group with replicas elsewhere: where their bytes are taken from, and what the head waits for.
//!
//! Such a group is *shipped*: somebody outside this crate brings its bytes to the other replicas. Then not
//! its own file decides how far it may be shown, but that somebody ([`Group::set_replicated`]): the least
//! of all replicas, this file being one of them.

use std::io::{Error, ErrorKind};

use bytes::Bytes;

use crate::buffers::Buffer;
use crate::group::Group;
use crate::io::rewrite;
use crate::local_writer::Turn;
use crate::place::Place;
use crate::scan::{ScanSpec, scan};
use crate::sync::{Arc, Ordering, Weak};
use crate::window::RecordStage;

pub use crate::shipping::Shipping;

/// Enough replicas are on disk together with the own file,
const WITH_OWN: u8 = 1;
/// or without it.
const ENOUGH: u8 = 2;

/// Bytes of one segment, without a gap.
#[derive(Clone, Debug)]
pub struct ShipRun {
    /// Address in the group of the first byte.
    pub address: u64,
    /// The bytes, as slices of the chunks they lie in.
    pub parts: Vec<Bytes>,
}

impl ShipRun {
    /// Bytes of the run.
    pub fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }

    /// True if it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What [`Group::ship`] found.
#[derive(Clone, Debug)]
pub struct Shipped {
    /// In order of address; at most one run per segment.
    pub runs: Vec<ShipRun>,
    /// Where the group ended when they were taken: a batch boundary.
    pub end: Place,
    /// Bytes behind the runs that have left memory, from an address to another: [`Group::read_back`] reads them.
    pub on_disk: Option<(u64, u64)>,
}

impl Group {
    /// Has `by` ship the group, for good. To be called before anything is appended.
    pub fn ship_by(&self, by: Weak<dyn Shipping>) {
        let _only_once = self.shipping.set(by);
    }

    /// True if the group has copies elsewhere.
    pub fn is_shipped(&self) -> bool {
        self.shipping.get().is_some()
    }

    /// Who ships the group, as long as they do.
    pub(crate) fn shipping(&self) -> Option<Arc<dyn Shipping>> {
        self.shipping.get()?.upgrade()
    }

    /// Says that nothing more is appended. Call without holding any lock.
    pub fn announce_frozen(&self) {
        if let Some(shipping) = self.shipping() {
            shipping.froze();
        }
    }

    /// Everything below `place`, a batch boundary, is where it must be: it may be acknowledged and
    /// read. Never goes back. Call without holding any lock: wakers run here.
    pub fn set_replicated(&self, place: Place) {
        {
            let mut window = self.window.lock();
            // Only what is recorded has replicas.
            window.reach(RecordStage::Open);
            if window.replicated.address < place.address {
                window.replicated = place;
            }
        }
        if let Some(head) = self.lane_head() {
            head.advance();
        }
    }

    /// The group's one close is recorded; for a group that is shipped.
    pub fn set_ended(&self) {
        self.window.lock().reach(RecordStage::Closed);
    }

    /// True once it is.
    pub fn has_ended(&self) -> bool {
        self.window.lock().record == RecordStage::Closed
    }

    /// Enough replicas of a closed group are on the disks of their brokers, `with_own` once its own file is: what is in it
    /// stays, whatever loses power.
    pub fn set_flushed(&self, with_own: bool) {
        let flushed = if with_own { WITH_OWN } else { ENOUGH };
        self.flushed.fetch_max(flushed, Ordering::AcqRel);
    }

    /// Takes over what is known of the group that this one stands for from now on.
    pub fn set_flushed_as(&self, before: &Self) {
        let flushed = before.flushed.load(Ordering::Acquire);
        self.flushed.fetch_max(flushed, Ordering::AcqRel);
    }

    /// Whether that is known. Closed groups, whose own file is synced, have no head.
    pub fn is_flushed(&self) -> bool {
        match self.flushed.load(Ordering::Acquire) {
            ENOUGH => true,
            WITH_OWN => self.lane_head().is_none(),
            _ => false,
        }
    }

    /// Bytes from `from` on, at most `max_bytes`, as far as they are in memory. They begin with the first segment's header
    /// and the lane snapshot.
    pub fn ship(&self, from: u64, max_bytes: usize) -> Shipped {
        let size = u64::from(self.spec.segment_size);
        let (mut runs, mut on_disk) = (Vec::new(), None);
        let (end, mut left) = (self.end(), max_bytes as u64);
        let mut at = from;
        while at < end.address && left > 0 {
            let window = self.window.lock();
            let segment = at / size;
            let whole = window.end_of_segment(segment).min(end.address);
            if at >= whole {
                at = (segment + 1) * size;
                continue;
            }
            let stop = whole.min(at.saturating_add(left));
            let memory = window.memory_start();
            if at < memory {
                // One range of the file is enough for one call; the rest is asked for next.
                on_disk = Some((at, stop.min(memory)));
                break;
            }
            let parts = window.parts(at, stop);
            drop(window);
            let slice = |(chunk, range): (crate::pool::ChunkReader, std::ops::Range<usize>)| {
                chunk.slice(range)
            };
            runs.push(ShipRun {
                address: at,
                parts: parts.into_iter().map(slice).collect(),
            });
            left -= stop - at;
            at = if stop == whole && whole < end.address {
                (segment + 1) * size
            } else {
                stop
            };
            if stop < whole {
                break;
            }
        }
        Shipped { runs, end, on_disk }
    }

    /// Writes anew what a failed write or sync may have left out of the file of a group that has ended,
    /// syncs it, and checks that all of it is there. Every address receives the bytes it was to have,
    /// so what the failure left is harmless.
    ///
    /// # Errors
    /// The store's, or `InvalidData` if the file is not whole even so; the group stays as it is then,
    /// with what the file lacks in memory.
    pub fn write_again(&self) -> std::io::Result<()> {
        if self.is_direct() {
            // A handle around the page cache takes no more writes once one has failed.
            self.release_file();
        }
        self.window.lock().failed = None;
        self.broken.store(false, Ordering::Release);
        if self.write_out() == Turn::Failed {
            return Err(self.failure().unwrap_or(ErrorKind::Other.into()));
        }
        let outcome = self.dirty_and_sync();
        if let Err(error) = &outcome {
            self.fail(error);
        }
        outcome
    }

    /// What a failed sync may have lost is written once more: the kernel takes it for clean. It counts as synced
    /// only if the file is whole afterwards, since the durable mark speaks of what counts.
    fn dirty_and_sync(&self) -> std::io::Result<()> {
        let (from, end) = {
            let window = self.window.lock();
            (window.synced.address, window.end)
        };
        let file = self.file()?;
        rewrite(file.as_ref(), from, end.address)?;
        file.sync_data()?;
        self.check_file(self.end())?;
        self.window.lock().synced = end;
        Ok(())
    }

    /// Checks each batch of the file up to `end`.
    pub(crate) fn check_file(&self, end: Place) -> std::io::Result<()> {
        let spec = ScanSpec {
            verify_all: true,
            ..ScanSpec::closed(&self.spec, end)
        };
        match scan(&*self.file()?, &spec, |_, _| {}) {
            Ok(found) if found.end == end => Ok(()),
            Ok(found) => Err(Error::new(ErrorKind::InvalidData, found.stop.to_string())),
            Err(error) => Err(Error::new(ErrorKind::InvalidData, error.to_string())),
        }
    }

    /// Reads bytes of one segment from the file. May wait for the disk.
    ///
    /// # Errors
    /// The store's; `UnexpectedEof` if the file has fewer.
    pub fn read_back(&self, (at, stop): (u64, u64)) -> std::io::Result<ShipRun> {
        let len = (stop - at) as usize;
        let mut buffer = Buffer::take(len);
        let got = self.file()?.read_at(buffer.bytes_mut(), at)?;
        if got < len {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(ShipRun {
            address: at,
            parts: vec![buffer.into_bytes(len)],
        })
    }
}
