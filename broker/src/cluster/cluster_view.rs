//! What is recorded of owners and copies, kept at every broker that shares a metadata store: whoever is
//! elected controller decides at once, and any broker can tell how the cluster is. Jobs learn from it which records
//! have changed.

use std::collections::HashMap;

use kera_controller::Picture;
use kera_metadata::{Change, Image, Key, Record, Write};
use kera_protocol::ids::StreamletKey;
use kera_replication::jobs::Followed;
use parking_lot::RwLock;
use tokio::sync::watch;
use uuid::Uuid;

/// A picture that follows the metadata store.
#[derive(Debug, Default)]
pub(crate) struct ClusterView {
    held: RwLock<Option<Held>>,
    /// Grows whenever somebody else owns something.
    owners: watch::Sender<u64>,
}

#[derive(Debug)]
struct Held {
    cluster: Uuid,
    picture: Picture,
    /// How often it was loaded.
    loads: u64,
    /// Changes since, of streamlets and their groups.
    changes: HashMap<StreamletKey, u64>,
}

impl Held {
    fn apply(&mut self, change: &Change) {
        self.picture.apply(&change.key, change.record.as_ref());
        let streamlet = match change.key {
            Key::Streamlet(streamlet) => streamlet,
            Key::Group(group) => group.streamlet_key(),
            _ => return,
        };
        match self.picture.streamlet(streamlet) {
            Some(_) => *self.changes.entry(streamlet).or_default() += 1,
            None => drop(self.changes.remove(&streamlet)),
        }
    }
}

impl ClusterView {
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

    /// How far a streamlet's records are followed here; `None` until the picture was loaded.
    pub(crate) fn followed(&self, streamlet: StreamletKey) -> Option<Followed> {
        self.held.read().as_ref().map(|held| Followed {
            loads: held.loads,
            changes: held.changes.get(&streamlet).copied().unwrap_or(0),
        })
    }

    /// Begins anew with what an image holds.
    pub(crate) fn load(&self, image: &Image) {
        let picture = Picture::of(image);
        let mut held = self.held.write();
        *held = Some(Held {
            cluster: image.cluster,
            picture,
            loads: held.as_ref().map_or(0, |held| held.loads) + 1,
            changes: HashMap::new(),
        });
        drop(held);
        self.owners.send_modify(|count| *count += 1);
    }

    /// Takes in what a watch tells.
    pub(crate) fn apply(&self, changes: &[Change]) {
        let mut owners = false;
        {
            let mut held = self.held.write();
            let Some(held) = held.as_mut() else {
                return;
            };
            for change in changes {
                owners |= concerns_owners(&held.picture, change);
                held.apply(change);
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

#[cfg(test)]
mod tests {
    use kera_metadata::{GroupRecord, StreamConfig, StreamRecord, StreamletRecord};
    use kera_protocol::ids::{Epoch, GroupId, LaneId, StreamletId};

    use super::*;

    fn change(key: Key, record: Option<Record>) -> Change {
        Change {
            key,
            record,
            revision: 9,
        }
    }

    #[test]
    fn each_change_of_a_streamlet_or_its_groups_counts_until_it_is_gone() {
        let stream = StreamRecord::new("a".to_owned(), StreamConfig::default(), 1);
        let streamlet = |number| StreamletRecord {
            stream: stream.id,
            streamlet: StreamletId(number),
            owner: 1,
            epoch: Epoch(1),
            next_group: GroupId(1),
            restore: 0,
            awaits_jumps: 0,
            revision: 1,
        };
        let (mine, other) = (streamlet(0), streamlet(1));
        let image = Image {
            streams: vec![stream.clone()],
            streamlets: vec![mine.clone(), other.clone()],
            ..Image::default()
        };
        let cluster_view = ClusterView::default();
        assert_eq!(cluster_view.followed(mine.key()), None);
        cluster_view.load(&image);
        let at = |loads, changes| Some(Followed { loads, changes });
        assert_eq!(cluster_view.followed(mine.key()), at(1, 0));
        let group = mine.key().group(GroupId(4));
        let record = GroupRecord::new(group, LaneId(0), Epoch(1));
        cluster_view.apply(&[change(Key::Group(group), Some(Record::Group(record)))]);
        cluster_view.apply(&[change(Key::Group(group), None)]);
        let altered = Record::Streamlet(mine.clone());
        cluster_view.apply(&[change(Key::Streamlet(mine.key()), Some(altered))]);
        assert_eq!(cluster_view.followed(mine.key()), at(1, 3));
        assert_eq!(cluster_view.followed(other.key()), at(1, 0));
        cluster_view.load(&image);
        assert_eq!(cluster_view.followed(mine.key()), at(2, 0));
        cluster_view.apply(&[change(Key::Streamlet(mine.key()), None)]);
        cluster_view.apply(&[change(Key::Group(group), None)]);
        let held = cluster_view.held.read();
        assert!(held.as_ref().is_some_and(|held| held.changes.is_empty()));
    }
}
