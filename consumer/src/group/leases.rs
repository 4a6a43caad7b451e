//! The leases a consumer holds, and how far each is delivered, processed and committed.

mod moves;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kera_protocol::ids::{LaneKey, Ordinal};
use kera_protocol::slices::SliceSet;
use kera_protocol::v1::{Cursor, LeaseCommit};

use super::lease_key::LeaseKey;
use crate::fetch::SourceSpec;
pub(crate) use moves::{NotMoved, Place};

/// Released leases that are remembered, so that a late commit of theirs is known to be done.
const REMEMBERED: usize = 1_024;

/// A lease, as the application sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// Its id; grows for ever within a group.
    pub lease: u64,
    /// The lane.
    pub lane: LaneKey,
    /// First ordinal to be delivered.
    pub start: Ordinal,
    /// Exclusive; `None`: the lane from `start` on.
    pub end: Option<Ordinal>,
    /// The slices of the lane whose keys it is about, with [`Order::Key`](crate::Order::Key).
    pub slices: Option<SliceSet>,
}

#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) info: LeaseInfo,
    /// The fetcher's key; `None` once nothing more is fetched.
    pub(crate) source: Option<u64>,
    /// How it is read.
    spec: Option<SourceSpec>,
    /// Everything below was delivered to the application, or passed because it is of slices that others have,
    delivered: Ordinal,
    /// was handed to it: where its last batch ends,
    handed: Ordinal,
    /// was passed,
    passed_to: Cursor,
    /// was processed by it,
    processed: Cursor,
    /// is committed.
    committed: Ordinal,
    /// Up to here a commit was sent and not answered,
    under_way: Option<Ordinal>,
    /// or it was, and nobody knows what became of it. It is sent again.
    perhaps: Ordinal,
    /// Nothing follows this ordinal.
    finished_at: Option<Ordinal>,
    /// Between these nothing was delivered: a batch was skipped.
    skipped: Option<(Ordinal, Ordinal)>,
    /// Everything up to what was skipped is processed, and that is committed although nobody commits it.
    passed: bool,
    returning: bool,
    /// It is released as it is committed: what was delivered of it beyond that is delivered again.
    given_up: bool,
    /// A commit with release is under way.
    releasing: bool,
    /// A transaction that has not ended commits a position of it, perhaps another member's. Nothing else does until then.
    waits: bool,
}

impl Held {
    fn new(info: LeaseInfo, start: Cursor, committed: Ordinal) -> Self {
        Self {
            info,
            source: None,
            spec: None,
            delivered: start.ordinal,
            handed: start.ordinal,
            passed_to: start,
            processed: start,
            committed,
            under_way: None,
            perhaps: committed,
            finished_at: info.end.filter(|end| *end <= start.ordinal),
            skipped: None,
            passed: false,
            returning: false,
            given_up: false,
            releasing: false,
            waits: false,
        }
    }

    /// Up to where can be committed: what lies between the last record and the end was never
    /// stored, and counts as processed with it.
    fn position(&self) -> Cursor {
        let processed = match self.has_passed() {
            true => self.passed_to,
            false => self.processed,
        };
        match self.finished_at {
            Some(end) if processed.ordinal >= self.delivered => Cursor {
                ordinal: end.max(processed.ordinal),
                ..if end == processed.ordinal {
                    processed
                } else {
                    Cursor::default()
                }
            },
            _ => processed,
        }
    }

    /// True if all that was handed out is processed, and more was passed since.
    fn has_passed(&self) -> bool {
        self.processed.ordinal >= self.handed && self.passed_to.ordinal > self.processed.ordinal
    }

    /// Counts what was skipped as processed once everything before it is.
    fn pass_skipped(&mut self) {
        if let Some((from, next)) = self.skipped
            && (from..next).contains(&self.processed.ordinal)
        {
            self.processed = Cursor {
                ordinal: next,
                ..Cursor::default()
            };
            self.passed = true;
        }
    }

    /// True if nothing is left to do but the release.
    fn is_done(&self) -> bool {
        if self.given_up {
            return true;
        }
        let position = self.position().ordinal;
        match self.finished_at {
            Some(end) if position >= end => true,
            _ => self.returning && position >= self.delivered,
        }
    }

