//! Lanes that do not go on although something waits: the log says where they stand, so that nobody need guess
//! why appends are answered that they have too few copies.

use std::sync::Arc;
use std::time::Duration;

use kera_replication::primary::{LaneSpec, Standstill, StillLane};

use super::replicated::Replicated;
use crate::shared::Shared;

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(1);
/// A backup that stops costs its groups less than this.
const PATIENCE: Duration = Duration::from_secs(5);
/// A lane that still stands there is told of again after this.
const AGAIN: Duration = Duration::from_secs(30);
/// Lanes told of at one look: what holds up one often holds up very many.
const TOLD_AT_ONCE: usize = 8;

/// Looks at all lanes now and then.
pub(super) async fn watch(shared: Arc<Shared>) {
    let Some(replicated) = &shared.replicated else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(LOOK).await;
        tell(&standing(replicated, PATIENCE, AGAIN).await);
    }
}

/// A lane that has acknowledged nothing for less than this is not reported.
const WORTH_TELLING: Duration = Duration::from_secs(2);

/// The lanes of this broker that stand still, as of the last look at them.
pub(crate) fn standing_still(replicated: &Replicated) -> Vec<(LaneSpec, StillLane)> {
    let mut found = Vec::new();
    for owned in replicated.owned() {
        let lanes = owned.lanes.iter();
        let still = lanes.filter_map(|lane| Some((*lane.spec(), lane.stands_still()?)));
        found.extend(still.filter(|(_, still)| still.lasted >= WORTH_TELLING));
    }
    found
}

/// The lanes that have stood still for `patience`, and were not found within `again`.
pub(super) async fn standing(
    replicated: &Replicated,
    patience: Duration,
    again: Duration,
) -> Vec<Standstill> {
    let mut found = Vec::new();
    for owned in replicated.owned() {
        for lane in &owned.lanes {
            found.extend(lane.standstill(patience, again).await);
        }
    }
    found
}

fn tell(found: &[Standstill]) {
    for still in found.iter().take(TOLD_AT_ONCE) {
        tracing::warn!(group = %still.group, lasted = ?still.lasted, stands = %still, "a lane stands still; appends to it wait");
    }
    let more = found.len().saturating_sub(TOLD_AT_ONCE);
    if more > 0 {
        tracing::warn!(lanes = more, "more lanes stand still");
    }
}
