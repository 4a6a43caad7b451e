//! Reading closed groups from copies: in the reader's own rack, or from whoever has one while the
//! owner is away.
//!
//! Any broker tells which closed groups hold a lane's records from an ordinal on, and who holds copies.
//! A source that is sent there asks batch by batch; whatever is refused, or not there, it asks the owner
//! for. Lanes of which a generation may end are read from owners alone: only they know where.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kera_protocol::ids::Ordinal;
use kera_protocol::v1;
use kera_rpc::Client;
use tokio::time::Instant;

use super::After;
use super::source::{Phase, Source};
use super::state::{Link, State};

/// Questions for copies under way at once.
const LOOKS: usize = 16;
/// Shortest time between two questions for one source.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// A broker that has not answered by then is not waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// Records of one closed group.
#[derive(Clone, Debug)]
struct Range {
    first: Ordinal,
    /// Where the next begins, as far as is known.
    end: Ordinal,
    /// Who holds them, nearest first: the address, and whether it is in the reader's rack.
    holders: Vec<(Arc<str>, bool)>,
}

impl Range {
    /// Whether this one is among the holders in the reader's rack.
    fn is_near(&self, holder: &Arc<str>) -> bool {
        self.holders.iter().any(|(a, near)| *near && a == holder)
    }
}

/// What a source knows of copies.
#[derive(Debug, Default)]
pub(super) struct Copies {
    ranges: Vec<Range>,
    /// Who did not give which range, by its first ordinal.
    refused: BTreeSet<(Ordinal, Arc<str>)>,
    /// There may be more groups behind those known.
    more: bool,
    /// To be asked for before the owner is.
    pub(super) wanted: bool,
    looking: bool,
    not_before: Option<Instant>,
}

impl Copies {
    /// Of a source that begins, with or without a rack.
    pub(super) fn new(wanted: bool) -> Self {
        Self {
            wanted,
            ..Self::default()
        }
    }

    /// Nothing is known any more: the source goes on elsewhere.
    pub(super) fn forget(&mut self, wanted: bool) {
        let looking = self.looking;
        *self = Self {
            looking,
            ..Self::new(wanted)
        };
    }

    fn range(&self, at: Ordinal) -> Option<&Range> {
        let mut ranges = self.ranges.iter();
        ranges.find(|range| range.first <= at && at < range.end)
    }

    fn is_exhausted(&self, at: Ordinal) -> bool {
        self.more && self.ranges.last().is_some_and(|last| at >= last.end)
    }
}

/// A question to be asked for a source.
pub(super) struct Look {
    key: u64,
    request: v1::FindCopiesRequest,
}

impl Look {
    /// Asks the broker in use, once: whoever looks for owners finds another when that one is gone.
    pub(super) async fn ask(
        self,
        client: &Client,
        stream: String,
    ) -> (u64, Option<v1::FindCopiesResponse>) {
        let request = v1::FindCopiesRequest {
            name: stream,
            ..self.request
        };
        let asked = async {
            let mut stub = client.streams().ok()?;
            let answer = stub.find_copies(request).await;
            answer
                .inspect_err(|error| tracing::debug!(%error, "who holds copies is not known"))
                .ok()
        };
        let answer = tokio::time::timeout(ANSWER_WITHIN, asked).await;
        let answer = answer.ok().flatten();
        (self.key, answer.map(|answer| answer.into_inner()))
    }
}

impl State {
    /// Decides where a source reads on: the address of a holder, or `None` for the owner. Nobody else is
    /// asked before the owner is known: it may be the nearest.
    pub(super) fn detour(&self, source: &Source) -> Option<Arc<str>> {
        let owner = source.owner.as_ref()?;
        let range = source.copies.range(source.next.ordinal)?;
        let owner_is_away = self.is_away(source);
        // The owner has all, so it is asked if it is no further away.
        if range.is_near(owner) && !owner_is_away {
            return None;
        }
        let mut holders = range.holders.iter();
        let found =
            holders.find(|(a, near)| (*near || owner_is_away) && self.is_usable(source, range, a));
        found.map(|(address, _)| address.clone())
    }

    /// Whether a later range is to be had in the reader's rack: the owner is asked batch by batch until
    /// then, since it would push what follows too.
    pub(super) fn expects_copies(&self, source: &Source) -> bool {
        let Some(owner) = &source.owner else {
            return false;
        };
        let at = source.next.ordinal;
        let mut ahead = source.copies.ranges.iter().filter(|range| range.first > at);
        ahead.any(|range| {
            let mut holders = range.holders.iter();
            !range.is_near(owner)
                && holders.any(|(a, near)| *near && self.is_usable(source, range, a))
        })
    }

