//! Streamlets that are not recovered from their copies: what each waits for, what would be lost by
//! going on without it, and the operator's decision to do so. The same of closed groups of served streamlets.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use kera_metadata::{GroupRecord, LostRecords};
use kera_protocol::ids::{GroupId, LaneId, Ordinal, StreamId};
use kera_protocol::v1;
use kera_replication::ids::StreamletKey;
use kera_replication::recovery::{RecoveredLane, Unclean};
use kera_streamlet::Streamlet;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::closed_records::unclean;

/// A decision is waited for at most so long; it is carried out in any case.
const DECISION_WITHIN: Duration = Duration::from_secs(30);
/// Closed groups of a served streamlet that are remembered as not whole; more show once these are.
const MOST_LACKING: usize = 1024;

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
    /// Which records these have lost, as far as that is known.
    lost: BTreeMap<GroupId, LostRecords>,
    losses: Vec<v1::AcceptedLoss>,
    decision: Decision,
    /// The groups whose loss was accepted, and which records that are, until the streamlet is served.
    accepted: BTreeMap<GroupId, LostRecords>,
    served: bool,
    /// Closed groups that were found not to be whole on the replicas that answer while the streamlet was served.
    lacking: BTreeMap<GroupId, Lacking>,
}

/// A closed group of which records are whole on no replica that answers.
#[derive(Clone, Debug)]
struct Lacking {
    /// Of the file that was looked for.
    generation: u32,
    /// For people.
    reason: String,
    group: v1::UncleanGroup,
    lost: LostRecords,
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
    /// Which records of them are lost. Of a group that is not named here that is everything from its first ordinal on.
    pub(crate) lost: BTreeMap<GroupId, LostRecords>,
}

impl From<String> for Stuck {
    fn from(reason: String) -> Self {
        Self {
            reason,
            ..Self::default()
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
            lost: BTreeMap::new(),
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
            false => Unclean::Accept(entry.accepted.keys().copied().collect()),
        }
    }

