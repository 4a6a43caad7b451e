//! The way to etcd: the client, and the threads its calls run on.

use std::future::Future;
use std::sync::{Arc, mpsc};

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;

use super::client::Client;
use crate::error::MetadataError;

/// A runtime of its own, so that callers need none and leases are kept whatever callers do.
pub(super) struct Reach {
    pub(super) client: Arc<Client>,
    handle: Handle,
    runtime: Mutex<Option<Runtime>>,
}

impl Reach {
    pub(super) fn new(client: Client) -> Result<Self, MetadataError> {
        let client = Arc::new(client);
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("kera-etcd")
            .enable_all()
            .build()
            .map_err(|error| MetadataError::Storage {
                path: client.location().path(),
                detail: format!("the system starts no thread: {error}"),
            })?;
        Ok(Self {
            client,
            handle: runtime.handle().clone(),
            runtime: Mutex::new(Some(runtime)),
        })
    }

    /// Runs a call and waits for it; on any thread, but those of this runtime.
    pub(super) fn run<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, MetadataError>> + Send + 'static,
    ) -> Result<T, MetadataError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.handle.spawn(async move {
            // Nobody listens any more where the caller's thread ended.
            let _ = sender.send(call.await);
        });
        receiver.recv().unwrap_or(Err(MetadataError::Closed))
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.handle.spawn(task).abort_handle()
    }
}

impl Drop for Reach {
    fn drop(&mut self) {
        // Does not wait, so that the last handle may be dropped anywhere.
        if let Some(runtime) = self.runtime.lock().take() {
            runtime.shutdown_background();
        }
    }
}
