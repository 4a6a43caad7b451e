//! Calls under way, of which only those are polled that have something to say.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

use crate::transport::Pending;

/// Calls under way, each with what the caller keeps of it. A shipper may wait for thousands of answers:
/// looking at all of them whenever one comes would cost a square of that.
pub(super) struct Calls<K, T> {
    slots: Vec<Option<Call<K, T>>>,
    free: Vec<usize>,
    bells: Arc<Mutex<Rung>>,
}

struct Call<K, T> {
    kept: K,
    call: Pending<T>,
    bell: Arc<Bell>,
}

/// Who has rung since the last look.
#[derive(Default)]
struct Rung {
    slots: Vec<usize>,
    waker: Option<Waker>,
}

/// What a call wakes. A slot may be another call's by then, which is looked at in vain.
struct Bell {
    slot: usize,
    rung: AtomicBool,
    bells: Arc<Mutex<Rung>>,
}

impl Bell {
    fn ring(&self) {
        if self.rung.swap(true, Ordering::AcqRel) {
            return;
        }
        let waker = {
            let mut rung = self.bells.lock();
            rung.slots.push(self.slot);
            rung.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

/// Has `kept` wake the task of `cx`. Costs little where it does so already, which a task finds that goes round often.
pub(super) fn keep_waker(kept: &mut Option<Waker>, cx: &Context<'_>) {
    match kept {
        Some(kept) => kept.clone_from(cx.waker()),
        None => *kept = Some(cx.waker().clone()),
    }
}

impl<K, T> Default for Calls<K, T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            bells: Arc::default(),
        }
    }
}

impl<K, T> Calls<K, T> {
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Takes a call in. It begins with the next [`poll`](Self::poll), for which the task is woken.
    pub(super) fn push(&mut self, kept: K, call: Pending<T>) {
        let slot = self.free.pop().unwrap_or(self.slots.len());
        let bell = Arc::new(Bell {
            slot,
            rung: AtomicBool::new(false),
            bells: self.bells.clone(),
        });
        bell.ring();
        let call = Some(Call { kept, call, bell });
        match self.slots.get_mut(slot) {
            Some(empty) => *empty = call,
            None => self.slots.push(call),
        }
    }

    /// What has been answered by now, in the order in which it was. The task of `cx` is woken for the rest.
    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Vec<(K, T)> {
        let rung = {
            let mut rung = self.bells.lock();
            keep_waker(&mut rung.waker, cx);
            if rung.slots.is_empty() {
                return Vec::new();
            }
            std::mem::take(&mut rung.slots)
        };
        let mut answered = Vec::new();
        for slot in rung {
            let Some(place) = self.slots.get_mut(slot) else {
                continue;
            };
            let Some(under_way) = place else {
                continue;
            };
            // Before it is looked at: what it says from now on is heard again.
            under_way.bell.rung.store(false, Ordering::Release);
            let waker = Waker::from(under_way.bell.clone());
            let polled = under_way
                .call
                .as_mut()
                .poll(&mut Context::from_waker(&waker));
            if let Poll::Ready(result) = polled
                && let Some(Call { kept, .. }) = place.take()
            {
                self.free.push(slot);
                answered.push((kept, result));
            }
        }
        answered
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::oneshot;

    use super::*;

    /// Counts how often its task is woken.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A call whose answer comes through the sender, and which counts how often it is looked at.
    fn call(looks: &Arc<AtomicUsize>) -> (oneshot::Sender<u32>, Pending<u32>) {
        let (answer, mut answered) = oneshot::channel();
        let looks = looks.clone();
        let call = std::future::poll_fn(move |cx| {
            looks.fetch_add(1, Ordering::Relaxed);
            std::pin::Pin::new(&mut answered)
                .poll(cx)
                .map(Result::unwrap)
        });
        (answer, Box::pin(call))
    }

    #[test]
    fn each_call_is_looked_at_once_when_it_begins_and_once_when_it_is_answered() {
        const CALLS: u32 = 1000;
        let looks = Arc::new(AtomicUsize::new(0));
        let task = Arc::new(Task::default());
        let waker = Waker::from(task.clone());
        let cx = Context::from_waker(&waker);
        let mut calls = Calls::default();
        let mut answers = Vec::new();
        for number in 0..CALLS {
            let (answer, call) = call(&looks);
            answers.push(answer);
            calls.push(number, call);
        }
        assert!(calls.poll(&cx).is_empty());
        // The last comes first: the order is that of the answers.
        for (answer, number) in answers.into_iter().zip(0..CALLS).rev() {
            let before = task.0.load(Ordering::Relaxed);
            answer.send(number * 2).unwrap();
            assert_eq!(task.0.load(Ordering::Relaxed), before + 1);
            assert_eq!(calls.poll(&cx), [(number, number * 2)]);
            assert!(calls.poll(&cx).is_empty());
        }
        assert!(calls.is_empty());
        assert_eq!(looks.load(Ordering::Relaxed), 2 * CALLS as usize);
    }

    #[test]
    fn a_call_that_is_taken_in_between_two_looks_wakes_the_task() {
        let looks = Arc::new(AtomicUsize::new(0));
        let task = Arc::new(Task::default());
        let waker = Waker::from(task.clone());
        let cx = Context::from_waker(&waker);
        let mut calls = Calls::default();
        assert!(calls.poll(&cx).is_empty());
        // In a place that another has left, too.
        for round in 1..=3 {
            let (answer, call) = call(&looks);
            answer.send(7).unwrap();
            calls.push(round, call);
            assert_eq!(task.0.load(Ordering::Relaxed), round);
            assert_eq!(calls.poll(&cx), [(round, 7)]);
        }
        assert_eq!(calls.slots.len(), 1);
    }

    #[test]
    fn a_call_that_wakes_itself_is_looked_at_again() {
        let mut left = 3;
        let call = std::future::poll_fn(move |cx| {
            left -= 1;
            cx.waker().wake_by_ref();
            match left {
                0 => Poll::Ready(9),
                _ => Poll::Pending,
            }
        });
        let waker = Waker::noop();
        let cx = Context::from_waker(waker);
        let mut calls = Calls::default();
        calls.push((), Box::pin(call));
        assert!(calls.poll(&cx).is_empty());
        assert!(calls.poll(&cx).is_empty());
        assert_eq!(calls.poll(&cx), [((), 9)]);
    }
}