    fn due(&self, all: bool) -> Option<LeaseCommit> {
        if self.releasing || self.waits {
            return None;
        }
        let position = self.position();
        let done = self.is_done();
        if !done && (!(all || self.passed) || position.ordinal <= self.committed) {
            return None;
        }
        Some(LeaseCommit {
            lease: self.info.lease,
            next: (position.ordinal > self.committed && !self.given_up).then_some(position),
            release: done,
        })
    }
}

/// All leases held, of one life of the membership: a lease of another life is not found, whatever has its number.
#[derive(Debug, Default)]
pub(crate) struct LeaseTable {
    life: u64,
    held: BTreeMap<LeaseKey, Held>,
    /// (lease, committed) of leases released lately, oldest first.
    released: VecDeque<(LeaseKey, Ordinal)>,
    /// Lanes of which nothing is delivered for now.
    paused: BTreeSet<Place>,
}

impl LeaseTable {
    /// The life of the membership.
    pub(crate) fn life(&self) -> u64 {
        self.life
    }

    /// Takes over a lease that is read from `start` on and committed up to `committed`.
    pub(crate) fn insert(&mut self, info: LeaseInfo, start: Cursor, committed: Ordinal) {
        let key = LeaseKey {
            life: self.life,
            lease: info.lease,
        };
        self.held.insert(key, Held::new(info, start, committed));
    }

    /// Names the source that reads a lease. False if nothing is to be read of it any more.
    pub(crate) fn set_source(&mut self, lease: LeaseKey, source: u64) -> bool {
        let held = self
            .held
            .get_mut(&lease)
            .filter(|held| !held.returning && !held.given_up);
        held.map(|held| held.source = Some(source)).is_some()
    }

