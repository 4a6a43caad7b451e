//! Looks whether a lane goes on, and where it stands if it does not.

use std::time::Duration;

use super::lane::Lane;
use super::replica_set::ReplicaSet;
use super::stall_report::{Mark, ReplicaPosition, ReplicaStands, Standstill, StillLane, WayStands};
use crate::ids::AckPolicy;
use crate::runtime::{Local, all, within};

/// Longest wait for a shipper to say where it is.
const SAID_WITHIN: Duration = Duration::from_secs(1);

impl Lane {
    fn mark(set: &ReplicaSet) -> Mark {
        Mark {
            group: set.id(),
            durable: set.durable(),
        }
    }

    /// How long the lane has stood still, if it did when [`standstill`](Self::standstill) looked last and has not
    /// moved since.
    pub fn stands_still(&self) -> Option<StillLane> {
        let (set, _) = self.first_that_waits()?;
        let since = {
            let watched = self.watched.lock();
            (watched.mark == Some(Self::mark(&set))).then_some(watched.since)?
        };
        let holders = set.holders();
        let behind = set.behind(set.group().end_address()).into_iter();
        Some(StillLane {
            lasted: self.primary.runtime.now().saturating_sub(since),
            stage: set.stage(),
            trouble: set.trouble(),
            behind: behind
                .filter_map(|at| Some(holders.get(at)?.broker))
                .collect(),
        })
    }

    /// Looks whether the lane goes on; to be called now and then. Says where it stands once appends, or a
    /// group that has ended, have waited for `patience` without any progress, and then no sooner than after
    /// `again`.
    pub async fn standstill(&self, patience: Duration, again: Duration) -> Option<Standstill> {
        let (set, behind) = self.first_that_waits().unzip();
        let mark = set.as_deref().map(Self::mark);
        let runtime = &self.primary.runtime;
        let looked = (patience, again);
        let lasted = self.watched.lock().looked(mark, runtime.now(), looked)?;
        let (set, behind) = (set?, behind?);
        let group = set.id();
        let copies = self.stand(&set).await;
        Some(Standstill {
            group,
            lasted,
            end: set.group().end_address(),
            durable: set.durable(),
            is_frozen: set.group().is_frozen(),
            behind,
            stage: set.stage(),
            trouble: set.trouble(),
            copies,
        })
    }

    /// Where each replica of a group stands, as the shippers say within a moment.
    async fn stand(&self, set: &ReplicaSet) -> Vec<ReplicaStands> {
        let (group, runtime) = (set.id(), &self.primary.runtime);
        let asked = set.replicas_stand().into_iter();
        let asked = asked.map(|(mut copy, shipper)| -> Local<_> {
            let said = shipper.map(|shipper| shipper.stands(group));
            Box::pin(async move {
                if let Some(said) = said {
                    let said = within(&**runtime, SAID_WITHIN, said).await;
                    copy.way = Some(said.flatten().unwrap_or(WayStands::Silent));
                }
                copy
            })
        });
        all(asked.collect()).await
    }

    /// How far each replica of the lane's groups is that are not closed; for people.
    pub async fn positions(&self) -> Vec<ReplicaPosition> {
        let asked = self.open_groups().into_iter().map(|set| -> Local<_> {
            Box::pin(async move {
                let stands = self.stand(&set).await;
                (set, stands)
            })
        });
        let mut found = Vec::new();
        for (set, stands) in all(asked.collect()).await {
            let end = set.group().end_address();
            found.extend(stands.into_iter().map(|stand| {
                let flushed = set.ack() == AckPolicy::Synced;
                let placed = match stand.way {
                    _ if !flushed => Some(stand.written),
                    None => Some(stand.durable),
                    Some(WayStands::Ships { copy, .. }) => copy.map(|copy| copy.placed),
                    Some(WayStands::Silent) => None,
                };
                ReplicaPosition {
                    group: set.id().group,
                    broker: stand.holder,
                    end,
                    placed,
                    flushed: flushed.then_some(stand.durable),
                    lost: stand.lost,
                }
            }));
        }
        found
    }
}
