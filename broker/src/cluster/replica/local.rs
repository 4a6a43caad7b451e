//! All copies at this broker, where others may come to own what was its own and the other way round: its
//! own group files, and the copies in its store that it keeps for others.
//!
//! A broker keeps the files that it wrote as an owner: records list them as its copies. The
//! streamlet's present owner frees the files that no record names, as it frees copies in the store: it lists
//! the files first and reads the records after that, and a file that was written since stays. Nothing else
//! removes them: the records known here may be older than a file.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, OnceLock, Weak};

use kera_metadata::{GroupState, MetadataStore, Replica};
use kera_protocol::ids::Epoch;
use kera_replication::backup::{Beside, ReplicaStore};
use kera_replication::ids::{BrokerId, CopyId, Incarnation, StreamletKey};
use kera_replication::own::{OwnFiles, OwnReplicas, UNREADABLE};
use kera_replication::transport::{
    CopyAnswer, CopyInfo, CopyVersion, Pending, Refusal, Reply, Request, Seal, SealedCopy,
};
use kera_streamlet::Streamlet;
use parking_lot::{Mutex, MutexGuard};

use super::replicated::Replicated;
use crate::cluster::cluster_view::ClusterView;
use crate::data::catalog::Catalog;
use crate::fault_rules::Rule;

/// What this broker asks itself when it takes a streamlet over: a group's record may name a file that it
/// wrote as an earlier owner, or a copy in its store.
pub(crate) struct LocalReplicas {
    me: BrokerId,
    files: Arc<OwnFiles>,
    store: Arc<ReplicaStore>,
}

impl LocalReplicas {
    pub(crate) fn new(me: BrokerId, files: Arc<OwnFiles>, store: Arc<ReplicaStore>) -> Arc<Self> {
        Arc::new(Self { me, files, store })
    }

    fn handle(&self, request: Request) -> Result<Reply, Refusal> {
        let copy = match &request {
            Request::Read { copy, .. }
            | Request::Check { copy, .. }
            | Request::Complete { copy, .. }
            | Request::Flush { copy, .. } => *copy,
            Request::Seal(seal) => return self.seal(seal),
            _ => return self.store.handle(self.me, request),
        };
        let is_look = matches!(request, Request::Read { .. } | Request::Check { .. });
        if self.store.holds(&copy) {
            match self.store.handle(self.me, request.clone()) {
                // It has gone from the store since, which it does once there is a file.
                Err(Refusal::Unknown) if is_look => {}
                answer => return answer,
            }
        }
        self.files.handle(request)
    }

    /// Sealed in the store, for files as for copies; then each is read where it is. What the store says of
    /// a copy that it never opened can be believed; what is said of a file that is not there cannot, and
    /// recovery knows that.
    fn seal(&self, seal: &Seal) -> Result<Reply, Refusal> {
        let own = self.files.incarnation();
        let copies = seal.copies.iter().copied();
        let (own, kept): (Vec<_>, Vec<_>) = copies.partition(|(_, life)| own.includes(*life));
        let seal = |copies| Request::Seal(Seal { copies, ..*seal });
        let mut answers = sealed_of(self.store.handle(self.me, seal(kept))?);
        answers.extend(sealed_of(self.files.handle(seal(own))?));
        Ok(Reply::Sealed(answers))
    }
}

fn sealed_of(reply: Reply) -> Vec<SealedCopy> {
    match reply {
        Reply::Sealed(answers) => answers,
        _ => Vec::new(),
    }
}

impl OwnReplicas for LocalReplicas {
    fn incarnation(&self) -> Incarnation {
        self.files.incarnation()
    }

    fn process(&self) -> Incarnation {
        self.files.process()
    }

    fn disk(&self) -> Result<Incarnation, String> {
        self.files.disk()
    }

    fn ask(&self, request: Request) -> Pending<Result<Reply, Refusal>> {
        let copies = Self {
            me: self.me,
            files: self.files.clone(),
            store: self.store.clone(),
        };
        Box::pin(async move {
            let answered = tokio::task::spawn_blocking(move || copies.handle(request)).await;
            answered.unwrap_or_else(|error| Err(Refusal::Failed(error.to_string())))
        })
    }
}

