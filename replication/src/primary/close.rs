//! The life of one group at its primary, up to its one close: tasks that begin it and that end it. A group that takes
//! appends has none.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use kera_log_segments::group_life::GroupStage;
use kera_log_segments::invariant;
use kera_log_segments::window::Place;
use kera_records::{GroupRecord, Transaction};
use parking_lot::Mutex;

use super::lane::{Lane, group_ids};
use super::replica_set::ReplicaSet;
use super::{Building, tidy};
use crate::build_replica::{Build, GroupBytes};
use crate::ids::{AckPolicy, BrokerId, Replica};
use crate::records::{RecordsError, commit};
use crate::runtime::{all, off, within};
use crate::transport::{Pending, Request};

/// Attempts at a close that conflicts with records this owner itself may have changed.
const CLOSE_ATTEMPTS: u32 = 5;

/// The pause before the same brokers are tried again is at most so many times the usual one.
const LONGEST_PAUSE: u32 = 64;

/// Where copies of a group that ends with too few could not be built. A broker may well answer and take no
/// copy, as with a disk that is full: the next attempt is made at another one.
#[derive(Default)]
struct Failed {
    at: Vec<BrokerId>,
    /// How often all that are there had failed.
    rounds: u32,
}

impl Failed {
    /// All that are there have failed: they are tried again, each time after a longer pause, as each
    /// attempt may send the whole group.
    fn begin_again(&mut self) {
        if !self.at.is_empty() {
            self.at.clear();
            self.rounds += 1;
        }
    }

    fn pause(&self, pause: Duration) -> Duration {
        match self.at.is_empty() {
            true => pause * 2_u32.saturating_pow(self.rounds).min(LONGEST_PAUSE),
            false => pause,
        }
    }
}

/// Records the group and ships it. Nothing is left behind that waits for its end: who sees that it is over, calls
/// [`end`].
pub(super) async fn begin(lane: Weak<Lane>, set: Arc<ReplicaSet>) {
    let is_ahead = set.revision() != 0;
    if !is_ahead && !record(&lane, &set).await {
        return;
    }
    let Some(lane) = lane.upgrade() else { return };
    set.join_shippers();
    if lane.is_deposed() {
        set.leave_shippers();
        return;
    }
    set.has_begun();
    // The next one is recorded while this one is used.
    if is_ahead && let Err(error @ RecordsError::Epoch { .. }) = lane.record(&set).await {
        lane.depose(error);
    }
}

/// Closes a group that is full, or has lost a replica; or not, if another broker has taken over or the lane was
/// dropped.
pub(super) async fn end(lane: Weak<Lane>, set: Arc<ReplicaSet>) {
    close(&lane, &set).await;
    set.leave_shippers();
}

/// Sees to the open record; false if this broker is deposed.
async fn record(lane: &Weak<Lane>, set: &Arc<ReplicaSet>) -> bool {
    loop {
        let Some(lane) = lane.upgrade().filter(|lane| !lane.is_deposed()) else {
            return false;
        };
        let recorded = match lane.record(set).await {
            // What an earlier attempt without an answer may have recorded counts.
            Err(RecordsError::Unknown(_) | RecordsError::Revision { .. }) => lane.adopt(set).await,
            other => other,
        };
        match recorded {
            Ok(true) => return true,
            // Too few holders, or a silent store: appends wait, up to their deadline.
            Ok(false) | Err(RecordsError::Unknown(_)) => {
                match recorded {
                    Err(error) => set.has_trouble(&error),
                    Ok(_) => set.has_trouble(&format!(
                        "too few brokers take replicas, or one before it is not recorded{}",
                        lane.primary.without_disk()
                    )),
                }
                let pause = lane.primary.config.pause;
                let paused = lane.primary.runtime.sleep(pause);
                drop(lane);
                paused.await;
            }
            Err(error) => {
                lane.depose(error);
                return false;
            }
        }
    }
}

/// Waits until all that are not lost have everything below `end`, or for the drain timeout; who is
/// behind then counts as lost.
async fn drain(lane: &Lane, set: &Arc<ReplicaSet>, end: Place) {
    let waiting = set.clone();
    let drained = async move {
        loop {
            let seen = waiting.signal.seen();
            if waiting.behind(end.address).is_empty() {
                return;
            }
            waiting.signal.changed(seen).await;
        }
    };
    let primary = &lane.primary;
    let timeout = primary.config.drain_timeout;
    if within(&*primary.runtime, timeout, Box::pin(drained))
        .await
        .is_none()
    {
        for index in set.behind(end.address) {
            set.lose(index, "it did not take the group's last bytes in time");
        }
    }
}

