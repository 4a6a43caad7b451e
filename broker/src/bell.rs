//! A waker that can be waited for.

use std::sync::Arc;
use std::task::Wake;

use tokio::sync::Notify;

/// Wakes a task from anywhere: as a [`std::task::Waker`] it notifies whoever waits for it.
#[derive(Debug, Default)]
pub struct Bell(Notify);

impl Bell {
    /// Wakes the task that waits, or the next that does.
    pub fn ring(&self) {
        self.0.notify_one();
    }

    /// Waits until it is rung; once it was, returns at once.
    pub async fn rung(&self) {
        self.0.notified().await;
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
