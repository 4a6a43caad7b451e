//! The brokers that are alive, and what this one tells them of itself.

use std::sync::Arc;
use std::time::Duration;

use kera_controller::{Members, refused};
use kera_metadata::{LiveState, Living};
use kera_protocol::error::{ErrorCode, WireError};

use crate::cluster::Clustered;
use crate::shared::Shared;
use crate::store_calls::{blocking, metadata_error};

/// The longest wait for the store to tell this broker what another has just told it.
const HEARD_WITHIN: Duration = Duration::from_secs(5);

/// The brokers that share a store with this one.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] if this broker has one of its own.
pub(crate) fn clustered(shared: &Shared) -> Result<&Arc<Clustered>, WireError> {
    shared.clustered.as_ref().ok_or_else(|| {
        WireError::new(
            ErrorCode::InvalidArgument,
            "this broker has a metadata store of its own; brokers form a cluster when they are started with --cluster and the address of an etcd",
        )
    })
}

/// The brokers that are alive.
///
/// # Errors
/// As of [`clustered`].
pub(crate) fn living(shared: &Shared) -> Result<Living, WireError> {
    Ok(clustered(shared)?.store.living().borrow().clone())
}

/// Those of them that decisions are about: not those whose certificates the others refuse.
pub(crate) fn members_of(shared: &Shared, living: &Living) -> Members {
    let refused = refused(living);
    let members = living.values();
    let members = members.filter(|live| !refused.contains_key(&live.id));
    let members = members.map(Into::into);
    Members::new(members, shared.config.cluster.allow_same_host)
}

/// The brokers that are alive, as decisions need them.
///
/// # Errors
/// As of [`clustered`].
pub(crate) fn members(shared: &Shared) -> Result<Members, WireError> {
    Ok(members_of(shared, &living(shared)?))
}

/// Tells the others what this broker does; false if they know already.
///
/// # Errors
/// What the metadata store answers.
pub(crate) async fn set_state(shared: &Arc<Shared>, state: LiveState) -> Result<bool, WireError> {
    let living = living(shared)?;
    let Some(mine) = living.get(&shared.broker_id) else {
        return Err(WireError::new(
            ErrorCode::Overloaded,
            "this broker has no lease at the metadata store right now; try again once it is reached",
        ));
    };
    if mine.state == state {
        return Ok(false);
    }
    let members = clustered(shared)?.members.clone();
    blocking(move || {
        let told = members.describe(|mine| mine.state = state);
        told.map_err(|error| metadata_error(&error))
    })
    .await?;
    tracing::info!(?state, "told the other brokers");
    // The next change is compared with this one.
    hear(shared, shared.broker_id, state).await?;
    Ok(true)
}

/// Waits for the store to tell this broker that `broker` is in `state`, or gone; not for long, since it may be
/// in another by then.
pub(crate) async fn hear(shared: &Shared, broker: u32, state: LiveState) -> Result<(), WireError> {
    let mut living = clustered(shared)?.store.living();
    let is_so = |living: &Living| living.get(&broker).is_none_or(|live| live.state == state);
    let heard = tokio::time::timeout(HEARD_WITHIN, living.wait_for(is_so)).await;
    if heard.is_err() {
        tracing::debug!(broker, ?state, "the store has not told of it yet");
    }
    Ok(())
}
