//! Hosts the coordinators of consumer groups: one per streamlet of an internal stream.
//!
//! A request becomes events; the events are appended to the internal stream; the reply is sent
//! when they, and all before them, are durable. If an append fails the coordinator is dropped and
//! read anew from the stream.

mod host;
mod view;

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use kera_coordinator::classic::{self, Listing};
use kera_coordinator::{Limits, Reply, Request};
use kera_metadata::{MetadataError, StreamConfig, StreamRecord};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::partition::key_hash;
use kera_protocol::v1;
use kera_streamlet::Streamlet;
use parking_lot::RwLock;

use crate::bell::Bell;
use crate::catalog::Stream;
use crate::clock::now_ms;
use crate::config::BrokerConfig;
use crate::error::BrokerError;
use crate::start::Shared;
use host::Host;

/// The internal stream of leases and commits.
pub const GROUPS_STREAM: &str = "_kera_groups";
/// How often sessions and leases are looked at.
const TICK: Duration = Duration::from_millis(100);
/// Heads that move within this time are looked at together.
const COALESCE: Duration = Duration::from_millis(1);

/// All coordinators of this broker.
pub struct Coordination {
    streamlets: u32,
    limits: Limits,
    hosts: RwLock<Vec<Arc<Host>>>,
    bell: Arc<Bell>,
    waker: Waker,
}

impl Coordination {
    /// Nothing is served before [`Self::open`].
    pub fn new(config: &BrokerConfig) -> Self {
        let (consumers, kafka) = (&config.consumers, &config.kafka);
        let ms = |d: Duration| u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
        let bell = Arc::new(Bell::default());
        Self {
            streamlets: consumers.internal_streamlets,
            limits: Limits {
                min_session_ms: ms(consumers.session_min),
                max_session_ms: ms(consumers.session_max),
                default_session_ms: ms(consumers.session_default),
                classic: classic::Limits {
                    min_session_ms: ms(kafka.session_min),
                    max_session_ms: ms(kafka.session_max),
                    initial_delay_ms: ms(kafka.group_initial_rebalance_delay),
                    offset_retention_ms: u64::try_from(kafka.offsets_retention.as_millis())
                        .unwrap_or(u64::MAX),
                    ..classic::Limits::default()
                },
                ..Limits::default()
            },
            hosts: RwLock::default(),
            waker: Waker::from(bell.clone()),
            bell,
        }
    }

    /// Makes the internal stream if need be and reads every coordinator's state.
    ///
    /// # Errors
    /// [`BrokerError`] if the stream cannot be made or read.
    pub async fn open(&self, shared: &Arc<Shared>) -> Result<(), BrokerError> {
        let (owned, streamlets) = (shared.clone(), self.streamlets);
        let opened = tokio::task::spawn_blocking(move || {
            let stream = match owned.catalog.named(GROUPS_STREAM) {
                Some(stream) => stream,
                None => create_stream(&owned, streamlets)?,
            };
            Ok::<_, MetadataError>(stream)
        });
        let stream = opened.await.map_err(|panic| BrokerError::System {
            what: "opening the internal stream failed",
            error: std::io::Error::other(panic),
        })??;
        let limits = &self.limits;
        let host = |s: &Arc<Streamlet>| {
            Arc::new(Host::new(
                s.clone(),
                shared.env.pump.clone(),
                limits.clone(),
            ))
        };
        let hosts: Vec<_> = stream.streamlets.iter().map(host).collect();
        for host in &hosts {
            let host = host.clone();
            // A lane that cannot be read leaves its groups loading; the rest of the broker serves.
            let _ = tokio::task::spawn_blocking(move || host.load(now_ms())).await;
        }
        *self.hosts.write() = hosts;
        Ok(())
    }

    fn host_of(&self, group: &str) -> Option<Arc<Host>> {
        let hosts = self.hosts.read();
        let count = u32::try_from(hosts.len()).ok().filter(|n| *n > 0)?;
        hosts
            .get((key_hash(group.as_bytes()) % count) as usize)
            .cloned()
    }

    /// Serves one request about a consumer group.
    ///
    /// # Errors
    /// What the client is to be told.
    pub async fn call(
        &self,
        shared: &Arc<Shared>,
        group: &str,
        request: Request,
    ) -> Result<Reply, WireError> {
        let loading = || {
            WireError::new(
                ErrorCode::CoordinatorLoading,
                format!("the coordinator of group \"{group}\" is reading its state; try again"),
            )
        };
        let host = self.host_of(group).ok_or_else(loading)?;
        let answer = tokio::task::block_in_place(|| host.handle(shared, request, &self.waker));
        let Some((ticket, answer)) = answer else {
            return Err(loading());
        };
        self.bell.ring();
        let guard = CancelOnDrop {
            host: &host,
            ticket,
        };
        let outcome = answer.await.unwrap_or_else(|_| Err(loading()));
        std::mem::forget(guard);
        outcome
    }

    /// The groups of all coordinators, sorted by name.
    pub fn summaries(&self, shared: &Shared) -> Vec<v1::GroupSummary> {
        let hosts = self.hosts.read().clone();
        let mut all: Vec<_> = hosts
            .iter()
            .flat_map(|host| host.summaries(shared))
            .collect();
        all.sort_by(|a, b| a.group.cmp(&b.group));
        all
    }

    /// The groups of Kafka's clients of all coordinators, sorted by id; `None` while one of them is
    /// reading its state.
    pub fn classic_groups(&self) -> Option<Vec<Listing>> {
        let hosts = self.hosts.read().clone();
        if hosts.is_empty() {
            return None;
        }
        let mut all = Vec::new();
        for host in &hosts {
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
        let hosts = coordination.hosts.read().clone();
        tokio::task::block_in_place(|| {
            for host in &hosts {
                host.drive(&shared, &coordination.waker, ticked);
            }
        });
    }
}

fn create_stream(shared: &Shared, streamlets: u32) -> Result<Arc<Stream>, MetadataError> {
    let config = StreamConfig {
        streamlets,
        // One lane, so that events keep their order.
        lanes: 1,
        segment_size: 1 << 20,
        segments_per_group: 4,
        retention_ms: 0,
        group_max_age_ms: 0,
        max_batch_bytes: StreamConfig::default_max_batch_bytes(1 << 20),
        ..StreamConfig::default()
    };
    shared.create_stream(StreamRecord::new(GROUPS_STREAM, config, now_ms()))
}
