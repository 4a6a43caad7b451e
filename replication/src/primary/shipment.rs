//! One group on its way to one backup: a small state that can be set back at any time. After a
//! break everything above what completed is sent again (RAMCloud's ReplicatedSegment is the idea).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use kera_log_segments::ship::ShipRun;
use tokio::sync::OwnedSemaphorePermit;

use super::Config;
use super::replica_set::{ReplicaSet, Shape};
use super::stall_report::ShipmentStands;
use crate::ids::{BrokerId, BufferKey};
use crate::transport::{Buffer, Request, Write};

/// A group that has more segments than these which are complete and not on the backup's disk is
/// brought there before its next interval.
const UNFLUSHED_SEGMENTS: u64 = 2;

/// A group on its way to one backup.
pub(super) struct Shipment {
    pub(super) set: Arc<ReplicaSet>,
    /// The backup's number in the set.
    pub(super) index: usize,
    /// Bytes that it will soon have, for the size of its first buffers.
    expected: u64,
    /// Reserved buffers that are not on the backup's disk with all they have, by address.
    buffers: BTreeMap<u64, Buffer>,
    /// Bytes that were ever reserved.
    reserved: u64,
    /// Handed to the link up to here.
    shipped: u64,
    /// Seen to be in the backup's memory up to here.
    pub(super) completed: u64,
    /// Waits for the next flush round.
    pub(super) flush_due: bool,
    /// Where the last batch ends that is complete. A shipment may end anywhere in one, and what a backup
    /// brings to its disk ends with a whole one.
    pub(super) whole: u64,
    /// A place beyond it where some batch ends, as soon as there is any.
    next_whole: u64,
    /// Told to the backup, which has brought it to its disk, up to here.
    pub(super) flushed: u64,
    /// Up to here it is being told, beyond the interval.
    pub(super) flush_asked: u64,
    /// A request for buffers is under way.
    pub(super) opening: bool,
    /// There was no room for a buffer ahead of its use; the next one is asked for when it is needed.
    pub(super) crowded: bool,
    /// How often it was refused room for what it has since it was given any.
    pub(super) waits: u32,
    /// It waits for its turn.
    pub(super) queued: bool,
    /// Bytes that have left memory are being read, or are to be once there is room.
    pub(super) reading: bool,
    /// Those that were read, until they are shipped.
    read: Option<ReadBack>,
}

/// Bytes that were read from the owner's file, and the room in memory that they take.
struct ReadBack {
    run: ShipRun,
    _room: OwnedSemaphorePermit,
}

/// What a gathering found.
pub(super) struct Gathered {
    pub(super) bytes: u64,
    /// The address up to which the copy is complete once the writes are.
    pub(super) to: u64,
    /// There is more than the budget allowed.
    pub(super) more: bool,
    /// The first address without a buffer, and the bytes known to need one.
    pub(super) uncovered: Option<(u64, u32)>,
    /// There is nothing before these bytes, which have left memory.
    pub(super) on_disk: Option<(u64, u64)>,
}

impl Shipment {
    pub(super) fn new(set: Arc<ReplicaSet>, index: usize) -> Self {
        Self {
            expected: set.expected(),
            set,
            index,
            buffers: BTreeMap::new(),
            reserved: 0,
            shipped: 0,
            completed: 0,
            flush_due: false,
            whole: 0,
            next_whole: 0,
            flushed: 0,
            flush_asked: 0,
            opening: false,
            crowded: false,
            waits: 0,
            queued: false,
            reading: false,
            read: None,
        }
    }

    /// The request for buffers from `address` on; at least `least` bytes of them, and as many as
    /// there are already: so they grow with the lane's rate, and an idle one holds little. A backup that
    /// is short of room gives less.
    pub(super) fn request(
        &self,
        me: BrokerId,
        address: u64,
        least: u32,
        config: &Config,
    ) -> Option<Request> {
        let holder = *self.set.holders().get(self.index)?;
        let Shape {
            segment_size,
            segments,
        } = self.set.shape();
        let left = u64::from(segment_size) - address % u64::from(segment_size);
        let wanted = grown(self.reserved.max(self.expected), config);
        let bytes = wanted.max(u64::from(least)).min(left) as u32;
        Some(Request::Open {
            copy: self.set.id(),
            incarnation: holder.incarnation,
            primary: me,
            segment_size,
            segments,
            address,
            bytes,
        })
    }

