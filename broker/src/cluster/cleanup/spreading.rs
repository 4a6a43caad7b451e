//! Copies of closed groups move to where fewer bytes are: what [`kera_controller::spread`] plans
//! for this broker's own streamlets, for the jobs to carry out. All brokers plan alike from what is
//! recorded, so that nobody has to tell anybody.

use std::sync::{Arc, Weak};

use kera_controller::{CopyMove, Spread, spread};
use kera_replication::ids::BrokerId;
use kera_replication::jobs::{Jobs, Shift};

use crate::cluster::ownership::live_state::members;
use crate::shared::Shared;

/// Tells the jobs what is to move.
pub(crate) fn begin(shared: &Arc<Shared>, jobs: &Jobs) {
    let shared = Arc::downgrade(shared);
    jobs.set_shifts(Box::new(move |most| {
        let shared = shared.clone();
        Box::pin(async move {
            let planned = tokio::task::spawn_blocking(move || planned(&shared, most));
            planned.await.unwrap_or_else(|error| {
                tracing::error!(%error, "planning where replicas go failed");
                Vec::new()
            })
        })
    }));
}

/// The next copies to move of what this broker owns.
fn planned(shared: &Weak<Shared>, most: usize) -> Vec<Shift> {
    let Some(shared) = shared.upgrade() else {
        return Vec::new();
    };
    let (Some(clustered), Ok(members)) = (&shared.clustered, members(&shared)) else {
        return Vec::new();
    };
    let tolerance = shared.config.cluster.spread_tolerance_bytes;
    let plan = clustered
        .cluster_view
        .read(|picture| spread(picture, &members, tolerance));
    let mine = mine(plan.unwrap_or_default(), shared.broker_id);
    let moving = mine.iter().filter(|one| one.to.is_some());
    let bytes = moving.map(|one| one.bytes).sum();
    clustered
        .replicated
        .spreading()
        .set(bytes, mine.len() as u64);
    mine.iter().take(most).map(shift).collect()
}

/// What a broker has to do of a plan.
fn mine(plan: Spread, me: u32) -> Vec<CopyMove> {
    let settled = plan.settled;
    let mut mine = plan.moves;
    mine.retain(|one| one.owner == me && (settled || one.to.is_none()));
    mine
}

fn shift(one: &CopyMove) -> Shift {
    Shift {
        streamlet: one.group.streamlet_key(),
        group: one.group.group,
        from: BrokerId(one.from),
        to: one.to.map(BrokerId),
    }
}

#[cfg(test)]
mod tests {
    use kera_protocol::ids::{GroupId, GroupKey, StreamId, StreamletId};

    use super::*;

    #[test]
    fn nothing_moves_before_owners_are_settled_but_what_is_one_too_many_goes() {
        let one = |owner, to| CopyMove {
            group: GroupKey {
                stream: StreamId(uuid::Uuid::nil()),
                streamlet: StreamletId(0),
                group: GroupId(1),
            },
            owner,
            from: 9,
            to,
            bytes: 5,
        };
        let plan = |settled| Spread {
            moves: vec![one(1, Some(4)), one(2, Some(4)), one(1, None)],
            settled,
            ..Spread::default()
        };
        assert_eq!(mine(plan(true), 1), [one(1, Some(4)), one(1, None)]);
        assert_eq!(mine(plan(false), 1), [one(1, None)]);
        let shift = shift(&one(1, Some(4)));
        assert_eq!((shift.from, shift.to), (BrokerId(9), Some(BrokerId(4))));
    }
}
