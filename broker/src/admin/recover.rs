//! Streamlets that cannot be recovered from their copies, closed groups that are not whole, and the operator's word on
//! them.

use std::collections::{BTreeMap, BTreeSet};

use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{GroupId, LaneId, StreamletId};
use kera_protocol::v1;
use kera_replication::ids::StreamletKey;

use super::elsewhere;
use crate::cluster::shortage::{self, not_served};
use crate::cluster::standing_still;
use crate::data::catalog::Stream;
use crate::shared::Shared;
use crate::store_calls::blocking;

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

/// Tells what the streamlets of a stream wait for. Those that wait for groups that the request gives up, and of which no
/// replica counts, go on without what is lost, and ordinals jump. Other owners are asked for their part, unless the
/// request is `local`.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] for a streamlet that the stream does not have, and where a loss is accepted without a
/// word about whose: groups may have come to wait that nobody was shown.
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
    if request.accept_loss && request.give_up.is_empty() {
        let text = format!(
            "this request accepts a loss in stream {} and names no group; nothing was given up. Use a `kera stream recover` of this version: it shows the groups and names them",
            stream.name()
        );
        return Err(WireError::new(ErrorCode::InvalidArgument, text));
    }
    let mut accepted = Vec::new();
    if let (false, Some(clustered)) = (request.give_up.is_empty(), &shared.clustered) {
        let mut named: BTreeMap<StreamletKey, BTreeSet<_>> = BTreeMap::new();
        for group in request.give_up.iter().filter(|g| chosen(g.streamlet)) {
            let key = StreamletKey {
                stream: stream.id(),
                streamlet: StreamletId(group.streamlet),
            };
            let place = (LaneId(group.lane), GroupId(group.group));
            named.entry(key).or_default().insert(place);
        }
        let waiting = clustered.replicated.waiting();
        accepted = waiting.accept(&named).await;
        let lacking = waiting.accept_lacking(&named);
        for (streamlet, lane, group) in &lacking {
            let served = stream.streamlets.iter();
            let Some(served) = served.into_iter().find(|one| one.key() == *streamlet) else {
                continue;
            };
            let (lane, group) = (*lane, *group);
            // What can be had is fetched; what is given up shows below.
            let fetch = move || Ok::<_, String>(served.fetch_again(lane, group));
            let _ = blocking(fetch).await;
        }
        accepted.extend(waiting.given_up(&lacking));
    }
    let mut waiting = not_served_here(shared, stream);
    waiting.extend(shortage::lacking(shared, stream));
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
