//! What of a link's send memory and queue is in use: a ring of bytes and a line of requests, both
//! freed in the order in which they were taken.

use std::collections::VecDeque;

use crate::ids::BufferKey;

/// A request that was posted and has not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Posted {
    /// What the ring is free up to once it has.
    filled: u64,
    /// The writes that are whole once it has, counted from the link's beginning.
    writes: u64,
    buffer: BufferKey,
}

/// A place in the send memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) at: usize,
    pub(super) len: usize,
}

/// The state of both.
#[derive(Debug)]
pub(super) struct Window {
    bytes: usize,
    requests: usize,
    posted: VecDeque<Posted>,
    /// The number of the request at the front of `posted`.
    first: u64,
    /// Bytes taken and freed since the beginning.
    filled: u64,
    freed: u64,
    /// Writes that have completed.
    writes: u64,
}

impl Window {
    /// An empty one over `bytes` bytes of send memory and a queue of `requests` requests.
    pub(super) fn new(bytes: usize, requests: usize) -> Self {
        Self {
            bytes,
            requests,
            posted: VecDeque::with_capacity(requests),
            first: 1,
            filled: 0,
            freed: 0,
            writes: 0,
        }
    }

    /// A place for up to `wanted` bytes, without a gap; `None` if memory or queue is used up.
    pub(super) fn room(&self, wanted: usize) -> Option<Place> {
        if self.posted.len() >= self.requests || wanted == 0 {
            return None;
        }
        let used = (self.filled - self.freed) as usize;
        let at = (self.filled % self.bytes as u64) as usize;
        let len = wanted.min(self.bytes - used).min(self.bytes - at);
        (len > 0).then_some(Place { at, len })
    }

    /// Takes the next `len` bytes for a request to `buffer`, after which `writes` writes are
    /// whole; the request's number.
    pub(super) fn take(&mut self, len: usize, writes: u64, buffer: BufferKey) -> u64 {
        self.filled += len as u64;
        self.posted.push_back(Posted {
            filled: self.filled,
            writes,
            buffer,
        });
        self.first + self.posted.len() as u64 - 1
    }

    /// All requests up to `number` have completed. Numbers that are not under way change nothing.
    pub(super) fn completed(&mut self, number: u64) {
        while self.first <= number {
            let Some(posted) = self.posted.pop_front() else {
                return;
            };
            self.first += 1;
            self.freed = posted.filled;
            self.writes = posted.writes;
        }
    }

    /// Writes that have completed, counted from the link's beginning.
    pub(super) fn writes(&self) -> u64 {
        self.writes
    }

    /// The buffer that request `number` writes, if it is under way.
    pub(super) fn buffer(&self, number: u64) -> Option<BufferKey> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.posted.get(at).map(|posted| posted.buffer)
    }

    /// True if nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: BufferKey = BufferKey(3);

    #[test]
    fn bytes_are_used_again_once_they_were_sent() {
        let mut window = Window::new(100, 8);
        assert_eq!(window.room(60), Some(Place { at: 0, len: 60 }));
        assert_eq!(window.take(60, 1, KEY), 1);
        // What does not fit comes in two pieces, the second from the beginning.
        assert_eq!(window.room(60), Some(Place { at: 60, len: 40 }));
        assert_eq!(window.take(40, 1, KEY), 2);
        assert_eq!(window.room(20), None);
        window.completed(1);
        assert_eq!(window.writes(), 1);
        assert_eq!(window.room(20), Some(Place { at: 0, len: 20 }));
        assert_eq!(window.take(20, 2, BufferKey(4)), 3);
        assert_eq!(
            (window.buffer(2), window.buffer(3)),
            (Some(KEY), Some(BufferKey(4)))
        );
        assert_eq!((window.buffer(1), window.buffer(4)), (None, None));
        window.completed(3);
        assert!(window.is_empty());
        assert_eq!(window.writes(), 2);
        window.completed(9);
        assert_eq!(window.take(1, 3, KEY), 4);
    }

    #[test]
    fn the_queue_bounds_small_requests() {
        let mut window = Window::new(100, 2);
        window.take(1, 1, KEY);
        window.take(1, 2, KEY);
        assert_eq!(window.room(1), None);
        window.completed(1);
        assert!(window.room(1).is_some());
    }

    proptest! {
        #[test]
        fn no_byte_is_taken_twice(steps in prop::collection::vec((1usize..40, 0u64..3), 1..200)) {
            let mut window = Window::new(64, 6);
            let mut owner = [0u64; 64];
            let mut under_way: VecDeque<(u64, Place)> = VecDeque::new();
            for (wanted, completes) in steps {
                if let Some(place) = window.room(wanted) {
                    prop_assert!(place.len <= wanted && place.at + place.len <= 64);
                    let number = window.take(place.len, 0, KEY);
                    for byte in &mut owner[place.at..place.at + place.len] {
                        prop_assert_eq!(*byte, 0, "a byte under way is taken again");
                        *byte = number;
                    }
                    under_way.push_back((number, place));
                } else {
                    prop_assert!(!under_way.is_empty(), "nothing is under way and there is no room");
                }
                for _ in 0..completes {
                    let Some((number, place)) = under_way.pop_front() else { break };
                    owner[place.at..place.at + place.len].fill(0);
                    window.completed(number);
                }
                prop_assert_eq!(window.is_empty(), under_way.is_empty());
            }
        }
    }
}