    /// Whether a group that lacks room for its next bytes asks for it again. Only for so long: a backup
    /// whose disk does not keep up costs the group its copy there.
    pub(super) fn may_wait(&mut self, config: &Config) -> bool {
        let most = config.room_timeout.as_millis() / config.pause.as_millis().max(1);
        self.waits += 1;
        self.has_buffers() && u128::from(self.waits) <= most
    }

    /// Bytes that its backup could give back if it brought to its disk what is complete: it does so by
    /// whole buffers.
    pub(super) fn could_give_back(&self) -> u64 {
        let done = |b: &&Buffer| b.end() > self.flushed && b.end() <= self.whole;
        let done = self.buffers.values().filter(done);
        done.map(|b| u64::from(b.bytes)).sum()
    }

    /// Where the next buffer begins, if a busy group will soon need it: what is left of the last one
    /// is less than half of it.
    pub(super) fn next_wanted(&self, config: &Config) -> Option<u64> {
        let busy = self.reserved >= 4 * u64::from(config.first_buffer_bytes);
        let (_, last) = self.buffers.last_key_value()?;
        let end = last.end();
        let soon = end.saturating_sub(self.shipped) < u64::from(last.bytes) / 2;
        let Shape {
            segment_size,
            segments,
        } = self.set.shape();
        let more = end < u64::from(segment_size) * u64::from(segments);
        let wanted = busy && soon && more && !self.crowded && !self.set.group().is_frozen();
        wanted.then_some(end)
    }

    /// Whether so much is complete and not on the backup's disk that it is brought there now, so that
    /// its memory can be given back: what a group may hold that is as large as most.
    pub(super) fn is_heavy(&mut self) -> bool {
        let most = UNFLUSHED_SEGMENTS * u64::from(self.set.shape().segment_size);
        let heavy = self.whole >= self.flushed.max(self.flush_asked) + most;
        if heavy {
            self.flush_asked = self.whole;
        }
        heavy
    }

    /// Takes what the backup gave, and forgets what is never written any more.
    pub(super) fn add_buffers(&mut self, buffers: &[Buffer]) {
        let flushed = self.flushed;
        self.buffers.retain(|_, buffer| buffer.end() > flushed);
        for buffer in buffers {
            if self.buffers.insert(buffer.address, *buffer).is_none() {
                self.reserved += u64::from(buffer.bytes);
            }
        }
    }

    pub(super) fn has_buffers(&self) -> bool {
        !self.buffers.is_empty()
    }

    pub(super) fn owns(&self, key: BufferKey) -> bool {
        self.buffers.values().any(|buffer| buffer.key == key)
    }

    /// Whatever did not complete is to be sent again.
    pub(super) fn set_back(&mut self) {
        self.shipped(self.completed);
    }

    /// Adds what grew to `writes`, cut to the buffers it goes to. Nothing counts as shipped before
    /// [`Self::shipped`].
    pub(super) fn gather(&self, max_bytes: usize, writes: &mut Vec<Write>) -> Gathered {
        let mut out = Gathered {
            bytes: 0,
            to: self.shipped,
            more: false,
            uncovered: None,
            on_disk: None,
        };
        let (runs, on_disk) = match self.read_from(self.shipped) {
            Some(run) => (vec![run], None),
            None => {
                let shipped = self.set.runs(self.shipped, max_bytes);
                (shipped.runs, shipped.on_disk)
            }
        };
        for run in runs {
            if out.bytes as usize >= max_bytes {
                break;
            }
            if !self.place(run, &mut out, writes) {
                return out;
            }
        }
        out.more = out.bytes > 0 && out.to < self.set.group().end_address();
        // No room for a read is taken while there is none at the backup.
        if let Some((at, stop)) = on_disk.filter(|_| out.bytes == 0) {
            let below = self.buffers.range(..=at).next_back();
            match below
                .map(|(_, buffer)| buffer.end())
                .filter(|end| *end > at)
            {
                Some(end) => out.on_disk = Some((at, stop.min(end))),
                None => out.uncovered = Some((at, (stop - at) as u32)),
            }
        }
        out
    }

