//! What the metadata store says of owners and groups, as it comes, with the time at which it came: how
//! far a take-over is, seen from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kera_metadata::{ClusterStore, EtcdOptions, EtcdStore, MetadataStore, Record};
use kera_protocol::ids::{StreamId, StreamletId, StreamletKey};
use parking_lot::Mutex;
use tokio::task::AbortHandle;

use super::loops::Place;
use super::nodes::StreamPlan;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// A streamlet has another owner.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    pub at: Instant,
    pub which: StreamletKey,
    pub from: u32,
    pub to: u32,
}

/// A group was closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed {
    pub at: Instant,
    pub of: StreamletKey,
}

#[derive(Default)]
struct Seen {
    owners: BTreeMap<StreamletKey, u32>,
    moved: Vec<Moved>,
    closed: Vec<Closed>,
}

/// Follows a metadata store.
pub(super) struct Watching {
    store: Arc<EtcdStore>,
    seen: Arc<Mutex<Seen>>,
    task: AbortHandle,
    streams: Vec<StreamId>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
        let store = self.store.clone();
        // It ends a runtime of its own, which must not happen within another.
        tokio::task::spawn_blocking(move || drop(store));
    }
}

impl Watching {
    /// Follows the store at `address`, in which `streams` are recorded.
    pub(super) async fn start(address: &str, streams: &[StreamPlan]) -> Result<Self> {
        let address = address.to_owned();
        let opening = tokio::task::spawn_blocking(move || {
            let store = EtcdStore::open(&address, EtcdOptions::default())?;
            let image = store.load()?;
            anyhow::Ok((Arc::new(store), image))
        });
        let (store, image) = opening.await??;
        let of_name = |plan: &StreamPlan| {
            let found = image.streams.iter().find(|stream| stream.name == plan.name);
            Ok(found
                .with_context(|| format!("stream {} is not recorded", plan.name))?
                .id)
        };
        let streams: Result<Vec<_>> = streams.iter().map(of_name).collect();
        let owners = image.streamlets.iter().map(|s| (s.key(), s.owner));
        let seen = Seen {
            owners: owners.collect(),
            ..Seen::default()
        };
        let seen = Arc::new(Mutex::new(seen));
        let (watched, mut changes) = (seen.clone(), store.watch(image.revision));
        let task = tokio::spawn(async move {
            // A watch that is lost shows by what then never comes.
            while let Some(Ok(told)) = changes.recv().await {
                let at = Instant::now();
                let mut seen = watched.lock();
                for change in told.changes {
                    seen.take(at, change.record);
                }
            }
        });
        Ok(Self {
            store,
            seen,
            task: task.abort_handle(),
            streams: streams?,
        })
    }

    /// A streamlet of the load, as it is recorded.
    pub(super) fn which(&self, place: Place) -> StreamletKey {
        StreamletKey {
            stream: self.streams[place.0],
            streamlet: StreamletId(place.1),
        }
    }

    /// Every streamlet's owner.
    pub(super) fn owners(&self) -> BTreeMap<StreamletKey, u32> {
        self.seen.lock().owners.clone()
    }

    /// Who is controller.
    pub(super) fn controller(&self) -> Option<u32> {
        *self.store.controller().borrow()
    }

    /// Changes of owners since `moment`.
    pub(super) fn moved_since(&self, moment: Instant) -> Vec<Moved> {
        let seen = self.seen.lock();
        let moved = seen.moved.iter().filter(|one| one.at > moment);
        moved.copied().collect()
    }

    /// When the last group of one of `streamlets` was closed, if that was after `moment`.
    pub(super) fn last_close(
        &self,
        moment: Instant,
        streamlets: &BTreeSet<StreamletKey>,
    ) -> Option<Instant> {
        let seen = self.seen.lock();
        let closed = seen.closed.iter().filter(|one| one.at > moment);
        closed
            .filter(|one| streamlets.contains(&one.of))
            .map(|one| one.at)
            .max()
    }

    /// Waits until so many brokers live, a controller is elected, and no broker owns two more streamlets
    /// than another.
    pub(super) async fn settled(&self, brokers: usize, within: Duration) -> Result<()> {
        let begin = Instant::now();
        loop {
            let living: Vec<u32> = self.store.living().borrow().keys().copied().collect();
            let owners = self.owners();
            let owned = |id: &u32| owners.values().filter(|owner| *owner == id).count();
            let counts: Vec<usize> = living.iter().map(owned).collect();
            let (least, most) = (counts.iter().min(), counts.iter().max());
            let even = least
                .zip(most)
                .is_some_and(|(least, most)| least + 2 > *most);
            if living.len() == brokers && even && self.controller().is_some() {
                return Ok(());
            }
            ensure!(
                begin.elapsed() < within,
                "{brokers} brokers are not even within {within:?}: {living:?} own {counts:?}"
            );
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Seen {
    fn take(&mut self, at: Instant, record: Option<Record>) {
        match record {
            Some(Record::Streamlet(record)) => {
                let which = record.key();
                let from = self.owners.insert(which, record.owner);
                if let Some(from) = from.filter(|from| *from != record.owner) {
                    let to = record.owner;
                    self.moved.push(Moved {
                        at,
                        which,
                        from,
                        to,
                    });
                }
            }
            Some(Record::Group(record)) if record.is_closed() => {
                let of = record.streamlet_key();
                self.closed.push(Closed { at, of });
            }
            _ => {}
        }
    }
}
