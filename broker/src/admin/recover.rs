//! Streamlets that cannot be recovered from their copies, and the operator's word on them.

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;
use kera_replication::ids::StreamletKey;

use super::elsewhere;
use crate::cluster::shortage::{self, not_served};
use crate::cluster::standing_still;
use crate::data::catalog::Stream;
use crate::shared::Shared;

/// The streamlets of a stream that this broker owns and does not serve.
pub(crate) fn not_served_here(shared: &Shared, stream: &Stream) -> Vec<v1::UnrecoveredStreamlet> {
    let mut waiting = shortage::unrecovered(shared, stream);
    let mine = shared.data.directory.me();
    let owners = shared.owners_of(stream);
    waiting.retain(|one| owners.get(one.streamlet as usize) == Some(&mine));
    waiting
}

/// Lanes of a stream of this broker that acknowledge nothing.
fn standing(shared: &Shared, stream: &Stream) -> Vec<v1::UnrecoveredStreamlet> {
    let Some(clustered) = &shared.clustered else {
        return Vec::new();
    };
    let all = standing_still(&clustered.replicated).into_iter();
    let of = all.filter(|(lane, _)| lane.streamlet.stream == stream.id());
    let told = of.map(|(lane, still)| {
        let reason = format!(
            "lane {} has acknowledged nothing for {} s: {still}",
            lane.lane,
            still.lasted.as_secs()
        );
        not_served(lane.streamlet.streamlet.0, reason)
    });
    told.collect()
}

/// Tells what the streamlets of a stream wait for; with `accept_loss` those that have groups of which
/// no copy counts go on without what is lost, and ordinals jump. Other owners are asked for their part, unless
/// the request is `local`.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] for a streamlet that the stream does not have.
pub async fn recover_stream(
    shared: &Shared,
    stream: &Stream,
    request: v1::RecoverStreamRequest,
) -> Result<v1::RecoverStreamResponse, WireError> {
    let chosen = |streamlet: u32| request.streamlet.is_none_or(|one| one == streamlet);
    if !stream.streamlets.iter().any(|s| chosen(s.id().0)) {
        let text = format!(
            "stream {} has {} streamlets; name one below that",
            stream.name(),
            stream.streamlets.len()
        );
        return Err(WireError::new(ErrorCode::InvalidArgument, text));
    }
    let mut accepted = Vec::new();
    if let (true, Some(clustered)) = (request.accept_loss, &shared.clustered) {
        let waiting = stream.streamlets.iter();
        let waiting = waiting.filter(|s| chosen(s.id().0) && !s.is_recovered());
        let keys: Vec<_> = waiting
            .map(|s| StreamletKey {
                stream: s.stream(),
                streamlet: s.id(),
            })
            .collect();
        tracing::warn!(
            stream = stream.name(),
            streamlets = keys.len(),
            "the operator accepts the loss of records that no replica has"
        );
        accepted = clustered.replicated.waiting().accept(&keys).await;
    }
    let mut waiting = not_served_here(shared, stream);
    waiting.extend(standing(shared, stream));
    if !request.local && shared.data.directory.is_shared() {
        let others = elsewhere::recover(shared, stream, &request).await;
        waiting.extend(others.waiting);
        accepted.extend(others.accepted);
    }
    waiting.retain(|streamlet| chosen(streamlet.streamlet));
    waiting.sort_by_key(|streamlet| streamlet.streamlet);
    Ok(v1::RecoverStreamResponse { waiting, accepted })
}
