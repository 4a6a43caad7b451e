//! After an owner: seal, read how far each copy is whole, choose the longest, complete the others,
//! close. What was acknowledged is in every sealed copy of the recorded incarnation, so any one of
//! them is enough to keep it.
//!
//! A broker whose own copies are its own files ([`crate::own`]) asks those as well. They count like any
//! other copy, and are brought to the group's length before anyone else's, so that a broker that comes
//! back serves from its own files even if they were gone or damaged. A group of which they are the
//! only copy ever made is closed at what they hold, whatever has happened to the broker meanwhile;
//! if records that somebody saw may be gone, ordinals jump and the gap is reported.

mod copies;
mod decide;
mod older_state;
mod seal;
mod unreachable;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kera_protocol::ids::{Epoch, GroupId, LaneId, Ordinal};
use kera_records::GroupRecord;

use crate::ids::{BrokerId, CopyId, Replica, StreamletKey};
use crate::primary::{Primary, tidy};
use crate::records::{RecordsError, read, take_epoch};
use crate::runtime::{Local, all};
use crate::transport::{CallError, CopyAnswer, Pending, Reply, Request};

/// Lanes recovered side by side.
const LANES_AT_ONCE: usize = 4;

pub(crate) use unreachable::Silent;

/// What to recover.
#[derive(Clone, Debug)]
pub struct RecoverSpec {
    /// The streamlet.
    pub streamlet: StreamletKey,
    /// Copies that must hold a group before it is closed.
    pub min_insync_replicas: usize,
    /// What to do with a group of which no copy counts.
    pub unclean: Unclean,
    /// Where lanes begin whose records do not say it, because all that came before was trimmed. A
    /// lane of which neither tells anything is not touched, see [`Stopped::NoStart`].
    pub starts: BTreeMap<LaneId, Ordinal>,
}

/// What to do with a group of which no copy counts: each is of another incarnation than recorded,
/// damaged, or cannot be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Unclean {
    /// Leave the lane as it is until a recorded holder is back.
    #[default]
    Wait,
    /// The operator's decision about these groups, and about no other: keep the longest whole copy there is, whoever has
    /// it, and let the ordinals jump, since records that somebody saw may be gone.
    Accept(BTreeSet<GroupId>),
}

impl Unclean {
    /// Whether the operator has accepted the loss of this group.
    pub fn accepts(&self, group: GroupId) -> bool {
        match self {
            Self::Wait => false,
            Self::Accept(groups) => groups.contains(&group),
        }
    }
}

/// A streamlet under its new owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The new owner's epoch.
    pub epoch: Epoch,
    /// The least group id that was never recorded.
    pub next_group: GroupId,
    /// Its lanes, as far as anything of them is recorded.
    pub lanes: Vec<RecoveredLane>,
}

/// A lane under its new owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredLane {
    /// The lane.
    pub lane: LaneId,
    /// Its closed groups, in order; each begins where the one before says.
    pub groups: Vec<GroupRecord>,
    /// Groups that were dropped: never used, or not the continuation of what was recovered.
    pub discarded: Vec<CopyId>,
    /// Ordinals that were left out, because records that somebody saw may be gone.
    pub gaps: Vec<(Ordinal, Ordinal)>,
    /// The ordinal at which the lane goes on.
    pub next_ordinal: Ordinal,
    /// Why it cannot go on yet.
    pub stopped: Option<Stopped>,
    /// Where it stopped since no copy counts: the groups behind that one of which no copy counts either, with those who
    /// were recorded, so that all can be decided about at once.
    pub unclean_behind: Vec<(CopyId, Vec<BrokerId>)>,
}

impl RecoveredLane {
    /// All groups that keep it from going on since no copy counts, with those who were recorded.
    pub fn unclean(&self) -> impl Iterator<Item = (CopyId, &[BrokerId])> {
        let first = match &self.stopped {
            Some(Stopped::Unclean { copy, holders }) => Some((*copy, holders.as_slice())),
            _ => None,
        };
        let behind = self.unclean_behind.iter();
        first
            .into_iter()
            .chain(behind.map(|(copy, holders)| (*copy, holders.as_slice())))
    }
}

/// Why a lane cannot go on yet. Recovering again may help, once the named brokers are back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// No copy counts.
    #[error(
        "no replica of group {copy} counts; bring back one of {holders:?}, or accept the loss of the records that only they have"
    )]
    Unclean {
        /// The group.
        copy: CopyId,
        /// Who was recorded.
        holders: Vec<BrokerId>,
    },
    /// Too few brokers could take a replica.
    #[error("group {copy} is whole at {have} brokers and needs {need}; bring back more brokers")]
    NotEnoughCopies {
        /// The group.
        copy: CopyId,
        /// Copies made.
        have: usize,
        /// Copies needed.
        need: usize,
    },
    /// Nothing says at which ordinal the lane goes on, so that nobody can tell whether a group
    /// belongs to it.
    #[error("no record says where the lane of group {copy} begins; give its start")]
    NoStart {
        /// Its first group.
        copy: CopyId,
    },
}

