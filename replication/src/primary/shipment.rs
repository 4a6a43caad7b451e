//! One group on its way to one backup: a small state that can be set back at any time. After a
//! break everything above what completed is sent again (RAMCloud's ReplicatedSegment is the idea).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::copy_set::CopySet;
use super::source::{Run, Shape};
use crate::ids::{BackupId, BufferKey};
use crate::transport::{Buffer, Request, Write};

/// A group on its way to one backup.
pub(super) struct Shipment {
    pub(super) set: Arc<CopySet>,
    /// The backup's number in the set.
    pub(super) index: usize,
    /// Reserved buffers, by address.
    buffers: BTreeMap<u64, Buffer>,
    /// Handed to the link up to here.
    shipped: u64,
    /// Seen to be in the backup's memory up to here.
    pub(super) completed: u64,
    /// A request for buffers is under way.
    pub(super) opening: bool,
    /// It waits for its turn.
    pub(super) queued: bool,
}

/// What a gathering found.
pub(super) struct Gathered {
    pub(super) writes: Vec<Write>,
    pub(super) bytes: u64,
    /// The address up to which the copy is complete once the writes are.
    pub(super) to: u64,
    /// There is more than the budget allowed.
    pub(super) more: bool,
    /// The first address without a buffer, and the bytes known to need one.
    pub(super) uncovered: Option<(u64, u32)>,
}

impl Shipment {
    pub(super) fn new(set: Arc<CopySet>, index: usize) -> Self {
        Self {
            set,
            index,
            buffers: BTreeMap::new(),
            shipped: 0,
            completed: 0,
            opening: false,
            queued: false,
        }
    }

    /// The request for buffers from `address` on; at least `least` bytes of them.
    pub(super) fn request(
        &self,
        me: BackupId,
        address: u64,
        asked: u32,
        least: u32,
    ) -> Option<Request> {
        let holder = *self.set.holders().get(self.index)?;
        let Shape {
            segment_size,
            segments,
        } = self.set.source().shape();
        let left = u64::from(segment_size) - address % u64::from(segment_size);
        let bytes = u64::from(asked.max(least)).min(left) as u32;
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

    pub(super) fn add_buffers(&mut self, buffers: &[Buffer]) {
        for buffer in buffers {
            self.buffers.insert(buffer.address, *buffer);
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
        self.shipped = self.completed;
    }

    /// What grew, cut to the buffers it goes to. Nothing counts as shipped before [`Self::shipped`].
    pub(super) fn gather(&self, max_bytes: usize) -> Gathered {
        let mut out = Gathered {
            writes: Vec::new(),
            bytes: 0,
            to: self.shipped,
            more: false,
            uncovered: None,
        };
        for run in self.set.source().runs(self.shipped, max_bytes) {
            if out.bytes as usize >= max_bytes {
                break;
            }
            if !self.place(run, &mut out) {
                return out;
            }
        }
        out.more = out.to > self.shipped && out.to < self.set.source().end().address;
        out
    }

    pub(super) fn shipped(&mut self, to: u64) {
        self.shipped = to;
    }

    /// Cuts `run` to buffers; false if one is missing.
    fn place(&self, run: Run, out: &mut Gathered) -> bool {
        let (mut address, mut left) = (run.address, run.len());
        let mut parts = run.parts;
        while left > 0 {
            let below = self.buffers.range(..=address).next_back();
            let buffer = below.map(|(_, buffer)| *buffer);
            let room = buffer.map_or(0, |b| {
                (b.address + u64::from(b.bytes)).saturating_sub(address)
            });
            let Some(buffer) = buffer.filter(|_| room > 0) else {
                out.uncovered = Some((address, left.min(u64::from(u32::MAX)) as u32));
                return false;
            };
            let bytes = left.min(room);
            out.writes.push(Write {
                buffer: buffer.key,
                offset: address - buffer.address,
                parts: split_front(&mut parts, bytes as usize),
            });
            address += bytes;
            left -= bytes;
            out.bytes += bytes;
            out.to = address;
        }
        true
    }
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
