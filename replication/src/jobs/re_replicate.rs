//! Giving closed groups back the copies that they have lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use kera_log_segments::check::Progress;
use kera_log_segments::layout::{SEGMENT_HEADER_BYTES, SegmentHeader};
use kera_log_segments::window::Place;
use kera_records::{GroupRecord, Transaction};

use super::{Held, Jobs, Known, Mend, Owned, Standing};
use crate::build_replica::{Build, BuildError, GroupBytes, Replicas};
use crate::ids::{BrokerId, CopyId, Replica, asked_of};
use crate::own::is_of;
use crate::primary::Primary;
use crate::records::{RecordsError, commit};
use crate::transport::{CallError, Pending, Refusal, Reply, Request};

/// Why a group did not get another copy.
#[derive(Debug, thiserror::Error)]
pub(super) enum RestoreError {
    #[error("no broker is left that could take a replica")]
    NoTarget,
    #[error("{0} left while a replica was built on it")]
    TargetLeft(BrokerId),
    #[error(transparent)]
    NotBuilt(#[from] BuildError),
    #[error(transparent)]
    Records(#[from] RecordsError),
}

/// Where a copy is built.
pub(super) struct Target {
    pub(super) holder: Replica,
    /// Nothing is lost without it: it is broken off if the broker goes, or is to hold nothing more.
    pub(super) optional: bool,
}

impl Target {
    fn has_left(&self, primary: &Primary) -> bool {
        let broker = self.holder.broker;
        self.optional && (!primary.peers().contains(&broker) || primary.is_leaving(broker))
    }
}

/// Whether a holder has the first bytes of a closed copy, and a file as long as is recorded; `None` if it does not answer,
/// or cannot tell.
async fn can_be_read(primary: &Primary, holder: Replica, record: &GroupRecord) -> Option<bool> {
    let copy = CopyId::of(record);
    let first = Request::Read {
        copy,
        address: 0,
        len: SEGMENT_HEADER_BYTES as u32,
    };
    match primary.caller().once(holder.broker, first).await {
        // A file that was cut short gives zeros.
        Ok(Reply::Bytes(bytes)) => {
            let header = SegmentHeader::decode(&bytes);
            let is_copy = |h: SegmentHeader| is_of(&h, &copy) && h.epoch == copy.epoch;
            let fits = header.is_ok_and(is_copy);
            Some(fits && !is_cut(primary, holder, record).await)
        }
        Ok(_) => None,
        Err(error) => match error.refusal() {
            // Perhaps it is there. Whoever compares copies asks again, and decides.
            None | Some(Refusal::Failed(_)) => None,
            Some(_) => Some(false),
        },
    }
}

/// Whether a holder says that its file ends before the group does: asked of the end alone, where there is nothing to
/// be read. Whatever else is wrong, or not answered, is for whoever compares copies.
async fn is_cut(primary: &Primary, holder: Replica, record: &GroupRecord) -> bool {
    let end = Place {
        address: record.length,
        ordinal: record.end_ordinal,
    };
    let at_end = Request::Check {
        copy: CopyId::of(record),
        from: Progress {
            place: end,
            digest: 0,
        },
        bytes: 1,
        end,
    };
    let answer = primary.caller().once(holder.broker, at_end).await;
    matches!(answer, Ok(Reply::Checked(checked)) if checked.wrong.is_some())
}

impl Jobs {
    /// Builds what is wanting in one streamlet, `left` copies at most; returns how many groups had
    /// too few.
    pub(super) async fn repair(
        &self,
        primary: &Arc<Primary>,
        owned: &Owned,
        held: &Held,
        left: &mut usize,
    ) -> u64 {
        if self.is_quiet(primary, owned, held).await {
            self.note_missing(owned.streamlet, &BTreeMap::new(), BTreeMap::new());
            return 0;
        }
        let Some(records) = self.records_of(primary, owned).await else {
            return 0;
        };
        for lane in &owned.lanes {
            lane.reclaim(&records);
        }
        let mut wanting = 0;
        let (mut missing, mut found) = (BTreeMap::new(), BTreeMap::new());
        for record in records.iter().filter(|record| record.holds_records()) {
            let copy = CopyId::of(record);
            let standing = self.standing(primary, owned, record, held).await;
            if !standing.missing.is_empty() {
                // Compaction or a trim may have let its replicas go since the records were read.
                let now = self.group_now(primary, owned, record.group).await;
                if now.is_none_or(|now| now.revision != record.revision) {
                    continue;
                }
                missing.insert(copy, standing.missing.clone());
                found.insert(copy, standing.missing.clone());
            }
            if standing
                .missing
                .iter()
                .any(|broker| primary.is_own(*broker))
            {
                // Its file is made anew where it is, as one that is damaged.
                self.suspect(copy);
            }
            let counted = standing.have.len() + standing.silent.len();
            if standing.suffices(owned) {
                if counted < record.copies.len() {
                    // Enough without those that have lost it, or leave.
                    let mut holders = standing.have;
                    holders.extend(standing.silent);
                    let placed = self.place(primary, owned, record, holders).await;
                    let is_placed = placed.is_ok();
                    if is_placed {
                        missing.remove(&copy);
                    }
                    self.note(placed.map(|_| ()), record);
                    for holder in standing.leaving.iter().filter(|_| is_placed) {
                        self.free(primary, owned, record, holder.broker).await;
                    }
                }
                continue;
            }
            let lacking = counted + standing.leaving.len() < owned.replicas;
            wanting += u64::from(lacking);
            if *left == 0 || standing.have.is_empty() && standing.leaving.is_empty() {
                continue;
            }
            let _one_at_a_time = self.repairing.lock().await;
            let restored = self.restore(primary, owned, record, standing).await;
            if matches!(restored, Err(RestoreError::NoTarget)) && !lacking {
                // Whoever leaves keeps its copy until somebody else can take it.
                continue;
            }
            *left -= 1;
            if restored.is_ok() {
                missing.remove(&copy);
                self.counts.lock().built += 1;
            }
            self.note(restored, record);
        }
        self.note_missing(owned.streamlet, &found, missing);
        wanting
    }

    /// True if, as far as is remembered of a streamlet's records, every closed group has the replicas that it is to
    /// have at the brokers that are recorded, so that there is nothing to read its records for.
    async fn is_quiet(&self, primary: &Primary, owned: &Owned, held: &Held) -> bool {
        if owned.lanes.iter().any(|lane| lane.has_unsure()) {
            return false;
        }
        let Some(found) = self.remembered(primary, owned).await else {
            return false;
        };
        for record in found.groups.iter().filter(|record| record.holds_records()) {
            let standing = self.standing(primary, owned, record, held).await;
            let counted = standing.have.len() + standing.silent.len();
            if counted < owned.replicas.max(record.copies.len()) {
                return false;
            }
        }
        true
    }

    pub(super) fn note(&self, done: Result<(), RestoreError>, record: &GroupRecord) {
        if let Err(error) = done {
            self.counts.lock().failed += 1;
            // As many as there are groups, in every round.
            if let Some(others) = self.unrepaired.lock().due(Instant::now()) {
                tracing::info!(group = %CopyId::of(record), %error, others, "the replicas of a group could not be restored, and of others lately; trying again");
            }
        }
    }

    /// Records who holds a group, if nobody else has changed its record.
    pub(super) async fn place(
        &self,
        primary: &Primary,
        owned: &Owned,
        record: &GroupRecord,
        holders: Vec<Replica>,
    ) -> Result<u64, RestoreError> {
        let placed = GroupRecord {
            copies: holders,
            ..record.clone()
        };
        let transaction = Transaction::of_groups(owned.streamlet, owned.epoch, [placed.put()]);
        Ok(commit(&primary.records, &*primary.runtime, &transaction, false).await?)
    }

    pub(super) async fn standing(
        &self,
        primary: &Primary,
        owned: &Owned,
        record: &GroupRecord,
        held: &Held,
    ) -> Standing {
        let copy = CopyId::of(record);
        let mut out = Standing::default();
        for holder in &record.copies {
            let has = if primary.is_own(holder.broker) {
                self.has_own(primary, owned, *holder, record).await
            } else {
                match held.of(holder.broker, copy) {
                    Known::There => Some(true),
                    Known::Short => Some(false),
                    Known::Silent => None,
                    Known::NotListed => self.read_or_suspect(primary, *holder, record).await,
                }
            };
            match has {
                Some(true) if primary.is_leaving(holder.broker) => out.leaving.push(*holder),
                Some(true) => out.have.push(*holder),
                Some(false) => out.missing.push(holder.broker),
                None if self.is_lost(holder.broker, primary.runtime.now()) => {}
                None => out.silent.push(*holder),
            }
        }
        out
    }

    /// Whether this broker has its own file.
    async fn has_own(
        &self,
        primary: &Primary,
        owned: &Owned,
        own: Replica,
        record: &GroupRecord,
    ) -> Option<bool> {
        let unsettled = |mend: &Arc<dyn Mend>| !mend.is_settled(record);
        // Until it is written there is nothing to judge, nor once compaction has replaced it, which may be at any moment.
        let is_open = || owned.mend.as_ref().is_some_and(unsettled);
        if is_open() {
            return Some(true);
        }
        match can_be_read(primary, own, record).await {
            Some(false) if is_open() => Some(true),
            None => {
                self.suspect(CopyId::of(record));
                None
            }
            read => read,
        }
    }

    /// As [`can_be_read`]; where nobody can tell, whoever compares copies looks soon.
    async fn read_or_suspect(
        &self,
        primary: &Primary,
        holder: Replica,
        record: &GroupRecord,
    ) -> Option<bool> {
        let read = can_be_read(primary, holder, record).await;
        if read.is_none() {
            self.suspect(CopyId::of(record));
        }
        read
    }

    /// Has another copy stand for the one at `harmed`, which is not right and not in `standing`. It is
    /// built at a broker without one; where there is none, the record first forgets the one that is not
    /// right, then its holder does, and takes another.
    pub(super) async fn instead_of(
        &self,
        primary: &Arc<Primary>,
        owned: &Owned,
        record: &GroupRecord,
        standing: Standing,
        harmed: Replica,
    ) -> Result<(), RestoreError> {
        let counted = [&standing.have[..], &standing.silent[..]].concat();
        if standing.suffices(owned) {
            return self
                .place(primary, owned, record, counted)
                .await
                .map(|_| ());
        }
        let mut without: Vec<_> = record.copies.iter().map(|h| h.broker).collect();
        without.push(primary.me);
        let mut record = record.clone();
        let avoided = self.avoided(primary);
        let others = primary
            .choose(1, 1, (&without, &avoided), asked_of(&record.copies))
            .await;
        if others.is_empty() {
            let rest = [&counted[..], &standing.leaving[..]].concat();
            record.revision = self.place(primary, owned, &record, rest).await?;
            let freed = ask_to_free(primary, owned, &record, harmed.broker).await;
            freed.map_err(BuildError::from)?;
        }
        self.restore(primary, owned, &record, standing).await
    }

    /// Builds one copy more, and records it.
    async fn restore(
        &self,
        primary: &Arc<Primary>,
        owned: &Owned,
        record: &GroupRecord,
        standing: Standing,
    ) -> Result<(), RestoreError> {
        let mut without: Vec<BrokerId> = record.copies.iter().map(|h| h.broker).collect();
        if primary.own.is_some() {
            // Its own files are the broker's to restore: it may have them open.
            without.push(primary.me);
        }
        // A copy that only moves does not go to another that leaves.
        let counted = standing.have.len() + standing.silent.len() + standing.leaving.len();
        let least = usize::from(counted < owned.replicas);
        let still = standing.have.iter().chain(&standing.silent);
        let still = still.chain(&standing.leaving);
        let mut still: Vec<_> = still.map(|holder| holder.broker).collect();
        if primary.own.is_some() {
            still.push(primary.me);
        }
        let target = self
            .target(primary, least, (&without, &still), asked_of(&record.copies))
            .await;
        let target = Target {
            holder: target.ok_or(RestoreError::NoTarget)?,
            optional: false,
        };
        self.restore_at(primary, owned, record, standing, target)
            .await
    }

    /// Builds a copy at `target`, and records it; then whoever leaves has as many copies less to hold as
    /// are not needed any more, and frees them.
    pub(super) async fn restore_at(
        &self,
        primary: &Arc<Primary>,
        owned: &Owned,
        record: &GroupRecord,
        standing: Standing,
        target: Target,
    ) -> Result<(), RestoreError> {
        let copy = CopyId::of(record);
        let building = primary.building(copy, target.holder.broker);
        let sources: Vec<_> = [&standing.have[..], &standing.leaving[..]].concat();
        let faults = primary.faults;
        if !faults.recorded_before_built() {
            let built = self.build(primary, owned, record, &sources, &target);
            let built = built.await;
            self.learn(primary, copy, (target.holder.broker, sources.len()), &built);
            built?;
        }
        let readable = standing.have.len() + 1;
        let mut holders = standing.have;
        holders.extend(standing.silent);
        holders.push(target.holder);
        // Until there are enough without those that leave, of which enough can be read.
        let room = owned.replicas.saturating_sub(holders.len());
        let room = room.max(owned.min_insync_replicas.saturating_sub(readable));
        let (kept, given_up) = standing.leaving.split_at(room.min(standing.leaving.len()));
        holders.extend_from_slice(kept);
        if holders.len() < owned.min_insync_replicas {
            // Whoever is recorded and seems lost stays so until there are enough without it.
            let named: Vec<_> = holders.iter().map(|h| h.broker).collect();
            let lost = record.copies.iter().filter(|h| !named.contains(&h.broker));
            holders.extend(lost);
        }
        let given_up = given_up
            .iter()
            .filter(|holder| !holders.contains(holder))
            .copied()
            .collect::<Vec<_>>();
        for holder in given_up.iter().filter(|_| faults.freed_before_recorded()) {
            self.free(primary, owned, record, holder.broker).await;
        }
        let placed = self.place(primary, owned, record, holders).await;
        if matches!(placed, Err(RestoreError::Records(RecordsError::Unknown(_)))) {
            building.keep();
        }
        placed?;
        if faults.recorded_before_built() {
            self.build(primary, owned, record, &sources, &target)
                .await?;
        }
        tracing::info!(group = %copy, at = %target.holder.broker, "a closed group has another replica");
        for holder in given_up {
            self.free(primary, owned, record, holder.broker).await;
        }
        Ok(())
    }

    /// Frees a copy that no record names any more. What is not freed now a later round frees.
    pub(super) async fn free(
        &self,
        primary: &Primary,
        owned: &Owned,
        record: &GroupRecord,
        at: BrokerId,
    ) {
        match ask_to_free(primary, owned, record, at).await {
            Ok(()) => {
                self.counts.lock().freed += 1;
            }
            Err(error) => {
                tracing::info!(group = %CopyId::of(record), %error, "a replica that no record names is not freed yet");
            }
        }
    }

    /// Whoever chooses brokers for groups hears of one that has no room, or does not answer.
    fn tell_health(&self, primary: &Primary, error: &CallError) {
        let (health, now) = (primary.health(), primary.runtime.now());
        match error {
            CallError::Refused {
                backup,
                refusal: Refusal::NoRoom { .. } | Refusal::Failed(_),
            } => health.full(*backup, now),
            CallError::Refused { .. } => {}
            CallError::Lost { backup, .. } => {
                health.failure(*backup, now);
            }
        }
    }

    /// Copies the group to a broker that has none of it, and has it checked there.
    pub(super) async fn build(
        &self,
        primary: &Arc<Primary>,
        owned: &Owned,
        record: &GroupRecord,
        sources: &[Replica],
        target: &Target,
    ) -> Result<(), RestoreError> {
        let (caller, copy, at) = (primary.caller(), CopyId::of(record), target.holder.broker);
        let ask = |broker, request: Request| -> Pending<_> {
            if broker == at && target.has_left(primary) {
                let reason = "it left while a replica was built on it".into();
                let left = CallError::Lost { backup: at, reason };
                return Box::pin(std::future::ready(Err(left)));
            }
            if let Request::Complete { bytes, .. } = &request {
                let len = bytes.len() as u64;
                self.counts.lock().bytes += len;
            }
            caller.ask(broker, request)
        };
        let sources = self.in_turn(primary, &copy, sources);
        let build = Build {
            primary,
            copy,
            epoch: owned.epoch,
            at,
            from: 0,
            end: Place {
                address: record.length,
                ordinal: record.end_ordinal,
            },
            bytes: GroupBytes::Replicas(Replicas::of(copy, &sources, &ask).await),
            ask: &ask,
            pace: Some(&self.pace),
        };
        let built = build.seal_and_run().await;
        if let Err(BuildError::Target(error) | BuildError::NotWhole(error)) = &built {
            if target.has_left(primary) {
                return Err(RestoreError::TargetLeft(at));
            }
            self.tell_health(primary, error);
        }
        Ok(built?)
    }
}

/// Asks a broker to free its copy of a group, of whatever version.
async fn ask_to_free(
    primary: &Primary,
    owned: &Owned,
    record: &GroupRecord,
    at: BrokerId,
) -> Result<(), CallError> {
    let free = Request::free(CopyId::of(record), owned.epoch, None);
    primary.caller().ask(at, free).await.map(|_| ())
}
