//! Comparing the copies of closed groups, so that what disks lose is noticed while there is another
//! copy to make it good from.
//!
//! Every holder looks at its own bytes, a stretch at a time, and answers with a digest: whether each
//! batch is whole, and whether the group ends where its record says. Copies that are whole and alike
//! are right. One that is not whole, is gone, or differs from what most holders have, is replaced: by
//! one that is built aside, checked and recorded as any copy that was lost. Copies that are all whole
//! and differ without a majority are reported, and nothing is touched.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kera_protocol::ids::GroupId;
use kera_records::GroupRecord;

use super::{Jobs, Owned, Standing};
use crate::build_replica::PIECE_BYTES;
use crate::ids::{BrokerId, CopyId, Replica, StreamletKey};
use crate::primary::Primary;
use crate::records::{read, read_group};
use crate::transport::{Pending, Place, Progress, Refusal, Reply, Request};

/// Groups remembered whose copies could not be put right; there are more only where a disk is lost.
const MAX_UNSOUND: usize = 65_536;

/// What came of an attempt to put the owner's own file right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mended {
    /// It was fetched from another copy.
    Yes,
    /// It is still being written, though its group is closed: there is nothing to judge yet.
    NotYet,
    /// Nobody had it.
    No,
    /// All that its file lacks was given up, and no replica has it.
    GivenUp,
}

/// Puts right an owner's own file of a closed group.
pub trait Mend: Send + Sync {
    /// Whether the file has been brought to its end, so that what is missing is damage.
    fn is_settled(&self, record: &GroupRecord) -> bool;

    /// Fetches the file anew from a copy that is whole, and puts it in its place at once.
    fn mend(&self, record: &GroupRecord) -> Pending<Mended>;

    /// Closed groups of which it is not known that enough replicas are on disk, with the generations of their files; oldest
    /// first, and only those that somebody asks about.
    fn unflushed(&self) -> Vec<(GroupId, u32)> {
        Vec::new()
    }

    /// Enough replicas of a closed group are on the disks of their brokers.
    fn flushed(&self, _record: &GroupRecord) {}

    /// Gives up what this broker has of the streamlet and no record names, which nobody else looks for at a
    /// streamlet's owner; how many replicas that were.
    fn tidy(&self) -> Pending<u64> {
        Box::pin(async { 0 })
    }
}

/// What is wrong with a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// Its bytes are not whole.
    Damaged,
    /// It is not there.
    Missing,
    /// It is whole, and not what most holders have.
    Differs,
}

/// What one holder's copy is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    Whole(u64),
    Harmed {
        harm: Harm,
        /// Up to here it is whole.
        address: u64,
        why: String,
    },
    /// Its holder does not answer, or the copy is not to be judged yet.
    Silent,
}

/// What a look at a group came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judged {
    /// Every copy that could be looked at is right.
    Sound,
    /// Something was wrong, and is right now.
    Repaired,
    /// Something is wrong still.
    Unsound,
    /// Nothing can be said: the record has changed meanwhile.
    Stale,
}

/// When each streamlet is looked at, and what is wrong.
#[derive(Debug, Default)]
pub(super) struct Plan {
    due: BTreeMap<StreamletKey, Duration>,
    /// When each was looked at last from end to end.
    done: BTreeMap<StreamletKey, Duration>,
    /// Groups with copies that are not right, by when that was seen first.
    unsound: BTreeMap<CopyId, Duration>,
    /// Groups whose copies are to be compared soon.
    suspect: BTreeSet<CopyId>,
    /// Those among them whose records may name holders that have less, without any disk being at fault.
    unconfirmed: BTreeSet<CopyId>,
}

impl Plan {
    pub(super) fn unsound(&self) -> u64 {
        self.unsound.len() as u64
    }

    /// How many of these streamlets were looked at, and if it was all of them, since when.
    pub(super) fn done(
        &self,
        owned: impl Iterator<Item = StreamletKey>,
    ) -> (u64, Option<Duration>) {
        let (mut all, mut done, mut since) = (true, 0, None::<Duration>);
        for streamlet in owned {
            match self.done.get(&streamlet) {
                Some(at) => {
                    done += 1;
                    since = Some(since.map_or(*at, |since| since.min(*at)));
                }
                None => all = false,
            }
        }
        (done, since.filter(|_| all))
    }
}