async fn close(lane: &Weak<Lane>, set: &Arc<ReplicaSet>) {
    let end = set.freeze();
    set.wake_shippers();
    if let Some(lane) = lane.upgrade() {
        // The drain waits for this write, but not for ever: the disk may stall.
        let writes_out = set.clone();
        let _goes_on = off(&*lane.primary.runtime, move || writes_out.write_out());
        // The lane's next group is wanted now, whatever this one's end takes.
        lane.signal.notify();
    }
    // Marked until the close names them.
    let mut built: Vec<(Replica, Building)> = Vec::new();
    let mut failed = Failed::default();
    let mut flushed = None;
    loop {
        let Some(lane) = lane.upgrade().filter(|lane| !lane.is_deposed()) else {
            return;
        };
        let (signal, seen) = (lane.signal.clone(), lane.signal.seen());
        // Asked first: who is not behind by now is among the holders.
        let behind = set.behind(end.address).len();
        let mut holders = set.holding(end.address);
        holders.extend(built.iter().map(|(holder, _)| *holder));
        let whole = (holders.len(), lane.spec.min_insync_replicas);
        let stage = GroupStage::of(&set.facts((end.address, behind), whole, lane.is_front(set)));
        set.is_at(stage);
        match stage {
            GroupStage::Building => match build_one(&lane, set, &holders, end, &mut failed).await {
                Ok(one) => built.push(one),
                Err(Some(sealed)) => return lane.depose(sealed),
                Err(None) => {
                    let pause = failed.pause(lane.primary.config.pause);
                    let paused = lane.primary.runtime.sleep(pause);
                    drop(lane);
                    paused.await;
                }
            },
            // Acknowledgements wait for closes only where a replica is lost.
            GroupStage::Waiting | GroupStage::Closing if flushed.is_none() && !lane.has_lost() => {
                flushed = Some(flush(&lane, set, end, &holders).await);
            }
            GroupStage::Waiting => {
                drop(lane);
                signal.changed(seen).await;
            }
            GroupStage::Closing => {
                if end.address == 0 && holders.is_empty() {
                    holders = set.holders();
                }
                let flushed = flushed.unwrap_or_default();
                return close_at(&lane, set, end, holders, &flushed).await;
            }
            // Of a group that is recorded, ends, and may be built elsewhere nothing else is left: it is draining.
            _ => drain(&lane, set, end).await,
        }
    }
}

/// Brings a group that ends at `end` to the disks of its holders, as far as they do that within the drain timeout and
/// before the lane loses a replica: from the close on everybody takes the record's word for it, also when all of them
/// have lost power. Who has done it.
async fn flush(
    lane: &Arc<Lane>,
    set: &Arc<ReplicaSet>,
    end: Place,
    holders: &[Replica],
) -> Vec<BrokerId> {
    // What is synced is there already, and of an empty group there is nothing to bring.
    if set.ack() == AckPolicy::Synced || end.address == 0 {
        return Vec::new();
    }
    let primary = &lane.primary;
    let (copy, caller) = (set.id(), primary.caller());
    let flushed = Arc::new(Mutex::new(Vec::new()));
    // Where others have it on their disks the own file follows the close, one after the other: a sync takes a thread.
    let own_alone = holders.iter().all(|holder| primary.is_own(holder.broker));
    let asked = holders.iter().map(|holder| holder.broker);
    let asked = asked.filter(|broker| own_alone || !primary.is_own(*broker));
    let flushes = asked.map(|broker| -> Pending<()> {
        let flushed = flushed.clone();
        if own_alone {
            let group = set.group().clone();
            let synced = off(&*primary.runtime, move || group.sync());
            // That it failed its group knows.
            return Box::pin(async move { drop(synced.await) });
        }
        let asked = caller.ask(broker, Request::flush_closed(copy, end.address));
        Box::pin(async move {
            match asked.await {
                Ok(_) => flushed.lock().push(broker),
                Err(error) => {
                    tracing::info!(group = %copy, %broker, %error, "a group is closed before it is flushed here");
                }
            }
        })
    });
    let flushes = all(flushes.collect());
    let (of, one) = (lane.clone(), set.clone());
    let until = async move {
        tokio::select! {
            biased;
            _ = flushes => {}
            () = hurry(&of, &one) => {}
        }
    };
    let timeout = primary.config.drain_timeout;
    let ended = within(&*primary.runtime, timeout, Box::pin(until)).await;
    let flushed = std::mem::take(&mut *flushed.lock());
    if ended.is_none()
        && let Some(others) = primary.unflushed.lock().due(Instant::now())
    {
        let holders: Vec<_> = holders.iter().map(|holder| holder.broker).collect();
        tracing::warn!(group = %copy, ?holders, ?flushed, ?timeout, others, "a group is closed before all of these brokers have it on their disks, which are slow: if they lose power now, its records may be lost. `others` groups before it were not told of");
    }
    flushed
}

