//! Taking over replicated streamlets, at a start or because this broker became their owner: the new
//! epoch, the seals at every copy, the longest whole copy, and this broker's own files, before the
//! streamlet serves anything.
//!
//! Each streamlet is taken over by itself, beside the rest of the broker. Where too few copies can be
//! reached it answers that it is not recovered, and is tried again until it is.
//!
//! [`Restore`] sees to the own files of closed groups: what is missing or short is fetched from the other replicas,
//! byte for byte, and checked as any bytes that come from elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, atomic};
use std::time::{Duration, Instant};

use kera_metadata::{
    BrokerRecord, Compare, GroupRecord, Image, Role, StreamConfig, Transaction, Write,
};
use kera_protocol::ids::{Epoch, GroupId, LaneId, Ordinal};
use kera_replication::ids::CopyId;
use kera_replication::recovery::{RecoverSpec, Recovered, recover};
use kera_replication::transport::{CopyInfo, Request};
use kera_streamlet::Streamlet;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::awaited::{Awaited, OTHERS_WITHIN};
use super::hand_over::give_away;
use crate::clock::now_ms;
use crate::cluster::replica::closed_records::{
    all_of, as_found, own, store, tell_given_up, unclean, with_own, without_bytes,
};
use crate::cluster::replica::fetching::{Fetched, MayLack, NotFetched, fetch, not_recorded};
use crate::cluster::replica::own_files::{Leftovers, OwnFile};
use crate::cluster::replica::replicated::Replicated;
use crate::cluster::replica::waiting::Stuck;
use crate::cluster::restored_groups::{recorded_again, starts, tell_holes};
use crate::cluster::store_restore::{jumped, jumps};
use crate::cluster::{Clustered, LATER};
use crate::data::catalog::{Stream, make_missing_dir};
use crate::recover::{lane_records, settle};
use crate::shared::Shared;
use crate::store_calls::blocking;

/// Pause before the second attempt; it doubles up to [`MAX_PAUSE`].
const PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Attempts after which it is looked whether this broker's own files are what keeps it from serving.
const OWN_TRIES: u32 = 3;
/// How often an attempt looks whether the streamlet is still this broker's.
const LOOK: Duration = Duration::from_millis(50);

/// Begins to take over every streamlet that waits for it; returns at once.
pub(crate) fn start(shared: &Arc<Shared>, clustered: &Arc<Clustered>) {
    for stream in shared.data.catalog.all() {
        let waiting = stream.streamlets.iter();
        // Others are read again where they are.
        let waiting = waiting.filter(|s| !s.is_recovered() && s.unreadable().is_none());
        let waiting: Vec<_> = waiting.collect();
        if !waiting.is_empty() && !stream.record.load().config.is_replicated() {
            tracing::error!(
                stream = stream.name(),
                streamlets = waiting.len(),
                "not served: the files are in another data directory of this broker, and there are no other replicas; start it with that --data-dir"
            );
            continue;
        }
        for streamlet in waiting {
            TakeOver::spawn(shared, clustered, &stream, &streamlet);
        }
    }
}

/// One streamlet on its way to be served.
pub(crate) struct TakeOver {
    shared: Arc<Shared>,
    clustered: Arc<Clustered>,
    stream: Arc<Stream>,
    streamlet: Arc<Streamlet>,
    since: Instant,
    awaited: Mutex<Awaited>,
}

impl TakeOver {
    /// Begins to take `streamlet` over, which awaits it; returns at once.
    pub(crate) fn spawn(
        shared: &Arc<Shared>,
        clustered: &Arc<Clustered>,
        stream: &Arc<Stream>,
        streamlet: &Arc<Streamlet>,
    ) {
        let takeover = Self {
            shared: shared.clone(),
            clustered: clustered.clone(),
            stream: stream.clone(),
            streamlet: streamlet.clone(),
            since: Instant::now(),
            awaited: Mutex::default(),
        };
        tokio::spawn(takeover.run(clustered.replicated.turns()));
    }