impl Jobs {
    /// Compares copies as they fall due, until the primary is dropped. Each streamlet's first time
    /// comes at random within the interval: brokers that start together do not work together, and one
    /// that starts often gets round in the end.
    pub async fn run_scrubs(self: Arc<Self>) {
        loop {
            let Some(primary) = self.primary.upgrade() else {
                return;
            };
            let every = self.config.interval.min(self.config.scrub_interval);
            let slept = primary.runtime.sleep(self.pace.about(every));
            drop(primary);
            slept.await;
            self.scrub_due().await;
        }
    }

    /// Looks at the streamlets whose time has come, again at groups that were not put right, and at those
    /// of which a copy could not be made whole.
    pub async fn scrub_due(&self) {
        let Some(primary) = self.primary.upgrade() else {
            return;
        };
        let owned = (self.owned)(None);
        let by_key: BTreeMap<_, _> = owned.iter().map(|one| (one.streamlet, one)).collect();
        let (due, unsound) = {
            let now = primary.runtime.now();
            let mut plan = self.plan.lock();
            let is_owned = |key: &StreamletKey| by_key.contains_key(key);
            plan.due.retain(|key, _| is_owned(key));
            plan.done.retain(|key, _| is_owned(key));
            plan.unsound.retain(|copy, _| is_owned(&copy.streamlet));
            plan.suspect.retain(|copy| is_owned(&copy.streamlet));
            plan.unconfirmed.retain(|copy| is_owned(&copy.streamlet));
            for one in &owned {
                let first = || now + self.pace.within(self.config.scrub_interval);
                plan.due.entry(one.streamlet).or_insert_with(first);
            }
            let is_due = |one: &&Owned| plan.due.get(&one.streamlet).is_some_and(|at| *at <= now);
            let due: Vec<_> = owned.iter().filter(is_due).cloned().collect();
            let mut unsound: BTreeMap<_, BTreeSet<CopyId>> = BTreeMap::new();
            for copy in plan.unsound.keys().chain(&plan.suspect) {
                unsound.entry(copy.streamlet).or_default().insert(*copy);
            }
            (due, unsound)
        };
        for (streamlet, copies) in unsound {
            if let Some(one) = by_key.get(&streamlet) {
                self.scrub_some(&primary, one, |copy| copies.contains(copy))
                    .await;
            }
        }
        for one in due {
            self.scrub_whole(&primary, &one).await;
            let next = primary.runtime.now() + self.pace.about(self.config.scrub_interval);
            self.plan.lock().due.insert(one.streamlet, next);
        }
    }

    /// A copy made from the others was not whole: they are compared at the next turn, whenever they are due.
    pub(super) fn suspect(&self, copy: CopyId) {
        let mut plan = self.plan.lock();
        if plan.suspect.len() < MAX_UNSOUND {
            plan.suspect.insert(copy);
        }
    }

    /// Compares closed groups of a streamlet that were recorded again, as far as brokers knew: some that are named as holders may have less. Who
    /// has less is replaced, and no disk is blamed for it. Those of which not all holders answer are compared again at each turn until they
    /// do. Of very many the rest waits for its usual turn.
    pub async fn confirm(&self, streamlet: StreamletKey, groups: Vec<CopyId>) {
        {
            let mut plan = self.plan.lock();
            let room = MAX_UNSOUND.saturating_sub(plan.suspect.len());
            for copy in groups.iter().take(room) {
                plan.suspect.insert(*copy);
                plan.unconfirmed.insert(*copy);
            }
        }
        let owned = (self.owned)(Some(streamlet)).pop();
        if let (Some(primary), Some(owned)) = (self.primary.upgrade(), owned) {
            self.scrub_some(&primary, &owned, |copy| groups.contains(copy))
                .await;
        }
    }

    /// Looks at all that this broker owns, whenever it was looked at last.
    pub async fn scrub_all(&self) {
        if let Some(primary) = self.primary.upgrade() {
            for one in (self.owned)(None) {
                self.scrub_whole(&primary, &one).await;
            }
        }
    }

    /// Looks at a streamlet from end to end, and remembers when that was.
    async fn scrub_whole(&self, primary: &Arc<Primary>, owned: &Owned) {
        let begun = primary.runtime.now();
        if self.scrub_some(primary, owned, |_| true).await {
            self.ended.lock().scrub = Some(primary.runtime.now());
            self.plan.lock().done.insert(owned.streamlet, begun);
        }
    }

