//! A group of the consumer protocol as it lives: sessions, and what subscriptions came to. Nothing of it is kept.

use std::collections::BTreeMap;

use super::state::{ConsumerGroup, ConsumerMember};
use super::subscribed::{Matches, Subscribed};

#[derive(Debug, Default)]
pub(crate) struct LiveConsumer {
    pub(super) sessions: BTreeMap<String, Session>,
    /// What the target was computed for; `None` if that was by a coordinator before this one.
    pub(super) subscribed: Option<Subscribed>,
    /// What members' patterns match.
    pub(super) matches: Matches,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    pub(super) seen_ms: u64,
    /// While it has something to give back: until when it may take for that.
    pub(super) revoke_until_ms: Option<u64>,
}

impl LiveConsumer {
    /// Sessions, and times to give back, begin now.
    pub(in crate::classic) fn from_group(group: &ConsumerGroup, now_ms: u64) -> Self {
        let members = group.members.iter();
        let sessions = members.map(|(id, member)| (id.clone(), Session::new(member, now_ms)));
        Self {
            sessions: sessions.collect(),
            ..Self::default()
        }
    }

    pub(in crate::classic) fn members(&self) -> usize {
        self.sessions.len()
    }

    /// About the memory of what subscriptions came to.
    pub(super) fn memory(&self) -> usize {
        self.subscribed.as_ref().map_or(0, Subscribed::memory) + self.matches.memory()
    }

    /// When a member was heard of last.
    pub(in crate::classic) fn seen_ms(&self, member: &str) -> Option<u64> {
        self.sessions.get(member).map(|session| session.seen_ms)
    }
}

impl Session {
    pub(super) fn new(member: &ConsumerMember, now_ms: u64) -> Self {
        let revokes = !member.revoking.is_empty();
        Self {
            seen_ms: now_ms,
            revoke_until_ms: revokes.then(|| now_ms.saturating_add(member.rebalance_ms.into())),
        }
    }
}