    async fn run(self, turns: Arc<Semaphore>) {
        let (stream, streamlet) = (self.stream.name(), self.streamlet.id().0);
        let mut stopping = self.shared.stopping.subscribe();
        let mut pause = PAUSE;
        let mut told = String::new();
        let mut failed = 0;
        let replicated = &self.clustered.replicated;
        let taken = replicated.ownership_metrics().taking_over();
        let waiting = replicated.waiting();
        while !*stopping.borrow() {
            let taking = replicated.taking(self.streamlet.key());
            let alone = taking.lock().await;
            if self.streamlet.is_over() || self.streamlet.is_recovered() {
                return;
            }
            let Ok(turn) = turns.acquire().await else {
                return;
            };
            let attempt = self.attempt().await;
            drop(turn);
            if self.streamlet.is_deleted() {
                // What the attempt has left of it since.
                replicated.end(self.streamlet.stream());
            }
            if self.streamlet.is_over() {
                // Another broker's meanwhile, or nobody's.
                return;
            }
            waiting.ended(self.streamlet.key(), attempt.as_ref().err());
            drop(alone);
            match attempt {
                Ok(()) => {
                    let took = taken.served();
                    tracing::info!(
                        stream,
                        streamlet,
                        ?took,
                        "recovered from its replicas; served"
                    );
                    self.shared.coordination.owners_changed();
                    return;
                }
                Err(stuck) if stuck.reason == told => {}
                Err(Stuck { reason, .. }) => {
                    tracing::warn!(stream, streamlet, reason, "not recovered yet; trying again");
                    told = reason;
                }
            }
            failed += 1;
            if failed >= OWN_TRIES && self.is_given_away().await {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(MAX_PAUSE),
                () = waiting.decided() => {}
                _ = stopping.wait_for(|stop| *stop) => return,
            }
        }
    }

    /// Gives the streamlet to another broker if it is this one's own files that keep it from being served; false if they
    /// are not, or nobody else can own it now.
    async fn is_given_away(&self) -> bool {
        self.clustered.disk.doubt();
        let Some(reason) = self.own_files_fail().await else {
            return false;
        };
        let (stream, streamlet) = (self.stream.name(), self.streamlet.id().0);
        match give_away(&self.shared, &self.clustered, &self.stream, &self.streamlet).await {
            Ok(to) => {
                tracing::warn!(
                    stream,
                    streamlet,
                    to,
                    reason,
                    "this broker cannot serve it with its own files: given to another"
                );
                true
            }
            Err(error) => {
                tracing::debug!(stream, streamlet, %error, "nobody else takes it now");
                false
            }
        }
    }

    /// Why this broker cannot have files of the streamlet, if it cannot.
    async fn own_files_fail(&self) -> Option<String> {
        if let Some(reason) = self.shared.cannot_write() {
            return Some(reason);
        }
        let (shared, streamlet) = (self.shared.clone(), self.streamlet.clone());
        let made = move || {
            let made = make_missing_dir(&streamlet, &shared.data.env);
            made.map_err(|error| error.to_string())
        };
        blocking(made).await.err()
    }