    /// Looks at those closed groups of a streamlet that `wanted` names; false if its records could not be
    /// read, or it became another broker's meanwhile.
    async fn scrub_some(
        &self,
        primary: &Arc<Primary>,
        owned: &Owned,
        wanted: impl Fn(&CopyId) -> bool,
    ) -> bool {
        let Some(found) = self.records_of(primary, owned).await else {
            return false;
        };
        {
            // What was trimmed needs no copies.
            let is_gone = |copy: &&CopyId| {
                let at = found.binary_search_by_key(&copy.group, |record| record.group);
                at.is_err() || at.is_ok_and(|at| CopyId::of(&found[at]) != **copy)
            };
            let of = CopyId::all_of(owned.streamlet);
            let mut plan = self.plan.lock();
            let unsound = plan.unsound.range(of.clone()).map(|(copy, _)| copy);
            let gone = unsound.chain(plan.suspect.range(of)).filter(is_gone);
            for copy in gone.copied().collect::<Vec<_>>() {
                plan.unsound.remove(&copy);
                plan.suspect.remove(&copy);
                plan.unconfirmed.remove(&copy);
            }
        }
        let wanted = found.iter().filter(|record| wanted(&CopyId::of(record)));
        for record in wanted.filter(|record| record.holds_records()) {
            let now = (self.owned)(Some(owned.streamlet));
            if now.iter().all(|one| one.epoch != owned.epoch) {
                return false;
            }
            self.scrub_group(primary, owned, record).await;
        }
        true
    }

    pub(super) async fn records_of(
        &self,
        primary: &Primary,
        owned: &Owned,
    ) -> Option<Vec<GroupRecord>> {
        let found = read(&primary.records, &*primary.runtime, owned.streamlet).await;
        let found = found.ok();
        let found = found.filter(|found| found.streamlet.epoch == owned.epoch);
        found.map(|found| found.groups)
    }

    /// A group's record as it is now, whatever it says; `None` if there is none, or it is another broker's.
    pub(super) async fn group_now(
        &self,
        primary: &Primary,
        owned: &Owned,
        group: GroupId,
    ) -> Option<GroupRecord> {
        let key = owned.streamlet.group(group);
        let found = read_group(&primary.records, &*primary.runtime, key).await;
        let found = found.ok();
        let found = found.filter(|found| found.streamlet.epoch == owned.epoch);
        found.and_then(|found| found.group(group).cloned())
    }

    /// The record as it is now; `None` if it is not closed any more, or another broker's.
    async fn record_now(
        &self,
        primary: &Primary,
        owned: &Owned,
        copy: &CopyId,
    ) -> Option<GroupRecord> {
        let record = self.group_now(primary, owned, copy.group).await?;
        Some(record).filter(|record| record.is_closed() && CopyId::of(record) == *copy)
    }

    async fn is_current(&self, primary: &Primary, owned: &Owned, record: &GroupRecord) -> bool {
        let now = self.record_now(primary, owned, &CopyId::of(record)).await;
        now.is_some_and(|now| now.revision == record.revision)
    }

    async fn scrub_group(&self, primary: &Arc<Primary>, owned: &Owned, record: &GroupRecord) {
        let copy = CopyId::of(record);
        let judged = self.compare(primary, owned, record).await;
        self.counts.lock().scrubbed += 1;
        let mut plan = self.plan.lock();
        if judged != Judged::Stale {
            plan.suspect.remove(&copy);
            plan.unconfirmed.remove(&copy);
        }
        match judged {
            Judged::Sound | Judged::Repaired => {
                plan.unsound.remove(&copy);
            }
            Judged::Unsound if plan.unsound.len() < MAX_UNSOUND => {
                let now = primary.runtime.now();
                plan.unsound.entry(copy).or_insert(now);
            }
            Judged::Unsound | Judged::Stale => {}
        }
    }

