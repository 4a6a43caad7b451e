//! Requests about consumer groups, and the work that goes on without them.

use std::sync::Arc;

use kera_coordinator::classic::Listing;
use kera_coordinator::{Reply, Request};
use kera_protocol::error::WireError;
use kera_protocol::v1::{self, start_at::At};

use super::follow::Times;
use super::host::Host;
use super::view::View;
use super::{COALESCE, Coordination, CoordinatorKind, GROUPS_STREAM, TICK, follow, place};
use crate::clock::now_ms;
use crate::error::BrokerError;
use crate::shared::Shared;

impl Coordination {
    /// Reads every coordinator's state. A broker that works alone makes the internal stream if there is
    /// none; in a cluster the first request about a group does, when the brokers for its copies are there.
    ///
    /// # Errors
    /// [`BrokerError`] if the stream cannot be made or read.
    pub async fn open(&self, shared: &Arc<Shared>) -> Result<(), BrokerError> {
        if !shared.data.directory.is_shared() && shared.data.catalog.named(GROUPS_STREAM).is_none()
        {
            let (owned, streamlets) = (shared.clone(), self.streamlets);
            let make = move || place::create_stream(&owned, CoordinatorKind::Groups, streamlets);
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

    /// Ends coordinators whose streamlets this broker does not serve any more, and adds those of
    /// streamlets that it serves now. The new ones, yet to be loaded.
    fn look_at_owners(&self, shared: &Shared) -> Vec<Arc<Host>> {
        let kinds = CoordinatorKind::ALL.into_iter();
        kinds
            .flat_map(|kind| self.look_at_owners_of(shared, kind))
            .collect()
    }

    fn look_at_owners_of(&self, shared: &Shared, kind: CoordinatorKind) -> Vec<Arc<Host>> {
        let Some(stream) = shared.data.catalog.named(kind.stream()) else {
            return Vec::new();
        };
        let served = |id| shared.data.directory.serves(stream.id(), id);
        let unchanged = {
            let hosts = self.hosts.read();
            let mut streamlets = stream.streamlets.iter();
            streamlets.all(|streamlet| match hosts.get(&(kind, streamlet.id())) {
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
            let key = (kind, id);
            if let Some(host) = hosts.get(&key)
                && !(serves && host.is_for(&streamlet))
            {
                host.end();
                hosts.remove(&key);
                let what = kind.what();
                tracing::info!(streamlet = id.0, "{what} have another coordinator");
            }
            if serves && !hosts.contains_key(&key) {
                let (pump, limits) = (shared.data.env.pump.clone(), self.limits.clone());
                let host = Arc::new(Host::new(kind, streamlet.clone(), pump, limits));
                hosts.insert(key, host.clone());
                fresh.push(host);
            }
        }
        fresh
    }

    /// Serves one request about a consumer group, or a transactional id.
    ///
    /// # Errors
    /// What the client is to be told: `NOT_COORDINATOR` if another broker coordinates it,
    /// `COORDINATOR_LOADING` while this one reads its state.
    pub async fn call(
        &self,
        shared: &Arc<Shared>,
        name: &str,
        request: Request,
    ) -> Result<Reply, WireError> {
        let kind = CoordinatorKind::of(&request);
        let place = self.place(shared, kind, name).await?;
        let host = self.host_at(shared, &place, name)?;
        let times = match shared.data.directory.is_shared() && kind == CoordinatorKind::Groups {
            true => self.look_elsewhere(shared, &host, name, &request).await,
            false => Times::new(),
        };
        let outcome = self.call_with(shared, &host, request, times).await;
        // What a broker believes that was replaced meanwhile is no answer.
        self.host_at(shared, &place, name)?;
        outcome.unwrap_or_else(|| Err(place::loading(kind, name)))
    }

    /// Puts a request to one coordinator; `None` while it is loading.
    pub(crate) async fn call_at(
        &self,
        shared: &Arc<Shared>,
        host: &Host,
        request: Request,
    ) -> Option<Result<Reply, WireError>> {
        self.call_with(shared, host, request, Times::new()).await
    }

    /// The same, with where the time in the request is in other owners' lanes.
    async fn call_with(
        &self,
        shared: &Arc<Shared>,
        host: &Host,
        request: Request,
        times: Times,
    ) -> Option<Result<Reply, WireError>> {
        let answer = tokio::task::block_in_place(|| {
            host.handle(&View::of(shared).with_times(times), request, &self.waker)
        });
        let (ticket, answer) = answer?;
        self.bell.ring();
        let guard = CancelOnDrop { host, ticket };
        let outcome = answer.await.ok();
        std::mem::forget(guard);
        outcome
    }

    /// Whether a coordinator of transactions is still the one for its streamlet.
    pub(crate) fn still_coordinates(shared: &Shared, host: &Host) -> bool {
        let stream = CoordinatorKind::Transactions.stream();
        let stream = shared.data.catalog.named(stream);
        stream.is_some_and(|stream| {
            let streamlet = stream.streamlet(host.streamlet());
            let serves = shared.data.directory.serves(stream.id(), host.streamlet());
            serves && streamlet.is_some_and(|streamlet| host.is_for(&streamlet))
        })
    }

    /// Before a request that depends on where lanes end: asks the owners of lanes that this broker does
    /// not serve. Where the time in the request is, if there is one.
    async fn look_elsewhere(
        &self,
        shared: &Arc<Shared>,
        host: &Host,
        group: &str,
        request: &Request,
    ) -> Times {
        let (start, named) = match request {
            Request::Join { request, .. } => (request.start, Some(request.stream.as_str())),
            Request::ResetGroup(reset) => (reset.to, reset.stream.as_deref()),
            Request::DescribeGroup(_) => (None, None),
            _ => return Times::new(),
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
        let mut times = Times::new();
        for stream in streams {
            times.extend(follow::refresh(shared, stream, time).await);
        }
        times
    }

    /// The groups of this broker's coordinators, sorted by name.
    pub fn summaries(&self, shared: &Shared) -> Vec<v1::GroupSummary> {
        let hosts = self.hosts.read().clone();
        let view = View::of(shared);
        let mut all: Vec<_> = hosts
            .values()
            .flat_map(|host| host.summaries(&view))
            .collect();
        all.sort_by(|a, b| a.group.cmp(&b.group));
        all
    }

    /// The groups of Kafka's clients of this broker's coordinators, sorted by id; `None` while one of
    /// them is reading its state.
    pub fn classic_groups(&self, shared: &Shared) -> Option<Vec<Listing>> {
        let mut hosts = self.hosts.read().clone();
        hosts.retain(|(kind, _), _| *kind == CoordinatorKind::Groups);
        if hosts.is_empty() && !shared.data.directory.is_shared() {
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
            // On a thread of its own: the other coordinators go on serving.
            tokio::task::spawn_blocking(move || host.load(now_ms()));
        }
        let hosts = coordination.hosts.read().clone();
        tokio::task::block_in_place(|| {
            let (view, streams) = (View::of(&shared), shared.data.catalog.all());
            for host in hosts.values() {
                host.drive(&view, &streams, &coordination.waker, ticked);
            }
        });
        if shared.data.directory.is_shared() {
            follow::tend(&shared);
        }
    }
}
