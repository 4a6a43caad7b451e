//! What one connection claims of the bytes that all connections together may hold: for a large frame
//! that is on its way in, and for what waits to be sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::start::Shared;

/// Frames up to this size need no claim: the buffer that every connection has holds them.
const SMALL_FRAME: usize = 256 * 1024;
/// A larger frame must have arrived by then, as others may wait for its claim.
pub const FRAME_WITHIN: Duration = Duration::from_secs(60);
/// A connection stops serving reads and pushes with so much still to be sent.
const SEND_AHEAD: usize = 1 << 20;
/// Most bytes of one read or push.
const MOST: usize = 8 << 20;
/// Most bytes of one read or push while all connections together hold too much.
pub const MOST_IN_A_CROWD: usize = 64 << 10;

/// One connection's claims; released when dropped.
pub struct Claims {
    shared: Arc<Shared>,
    frame: usize,
    frame_since: Instant,
    outgoing: usize,
}

impl Claims {
    /// No claims yet.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            frame: 0,
            frame_since: Instant::now(),
            outgoing: 0,
        }
    }

    /// Claims room for an incoming frame of `total` bytes. False: there is too much in flight; ask
    /// again later.
    pub fn admit_frame(&mut self, total: usize) -> bool {
        if self.frame > 0 || total <= SMALL_FRAME {
            return true;
        }
        let limit = self.shared.config.server.max_in_flight_bytes;
        let more = total as u64;
        // One at least is always admitted.
        let admit = |now: u64| (now == 0 || now + more <= limit).then_some(now + more);
        let in_flight = &self.shared.in_flight;
        let admitted = in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, admit);
        if admitted.is_ok() {
            (self.frame, self.frame_since) = (total, Instant::now());
        }
        admitted.is_ok()
    }

    /// The frame was worked on: its claim ends, the batches in it are counted where they wait.
    pub fn end_frame(&mut self) {
        let ended = std::mem::take(&mut self.frame);
        if ended > 0 {
            self.shared
                .in_flight
                .fetch_sub(ended as u64, Ordering::Relaxed);
        }
    }

    /// True while a frame has a claim.
    pub fn has_frame(&self) -> bool {
        self.frame > 0
    }

    /// True if a frame has had its claim for longer than a frame may take.
    pub fn is_late(&self, now: Instant) -> bool {
        self.has_frame() && now.duration_since(self.frame_since) > FRAME_WITHIN
    }

    /// Bytes that the next read or push may bring when `waiting` bytes are still to be sent. 0: none
    /// may be served before some are sent.
    pub fn room_to_send(&self, waiting: usize) -> usize {
        if waiting >= SEND_AHEAD {
            return 0;
        }
        // What waits is mostly the pool's memory, which appends need as well.
        let pool = self.shared.env.pool.limit() as u64;
        let limit = self.shared.config.server.max_in_flight_bytes.min(pool / 2);
        if self.shared.outgoing.load(Ordering::Relaxed) < limit {
            MOST
        } else if waiting == 0 {
            // Each connection goes on, in small steps.
            MOST_IN_A_CROWD
        } else {
            0
        }
    }

    /// The connection holds `bytes` that are to be sent.
    pub fn hold_outgoing(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.outgoing, bytes);
        let outgoing = &self.shared.outgoing;
        if bytes > before {
            outgoing.fetch_add((bytes - before) as u64, Ordering::Relaxed);
        } else if bytes < before {
            outgoing.fetch_sub((before - bytes) as u64, Ordering::Relaxed);
        }
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        self.end_frame();
        self.hold_outgoing(0);
    }
}
