//! Reading closed groups from replicas: in the reader's own rack, or from another broker while the
//! owner is away.
//!
//! Any broker tells which closed groups hold a lane's records from an ordinal on, and which brokers hold replicas.
//! A source that is sent there asks batch by batch; whatever is refused, or not there, it asks the owner
//! for. Lanes of which a generation may end are read from owners alone: only they know where.

use std::sync::Arc;
use std::time::Duration;

use kera_protocol::v1;
use kera_rpc::Client;
use tokio::time::Instant;

use super::After;
use super::replicas::{Range, ranges};
use super::source::{Phase, Source};
use super::state::{Link, State};

/// Questions for replicas under way at once.
const LOOKS: usize = 16;
/// Shortest time between two questions for one source.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// A source with a rack that is behind asks again after so long, also if there was nothing in its rack before.
const LOOK_ANEW: Duration = Duration::from_secs(60);
/// How often sources are gone through for that.
const GO_THROUGH: Duration = Duration::from_secs(2);
/// A broker that has not answered by then is not waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

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
        let answer = client.call_once(ANSWER_WITHIN, request).await;
        if let Err(error) = &answer {
            tracing::debug!(%error, "which brokers hold replicas is not known");
        }
        (self.key, answer.ok())
    }
}

impl State {
    /// Decides where a source reads on: the address of a holder, or `None` for the owner. Nobody else is
    /// asked before the owner is known: it may be the nearest.
    pub(super) fn detour(&self, source: &Source) -> Option<Arc<str>> {
        let owner = source.owner.as_ref()?;
        let range = source.replicas.range(source.next.ordinal)?;
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
        let mut ahead = source
            .replicas
            .ranges
            .iter()
            .filter(|range| range.first > at);
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
                .replicas
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

    /// The questions for replicas that are to be asked now; when to look again, if it is too early.
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
            let replicas = &source.replicas;
            if source.phase != Phase::Idle
                || replicas.looking
                || source.spec.lane_generation.is_some()
            {
                continue;
            }
            let at = source.next.ordinal;
            let is_stranded = self.is_away(source) && self.detour(source).is_none();
            if !(replicas.wanted || replicas.is_exhausted(at) && self.rack.is_some() || is_stranded)
            {
                continue;
            }
            match replicas.not_before.filter(|at| *at > now) {
                Some(at) => wake = Some(wake.map_or(at, |wake| wake.min(at))),
                None => ask.push(*key),
            }
            if self.looks_under_way + ask.len() >= LOOKS {
                break;
            }
        }
        let anew = self.take_those_to_look_anew(now, LOOKS - self.looks_under_way - ask.len());
        ask.extend(anew);
        if let Some(at) = self.anew_at {
            wake = Some(wake.map_or(at, |wake| wake.min(at)));
        }
        for key in ask {
            let Some(source) = self.sources.get_mut(&key) else {
                continue;
            };
            source.replicas.looking = true;
            source.replicas.anew_at = None;
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

    /// Sources, at most so many, that read from their owners what replicas in the reader's rack may have by now.
    fn take_those_to_look_anew(&mut self, now: Instant, most: usize) -> Vec<u64> {
        if self.rack.is_none() || self.anew_at.is_some_and(|at| at > now) {
            return Vec::new();
        }
        self.anew_at = Some(now + GO_THROUGH);
        let due = self.sources.iter().filter(|(_, source)| {
            let replicas = &source.replicas;
            matches!(source.phase, Phase::Asked | Phase::Subscribed)
                && source.detour.is_none()
                && source.spec.lane_generation.is_none()
                && source.next.ordinal < source.head
                && !replicas.looking
                && replicas.anew_at.is_some_and(|at| at <= now)
        });
        due.map(|(key, _)| *key).take(most).collect()
    }

    /// The owner of a source has changed, and so may have what else is true of its replicas.
    pub(super) fn owner_changed(&mut self, key: u64) {
        if let Some(source) = self.sources.get_mut(&key)
            && source.replicas.anew_at.is_some()
        {
            source.replicas.anew_at = Some(Instant::now());
            self.anew_at = None;
        }
    }

    /// An answer to a question for replicas.
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
        let replicas = &mut source.replicas;
        replicas.looking = false;
        replicas.wanted = false;
        replicas.not_before = Some(Instant::now() + LOOK_AGAIN);
        replicas.anew_at = Some(Instant::now() + LOOK_ANEW);
        replicas.refused.clear();
        match answer {
            Some(found) => {
                replicas.more = !found.groups.is_empty();
                replicas.ranges = ranges(&found, rack.as_deref());
            }
            None => {
                replicas.ranges.clear();
                replicas.more = false;
            }
        }
        // What the owner would push is nearer elsewhere.
        let source = self.sources.get(&key);
        if source.is_some_and(|s| s.phase == Phase::Subscribed && self.detour(s).is_some()) {
            self.unsubscribe(key, after);
            self.back_to_idle(key, after);
        }
        self.ask_idle(after);
    }