    /// Their numbers at the coordinator.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.held.keys().map(|key| key.lease).collect()
    }

    /// True if anything processed is not committed, or not released although it is done.
    pub(crate) fn has_uncommitted(&self) -> bool {
        self.held
            .values()
            .any(|held| held.is_done() || held.position().ordinal > held.committed)
    }

    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// Leases that are still being read or processed.
    pub(crate) fn active(&self) -> usize {
        self.held.values().filter(|held| !held.is_done()).count()
    }

    pub(crate) fn infos(&self) -> Vec<LeaseInfo> {
        self.held.values().map(|held| held.info).collect()
    }

    pub(crate) fn delivered(&self, lease: LeaseKey) -> Option<Ordinal> {
        self.held.get(&lease).map(|held| held.delivered)
    }

    /// Notes that a batch up to `next` goes to the application. False if it may not.
    pub(crate) fn deliver(&mut self, lease: LeaseKey, next: Ordinal) -> bool {
        let Some(held) = self.held.get_mut(&lease) else {
            return false;
        };
        if held.returning || held.given_up || held.releasing {
            return false;
        }
        held.delivered = held.delivered.max(next);
        held.handed = held.handed.max(next);
        if let Some(end) = held.info.end
            && next >= end
        {
            held.finished_at = Some(end);
        }
        true
    }

    /// Notes that everything below `next` that was not handed out is of slices that others have. False if the lease is not
    /// read any more.
    pub(crate) fn pass(&mut self, lease: LeaseKey, next: Cursor) -> bool {
        let held = self.held.get_mut(&lease);
        let Some(held) = held.filter(|h| !(h.returning || h.given_up || h.releasing)) else {
            return false;
        };
        held.delivered = held.delivered.max(next.ordinal);
        if next.ordinal > held.passed_to.ordinal {
            held.passed_to = next;
        }
        true
    }

    /// What was passed is to be committed although nobody commits it.
    pub(crate) fn commit_passed(&mut self) {
        let held = self.held.values_mut();
        for held in held.filter(|held| held.has_passed()) {
            held.passed |= held.passed_to.ordinal > held.committed;
        }
    }

    /// Notes that what lies between two ordinals is not delivered. False if the lease is not read any more.
    pub(crate) fn skip(&mut self, lease: LeaseKey, from: Ordinal, next: Ordinal) -> bool {
        let is_sliced = |held: &Held| held.info.slices.is_some();
        if self.held.get(&lease).is_some_and(is_sliced) {
            // What lies before it may be of slices that others have: nothing of that is ever processed here.
            let next = Cursor {
                ordinal: next,
                ..Cursor::default()
            };
            return self.pass(lease, next);
        }
        if !self.deliver(lease, next) {
            return false;
        }
        if let Some(held) = self.held.get_mut(&lease) {
            held.skipped = match held.skipped {
                Some((first, last)) if last == from => Some((first, next)),
                _ => Some((from, next)),
            };
            held.pass_skipped();
        }
        true
    }

    /// Notes that nothing of the lease is stored at or above `at`. True if it is done with that.
    pub(crate) fn finish(&mut self, lease: LeaseKey, at: Ordinal) -> bool {
        let Some(held) = self.held.get_mut(&lease) else {
            return false;
        };
        held.finished_at = Some(held.info.end.unwrap_or(at).max(held.delivered));
        held.is_done()
    }

    /// Notes that everything of the lease below `next` is processed. False if it is not held;
    /// otherwise true, and whether a commit is already due for it.
    pub(crate) fn processed(&mut self, lease: LeaseKey, next: Cursor) -> Option<bool> {
        let held = self.held.get_mut(&lease).filter(|held| !held.given_up)?;
        if next.ordinal > held.processed.ordinal {
            held.processed = next;
            held.pass_skipped();
        }
        Some(held.is_done())
    }

    /// Up to where a lease is committed, if it is held or was released lately.
    pub(crate) fn committed(&self, lease: LeaseKey) -> Option<Ordinal> {
        let released = || self.released.iter().rev().find(|(id, _)| *id == lease);
        match self.held.get(&lease) {
            Some(held) => Some(held.committed),
            None => released().map(|(_, committed)| *committed),
        }
    }

    /// Marks leases as to be given back. Those newly so, and their sources, which must be removed.
    pub(crate) fn give_back(
        &mut self,
        leases: impl IntoIterator<Item = LeaseKey>,
    ) -> (Vec<LeaseInfo>, Vec<u64>) {
        let mut sources = Vec::new();
        let mut infos = Vec::new();
        for lease in leases {
            if let Some(held) = self.held.get_mut(&lease)
                && !held.returning
                && !held.releasing
            {
                held.returning = true;
                infos.push(held.info);
                sources.extend(held.source.take());
            }
        }
        (infos, sources)
    }

    /// True if batches of the lease may be committed.
    pub(crate) fn holds(&self, lease: LeaseKey) -> bool {
        self.held.get(&lease).is_some_and(|held| !held.given_up)
    }

    /// A transaction has committed everything of the lease below `next`.
    pub(crate) fn committed_by_transaction(&mut self, lease: LeaseKey, next: Cursor) {
        if let Some(held) = self.held.get_mut(&lease) {
            held.committed = held.committed.max(next.ordinal);
            if next.ordinal > held.processed.ordinal {
                held.processed = next;
                held.pass_skipped();
            }
        }
    }

    /// Leases that are released as they are committed; their sources, which must be removed.
    pub(crate) fn give_up(&mut self, leases: impl IntoIterator<Item = LeaseKey>) -> Vec<u64> {
        let mut sources = Vec::new();
        for lease in leases {
            if let Some(held) = self.held.get_mut(&lease)
                && !held.releasing
            {
                held.given_up = true;
                sources.extend(held.source.take());
            }
        }
        sources
    }

    /// Leases of which more was delivered than is committed.
    pub(crate) fn ahead(&self) -> Vec<LeaseKey> {
        let ahead = self.held.iter();
        let ahead = ahead.filter(|(_, held)| held.delivered > held.committed);
        ahead.map(|(lease, _)| *lease).collect()
    }

    /// Everything is to be given back.
    pub(crate) fn give_back_all(&mut self) -> Vec<u64> {
        let all: Vec<LeaseKey> = self.held.keys().copied().collect();
        self.give_back(all).1
    }

    /// What to commit now: what must be released, and with `all` any progress. At most `limit`.
    pub(crate) fn due(&mut self, all: bool, limit: usize) -> Vec<LeaseCommit> {
        let mut due = Vec::new();
        for held in self.held.values_mut() {
            if due.len() == limit {
                break;
            }
            if let Some(commit) = held.due(all) {
                held.releasing = commit.release;
                held.under_way = commit.next.map(|next| next.ordinal);
                due.push(commit);
            }
        }
        due
    }

    /// A commit failed on its way; it may or may not have taken effect, and is tried again.
    pub(crate) fn commit_failed(&mut self, leases: impl IntoIterator<Item = LeaseKey>) {
        for lease in leases {
            if let Some(held) = self.held.get_mut(&lease) {
                held.releasing = false;
                let under_way = held.under_way.take().unwrap_or(0);
                held.perhaps = held.perhaps.max(under_way);
            }
        }
    }

    /// A commit was answered, and nothing of it was done.
    pub(crate) fn commit_refused(&mut self, leases: impl IntoIterator<Item = LeaseKey>) {
        for lease in leases {
            if let Some(held) = self.held.get_mut(&lease) {
                held.releasing = false;
                held.under_way = None;
            }
        }
    }

    /// Transactions that have not ended commit positions of these: their commits wait until they are
    /// [asked for again](Self::ask_again).
    pub(crate) fn wait_for_transactions(&mut self, leases: impl IntoIterator<Item = LeaseKey>) {
        for lease in leases {
            if let Some(held) = self.held.get_mut(&lease) {
                held.waits = true;
            }
        }
    }

    /// What waits for transactions may be committed again, if they have ended. True if anything waited.
    pub(crate) fn ask_again(&mut self) -> bool {
        let waiting = self.held.values_mut().filter(|held| held.waits);
        waiting.map(|held| held.waits = false).count() > 0
    }

    /// Commits of a life took effect. Leases that ended with them, and their sources.
    pub(crate) fn commit_done(
        &mut self,
        life: u64,
        commits: &[LeaseCommit],
    ) -> (Vec<LeaseInfo>, Vec<u64>) {
        let mut released = Vec::new();
        let mut sources = Vec::new();
        for commit in commits {
            let key = LeaseKey {
                life,
                lease: commit.lease,
            };
            let Some(held) = self.held.get_mut(&key) else {
                continue;
            };
            if let Some(next) = commit.next {
                held.committed = held.committed.max(next.ordinal);
                held.under_way = None;
                held.passed &= held.processed.ordinal > held.committed;
            }
            if commit.release
                && let Some(held) = self.held.remove(&key)
            {
                if self.released.len() == REMEMBERED {
                    self.released.pop_front();
                }
                self.released.push_back((key, held.committed));
                sources.extend(held.source);
                released.push(held.info);
            }
        }
        (released, sources)
    }

    /// Leases that ended without our doing, of those held, and their sources.
    pub(crate) fn lost(
        &mut self,
        leases: impl IntoIterator<Item = LeaseKey>,
    ) -> (Vec<LeaseInfo>, Vec<u64>) {
        let mut infos = Vec::new();
        let mut sources = Vec::new();
        for lease in leases {
            // What is being released may well be unknown to the broker by now.
            if self.held.get(&lease).is_some_and(|held| !held.releasing)
                && let Some(held) = self.held.remove(&lease)
            {
                infos.push(held.info);
                sources.extend(held.source);
            }
        }
        (infos, sources)
    }

    /// All leases are gone with the membership, and another life of it begins.
    pub(crate) fn lost_all(&mut self) -> (Vec<LeaseInfo>, Vec<u64>) {
        self.life += 1;
        self.released.clear();
        let held = std::mem::take(&mut self.held);
        let sources = held.values().filter_map(|held| held.source).collect();
        (held.into_values().map(|held| held.info).collect(), sources)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_protocol::ids::{LaneId, StreamId, StreamletId};

    fn at(ordinal: Ordinal) -> Cursor {
        Cursor {
            ordinal,
            ..Cursor::default()
        }
    }

    fn key(lease: u64) -> LeaseKey {
        LeaseKey { life: 0, lease }
    }

    fn table(end: Option<Ordinal>) -> LeaseTable {
        let mut table = LeaseTable::default();
        let lane = LaneKey {
            stream: StreamId::random(),
            streamlet: StreamletId(0),
            lane: LaneId(0),
        };
        let info = LeaseInfo {
            lease: 1,
            lane,
            start: 10,
            end,
            slices: None,
        };
        table.insert(info, at(10), 10);
        table.set_source(key(1), 7);
        table
    }

    #[test]
    fn progress_is_committed_when_asked_for_and_a_range_ends_by_itself() {
        let mut table = table(Some(30));
        assert!(table.due(true, 9).is_empty());
        assert!(table.deliver(key(1), 20));
        assert!(table.due(true, 9).is_empty(), "delivered is not processed");
        assert_eq!(table.processed(key(1), at(20)), Some(false));
        assert!(table.due(false, 9).is_empty());
        let due = table.due(true, 9);
        assert_eq!((due[0].next, due[0].release), (Some(at(20)), false));
        table.commit_done(0, &due);
        assert_eq!(table.committed(key(1)), Some(20));
        assert!(table.deliver(key(1), 30));
        assert_eq!(table.active(), 1);
        assert_eq!(table.processed(key(1), at(30)), Some(true));
        assert_eq!(table.active(), 0);
        let due = table.due(false, 9);
        assert_eq!((due[0].next, due[0].release), (Some(at(30)), true));
        assert!(table.due(true, 9).is_empty(), "it is under way");
        table.commit_failed([key(1)]);
        assert_eq!(table.due(false, 9), due);
        assert!(
            table.lost([key(1)]).0.is_empty(),
            "its release is under way"
        );
        let (released, sources) = table.commit_done(0, &due);
        assert_eq!((released.len(), sources, table.len()), (1, vec![7], 0));
        assert_eq!(
            table.committed(key(1)),
            Some(30),
            "a late commit finds it done"
        );
    }

    #[test]
    fn a_lease_to_be_given_back_waits_for_what_was_delivered() {
        let mut table = table(None);
        assert!(table.deliver(key(1), 20));
        let (infos, sources) = table.give_back([key(1), key(2)]);
        assert_eq!((infos.len(), sources), (1, vec![7]));
        assert!(!table.deliver(key(1), 30), "no more batches of it");
        assert!(table.due(true, 9).is_empty());
        table.processed(key(1), at(20));
        let due = table.due(false, 9);
        assert_eq!((due[0].next, due[0].release), (Some(at(20)), true));
        assert!(table.give_back([key(1)]).0.is_empty());
    }

    #[test]
    fn what_a_transaction_committed_is_not_committed_again_and_what_is_given_up_is_released() {
        let mut table = table(None);
        assert!(table.deliver(key(1), 30));
        table.committed_by_transaction(key(1), at(20));
        assert_eq!(table.committed(key(1)), Some(20));
        assert!(table.due(true, 9).is_empty(), "it is committed");
        assert_eq!(table.ahead(), [key(1)]);
        assert!(table.holds(key(1)));
        assert_eq!(table.give_up([key(1), key(2)]), [7]);
        assert!(!table.holds(key(1)) && !table.deliver(key(1), 40) && !table.set_source(key(1), 8));
        assert_eq!(
            table.processed(key(1), at(30)),
            None,
            "it is delivered again"
        );
        let due = table.due(false, 9);
        assert_eq!((due[0].next, due[0].release), (None, true));
        table.commit_failed([key(1)]);
        assert_eq!(table.due(false, 9), due, "it is tried again");
        table.commit_done(0, &due);
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn what_is_lost_or_given_back_before_it_is_read_is_not_read() {
        for lost in [true, false] {
            let mut table = table(None);
            let info = table.infos()[0];
            table.insert(info, at(10), 10);
            let (_, sources) = match lost {
                true => table.lost([key(1)]),
                false => table.give_back([key(1)]),
            };
            assert!(sources.is_empty(), "it has none yet");
            assert!(!table.set_source(key(1), 8));
        }
    }

    #[test]
    fn what_was_never_stored_counts_as_processed() {
        let mut table = table(Some(30));
        assert!(table.deliver(key(1), 20));
        assert!(!table.finish(key(1), 30));
        assert!(table.due(true, 9).is_empty(), "20 is not processed");
        assert_eq!(table.processed(key(1), at(20)), Some(true));
        assert_eq!(table.due(false, 9)[0].next, Some(at(30)));
    }

    #[test]
    fn what_a_resumed_range_skips_is_committed() {
        let mut table = table(Some(30));
        let info = table.infos()[0];
        table.insert(LeaseInfo { start: 30, ..info }, at(30), 10);
        assert!(table.has_uncommitted());
        let due = table.due(false, 9);
        assert_eq!((due[0].next, due[0].release), (Some(at(30)), true));
    }

    #[test]
    fn what_was_skipped_counts_as_processed_once_everything_before_it_is() {
        let mut table = table(None);
        assert!(table.deliver(key(1), 20));
        assert!(table.skip(key(1), 20, 25) && table.skip(key(1), 25, 30));
        assert!(table.due(true, 9).is_empty(), "20 is not processed");
        table.processed(key(1), at(20));
        let due = table.due(false, 9);
        assert_eq!((due[0].next, due[0].release), (Some(at(30)), false));
        table.commit_done(0, &due);
        assert_eq!(table.committed(key(1)), Some(30));
        table.give_back([key(1)]);
        assert!(
            table.due(false, 9)[0].release,
            "nothing of it is waited for"
        );
        assert!(!table.skip(key(1), 30, 40), "it is not read any more");
    }

    #[test]
    fn what_is_of_others_is_passed_once_everything_before_it_is_processed() {
        let mut table = table(None);
        assert!(table.pass(key(1), at(15)));
        assert_eq!(
            table.due(true, 9)[0].next,
            Some(at(15)),
            "nothing was handed out"
        );
        assert!(table.deliver(key(1), 20) && table.pass(key(1), at(40)));
        table.commit_passed();
        assert_eq!(table.due(false, 9), [], "20 is not processed");
        table.processed(key(1), at(20));
        assert_eq!(table.due(false, 9), [], "nobody commits yet");
        table.commit_passed();
        let due = table.due(false, 9);
        assert_eq!((due[0].next, due[0].release), (Some(at(40)), false));
        table.commit_done(0, &due);
        assert_eq!(
            (table.committed(key(1)), table.due(false, 9)),
            (Some(40), vec![])
        );
        assert!(table.pass(key(1), at(50)));
        table.give_back([key(1)]);
        let due = table.due(false, 9);
        assert_eq!((due[0].next, due[0].release), (Some(at(50)), true));
        assert!(!table.pass(key(1), at(60)), "it is not read any more");
    }

    #[test]
    fn what_is_skipped_behind_records_of_others_counts_as_processed() {
        let mut table = table(None);
        let slices = Some(SliceSet::one(3));
        let info = table.infos()[0];
        table.insert(LeaseInfo { slices, ..info }, at(10), 10);
        assert!(table.deliver(key(1), 20) && table.pass(key(1), at(40)));
        assert!(table.skip(key(1), 40, 50));
        table.commit_passed();
        assert_eq!(table.due(true, 9), [], "20 is not processed");
        table.processed(key(1), at(20));
        let due = table.due(true, 9);
        assert_eq!(due[0].next, Some(at(50)));
        table.give_back([key(1)]);
        let due = table.due(false, 9);
        assert!(due[0].release, "nothing of it is waited for");
    }

    #[test]
    fn stale_and_lost_leases_are_not_committed_again() {
        let mut table = table(None);
        assert!(table.deliver(key(1), 20));
        table.processed(key(1), at(20));
        assert_eq!(table.due(true, 9).len(), 1);
        // The answer names it, so that nothing of it is done.
        table.commit_failed([key(1)]);
        assert_eq!(table.committed(key(1)), Some(10));
        let (infos, sources) = table.lost([key(1)]);
        assert_eq!((infos.len(), sources), (1, vec![7]));
        assert_eq!(table.processed(key(1), at(30)), None);
        assert!(!table.deliver(key(1), 30));
    }

    #[test]
    fn leases_of_another_life_are_none_of_this_one() {
        let mut table = table(Some(30));
        let info = table.infos()[0];
        assert!(table.deliver(key(1), 30));
        table.processed(key(1), at(30));
        let due = table.due(true, 9);
        table.commit_done(0, &due);
        assert_eq!(table.committed(key(1)), Some(30));
        table.insert(LeaseInfo { lease: 2, ..info }, at(10), 10);
        assert_eq!(table.lost_all().0.len(), 1);
        assert_eq!(table.committed(key(1)), None, "that was another group");

        // The group was made anew: its leases have the same numbers.
        table.insert(info, at(10), 10);
        let new = LeaseKey { life: 1, lease: 1 };
        assert!(!table.set_source(key(1), 8) && table.set_source(new, 8));
        assert!(!table.deliver(key(1), 20) && !table.skip(key(1), 10, 20));
        assert!(!table.finish(key(1), 10));
        assert_eq!(table.processed(key(1), at(20)), None);
        assert!(!table.holds(key(1)) && table.holds(new));
        table.committed_by_transaction(key(1), at(20));
        table.wait_for_transactions([key(1)]);
        assert!(table.give_up([key(1)]).is_empty());
        assert!(table.give_back([key(1)]).0.is_empty());
        assert!(table.lost([key(1)]).0.is_empty());
        assert!(table.commit_done(0, &due).0.is_empty());
        assert_eq!(table.committed(new), Some(10));
        assert_eq!(table.delivered(new), Some(10));
        assert!(table.due(true, 9).is_empty());
    }
}
