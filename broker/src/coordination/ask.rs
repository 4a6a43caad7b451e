//! What a coordinator asks other owners.

use std::collections::BTreeSet;
use std::time::Duration;

use kera_coordinator::{Cut, CutWish};
use kera_grpc::v1::lanes_client::LanesClient;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneKey, Ordinal, StreamId};
use kera_protocol::v1::{self, find_ordinals_request::At};
use tonic::transport::Channel;

use crate::others;
use crate::shared::Shared;

/// How long an owner is given for what it has in memory.
pub(super) const ASK_WITHIN: Duration = Duration::from_secs(2);
/// Longest answer accepted.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Brokers other than this one that own streamlets of a stream.
pub(super) fn other_owners(shared: &Shared, stream: StreamId) -> BTreeSet<u32> {
    let Some(stream) = shared.data.catalog.get(stream) else {
        return BTreeSet::new();
    };
    shared.other_owners(&stream)
}

/// The streamlets of a stream that a broker owns.
pub(super) fn streamlets_of(shared: &Shared, stream: StreamId, broker: u32) -> BTreeSet<u32> {
    let Some(stream) = shared.data.catalog.get(stream) else {
        return BTreeSet::new();
    };
    let owners = shared.owners_of(&stream).into_iter().zip(0..);
    let owned = owners.filter(|(owner, _)| *owner == broker);
    owned.map(|(_, streamlet)| streamlet).collect()
}

fn lanes(shared: &Shared, broker: u32) -> Result<LanesClient<Channel>, WireError> {
    let channel = others::channel(shared, broker)?;
    Ok(LanesClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES))
}

/// The lanes of a broker, once one differs from what is known, or after `wait`.
pub(super) async fn watch(
    shared: &Shared,
    stream: StreamId,
    broker: u32,
    known: Vec<v1::LaneBounds>,
    wait: Duration,
) -> Result<Vec<v1::LaneBounds>, WireError> {
    let mut stub = lanes(shared, broker)?;
    let request = v1::WatchLanesRequest {
        stream: stream.as_bytes().to_vec().into(),
        known,
        max_wait_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
    };
    let answer = others::answer(broker, wait + ASK_WITHIN, stub.watch_lanes(request)).await?;
    Ok(answer.lanes)
}

/// Where a place is in the lanes of a broker.
pub(super) async fn find(
    shared: &Shared,
    stream: StreamId,
    broker: u32,
    at: At,
) -> Result<Vec<v1::LaneCursor>, WireError> {
    let stream = shared.data.catalog.get(stream).ok_or_else(|| {
        WireError::new(
            ErrorCode::UnknownStream,
            format!("no stream has id {stream}"),
        )
    })?;
    let mut stub = others::streams(shared, broker)?;
    let request = v1::FindOrdinalsRequest {
        name: stream.name(),
        at: Some(at),
        local: true,
    };
    let answer = others::answer(broker, ASK_WITHIN, stub.find_ordinals(request)).await?;
    Ok(answer.lanes)
}

/// Where a range of a lane ends; `None` if its owner has nothing there, or is not reached.
pub(super) async fn cut(
    shared: &Shared,
    lane: LaneKey,
    from: Ordinal,
    wish: CutWish,
) -> Option<Cut> {
    let owner = shared.data.catalog.get(lane.stream)?;
    let owner = *shared.owners_of(&owner).get(lane.streamlet.0 as usize)?;
    let request = v1::CutLaneRequest {
        stream: lane.stream.as_bytes().to_vec().into(),
        streamlet: lane.streamlet.0,
        lane: lane.lane.0,
        from_ordinal: from,
        max_ordinals: wish.ordinals,
        max_bytes: wish.bytes,
    };
    let asked = async {
        let mut stub = lanes(shared, owner)?;
        others::answer(owner, ASK_WITHIN, stub.cut_lane(request)).await
    };
    match asked.await {
        Ok(answer) => answer.found.then(|| Cut {
            start: answer.start.unwrap_or_default(),
            end: answer.end_ordinal,
        }),
        Err(error) => {
            tracing::debug!(%lane, owner, %error, "a range could not be cut");
            None
        }
    }
}
