//! What leaves, and the connections it leaves by.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kera_protocol::frame::FrameKind;
use kera_rpc::DataConnection;
use tokio::time::Instant;

use super::After;
use super::driver::OWNERS_PAUSE;
use super::refused::Asked;
use super::source::Phase;
use super::state::{Link, ROUND_BITS, State};

/// How often connections are looked at.
const LISTEN_EVERY: Duration = Duration::from_secs(2);
/// A connection on which nothing comes for so long, although a broker that lives answers a ping every
/// 5 s, belongs to one that may have been replaced.
const SILENCE: Duration = Duration::from_secs(7);

impl State {
    /// Asks for every idle source for which there is a connection and memory.
    pub(super) fn ask_idle(&mut self, after: &mut After) {
        for _ in 0..self.idle.len() {
            if let Some(key) = self.idle.pop_front() {
                self.ask(key, after);
            }
        }
    }

    /// Asks for an idle source, or subscribes to it; without a connection, or memory for an answer, it
    /// stays idle.
    pub(super) fn ask(&mut self, key: u64, after: &mut After) {
        let (window, room) = (self.window(), self.room());
        let Some(source) = self.sources.get(&key) else {
            return;
        };
        if source.phase != Phase::Idle || self.closed {
            return;
        }
        let detour = self.detour(source);
        let is_pushed = detour.is_none() && source.is_pushed() && !self.expects_copies(source);
        let Some(source) = self.sources.get_mut(&key) else {
            return;
        };
        source.detour = detour;
        if source.replicas.wanted {
            // First it is asked who holds copies.
            self.idle.push_back(key);
            after.drive = true;
            return;
        }
        // What is pushed keeps to its credit.
        if !is_pushed && self.buffered >= self.settings.memory_limit {
            self.idle.push_back(key);
            return;
        }
        let link = source
            .broker()
            .and_then(|broker| self.links.get_mut(broker));
        let Some(Link::Up {
            id,
            connection,
            subscriptions,
            ..
        }) = link
        else {
            self.idle.push_back(key);
            after.drive = true;
            return;
        };
        source.round = source.round.wrapping_add(1);
        source.link = *id;
        let token = key << ROUND_BITS | u64::from(source.round);
        let sent = if is_pushed {
            self.last_subscription = self.last_subscription.wrapping_add(1);
            let subscription = self.last_subscription;
            source.credit = source.first_credit(window, room);
            self.granted += source.credit;
            let request = source.subscribe_request(subscription, &self.settings, window);
            subscriptions.insert(subscription, key);
            source.phase = Phase::Subscribed;
            connection.submit(FrameKind::Subscribe, &request, Bytes::new(), token)
        } else {
            let request = source.read_request(&self.settings, window, Instant::now());
            source.phase = Phase::Asked;
            connection.submit(FrameKind::Read, &request, Bytes::new(), token)
        };
        match sent {
            Ok(()) => {
                if !after
                    .flush
                    .iter()
                    .any(|known| Arc::ptr_eq(known, connection))
                {
                    after.flush.push(connection.clone());
                }
            }
            Err(_) => {
                if source.phase == Phase::Subscribed {
                    subscriptions.remove(&source.subscription);
                }
                self.granted -= std::mem::take(&mut source.credit);
                source.phase = Phase::Idle;
                let pause = self.retry.bound(0);
                self.pause(key, pause, after);
            }
        }
    }

    /// The connection to a broker ended.
    pub(super) fn link_down(
        &mut self,
        address: &Arc<str>,
        link: u64,
        why: &str,
        after: &mut After,
    ) {
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
        self.broker_in_trouble(address, Instant::now(), why);
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
                heard: (connection.received_frames(), Instant::now()),
                connection,
                subscriptions: HashMap::new(),
            },
        );
        self.broker_is_well(address);
        self.let_in(Asked::ForData);
        self.ask_idle(after);
        // From now on it is listened to.
        after.drive = true;
    }

    pub(super) fn link_failed(&mut self, address: &Arc<str>, attempt: u32, why: &str) {
        self.broker_in_trouble(address, Instant::now(), why);
        // Copies there are not to be had.
        for source in self.sources.values_mut() {
            source.detour.take_if(|detour| detour == address);
        }
        let pause = self.retry.pause(attempt).max(Duration::from_millis(5));
        self.links.insert(
            address.clone(),
            Link::Down {
                until: Instant::now() + pause,
                attempt: attempt + 1,
            },
        );
    }

    /// Notes who owns the streamlets. What is under way at a former owner is given up, and goes on at
    /// the new one where the last answer or push ended.
    pub(super) fn set_owners(&mut self, owners: Vec<Arc<str>>, after: &mut After) {
        self.let_in(Asked::ForOwners);
        self.owners = owners;
        let (mut moved, mut changed) = (Vec::new(), Vec::new());
        for (key, source) in &mut self.sources {
            let owner = self.owners.get(source.spec.lane.streamlet.0 as usize);
            if source.owner.as_ref() == owner {
                continue;
            }
            changed.push(*key);
            match source.phase {
                Phase::Idle | Phase::Paused => source.owner = owner.cloned(),
                Phase::Asked | Phase::Subscribed => moved.push(*key),
                Phase::Ended => {}
            }
        }
        for key in moved {
            self.unsubscribe(key, after);
            if let Some(source) = self.sources.get_mut(&key) {
                let streamlet = source.spec.lane.streamlet.0 as usize;
                source.owner = self.owners.get(streamlet).cloned();
            }
            self.back_to_idle(key, after);
        }
        for key in changed {
            self.owner_changed(key);
        }
    }

    /// Looks at connections on which something is awaited: a broker that does not even answer pings may
    /// have been replaced as owner. When to look again, if there are any.
    fn listen(&mut self, now: Instant) -> Option<Instant> {
        if let Some(at) = self.listen_at
            && at > now
        {
            return Some(at);
        }
        let awaited: BTreeSet<u64> = self
            .sources
            .values()
            .filter(|source| matches!(source.phase, Phase::Asked | Phase::Subscribed))
            .map(|source| source.link)
            .collect();
        self.listen_at = None;
        let mut silent = Vec::new();
        let mut well = Vec::new();
        for (address, link) in &mut self.links {
            let Link::Up {
                id,
                connection,
                heard,
                ..
            } = link
            else {
                continue;
            };
            let frames = connection.received_frames();
            if frames != heard.0 || !awaited.contains(id) {
                well.push(address.clone());
                *heard = (frames, now);
            } else if now.duration_since(heard.1) >= SILENCE {
                silent.push((address.clone(), heard.1));
                *heard = (frames, now);
                self.refresh = true;
            }
            self.listen_at = Some(now + LISTEN_EVERY);
        }
        for address in well {
            self.broker_is_well(&address);
        }
        for (address, since) in silent {
            self.broker_in_trouble(&address, since, "it says nothing, not even to pings");
        }
        self.listen_at
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
        if let Some(at) = self.listen(now) {
            wake = Some(wake.map_or(at, |wake| wake.min(at)));
        }
        let wanted: BTreeSet<Arc<str>> = self
            .idle
            .iter()
            .filter_map(|key| self.sources.get(key)?.broker().cloned())
            .collect();
        for address in wanted {
            match self.links.get(&address) {
                Some(Link::Connecting | Link::Up { .. }) => {}
                Some(Link::Down { until, .. }) if *until > now => {
                    // Meanwhile its streamlets may get another owner.
                    self.refresh = true;
                    let look = (now + OWNERS_PAUSE).min(*until);
                    wake = Some(wake.map_or(look, |wake| wake.min(look)));
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
}
