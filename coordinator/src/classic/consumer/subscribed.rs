//! From names and patterns to streams.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use kera_protocol::ids::StreamId;
use regex::bytes::{Regex, RegexBuilder};

use super::assign::Streams;
use super::state::{ConsumerGroup, ConsumerMember, record_bytes};
use crate::classic::Fault;
use crate::view::LaneView;

/// Bytes that a pattern may take when it is ready to match. The first that is enough counts, the last is the limit.
const PATTERN_BYTES: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];
/// Bytes of a pattern times bytes of topics' names: what matching may cost, as it holds up the coordinator. Patterns of the
/// first size are always matched.
const MATCH_WORK: usize = 4 << 30;
/// Bytes of memory for each byte of a record of partitions: they stand in the target, and with the member that has them.
const MEMORY: usize = 6;
/// Bytes of memory for a stream in the set of what a member subscribes to.
const SUBSCRIBED_BYTES: usize = 32;

/// What the members of a group subscribe to, as streams that exist.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Subscribed {
    /// Partitions of each stream that anyone subscribes to.
    pub(super) partitions: BTreeMap<StreamId, u32>,
    pub(super) by_member: BTreeMap<String, Streams>,
    /// Memory of the sets of `by_member`; members that subscribe to the same share theirs.
    sets: usize,
}

/// Names that patterns match, by pattern, so that they are matched again only when there are other names.
#[derive(Debug, Default)]
pub(crate) struct Matches(BTreeMap<String, Matched>);

#[derive(Debug)]
struct Matched {
    pattern: Pattern,
    /// Places among the names that were looked at, by the hash of these: not all members see the same.
    found: BTreeMap<u64, Arc<[u32]>>,
}

/// Who sees names: a user, and from where, as far as that makes a difference.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Viewer {
    user: Option<String>,
    host: String,
}

impl Viewer {
    fn of(member: &ConsumerMember, view: &dyn LaneView) -> Self {
        let host = member.client_host.trim_start_matches('/');
        let host = if view.host_matters(host) { host } else { "" };
        Self {
            user: member.user.clone(),
            host: host.to_owned(),
        }
    }
}

/// A pattern that is ready to match.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    regex: Regex,
    /// What it takes at most.
    bytes: usize,
}

/// Topics that may be seen, by who sees them.
#[derive(Debug, Default)]
pub(crate) struct Seen(BTreeMap<Viewer, SeenNames>);

#[derive(Clone, Debug)]
struct SeenNames {
    hash: u64,
    names: Arc<[String]>,
}

impl Seen {
    fn of(&mut self, member: &ConsumerMember, view: &dyn LaneView) -> SeenNames {
        let viewer = Viewer::of(member, view);
        if let Some(seen) = self.0.get(&viewer) {
            return seen.clone();
        }
        let names = view.topics_seen_by(viewer.user.as_deref(), &viewer.host);
        let mut hasher = DefaultHasher::new();
        names.hash(&mut hasher);
        let hash = hasher.finish();
        // Members at many addresses mostly see the same.
        let same = self.0.values().find(|known| known.hash == hash);
        let names = match same.filter(|known| *known.names == names[..]) {
            Some(known) => known.names.clone(),
            None => names.into(),
        };
        let seen = SeenNames { hash, names };
        self.0.insert(viewer, seen.clone());
        seen
    }

    /// Whether a member's pattern may be matched against what it may see.
    pub(super) fn check(
        &mut self,
        member: &ConsumerMember,
        view: &dyn LaneView,
    ) -> Result<(), Fault> {
        if member.pattern.is_empty() {
            return Ok(());
        }
        let pattern = read(&member.pattern)?;
        pattern.check_work(&self.of(member, view).names)
    }
}

impl Pattern {
    /// Refuses to match names if that may take long.
    fn check_work(&self, names: &[String]) -> Result<(), Fault> {
        let bytes: usize = names.iter().map(String::len).sum();
        let work = self.bytes.saturating_mul(bytes);
        match self.bytes <= PATTERN_BYTES[0] || work <= MATCH_WORK {
            true => Ok(()),
            false => Err(Fault::InvalidPattern(format!(
                "it is too large to be matched against the names of {} topics: make it shorter, count fewer repetitions, or subscribe by name",
                names.len()
            ))),
        }
    }
}

impl Matches {
    /// Names that a member's pattern matches as a whole: places among those that it may see.
    fn of(&mut self, member: &ConsumerMember, seen: &SeenNames) -> Arc<[u32]> {
        if !self.0.contains_key(&member.pattern) {
            // It was read when the member joined.
            let Ok(pattern) = read(&member.pattern) else {
                return Arc::default();
            };
            let found = BTreeMap::new();
            let matched = Matched { pattern, found };
            self.0.insert(member.pattern.clone(), matched);
        }
        let Some(Matched { pattern, found }) = self.0.get_mut(&member.pattern) else {
            return Arc::default();
        };
        let find = || {
            let names = seen.names.iter().zip(0..);
            let found = names.filter(|(name, _)| pattern.regex.is_match(name.as_bytes()));
            found.map(|(_, place)| place).collect()
        };
        found.entry(seen.hash).or_insert_with(find).clone()
    }