    /// A broker that was asked for a copy did not give it: another one is asked, or the owner.
    pub(super) fn refused(&mut self, key: u64, after: &mut After) {
        let Some(source) = self.sources.get_mut(&key) else {
            return;
        };
        if let Some(address) = source.detour.take()
            && let Some(range) = source.replicas.range(source.next.ordinal)
        {
            let first = range.first;
            source.replicas.refused.insert((first, address));
        }
        source.phase = Phase::Idle;
        source.round = source.round.wrapping_add(1);
        self.idle.push_back(key);
        after.drive = true;
    }
}

#[cfg(test)]
mod tests {
    use kera_protocol::ids::{LaneId, LaneKey, Ordinal, StreamId, StreamletId};
    use kera_protocol::v1::Cursor;

    use super::*;
    use crate::config::FetchSettings;
    use crate::fetch::SourceSpec;

    /// A source with a rack that reads from its owner: there was nothing in its rack.
    fn at_its_owner(head: Ordinal) -> (State, u64) {
        let mut state = State::new(FetchSettings {
            rack: Some("a".into()),
            ..FetchSettings::default()
        });
        state.owners = vec!["owner:1".into()];
        let spec = SourceSpec {
            tag: 1,
            life: 0,
            lane: LaneKey {
                stream: StreamId::random(),
                streamlet: StreamletId(0),
                lane: LaneId(0),
            },
            from: Cursor::default(),
            end: Ordinal::MAX,
            lane_generation: None,
            push: true,
            slices: None,
        };
        let key = state.add(vec![spec], &mut After::default())[0];
        assert_eq!(state.looks(Instant::now()).0.len(), 1, "it asks at first");
        let nothing = v1::FindCopiesResponse::default();
        state.looked(key, Some(nothing), &mut After::default());
        state.idle.clear();
        let source = state.sources.get_mut(&key).expect("it is added");
        source.phase = Phase::Subscribed;
        source.head = head;
        (state, key)
    }

    fn near() -> v1::FindCopiesResponse {
        v1::FindCopiesResponse {
            groups: vec![v1::GroupInfo {
                end_ordinal: 50,
                holders: vec![2],
                ..v1::GroupInfo::default()
            }],
            brokers: vec![v1::CopyHolder {
                broker: 2,
                address: "near:1".into(),
                rack: "a".into(),
            }],
        }
    }

    #[test]
    fn a_source_that_is_behind_looks_again_after_a_while_and_leaves_its_owner_for_what_is_near() {
        let (mut state, key) = at_its_owner(100);
        let now = Instant::now();
        assert!(state.looks(now).0.is_empty());
        assert!(state.looks(now + LOOK_ANEW / 2).0.is_empty(), "too early");
        let later = now + LOOK_ANEW + GO_THROUGH;
        assert_eq!(state.looks(later).0.len(), 1);
        assert!(state.looks(later + GO_THROUGH).0.is_empty(), "it is asked");
        state.looked(key, Some(near()), &mut After::default());
        let source = &state.sources[&key];
        assert_eq!(
            (source.phase, source.detour.as_deref()),
            (Phase::Idle, Some("near:1"))
        );
        assert!(state.idle.contains(&key));
    }

    #[test]
    fn a_source_that_has_all_does_not_look_again_and_one_whose_owner_has_changed_does_at_once() {
        let (mut state, _) = at_its_owner(0);
        let later = Instant::now() + 2 * LOOK_ANEW;
        assert!(state.looks(later).0.is_empty());
        let (mut state, key) = at_its_owner(100);
        assert!(state.looks(Instant::now()).0.is_empty());
        state.set_owners(vec!["other:1".into()], &mut After::default());
        state.idle.clear();
        state.sources.get_mut(&key).expect("it is added").phase = Phase::Asked;
        assert_eq!(state.looks(Instant::now()).0.len(), 1);
    }
}
