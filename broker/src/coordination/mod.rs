//! Hosts the coordinators of consumer groups: one per streamlet of an internal stream, at the broker that
//! owns the streamlet. A group's coordinator is the one of the streamlet that the hash of the group's name
//! chooses.
//!
//! A request becomes events; the events are appended to the internal stream; the reply is sent
//! when they, and all before them, are durable. If an append fails the coordinator is dropped and
//! read anew from the stream.

mod ask;
mod host;
mod place;
mod remote;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Waker;
use std::time::Duration;

use kera_coordinator::classic::{self, Listing};
use kera_coordinator::{Limits, Reply, Request};
use kera_protocol::error::WireError;
use kera_protocol::ids::StreamletId;
use kera_protocol::v1::{self, start_at::At};
use kera_replication::seldom::Seldom;
use parking_lot::{Mutex, RwLock};

use crate::bell::Bell;
use crate::clock::now_ms;
use crate::config::BrokerConfig;
use crate::error::BrokerError;
use crate::start::Shared;
use host::Host;
use remote::Remote;

pub(crate) use place::raise_copies;
pub use place::{Place, hear_of};

/// The internal stream of leases and commits.
pub const GROUPS_STREAM: &str = "_kera_groups";
/// How often sessions and leases are looked at.
const TICK: Duration = Duration::from_millis(100);
/// Heads that move within this time are looked at together.
const COALESCE: Duration = Duration::from_millis(1);

/// What bounds a coordinator.
fn limits_of(config: &BrokerConfig) -> Limits {
    let (consumers, kafka) = (&config.consumers, &config.kafka);
    let ms = |d: Duration| u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
    Limits {
        groups: consumers.max_groups as usize,
        members: consumers.max_members as usize,
        min_session_ms: ms(consumers.session_min),
        max_session_ms: ms(consumers.session_max),
        default_session_ms: ms(consumers.session_default),
        classic: classic::Limits {
            min_session_ms: ms(kafka.session_min),
            max_session_ms: ms(kafka.session_max),
            initial_delay_ms: ms(kafka.group_initial_rebalance_delay),
            offset_retention_ms: u64::try_from(kafka.offsets_retention.as_millis())
                .unwrap_or(u64::MAX),
            total_bytes: usize::try_from(consumers.max_group_bytes).unwrap_or(usize::MAX),
            ..classic::Limits::default()
        },
        ..Limits::default()
    }
}

/// All coordinators of this broker.
pub struct Coordination {
    streamlets: u32,
    limits: Mutex<Limits>,
    /// By streamlet: those of this broker.
    hosts: RwLock<BTreeMap<StreamletId, Arc<Host>>>,
    remote: Remote,
    /// Somebody looks at a disk for where a range ends.
    looking: Arc<AtomicBool>,
    /// Ranges whose ends were not found, as the log tells of them.
    uncut: Mutex<Seldom>,
    /// Times that were not found, likewise.
    untimed: Mutex<Seldom>,
    /// One attempt to make the internal stream at a time.
    making: tokio::sync::Mutex<()>,
    bell: Arc<Bell>,
    waker: Waker,
}

impl Coordination {
    /// Nothing is served before [`Self::open`].
    pub fn new(config: &BrokerConfig) -> Self {
        let bell = Arc::new(Bell::default());
        Self {
            streamlets: config.consumers.internal_streamlets,
            limits: Mutex::new(limits_of(config)),
            hosts: RwLock::default(),
            remote: Remote::new(bell.clone()),
            looking: Arc::default(),
            uncut: Mutex::default(),
            untimed: Mutex::default(),
            making: tokio::sync::Mutex::default(),
            waker: Waker::from(bell.clone()),
            bell,
        }
    }

    /// Bounds coordinators as the settings have it from now on.
    pub(crate) fn set_limits(&self, config: &BrokerConfig) {
        let limits = limits_of(config);
        *self.limits.lock() = limits.clone();
        for host in self.hosts.read().values() {
            host.set_limits(limits.clone());
        }
    }

    /// Reads every coordinator's state. A broker that works alone makes the internal stream if there is
    /// none; in a cluster the first request about a group does, when the brokers for its copies are there.
    ///
    /// # Errors
    /// [`BrokerError`] if the stream cannot be made or read.
    pub async fn open(&self, shared: &Arc<Shared>) -> Result<(), BrokerError> {
        if !shared.directory.is_shared() && shared.catalog.named(GROUPS_STREAM).is_none() {
            let (owned, streamlets) = (shared.clone(), self.streamlets);
            let make = move || place::create_stream(&owned, streamlets);
            let made = tokio::task::spawn_blocking(make).await;
            made.map_err(|panic| BrokerError::System {
                what: "opening the internal stream failed",
                error: std::io::Error::other(panic),
            })??;
        }
        for host in self.look_at_owners(shared) {
            // A lane that cannot be read leaves its groups loading; the rest of the broker serves.
            let _ = tokio::task::spawn_blocking(move || host.load(now_ms())).await;
        }
        Ok(())
    }

    /// Owners of the internal stream's streamlets may have changed: coordinators are looked at soon.
    pub fn owners_changed(&self) {
        self.bell.ring();
    }

