//! All sources and connections, and what happens to them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use kera_protocol::ids::{Ordinal, StreamId};
use kera_protocol::v1::{self, Cursor};
use kera_rpc::{DataConnection, RetryPolicy};
use tokio::time::Instant;

use super::refused::Refused;
use super::source::{Phase, Source};
use super::{After, Popped, SourceSpec};
use crate::batch::Chunk;
use crate::config::FetchSettings;
use crate::error::ConsumeError;

/// Bits of a token that tell rounds of one source apart.
pub(super) const ROUND_BITS: u32 = 16;

#[derive(Debug)]
pub(super) enum Ready {
    Chunk(Chunk),
    /// Of a source, by its key.
    Failed(u64, ConsumeError),
}

/// A connection to a broker, or its absence.
#[derive(Debug)]
pub(super) enum Link {
    Connecting,
    Up {
        id: u64,
        connection: Arc<DataConnection>,
        subscriptions: HashMap<u32, u64>,
        /// Frames received when last looked at, and since when there are no more.
        heard: (u64, Instant),
    },
    Down {
        until: Instant,
        attempt: u32,
    },
}

pub(super) struct State {
    pub(super) settings: FetchSettings,
    pub(super) retry: RetryPolicy,
    pub(super) sources: HashMap<u64, Source>,
    pub(super) idle: VecDeque<u64>,
    pub(super) paused: BTreeSet<(Instant, u64)>,
    pub(super) ready: VecDeque<Ready>,
    pub(super) buffered: usize,
    /// Credit of all subscriptions.
    pub(super) granted: usize,
    pub(super) links: HashMap<Arc<str>, Link>,
    pub(super) last_key: u64,
    pub(super) last_subscription: u32,
    /// The reader's rack: closed groups are read from copies there.
    pub(super) rack: Option<Arc<str>>,
    /// When sources are gone through for those that ask again who holds copies.
    pub(super) anew_at: Option<Instant>,
    /// Questions for copies under way.
    pub(super) looks_under_way: usize,
    /// Owners of the streamlets, as last looked up.
    pub(super) owners: Vec<Arc<str>>,
    /// The stream that has the name since it was last looked at, or that none has it.
    pub(super) named: Option<Option<StreamId>>,
    pub(super) closed: bool,
    /// Brokers do not let the user in any more, which was not told yet.
    pub(super) refused: Option<Refused>,
    /// Owners may have changed: look before asking again.
    pub(super) refresh: bool,
    /// A look is under way.
    pub(super) looking: bool,
    /// When the next may begin.
    pub(super) look_not_before: Option<Instant>,
    /// When connections are next asked whether they still say anything.
    pub(super) listen_at: Option<Instant>,
}

impl State {
    pub(super) fn new(settings: FetchSettings) -> Self {
        Self {
            rack: settings.rack.clone(),
            anew_at: None,
            looks_under_way: 0,
            settings,
            retry: RetryPolicy::default(),
            sources: HashMap::new(),
            idle: VecDeque::new(),
            paused: BTreeSet::new(),
            ready: VecDeque::new(),
            buffered: 0,
            granted: 0,
            links: HashMap::new(),
            last_key: 0,
            last_subscription: 0,
            owners: Vec::new(),
            named: None,
            closed: false,
            refused: None,
            refresh: true,
            looking: false,
            look_not_before: None,
            listen_at: None,
        }
    }

    pub(super) fn buffered(&self) -> usize {
        self.buffered
    }

    pub(super) fn heads(&self) -> Vec<(u64, Ordinal, Ordinal)> {
        self.sources
            .values()
            .map(|source| (source.spec.tag, source.head, source.spec.end))
            .collect()
    }

    /// Adds sources, all before the first is asked for: its window depends on how many there are.
    pub(super) fn add(&mut self, specs: Vec<SourceSpec>, after: &mut After) -> Vec<u64> {
        let keys: Vec<u64> = specs
            .into_iter()
            .map(|spec| self.insert(spec, after))
            .collect();
        self.shrink(after);
        for key in &keys {
            self.ask(*key, after);
        }
        keys
    }

