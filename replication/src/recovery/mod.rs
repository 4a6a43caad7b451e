//! After an owner: seal, read how far each copy is whole, choose the longest, complete the others,
//! close. What was acknowledged is in every sealed copy of the recorded incarnation, so any one of
//! them is enough to keep it.

mod copies;
mod decide;

use std::collections::{BTreeMap, BTreeSet};

use kera_protocol::ids::{Epoch, GroupId, LaneId, Ordinal};

use crate::ids::{BackupId, CopyId, Holder, Incarnation, StreamletKey};
use crate::primary::{Primary, call};
use crate::records::{ClosedRecord, GroupRecord, RecordsError, read, take_epoch};
use crate::runtime::all;
use crate::transport::{CallError, CopyAnswer, Pending, Refusal, Reply, Request};

/// What to recover.
#[derive(Clone, Debug)]
pub struct RecoverSpec {
    /// The streamlet.
    pub streamlet: StreamletKey,
    /// Copies that must hold a group before it is closed.
    pub min_copies: usize,
    /// What to do with a group of which no copy counts.
    pub unclean: Unclean,
    /// Where lanes begin whose records do not say it: nothing is recorded, or open groups alone
    /// whose predecessors are gone. 0 if absent, and then a group that begins higher is dropped.
    pub starts: BTreeMap<LaneId, Ordinal>,
}

/// What to do with a group of which no copy counts: each is of another incarnation than recorded,
/// damaged, or cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unclean {
    /// Leave the lane as it is until a recorded holder is back.
    #[default]
    Wait,
    /// The operator's decision: keep the longest whole copy there is, whoever has it, and let the
    /// ordinals jump, since records that somebody saw may be gone.
    Accept,
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
    pub groups: Vec<(CopyId, ClosedRecord)>,
    /// Groups that were dropped: never used, or not the continuation of what was recovered.
    pub discarded: Vec<CopyId>,
    /// Ordinals that were left out, because records that somebody saw may be gone.
    pub gaps: Vec<(Ordinal, Ordinal)>,
    /// The ordinal at which the lane goes on.
    pub next_ordinal: Ordinal,
    /// Why it cannot go on yet.
    pub stopped: Option<Stopped>,
}

/// Why a lane cannot go on yet. Recovering again may help, once the named brokers are back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// No copy counts.
    #[error(
        "no copy of group {copy} counts; bring back one of {holders:?}, or decide to lose what only they hold"
    )]
    Unclean {
        /// The group.
        copy: CopyId,
        /// Who was recorded.
        holders: Vec<BackupId>,
    },
    /// Too few brokers could take a copy.
    #[error("group {copy} is whole at {have} brokers and needs {need}; bring back more brokers")]
    NotEnoughCopies {
        /// The group.
        copy: CopyId,
        /// Copies made.
        have: usize,
        /// Copies needed.
        need: usize,
    },
}

/// Why there is no recovery.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// A still newer owner is at work.
    #[error("{backup} was sealed by epoch {by}; a newer owner is at work")]
    Overtaken {
        /// Who says so.
        backup: BackupId,
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
pub async fn recover(primary: &Primary, spec: &RecoverSpec) -> Result<Recovered, RecoverError> {
    let (records, runtime) = (&primary.records, &*primary.runtime);
    // The epoch first: whatever the former owner commits from now on is refused, so that what is
    // read next is all there will ever be of it.
    let (epoch, revision) = take_epoch(records, runtime, spec.streamlet, primary.me).await?;
    let found = read(records, runtime, spec.streamlet).await?;
    if found.epoch != epoch {
        return Err(overtaken(spec.streamlet, epoch, found.epoch).into());
    }
    if found.revision < revision {
        let older = "it answered with a state before the new epoch";
        return Err(RecordsError::Unknown(older.into()).into());
    }
    let mut recovery = Recovery {
        primary,
        spec,
        epoch,
        answers: BTreeMap::new(),
        sealed: BTreeSet::new(),
    };
    recovery.seal(&found.groups).await?;

    let mut by_lane: BTreeMap<LaneId, Vec<GroupRecord>> = BTreeMap::new();
    for record in found.groups {
        by_lane.entry(record.lane).or_default().push(record);
    }
    let mut lanes = Vec::new();
    for (lane, groups) in by_lane {
        lanes.push(recovery.lane(lane, groups).await?);
    }
    recovery.free_unrecorded().await;
    Ok(Recovered {
        epoch,
        next_group: found.next_group,
        lanes,
    })
}

fn overtaken(streamlet: StreamletKey, expected: Epoch, found: Epoch) -> RecordsError {
    RecordsError::Epoch {
        streamlet,
        expected,
        found,
    }
}

struct Recovery<'a> {
    primary: &'a Primary,
    spec: &'a RecoverSpec,
    epoch: Epoch,
    /// What sealed holders said of each group.
    answers: BTreeMap<CopyId, Vec<(Holder, CopyAnswer)>>,
    /// Where the streamlet is sealed by this epoch.
    sealed: BTreeSet<BackupId>,
}

impl Recovery<'_> {
    /// Seals at every holder of an open group, side by side, each within the bound of its calls.
    async fn seal(&mut self, groups: &[GroupRecord]) -> Result<(), RecoverError> {
        let mut at: BTreeMap<BackupId, Vec<(CopyId, Incarnation)>> = BTreeMap::new();
        for record in groups {
            for holder in record.open().into_iter().flat_map(|open| &open.holders) {
                let copies = at.entry(holder.broker).or_default();
                copies.push((record.copy, holder.incarnation));
            }
        }
        let mut calls: Vec<Pending<_>> = Vec::new();
        for (backup, copies) in at {
            let request = Request::Seal {
                streamlet: self.spec.streamlet,
                epoch: self.epoch,
                copies: copies.clone(),
            };
            let reply = self.ask(backup, request);
            calls.push(Box::pin(async move { (backup, copies, reply.await) }));
        }
        for (backup, copies, reply) in all(calls).await {
            match reply {
                Ok(Reply::Sealed(answers)) => {
                    self.sealed.insert(backup);
                    for answer in answers {
                        let asked = copies.iter().find(|(copy, _)| *copy == answer.copy);
                        if let Some((copy, incarnation)) = asked {
                            let holder = Holder {
                                broker: backup,
                                incarnation: *incarnation,
                            };
                            let known = self.answers.entry(*copy).or_default();
                            known.push((holder, answer.answer));
                        }
                    }
                }
                Err(error) => {
                    if let Some(Refusal::Sealed { by }) = error.refusal() {
                        return Err(RecoverError::Overtaken { backup, by: *by });
                    }
                    tracing::info!(%backup, %error, "not sealed; its copies do not count");
                }
                Ok(other) => tracing::warn!(%backup, ?other, "not an answer to seal"),
            }
        }
        Ok(())
    }

    /// A call that is made again when there is no answer, up to the bound.
    fn ask(&self, backup: BackupId, request: Request) -> Pending<Result<Reply, CallError>> {
        let (transport, runtime) = (self.primary.transport.clone(), self.primary.runtime.clone());
        let config = self.primary.config;
        Box::pin(async move {
            let mut attempt = 0;
            loop {
                let timeout = config.call_timeout;
                match call(&transport, &*runtime, timeout, backup, &request).await {
                    Err(CallError::Lost { .. }) if attempt < config.attempts => {
                        attempt += 1;
                        runtime.sleep(config.pause).await;
                    }
                    other => return other,
                }
            }
        })
    }
}
