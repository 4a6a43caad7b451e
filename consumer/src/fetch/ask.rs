//! What leaves, and the connections it leaves by.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kera_protocol::frame::FrameKind;
use kera_rpc::DataConnection;
use tokio::time::Instant;

use super::After;
use super::source::Phase;
use super::state::{Link, ROUND_BITS, State};

impl State {
    /// Asks for every idle source for which there is a connection and memory.
    pub(super) fn ask_idle(&mut self, after: &mut After) {
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
    pub(super) fn ask(&mut self, key: u64, after: &mut After) {
        let sources = self.sources.len();
        let Some(source) = self.sources.get_mut(&key) else {
            return;
        };
        if source.phase != Phase::Idle || self.closed {
            return;
        }
        let link = source
            .owner
            .as_ref()
            .and_then(|owner| self.links.get_mut(owner));
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

    /// Notes who owns the streamlets, also for sources that nothing is under way for.
    pub(super) fn set_owners(&mut self, owners: Vec<Arc<str>>) {
        self.owners = owners;
        for source in self.sources.values_mut() {
            if matches!(source.phase, Phase::Idle | Phase::Paused) {
                let streamlet = source.spec.lane.streamlet.0 as usize;
                source.owner = self.owners.get(streamlet).cloned();
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
}
