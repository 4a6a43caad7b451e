//! Bringing a group that its owner made of others, as compaction does, to other brokers, before any record names the
//! new bytes.
//!
//! The owner's file is the one source: nobody makes the same records into bytes a second time, which could differ. A
//! replica is built aside, under the new generation, while the one that it is to replace still counts, and is checked
//! and flushed there. Until the record names them, marks keep the new replicas from being freed; the old ones are freed
//! by a later round, as replicas that no record names.

use std::sync::Arc;

use kera_records::{GroupRecord, Replica};

use super::re_replicate::Target;
use super::{Jobs, Owned};
use crate::ids::{AckPolicy, BrokerId, CopyId, asked_of};
use crate::primary::{Building, Primary};

/// Where a group is now that was made of others.
pub struct Rewritten {
    /// All replicas, this broker's own file first.
    pub replicas: Vec<Replica>,
    /// As long as these are there, nobody frees them.
    _marks: Vec<Building>,
}

impl std::fmt::Debug for Rewritten {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rewritten")
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}

impl Jobs {
    /// Builds replicas of the group that `record` describes, whose file is this broker's own, at as many other brokers
    /// as are to have one: those that have replicas of what it replaces, which `record` names, first.
    ///
    /// # Errors
    /// For people, if too few brokers took one: fewer than `min_insync_replicas`, or none beside this one where there is
    /// to be another. What was built is freed by a later round.
    pub async fn ship(&self, owned: &Owned, record: &GroupRecord) -> Result<Rewritten, String> {
        let gone = || "the broker is stopping".to_owned();
        let primary = self.primary.upgrade().ok_or_else(gone)?;
        let own = own_replica(&primary, record)?;
        let copy = CopyId::of(record);
        // What an earlier owner brought to this broker's store under the same name, and did not get to record.
        let parted = primary.free_kept(copy, owned.epoch).await;
        parted.map_err(|error| error.to_string())?;
        let (mut replicas, mut marks, mut failed) = (vec![own], Vec::new(), Vec::new());
        let mut reasons = Vec::new();
        let before = record.copies.iter().map(|replica| replica.broker);
        let mut before: Vec<_> = before
            .filter(|broker| *broker != primary.me)
            .filter(|broker| primary.peers().contains(broker) && !primary.is_leaving(*broker))
            .collect();
        before.reverse();
        while replicas.len() < owned.replicas {
            let next = match before.pop() {
                Some(broker) => match primary.holder(broker, asked_of(&record.copies)).await {
                    Some(holder) => holder,
                    None => {
                        reasons.push(format!("{broker} does not answer, or has no room"));
                        failed.push(broker);
                        continue;
                    }
                },
                None => match self.another(&primary, record, &replicas, &failed).await {
                    Some(holder) => holder,
                    None => break,
                },
            };
            let mark = primary.building(copy, next.broker);
            let target = Target {
                holder: next,
                optional: true,
            };
            let built = match primary.faults.rewritten_not_shipped() {
                true => Ok(()),
                false => self.build(&primary, owned, record, &[own], &target).await,
            };
            match built {
                Ok(()) => {
                    replicas.push(next);
                    marks.push(mark);
                }
                Err(error) => {
                    reasons.push(error.to_string());
                    failed.push(next.broker);
                }
            }
        }
        let least = owned.min_insync_replicas.max(owned.replicas.min(2));
        if replicas.len() < least {
            let (have, why) = (replicas.len(), reasons.join("; "));
            let why = match why.is_empty() {
                true => "no other broker can take one",
                false => &why,
            };
            return Err(format!(
                "{have} replicas of {copy} where {least} are the least: {why}"
            ));
        }
        Ok(Rewritten {
            replicas,
            _marks: marks,
        })
    }

    /// A broker that has no replica of what a group replaces.
    async fn another(
        &self,
        primary: &Arc<Primary>,
        record: &GroupRecord,
        have: &[Replica],
        failed: &[BrokerId],
    ) -> Option<Replica> {
        let have = have.iter().map(|replica| replica.broker);
        let have: Vec<_> = have.chain([primary.me]).collect();
        let ack = asked_of(&record.copies);
        let chosen = primary.choose(1, 1, (&have, failed), ack).await;
        let chosen = chosen.into_iter().next();
        chosen.filter(|replica| !primary.is_leaving(replica.broker))
    }
}

/// This broker's own file as a record names it.
fn own_replica(primary: &Primary, record: &GroupRecord) -> Result<Replica, String> {
    let own = primary.own.as_ref();
    let own = own.ok_or("this broker writes no files of its own")?;
    let mut named = record.copies.iter();
    if let Some(named) = named.find(|replica| replica.broker == primary.me)
        && own.incarnation().includes(named.incarnation)
    {
        return Ok(*named);
    }
    let incarnation = match asked_of(&record.copies) {
        AckPolicy::Synced => own.disk()?,
        _ => own.incarnation(),
    };
    Ok(Replica {
        broker: primary.me,
        incarnation,
    })
}