/// Returns once an acknowledgement may wait for a close in the lane, or nobody waits for anything there.
async fn hurry(lane: &Lane, set: &ReplicaSet) {
    loop {
        // Whoever loses a replica tells its own set, and its lane once it ends.
        let (here, there) = (set.signal.seen(), lane.signal.seen());
        if lane.has_lost() || lane.is_deposed() {
            return;
        }
        tokio::select! {
            biased;
            () = set.signal.changed(here) => {}
            () = lane.signal.changed(there) => {}
        }
    }
}

/// Records that the group ends at `end` and that `holders` have it, some of them `flushed`.
async fn close_at(
    lane: &Lane,
    set: &Arc<ReplicaSet>,
    end: Place,
    holders: Vec<Replica>,
    flushed: &[BrokerId],
) {
    // What is closed lies in files, whatever counted before.
    let holders = holders.into_iter().map(|h| lane.primary.in_file(h));
    let holders: Vec<_> = holders.collect();
    match commit_close(lane, set, end, &holders).await {
        Ok(()) => {
            tracing::debug!(group = %set.id(), length = end.address, ?holders, "a group is closed");
            set.set_closed();
            lane.let_go_closed();
            afterwards(lane, set, end, holders, flushed);
        }
        Err(error) => lane.depose(error),
    }
}

