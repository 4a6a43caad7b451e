//! Groups, recorded in the metadata store: every change is a transaction that compares the streamlet's epoch and the
//! record's revision, and counts once it is durable.
//!
//! Here is what both kinds of streamlets share: which group ids are reserved. The two compare revisions
//! differently: lanes of replicated streamlets keep those of their groups ([`replicated`]); what a streamlet itself
//! changes, its own groups and what retention gives up, is compared with what is read just before ([`unreplicated`]).

mod replicated;
mod unreplicated;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kera_metadata::{
    CommitFuture, Committed, Done, MetadataError, MetadataStore, Replica, StreamletRecord,
    Transaction, Write,
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
    /// Epochs that are this broker's and not used yet, with their revisions: taken in bulk at the start, or recorded
    /// by whoever made it the owner.
    taken: HashMap<StreamletKey, (Epoch, u64)>,
    /// The highest epoch of each streamlet that this broker took, or was about to take.
    latest: HashMap<StreamletKey, Epoch>,
}

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

impl State {
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

    /// Ids below these are reserved for certain.
    fn reserved(&mut self, reserved: &[(StreamletKey, GroupId)]) {
        for (streamlet, next_group) in reserved {
            if let Some(owned) = self.streamlets.get_mut(streamlet) {
                owned.reserved = owned.reserved.max(*next_group);
            }
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

impl GroupRecords {
    /// Records in `store`, as `broker`. `streamlets` have epochs that were taken just now, in bulk: the first recovery
    /// of each goes on under its one.
    pub fn new(
        store: Arc<dyn MetadataStore>,
        broker: u32,
        incarnation: Incarnation,
        streamlets: &[StreamletRecord],
    ) -> Self {
        let taken = streamlets.iter().map(|s| (s.key(), (s.epoch, s.revision)));
        let mut state = State {
            latest: streamlets.iter().map(|s| (s.key(), s.epoch)).collect(),
            taken: taken.collect(),
            ..State::default()
        };
        state.own(streamlets);
        Self(Arc::new(Inner {
            store,
            own: Replica {
                broker: BrokerId(broker),
                incarnation,
            },
            state: Mutex::new(state),
        }))
    }

    /// This broker, as the one replica of what it alone has.
    pub(crate) fn own(&self) -> Replica {
        self.0.own
    }

    /// The store in which they are recorded.
    pub(crate) fn store(&self) -> &Arc<dyn MetadataStore> {
        &self.0.store
    }

    /// Learns of streamlets that were just created, or that this broker has taken over.
    pub fn add_streamlets(&self, streamlets: &[StreamletRecord]) {
        self.0.state.lock().own(streamlets);
    }

    /// Forgets a streamlet that another broker owns.
    pub fn forget_streamlet(&self, streamlet: StreamletKey) {
        let mut state = self.0.state.lock();
        state.streamlets.remove(&streamlet);
        state.taken.remove(&streamlet);
        state.latest.remove(&streamlet);
    }

    /// Forgets a deleted stream.
    pub fn forget_stream(&self, stream: StreamId) {
        let mut state = self.0.state.lock();
        state.streamlets.retain(|key, _| key.stream != stream);
        state.taken.retain(|key, _| key.stream != stream);
        state.latest.retain(|key, _| key.stream != stream);
    }
}

impl Inner {
    /// Submits `transaction`, with the reservations that it needs.
    fn submit(
        self: &Arc<Self>,
        mut transaction: Transaction,
        done: impl FnOnce(Result<Committed, MetadataError>) + Send + 'static,
    ) {
        // Ids are reserved in the order in which transactions are submitted.
        let mut state = self.state.lock();
        state.reserve(&mut transaction);
        let (this, reserved) = (self.clone(), reservations(&transaction));
        let done: Done = Box::new(move |outcome| {
            if outcome.is_ok() {
                this.state.lock().reserved(&reserved);
            }
            done(outcome);
        });
        self.store.submit(transaction, done);
    }

    /// As [`submit`](Self::submit); the outcome is the future's.
    fn commit_async(self: &Arc<Self>, transaction: Transaction) -> CommitFuture {
        let (future, done) = CommitFuture::new();
        self.submit(transaction, done);
        future
    }
}