/// What this broker knows of the streamlets whose files others ask for. The broker's parts hold the files, and so
/// what serves streamlets is not held here.
pub(crate) struct Known {
    pub(crate) broker_id: u32,
    pub(crate) catalog: Weak<Catalog>,
    pub(crate) metadata: Weak<dyn MetadataStore>,
    /// Owners and replicas of all streamlets, as far as they are known here.
    pub(crate) cluster_view: Arc<ClusterView>,
    pub(crate) replicated: Weak<Replicated>,
}

impl Known {
    /// The replicated streamlets that other brokers own; whether `one` is such a one.
    fn of_others(&self, catalog: &Catalog, one: Option<StreamletKey>) -> Vec<StreamletKey> {
        let streams = match one {
            None => catalog.all(),
            Some(one) => catalog.get(one.stream).into_iter().collect(),
        };
        let mut found = Vec::new();
        for stream in streams {
            // Without copies elsewhere a streamlet stays where its files are.
            if !stream.record.load().config.is_replicated() {
                continue;
            }
            let streamlets: Vec<_> = match one {
                None => stream.streamlets.iter().collect(),
                Some(one) => stream.streamlet(one.streamlet).into_iter().collect(),
            };
            let moved = streamlets.iter().filter(|one| one.is_moved());
            let keys = moved.map(|one| one.key());
            let owner = |key: &StreamletKey| stream.owner(key.streamlet).map(|owner| owner.broker);
            found.extend(keys.filter(|key| {
                owner(key).is_some_and(|broker| broker != 0 && broker != self.broker_id)
            }));
        }
        found
    }

    /// Whether a record that is known here names this broker's replica of a group. The latest may not be known.
    fn is_named(&self, copy: &CopyId) -> bool {
        let named = self.cluster_view.read(|picture| {
            let view = picture.streamlet(copy.streamlet);
            let group = view.and_then(|view| view.groups.get(&copy.group));
            group.is_some_and(|group| {
                group.generation == copy.generation && group.copies.contains(&self.broker_id)
            })
        });
        named.unwrap_or(true)
    }

    /// Whether a file is of an earlier epoch than the group that is recorded under its name, and so not of that group:
    /// an owner died before it recorded its own, and a broker of an earlier version gave the id to another group. Asks
    /// the metadata store, since groups in the cluster view have no epochs.
    fn is_outdated(&self, copy: &CopyId) -> bool {
        if copy.epoch == UNREADABLE {
            return false;
        }
        let metadata = self.metadata.upgrade();
        let record = metadata.and_then(|store| store.group(copy.streamlet.group(copy.group)).ok());
        record
            .flatten()
            .is_some_and(|record| copy.epoch < record.epoch)
    }

    /// How long a closed group is of which this broker has a replica, by the records that are known here.
    fn recorded(&self, copy: &CopyId) -> Option<u64> {
        let length = self.cluster_view.read(|picture| {
            let view = picture.streamlet(copy.streamlet)?;
            let group = view.groups.get(&copy.group)?;
            let named =
                group.generation == copy.generation && group.copies.contains(&self.broker_id);
            (named && group.state == GroupState::Closed && group.bytes > 0).then_some(group.bytes)
        });
        length.flatten()
    }
}

/// This broker's own group files as other brokers ask for them.
pub(crate) struct OwnWriters {
    files: Arc<OwnFiles>,
    known: OnceLock<Known>,
    /// Held while another broker writes one of them. Who owns the streamlet is looked at under it.
    writing: Mutex<()>,
    /// Files that were found cut short, and told of.
    short: Mutex<BTreeSet<CopyId>>,
}

/// Files that are remembered to have been told of.
const MAX_TOLD: usize = 100;

impl std::fmt::Debug for OwnWriters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.files.fmt(f)
    }
}

impl OwnWriters {
    pub(crate) fn new(files: Arc<OwnFiles>) -> Arc<Self> {
        Arc::new(Self {
            files,
            known: OnceLock::new(),
            writing: Mutex::new(()),
            short: Mutex::default(),
        })
    }