    fn insert(&mut self, spec: SourceSpec, after: &mut After) -> u64 {
        self.last_key += 1;
        let key = self.last_key;
        let owner = self.owners.get(spec.lane.streamlet.0 as usize).cloned();
        let mut source = Source::new(spec, owner);
        source.replicas.wanted = self.rack.is_some() && source.spec.lane_generation.is_none();
        if source.next.ordinal >= source.spec.end {
            source.phase = Phase::Ended;
            self.sources.insert(key, source);
            self.deliver(key, Bytes::new(), 0, true);
            after.ready = true;
            return key;
        }
        self.sources.insert(key, source);
        key
    }

    pub(super) fn remove(&mut self, key: u64, after: &mut After) {
        self.stop(key, after);
        self.sources.remove(&key);
    }

    /// Ends what is under way for a source, and drops what of it was not taken.
    pub(super) fn stop(&mut self, key: u64, after: &mut After) {
        let Some(source) = self.sources.get_mut(&key) else {
            return;
        };
        source.round = source.round.wrapping_add(1);
        source.untaken = 0;
        self.unsubscribe(key, after);
        self.withdraw(key);
        let mut dropped = 0;
        self.ready.retain(|ready| match ready {
            Ready::Chunk(chunk) if chunk.source == key => {
                dropped += chunk.body.len();
                false
            }
            _ => true,
        });
        self.buffered -= dropped;
        // There may be room for others, and nobody who takes anything and would find it.
        after.drive |= dropped > 0;
        self.paused.retain(|(_, paused)| *paused != key);
    }

    /// Tells the owner that a source's subscription, if it has one, is over.
    pub(super) fn unsubscribe(&mut self, key: u64, after: &mut After) {
        if let Some(source) = self.sources.get(&key)
            && source.phase == Phase::Subscribed
            && let Some(owner) = &source.owner
            && let Some(Link::Up {
                connection,
                subscriptions,
                ..
            }) = self.links.get_mut(owner)
            && subscriptions.remove(&source.subscription).is_some()
        {
            after.credits.push((
                connection.clone(),
                v1::CreditRequest {
                    subscription: source.subscription,
                    credit_bytes: 0,
                    unsubscribe: true,
                },
            ));
        }
    }

    pub(super) fn rewind(&mut self, key: u64, ordinal: Ordinal, after: &mut After) {
        self.stop(key, after);
        let has_rack = self.rack.is_some();
        if let Some(source) = self.sources.get_mut(&key) {
            source.next = Cursor {
                ordinal,
                ..Cursor::default()
            };
            // What arrived damaged is not read there again.
            match source.detour.take() {
                Some(_) => source.replicas.forget(false),
                None => {
                    let wanted = has_rack && source.spec.lane_generation.is_none();
                    source.replicas.forget(wanted);
                }
            }
            source.attempt += 1;
            let pause = self.retry.bound(source.attempt);
            self.pause(key, pause, after);
        }
    }

    pub(super) fn pop(&mut self, after: &mut After) -> Popped {
        let popped = loop {
            match self.ready.pop_front() {
                None => match self.refused.take() {
                    Some(refused) => break Popped::Failed(refused.error),
                    None => break Popped::Empty,
                },
                Some(Ready::Failed(key, error)) => {
                    if let Some(source) = self.sources.get_mut(&key) {
                        source.error_waits = false;
                    }
                    break Popped::Failed(error);
                }
                Some(Ready::Chunk(chunk)) => {
                    self.buffered -= chunk.body.len();
                    if self.sources.contains_key(&chunk.source) {
                        self.taken(&chunk, after);
                        break Popped::Chunk(chunk);
                    }
                }
            }
        };
        if self.buffered <= self.settings.memory_limit / 2 && !self.idle.is_empty() {
            self.ask_idle(after);
        }
        popped
    }

