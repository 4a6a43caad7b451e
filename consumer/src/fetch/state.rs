//! All sources and connections, and what happens to them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::{Frame, FrameKind};
use kera_protocol::ids::Ordinal;
use kera_protocol::v1::{self, Cursor};
use kera_rpc::{ConnectionError, DataConnection, RetryPolicy};
use tokio::time::Instant;

use super::source::{Phase, Source};
use super::{After, Popped, SourceSpec};
use crate::batch::Chunk;
use crate::config::FetchSettings;
use crate::error::ConsumeError;

/// Bits of a token that tell rounds of one source apart.
const ROUND_BITS: u32 = 16;
/// Pause before a lane that failed for a reason that may not pass is tried again.
const HOPELESS_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
enum Ready {
    Chunk(Chunk),
    Failed(ConsumeError),
}

/// A connection to a broker, or its absence.
#[derive(Debug)]
enum Link {
    Connecting,
    Up {
        id: u64,
        connection: Arc<DataConnection>,
        subscriptions: HashMap<u32, u64>,
    },
    Down {
        until: Instant,
        attempt: u32,
    },
}

pub(super) struct State {
    settings: FetchSettings,
    retry: RetryPolicy,
    sources: HashMap<u64, Source>,
    idle: VecDeque<u64>,
    paused: BTreeSet<(Instant, u64)>,
    ready: VecDeque<Ready>,
    buffered: usize,
    links: HashMap<Arc<str>, Link>,
    last_key: u64,
    last_subscription: u32,
    skipped: u64,
    closed: bool,
    /// Owners may have changed: look before asking again.
    pub(super) refresh: bool,
}

