//! Appends that wait for their lane's head, in the order in which it reaches them: a head that moves
//! wakes those it has passed, and nobody else looks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::lane::{AppendError, Head, Lane};

/// Who waits for which head.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    next: u64,
    wakers: BTreeMap<(Head, u64), Waker>,
}

impl Waiting {
    /// Takes out all that wait for `head` or less.
    pub(super) fn reached(&mut self, head: Head) -> Vec<Waker> {
        // Mostly nobody waits, or all that do have waited for this.
        match self.wakers.last_key_value() {
            None => return Vec::new(),
            Some(((last, _), _)) if *last <= head => return self.all(),
            Some(_) => {}
        }
        let beyond = self.wakers.split_off(&(head, u64::MAX));
        let reached = std::mem::replace(&mut self.wakers, beyond);
        reached.into_values().collect()
    }

    /// Takes out all.
    pub(super) fn all(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wakers).into_values().collect()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.wakers.len()
    }
}

/// One append's wait; leaves its place when it is dropped.
pub(super) struct Ticket {
    lane: Arc<Lane>,
    wanted: Head,
    number: Option<u64>,
}

impl Ticket {
    pub(super) fn new(lane: Arc<Lane>, wanted: Head) -> Self {
        Self {
            lane,
            wanted,
            number: None,
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), AppendError>> {
        let (wanted, number) = (self.wanted, self.number);
        let registered = self.lane.with_waiting(|head, deposed, waiting| {
            if let Some(error) = deposed {
                return Err(Poll::Ready(Err(AppendError::Deposed(error.clone()))));
            }
            if head >= wanted {
                return Err(Poll::Ready(Ok(())));
            }
            let number = number.unwrap_or_else(|| {
                waiting.next += 1;
                waiting.next
            });
            let waker = cx.waker().clone();
            waiting.wakers.insert((wanted, number), waker);
            Ok(number)
        });
        match registered {
            Ok(number) => {
                self.number = Some(number);
                Poll::Pending
            }
            Err(ready) => ready,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let place = (self.wanted, number);
            let left = self
                .lane
                .with_waiting(|_, _, waiting| waiting.wakers.remove(&place));
            // A waker may hold a task, which is dropped without the lane's lock.
            drop(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_protocol::ids::GroupId;

    #[test]
    fn a_head_wakes_whom_it_has_passed_and_nobody_else() {
        let at = |group, address| Head {
            group: GroupId(group),
            address,
        };
        let mut waiting = Waiting::default();
        for (number, head) in [at(1, 10), at(1, 20), at(1, 20), at(2, 5), at(1, 30)]
            .into_iter()
            .enumerate()
        {
            let key = (head, number as u64);
            waiting.wakers.insert(key, Waker::noop().clone());
        }
        assert_eq!(waiting.reached(at(1, 20)).len(), 3);
        assert_eq!(waiting.reached(at(1, 20)).len(), 0);
        assert_eq!(waiting.reached(at(2, 4)).len(), 1);
        assert_eq!(waiting.len(), 1);
        assert_eq!(waiting.all().len(), 1);
    }
}
