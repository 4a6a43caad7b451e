//! From the internal stream's records back to a coordinator.

use std::collections::BTreeMap;

use crate::classic;
use crate::coordinator::Coordinator;
use crate::event::{Body, Event, KIND_CLASSIC};
use crate::group::Group;
use crate::limits::Limits;
use crate::transactions::{Transaction, Unsettled};

/// Durable state of all groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct State {
    pub(crate) groups: BTreeMap<String, Group>,
    /// Groups of Kafka's classic kind. No name is in both.
    pub(crate) classic: BTreeMap<String, classic::Group>,
    /// What offsets of classic groups take.
    pub(crate) offset_bytes: usize,
    /// Transactions, by transactional id.
    pub(crate) transactions: BTreeMap<String, Transaction>,
    /// Where their last ones ended, as long as markers may be lost.
    pub(crate) unsettled: Unsettled,
}

impl State {
    /// Applies one event; false if it does not fit.
    pub(crate) fn apply(&mut self, group: &str, body: &Body) -> bool {
        match body {
            Body::GroupCreated(created) if created.kind == KIND_CLASSIC => {
                self.remove(group);
                let new = classic::Group::new(created);
                self.classic.insert(group.to_owned(), new);
                true
            }
            Body::GroupCreated(created) => match Group::new(created) {
                Some(new) => {
                    self.remove(group);
                    self.groups.insert(group.to_owned(), new);
                    true
                }
                None => false,
            },
            Body::GroupDeleted(_) => self.remove(group),
            Body::TransactionSet(set) => match set.transaction() {
                Some(transaction) => {
                    self.transactions.insert(group.to_owned(), transaction);
                    let mut written = set.written.iter();
                    written.all(|written| self.unsettled.add(group, written))
                }
                None => false,
            },
            Body::TransactionEnded(_) => {
                self.unsettled.forget(group);
                self.transactions.remove(group).is_some()
            }
            body => match (self.groups.get_mut(group), self.classic.get_mut(group)) {
                (Some(group), _) => group.apply(body),
                (None, Some(group)) => {
                    self.offset_bytes -= group.offset_bytes;
                    let fits = group.apply(body);
                    self.offset_bytes += group.offset_bytes;
                    fits
                }
                (None, None) => false,
            },
        }
    }

    fn remove(&mut self, group: &str) -> bool {
        let classic = self.classic.remove(group);
        if let Some(gone) = &classic {
            self.offset_bytes -= gone.offset_bytes;
        }
        self.groups.remove(group).is_some() || classic.is_some()
    }
}

/// What a replay saw, for the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayReport {
    /// Events read.
    pub events: u64,
    /// Whole snapshots among them.
    pub snapshots: u64,
    /// Events that did not fit the state: normal before the first whole snapshot of a trimmed
    /// stream, a sign of damage after it.
    pub ignored: u64,
    /// Records that are no events; see [`Replay::pass_over`].
    pub passed_over: u64,
    /// Consumer groups at the end.
    pub groups: usize,
}

/// Builds a [`Coordinator`] from the events of its streamlet, in their order.
///
/// A whole snapshot replaces what was read before it. One that a crash cut short is ignored.
#[derive(Debug, Default)]
pub struct Replay {
    state: State,
    partial: Option<Partial>,
    last_snapshot: u64,
    report: ReplayReport,
}

#[derive(Debug)]
struct Partial {
    id: u64,
    events: u64,
    /// Records passed over since it began: events of it, or not.
    passed_over: u64,
    state: State,
}

impl Replay {
    /// Nothing read yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next event.
    pub fn apply(&mut self, event: &Event) {
        self.report.events += 1;
        if !event.is_snapshot() {
            self.partial = None;
            let fits = self.state.apply(&event.group, &event.body);
            self.report.ignored += u64::from(!fits);
            return;
        }
        self.last_snapshot = self.last_snapshot.max(event.snapshot);
        match &event.body {
            Body::SnapshotBegun(_) => {
                self.partial = Some(Partial {
                    id: event.snapshot,
                    events: 0,
                    passed_over: 0,
                    state: State::default(),
                });
            }
            Body::SnapshotEnded(ended) => {
                if let Some(partial) = self.partial.take()
                    && partial.id == event.snapshot
                    && (partial.events..=partial.events + partial.passed_over)
                        .contains(&ended.events)
                {
                    self.state = partial.state;
                    self.report.snapshots += 1;
                }
            }
            body => match &mut self.partial {
                Some(partial) if partial.id == event.snapshot => {
                    partial.events += 1;
                    partial.state.apply(&event.group, body);
                }
                _ => self.report.ignored += 1,
            },
        }
    }

    /// Takes a record that is no event, or a batch that cannot be read: it says nothing that could be
    /// kept, and whatever else there is counts. A snapshot around it is whole without it.
    pub fn pass_over(&mut self) {
        self.report.passed_over += 1;
        if let Some(partial) = &mut self.partial {
            partial.passed_over += 1;
        }
    }

    /// The coordinator as of the last event. Every session gets its full time from `now_ms` on.
    pub fn finish(mut self, limits: Limits, now_ms: u64) -> (Coordinator, ReplayReport) {
        self.report.groups = self.state.groups.len() + self.state.classic.len();
        let coordinator = Coordinator::from_state(limits, self.state, self.last_snapshot, now_ms);
        (coordinator, self.report)
    }
}