/// Commits the close; asks until there is an answer.
async fn commit_close(
    lane: &Lane,
    set: &ReplicaSet,
    end: Place,
    holders: &[Replica],
) -> Result<(), RecordsError> {
    let (group, first) = (set.id().group, set.group().spec().first_ordinal);
    let told = set.told();
    invariant!(
        told <= end.address,
        "{} would be closed at byte {}, and all below {} was acknowledged",
        set.id(),
        end.address,
        told
    );
    invariant!(
        end.address == 0 || holders.len() >= lane.spec.min_insync_replicas,
        "{} would be closed with {} replicas, fewer than min.insync.replicas",
        set.id(),
        holders.len()
    );
    let place = (end.address, end.ordinal);
    let closed = |open: GroupRecord| GroupRecord {
        max_timestamp_ms: set.group().max_timestamp().max(-1),
        ..open.closed(first, place, end.ordinal, holders.to_vec())
    };
    let mut record = closed(GroupRecord {
        revision: set.revision(),
        ..lane.new_group(group)
    });
    // Whoever is lost must not be waited for in the next group either.
    let mut unused = lane.take_ahead_of(&set.lost());
    let primary = &lane.primary;
    let (mut unsure, mut conflicts) = (false, 0);
    loop {
        let deletes = unused.iter().map(|ahead| lane.delete_ahead(ahead));
        let changes = std::iter::once(record.clone().put()).chain(deletes);
        let transaction = Transaction::of_groups(lane.spec.streamlet, lane.spec.epoch, changes);
        let (records, runtime) = (&primary.records, &*primary.runtime);
        match commit(records, runtime, &transaction, unsure).await {
            Ok(_) => {
                let _goes_on = lane.drop_files(group_ids(&unused), true);
                return Ok(());
            }
            Err(error @ RecordsError::Unknown(_)) => {
                set.has_trouble(&error);
                unsure = true;
                runtime.sleep(primary.config.pause).await;
            }
            // In its own epoch nobody but this owner changes these records: an earlier request of
            // its own, that was late, may have done so.
            Err(RecordsError::Revision { .. } | RecordsError::Invalid(_))
                if conflicts < CLOSE_ATTEMPTS =>
            {
                conflicts += 1;
                let found = match lane.read_records().await {
                    Err(RecordsError::Unknown(_)) => continue,
                    other => other?,
                };
                let of = |group| found.groups.iter().find(|r| r.group == group);
                match of(group) {
                    Some(found) if found.agrees(&record) => {
                        let _goes_on = lane.drop_files(group_ids(&unused), false);
                        return Ok(());
                    }
                    Some(found) if !found.is_closed() => record = closed(found.clone()),
                    _ => conflicts = CLOSE_ATTEMPTS,
                }
                unused.retain_mut(|ahead| match of(ahead.group) {
                    Some(found) if !found.is_closed() => {
                        ahead.revision = found.revision;
                        true
                    }
                    _ => {
                        let _goes_on = lane.drop_files(vec![ahead.group], false);
                        false
                    }
                });
                unsure = false;
                runtime.sleep(primary.config.pause).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Brings the closed group to the disks of those holders that have not `flushed` it, and has the others give back what
/// they hold of it; nobody waits for that. What fails is made good by the tidying of [`super::tidy`].
fn afterwards(
    lane: &Lane,
    set: &Arc<ReplicaSet>,
    end: Place,
    holders: Vec<Replica>,
    flushed: &[BrokerId],
) {
    let primary = lane.primary.clone();
    let copy = set.id();
    let left_out: Vec<_> = set
        .holders()
        .iter()
        .map(|holder| holder.broker)
        .filter(|broker| !holders.iter().any(|h| h.broker == *broker))
        .collect();
    let flushes_own = holders.iter().any(|holder| primary.is_own(holder.broker));
    let (on_disk, needed) = (flushed.len(), lane.spec.min_insync_replicas);
    tell_flushed(set, on_disk, flushes_own, needed);
    // Who writes the own file brings it to disk. Of an empty group there is nothing to bring.
    let brokers = holders.into_iter().map(|holder| holder.broker);
    let left = brokers
        .filter(|broker| !primary.is_own(*broker) && !flushed.contains(broker) && end.address > 0);
    let left: Vec<_> = left.collect();
    let runtime = primary.runtime.clone();
    let set = set.clone();
    runtime.spawn(Box::pin(async move {
        let caller = primary.caller();
        let mut on_disk = on_disk;
        let flushes = left.into_iter().map(|broker| -> Pending<_> {
            let request = Request::flush_closed(copy, end.address);
            Box::pin(caller.ask(broker, request))
        });
        for flushed in all(flushes.collect()).await {
            match flushed {
                Ok(_) => on_disk += 1,
                Err(error) => {
                    tracing::info!(group = %copy, %error, "a closed group may not be flushed; it stays in the memory of the broker that holds the replica for now");
                }
            }
        }
        tell_flushed(&set, on_disk, flushes_own, needed);
        drop(set);
        for broker in left_out.into_iter().filter(|broker| !primary.is_own(*broker)) {
            tidy::streamlet_at(&primary, copy.streamlet, copy.epoch, broker).await;
        }
    }));
}

/// Says that the closed group stays, whatever loses power, if so many brokers beside this one have it on their disks, and
/// this one, where it has a file, `flushes_own`.
fn tell_flushed(set: &ReplicaSet, on_disk: usize, flushes_own: bool, needed: usize) {
    match on_disk >= needed {
        true => set.set_flushed(false),
        false if flushes_own && on_disk + 1 >= needed => set.set_flushed(true),
        // The jobs look again.
        false => {}
    }
}

/// Builds one more copy of a group that has too few, at a broker that has none and has not `failed`.
/// `Err(Some)` if a newer owner has sealed it there.
async fn build_one(
    lane: &Lane,
    set: &Arc<ReplicaSet>,
    have: &[Replica],
    end: Place,
    failed: &mut Failed,
) -> Result<(Replica, Building), Option<RecordsError>> {
    let primary = &lane.primary;
    let mut have: Vec<_> = have.iter().map(|holder| holder.broker).collect();
    if primary.own.is_some() {
        // The own file is being written, or has failed; it is not made anew beneath its writer.
        have.push(primary.me);
    }
    let mut without = have.clone();
    without.extend(set.holders().iter().map(|holder| holder.broker));
    let mut chosen = primary
        .choose(1, 1, (&without, &failed.at), set.ack())
        .await;
    if chosen.is_empty() {
        // One that was lost, and is back.
        chosen = primary.choose(1, 1, (&have, &failed.at), set.ack()).await;
    }
    let Some(holder) = chosen.first() else {
        // What was wrong with those that failed says more.
        if failed.at.is_empty() {
            set.has_trouble(&"no broker is left that could take a replica");
        }
        failed.begin_again();
        return Err(None);
    };
    let building = primary.building(set.id(), holder.broker);
    tracing::debug!(group = %set.id(), at = %holder.broker, "a group that ends with too few replicas gets another one");
    let caller = primary.caller();
    let build = Build {
        primary,
        copy: set.id(),
        epoch: lane.spec.epoch,
        at: holder.broker,
        from: 0,
        end,
        bytes: GroupBytes::Owner(set.clone()),
        ask: &|broker, request| caller.ask(broker, request),
        pace: None,
    };
    let Err(error) = build.seal_and_run().await else {
        return Ok((*holder, building));
    };
    if let Some(by) = error.sealed_by() {
        return Err(Some(RecordsError::Epoch {
            streamlet: lane.spec.streamlet,
            expected: lane.spec.epoch,
            found: by,
        }));
    }
    set.has_trouble(&error);
    failed.at.push(holder.broker);
    Err(None)
}