impl State {
    pub(super) fn new(settings: FetchSettings) -> Self {
        Self {
            settings,
            retry: RetryPolicy::default(),
            sources: HashMap::new(),
            idle: VecDeque::new(),
            paused: BTreeSet::new(),
            ready: VecDeque::new(),
            buffered: 0,
            links: HashMap::new(),
            last_key: 0,
            last_subscription: 0,
            skipped: 0,
            closed: false,
            refresh: true,
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

    pub(super) fn take_skipped(&mut self) -> u64 {
        std::mem::take(&mut self.skipped)
    }

    pub(super) fn add(&mut self, spec: SourceSpec) -> u64 {
        self.last_key += 1;
        let key = self.last_key;
        let mut source = Source::new(spec);
        if source.next.ordinal >= source.spec.end {
            source.phase = Phase::Ended;
            self.sources.insert(key, source);
            self.deliver(key, Bytes::new(), 0, true);
            return key;
        }
        self.sources.insert(key, source);
        self.idle.push_back(key);
        key
    }

    pub(super) fn remove(&mut self, key: u64, after: &mut After) {
        self.stop(key, after);
        self.sources.remove(&key);
    }

    /// Ends what is under way for a source, and drops what of it was not taken.
    fn stop(&mut self, key: u64, after: &mut After) {
        let Some(source) = self.sources.get_mut(&key) else {
            return;
        };
        source.round = source.round.wrapping_add(1);
        if source.phase == Phase::Subscribed
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
        let mut dropped = 0;
        self.ready.retain(|ready| match ready {
            Ready::Chunk(chunk) if chunk.source == key => {
                dropped += chunk.body.len();
                false
            }
            _ => true,
        });
        self.buffered -= dropped;
        self.paused.retain(|(_, paused)| *paused != key);
    }

    pub(super) fn rewind(&mut self, key: u64, ordinal: Ordinal, after: &mut After) {
        self.stop(key, after);
        if let Some(source) = self.sources.get_mut(&key) {
            source.next = Cursor {
                ordinal,
                ..Cursor::default()
            };
            source.attempt += 1;
            let pause = self.retry.bound(source.attempt);
            self.pause(key, pause, after);
        }
    }

    pub(super) fn pop(&mut self, after: &mut After) -> Popped {
        let popped = loop {
            match self.ready.pop_front() {
                None => break Popped::Empty,
                Some(Ready::Failed(error)) => break Popped::Failed(error),
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
        let sources = self.sources.len();
        let Some(source) = self.sources.get_mut(&chunk.source) else {
            return;
        };
        if source.phase != Phase::Subscribed {
            return;
        }
        let credit_bytes = source.credit_due(&self.settings, sources, self.buffered);
        if credit_bytes > 0
            && let Some(owner) = &source.owner
            && let Some(Link::Up { connection, .. }) = self.links.get(owner)
        {
            after.credits.push((
                connection.clone(),
                v1::CreditRequest {
                    subscription: source.subscription,
                    credit_bytes,
                    unsubscribe: false,
                },
            ));
        }
    }

    pub(super) fn reply(
        &mut self,
        token: u64,
        reply: Result<Frame, ConnectionError>,
        after: &mut After,
    ) {
        let (key, round) = (token >> ROUND_BITS, token as u16);
        let Some(source) = self.sources.get_mut(&key) else {
            return;
        };
        if source.round != round {
            return;
        }
        let frame = match reply {
            Ok(frame) => frame,
            Err(_) => {
                // The link tells when it is gone; what was asked for is asked for again then.
                self.back_to_idle(key, after);
                return;
            }
        };
        match frame.kind {
            FrameKind::SubscribeReply => match frame.message::<v1::SubscribeResponse>() {
                Ok(response) if response.error == 0 => {}
                Ok(response) => {
                    self.end_subscription(key);
                    let error = WireError::from_number(response.error, response.message);
                    self.failed(key, error, None, after);
                }
                Err(error) => self.failed(key, error.into(), None, after),
            },
            _ => match frame.message::<v1::ReadResponse>() {
                Ok(response) if response.error == 0 => {
                    source.ask_once = false;
                    let next = response.next;
                    self.received(
                        key,
                        frame.body,
                        next,
                        response.head_ordinal,
                        response.finished,
                        after,
                    );
                }
                Ok(response) => {
                    let error = WireError::from_number(response.error, response.message);
                    self.failed(key, error, Some(response.log_start), after);
                }
                Err(error) => self.failed(key, error.into(), None, after),
            },
        }
    }

    pub(super) fn pushed(&mut self, address: &Arc<str>, link: u64, frame: Frame, after: &mut After) {
        let Ok(message) = frame.message::<v1::PushData>() else {
            return;
        };
        let Some(Link::Up {
            id, subscriptions, ..
        }) = self.links.get_mut(address)
        else {
            return;
        };
        // Pushes that were under way when a subscription ended have no owner any more.
        let Some(&key) = subscriptions
            .get(&message.subscription)
            .filter(|_| *id == link)
        else {
            return;
        };
        if message.error != 0 || message.finished {
            subscriptions.remove(&message.subscription);
        }
        let Some(source) = self.sources.get_mut(&key) else {
            return;
        };
        source.credit -= frame.body.len() as i64;
        if message.error != 0 {
            let error = WireError::from_number(message.error, message.message);
            source.phase = Phase::Idle;
            self.failed(key, error, None, after);
            return;
        }
        self.received(
            key,
            frame.body,
            message.next,
            message.head_ordinal,
            message.finished,
            after,
        );
    }

    /// Data of a source arrived, or the news that there is none.
    fn received(
        &mut self,
        key: u64,
        body: Bytes,
        next: Option<Cursor>,
        head: Ordinal,
        finished: bool,
        after: &mut After,
    ) {
        let Some(source) = self.sources.get_mut(&key) else {
            return;
        };
        let from = source.next.ordinal;
        let next = next.unwrap_or(source.next);
        if next.ordinal < from || (!body.is_empty() && next.ordinal == from) {
            let error = WireError::new(
                ErrorCode::Internal,
                "broker's answer does not go forward".to_owned(),
            );
            self.failed(key, error, None, after);
            return;
        }
        source.next = next;
        source.head = source.head.max(head);
        source.attempt = 0;
        let finished = finished || next.ordinal >= source.spec.end;
        let empty = body.is_empty();
        let was_pushed = source.phase == Phase::Subscribed;
        let pause = match empty && !was_pushed && !finished && next.ordinal == from {
            true => source.pause_after_empty(Instant::now()),
            false => None,
        };
        if finished {
            source.phase = Phase::Ended;
        } else if !was_pushed {
            source.phase = Phase::Idle;
        }
        if !empty || finished {
            self.deliver(key, body, from, finished);
            after.ready = true;
        }
        if finished || was_pushed {
            return;
        }
        match pause {
            Some(pause) => self.pause(key, pause, after),
            None if self.buffered < self.settings.memory_limit => self.ask(key, after),
            None => self.idle.push_back(key),
        }
    }

    fn deliver(&mut self, key: u64, body: Bytes, from: Ordinal, finished: bool) {
        let Some(source) = self.sources.get(&key) else {
            return;
        };
        self.buffered += body.len();
        self.ready.push_back(Ready::Chunk(Chunk {
            source: key,
            tag: source.spec.tag,
            lane: source.spec.lane,
            body,
            from,
            end: source.spec.end,
            next: source.next,
            head: source.head,
            finished,
        }));
    }

    /// The broker refused to read a source.
    fn failed(
        &mut self,
        key: u64,
        error: WireError,
        log_start: Option<Ordinal>,
        after: &mut After,
    ) {
        let Some(source) = self.sources.get_mut(&key) else {
            return;
        };
        source.phase = Phase::Idle;
        source.attempt += 1;
        let at = source.next.ordinal;
        if error.code == ErrorCode::OutOfRange {
            match log_start {
                // Only the answer to a request says where the log starts.
                None if source.spec.push && !source.ask_once => {
                    source.ask_once = true;
                    self.ask(key, after);
                    return;
                }
                Some(start) if start > at => {
                    let start = start.min(source.spec.end);
                    self.skipped += start - at;
                    source.next = Cursor {
                        ordinal: start,
                        ..Cursor::default()
                    };
                    source.ask_once = false;
                    if start >= source.spec.end {
                        source.phase = Phase::Ended;
                        self.deliver(key, Bytes::new(), at, true);
                        after.ready = true;
                    } else {
                        self.ask(key, after);
                    }
                    return;
                }
                _ => {}
            }
        }
        if matches!(
            error.code,
            ErrorCode::NotOwner | ErrorCode::UnknownStreamlet | ErrorCode::UnknownLane
        ) {
            self.refresh = true;
            source.owner = None;
        }
        if error.code.is_retryable() {
            let pause = self.retry.pause(source.attempt).max(Duration::from_millis(1));
            self.pause(key, pause, after);
            return;
        }
        let lane = source.spec.lane;
        let hopeless = error.code == ErrorCode::UnknownStream;
        if hopeless {
            source.phase = Phase::Ended;
        }
        self.ready.push_back(Ready::Failed(ConsumeError::Lane {
            lane,
            ordinal: at,
            error,
        }));
        after.ready = true;
        if !hopeless {
            self.pause(key, HOPELESS_PAUSE, after);
        }
    }

    fn pause(&mut self, key: u64, pause: Duration, after: &mut After) {
        if let Some(source) = self.sources.get_mut(&key) {
            source.phase = Phase::Paused;
            self.paused.insert((Instant::now() + pause, key));
            after.drive = true;
        }
    }

    fn back_to_idle(&mut self, key: u64, after: &mut After) {
        if let Some(source) = self.sources.get_mut(&key)
            && matches!(source.phase, Phase::Asked | Phase::Subscribed)
        {
            source.phase = Phase::Idle;
            source.round = source.round.wrapping_add(1);
            self.idle.push_back(key);
            after.drive = true;
        }
    }

    fn end_subscription(&mut self, key: u64) {
        if let Some(source) = self.sources.get(&key)
            && let Some(owner) = &source.owner
            && let Some(Link::Up { subscriptions, .. }) = self.links.get_mut(owner)
        {
            subscriptions.remove(&source.subscription);
        }
    }

    /// Asks for every idle source for which there is a connection and memory.
    fn ask_idle(&mut self, after: &mut After) {
        for _ in 0..self.idle.len() {
            if self.buffered >= self.settings.memory_limit {
                return;
            }
            if let Some(key) = self.idle.pop_front() {
                self.ask(key, after);
            }
        }
    }

    /// Asks for an idle source, or subscribes to it; without a connection it stays idle.
    fn ask(&mut self, key: u64, after: &mut After) {
        let sources = self.sources.len();
        let Some(source) = self.sources.get_mut(&key) else {
            return;
        };
        if source.phase != Phase::Idle || self.closed {
            return;
        }
        let link = source.owner.as_ref().and_then(|owner| self.links.get_mut(owner));
        let Some(Link::Up {
            id,
            connection,
            subscriptions,
        }) = link
        else {
            self.idle.push_back(key);
            after.drive = true;
            return;
        };
        source.round = source.round.wrapping_add(1);
        source.link = *id;
        let token = key << ROUND_BITS | u64::from(source.round);
        let sent = if source.is_pushed() {
            self.last_subscription = self.last_subscription.wrapping_add(1);
            let subscription = self.last_subscription;
            let request = source.subscribe_request(subscription, &self.settings, sources);
            subscriptions.insert(subscription, key);
            source.phase = Phase::Subscribed;
            connection.submit(FrameKind::Subscribe, &request, Bytes::new(), token)
        } else {
            let request = source.read_request(&self.settings, sources, Instant::now());
            source.phase = Phase::Asked;
            connection.submit(FrameKind::Read, &request, Bytes::new(), token)
        };
        match sent {
            Ok(()) => {
                if !after.flush.iter().any(|known| Arc::ptr_eq(known, connection)) {
                    after.flush.push(connection.clone());
                }
            }
            Err(_) => {
                if source.phase == Phase::Subscribed {
                    subscriptions.remove(&source.subscription);
                }
                source.phase = Phase::Idle;
                let pause = self.retry.bound(0);
                self.pause(key, pause, after);
            }
        }
    }

    /// The connection to a broker ended.
    pub(super) fn link_down(&mut self, address: &Arc<str>, link: u64, after: &mut After) {
        match self.links.get(address) {
            Some(Link::Up { id, .. }) if *id == link => {}
            _ => return,
        }
        self.links.insert(
            address.clone(),
            Link::Down {
                until: Instant::now(),
                attempt: 0,
            },
        );
        self.refresh = true;
        let lost: Vec<u64> = self
            .sources
            .iter()
            .filter(|(_, source)| source.link == link)
            .map(|(key, _)| *key)
            .collect();
        for key in lost {
            self.back_to_idle(key, after);
        }
        after.drive = true;
    }

    pub(super) fn link_up(
        &mut self,
        address: &Arc<str>,
        id: u64,
        connection: Arc<DataConnection>,
        after: &mut After,
    ) {
        if self.closed {
            return;
        }
        self.links.insert(
            address.clone(),
            Link::Up {
                id,
                connection,
                subscriptions: HashMap::new(),
            },
        );
        self.ask_idle(after);
    }

    pub(super) fn link_failed(&mut self, address: &Arc<str>, attempt: u32) {
        let pause = self.retry.pause(attempt).max(Duration::from_millis(5));
        self.links.insert(
            address.clone(),
            Link::Down {
                until: Instant::now() + pause,
                attempt: attempt + 1,
            },
        );
    }

    /// Sets the owner of every source that has none, or another.
    pub(super) fn set_owners(&mut self, owner_of: impl Fn(u32) -> Option<Arc<str>>) {
        for source in self.sources.values_mut() {
            if matches!(source.phase, Phase::Idle | Phase::Paused) {
                source.owner = owner_of(source.spec.lane.streamlet.0);
            }
        }
    }

    /// True if a source does not know its owner.
    pub(super) fn lacks_owner(&self) -> bool {
        self.idle.iter().any(|key| {
            self.sources
                .get(key)
                .is_some_and(|source| source.owner.is_none())
        })
    }

    /// What the driver does next: asks for what is due, names the brokers to connect to (with the
    /// number of attempts so far), and says when to look again.
    pub(super) fn drive(&mut self, after: &mut After) -> (Vec<(Arc<str>, u32)>, Option<Instant>) {
        let now = Instant::now();
        while let Some(&(due, key)) = self.paused.first()
            && due <= now
        {
            self.paused.pop_first();
            if let Some(source) = self.sources.get_mut(&key)
                && source.phase == Phase::Paused
            {
                source.phase = Phase::Idle;
                self.idle.push_back(key);
            }
        }
        self.ask_idle(after);
        after.drive = false;
        let mut connect = Vec::new();
        let mut wake = self.paused.first().map(|(due, _)| *due);
        let wanted: BTreeSet<Arc<str>> = self
            .idle
            .iter()
            .filter_map(|key| self.sources.get(key)?.owner.clone())
            .collect();
        for address in wanted {
            match self.links.get(&address) {
                Some(Link::Connecting | Link::Up { .. }) => {}
                Some(Link::Down { until, .. }) if *until > now => {
                    wake = Some(wake.map_or(*until, |wake| wake.min(*until)));
                }
                down => {
                    let attempt = match down {
                        Some(Link::Down { attempt, .. }) => *attempt,
                        _ => 0,
                    };
                    self.links.insert(address.clone(), Link::Connecting);
                    connect.push((address, attempt));
                }
            }
        }
        (connect, wake)
    }

    pub(super) fn close(&mut self) -> Vec<Arc<DataConnection>> {
        self.closed = true;
        self.sources.clear();
        self.idle.clear();
        self.paused.clear();
        self.ready.clear();
        self.buffered = 0;
        self.links
            .drain()
            .filter_map(|(_, link)| match link {
                Link::Up { connection, .. } => Some(connection),
                _ => None,
            })
            .collect()
    }
}
