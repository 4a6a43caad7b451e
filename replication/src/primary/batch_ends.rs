//! Where batches of an open group end: an address that replicas reached is rounded down to one of them.

use std::collections::VecDeque;

use kera_log_segments::window::Place;
use parking_lot::Mutex;

/// Ends of appends remembered. With more under way the last one stands for those behind it.
const MAX_ENDS: usize = 4096;

/// Where appends ended that are not known to be durable, in order of address.
#[derive(Default)]
pub(super) struct BatchEnds(Mutex<VecDeque<Place>>);

impl BatchEnds {
    /// Remembers that a batch ended here.
    pub(super) fn note(&self, place: Place) {
        let mut ends = self.0.lock();
        if ends
            .back()
            .is_some_and(|last| last.address >= place.address)
        {
            return;
        }
        if ends.len() >= MAX_ENDS {
            ends.pop_back();
        }
        ends.push_back(place);
    }

    /// The last end at or below `address`; those before it are forgotten.
    pub(super) fn last_until(&self, address: u64) -> Option<Place> {
        let mut ends = self.0.lock();
        let passed = ends.partition_point(|place| place.address <= address);
        ends.drain(..passed).next_back()
    }
}
