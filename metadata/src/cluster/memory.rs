//! A store in memory that several brokers of one test share.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kera_protocol::ids::{StreamId, StreamletId};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use super::{ClusterStore, LiveBroker, Living, Membership, Seat, Tenure, Watched};
use crate::encode::Record;
use crate::error::MetadataError;
use crate::memory::MemoryStore;
use crate::store::{Done, MetadataStore};
use kera_records::key::Key;
use kera_records::{BrokerRecord, Image, StreamletRecord};
use kera_records::{Committed, Transaction};

struct Member {
    live: LiveBroker,
    tenure: Arc<Tenure>,
    /// False while a test has its lease ended.
    alive: bool,
}

#[derive(Default)]
struct Members {
    by_id: BTreeMap<u32, Member>,
    /// Who stands for election, longest first.
    candidates: VecDeque<u32>,
    controller: Option<u32>,
    terms: u64,
    /// Descriptions that are still to be refused.
    refusals: usize,
}

struct Shared {
    members: Mutex<Members>,
    living: watch::Sender<Living>,
    controller: watch::Sender<Option<u32>>,
    store: MemoryStore,
}

impl Shared {
    /// Elects whoever stands longest if nobody is elected, and tells everyone.
    fn settle(&self, members: &mut Members) {
        let Members {
            by_id,
            candidates,
            controller,
            terms,
            refusals: _,
        } = members;
        let alive = |id: &u32| by_id.get(id).is_some_and(|m| m.alive);
        if !controller.as_ref().is_some_and(alive) {
            *controller = candidates.iter().copied().find(alive);
            if let Some(id) = *controller {
                *terms += 1;
                self.store.set_term(*terms);
                by_id[&id].tenure.elected(Some(*terms));
            } else {
                self.store.set_term(0);
            }
        }
        let living = by_id.iter().filter(|(_, m)| m.alive);
        let living = living.map(|(id, m)| (*id, m.live.clone())).collect();
        self.living.send_replace(Arc::new(living));
        self.controller.send_replace(*controller);
    }

    fn drop_member(&self, id: u32, tenure: &Arc<Tenure>) {
        let mut members = self.members.lock();
        let mine = |m: &Member| Arc::ptr_eq(&m.tenure, tenure);
        if !members.by_id.get(&id).is_some_and(mine) {
            return;
        }
        members.by_id.remove(&id);
        members.candidates.retain(|c| *c != id);
        if members.controller == Some(id) {
            members.controller = None;
        }
        self.settle(&mut members);
    }
}

/// A metadata store in memory with leases that end when a test says so. One value stands for the
/// store that all brokers share; for tests.
pub struct MemoryCluster(Arc<Shared>);

impl Default for MemoryCluster {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryCluster {
    /// An empty store with a thread of its own, on which callbacks run, and nobody alive.
    ///
    /// # Panics
    /// If the system refuses the thread.
    pub fn new() -> Self {
        Self::over(MemoryStore::new())
    }

    /// A cluster on a store of any kind, such as one that is stepped.
    pub fn over(store: MemoryStore) -> Self {
        Self(Arc::new(Shared {
            members: Mutex::default(),
            living: watch::Sender::new(Living::default()),
            controller: watch::Sender::new(None),
            store,
        }))
    }

    /// The store, to plant faults in.
    pub fn store(&self) -> &MemoryStore {
        &self.0.store
    }

    /// Ends the lease of a broker, as if it had been paused or cut off for long enough.
    pub fn expire(&self, id: u32) {
        self.end_lease(id, true);
    }

    /// The same, but the broker takes its lease for valid still, as one does whose clock is late.
    pub fn expire_unnoticed(&self, id: u32) {
        self.end_lease(id, false);
    }

    fn end_lease(&self, id: u32, notices: bool) {
        let mut members = self.0.members.lock();
        if let Some(member) = members.by_id.get_mut(&id) {
            member.alive = false;
            if notices {
                member.tenure.end();
            }
        }
        if members.controller == Some(id) {
            members.controller = None;
        }
        self.0.settle(&mut members);
    }

    /// Gives a broker whose lease was ended a new one, as it takes by itself once it is back.
    pub fn revive(&self, id: u32) {
        let revision = self.0.store.last_change();
        let mut members = self.0.members.lock();
        if let Some(member) = members.by_id.get_mut(&id) {
            member.alive = true;
            member.tenure.taken_at(revision);
            member.tenure.extend(None);
        }
        self.0.settle(&mut members);
    }

    /// Refuses the next `times` that a broker describes itself anew, as if the store were away.
    pub fn refuse_descriptions(&self, times: usize) {
        self.0.members.lock().refusals = times;
    }

    /// How many of them are still to come.
    pub fn refusals_left(&self) -> usize {
        self.0.members.lock().refusals
    }

