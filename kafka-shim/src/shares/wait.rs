//! Waiting for records.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use kera_log_segments::head::LaneHead;
use kera_protocol::ids::Ordinal;

/// Ends when one of the heads has passed its ordinal.
#[derive(Default)]
pub(super) struct HeadsMove {
    pub(super) heads: Vec<(Arc<LaneHead>, Ordinal)>,
    waker: Option<Waker>,
}

impl Future for HeadsMove {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let same = self
            .waker
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()));
        if !same {
            self.forget();
            self.waker = Some(cx.waker().clone());
        }
        let mut heads = self.heads.iter();
        match heads.all(|(head, seen)| head.wait(seen + 1, cx.waker())) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }
}

impl HeadsMove {
    fn forget(&mut self) {
        if let Some(waker) = self.waker.take() {
            for (head, _) in &self.heads {
                head.forget(&waker);
            }
        }
    }
}

/// Idle lanes must not collect wakers of requests that are answered.
impl Drop for HeadsMove {
    fn drop(&mut self) {
        self.forget();
    }
}
