//! Groups, recorded in the metadata store: every change is a transaction that compares the streamlet's epoch and the
//! record's revision, and counts once it is durable.
//!
//! Here is what both kinds of streamlets share: which group ids are reserved, and which revision each record has.
//! [`unreplicated`] records for streamlets whose groups are this broker's alone, and what retention gives up in all;
//! [`replicated`] records for the lanes of replicated streamlets, which bring their own revisions.

mod replicated;
mod unreplicated;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use kera_metadata::{
    GroupKey, GroupRecord, Image, MetadataStore, Replica, StreamletRecord, Transaction, Write,
};
use kera_protocol::ids::{BrokerId, Epoch, GroupId, Incarnation, StreamId, StreamletKey};
use parking_lot::Mutex;

/// Group ids reserved by one transaction, so that most records need not touch the streamlet's.
const RESERVED_GROUPS: u64 = 1024;

/// Records groups in the metadata store, for all streamlets that this broker owns.
#[derive(Clone)]
pub struct GroupRecords(Arc<Inner>);

struct Inner {
    store: Arc<dyn MetadataStore>,
    /// This broker, as the one replica of what it alone has.
    own: Replica,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    streamlets: HashMap<StreamletKey, Owned>,
    groups: BTreeMap<GroupKey, Known>,
    /// Groups with a change on its way, and what waits behind it.
    busy: HashMap<GroupKey, VecDeque<unreplicated::Waiting>>,
    /// Epochs that are this broker's and not used yet, with their revisions: taken in bulk at the start, or recorded
    /// by whoever made it the owner.
    taken: HashMap<StreamletKey, (Epoch, u64)>,
    /// The highest epoch of each streamlet that this broker took, or was about to take.
    latest: HashMap<StreamletKey, Epoch>,
}

/// What is known of a group's record.
struct Known {
    revision: u64,
    /// Only groups still to be closed are needed whole.
    record: Option<Box<GroupRecord>>,
    /// The last transaction on it failed: read the record back before the next.
    uncertain: bool,
}

/// A group that a transaction changes, and what is known of its record then, but for the revision; `None` if it is
/// deleted.
type Changed = (GroupKey, Option<Known>);

/// A streamlet that this broker owns, and its group ids.
struct Owned {
    record: StreamletRecord,
    /// Ids below are reserved for certain.
    reserved: GroupId,
    /// The highest reservation asked for, whether or not it was made.
    asked: GroupId,
}

impl Owned {
    fn new(record: &StreamletRecord) -> Self {
        Self {
            reserved: record.next_group,
            asked: record.next_group,
            record: record.clone(),
        }
    }

    /// What the streamlet's record must say so that `group` may be recorded; `None` if it says so already. Never
    /// less than what was asked for before, whatever became of that.
    fn reserve(&mut self, group: GroupId) -> Option<StreamletRecord> {
        if group < self.reserved {
            return None;
        }
        self.asked = self.asked.max(GroupId(group.0 + RESERVED_GROUPS));
        Some(StreamletRecord {
            next_group: self.asked,
            ..self.record.clone()
        })
    }
}

impl Known {
    fn of(record: GroupRecord) -> Self {
        Self {
            revision: record.revision,
            record: (!record.is_closed()).then(|| Box::new(record)),
            uncertain: false,
        }
    }

    fn at(revision: u64) -> Self {
        Self {
            revision,
            record: None,
            uncertain: false,
        }
    }
}

impl State {
    /// Learns of the groups in `image` that are of a known streamlet.
    fn know(&mut self, image: &Image) {
        for group in &image.groups {
            if self.streamlets.contains_key(&group.streamlet_key()) {
                self.groups.insert(group.key(), Known::of(group.clone()));
            }
        }
    }

    fn own(&mut self, streamlets: &[StreamletRecord]) {
        for record in streamlets {
            let mut owned = Owned::new(record);
            // What was asked for in this epoch may be newer than the record.
            if let Some(before) = self.streamlets.remove(&record.key())
                && before.record.epoch == record.epoch
            {
                owned.reserved = owned.reserved.max(before.reserved);
                owned.asked = owned.asked.max(before.asked);
            }
            self.streamlets.insert(record.key(), owned);
        }
    }

    /// Forgets a streamlet's groups and ids.
    fn forget(&mut self, streamlet: StreamletKey) {
        let at = |group| streamlet.group(GroupId(group));
        let of = self.groups.range(at(0)..=at(u64::MAX));
        let of: Vec<_> = of.map(|(key, _)| *key).collect();
        for key in of {
            self.groups.remove(&key);
        }
        self.streamlets.remove(&streamlet);
    }