    /// Whether a holder may be asked for a range in the owner's place.
    fn is_usable(&self, source: &Source, range: &Range, address: &Arc<str>) -> bool {
        let is_down =
            matches!(self.links.get(address), Some(Link::Down { attempt, .. }) if *attempt > 0);
        source.owner.as_ref() != Some(address)
            && !is_down
            && !source
                .copies
                .refused
                .contains(&(range.first, address.clone()))
    }

    /// The owner was not reached when it was last tried.
    fn is_away(&self, source: &Source) -> bool {
        let link = source
            .owner
            .as_ref()
            .and_then(|owner| self.links.get(owner));
        matches!(link, Some(Link::Down { attempt, .. }) if *attempt > 0)
    }

    /// The questions for copies that are to be asked now; when to look again, if it is too early.
    pub(super) fn looks(&mut self, now: Instant) -> (Vec<Look>, Option<Instant>) {
        let mut looks = Vec::new();
        let mut wake: Option<Instant> = None;
        if self.looks_under_way >= LOOKS {
            return (looks, wake);
        }
        let mut ask = Vec::new();
        for key in &self.idle {
            let Some(source) = self.sources.get(key) else {
                continue;
            };
            let copies = &source.copies;
            if source.phase != Phase::Idle
                || copies.looking
                || source.spec.lane_generation.is_some()
            {
                continue;
            }
            let at = source.next.ordinal;
            let is_stranded = self.is_away(source) && self.detour(source).is_none();
            if !(copies.wanted || copies.is_exhausted(at) && self.rack.is_some() || is_stranded) {
                continue;
            }
            match copies.not_before.filter(|at| *at > now) {
                Some(at) => wake = Some(wake.map_or(at, |wake| wake.min(at))),
                None => ask.push(*key),
            }
            if self.looks_under_way + ask.len() >= LOOKS {
                break;
            }
        }
        for key in ask {
            let Some(source) = self.sources.get_mut(&key) else {
                continue;
            };
            source.copies.looking = true;
            self.looks_under_way += 1;
            looks.push(Look {
                key,
                request: v1::FindCopiesRequest {
                    name: String::new(),
                    streamlet: source.spec.lane.streamlet.0,
                    lane: source.spec.lane.lane.0,
                    ordinal: source.next.ordinal,
                },
            });
        }
        (looks, wake)
    }

    /// An answer to a question for copies.
    pub(super) fn looked(
        &mut self,
        key: u64,
        answer: Option<v1::FindCopiesResponse>,
        after: &mut After,
    ) {
        self.looks_under_way = self.looks_under_way.saturating_sub(1);
        after.drive = true;
        let rack = self.rack.clone();
        let Some(source) = self.sources.get_mut(&key) else {
            return;
        };
        let copies = &mut source.copies;
        copies.looking = false;
        copies.wanted = false;
        copies.not_before = Some(Instant::now() + LOOK_AGAIN);
        copies.refused.clear();
        match answer {
            Some(found) => {
                copies.more = !found.groups.is_empty();
                copies.ranges = ranges(&found, rack.as_deref());
            }
            None => {
                copies.ranges.clear();
                copies.more = false;
            }
        }
        self.ask_idle(after);
    }

    /// A broker that was asked for a copy did not give it: another one is asked, or the owner.
    pub(super) fn refused(&mut self, key: u64, after: &mut After) {
        let Some(source) = self.sources.get_mut(&key) else {
            return;
        };
        if let Some(address) = source.detour.take()
            && let Some(range) = source.copies.range(source.next.ordinal)
        {
            let first = range.first;
            source.copies.refused.insert((first, address));
        }
        source.phase = Phase::Idle;
        source.round = source.round.wrapping_add(1);
        self.idle.push_back(key);
        after.drive = true;
    }
}

fn ranges(found: &v1::FindCopiesResponse, rack: Option<&str>) -> Vec<Range> {
    let begins = found.groups.iter().skip(1).map(|group| group.first_ordinal);
    let ends = begins.map(Some).chain(std::iter::once(None));
    let ranges = found.groups.iter().zip(ends).map(|(group, next)| {
        let of = |id: &u32| found.brokers.iter().find(|broker| broker.broker == *id);
        let mut holders: Vec<_> = group
            .holders
            .iter()
            .filter_map(of)
            .filter(|broker| !broker.address.is_empty())
            .map(|broker| {
                let near = rack.is_some_and(|rack| rack == broker.rack);
                (Arc::from(broker.address.as_str()), near)
            })
            .collect();
        holders.sort_by_key(|(_, near)| !near);
        Range {
            first: group.first_ordinal,
            end: next.unwrap_or(group.end_ordinal),
            holders,
        }
    });
    ranges.collect()
}
