//! Where a consumer group is coordinated: the internal stream, and the owner of the group's streamlet.

use std::sync::Arc;
use std::time::Duration;

use kera_metadata::{
    Compare, Conflict, Key, MetadataError, StreamConfig, StreamRecord, Transaction, Write,
};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::StreamletId;
use kera_protocol::partition::key_hash;

use super::host::Host;
use super::{Coordination, CoordinatorKind};
use crate::clock::wall_ms;
use crate::data::catalog::Stream;
use crate::shared::Shared;
use crate::store_calls::{blocking, metadata_error};

/// Copies of the internal stream where brokers share a store, once there are brokers for them.
const COPIES: u32 = 3;
/// How long news of a stream may take from the broker that made it.
const HEAR_WITHIN: Duration = Duration::from_secs(2);
/// Pause between looks for such news.
const LOOK: Duration = Duration::from_millis(10);

/// The streamlet of the internal stream that a group, or a transactional id, belongs to.
pub struct Place {
    kind: CoordinatorKind,
    stream: Arc<Stream>,
    /// The streamlet.
    pub streamlet: StreamletId,
    /// The number of the broker that owns it, and so coordinates it.
    pub broker: u32,
}

impl Coordination {
    /// Where a group, or a transactional id, is coordinated. Makes the internal stream if there is none.
    ///
    /// # Errors
    /// [`ErrorCode::CoordinatorLoading`] if the internal stream is only just being made, or what the
    /// metadata store answers.
    pub async fn place(
        &self,
        shared: &Arc<Shared>,
        kind: CoordinatorKind,
        name: &str,
    ) -> Result<Place, WireError> {
        let stream = match shared.data.catalog.named(kind.stream()) {
            Some(stream) => stream,
            None => self.make_stream(shared, kind, name).await?,
        };
        let count = u32::try_from(stream.streamlets.len()).unwrap_or(u32::MAX);
        let streamlet = StreamletId(key_hash(name.as_bytes()) % count.max(1));
        let owner = shared.data.directory.owner(stream.id(), streamlet);
        let broker = owner.map_or(shared.data.directory.me(), |owner| owner.broker);
        Ok(Place {
            kind,
            stream,
            streamlet,
            broker,
        })
    }

    async fn make_stream(
        &self,
        shared: &Arc<Shared>,
        kind: CoordinatorKind,
        name: &str,
    ) -> Result<Arc<Stream>, WireError> {
        let _turn = self.making.lock().await;
        if let Some(stream) = shared.data.catalog.named(kind.stream()) {
            return Ok(stream);
        }
        let (owned, streamlets) = (shared.clone(), self.streamlets);
        let made = blocking(move || match create_stream(&owned, kind, streamlets) {
            Ok(stream) => Ok(Some(stream)),
            // Another broker was faster; this one hears of it soon.
            Err(MetadataError::Conflict(Conflict::StreamExists { .. })) => Ok(None),
            Err(error) => Err(metadata_error(&error)),
        });
        let made = made.await?;
        // Its coordinators are looked for at once.
        self.owners_changed();
        match made {
            Some(stream) => Ok(stream),
            None => hear_of(shared, kind.stream())
                .await
                .ok_or_else(|| loading(kind, name)),
        }
    }

    /// The coordinator at a place.
    pub(super) fn host_at(
        &self,
        shared: &Shared,
        place: &Place,
        name: &str,
    ) -> Result<Arc<Host>, WireError> {
        let directory = &shared.data.directory;
        let recovered = || {
            let streamlet = place.stream.streamlet(place.streamlet);
            streamlet.is_some_and(|s| s.is_recovered())
        };
        if place.broker != directory.me() {
            return Err(elsewhere(place.kind, name));
        }
        if !directory.serves(place.stream.id(), place.streamlet) {
            // Recovered, and not served: the lease is over, or the streamlet has left.
            return Err(match recovered() {
                true => elsewhere(place.kind, name),
                false => loading(place.kind, name),
            });
        }
        let host = self
            .hosts
            .read()
            .get(&(place.kind, place.streamlet))
            .cloned();
        host.ok_or_else(|| loading(place.kind, name))
    }
}

