//! What is recorded of owners and copies, kept at every broker that shares a metadata store: whoever is
//! elected controller decides at once, and any broker can tell how the cluster is.

use kera_controller::Picture;
use kera_metadata::{Change, Image, Key, Record, Write};
use parking_lot::RwLock;
use tokio::sync::watch;
use uuid::Uuid;

/// A picture that follows the metadata store.
#[derive(Debug, Default)]
pub(crate) struct Pictured {
    held: RwLock<Option<Held>>,
    /// Grows whenever somebody else owns something.
    owners: watch::Sender<u64>,
}

#[derive(Debug)]
struct Held {
    cluster: Uuid,
    picture: Picture,
}

impl Pictured {
    /// Reads the picture; `None` until it was loaded for the first time.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&Picture) -> T) -> Option<T> {
        self.held.read().as_ref().map(|held| look(&held.picture))
    }

    /// The cluster's id, once it is known.
    pub(crate) fn cluster(&self) -> Option<Uuid> {
        self.held.read().as_ref().map(|held| held.cluster)
    }

    /// Told whenever a streamlet appears, goes, or has another owner or epoch.
    pub(crate) fn owners(&self) -> watch::Receiver<u64> {
        self.owners.subscribe()
    }

    /// Begins anew with what an image holds.
    pub(crate) fn load(&self, image: &Image) {
        let held = Held {
            cluster: image.cluster,
            picture: Picture::of(image),
        };
        *self.held.write() = Some(held);
        self.owners.send_modify(|count| *count += 1);
    }

    /// Takes in what a watch tells.
    pub(crate) fn apply(&self, changes: &[Change]) {
        let mut owners = false;
        {
            let mut held = self.held.write();
            let Some(Held { picture, .. }) = held.as_mut() else {
                return;
            };
            for change in changes {
                owners |= concerns_owners(picture, change);
                picture.apply(&change.key, change.record.as_ref());
            }
        }
        if owners {
            self.owners.send_modify(|count| *count += 1);
        }
    }

    /// Takes in what was just recorded from here under `revision`, before the watch tells it.
    pub(crate) fn recorded(&self, writes: &[Write], revision: u64) {
        let changes: Vec<_> = writes
            .iter()
            .filter_map(|write| match write {
                Write::PutStreamlet(record) => {
                    let mut record = record.clone();
                    record.revision = revision;
                    Some(Change {
                        key: write.key(),
                        record: Some(Record::Streamlet(record)),
                        revision,
                    })
                }
                _ => None,
            })
            .collect();
        self.apply(&changes);
    }
}

/// True if somebody else owns something after `change`.
fn concerns_owners(picture: &Picture, change: &Change) -> bool {
    match (&change.key, &change.record) {
        (Key::Streamlet(key), Some(Record::Streamlet(new))) => picture
            .streamlet(*key)
            .is_none_or(|old| old.owner() != new.owner || old.epoch() != new.epoch),
        (Key::Streamlet(..) | Key::Stream(_), _) => true,
        _ => false,
    }
}
