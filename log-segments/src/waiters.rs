//! Who waits for a lane's head: a handful as a rule, thousands where many consumers follow one lane.

use std::collections::{BTreeMap, HashMap};
use std::task::Waker;

use kera_protocol::ids::Ordinal;

/// So many are searched one by one: quicker than any index, and without its memory.
const FEW: usize = if cfg!(test) { 8 } else { 256 };

/// What wakers share that wake the same task: the address of what they keep alive, which no two
/// tasks have in common while a waker of each is held. (Their tables of functions may differ even
/// then, so that `Waker::will_wake` may not know a clone.)
type Id = usize;

fn id_of(waker: &Waker) -> Id {
    waker.data().addr()
}

/// Wakers, each with the nearest ordinal that it waits for. Every operation takes at most O(log n) for
/// each waker that it concerns, however many others wait.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// All of them, as long as they are few.
    few: Vec<(Ordinal, Waker)>,
    /// All of them from then on until none is left, by what they wait for
    queue: BTreeMap<(Ordinal, Id), Waker>,
    /// and by themselves.
    known: HashMap<Id, Ordinal>,
}

impl Waiters {
    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.few.len() + self.queue.len()
    }

    /// Adds a waker. One that waits already waits for the nearer of both ordinals.
    pub(crate) fn add(&mut self, until: Ordinal, waker: &Waker) {
        let id = id_of(waker);
        if self.queue.is_empty() {
            if let Some((known, _)) = self.few.iter_mut().find(|(_, w)| id_of(w) == id) {
                *known = until.min(*known);
                return;
            }
            if self.few.len() < FEW {
                self.few.push((until, waker.clone()));
                return;
            }
            for (until, waker) in std::mem::take(&mut self.few) {
                self.enqueue(until, waker);
            }
        }
        match self.known.get_mut(&id) {
            None => self.enqueue(until, waker.clone()),
            Some(known) if *known <= until => {}
            Some(known) => {
                let before = std::mem::replace(known, until);
                if let Some(waker) = self.queue.remove(&(before, id)) {
                    self.queue.insert((until, id), waker);
                }
            }
        }
    }

    fn enqueue(&mut self, until: Ordinal, waker: Waker) {
        let id = id_of(&waker);
        self.known.insert(id, until);
        self.queue.insert((until, id), waker);
    }

    /// Moves those that wait for `ordinal` or less to `due`.
    pub(crate) fn take_due(&mut self, ordinal: Ordinal, due: &mut Vec<Waker>) {
        let mut at = 0;
        while at < self.few.len() {
            if self.few[at].0 <= ordinal {
                due.push(self.few.swap_remove(at).1);
            } else {
                at += 1;
            }
        }
        while let Some(first) = self.queue.first_entry() {
            let (until, id) = *first.key();
            if until > ordinal {
                break;
            }
            due.push(first.remove());
            self.known.remove(&id);
        }
    }

    /// Takes all of them.
    pub(crate) fn take_all(&mut self) -> Vec<Waker> {
        let mut all = Vec::with_capacity(self.len());
        self.take_due(Ordinal::MAX, &mut all);
        all
    }

    /// Forgets a waker.
    pub(crate) fn forget(&mut self, waker: &Waker) {
        let id = id_of(waker);
        self.few.retain(|(_, w)| id_of(w) != id);
        if let Some(until) = self.known.remove(&id) {
            self.queue.remove(&(until, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Add(usize, Ordinal),
        Due(Ordinal),
        Forget(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => (0..40_usize, 0..100_u64).prop_map(|(who, until)| Step::Add(who, until)),
            1 => (0..100_u64).prop_map(Step::Due),
            2 => (0..40_usize).prop_map(Step::Forget),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// Few or many, the same are woken as if each was looked at.
        #[test]
        fn whoever_is_due_is_woken_and_nobody_else(steps in steps()) {
            let woken: Vec<Arc<Counted>> = (0..40).map(|_| Arc::default()).collect();
            let wakers: Vec<Waker> = woken.iter().map(|w| Waker::from(w.clone())).collect();
            let mut expected: BTreeMap<usize, Ordinal> = BTreeMap::new();
            let mut waiters = Waiters::default();
            for step in steps {
                match step {
                    Step::Add(who, until) => {
                        waiters.add(until, &wakers[who]);
                        let known = expected.entry(who).or_insert(until);
                        *known = until.min(*known);
                    }
                    Step::Forget(who) => {
                        waiters.forget(&wakers[who]);
                        expected.remove(&who);
                    }
                    Step::Due(ordinal) => {
                        let mut due = Vec::new();
                        waiters.take_due(ordinal, &mut due);
                        due.into_iter().for_each(Waker::wake);
                        for (who, counted) in woken.iter().enumerate() {
                            let is_due = expected.get(&who).is_some_and(|until| *until <= ordinal);
                            prop_assert_eq!(counted.0.swap(0, Ordering::Relaxed), usize::from(is_due));
                        }
                        expected.retain(|_, until| *until > ordinal);
                    }
                }
                prop_assert_eq!(waiters.len(), expected.len());
            }
            prop_assert_eq!(waiters.take_all().len(), expected.len());
            prop_assert_eq!(waiters.len(), 0);
            // Nothing is held on to.
            drop(waiters);
            drop(wakers);
            prop_assert!(woken.iter().all(|w| Arc::strong_count(w) == 1));
        }
    }
}