    /// Has `transaction` reserve the ids of the groups that it records first.
    fn reserve(&mut self, transaction: &mut Transaction) {
        let mut highest: BTreeMap<StreamletKey, GroupId> = BTreeMap::new();
        for write in &transaction.write {
            if let Write::PutGroup(record) = write
                && !record.is_closed()
            {
                let most = highest.entry(record.streamlet_key()).or_default();
                *most = record.group.max(*most);
            }
        }
        for (streamlet, group) in highest {
            // Of a streamlet that is another broker's now nothing is reserved: its epoch is over.
            let owned = self.streamlets.get_mut(&streamlet);
            let reserved = owned.and_then(|owned| owned.reserve(group));
            transaction.write.extend(reserved.map(Write::PutStreamlet));
        }
    }

    /// A transaction is durable: what it changed, and what it reserved.
    fn changed(
        &mut self,
        groups: Vec<Changed>,
        revision: u64,
        reserved: &[(StreamletKey, GroupId)],
    ) {
        for (key, known) in groups {
            match known {
                Some(known) => drop(self.groups.insert(key, Known { revision, ..known })),
                None => drop(self.groups.remove(&key)),
            }
        }
        for (streamlet, next_group) in reserved {
            if let Some(owned) = self.streamlets.get_mut(streamlet) {
                owned.reserved = owned.reserved.max(*next_group);
            }
        }
    }

    /// Whether a transaction on these groups is durable is not known.
    fn doubt(&mut self, groups: &[Changed]) {
        for (key, _) in groups {
            let known = self.groups.entry(*key).or_insert(Known::at(0));
            known.uncertain = true;
        }
    }
}

/// What `transaction` reserves.
fn reservations(transaction: &Transaction) -> Vec<(StreamletKey, GroupId)> {
    let reserved = |write: &Write| match write {
        Write::PutStreamlet(streamlet) => Some((streamlet.key(), streamlet.next_group)),
        _ => None,
    };
    transaction.write.iter().filter_map(reserved).collect()
}

impl std::fmt::Debug for GroupRecords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupRecords").finish_non_exhaustive()
    }
}

impl GroupRecords {
    /// Records in `store`, as `broker`. Knows what `image` holds. `streamlets` have epochs that were taken just now,
    /// in bulk: the first recovery of each goes on under its one.
    pub fn new(
        store: Arc<dyn MetadataStore>,
        broker: u32,
        incarnation: Incarnation,
        image: &Image,
        streamlets: &[StreamletRecord],
    ) -> Self {
        let taken = streamlets.iter().map(|s| (s.key(), (s.epoch, s.revision)));
        let mut state = State {
            latest: streamlets.iter().map(|s| (s.key(), s.epoch)).collect(),
            taken: taken.collect(),
            ..State::default()
        };
        state.own(streamlets);
        state.know(image);
        Self(Arc::new(Inner {
            store,
            own: Replica {
                broker: BrokerId(broker),
                incarnation,
            },
            state: Mutex::new(state),
        }))
    }

    /// The store in which they are recorded.
    pub(crate) fn store(&self) -> &Arc<dyn MetadataStore> {
        &self.0.store
    }

    /// Learns of streamlets just created.
    pub fn add_streamlets(&self, streamlets: &[StreamletRecord]) {
        self.0.state.lock().own(streamlets);
    }

    /// Learns what is recorded of a streamlet that this broker has taken over: all of `image`.
    pub fn adopt(&self, image: &Image) {
        let mut state = self.0.state.lock();
        for streamlet in &image.streamlets {
            state.forget(streamlet.key());
        }
        state.own(&image.streamlets);
        state.know(image);
    }

    /// Forgets a streamlet that another broker owns.
    pub fn forget_streamlet(&self, streamlet: StreamletKey) {
        let mut state = self.0.state.lock();
        state.forget(streamlet);
        state.taken.remove(&streamlet);
        state.latest.remove(&streamlet);
    }

    /// Forgets a deleted stream.
    pub fn forget_stream(&self, stream: StreamId) {
        let mut state = self.0.state.lock();
        state.groups.retain(|key, _| key.stream != stream);
        state.streamlets.retain(|key, _| key.stream != stream);
        state.taken.retain(|key, _| key.stream != stream);
        state.latest.retain(|key, _| key.stream != stream);
    }

    /// Learns that others have written a group's record, which has this revision now, or deleted it.
    pub fn learned(&self, group: GroupKey, revision: Option<u64>) {
        self.0.learned(group, revision);
    }
}

impl Inner {
    fn learned(&self, group: GroupKey, revision: Option<u64>) {
        let mut state = self.state.lock();
        match revision {
            Some(revision) => drop(state.groups.insert(group, Known::at(revision))),
            None => drop(state.groups.remove(&group)),
        }
    }
}