    /// Takes what others know, and these do not.
    pub(super) fn learn(&mut self, others: Self) {
        for (pattern, matched) in others.0 {
            match self.0.entry(pattern) {
                Entry::Vacant(place) => drop(place.insert(matched)),
                Entry::Occupied(mut known) => known.get_mut().found.extend(matched.found),
            }
        }
    }

    pub(super) fn has(&self, member: &ConsumerMember) -> bool {
        member.pattern.is_empty() || self.0.contains_key(&member.pattern)
    }

    /// About the memory that they take: of each pattern itself, what matching it takes, and places.
    pub(super) fn memory(&self) -> usize {
        let patterns = self.0.iter().map(|(pattern, matched)| {
            let found: usize = matched.found.values().map(|found| found.len()).sum();
            pattern.len() + 2 * matched.pattern.bytes + found * size_of::<u32>()
        });
        patterns.sum()
    }

    /// Forgets patterns that no member has any more, and what was found among names that none of them sees.
    fn keep(&mut self, group: &ConsumerGroup, seen: &Seen) {
        let members = group.members.values();
        let used: BTreeSet<_> = members.map(|member| &member.pattern).collect();
        let names: BTreeSet<_> = seen.0.values().map(|seen| seen.hash).collect();
        self.0.retain(|pattern, matched| {
            matched.found.retain(|of, _| names.contains(of));
            used.contains(pattern)
        });
    }
}

/// Reads a pattern, in the syntax of RE2.
///
/// # Errors
/// [`Fault::InvalidPattern`] says what is wrong with it.
pub(super) fn read(pattern: &str) -> Result<Pattern, Fault> {
    // Names of topics are ASCII, and RE2's classes are.
    let build = |text: &str, bytes: usize| {
        let mut builder = RegexBuilder::new(text);
        builder.unicode(false).size_limit(bytes).build()
    };
    let invalid = |error: regex::Error| Fault::InvalidPattern(error.to_string());
    let [_, _, limit] = PATTERN_BYTES;
    // By itself as well: with a parenthesis too many it would reach out of those around it.
    build(pattern, limit).map_err(invalid)?;
    let whole = format!(r"\A(?:{pattern})\z");
    let mut refusal = Fault::InvalidPattern(String::new());
    for bytes in PATTERN_BYTES {
        match build(&whole, bytes) {
            Ok(regex) => return Ok(Pattern { regex, bytes }),
            Err(error) => refusal = invalid(error),
        }
    }
    Err(refusal)
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
        let mut subscribed = Self::default();
        // Most members subscribe to the same.
        let mut kinds: BTreeMap<(&BTreeSet<String>, &String, Option<u64>), Streams> =
            BTreeMap::new();
        for (id, member) in &group.members {
            let of_viewer = (!member.pattern.is_empty()).then(|| seen.of(member, view));
            let hash = of_viewer.as_ref().map(|seen| seen.hash);
            let kind = (&member.topics, &member.pattern, hash);
            let streams = kinds.entry(kind).or_insert_with(|| {
                let mut names: Vec<&String> = member.topics.iter().collect();
                if let Some(of_viewer) = &of_viewer {
                    let places = matches.of(member, of_viewer);
                    let places = places.iter().map(|place| *place as usize);
                    names.extend(places.filter_map(|place| of_viewer.names.get(place)));
                }
                let shapes = names
                    .into_iter()
                    .filter_map(|name| view.stream_by_name(name));
                let streams = shapes.map(|shape| {
                    subscribed.partitions.insert(shape.id, shape.partitions());
                    shape.id
                });
                let streams: BTreeSet<StreamId> = streams.collect();
                subscribed.sets += streams.len() * SUBSCRIBED_BYTES;
                Arc::new(streams)
            });
            subscribed.by_member.insert(id.clone(), streams.clone());
        }
        matches.keep(group, seen);
        subscribed.keep_within(max_bytes);
        subscribed
    }

    /// About the memory that target and members' partitions take, and what members subscribe to.
    pub(super) fn memory(&self) -> usize {
        self.bytes().saturating_mul(MEMORY) + self.sets
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_patterns_are_not_matched_against_many_names() {
        let names = |count: usize| -> Vec<String> {
            let names = (0..count).map(|n| format!("some-topic-of-32-bytes-{n:09}"));
            names.collect()
        };
        let small = read("orders-[a-z]+-v[0-9]{1,3}").unwrap();
        assert_eq!(small.bytes, PATTERN_BYTES[0]);
        assert_eq!(small.check_work(&names(200_000)), Ok(()));
        let mut growing = (1..).map_while(|n| read(&format!("(?:.?){{{}}}x", 20 * n)).ok());
        let large = growing.find(|pattern| pattern.bytes == PATTERN_BYTES[2]);
        let large = large.expect("one of the largest that are taken");
        assert_eq!(large.check_work(&names(2_000)), Ok(()));
        let refused = large.check_work(&names(3_000));
        assert!(matches!(refused, Err(Fault::InvalidPattern(_))));
    }
}