    /// Waits until no other broker writes a file of a streamlet that is known to be this broker's: those
    /// that come later are refused. May wait for a disk.
    pub(crate) fn wait_for_others(&self) {
        drop(self.writing.lock());
    }

    /// Lets an owner of `epoch` write a file, unless it is a later owner's by now, and that is this broker. A
    /// hand-over seals nothing: the old owner's jobs, which do not know yet, may still build here what the
    /// new one has begun to read.
    fn write_as(
        &self,
        streamlet: StreamletKey,
        epoch: Epoch,
    ) -> Result<MutexGuard<'_, ()>, Refusal> {
        let writing = self.writing.lock();
        match self.owned_since(streamlet).filter(|by| epoch < *by) {
            Some(by) => Err(Refusal::Sealed { by }),
            None => Ok(writing),
        }
    }

    /// From now on it is known which streamlets write them.
    pub(crate) fn written_by(&self, known: Known) {
        let _only_once = self.known.set(known);
    }

    /// What is known of them, and the streams, while the broker serves.
    fn known(&self) -> Option<(&Known, Arc<Catalog>)> {
        let known = self.known.get()?;
        Some((known, known.catalog.upgrade()?))
    }

    /// The epoch under which this broker owns a streamlet, if it does.
    fn owned_since(&self, streamlet: StreamletKey) -> Option<Epoch> {
        let (known, catalog) = self.known()?;
        let stream = catalog.get(streamlet.stream)?;
        let owner = stream.owner(streamlet.streamlet)?;
        (owner.broker == known.broker_id).then_some(owner.epoch)
    }

    /// Whether a file of a closed group ends before the group does: the owner is not told of it then, so that it counts
    /// as missing and another is made. Told once for people.
    fn is_short(&self, known: &Known, info: &CopyInfo) -> bool {
        let Some(recorded) = known.recorded(&info.copy) else {
            return false;
        };
        let path = self.files.path(&info.copy);
        let there = std::fs::metadata(&path).map_or(recorded, |file| file.len());
        if there >= recorded || known.is_outdated(&info.copy) {
            self.short.lock().remove(&info.copy);
            return false;
        }
        let mut told = self.short.lock();
        if told.len() < MAX_TOLD && told.insert(info.copy) {
            tracing::error!(file = %path.display(), bytes = there, recorded, "a closed group's file was cut short; the streamlet's owner builds another replica: check the disk");
        }
        true
    }

    /// Whether a file may go that was listed: only if this broker, too, knows of no record that names it.
    fn may_go(&self, copy: &CopyId) -> bool {
        // At an end nothing that is listed goes: what is known ends with the streams.
        let known = self.known();
        known.is_some_and(|(known, _)| !known.is_named(copy))
    }

    /// Frees a file, if it may go.
    fn free(&self, request: Request, copy: &CopyId, may_go: bool) -> Result<Reply, Refusal> {
        let path = self.files.path(copy);
        let bytes = std::fs::metadata(&path).map_or(0, |file| file.blocks() * 512);
        if !may_go {
            return Err(Refusal::Invalid(format!(
                "a record that this broker knows of names its file of {copy}"
            )));
        }
        let freed = self.files.handle(request)?;
        let replicated = self
            .known()
            .and_then(|(known, _)| known.replicated.upgrade());
        if let Some(replicated) = replicated {
            tracing::debug!(file = %path.display(), "another broker owns its streamlet, and no record names it any more: it is removed");
            replicated.ownership_metrics().removed(1, bytes);
        }
        Ok(freed)
    }

    /// Breaks [`Rule::StoreIdsCompared`]: whether a file was removed.
    fn remove_of_other_store(&self, known: &Known, info: &CopyInfo) -> bool {
        let StreamletKey { stream, streamlet } = info.copy.streamlet;
        let metadata = known.metadata.upgrade();
        let loaded = metadata.map(|metadata| metadata.load_streamlet(stream, streamlet));
        let Some(Ok(image)) = loaded else {
            return false;
        };
        let me = (known.broker_id, self.files.incarnation().store_id);
        let is_named = image.groups.iter().any(|record| {
            let mut copies = record.copies.iter();
            let names = |copy: &Replica| (copy.broker.0, copy.incarnation.store_id) == me;
            let is_this =
                (record.group, record.generation) == (info.copy.group, info.copy.generation);
            is_this && copies.any(names)
        });
        let free = Request::free(info.copy, info.copy.epoch, Some(info.version));
        !is_named && self.files.handle(free).is_ok()
    }
}

