//! Streamlets that are not recovered from their copies: what each waits for, what would be lost by
//! going on without it, and the operator's decision to do so.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use kera_protocol::ids::{GroupId, Ordinal, StreamId};
use kera_protocol::v1;
use kera_replication::ids::StreamletKey;
use kera_replication::recovery::{RecoveredLane, Unclean};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

/// A decision is waited for at most so long; it is carried out in any case.
const DECISION_WITHIN: Duration = Duration::from_secs(30);

/// What is known of the streamlets that wait.
#[derive(Debug)]
pub(crate) struct WaitingList {
    entries: Mutex<HashMap<StreamletKey, Entry>>,
    /// Something was decided.
    decided: Notify,
    /// Grows whenever an attempt ends.
    attempts: watch::Sender<u64>,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    reason: String,
    unclean: Vec<v1::UncleanGroup>,
    losses: Vec<v1::AcceptedLoss>,
    decision: Decision,
    /// The groups whose loss was accepted, until the streamlet is served.
    accepted: BTreeSet<GroupId>,
    served: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Decision {
    /// To wait.
    #[default]
    None,
    /// To accept what is lost, from the next attempt on.
    Accepted,
    /// The attempt is under way.
    UnderWay,
}

/// Why an attempt to recover a streamlet did not end with serving it.
#[derive(Debug, Default)]
pub(crate) struct Stuck {
    /// For people.
    pub(crate) reason: String,
    /// Groups of which no copy counts.
    pub(crate) unclean: Vec<v1::UncleanGroup>,
}

impl From<String> for Stuck {
    fn from(reason: String) -> Self {
        Self {
            reason,
            unclean: Vec::new(),
        }
    }
}

impl Stuck {
    /// What stops `lanes`, if anything does.
    pub(crate) fn of(lanes: &[RecoveredLane]) -> Option<Self> {
        let first = lanes.iter().find_map(|lane| lane.stopped.as_ref())?;
        let unclean = lanes.iter().flat_map(|lane| {
            // Where those behind the first begin is not known: at the earliest where the lane stopped.
            lane.unclean().map(|(copy, holders)| v1::UncleanGroup {
                group: copy.group.0,
                lane: lane.lane.0,
                first_ordinal: lane.next_ordinal,
                brokers: holders.iter().map(|holder| holder.0).collect(),
            })
        });
        Some(Self {
            reason: first.to_string(),
            unclean: unclean.collect(),
        })
    }
}

impl Default for WaitingList {
    fn default() -> Self {
        Self {
            entries: Mutex::default(),
            decided: Notify::new(),
            attempts: watch::Sender::new(0),
        }
    }
}

impl WaitingList {
    /// An attempt begins: what it is to do with groups of which no copy counts.
    pub(crate) fn begin(&self, streamlet: StreamletKey) -> Unclean {
        let mut entries = self.entries.lock();
        let entry = entries.entry(streamlet).or_default();
        if entry.decision == Decision::Accepted {
            entry.decision = Decision::UnderWay;
        }
        match entry.accepted.is_empty() {
            true => Unclean::Wait,
            false => Unclean::Accept(entry.accepted.clone()),
        }
    }

    /// Ordinals were given up by the attempt.
    pub(crate) fn lost(&self, streamlet: StreamletKey, lane: u32, from: Ordinal, to: Ordinal) {
        let mut entries = self.entries.lock();
        let losses = &mut entries.entry(streamlet).or_default().losses;
        losses.push(v1::AcceptedLoss {
            streamlet: streamlet.streamlet.0,
            lane,
            from_ordinal: from,
            to_ordinal: to,
        });
    }

    /// The attempt ended; with `None` the streamlet is served.
    pub(crate) fn ended(&self, streamlet: StreamletKey, stuck: Option<&Stuck>) {
        {
            let mut entries = self.entries.lock();
            let entry = entries.entry(streamlet).or_default();
            if entry.decision == Decision::UnderWay {
                // What was decided is done; what stops it now is another matter.
                entry.decision = Decision::None;
            }
            entry.served = stuck.is_none();
            if entry.served {
                entry.accepted.clear();
            }
            entry.reason = stuck.map_or_else(String::new, |stuck| stuck.reason.clone());
            entry.unclean = stuck.map_or_else(Vec::new, |stuck| stuck.unclean.clone());
        }
        self.attempts.send_modify(|attempts| *attempts += 1);
    }