    /// Forgets the changes so far: watches from before are lost when they are asked for.
    pub fn forget_history(&self) {
        self.0.store.forget_history();
    }
}

struct MemorySeat {
    id: u32,
    tenure: Arc<Tenure>,
    shared: Arc<Shared>,
}

impl Seat for MemorySeat {
    fn update(&self, live: LiveBroker) -> Result<(), MetadataError> {
        live.check()?;
        let mut members = self.shared.members.lock();
        if members.refusals > 0 {
            members.refusals -= 1;
            return Err(MetadataError::Unavailable {
                store: "(memory)".into(),
                detail: "a planted fault".into(),
            });
        }
        match members.by_id.get_mut(&self.id) {
            Some(member) if Arc::ptr_eq(&member.tenure, &self.tenure) => {
                member.live = LiveBroker {
                    id: self.id,
                    incarnation: member.live.incarnation,
                    ..live
                };
                self.shared.settle(&mut members);
                Ok(())
            }
            _ => Err(super::replaced(self.id)),
        }
    }

    fn campaign(&self) {
        let mut members = self.shared.members.lock();
        if !members.candidates.contains(&self.id) {
            members.candidates.push_back(self.id);
            self.shared.settle(&mut members);
        }
    }

    fn succeed(&self, gone: u32) -> bool {
        let mut members = self.shared.members.lock();
        let members = &mut *members;
        let stands = members.candidates.contains(&self.id)
            && members.by_id.get(&self.id).is_some_and(|m| m.alive);
        if !stands || gone == self.id || members.controller != Some(gone) {
            return false;
        }
        if let Some(before) = members.by_id.get(&gone) {
            before.tenure.elected(None);
        }
        // It stands again, behind all others.
        members.candidates.retain(|c| *c != gone && *c != self.id);
        members.candidates.push_front(self.id);
        members.candidates.push_back(gone);
        members.controller = None;
        self.shared.settle(members);
        true
    }

    fn leave(&self) {
        self.shared.drop_member(self.id, &self.tenure);
    }
}

impl ClusterStore for MemoryCluster {
    fn watch(&self, after: u64) -> mpsc::Receiver<Watched> {
        self.0.store.watch(after)
    }

    fn join(&self, live: LiveBroker, _ttl: Duration) -> Result<Membership, MetadataError> {
        live.check()?;
        let id = live.id;
        let tenure = Tenure::new();
        tenure.taken_at(self.0.store.last_change());
        let mut members = self.0.members.lock();
        if let Some(old) = members.by_id.get(&id) {
            let (mine, theirs) = (live.incarnation.store_id, old.live.incarnation.store_id);
            if old.alive && mine != theirs {
                return Err(super::number_in_use(&old.live));
            }
            old.tenure.end();
            members.candidates.retain(|c| *c != id);
            if members.controller == Some(id) {
                members.controller = None;
            }
        }
        tenure.extend(None);
        let member = Member {
            live,
            tenure: tenure.clone(),
            alive: true,
        };
        members.by_id.insert(id, member);
        self.0.settle(&mut members);
        drop(members);
        let seat = MemorySeat {
            id,
            tenure: tenure.clone(),
            shared: self.0.clone(),
        };
        Ok(Membership::new(tenure, Box::new(seat)))
    }

    fn cluster(&self) -> Uuid {
        self.0.store.cluster()
    }

    fn brokers(&self) -> Result<Vec<BrokerRecord>, MetadataError> {
        Ok(self.load()?.brokers)
    }

    fn living(&self) -> watch::Receiver<Living> {
        self.0.living.subscribe()
    }

    fn controller(&self) -> watch::Receiver<Option<u32>> {
        self.0.controller.subscribe()
    }
}

impl MetadataStore for MemoryCluster {
    fn made_with(&self) -> Result<u32, MetadataError> {
        Ok(kera_records::CLUSTER_VERSION)
    }

    fn load(&self) -> Result<Image, MetadataError> {
        self.0.store.load()
    }

    fn load_streamlet(
        &self,
        stream: StreamId,
        streamlet: StreamletId,
    ) -> Result<Image, MetadataError> {
        self.0.store.load_streamlet(stream, streamlet)
    }

    fn read(&self, key: &Key) -> Result<Option<Record>, MetadataError> {
        self.0.store.read(key)
    }

    fn streamlets(&self) -> Result<Vec<StreamletRecord>, MetadataError> {
        self.0.store.streamlets()
    }

    fn records_of(&self, kind: u8, stream: Option<StreamId>) -> Result<Image, MetadataError> {
        self.0.store.records_of(kind, stream)
    }

    fn submit(&self, transaction: Transaction, done: Done) {
        self.0.store.submit(transaction, done);
    }

    fn max_operations(&self) -> usize {
        self.0.store.max_operations()
    }

    fn close(&self) {
        self.0.store.close();
    }

    fn commit(&self, transaction: Transaction) -> Result<Committed, MetadataError> {
        self.0.store.commit(transaction)
    }

    fn bump_epochs(&self, owner: u32) -> Result<Vec<StreamletRecord>, MetadataError> {
        self.0.store.bump_epochs(owner)
    }
}
