//! How far the owners of streamlets, as the shared store tells of them, are known here. Apart from `owners`, so that
//! what all parts share can name it.

use std::collections::HashMap;

use kera_metadata::StreamletRecord;
use kera_protocol::ids::StreamId;
use parking_lot::Mutex;
use tokio::sync::watch;

/// How streamlets come to this broker and leave it.
pub(crate) struct Ownership {
    /// One change at a time; with it, streamlets whose stream is not known yet.
    pub(crate) turn: Mutex<Early>,
    /// The revision up to which the store's changes are seen here.
    pub(crate) seen: watch::Sender<u64>,
}

/// Streamlets that were recorded before their stream.
pub(crate) type Early = HashMap<StreamId, Vec<StreamletRecord>>;

impl Ownership {
    /// Everything up to `revision` is in the catalog.
    pub(crate) fn new(revision: u64) -> Self {
        Self {
            turn: Mutex::default(),
            seen: watch::Sender::new(revision),
        }
    }

    /// The revision up to which the store's changes are seen here, as it grows.
    pub(crate) fn seen(&self) -> watch::Receiver<u64> {
        self.seen.subscribe()
    }
}
