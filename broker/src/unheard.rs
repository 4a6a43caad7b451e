//! Connections that have not said yet what they want. Where all places are taken, the one that has been
//! silent for longest makes room for who comes: to open a connection costs a stranger nothing.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::oneshot;

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    all: BTreeMap<u64, oneshot::Sender<()>>,
}

/// The silent ones, oldest first.
#[derive(Debug, Default)]
pub struct Unheard(Mutex<Waiting>);

/// Told when a silent connection's place is wanted.
#[derive(Debug)]
pub struct Wanted(oneshot::Receiver<()>);

impl Wanted {
    /// Waits until its place is wanted; for ever, once it was heard.
    pub async fn wait(self) {
        if self.0.await.is_err() {
            std::future::pending().await
        }
    }
}

impl Unheard {
    /// One more, until it [leaves](Self::leave).
    pub(crate) fn enter(&self) -> (u64, Wanted) {
        let (want, wanted) = oneshot::channel();
        let mut waiting = self.0.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.all.insert(number, want);
        (number, Wanted(wanted))
    }

    /// It was heard, or has ended.
    pub(crate) fn leave(&self, number: u64) {
        self.0.lock().all.remove(&number);
    }

    /// Ends the one that has been silent for longest; false if there is none.
    pub fn end_oldest(&self) -> bool {
        let mut waiting = self.0.lock();
        let Some((_, want)) = waiting.all.pop_first() else {
            return false;
        };
        // It may just have ended by itself: its place is free all the same.
        let _ = want.send(());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_that_was_not_heard_makes_room() {
        let unheard = Unheard::default();
        assert!(!unheard.end_oldest());
        let (heard, _kept) = unheard.enter();
        let (_, oldest) = unheard.enter();
        let (_, newest) = unheard.enter();
        unheard.leave(heard);
        assert!(unheard.end_oldest());
        oldest.wait().await;
        assert!(unheard.end_oldest());
        newest.wait().await;
        assert!(!unheard.end_oldest());
    }
}
