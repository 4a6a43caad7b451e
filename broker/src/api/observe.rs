//! What this broker owns and coordinates, in sums; and what other brokers say of theirs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;

use crate::admin::calls::describe::{MOST_TROUBLES, troubles};
use crate::data::catalog::Stream;
use crate::data::fetch::{Read, Step};
use crate::others;
use crate::process;
use crate::shared::Shared;
use crate::store_calls::blocking;

/// Most bytes of batches that are looked at in one go, unless one batch is larger.
pub(crate) const PEEK_BYTES: u32 = 256 << 10;

/// Lanes of a stream with open transactions that are told.
const UNSTABLE_LANES: usize = 64;

/// What this broker owns and coordinates.
///
/// # Errors
/// [`ErrorCode::Internal`] after a panic.
pub(crate) async fn observe(shared: &Arc<Shared>) -> Result<Arc<v1::ObserveResponse>, WireError> {
    let shared = shared.clone();
    blocking(move || Ok(shared.observed.get(|| look(&shared)))).await
}

fn look(shared: &Shared) -> v1::ObserveResponse {
    let streams = shared.data.catalog.all();
    let users = streams.iter().filter(|s| !s.record.load().internal);
    let mut troubles = troubles(shared);
    let troubles_total = troubles.len() as u64;
    troubles.truncate(MOST_TROUBLES);
    let (free, total) = shared.dir.space().unwrap_or_default();
    let ready = shared.readiness().err().map(str::to_owned);
    v1::ObserveResponse {
        broker: shared.data.directory.me(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_ms: shared.started_ms,
        not_ready: ready.or(shared.liveness().err()).unwrap_or_default(),
        streams: users
            .filter_map(|stream| of_stream(shared, stream))
            .collect(),
        groups: shared.coordination.summaries(shared),
        troubles,
        troubles_total,
        disk_free_bytes: free,
        disk_total_bytes: total,
        pool_bytes: shared.data.env.pool.limit() as u64,
        pool_used_bytes: shared.data.env.pool.used() as u64,
        connections: shared.connections.load(Ordering::Relaxed) as u32,
        cpu_seconds: process::cpu_time().as_secs_f64(),
        resident_bytes: process::resident_bytes().unwrap_or_default(),
    }
}

/// What this broker serves of a stream; `None` if it is nothing.
fn of_stream(shared: &Shared, stream: &Stream) -> Option<v1::ObservedStream> {
    let mut observed = v1::ObservedStream {
        stream: stream.id().as_bytes().to_vec().into(),
        ..Default::default()
    };
    for streamlet in &stream.streamlets {
        let directory = &shared.data.directory;
        if !streamlet.is_recovered() || !directory.serves(streamlet.stream(), streamlet.id()) {
            continue;
        }
        observed.streamlets += 1;
        for lane in streamlet.describe() {
            observed.lanes += 1;
            observed.records += lane.head.saturating_sub(lane.log_start);
            observed.unacknowledged += lane.end_ordinal.saturating_sub(lane.head);
            observed.bytes += lane.groups.iter().map(|group| group.bytes).sum::<u64>();
            let stable = streamlet.stable(lane.lane).unwrap_or(lane.head);
            let stable = stable.clamp(lane.log_start.min(lane.head), lane.head);
            if stable < lane.head {
                observed.above_stable += lane.head - stable;
                observed.unstable_lanes.push(v1::UnstableLane {
                    streamlet: streamlet.id().0,
                    lane: lane.lane.0,
                    stable_ordinal: stable,
                    head_ordinal: lane.head,
                });
            }
        }
        let totals = streamlet.traffic().totals();
        observed.traffic.push(v1::ObservedTraffic {
            streamlet: streamlet.id().0,
            appended_records: totals.appended_records,
            appended_bytes: totals.appended_bytes,
            read_bytes: totals.read_bytes,
        });
    }
    let unstable = &mut observed.unstable_lanes;
    unstable.sort_by_key(|lane| std::cmp::Reverse(lane.head_ordinal - lane.stable_ordinal));
    unstable.truncate(UNSTABLE_LANES);
    (observed.streamlets > 0).then_some(observed)
}

/// What each of the other brokers owns and coordinates, by number, or why it does not say so.
pub(super) async fn observe_others(
    shared: &Arc<Shared>,
    within: Duration,
) -> Vec<(u32, Result<v1::ObserveResponse, WireError>)> {
    let asked = others::all(shared).into_iter().map(|id| async move {
        let answer = async {
            let mut stub = others::lanes(shared, id)?;
            others::answer(id, within, stub.observe(v1::ObserveRequest {})).await
        };
        (id, answer.await)
    });
    futures::future::join_all(asked).await
}

/// Batches of a lane that this broker serves.
///
/// # Errors
/// As of a read.
pub(crate) async fn peek(
    shared: &Arc<Shared>,
    mut request: v1::ReadRequest,
) -> Result<v1::PeekLaneResponse, WireError> {
    request.max_bytes = request.max_bytes.min(PEEK_BYTES);
    (request.max_wait_ms, request.min_bytes) = (0, 0);
    request.from_copy = false;
    let shared = shared.clone();
    blocking(move || {
        let mut read = Read::new(&shared.data, 0, &request)?;
        let at_most = request.max_bytes as usize;
        match read.step(Waker::noop(), Instant::now(), at_most, true) {
            Step::Reply(reply, body) => Ok(v1::PeekLaneResponse {
                reply: Some(reply),
                batches: Bytes::from(body.concat()),
            }),
            Step::Wait | Step::Blocking => Err(WireError::new(
                ErrorCode::Internal,
                "a read that waits for nothing was not answered",
            )),
        }
    })
    .await
}

/// Batches of a lane of the broker that serves it.
///
/// # Errors
/// As of a read, or [`ErrorCode::NotOwner`] if its owner was not reached.
pub(super) async fn peek_at(
    shared: &Arc<Shared>,
    owner: u32,
    request: v1::ReadRequest,
    within: Duration,
) -> Result<v1::PeekLaneResponse, WireError> {
    if owner == shared.data.directory.me() {
        return peek(shared, request).await;
    }
    let mut stub = others::lanes(shared, owner)?;
    let request = v1::PeekLaneRequest {
        read: Some(request),
    };
    others::answer(owner, within, stub.peek_lane(request)).await
}
