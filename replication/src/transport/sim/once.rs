//! A value that comes once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

pub(super) struct Once<T>(Arc<Mutex<Slot<T>>>);

struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

impl<T> Clone for Once<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Once<T> {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Slot {
            value: None,
            waker: None,
        })))
    }

    /// The first value counts.
    pub(super) fn set(&self, value: T) {
        let waker = {
            let mut slot = self.0.lock();
            slot.value.get_or_insert(value);
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn take(&self) -> Option<T> {
        self.0.lock().value.take()
    }
}

impl<T> Future for Once<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.0.lock();
        match slot.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                slot.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