/// Why there is no recovery.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// A still newer owner is at work.
    #[error("{backup} was sealed by epoch {by}; a newer owner is at work")]
    Overtaken {
        /// Who says so.
        backup: BrokerId,
        /// The newer epoch.
        by: Epoch,
    },
    /// The records could not be read or changed.
    #[error(transparent)]
    Records(#[from] RecordsError),
}

/// Takes over a streamlet for the broker of `primary`: under a new epoch it seals every reachable
/// copy of every open group, brings each group to one length, and closes it. It may be broken off and
/// begun again at any point, by anyone.
///
/// # Errors
/// [`RecoverError`]. Lanes that cannot go on yet are no error, see [`RecoveredLane::stopped`].
pub async fn recover(
    primary: &Arc<Primary>,
    spec: &RecoverSpec,
) -> Result<Recovered, RecoverError> {
    let (records, runtime) = (&primary.records, &*primary.runtime);
    // The epoch first: whatever the former owner commits from now on is refused, so that what is
    // read next is all there will ever be of it.
    let (epoch, revision) = take_epoch(records, runtime, spec.streamlet, primary.me).await?;
    let found = read(records, runtime, spec.streamlet).await?;
    if found.streamlet.epoch != epoch {
        return Err(overtaken(spec.streamlet, epoch, found.streamlet.epoch).into());
    }
    if found.revision < revision {
        let older = "it answered with a state before the new epoch";
        return Err(RecordsError::Unknown(older.into()).into());
    }
    let mut recovery = Recovery {
        primary,
        spec,
        epoch,
        after_restore: found.streamlet.awaits_jumps > 0,
        restore: found.streamlet.restore,
        answers: BTreeMap::new(),
        sealed: BTreeSet::new(),
    };
    recovery.seal(&found.groups).await?;

    let mut by_lane: BTreeMap<LaneId, Vec<GroupRecord>> = BTreeMap::new();
    for record in found.groups {
        by_lane.entry(record.lane).or_default().push(record);
    }
    let mut lanes = Vec::new();
    let mut waiting = by_lane.into_iter().peekable();
    while waiting.peek().is_some() {
        let some = waiting.by_ref().take(LANES_AT_ONCE);
        let some = some.map(|(lane, groups)| -> Local<'_, _> {
            let recovery = &recovery;
            Box::pin(async move { recovery.lane(lane, groups).await })
        });
        for recovered in all(some.collect()).await {
            lanes.push(recovered?);
        }
    }
    tidy_everywhere(primary, spec.streamlet, epoch);
    Ok(Recovered {
        epoch,
        next_group: found.streamlet.next_group,
        lanes,
    })
}

/// Has every peer give back what no record names there: copies that were lost or discarded. Nobody
/// waits for it; what it does not reach costs memory until the next time.
fn tidy_everywhere(primary: &Arc<Primary>, streamlet: StreamletKey, epoch: Epoch) {
    let peers = primary.peers();
    for peer in peers.iter().filter(|peer| !primary.is_own(**peer)) {
        let (primary, peer) = (primary.clone(), *peer);
        let runtime = primary.runtime.clone();
        runtime.spawn(Box::pin(async move {
            if !primary.config.tidy_after.is_zero() {
                primary.runtime.sleep(primary.config.tidy_after).await;
            }
            tidy::streamlet_at(&primary, streamlet, epoch, peer).await;
        }));
    }
}

fn overtaken(streamlet: StreamletKey, expected: Epoch, found: Epoch) -> RecordsError {
    RecordsError::Epoch {
        streamlet,
        expected,
        found,
    }
}

struct Recovery<'a> {
    primary: &'a Arc<Primary>,
    spec: &'a RecoverSpec,
    epoch: Epoch,
    /// The records were put back to an older state, and nobody has owned the streamlet since: groups that they have as open
    /// may have been closed and trimmed.
    after_restore: bool,
    /// How often they were put back, as the streamlet knows.
    restore: u64,
    /// What sealed holders said of each group.
    answers: BTreeMap<CopyId, Vec<(Replica, CopyAnswer)>>,
    /// Where the streamlet is sealed by this epoch.
    sealed: BTreeSet<BrokerId>,
}

impl Recovery<'_> {
    /// A call that is made again when there is no answer, up to the bound. One that is sealed has answered
    /// in this recovery, and may take its time even if it is not among the brokers that are alive.
    fn ask(&self, backup: BrokerId, request: Request) -> Pending<Result<Reply, CallError>> {
        let caller = self.primary.caller();
        match !caller.is_alive(backup) && self.sealed.contains(&backup) {
            true => caller.once(backup, request),
            false => caller.ask(backup, request),
        }
    }

    /// True if this broker's own file is the only copy there ever was (one copy, no failover), and it has answered:
    /// one that could not be read may be whole.
    fn is_alone(&self, open: &GroupRecord) -> bool {
        let own = |holder: &Replica| self.primary.is_own(holder.broker);
        open.copies.iter().all(own) && self.answers.contains_key(&CopyId::of(open))
    }
}