    /// Gives the broker credit for what was taken.
    fn taken(&mut self, chunk: &Chunk, after: &mut After) {
        let window = self.window();
        let Some(source) = self.sources.get_mut(&chunk.source) else {
            return;
        };
        source.untaken -= chunk.body.len();
        if source.phase != Phase::Subscribed {
            return;
        }
        let due = source.credit_due(window);
        if due > 0
            && let Some(owner) = &source.owner
            && let Some(Link::Up { connection, .. }) = self.links.get(owner)
        {
            source.credit += due;
            self.granted += due;
            after.credits.push((
                connection.clone(),
                v1::CreditRequest {
                    subscription: source.subscription,
                    credit_bytes: due as u64,
                    unsubscribe: false,
                },
            ));
        }
    }

    /// Bytes that each source may have under way and waiting.
    pub(super) fn window(&self) -> usize {
        Source::window(&self.settings, self.sources.len())
    }

    /// Bytes for which credit may still be given.
    pub(super) fn room(&self) -> usize {
        let all = self.window() * self.sources.len();
        let limit = self.settings.memory_limit.max(all);
        limit.saturating_sub(self.buffered + self.granted)
    }

    /// What a source's subscription, which is over, was given and did not use.
    pub(super) fn withdraw(&mut self, key: u64) {
        if let Some(source) = self.sources.get_mut(&key) {
            self.granted -= std::mem::take(&mut source.credit);
        }
    }

    /// Takes credit back from sources that were given more than a window is by now, so that there is room
    /// for those that were added. A broker cannot be told to forget some of it: they subscribe anew.
    fn shrink(&mut self, after: &mut After) {
        let window = self.window();
        if self.granted <= window {
            return;
        }
        let sources = self.sources.iter();
        let wide: Vec<u64> = sources
            .filter(|(_, source)| source.phase == Phase::Subscribed && source.credit > window)
            .map(|(key, _)| *key)
            .collect();
        for key in wide {
            self.unsubscribe(key, after);
            self.back_to_idle(key, after);
        }
    }

    pub(super) fn close(&mut self) -> Vec<Arc<DataConnection>> {
        self.closed = true;
        self.sources.clear();
        self.idle.clear();
        self.paused.clear();
        self.ready.clear();
        self.buffered = 0;
        self.granted = 0;
        self.links
            .drain()
            .filter_map(|(_, link)| match link {
                Link::Up { connection, .. } => Some(connection),
                _ => None,
            })
            .collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use kera_protocol::error::{ErrorCode, WireError};
    use kera_protocol::ids::{LaneId, LaneKey, StreamId, StreamletId};

    use super::super::arrive::Behind;
    use super::*;

    pub(in crate::fetch) fn state() -> (State, Vec<u64>) {
        let mut state = State::new(FetchSettings::default());
        let stream = StreamId::random();
        let specs = [0, 1].map(|lane| SourceSpec {
            tag: 0,
            life: 0,
            lane: LaneKey {
                stream,
                streamlet: StreamletId(0),
                lane: LaneId(lane),
            },
            from: Cursor::default(),
            end: Ordinal::MAX,
            lane_generation: None,
            push: true,
            slices: None,
        });
        let keys = state.add(specs.into(), &mut After::default());
        (state, keys)
    }

    #[test]
    fn a_lane_that_fails_again_and_again_is_told_of_once_until_that_is_taken() {
        let (mut state, keys) = state();
        let mut after = After::default();
        let told = |state: &mut State| {
            let error = WireError::new(ErrorCode::Damaged, "planted");
            for key in &keys {
                let behind = Behind::Nowhere;
                state.failed(*key, error.clone(), None, behind, &mut After::default());
            }
            state.ready.len()
        };
        assert_eq!((told(&mut state), told(&mut state)), (2, 2));
        assert!(matches!(state.pop(&mut after), Popped::Failed(_)));
        assert_eq!((told(&mut state), told(&mut state)), (2, 2));
    }

    #[test]
    fn what_is_given_up_makes_room_that_others_hear_of() {
        let (mut state, keys) = state();
        let mut after = After::default();
        state.deliver(keys[0], Bytes::from_static(b"batch"), 0, false);
        state.remove(keys[1], &mut after);
        assert!(!after.drive);
        state.remove(keys[0], &mut after);
        assert!(after.drive);
        assert_eq!((state.buffered, state.granted), (0, 0));
    }
}
