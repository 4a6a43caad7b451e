//! Moving copies of closed groups to where somebody else wants them, as from brokers that hold much to one
//! that has joined. It is what is done for a broker that leaves, one group at a time: the copy is built at
//! its new place and checked there, one transaction records it in place of the old one, and then the old
//! one is freed. Broken off anywhere, a group has the copies that its record names, and a round later
//! nothing else is left.

use std::collections::BTreeMap;
use std::sync::Arc;

use kera_protocol::ids::GroupId;
use kera_records::GroupRecord;

use super::re_replicate::{RestoreError, Target};
use super::{Held, Jobs, Owned};
use crate::ids::{BrokerId, Replica, StreamletKey, asked_of};
use crate::primary::Primary;
use crate::transport::Pending;

/// A copy of a closed group that is better elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift {
    /// The streamlet.
    pub streamlet: StreamletKey,
    /// The group.
    pub group: GroupId,
    /// Who gives its copy up.
    pub from: BrokerId,
    /// Who gets one instead; `None`: the group has more copies than it is to have.
    pub to: Option<BrokerId>,
}

/// Says which copies of what this broker owns are to move, at most so many. What cannot be done as it
/// is meant is left as it is: that a copy is missing, a broker away, or two copies on one machine.
pub type ShiftsNow = Box<dyn Fn(usize) -> Pending<Vec<Shift>> + Send + Sync>;

impl Jobs {
    /// Moves `most` copies at most; true if any was moved.
    pub(super) async fn shift(
        &self,
        primary: &Arc<Primary>,
        owned: &BTreeMap<StreamletKey, &Owned>,
        held: &Held,
        most: usize,
    ) -> bool {
        let Some(shifts) = self.shifts.get() else {
            return false;
        };
        let mut any = false;
        for shift in shifts(most).await.into_iter().take(most) {
            let Some(one) = owned.get(&shift.streamlet) else {
                continue;
            };
            match self.shift_one(primary, one, held, shift).await {
                Ok(done) => any |= done,
                Err(error @ RestoreError::TargetLeft(_)) => {
                    tracing::info!(streamlet = %shift.streamlet, group = %shift.group, %error, "a replica does not move");
                }
                Err(error) => {
                    self.counts.lock().failed += 1;
                    tracing::info!(streamlet = %shift.streamlet, group = %shift.group, %error, "a replica does not move yet; trying again");
                }
            }
        }
        any
    }

    async fn shift_one(
        &self,
        primary: &Arc<Primary>,
        owned: &Owned,
        held: &Held,
        shift: Shift,
    ) -> Result<bool, RestoreError> {
        let _one_at_a_time = self.repairing.lock().await;
        let found = self.closed_now(primary, owned, shift.group).await;
        let Some(record) = found else {
            return Ok(false);
        };
        let mut standing = self.standing(primary, owned, &record, held).await;
        let whole = standing.have.len() == record.copies.len();
        let at = standing.have.iter().position(|h| h.broker == shift.from);
        // What is not whole is repaired first; and an owner reads from its own.
        let Some(at) = at.filter(|_| whole && shift.from != primary.me) else {
            return Ok(false);
        };
        let from = standing.have.remove(at);
        let left = standing.have.len();
        let Some(to) = shift.to else {
            if left < owned.replicas.max(1) {
                return Ok(false);
            }
            self.place(primary, owned, &record, standing.have).await?;
            self.free(primary, owned, &record, from.broker).await;
            self.counts.lock().surplus += 1;
            return Ok(true);
        };
        if left + 1 != owned.replicas || !may_take(primary, to, &record.copies, from) {
            return Ok(false);
        }
        let Some(holder) = primary.holder(to, asked_of(&record.copies)).await else {
            return Err(RestoreError::TargetLeft(to));
        };
        standing.leaving.push(from);
        let target = Target {
            holder,
            optional: true,
        };
        self.restore_at(primary, owned, &record, standing, target)
            .await?;
        self.counts.lock().built += 1;
        self.counts.lock().shifted += 1;
        Ok(true)
    }

    /// A group's record as it is, if it is closed and holds anything.
    async fn closed_now(
        &self,
        primary: &Primary,
        owned: &Owned,
        group: GroupId,
    ) -> Option<GroupRecord> {
        let record = self.group_now(primary, owned, group).await;
        record.filter(GroupRecord::holds_records)
    }
}

/// Whether a broker may hold a copy beside `holders`, without `from`.
fn may_take(primary: &Primary, to: BrokerId, holders: &[Replica], from: Replica) -> bool {
    let is_there = primary.peers().contains(&to) && !primary.is_leaving(to);
    let has_one = to == primary.me || holders.iter().any(|h| h.broker == to);
    if !is_there || has_one {
        return false;
    }
    let beside = holders.iter().filter(|h| **h != from);
    let beside: Vec<_> = beside.map(|h| h.broker).collect();
    let placement = primary.placement();
    !placement.take(&mut vec![to], &beside, 1).is_empty()
}