    /// Lanes that other brokers serve.
    fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Ends coordinators whose streamlets this broker does not serve any more, and adds those of
    /// streamlets that it serves now. The new ones, yet to be loaded.
    fn look_at_owners(&self, shared: &Shared) -> Vec<Arc<Host>> {
        let Some(stream) = shared.catalog.named(GROUPS_STREAM) else {
            return Vec::new();
        };
        let served = |id| shared.directory.serves(stream.id(), id);
        let unchanged = {
            let hosts = self.hosts.read();
            let mut streamlets = stream.streamlets.iter();
            streamlets.all(|streamlet| match hosts.get(&streamlet.id()) {
                Some(host) => served(streamlet.id()) && host.is_for(&streamlet),
                None => !(served(streamlet.id()) && streamlet.is_recovered()),
            })
        };
        if unchanged {
            return Vec::new();
        }
        let mut hosts = self.hosts.write();
        let mut fresh = Vec::new();
        for streamlet in &stream.streamlets {
            let id = streamlet.id();
            let serves = served(id) && streamlet.is_recovered();
            if let Some(host) = hosts.get(&id)
                && !(serves && host.is_for(&streamlet))
            {
                host.end();
                hosts.remove(&id);
                tracing::info!(streamlet = id.0, "consumer groups have another coordinator");
            }
            if serves && !hosts.contains_key(&id) {
                let (pump, limits) = (shared.env.pump.clone(), self.limits.lock().clone());
                let host = Arc::new(Host::new(streamlet.clone(), pump, limits));
                hosts.insert(id, host.clone());
                fresh.push(host);
            }
        }
        fresh
    }

    /// Serves one request about a consumer group.
    ///
    /// # Errors
    /// What the client is to be told: `NOT_COORDINATOR` if another broker coordinates the group,
    /// `COORDINATOR_LOADING` while this one reads its state.
    pub async fn call(
        &self,
        shared: &Arc<Shared>,
        group: &str,
        request: Request,
    ) -> Result<Reply, WireError> {
        let place = self.place(shared, group).await?;
        let host = self.host_at(shared, &place, group)?;
        let time = match shared.directory.is_shared() {
            true => self.look_elsewhere(shared, &host, group, &request).await,
            false => None,
        };
        let answer = tokio::task::block_in_place(|| host.handle(shared, request, &self.waker));
        if let Some(time) = time {
            self.remote.forget_times(time);
        }
        let Some((ticket, answer)) = answer else {
            return Err(place::loading(group));
        };
        self.bell.ring();
        let guard = CancelOnDrop {
            host: &host,
            ticket,
        };
        let outcome = answer.await.unwrap_or_else(|_| Err(place::loading(group)));
        std::mem::forget(guard);
        // What a broker believes that was replaced meanwhile is no answer.
        self.host_at(shared, &place, group)?;
        outcome
    }

    /// Before a request that depends on where lanes end: asks the owners of lanes that this broker does
    /// not serve. The time that was looked up, if there is one in the request.
    async fn look_elsewhere(
        &self,
        shared: &Arc<Shared>,
        host: &Host,
        group: &str,
        request: &Request,
    ) -> Option<u64> {
        let (start, named) = match request {
            Request::Join { request, .. } => (request.start, Some(request.stream.as_str())),
            Request::ResetGroup(reset) => (reset.to, reset.stream.as_deref()),
            Request::DescribeGroup(_) => (None, None),
            _ => return None,
        };
        let time = match start.and_then(|start| start.at) {
            Some(At::TimestampMs(time)) => Some(time),
            _ => None,
        };
        let mut streams = host.streams_of(group);
        if let Some(name) = named {
            streams.extend(place::hear_of(shared, name).await.map(|stream| stream.id()));
        }
        streams.sort_unstable();
        streams.dedup();
        for stream in streams {
            Remote::refresh(shared, stream, time).await;
        }
        time
    }

    /// True if the state of some coordinator of this broker cannot be read.
    pub fn is_unreadable(&self) -> bool {
        self.hosts.read().values().any(|host| host.is_unreadable())
    }

    /// Records among the events of this broker's coordinators that could not be read and were passed over.
    pub fn passed_over(&self) -> u64 {
        self.hosts
            .read()
            .values()
            .map(|host| host.passed_over())
            .sum()
    }

    /// The groups of this broker's coordinators, sorted by name.
    pub fn summaries(&self, shared: &Shared) -> Vec<v1::GroupSummary> {
        let hosts = self.hosts.read().clone();
        let mut all: Vec<_> = hosts
            .values()
            .flat_map(|host| host.summaries(shared))
            .collect();
        all.sort_by(|a, b| a.group.cmp(&b.group));
        all
    }

    /// The groups of Kafka's clients of this broker's coordinators, sorted by id; `None` while one of
    /// them is reading its state.
    pub fn classic_groups(&self, shared: &Shared) -> Option<Vec<Listing>> {
        let hosts = self.hosts.read().clone();
        if hosts.is_empty() && !shared.directory.is_shared() {
            return None;
        }
        let mut all = Vec::new();
        for host in hosts.values() {
            all.extend(host.classic_groups()?);
        }
        all.sort_by(|a, b| a.group.cmp(&b.group));
        Some(all)
    }
}

/// Takes back a request whose client has gone.
struct CancelOnDrop<'a> {
    host: &'a Host,
    ticket: u64,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        self.host.cancel(self.ticket);
    }
}

/// Sends replies that have become durable, expires sessions, wakes who waits for records, reads
/// lost coordinators anew. Runs as long as the broker.
pub async fn drive(shared: Arc<Shared>) {
    let coordination = &shared.coordination;
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let ticked = tokio::select! {
            _ = tick.tick() => true,
            () = coordination.bell.rung() => {
                tokio::time::sleep(COALESCE).await;
                false
            }
        };
        for host in coordination.look_at_owners(&shared) {
            // Beside the others, which go on meanwhile.
            tokio::task::spawn_blocking(move || host.load(now_ms()));
        }
        let hosts = coordination.hosts.read().clone();
        tokio::task::block_in_place(|| {
            for host in hosts.values() {
                host.drive(&shared, &coordination.waker, ticked);
            }
        });
        if shared.directory.is_shared() {
            Remote::tend(&shared);
        }
    }
}