    /// The records of a group whose loss was accepted: all others were there when that was shown.
    pub(crate) fn accepted(&self, streamlet: StreamletKey, group: GroupId) -> Option<LostRecords> {
        let entries = self.entries.lock();
        entries.get(&streamlet)?.accepted.get(&group).cloned()
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
            entry.lost = stuck.map_or_else(BTreeMap::new, |stuck| stuck.lost.clone());
        }
        self.attempts.send_modify(|attempts| *attempts += 1);
    }

    /// A closed group of a served streamlet has lost these records, which are whole on no replica that answers; none, if
    /// this broker alone cannot serve it.
    pub(crate) fn lacks(&self, record: &GroupRecord, lost: LostRecords, reason: String) {
        let streamlet = record.streamlet_key();
        let group = unclean(record, &lost);
        let mut entries = self.entries.lock();
        let lacking = &mut entries.entry(streamlet).or_default().lacking;
        let id = GroupId(group.group);
        if lacking.len() < MOST_LACKING || lacking.contains_key(&id) {
            let found = Lacking {
                generation: record.generation,
                reason,
                group,
                lost,
            };
            lacking.insert(id, found);
        }
    }

    /// It is whole, or what it lacks is given up.
    pub(crate) fn lacks_no_more(&self, streamlet: StreamletKey, group: GroupId) {
        if let Some(entry) = self.entries.lock().get_mut(&streamlet) {
            entry.lacking.remove(&group);
        }
    }

    /// Closed groups of all served streamlets that are not whole.
    pub(crate) fn lacking_total(&self) -> u64 {
        let entries = self.entries.lock();
        entries.values().map(|one| one.lacking.len() as u64).sum()
    }

    /// What closed groups of a streamlet that is served lack, if any of them does; those that were trimmed or compacted
    /// meanwhile lack nothing.
    pub(crate) fn lacking(&self, streamlet: &Streamlet) -> Option<v1::UnrecoveredStreamlet> {
        let mut entries = self.entries.lock();
        let lacking = &mut entries.get_mut(&streamlet.key())?.lacking;
        lacking.retain(|group, found| {
            let now = streamlet.generation_of(LaneId(found.group.lane), *group);
            now == Some(found.generation)
        });
        let first = lacking.values().next()?;
        let what = match lacking.values().all(|found| found.lost.is_empty()) {
            true => "cannot be served by this broker",
            false => "are whole on no replica that answers",
        };
        Some(v1::UnrecoveredStreamlet {
            streamlet: streamlet.id().0,
            reason: format!(
                "records of {} closed groups {what}; all others are served: {}",
                lacking.len(),
                first.reason
            ),
            unclean: lacking.values().map(|found| found.group.clone()).collect(),
        })
    }

    /// The operator accepts what closed groups of served streamlets lack, of those that are named and were found so.
    /// Returns these groups. The caller tries once more to fetch each of them, and then calls [`given_up`](Self::given_up).
    pub(crate) fn accept_lacking(
        &self,
        named: &BTreeMap<StreamletKey, BTreeSet<(LaneId, GroupId)>>,
    ) -> Vec<(StreamletKey, LaneId, GroupId)> {
        let mut entries = self.entries.lock();
        let mut accepted = Vec::new();
        for (streamlet, groups) in named {
            let Some(entry) = entries.get_mut(streamlet) else {
                continue;
            };
            let before = accepted.len();
            for (lane, group) in groups {
                let found = entry.lacking.get(group);
                // What is lost nowhere cannot be given up.
                let found = found.filter(|found| !found.lost.is_empty());
                if let Some(found) = found.filter(|found| found.group.lane == lane.0) {
                    entry.accepted.insert(*group, found.lost.clone());
                    accepted.push((*streamlet, *lane, *group));
                }
            }
            if accepted.len() > before {
                tracing::warn!(%streamlet, given_up = ?accepted[before..], "the operator accepts the loss of records of closed groups that are whole on no replica");
                entry.losses.clear();
            }
        }
        accepted
    }

    /// What was given up of those that [`accept_lacking`](Self::accept_lacking) returned. What is found to be lost from now
    /// on is another matter.
    pub(crate) fn given_up(
        &self,
        accepted: &[(StreamletKey, LaneId, GroupId)],
    ) -> Vec<v1::AcceptedLoss> {
        let mut entries = self.entries.lock();
        let mut losses = Vec::new();
        for (streamlet, _, group) in accepted {
            if let Some(entry) = entries.get_mut(streamlet) {
                entry.accepted.remove(group);
                losses.append(&mut entry.losses);
            }
        }
        losses
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

    /// The operator accepts what is lost of the groups named, as far as the latest attempt found that no copy of them
    /// counts. A group that was not named stops its lane again: nobody may have been shown it. Returns what was given up,
    /// once the attempts that do so have ended.
    pub(crate) async fn accept(
        &self,
        named: &BTreeMap<StreamletKey, BTreeSet<(LaneId, GroupId)>>,
    ) -> Vec<v1::AcceptedLoss> {
        let mut attempts = self.attempts.subscribe();
        let mut accepted = Vec::new();
        for (streamlet, groups) in named {
            let mut entries = self.entries.lock();
            let Some(entry) = entries.get_mut(streamlet) else {
                continue;
            };
            let place = |one: &v1::UncleanGroup| (LaneId(one.lane), GroupId(one.group));
            let found = entry
                .unclean
                .iter()
                .filter(|one| groups.contains(&place(one)));
            let lost: BTreeMap<_, _> = found
                .clone()
                .map(|one| {
                    let known = entry.lost.get(&GroupId(one.group)).cloned();
                    // Of an open group nobody knows where it ends.
                    let rest = || std::iter::once(one.first_ordinal..Ordinal::MAX).collect();
                    (GroupId(one.group), known.unwrap_or_else(rest))
                })
                .collect();
            let given_up: Vec<_> = found.map(place).collect();
            if given_up.is_empty() {
                continue;
            }
            tracing::warn!(%streamlet, ?given_up, "the operator accepts the loss of records that no replica of these groups has");
            entry.decision = Decision::Accepted;
            entry.accepted.extend(lost);
            entry.losses.clear();
            accepted.push(*streamlet);
        }
        if accepted.is_empty() {
            return Vec::new();
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
    use kera_protocol::ids::{Epoch, StreamletId};
    use kera_replication::ids::{BrokerId, CopyId};
    use kera_replication::recovery::Stopped;

    use super::*;

    fn key() -> StreamletKey {
        StreamletKey {
            stream: StreamId::from_slice(&[1; 16]).expect("16 bytes"),
            streamlet: StreamletId(0),
        }
    }

    /// An attempt that stops at groups of lane 3.
    fn stuck(groups: &[u64]) -> Stuck {
        let unclean = groups.iter().map(|group| v1::UncleanGroup {
            group: *group,
            lane: 3,
            ..v1::UncleanGroup::default()
        });
        Stuck {
            reason: "no replica counts".to_owned(),
            unclean: unclean.collect(),
            lost: BTreeMap::new(),
        }
    }

    fn named(lane: u32, groups: &[u64]) -> BTreeMap<StreamletKey, BTreeSet<(LaneId, GroupId)>> {
        let places = groups.iter().map(|group| (LaneId(lane), GroupId(*group)));
        [(key(), places.collect())].into()
    }

    fn accepted(groups: &[u64]) -> Unclean {
        Unclean::Accept(groups.iter().copied().map(GroupId).collect())
    }

    #[tokio::test]
    async fn a_decision_is_about_the_groups_that_were_named_and_are_unclean() {
        let list = WaitingList::default();
        assert_eq!(list.begin(key()), Unclean::Wait);
        list.ended(key(), Some(&stuck(&[7])));
        // The operator is shown group 7. Before the command arrives, group 8 comes to wait as well.
        list.ended(key(), Some(&stuck(&[7, 8])));
        let attempt = async {
            assert_eq!(list.begin(key()), accepted(&[7]));
            list.ended(key(), Some(&stuck(&[8])));
        };
        // Nobody waits for group 9: a replica of it may count.
        let shown = named(3, &[7, 9]);
        tokio::join!(list.accept(&shown), attempt);
        // What was decided holds until the streamlet is served.
        assert_eq!(list.begin(key()), accepted(&[7]));
        list.ended(key(), None);
        assert_eq!(list.begin(key()), Unclean::Wait);
    }

    #[tokio::test]
    async fn a_decision_about_groups_that_are_not_unclean_does_nothing() {
        let list = WaitingList::default();
        list.ended(key(), Some(&stuck(&[7])));
        for other in [named(3, &[8]), named(2, &[7]), BTreeMap::new()] {
            // It waits for no attempt.
            assert_eq!(list.accept(&other).await, Vec::new());
            assert_eq!(list.begin(key()), Unclean::Wait, "{other:?}");
            list.ended(key(), Some(&stuck(&[7])));
        }
    }

    #[test]
    fn all_groups_that_need_a_decision_are_described_in_order() {
        let copy = |group| CopyId {
            streamlet: key(),
            group: GroupId(group),
            epoch: Epoch(1),
            generation: 0,
        };
        let lane = |lane, stopped, unclean_behind| RecoveredLane {
            lane: LaneId(lane),
            groups: Vec::new(),
            discarded: Vec::new(),
            gaps: Vec::new(),
            next_ordinal: 40,
            stopped,
            unclean_behind,
        };
        let unclean = Stopped::Unclean {
            copy: copy(7),
            holders: vec![BrokerId(1), BrokerId(2)],
        };
        let behind = vec![(copy(8), vec![BrokerId(3)]), (copy(11), vec![BrokerId(1)])];
        let short = Stopped::NotEnoughCopies {
            copy: copy(9),
            have: 1,
            need: 2,
        };
        let lanes = [
            lane(0, None, Vec::new()),
            lane(1, Some(short), Vec::new()),
            lane(3, Some(unclean), behind),
        ];
        assert!(Stuck::of(&lanes[..1]).is_none());
        let stuck = Stuck::of(&lanes).expect("two lanes are stopped");
        assert!(
            stuck.reason.contains("is whole at 1 brokers"),
            "{}",
            stuck.reason
        );
        let told = stuck.unclean.iter();
        let told: Vec<_> = told
            .map(|u| (u.lane, u.group, u.first_ordinal, &u.brokers[..]))
            .collect();
        let wanted: [(u32, u64, u64, &[u32]); 3] =
            [(3, 7, 40, &[1, 2]), (3, 8, 40, &[3]), (3, 11, 40, &[1])];
        assert_eq!(told, wanted);
    }
}
