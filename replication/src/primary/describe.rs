//! Which replica a broker can hold now: in which lives, and why not in that of a disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Primary;
use super::caller::BRIEFLY;
use crate::ids::{AckPolicy, BrokerId, Incarnation, Replica};
use crate::transport::{Pending, Reply, Request};

/// A broker as it is now.
#[derive(Clone, Debug)]
pub(crate) struct Described {
    pub(crate) broker: BrokerId,
    /// Of this broker's own files: the life of what its process has in memory.
    remembered: Option<Incarnation>,
    placed: Incarnation,
    flushed: Result<Incarnation, String>,
    free_bytes: u64,
}

impl Described {
    /// The replica that it can hold; or why it can hold none of which so much is asked.
    pub(crate) fn replica(&self, ack: AckPolicy) -> Result<Replica, &str> {
        let incarnation = match ack {
            AckPolicy::Memory => Ok(self.remembered.unwrap_or(self.placed)),
            AckPolicy::Written => Ok(self.placed),
            AckPolicy::Synced => self.flushed.as_ref().copied().map_err(String::as_str),
        };
        Ok(Replica {
            broker: self.broker,
            incarnation: incarnation?,
        })
    }

    /// True if what a record names is not there any more.
    pub(crate) fn is_another(&self, was: &Replica) -> bool {
        let known = [AckPolicy::Memory, AckPolicy::Written, AckPolicy::Synced];
        let is_now = |ack| self.replica(ack) == Ok(*was);
        !known.into_iter().any(is_now)
    }
}

/// Brokers that were not chosen because they have no disk that survives a loss of power, and why.
#[derive(Clone, Debug, Default)]
pub(super) struct WithoutDisk(Arc<Mutex<BTreeMap<BrokerId, String>>>);

impl WithoutDisk {
    fn note(&self, broker: BrokerId, reason: Option<&str>) {
        let mut known = self.0.lock();
        match reason {
            None => drop(known.remove(&broker)),
            Some(reason) if known.get(&broker).is_some_and(|told| told == reason) => {}
            Some(reason) => {
                tracing::warn!(%broker, reason, "not chosen for groups of streams with ack = synced");
                known.insert(broker, reason.to_owned());
            }
        }
    }
}

impl Primary {
    /// Why brokers are not chosen for synced groups, for people; empty if all could be.
    pub(super) fn without_disk(&self) -> String {
        let known = self.without_disk.0.lock();
        let reasons = known.iter().map(|(at, reason)| format!("; {at}: {reason}"));
        reasons.collect()
    }

    /// The backup as the holder it is now, if it answers, has room, and can keep bytes as durably as asked.
    pub(crate) fn holder(&self, backup: BrokerId, ack: AckPolicy) -> Pending<Option<Replica>> {
        let need = u64::from(self.config.first_buffer_bytes);
        let (described, health) = (self.describe(backup), self.health.clone());
        let (runtime, without_disk) = (self.runtime.clone(), self.without_disk.clone());
        Box::pin(async move {
            let described = described.await?;
            if described.free_bytes < need {
                health.full(backup, runtime.now());
                return None;
            }
            let replica = described.replica(ack);
            if ack == AckPolicy::Synced {
                without_disk.note(backup, replica.as_ref().err().copied());
            }
            replica.ok()
        })
    }

    /// The backup as it is now, if it answers.
    pub(crate) fn describe(&self, backup: BrokerId) -> Pending<Option<Described>> {
        if let Some(own) = self.own.as_ref().filter(|_| backup == self.me) {
            let described = Described {
                broker: backup,
                remembered: Some(match self.faults.process_not_named() {
                    true => own.incarnation(),
                    false => own.process(),
                }),
                placed: own.incarnation(),
                flushed: own.disk(),
                free_bytes: u64::MAX,
            };
            return Box::pin(std::future::ready(Some(described)));
        }
        let (caller, health) = (self.caller(), self.health.clone());
        Box::pin(async move {
            let begun = caller.runtime.now();
            match caller.once(backup, Request::Describe).await {
                Ok(Reply::Description(description)) => {
                    health.success(backup);
                    let took = caller.runtime.now().saturating_sub(begun);
                    health.answered(backup, took, BRIEFLY);
                    Some(Described {
                        broker: backup,
                        remembered: None,
                        placed: description.incarnation,
                        flushed: description.disk,
                        free_bytes: description.free_bytes,
                    })
                }
                _ => {
                    health.failure(backup, caller.runtime.now());
                    None
                }
            }
        })
    }
}