    /// What was read of the bytes from `address` on.
    fn read_from(&self, address: u64) -> Option<ShipRun> {
        let run = &self.read.as_ref()?.run;
        let before = address.checked_sub(run.address);
        let before = before.filter(|before| *before < run.len())?;
        let mut parts = run.parts.clone();
        split_front(&mut parts, before as usize);
        Some(ShipRun { address, parts })
    }

    /// Bytes were read that had left memory, if that could be done. They keep their room until they are shipped.
    pub(super) fn has_read(&mut self, run: Option<ShipRun>, room: OwnedSemaphorePermit) {
        self.reading = false;
        self.read = run.map(|run| ReadBack { run, _room: room });
        // It may have been set back meanwhile: what is not shipped next takes no room.
        self.shipped(self.shipped);
    }

    /// Where it is, for people.
    pub(super) fn stands(&self) -> ShipmentStands {
        let last = self.buffers.last_key_value();
        ShipmentStands {
            shipped: self.shipped,
            placed: self.completed,
            reserved: last.map_or(0, |(_, buffer)| buffer.end()),
            is_opening: self.opening,
            is_queued: self.queued,
            is_reading: self.reading,
        }
    }

    /// The backup has everything below `to`.
    pub(super) fn complete(&mut self, to: u64) {
        self.completed = self.completed.max(to);
        if self.completed >= self.next_whole {
            self.whole = self.next_whole;
            self.next_whole = self.set.group().end_address();
            if self.completed >= self.next_whole {
                self.whole = self.next_whole;
            }
        }
    }

    /// What was read before that address, or is not the next there, gives its room back.
    pub(super) fn shipped(&mut self, to: u64) {
        self.shipped = to;
        if self.read_from(to).is_none() {
            self.read = None;
        }
    }

    /// Cuts `run` to buffers; false if one is missing.
    fn place(&self, run: ShipRun, out: &mut Gathered, writes: &mut Vec<Write>) -> bool {
        let (mut address, mut left) = (run.address, run.len());
        let mut parts = run.parts;
        while left > 0 {
            let below = self.buffers.range(..=address).next_back();
            let buffer = below.map(|(_, buffer)| *buffer);
            let room = buffer.map_or(0, |b| b.end().saturating_sub(address));
            let Some(buffer) = buffer.filter(|_| room > 0) else {
                out.uncovered = Some((address, left.min(u64::from(u32::MAX)) as u32));
                return false;
            };
            let bytes = left.min(room);
            // Most runs go to one buffer whole.
            let parts = if bytes == left {
                std::mem::take(&mut parts)
            } else {
                split_front(&mut parts, bytes as usize)
            };
            writes.push(Write {
                buffer: buffer.key,
                offset: address - buffer.address,
                parts,
            });
            address += bytes;
            left -= bytes;
            out.bytes += bytes;
            out.to = address;
        }
        true
    }
}

/// Bytes of the next buffer where so many are reserved.
fn grown(reserved: u64, config: &Config) -> u64 {
    let most = u64::from(config.buffer_bytes);
    reserved.clamp(u64::from(config.first_buffer_bytes).min(most), most)
}

/// Takes the first `bytes` bytes off `parts`, without copying.
fn split_front(parts: &mut Vec<Bytes>, mut bytes: usize) -> Vec<Bytes> {
    let mut front = Vec::new();
    let mut whole = 0;
    for part in parts.iter_mut() {
        if bytes == 0 {
            break;
        }
        let taken = part.split_to(part.len().min(bytes));
        bytes -= taken.len();
        front.push(taken);
        if part.is_empty() {
            whole += 1;
        }
    }
    parts.drain(..whole);
    front
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_grow_from_little_to_a_segment() {
        let config = Config::default();
        let (mut reserved, mut asked) = (0, Vec::new());
        while reserved < 24 << 20 {
            let next = grown(reserved, &config);
            asked.push(next);
            reserved += next;
        }
        assert_eq!(asked[0], 64 << 10, "an idle lane holds little");
        assert!(asked.len() <= 11, "few calls: {asked:?}");
        assert_eq!(
            *asked.last().expect("some"),
            8 << 20,
            "a busy one is not held up"
        );
        assert!(asked.windows(2).all(|pair| pair[1] <= 2 * pair[0]));
    }
}
