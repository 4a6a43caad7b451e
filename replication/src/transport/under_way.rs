//! What was handed to a link and is not complete: submissions are numbered, and complete in order.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::LinkError;

/// A submission, and how many writes are complete once it is.
#[derive(Debug)]
struct Submission {
    number: u64,
    writes: u64,
}

/// The submissions of a link that are not complete, and how long nothing has been heard of them.
#[derive(Debug)]
pub(super) struct UnderWay {
    submissions: VecDeque<Submission>,
    next: u64,
    /// Writes handed over.
    writes: u64,
    /// When something was last heard, or became due.
    heard: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl UnderWay {
    /// Nothing yet. Once there is something, something is to be heard within `patience`.
    pub(super) fn new(patience: Duration) -> Self {
        let now = Instant::now();
        Self {
            submissions: VecDeque::new(),
            next: 1,
            writes: 0,
            heard: now,
            alarm: Box::pin(tokio::time::sleep_until(now + patience)),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.submissions.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.submissions.len()
    }

    /// Writes handed over.
    pub(super) fn writes(&self) -> u64 {
        self.writes
    }

    /// So many more writes are one submission; its number.
    pub(super) fn submit(&mut self, writes: u64) -> u64 {
        if self.submissions.is_empty() {
            self.heard = Instant::now();
        }
        self.writes += writes;
        let number = self.next;
        self.next += 1;
        self.submissions.push_back(Submission {
            number,
            writes: self.writes,
        });
        number
    }

    /// Whether a submission that was not returned is complete, with so many writes.
    pub(super) fn has_completed(&self, writes: u64) -> bool {
        let first = self.submissions.front();
        first.is_some_and(|first| first.writes <= writes)
    }

    /// The highest submission that is complete with so many writes and was not returned; without one how the link
    /// ended. What completed before the end is complete.
    pub(super) fn poll_completed(
        &mut self,
        cx: &Context<'_>,
        writes: u64,
        failed: Option<&LinkError>,
    ) -> Poll<Result<u64, LinkError>> {
        let mut highest = None;
        while self.has_completed(writes) {
            highest = self.submissions.pop_front();
        }
        match (highest, failed) {
            (Some(highest), None) => Poll::Ready(Ok(highest.number)),
            (Some(highest), Some(_)) => {
                cx.waker().wake_by_ref();
                Poll::Ready(Ok(highest.number))
            }
            (None, Some(error)) => Poll::Ready(Err(error.clone())),
            (None, None) => Poll::Pending,
        }
    }

    /// Something was heard.
    pub(super) fn heard(&mut self) {
        self.heard = Instant::now();
    }

    /// From now on something is to be heard sooner.
    #[cfg(feature = "rdma")]
    pub(super) fn hurry(&mut self, patience: Duration) {
        self.heard = Instant::now();
        self.alarm.as_mut().reset(self.heard + patience);
    }

    /// Whether nothing was heard for `patience`, though something is due; looks again then.
    pub(super) fn is_overdue(&mut self, cx: &mut Context<'_>, patience: Duration) -> bool {
        while self.alarm.as_mut().poll(cx).is_ready() {
            let due = self.heard + patience;
            if Instant::now() >= due {
                return true;
            }
            self.alarm.as_mut().reset(due);
        }
        false
    }
}