    /// Returns once there is nothing to take over any more.
    async fn over(&self) {
        while !self.streamlet.is_over() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// An error if there is nothing to take over any more.
    fn still(&self) -> Result<(), Stuck> {
        if self.streamlet.is_over() {
            return Err(Stuck::from("another broker owns it meanwhile".to_owned()));
        }
        Ok(())
    }

    async fn attempt(&self) -> Result<(), Stuck> {
        let config = self.stream.record.load().config.clone();
        let image = self.image().await?;
        let have_all_looked = self.await_others(&image).await?;
        let spec = RecoverSpec {
            streamlet: self.streamlet.key(),
            min_insync_replicas: config.min_insync_replicas as usize,
            unclean: self
                .clustered
                .replicated
                .waiting()
                .begin(self.streamlet.key()),
            starts: starts_of(&image, config.lanes_of(self.streamlet.id())),
        };
        // Seals and records may be left anywhere: whoever comes next goes on from there.
        let recovered = tokio::select! {
            recovered = recover(self.clustered.replicated.primary(), &spec) => recovered,
            () = self.over() => return self.still(),
        };
        let recovered = recovered.map_err(|error| error.to_string())?;
        self.still()?;
        self.report(&recovered);
        if let Some(stuck) = Stuck::of(&recovered.lanes) {
            return Err(stuck);
        }
        let mut image = self.image().await?;
        let restore = Restore {
            shared: &self.shared,
            replicated: &self.clustered.replicated,
            streamlet: &self.streamlet,
            epoch: recovered.epoch,
        };
        let mut again = Vec::new();
        if image.streamlets.iter().any(|one| one.awaits_jumps > 0) {
            self.clustered.peers.wait_for_other_writers().await;
            let stream = self.stream.record.load().clone();
            if restore.drop_trimmed(&stream, &image).await? {
                image = self.image().await?;
            }
            if restore.end_overlaps(&image).await? {
                image = self.image().await?;
            }
            if have_all_looked && restore.drop_unacknowledged(&stream, &image).await? {
                image = self.image().await?;
            }
            again = recorded_again(&image);
        }
        if self
            .pass_over_unknown(&image, recovered.epoch, &config)
            .await?
        {
            image = self.image().await?;
        }
        self.clustered.peers.wait_for_other_writers().await;
        let later = restore.before_serving(&mut image).await?;
        self.still()?;
        let epoch = recovered.epoch;
        self.serve(recovered, config, image).await?;
        let key = self.streamlet.key();
        self.clustered.replicated.confirm(key, again);
        self.restore_later(epoch, later);
        Ok(())
    }

    /// After a restore of the metadata store other brokers record at their next start what they have whole of groups that it
    /// does not know. An error as long as one is awaited, which is not for ever; true if all have recorded it.
    async fn await_others(&self, image: &Image) -> Result<bool, String> {
        let mut recorded = image.streamlets.iter();
        let Some(recorded) = recorded.find(|record| record.awaits_jumps > 0) else {
            return Ok(false);
        };
        let store = self.clustered.store.clone();
        let brokers = blocking(move || store.brokers().map_err(|error| error.to_string()));
        let brokers = brokers.await?;
        let me = self.shared.broker_id;
        let knows = |broker: &BrokerRecord| broker.restore >= recorded.restore;
        if !brokers
            .iter()
            .any(|broker| broker.id == me && knows(broker))
        {
            // It was not stopped for the restore, as others may not have been.
            return Ok(false);
        }
        let living = self.clustered.store.living().borrow().clone();
        // The older state may name brokers as alive. Who is so for longer was not stopped.
        let may_be_old = self.since.elapsed() <= self.shared.config.cluster.lease;
        let late = brokers.iter().filter(|broker| {
            let runs = living.contains_key(&broker.id) && !may_be_old;
            broker.role == Role::Broker && !knows(broker) && !runs
        });
        let late: BTreeMap<_, _> = late.map(|broker| (broker.id, broker.revision)).collect();
        let times = (self.since, Instant::now());
        let known = late.iter().map(|(id, revision)| (*id, *revision));
        if !self.awaited.lock().is_any(known, times) {
            return Ok(brokers.iter().all(knows));
        }
        let late: Vec<_> = late.into_keys().collect();
        Err(format!(
            "the metadata store was put back to an older state, and brokers {late:?} have not started since, or look through their files: they may have what it does not know. It goes on without them once nothing was heard of them for {} s; what they have is set aside then",
            OTHERS_WITHIN.as_secs()
        ))
    }

    /// After a restore of the metadata store the lanes go on behind what unknown groups may have held; true if that was recorded.
    /// All groups in `image` are closed.
    async fn pass_over_unknown(
        &self,
        image: &Image,
        epoch: Epoch,
        config: &StreamConfig,
    ) -> Result<bool, String> {
        let mut recorded = image.streamlets.iter();
        let Some(recorded) =
            recorded.find(|record| record.epoch == epoch && record.awaits_jumps > 0)
        else {
            return Ok(false);
        };
        let (key, lanes) = (self.streamlet.key(), config.lanes_of(self.streamlet.id()));
        let own = self.shared.recorder.own();
        let jumps = jumps(image, recorded, lanes, own, |_| None);
        let chunks = jumps.chunks(CHANGES_AT_ONCE);
        let transactions = chunks.map(|jumps| {
            let changes = jumps.iter().cloned().map(GroupRecord::put);
            Transaction::of_groups(key, epoch, changes)
        });
        let starts = starts(image);
        let starts = starts.chunks(CHANGES_AT_ONCE / 2).map(|starts| {
            let starts = starts.iter().copied();
            let start = |(key, ordinal)| Write::PutLaneStart { key, ordinal };
            Transaction::new(
                vec![Compare::epoch_of(key, epoch)],
                starts.map(start).collect(),
            )
        });
        let mut transactions: Vec<_> = starts.chain(transactions).collect();
        if let Some(last) = transactions.last_mut() {
            // With the last of them nothing is awaited any more.
            last.write.push(Write::PutStreamlet(jumped(recorded)));
        }
        for transaction in transactions {
            let committed = self.shared.metadata.commit_async(transaction).await;
            committed.map_err(|error| error.to_string())?;
        }
        for jump in &jumps {
            let (lane, from, to) = (jump.lane.0, jump.end_ordinal, jump.next_ordinal);
            self.clustered
                .replicated
                .waiting()
                .lost(key, lane, from, to);
        }
        let holes = tell_holes(&self.stream.name(), image);
        let losses = &self.shared.data.env.losses;
        losses.groups.fetch_add(holes, atomic::Ordering::Relaxed);
        tracing::warn!(
            stream = self.stream.name(),
            streamlet = self.streamlet.id().0,
            lanes,
            "the metadata store was put back to an older state: ordinals jump by 2^32 in each lane, so that none of a group that it does not know is used again"
        );
        Ok(true)
    }

    /// What nobody needs before the streamlet is served: history that lies elsewhere is fetched, and
    /// copies in this broker's own store that its files have made superfluous are freed.
    fn restore_later(&self, epoch: Epoch, later: Vec<GroupRecord>) {
        let (shared, clustered) = (self.shared.clone(), self.clustered.clone());
        let streamlet = self.streamlet.clone();
        let mut stopping = self.shared.stopping.subscribe();
        tokio::spawn(async move {
            // What is taken over at the same moment is served first.
            tokio::select! {
                () = tokio::time::sleep(LATER) => {}
                _ = stopping.wait_for(|stop| *stop) => return,
            }
            let restore = Restore {
                shared: &shared,
                replicated: &clustered.replicated,
                streamlet: &streamlet,
                epoch,
            };
            restore.after_serving(later).await;
        });
    }

    /// Puts the streamlet together from its records, `image`, all of whose groups are closed, and serves
    /// it.
    async fn serve(
        &self,
        recovered: Recovered,
        config: StreamConfig,
        image: Image,
    ) -> Result<(), String> {
        if let Some(open) = image.groups.iter().find(|group| !group.is_closed()) {
            return Err(format!("group {} was not closed", open.group));
        }
        let (shared, replicated) = (self.shared.clone(), self.clustered.replicated.clone());
        let (name, streamlet) = (self.stream.name(), self.streamlet.clone());
        blocking(move || {
            shared.recorder.add_streamlets(&image.streamlets);
            let records = lane_records(&image, streamlet.stream(), streamlet.id());
            let next = recovered.next_group;
            let found = streamlet
                .take_over(recovered.epoch, next, records, now_ms())
                .map_err(|error| error.to_string())?;
            settle(&name, &streamlet, found, &shared.data.env, &shared.recorder)
                .map_err(|error| error.to_string())?;
            make_missing_dir(&streamlet, &shared.data.env).map_err(|error| error.to_string())?;
            let next = next.max(streamlet.next_group());
            replicated.serve(&streamlet, recovered.epoch, next, &config);
            if streamlet.is_over() {
                // Given up while it was taken.
                replicated.unserve(&streamlet);
            }
            Ok(())
        })
        .await
    }

    /// What is recorded of the streamlet now.
    async fn image(&self) -> Result<Image, String> {
        let metadata = self.shared.metadata.clone();
        let (stream, streamlet) = (self.streamlet.stream(), self.streamlet.id());
        let read = move || metadata.load_streamlet(stream, streamlet);
        blocking(move || read().map_err(|error| error.to_string())).await
    }

    fn report(&self, recovered: &Recovered) {
        let (stream, streamlet) = (self.stream.name(), self.streamlet.id().0);
        for lane in &recovered.lanes {
            for (from, to) in &lane.gaps {
                let waiting = self.clustered.replicated.waiting();
                waiting.lost(self.streamlet.key(), lane.lane.0, *from, *to);
                tracing::warn!(
                    stream,
                    streamlet,
                    lane = lane.lane.0,
                    from,
                    to,
                    "ordinals jump: what was shown between them may be lost and is never reused"
                );
            }
        }
    }
}

/// Where each lane begins as far as its groups do not say: at 0, unless it was trimmed.
fn starts_of(image: &Image, lanes: u32) -> BTreeMap<LaneId, Ordinal> {
    let mut starts: BTreeMap<_, _> = (0..lanes).map(|lane| (LaneId(lane), 0)).collect();
    let trimmed = image.lane_starts.iter();
    starts.extend(trimmed.map(|start| (start.key.lane, start.ordinal)));
    starts
}

/// Pauses after which what could not be fetched is asked for again. After the last it is fetched when it is
/// read.
const AGAIN: [Duration; 4] = [
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::ZERO,
];
/// Records changed by one transaction.
pub(super) const CHANGES_AT_ONCE: usize = 64;

/// The own files of a streamlet that this broker has under an epoch.
pub(crate) struct Restore<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) replicated: &'a Arc<Replicated>,
    pub(crate) streamlet: &'a Arc<Streamlet>,
    pub(crate) epoch: Epoch,
}