    async fn compare(&self, primary: &Arc<Primary>, owned: &Owned, record: &GroupRecord) -> Judged {
        let copy = CopyId::of(record);
        let mut found = Vec::new();
        for holder in &record.copies {
            let looked = self.look(primary, owned, record, holder.broker);
            found.push((*holder, looked.await));
        }
        let right = match agreed(&found) {
            Agreed::On(right) => right,
            Agreed::Nobody => {
                // All that is known to be there is harmed; who is silent may have it.
                let harmed = found.iter().any(|(_, f)| matches!(f, Found::Harmed { .. }));
                // A trim or compaction may have ended it since its record was read.
                if !harmed || !self.is_current(primary, owned, record).await {
                    return Judged::Stale;
                }
                // Each of its batches may be whole on one of them.
                let mended = match &owned.mend {
                    Some(mend) => mend.mend(record).await,
                    None => Mended::No,
                };
                if mended == Mended::GivenUp {
                    return Judged::Sound;
                }
                self.report(record, &found);
                if mended == Mended::Yes {
                    // The others are replaced from it when they are compared next.
                    tracing::info!(group = %copy, "no replica of the group was whole; this broker's own file has been put together from all of them");
                    return Judged::Unsound;
                }
                tracing::error!(group = %copy, "no replica of the group is whole on the brokers that answer; start the others, read what is left with `kera segment verify` on its brokers, or give up what is lost with `kera stream recover`");
                return Judged::Unsound;
            }
            Agreed::Split => {
                self.counts.lock().differing += 1;
                tracing::error!(group = %copy, ?found, "the replicas of the group are whole and differ, and there is no majority; nothing is changed: compare them with `kera segment verify` on their brokers, and remove the wrong file while its broker is stopped");
                return Judged::Unsound;
            }
        };
        for (_, looked) in &mut found {
            if matches!(looked, Found::Whole(digest) if *digest != right) {
                *looked = Found::Harmed {
                    harm: Harm::Differs,
                    address: 0,
                    why: "most replicas have other bytes".into(),
                };
            }
        }
        if !found.iter().any(|(_, f)| matches!(f, Found::Harmed { .. })) {
            let is_silent = found.iter().any(|(_, f)| *f == Found::Silent);
            let is_open = is_silent && self.plan.lock().unconfirmed.contains(&copy);
            return if is_open {
                Judged::Stale
            } else {
                Judged::Sound
            };
        }
        let _one_at_a_time = self.repairing.lock().await;
        if !self.is_current(primary, owned, record).await {
            return Judged::Stale;
        }
        self.report(record, &found);
        self.replace(primary, owned, record, &found, right).await
    }

    /// Tells people of each copy that is not right, the first time.
    fn report(&self, record: &GroupRecord, found: &[(Replica, Found)]) {
        let copy = CopyId::of(record);
        let is_unconfirmed = {
            let plan = self.plan.lock();
            if plan.unsound.contains_key(&copy) {
                return;
            }
            plan.unconfirmed.contains(&copy)
        };
        for (holder, looked) in found {
            if let Found::Harmed { harm, address, why } = looked {
                if is_unconfirmed && *harm != Harm::Differs {
                    tracing::info!(group = %copy, at = %holder.broker, address, why, "a broker has less of a group that was recorded again than its record says; another replica takes its place");
                    continue;
                }
                {
                    let counts = &mut *self.counts.lock();
                    *match harm {
                        Harm::Damaged => &mut counts.damaged,
                        Harm::Missing => &mut counts.missing,
                        Harm::Differs => &mut counts.differing,
                    } += 1;
                }
                tracing::error!(group = %copy, at = %holder.broker, address, why, "a replica of a closed group is {harm:?}; it is built again from another: check the disk that it was on");
            }
        }
    }