    /// Returns when something is decided.
    pub(crate) async fn decided(&self) {
        self.decided.notified().await;
    }

    /// Another broker owns the streamlet.
    pub(crate) fn left(&self, streamlet: StreamletKey) {
        self.entries.lock().remove(&streamlet);
        self.attempts.send_modify(|attempts| *attempts += 1);
    }

    /// The stream is deleted.
    pub(crate) fn forget(&self, stream: StreamId) {
        self.entries.lock().retain(|key, _| key.stream != stream);
        self.attempts.send_modify(|attempts| *attempts += 1);
    }

    /// What keeps a streamlet from being served, as far as it is known.
    pub(crate) fn describe(&self, streamlet: StreamletKey) -> v1::UnrecoveredStreamlet {
        let entry = self.entries.lock().get(&streamlet).cloned();
        let entry = entry.unwrap_or_default();
        v1::UnrecoveredStreamlet {
            streamlet: streamlet.streamlet.0,
            reason: entry.reason,
            unclean: entry.unclean,
        }
    }

    /// The operator accepts what is lost of the groups that the latest attempt found, of which no copy counts; an attempt
    /// since the operator looked may have found more. A group that comes to that later stops its lane again. Returns what
    /// was given up, once the attempts that do so have ended.
    pub(crate) async fn accept(&self, streamlets: &[StreamletKey]) -> Vec<v1::AcceptedLoss> {
        let mut attempts = self.attempts.subscribe();
        let mut accepted = Vec::new();
        for streamlet in streamlets {
            if let Some(entry) = self.entries.lock().get_mut(streamlet)
                && !entry.unclean.is_empty()
            {
                entry.decision = Decision::Accepted;
                // Nothing that comes up later.
                let found = entry.unclean.iter().map(|unclean| GroupId(unclean.group));
                entry.accepted.extend(found);
                entry.losses.clear();
                accepted.push(*streamlet);
            }
        }
        self.decided.notify_waiters();
        let done = attempts.wait_for(|_| {
            let entries = self.entries.lock();
            let mut entries = accepted.iter().filter_map(|key| entries.get(key));
            entries.all(|entry| entry.served || entry.decision == Decision::None)
        });
        // What takes longer shows in the description.
        let _ = tokio::time::timeout(DECISION_WITHIN, done).await;
        let entries = self.entries.lock();
        let entries = accepted.iter().filter_map(|key| entries.get(key));
        entries.flat_map(|entry| entry.losses.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use kera_protocol::ids::StreamletId;

    use super::*;

    #[tokio::test]
    async fn a_decision_is_about_the_groups_that_were_described() {
        let list = WaitingList::default();
        let key = StreamletKey {
            stream: StreamId::from_slice(&[1; 16]).expect("16 bytes"),
            streamlet: StreamletId(0),
        };
        let stuck = |group| Stuck {
            reason: "no replica counts".to_owned(),
            unclean: vec![v1::UncleanGroup {
                group,
                ..v1::UncleanGroup::default()
            }],
        };
        let seven = || Unclean::Accept([GroupId(7)].into());
        assert_eq!(list.begin(key), Unclean::Wait);
        list.ended(key, Some(&stuck(7)));
        let attempt = async {
            assert_eq!(list.begin(key), seven());
            list.ended(key, Some(&stuck(8)));
        };
        let keys = [key];
        tokio::join!(list.accept(&keys), attempt);
        // Nobody was shown the other one when that was decided; and what was decided holds until the streamlet is served.
        assert_eq!(list.begin(key), seven());
        list.ended(key, None);
        assert_eq!(list.begin(key), Unclean::Wait);
    }
}