impl Restore<'_> {
    /// Puts the own files of those closed groups in `image` in order without which the streamlet cannot be
    /// served; the others are returned. Groups whose
    /// file had to be fetched name this broker as a holder again, in the records and in `image`.
    ///
    /// Those of which no replica is left, and records that are whole on none, are given up if the operator has accepted that.
    ///
    /// # Errors
    /// Says, for people, which groups could be had from nobody.
    pub(crate) async fn before_serving(
        &self,
        image: &mut Image,
    ) -> Result<Vec<GroupRecord>, Stuck> {
        loop {
            let (later, given_up) = self.restore_newest(image).await?;
            // Without those, others are the newest of their lanes.
            if !given_up {
                return Ok(later);
            }
        }
    }

    /// Those that are not needed yet, and whether any was given up.
    async fn restore_newest(&self, image: &mut Image) -> Result<(Vec<GroupRecord>, bool), Stuck> {
        let whole = image.groups.iter().filter(|record| record.holds_records());
        // History moves when the streamlet is served.
        let newest = newest_of_lanes(image);
        let me = self.replicated.primary().me();
        // What may not be what is recorded nobody is to read.
        let is_doubtful =
            |record: &GroupRecord| OwnFile::new(self.streamlet, record).is_doubtful(record, me);
        let needed = |record: &&GroupRecord| {
            newest.contains(&record.group) || record.max_timestamp_ms < 0 || is_doubtful(record)
        };
        let (now, later): (Vec<_>, Vec<_>) = whole.partition(needed);
        let (mut changed, mut given_up) = (Vec::new(), Vec::new());
        let mut stuck: Option<Stuck> = None;
        let waiting = self.replicated.waiting();
        let kept = self.replicated.primary().kept_here(self.streamlet.key());
        let kept = kept.await;
        for record in now {
            let file = OwnFile::new(self.streamlet, record);
            let accepted = waiting.accepted(self.streamlet.key(), record.group);
            let may_lack = accepted.map_or(MayLack::Recorded, MayLack::Accepted);
            let found = match self.inspect(&file, record).await? {
                Some(max_timestamp_ms) => Ok(Fetched {
                    max_timestamp_ms,
                    holes: Vec::new(),
                }),
                None => fetch(self.replicated.primary(), &file, record, &may_lack).await,
            };
            let (reason, lost) = match found {
                Ok(found) => {
                    self.part_with_kept(&file, record, &kept).await;
                    changed.extend(as_found(record, &found, own(me, self.streamlet), waiting));
                    continue;
                }
                Err(NotFetched::Untold(reason) | NotFetched::Blocked(reason)) => {
                    return Err(Stuck::from(reason));
                }
                Err(NotFetched::Nowhere(_)) if may_lack.is_for_all_of(record) => {
                    given_up.push(without_bytes(record));
                    continue;
                }
                Err(NotFetched::Nowhere(reason)) => (reason, all_of(record)),
                Err(NotFetched::Holes(reason, holes)) => (reason, not_recorded(record, &holes)),
            };
            let stuck = stuck.get_or_insert_with(|| Stuck::from(reason));
            stuck.unclean.push(unclean(record, &lost));
            stuck.lost.insert(record.group, lost);
        }
        let later = later.into_iter().cloned().collect();
        let any_given_up = !given_up.is_empty();
        for record in &given_up {
            tell_given_up(record, waiting);
        }
        changed.extend(given_up);
        for records in changed.chunks(CHANGES_AT_ONCE) {
            let metadata = &self.shared.metadata;
            let stored = store(metadata, self.streamlet, self.epoch, records.to_vec());
            let revision = stored.await?;
            for record in records {
                let mut groups = image.groups.iter_mut();
                if let Some(known) = groups.find(|known| known.group == record.group) {
                    known.clone_from(record);
                    known.revision = revision;
                }
            }
        }
        match stuck {
            Some(stuck) => Err(stuck),
            None => Ok((later, any_given_up)),
        }
    }

    /// Frees the replica of a group in this broker's store, as `kept` lists it, once the own file is whole and durable without
    /// it. While the store has a replica, this broker answers requests from it, and it may be shorter than the group. So it
    /// goes before a record names this broker for its file. What cannot be freed now is freed once all files are here.
    async fn part_with_kept(&self, file: &OwnFile, record: &GroupRecord, kept: &[CopyInfo]) {
        let copy = CopyId::of(record);
        let Some(held) = kept.iter().find(|held| held.copy == copy) else {
            return;
        };
        let primary = self.replicated.primary();
        let freed = match file.stands_alone().await {
            Ok(true) => {
                let free = Request::free(copy, self.epoch, Some(held.version));
                let freed = primary.ask(primary.me(), free).await;
                freed.map(|_| ()).map_err(|error| error.to_string())
            }
            // One that has holes: nothing of it may go.
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = freed {
            tracing::info!(%copy, error, "this broker's own file of the group is whole, and the replica in its store is not freed yet");
        }
    }

    /// Fetches the files of `later` that are not here, one after the other, no faster than jobs may copy;
    /// whoever reads one first has it fetched first. Then copies in this broker's own store that its files stand for now are freed.
    pub(crate) async fn after_serving(&self, later: Vec<GroupRecord>) {
        let had_some = !later.is_empty();
        let mut left = later;
        for pause in AGAIN {
            left = match self.fetch_all(left).await {
                Some(failed) => failed,
                None => return,
            };
            if left.is_empty() {
                break;
            }
            let mut stopping = self.shared.stopping.subscribe();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = stopping.wait_for(|stop| *stop) => return,
            }
        }
        let leftovers = Leftovers {
            primary: self.replicated.primary(),
            metadata: &self.shared.metadata,
            streamlet: self.streamlet,
            epoch: self.epoch,
        };
        leftovers.free().await;
        if had_some {
            // What it has now others need no more.
            self.replicated.stirred();
        }
    }

    /// Those that could not be had; `None` once another broker owns the streamlet.
    async fn fetch_all(&self, records: Vec<GroupRecord>) -> Option<Vec<GroupRecord>> {
        let mut failed = Vec::new();
        let kept = self.replicated.primary().kept_here(self.streamlet.key());
        let kept = kept.await;
        for record in records {
            if self.streamlet.is_over() {
                return None;
            }
            if let Err(error) = self.fetch_later(&record, &kept).await {
                tracing::debug!(group = %record.key(), error, "it is not in this broker's own files yet");
                failed.push(record);
            }
        }
        Some(failed)
    }

    async fn fetch_later(&self, record: &GroupRecord, kept: &[CopyInfo]) -> Result<(), String> {
        let now = self.streamlet.generation_of(record.lane, record.group);
        if now != Some(record.generation) {
            // It was trimmed, or compacted and so is here.
            return Ok(());
        }
        let file = OwnFile::new(self.streamlet, record);
        let found = match self.inspect(&file, record).await? {
            Some(found) => found,
            None => {
                self.replicated.may_copy(record.length).await;
                if self.streamlet.is_over() {
                    return Err("another broker owns it meanwhile".into());
                }
                let (streamlet, lane, group) = (self.streamlet.clone(), record.lane, record.group);
                let fetch = move || Ok::<_, String>(streamlet.fetch_again(lane, group));
                if !blocking(fetch).await? {
                    return Err("nobody has it now".into());
                }
                file.inspect().await?.ok_or("it was trimmed")?
            }
        };
        self.part_with_kept(&file, record, kept).await;
        let (metadata, key) = (self.shared.metadata.clone(), record.key());
        let stored = move || metadata.group(key).map_err(|error| error.to_string());
        let stored = blocking(stored).await?;
        let own = own(self.replicated.primary().me(), self.streamlet);
        if let Some(mended) = stored.and_then(|record| with_own(&record, own, found)) {
            let metadata = &self.shared.metadata;
            store(metadata, self.streamlet, self.epoch, vec![mended]).await?;
        }
        Ok(())
    }

    /// The greatest timestamp of a group's own file, if that counts and is whole.
    pub(super) async fn inspect(
        &self,
        file: &OwnFile,
        record: &GroupRecord,
    ) -> Result<Option<i64>, String> {
        let primary = self.replicated.primary();
        let kept = match record.generation {
            0 => Vec::new(),
            _ => primary.kept_here(self.streamlet.key()).await,
        };
        file.inspect_of(record, primary.me(), &kept).await
    }
}

/// The last group with records of each lane: its file tells what the lane remembers of its producers.
fn newest_of_lanes(image: &Image) -> BTreeSet<GroupId> {
    let mut newest = BTreeMap::new();
    for record in image.groups.iter().filter(|record| record.holds_records()) {
        let of_lane: &mut GroupId = newest.entry(record.lane).or_default();
        *of_lane = record.group.max(*of_lane);
    }
    newest.into_values().collect()
}