impl Beside for OwnWriters {
    fn incarnation(&self) -> Incarnation {
        self.files.incarnation()
    }

    fn sealed(&self, streamlet: StreamletKey, epoch: Epoch) {
        if let Err(error) = self.files.end_making(streamlet, epoch) {
            tracing::warn!(%streamlet, %error, "files that an earlier owner began to make here are not removed; the next start removes them");
        }
        let Some((_, catalog)) = self.known() else {
            return;
        };
        let served = catalog.streamlet(streamlet.stream, streamlet.streamlet);
        // One that is not recovered acknowledges nothing; it may be the one for whom this is sealed.
        let ends = |s: &Streamlet| !s.is_over() && s.is_recovered() && s.epoch() < epoch;
        if let Some(served) = served.filter(|s| ends(s) && !Rule::SealIgnored.is_broken()) {
            tracing::info!(%streamlet, %epoch, "another broker takes the streamlet over; given up here");
            served.mark_moved();
        }
    }

    fn has(&self, copy: &CopyId) -> bool {
        self.files.has(copy)
    }

    fn superseded(&self, copy: &CopyId, version: CopyVersion, length: u64) {
        let Some((known, _)) = self.known() else {
            return;
        };
        let _writing = self.writing.lock();
        // Whoever takes the streamlet over reads one of the two, and no other is to go meanwhile.
        if self.owned_since(copy.streamlet).is_some() || known.recorded(copy) != Some(length) {
            return;
        }
        let free = Request::free(*copy, copy.epoch, Some(version));
        match self.files.handle(free) {
            Ok(_) => {
                tracing::info!(%copy, "this broker has the group in its store and in a file of its own, as after an end in the middle of a take-over; the file is removed");
            }
            Err(error) => {
                tracing::info!(%copy, %error, "a file of a group that is in this broker's store as well is not removed yet");
            }
        }
    }

    fn list(&self, streamlet: Option<StreamletKey>) -> Vec<CopyInfo> {
        let Some((known, catalog)) = self.known() else {
            return Vec::new();
        };
        let keys = known.of_others(&catalog, streamlet);
        let listed = keys.into_iter().flat_map(|key| self.files.list(key));
        let mut listed: Vec<_> = listed.filter(|info| !self.is_short(known, info)).collect();
        if Rule::StoreIdsCompared.is_broken() {
            listed.retain(|info| !self.remove_of_other_store(known, info));
        }
        listed
    }

    fn handle(&self, request: Request) -> Result<Reply, Refusal> {
        // Until it is written.
        let _writing = match &request {
            Request::Free {
                copy,
                epoch,
                version,
            } => {
                let (copy, listed) = (*copy, version.is_some());
                // Before the lock, under which nobody waits for the metadata store.
                let is_outdated = listed
                    && !self.may_go(&copy)
                    && self
                        .known()
                        .is_some_and(|(known, _)| known.is_outdated(&copy));
                let _writing = self.write_as(copy.streamlet, *epoch)?;
                let may_go = !listed || is_outdated || self.may_go(&copy);
                return self.free(request, &copy, may_go);
            }
            Request::Complete { copy, epoch, .. } => Some(self.write_as(copy.streamlet, *epoch)?),
            _ => None,
        };
        let mut reply = self.files.handle(request)?;
        if let Reply::Sealed(answers) = &mut reply {
            // A file may have been removed: that it is not there says nothing of what was in it.
            let absent = answers
                .iter_mut()
                .filter(|a| a.answer == CopyAnswer::Absent);
            absent.for_each(|a| a.answer = CopyAnswer::Gone { is_file: true });
        }
        Ok(reply)
    }
}
