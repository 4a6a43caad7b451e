//! From names and patterns to streams.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use kera_protocol::ids::StreamId;
use regex::{Regex, RegexBuilder};

use super::assign::Streams;
use super::state::{ConsumerGroup, ConsumerMember, record_bytes};
use crate::classic::Fault;
use crate::view::LaneView;

/// Most bytes of a pattern that was made ready.
const PATTERN_BYTES: usize = 64 << 10;
/// Bytes of memory for each byte of a record of partitions: they stand in the target, and with the member that has them.
const MEMORY: usize = 6;

/// What the members of a group subscribe to, as streams that exist.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Subscribed {
    /// Partitions of each stream that anyone subscribes to.
    pub(super) partitions: BTreeMap<StreamId, u32>,
    pub(super) by_member: BTreeMap<String, Streams>,
}

/// Names that patterns match, by pattern and user, so that they are matched again only when there are other names.
#[derive(Debug, Default)]
pub(crate) struct Matches(BTreeMap<(String, Option<String>), Matched>);

#[derive(Debug)]
struct Matched {
    pattern: Regex,
    /// Of the names that were looked at.
    names: u64,
    found: Arc<BTreeSet<String>>,
}

/// Topics that users may see.
#[derive(Debug, Default)]
pub(crate) struct Seen(BTreeMap<Option<String>, (u64, Arc<[String]>)>);

impl Seen {
    fn of(&mut self, member: &ConsumerMember, view: &dyn LaneView) -> (u64, Arc<[String]>) {
        let seen = self.0.entry(member.user.clone()).or_insert_with(|| {
            let host = member.client_host.trim_start_matches('/');
            let names = view.topics_seen_by(member.user.as_deref(), host);
            let mut hasher = DefaultHasher::new();
            names.hash(&mut hasher);
            (hasher.finish(), names.into())
        });
        seen.clone()
    }
}

impl Matches {
    /// Names that a member's pattern matches as a whole.
    fn of(
        &mut self,
        member: &ConsumerMember,
        seen: &mut Seen,
        view: &dyn LaneView,
    ) -> Arc<BTreeSet<String>> {
        let (hash, names) = seen.of(member, view);
        let key = (member.pattern.clone(), member.user.clone());
        let known = self.0.get(&key);
        if let Some(known) = known.filter(|known| known.names == hash) {
            return known.found.clone();
        }
        // It was read when the member joined.
        let Ok(pattern) = known.map_or_else(|| read(&member.pattern), |of| Ok(of.pattern.clone()))
        else {
            return Arc::default();
        };
        let found = names.iter().filter(|name| pattern.is_match(name));
        let found: Arc<BTreeSet<String>> = Arc::new(found.cloned().collect());
        let matched = Matched {
            pattern,
            names: hash,
            found: found.clone(),
        };
        self.0.insert(key, matched);
        found
    }

    /// Forgets patterns that no member has any more.
    fn keep(&mut self, group: &ConsumerGroup) {
        let members = group.members.values();
        let used: BTreeSet<_> = members.map(|m| (&m.pattern, &m.user)).collect();
        self.0
            .retain(|(pattern, user), _| used.contains(&(pattern, user)));
    }
}

/// Reads a pattern, in the syntax of RE2.
///
/// # Errors
/// [`Fault::InvalidPattern`] says what is wrong with it.
pub(super) fn read(pattern: &str) -> Result<Regex, Fault> {
    RegexBuilder::new(&format!(r"\A(?:{pattern})\z"))
        .size_limit(PATTERN_BYTES)
        .dfa_size_limit(PATTERN_BYTES)
        .build()
        .map_err(|error| Fault::InvalidPattern(error.to_string()))
}

impl Subscribed {
    /// What a group's members subscribe to. Streams beyond `max_bytes` of a member's record are left out.
    pub(super) fn of(
        group: &ConsumerGroup,
        matches: &mut Matches,
        seen: &mut Seen,
        view: &dyn LaneView,
        max_bytes: usize,
    ) -> Self {
        matches.keep(group);
        let mut subscribed = Self::default();
        // Most members subscribe to the same.
        let mut kinds: BTreeMap<(&BTreeSet<String>, &String, &Option<String>), Streams> =
            BTreeMap::new();
        for (id, member) in &group.members {
            let kind = (&member.topics, &member.pattern, &member.user);
            let streams = kinds.entry(kind).or_insert_with(|| {
                let matched = match member.pattern.is_empty() {
                    true => Arc::default(),
                    false => matches.of(member, seen, view),
                };
                let names = member.topics.iter().chain(matched.iter());
                let shapes = names.filter_map(|name| view.stream_by_name(name));
                let streams = shapes.map(|shape| {
                    subscribed.partitions.insert(shape.id, shape.partitions());
                    shape.id
                });
                Arc::new(streams.collect())
            });
            subscribed.by_member.insert(id.clone(), streams.clone());
        }
        subscribed.keep_within(max_bytes);
        subscribed
    }

    /// About the memory that target and members' partitions take.
    pub(super) fn memory(&self) -> usize {
        self.bytes().saturating_mul(MEMORY)
    }

    /// About the bytes of a member's record that has everything.
    pub(super) fn bytes(&self) -> usize {
        record_bytes(self.partitions.values().copied())
    }

    fn keep_within(&mut self, max_bytes: usize) {
        if self.bytes() <= max_bytes {
            return;
        }
        let all = self.partitions.len();
        let mut bytes = 0;
        self.partitions.retain(|_, partitions| {
            bytes += record_bytes(std::iter::once(*partitions));
            bytes <= max_bytes
        });
        tracing::warn!(
            topics = all,
            served = self.partitions.len(),
            "a consumer group subscribes to more topics than one member may hold; it is given some of them: subscribe to fewer"
        );
    }
}