/// The stream of a name that this broker should know, or hears of within moments.
pub async fn hear_of(shared: &Shared, name: &str) -> Option<Arc<Stream>> {
    let deadline = tokio::time::Instant::now() + HEAR_WITHIN;
    loop {
        let stream = shared.data.catalog.named(name);
        if stream.is_some() || tokio::time::Instant::now() >= deadline {
            return stream;
        }
        tokio::time::sleep(LOOK).await;
    }
}

pub(super) fn loading(kind: CoordinatorKind, name: &str) -> WireError {
    let one = kind.one(name);
    WireError::new(
        ErrorCode::CoordinatorLoading,
        format!("the coordinator of {one} is reading its state; try again"),
    )
}

fn elsewhere(kind: CoordinatorKind, name: &str) -> WireError {
    let one = kind.one(name);
    WireError::new(
        ErrorCode::NotCoordinator,
        format!("{one} is coordinated by another broker; look it up and ask there"),
    )
}

/// Makes the internal stream. Where brokers share a store it is to have three copies, whoever is there
/// yet: as brokers join, its groups get what they lack as any other stream's do.
pub(super) fn create_stream(
    shared: &Arc<Shared>,
    kind: CoordinatorKind,
    streamlets: u32,
) -> Result<Arc<Stream>, MetadataError> {
    let replicas = match shared.data.directory.is_shared() {
        true => COPIES,
        false => 1,
    };
    let config = StreamConfig {
        streamlets,
        // One lane, so that events keep their order.
        lanes: 1,
        segment_size: 1 << 20,
        segments_per_group: 4,
        retention_ms: 0,
        group_max_age_ms: 0,
        max_batch_bytes: StreamConfig::default_max_batch_bytes(1 << 20),
        ack: kind.ack(),
        replicas,
        min_insync_replicas: least_copies(shared),
        ..StreamConfig::default()
    };
    shared.create_stream(StreamRecord::new(kind.stream(), config, wall_ms()))
}

/// Copies without which no event counts, with the brokers there are: one of them may be away.
fn least_copies(shared: &Shared) -> u32 {
    let most = match &shared.clustered {
        Some(clustered) => clustered.peers.most_copies(),
        None => 1,
    };
    let copies = u32::try_from(most).unwrap_or(COPIES).clamp(1, COPIES);
    copies.saturating_sub(1).max(1)
}

/// Once there are brokers enough for all copies of the internal stream, its events need more than one to
/// count, as if they had been there when it was made. Streamlets take it up when they next change
/// their owner. Done by the owner of the first streamlet; waits for the metadata store.
///
/// # Errors
/// The metadata store's; another round may succeed.
pub(crate) fn raise_copies(shared: &Shared) -> Result<bool, MetadataError> {
    let mut raised = false;
    for kind in CoordinatorKind::ALL {
        raised |= raise_copies_of(shared, kind)?;
    }
    Ok(raised)
}

fn raise_copies_of(shared: &Shared, kind: CoordinatorKind) -> Result<bool, MetadataError> {
    let Some(stream) = shared.data.catalog.named(kind.stream()) else {
        return Ok(false);
    };
    let first = StreamletId(0);
    let old = stream.record.load_full();
    let least = least_copies(shared).min(old.config.replicas);
    if old.config.min_insync_replicas >= least || !shared.data.directory.serves(stream.id(), first)
    {
        return Ok(false);
    }
    let mut new = (*old).clone();
    new.config.min_insync_replicas = least;
    let unchanged = Compare::revision(Key::Stream(old.id), old.revision);
    let raised = Transaction::new(vec![unchanged], vec![Write::PutStream(new.clone())]);
    new.revision = shared.metadata.commit(raised)?.revision;
    stream.altered(new);
    tracing::info!(
        least,
        stream = kind.stream(),
        "what coordinators decide is kept by more brokers from now on"
    );
    Ok(true)
}
