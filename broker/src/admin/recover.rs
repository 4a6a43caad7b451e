//! Streamlets that cannot be recovered from their copies, and the operator's word on them.

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;
use kera_replication::ids::StreamletKey;

use crate::catalog::Stream;
use crate::cluster::shortage;
use crate::start::Shared;

/// Tells what the streamlets of a stream wait for; with `accept_loss` those that have groups of which
/// no copy counts go on without what is lost, and ordinals jump.
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
    if let (true, Some(replicated)) = (request.accept_loss, &shared.replicated) {
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
            "the operator accepts the loss of records that no copy has"
        );
        accepted = replicated.waiting().accept(&keys).await;
    }
    let mut waiting = shortage::unrecovered(shared, stream);
    waiting.retain(|streamlet| chosen(streamlet.streamlet));
    Ok(v1::RecoverStreamResponse { waiting, accepted })
}