    /// Puts right what is harmed, others' copies first: then the own file has more to be fetched from.
    async fn replace(
        &self,
        primary: &Arc<Primary>,
        owned: &Owned,
        record: &GroupRecord,
        found: &[(Replica, Found)],
        right: u64,
    ) -> Judged {
        let copy = CopyId::of(record);
        let mut outcome = Judged::Repaired;
        let is_harmed = |f: &Found| matches!(f, Found::Harmed { .. });
        let harmed = || found.iter().filter(|(_, f)| is_harmed(f)).map(|(h, _)| *h);
        for holder in harmed().filter(|holder| !primary.is_own(holder.broker)) {
            let Some(now) = self.record_now(primary, owned, &copy).await else {
                return Judged::Stale;
            };
            let mut standing = Standing::default();
            for still in &now.copies {
                let looked = found.iter().find(|(h, _)| h == still).map(|(_, f)| f);
                match looked {
                    Some(Found::Whole(_)) if primary.is_leaving(still.broker) => {
                        standing.leaving.push(*still);
                    }
                    Some(Found::Whole(_)) => standing.have.push(*still),
                    // It stays in the record until its own turn, and is no source.
                    Some(Found::Harmed { .. }) if still == &holder => {}
                    _ => standing.silent.push(*still),
                }
            }
            if standing.have.is_empty() && standing.leaving.is_empty() {
                return Judged::Unsound;
            }
            let done = self.instead_of(primary, owned, &now, standing, holder);
            match done.await {
                Ok(()) => {
                    self.counts.lock().mended += 1;
                    tracing::info!(group = %copy, instead_of = %holder.broker, "a bad replica has been replaced");
                }
                Err(error) => {
                    self.note(Err(error), record);
                    outcome = Judged::Unsound;
                }
            }
        }
        for holder in harmed().filter(|holder| primary.is_own(holder.broker)) {
            let mended = match &owned.mend {
                Some(mend) => mend.mend(record).await,
                None => Mended::No,
            };
            let Some(record) = self.record_now(primary, owned, &copy).await else {
                return Judged::Stale;
            };
            let looked = self.look(primary, owned, &record, holder.broker);
            if mended == Mended::Yes && looked.await == Found::Whole(right) {
                self.counts.lock().mended += 1;
                tracing::info!(group = %copy, "this broker's own file was damaged and has been replaced");
            } else {
                self.counts.lock().failed += 1;
                outcome = Judged::Unsound;
            }
        }
        outcome
    }

    /// Has a holder look at its copy, from end to end.
    async fn look(
        &self,
        primary: &Arc<Primary>,
        owned: &Owned,
        record: &GroupRecord,
        broker: BrokerId,
    ) -> Found {
        let is_own = primary.is_own(broker);
        let unsettled = |mend: &Arc<dyn Mend>| !mend.is_settled(record);
        if is_own && owned.mend.as_ref().is_some_and(unsettled) {
            return Found::Silent;
        }
        let end = Place {
            address: record.length,
            ordinal: record.end_ordinal,
        };
        let harmed = |harm, address, why| Found::Harmed { harm, address, why };
        let mut from = Progress::default();
        let mut failed_before = false;
        while from.place.address < end.address {
            let bytes = PIECE_BYTES.min(end.address - from.place.address);
            self.pace.take(&*primary.runtime, bytes).await;
            let request = Request::Check {
                copy: CopyId::of(record),
                from,
                bytes: bytes as u32,
                end,
            };
            let begun = primary.runtime.now();
            let answer = primary.caller().ask(broker, request).await;
            let took = primary.runtime.now().saturating_sub(begun);
            self.pace.took(&*primary.runtime, took);
            let checked = match answer {
                Ok(Reply::Checked(checked)) => checked,
                Ok(_) => return Found::Silent,
                Err(error) => match error.refusal() {
                    Some(Refusal::Unknown) => {
                        return harmed(Harm::Missing, 0, "it is not there".into());
                    }
                    // Once may be chance; twice the bytes cannot be had.
                    Some(Refusal::Failed(_)) if !failed_before => {
                        failed_before = true;
                        continue;
                    }
                    Some(Refusal::Failed(why)) => {
                        return harmed(Harm::Damaged, from.place.address, why.clone());
                    }
                    _ => return Found::Silent,
                },
            };
            let read = checked.to.place.address.saturating_sub(from.place.address);
            self.counts.lock().scrubbed_bytes += read;
            if let Some(why) = checked.wrong {
                return harmed(Harm::Damaged, checked.to.place.address, why);
            }
            if read == 0 {
                return Found::Silent;
            }
            from = checked.to;
        }
        Found::Whole(from.digest)
    }
}

enum Agreed {
    /// This is right.
    On(u64),
    /// No copy is known to be whole.
    Nobody,
    /// Whole copies differ, and no digest is what most holders have.
    Split,
}

fn agreed(found: &[(Replica, Found)]) -> Agreed {
    let mut digests: BTreeMap<u64, usize> = BTreeMap::new();
    for (_, looked) in found {
        if let Found::Whole(digest) = looked {
            *digests.entry(*digest).or_default() += 1;
        }
    }
    let most = digests.iter().max_by_key(|(_, count)| **count);
    match most {
        None => Agreed::Nobody,
        Some((digest, _)) if digests.len() == 1 => Agreed::On(*digest),
        Some((digest, count)) if 2 * count > found.len() => Agreed::On(*digest),
        Some(_) => Agreed::Split,
    }
}
