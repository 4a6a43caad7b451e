//! What a store may hold, and what it says when that is reached.

use super::{Control, ReplicaStore};
use crate::ids::StreamletKey;
use crate::transport::{Refusal, Room};

/// What a store may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of shared memory: what is reserved for buffers of all copies together, a page for the record of
    /// each that is not on the disk alone, and the seals. A primary's memory is not part of it.
    pub memory_bytes: u64,
    /// Copies that are not on the disk alone: each has a file on shared memory, mostly open and mapped.
    pub copies_in_memory: usize,
    /// Copies, those included that are on the disk alone. Of each of these the process remembers what
    /// it is and where it lies: that takes about 1.5 KiB of its memory, and no open file.
    pub copies: usize,
    /// Streamlets that are remembered: a copy of theirs came here, or their seal did. Those of streams
    /// that are gone are forgotten when somebody says so
    /// ([`Request::Forget`](crate::transport::Request::Forget)).
    pub streamlets: usize,
}

impl Default for Limits {
    /// 1 GiB, 262,144 copies in memory, 4,194,304 in all, and 65,536 streamlets.
    fn default() -> Self {
        Self {
            memory_bytes: 1 << 30,
            copies_in_memory: 1 << 18,
            copies: 1 << 22,
            streamlets: 1 << 16,
        }
    }
}

/// Limits of which the log was told that they are reached.
#[derive(Debug, Default)]
pub(super) struct Told {
    in_memory: bool,
    copies: bool,
    streamlets: bool,
}

/// Whether `count` has reached `limit`; says so once, and again after it was well below.
fn reached(count: usize, limit: usize, room: Room, told: &mut bool) -> bool {
    if count < limit {
        *told &= count >= limit - limit / 8;
        return false;
    }
    if !*told {
        *told = true;
        tracing::warn!(
            count,
            "no room for more {room} of other brokers: {} is reached; raise it, or add a broker",
            room.key()
        );
    }
    true
}

impl ReplicaStore {
    /// The number of copies that is reached, if one is: nothing is opened then.
    pub(super) fn full_of_copies(&self, control: &mut Control) -> Option<Room> {
        let all = control.copies.len();
        let in_memory = all.saturating_sub(control.on_disk);
        let told = &mut control.told;
        let room = Room::Copies;
        if reached(all, self.limits.copies, room, &mut told.copies) {
            return Some(room);
        }
        let room = Room::CopiesInMemory;
        reached(
            in_memory,
            self.limits.copies_in_memory,
            room,
            &mut told.in_memory,
        )
        .then_some(room)
    }

    /// Whether `new` streamlets can be remembered beside those that are.
    ///
    /// # Errors
    /// [`Refusal::NoRoom`] if not.
    pub(super) fn room_for_streamlets(
        &self,
        control: &mut Control,
        new: usize,
    ) -> Result<(), Refusal> {
        let (count, limit) = (control.seals.len(), self.limits.streamlets);
        let wanted = count + new.saturating_sub(1);
        let room = Room::Streamlets;
        if new > 0 && reached(wanted, limit, room, &mut control.told.streamlets) {
            return Err(Refusal::NoRoom {
                of: room,
                asked: new as u64,
                free: limit.saturating_sub(count) as u64,
            });
        }
        Ok(())
    }

    /// Remembers the streamlet of a copy that is about to be made, so that there is room for its seal,
    /// and for its being freed, when they come.
    pub(super) fn meet(
        &self,
        control: &mut Control,
        streamlet: StreamletKey,
    ) -> Result<(), Refusal> {
        if !control.seals.knows(&streamlet) {
            self.room_for_streamlets(control, 1)?;
            control.seals.meet(streamlet);
        }
        Ok(())
    }
}
