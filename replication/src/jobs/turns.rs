//! What the next attempt at a copy does otherwise than the last one that failed: a disk that is broken stays
//! so, and who always begins with the same brokers never gets beyond it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Jobs;
use super::re_replicate::RestoreError;
use crate::build_replica::BuildError;
use crate::ids::{AckPolicy, BrokerId, CopyId, Replica};
use crate::primary::Primary;

/// Groups remembered that could not be built whole; of more, the others begin with their first source.
const MAX_SPOILT: usize = 65_536;

/// What came of attempts to build copies.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Brokers that took no copy, and when.
    refused: BTreeMap<BrokerId, Duration>,
    /// Groups of which no whole copy came about, and how often.
    spoilt: BTreeMap<CopyId, usize>,
}

impl Jobs {
    /// Brokers that are to take a copy only if nobody else does: one could not be built there, not long ago.
    pub(super) fn avoided(&self, primary: &Primary) -> Vec<BrokerId> {
        let (now, long) = (primary.runtime.now(), self.config.lost_after);
        let mut turns = self.turns.lock();
        turns
            .refused
            .retain(|_, since| now.saturating_sub(*since) < long);
        turns.refused.keys().copied().collect()
    }

    /// A broker without a copy that is to take one; else one that had it, and came back without. They are
    /// not to hold one `beside` others, or beside those that have it `still`.
    pub(super) async fn target(
        &self,
        primary: &Arc<Primary>,
        least: usize,
        (beside, still): (&[BrokerId], &[BrokerId]),
        ack: AckPolicy,
    ) -> Option<Replica> {
        let avoided = self.avoided(primary);
        let mut tries = vec![&avoided[..], &[]];
        tries.dedup();
        for but in tries {
            for without in [beside, still] {
                let chosen = primary.choose(least, 1, (without, but), ack).await;
                if let Some(holder) = chosen.first() {
                    return Some(*holder);
                }
            }
        }
        None
    }

    /// From whom to read, this broker's own files first; after each copy that was not whole, another.
    pub(super) fn in_turn(
        &self,
        primary: &Primary,
        copy: &CopyId,
        sources: &[Replica],
    ) -> Vec<BrokerId> {
        let brokers = sources.iter().map(|holder| holder.broker);
        let (mut all, others): (Vec<_>, Vec<_>) = brokers.partition(|b| primary.is_own(*b));
        all.extend(others);
        let times = self.turns.lock().spoilt.get(copy).copied();
        let len = all.len().max(1);
        all.rotate_left(times.unwrap_or(0) % len);
        all
    }

    /// Takes note of what came of an attempt to build a copy at a broker, from so many sources.
    pub(super) fn learn(
        &self,
        primary: &Primary,
        copy: CopyId,
        (at, sources): (BrokerId, usize),
        built: &Result<(), RestoreError>,
    ) {
        let now = primary.runtime.now();
        let turns = &mut *self.turns.lock();
        match built {
            Ok(()) => {
                turns.refused.remove(&at);
                turns.spoilt.remove(&copy);
            }
            Err(RestoreError::NotBuilt(BuildError::Target(_))) => {
                turns.refused.insert(at, now);
            }
            Err(RestoreError::NotBuilt(BuildError::NotWhole(_) | BuildError::Differs { .. })) => {
                if turns.spoilt.len() < MAX_SPOILT || turns.spoilt.contains_key(&copy) {
                    let times = turns.spoilt.entry(copy).or_default();
                    *times += 1;
                    // Not from any of them: it may be where it was built.
                    if times.is_multiple_of(sources.max(1)) {
                        turns.refused.insert(at, now);
                    }
                }
                self.suspect(copy);
            }
            Err(_) => {}
        }
    }
}
