//! How far this broker has read the history of the shared store, kept in its data directory: an older state
//! of the store, such as of a snapshot, is to tell it nothing after a restart either.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::shared::Shared;

/// How often it is written, where the store has changed at all.
const INTERVAL: Duration = Duration::from_secs(5);

/// Remembers that the store has been at `revision`; waits for the disk.
pub(crate) fn keep(shared: &Shared, revision: u64) {
    if let Err(error) = shared.dir.keep_revision(revision) {
        // A full disk is no reason to serve nothing; it is tried again.
        tracing::warn!(revision, %error, "how far the metadata store was read cannot be remembered");
    }
}

/// Remembers what is `seen` of the store, from time to time, until the broker stops.
pub(super) async fn keep_up(shared: Arc<Shared>, mut seen: watch::Receiver<u64>) {
    let mut stopping = shared.stopping.subscribe();
    loop {
        let mut last = false;
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            _ = stopping.wait_for(|stop| *stop) => last = true,
        }
        let revision = *seen.borrow_and_update();
        let keeping = shared.clone();
        let kept = tokio::task::spawn_blocking(move || keep(&keeping, revision));
        if let Err(error) = kept.await {
            tracing::error!(%error, "remembering how far the metadata store was read failed");
        }
        if last {
            return;
        }
    }
}
