//! The `Lanes` service: what coordinators at other brokers, and stream engines, ask of lanes that this one serves.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use kera_grpc::v1::lanes_server::Lanes;
use kera_log_segments::head::LaneHead;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{LaneId, Ordinal, StreamletId};
use kera_protocol::v1;
use kera_streamlet::Streamlet;
use tonic::{Request, Response, Status};

use super::generations::generations;
use super::status;
use crate::admin;
use crate::api;
use crate::bell::Bell;
use crate::data::catalog::Stream;
use crate::data::fetch::{code_of, cursor};
use crate::shared::Shared;
use crate::shares;
use crate::store_calls::blocking;
use crate::transactions;

/// Longest wait for news.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// While waiting, owners are looked at this often.
const LOOK: Duration = Duration::from_millis(250);
/// Heads that move within this time are told together.
const COALESCE: Duration = Duration::from_millis(1);

/// Serves lanes.
pub(super) struct LanesService {
    shared: Arc<Shared>,
}

impl LanesService {
    /// A service over the broker's catalog.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    fn stream(&self, id: &[u8]) -> Result<Arc<Stream>, Status> {
        self.shared.data.catalog.of_id(id).map_err(status)
    }

    /// The stream's streamlets that this broker serves.
    fn served(&self, stream: &Stream) -> Vec<Arc<Streamlet>> {
        let directory = &self.shared.data.directory;
        let served = stream.streamlets.iter();
        let served = served.filter(|s| s.is_recovered() && directory.serves(s.stream(), s.id()));
        served.collect()
    }
}

fn bounds(streamlets: &[Arc<Streamlet>]) -> Vec<v1::LaneBounds> {
    let lanes = streamlets.iter().flat_map(|streamlet| {
        let lanes = streamlet.bounds().into_iter();
        lanes.filter_map(|(lane, log_start, head)| {
            // Records of open transactions are nobody's to consume yet. Of a lane whose transactions are not known
            // nothing is told.
            let stable = streamlet.stable(lane)?.min(head);
            let empty = if stable == head {
                streamlet.empty_below_head(lane)
            } else {
                0
            };
            Some(v1::LaneBounds {
                streamlet: streamlet.id().0,
                lane: lane.0,
                log_start,
                head_ordinal: stable,
                empty_ordinals: empty,
            })
        })
    });
    let mut lanes: Vec<_> = lanes.collect();
    lanes.sort_unstable_by_key(|lane| (lane.streamlet, lane.lane));
    lanes
}

/// The durable heads of all lanes.
fn heads(streamlets: &[Arc<Streamlet>]) -> Vec<(Arc<LaneHead>, Ordinal)> {
    let lanes = streamlets.iter().flat_map(|streamlet| {
        let bounds = streamlet.bounds().into_iter();
        bounds.filter_map(|(lane, _, head)| Some((streamlet.head(lane)?, head)))
    });
    lanes.collect()
}

/// Has `waker` woken when a head moves above where it was. False: one has moved already. The last stable ordinals, which
/// are told, move only when heads do.
fn park(heads: &[(Arc<LaneHead>, Ordinal)], waker: &Waker) -> bool {
    let mut heads = heads.iter();
    heads.all(|(head, seen)| head.wait(seen.saturating_add(1), waker))
}

fn forget(streamlets: &[Arc<Streamlet>], waker: &Waker) {
    for streamlet in streamlets {
        for (lane, _, _) in streamlet.bounds() {
            if let Some(head) = streamlet.head(lane) {
                head.forget(waker);
            }
        }
    }
}

#[tonic::async_trait]
impl Lanes for LanesService {
    async fn get_generations(
        &self,
        request: Request<v1::GetGenerationsRequest>,
    ) -> Result<Response<v1::GetGenerationsResponse>, Status> {
        let request = request.into_inner();
        let stream = admin::named(&self.shared, &request.name).map_err(status)?;
        let told = generations(&stream.record.load(), request.from_generation);
        Ok(Response::new(told))
    }

    async fn watch_lanes(
        &self,
        request: Request<v1::WatchLanesRequest>,
    ) -> Result<Response<v1::WatchLanesResponse>, Status> {
        let request = request.into_inner();
        let mut known = request.known;
        known.sort_unstable_by_key(|lane| (lane.streamlet, lane.lane));
        let wait = Duration::from_millis(u64::from(request.max_wait_ms)).min(MAX_WAIT);
        let deadline = tokio::time::Instant::now() + wait;
        let mut stopping = self.shared.stopping.subscribe();
        let bell = Arc::new(Bell::default());
        let waker = Waker::from(bell.clone());
        loop {
            let stream = self.stream(&request.stream)?;
            let served = self.served(&stream);
            let heads = heads(&served);
            let lanes = bounds(&served);
            let now = tokio::time::Instant::now();
            if lanes != known || now >= deadline || *stopping.borrow() {
                return Ok(Response::new(v1::WatchLanesResponse { lanes }));
            }
            if park(&heads, &waker) {
                let moved = tokio::select! {
                    () = bell.rung() => true,
                    () = tokio::time::sleep_until(deadline.min(now + LOOK)) => false,
                    _ = stopping.wait_for(|stop| *stop) => false,
                };
                if moved {
                    tokio::time::sleep(COALESCE).await;
                }
            }
            forget(&served, &waker);
        }
    }

    async fn cut_lane(
        &self,
        request: Request<v1::CutLaneRequest>,
    ) -> Result<Response<v1::CutLaneResponse>, Status> {
        let request = request.into_inner();
        let stream = self.stream(&request.stream)?;
        let id = StreamletId(request.streamlet);
        let served = self.served(&stream);
        let Some(streamlet) = served.into_iter().find(|s| s.id() == id) else {
            let text = format!("stream {} streamlet {id}: not served here", stream.name());
            return Err(status(WireError::new(ErrorCode::NotOwner, text)));
        };
        let is_replicated = stream.record.load().config.is_replicated();
        let cut = blocking(move || {
            let bytes = request.max_bytes as usize;
            let ordinals = request.max_ordinals.max(1);
            let lane = LaneId(request.lane);
            let found = streamlet.batch_boundary(lane, request.from_ordinal, bytes, ordinals);
            let found =
                found.map_err(|e| WireError::new(code_of(&e, is_replicated), e.to_string()))?;
            Ok(match found {
                Some((start, end)) => v1::CutLaneResponse {
                    found: true,
                    start: Some(cursor(&start, streamlet.settings().segment_size)),
                    end_ordinal: end,
                },
                None => v1::CutLaneResponse::default(),
            })
        });
        cut.await.map(Response::new).map_err(status)
    }

    async fn cut_for_growth(
        &self,
        request: Request<v1::CutForGrowthRequest>,
    ) -> Result<Response<v1::CutForGrowthResponse>, Status> {
        let request = request.into_inner();
        let stream = self.stream(&request.stream)?;
        let cut = admin::cut_for_growth(&self.shared, &stream, &request).await;
        cut.map(Response::new).map_err(status)
    }

    async fn grant_transaction(
        &self,
        request: Request<v1::GrantTransactionRequest>,
    ) -> Result<Response<v1::GrantTransactionResponse>, Status> {
        let granted = transactions::grant_here(&self.shared, request.get_ref());
        granted.map_err(status)?;
        Ok(Response::new(v1::GrantTransactionResponse {}))
    }

    async fn verify_transaction(
        &self,
        request: Request<v1::VerifyTransactionRequest>,
    ) -> Result<Response<v1::VerifyTransactionResponse>, Status> {
        let verified = transactions::verify_here(&self.shared, request.into_inner()).await;
        verified.map(Response::new).map_err(status)
    }

    async fn add_transaction_parts(
        &self,
        request: Request<v1::AddTransactionPartsRequest>,
    ) -> Result<Response<v1::AddTransactionPartsResponse>, Status> {
        let added = transactions::add_for(&self.shared, request.into_inner()).await;
        added.map(Response::new).map_err(status)
    }

    async fn end_transactions(
        &self,
        request: Request<v1::EndTransactionsRequest>,
    ) -> Result<Response<v1::EndTransactionsResponse>, Status> {
        let ended = transactions::end_here(&self.shared, request.into_inner()).await;
        ended.map(Response::new).map_err(status)
    }

    async fn settle_transactions(
        &self,
        request: Request<v1::SettleTransactionsRequest>,
    ) -> Result<Response<v1::SettleTransactionsResponse>, Status> {
        let settled = transactions::settle_here(&self.shared, request.into_inner()).await;
        settled.map(Response::new).map_err(status)
    }

    async fn list_unended(
        &self,
        request: Request<v1::ListUnendedRequest>,
    ) -> Result<Response<v1::ListUnendedResponse>, Status> {
        let listed = transactions::lost::list_unended(&self.shared, request.get_ref());
        listed.map(Response::new).map_err(status)
    }

    async fn find_transactions(
        &self,
        request: Request<v1::FindTransactionsRequest>,
    ) -> Result<Response<v1::FindTransactionsResponse>, Status> {
        let found = transactions::lost::find(&self.shared, request.get_ref());
        found.map(Response::new).map_err(status)
    }

    async fn open_share(
        &self,
        request: Request<v1::OpenShareRequest>,
    ) -> Result<Response<v1::OpenShareResponse>, Status> {
        let opened = shares::open_here(&self.shared, request.into_inner()).await;
        opened.map(Response::new).map_err(status)
    }

    async fn write_share(
        &self,
        request: Request<v1::WriteShareRequest>,
    ) -> Result<Response<v1::WriteShareResponse>, Status> {
        let written = shares::write_here(&self.shared, request.into_inner()).await;
        written.map(Response::new).map_err(status)
    }

    async fn group_settings(
        &self,
        request: Request<v1::GroupSettingsRequest>,
    ) -> Result<Response<v1::GroupSettingsResponse>, Status> {
        let settings = shares::settings_here(&self.shared, request.into_inner()).await;
        settings.map(Response::new).map_err(status)
    }

    async fn append_dead_letters(
        &self,
        request: Request<v1::AppendDeadLettersRequest>,
    ) -> Result<Response<v1::AppendDeadLettersResponse>, Status> {
        let appended = shares::append_here(&self.shared, request.into_inner()).await;
        appended.map(Response::new).map_err(status)
    }

    async fn give_up_growth(
        &self,
        request: Request<v1::GiveUpGrowthRequest>,
    ) -> Result<Response<v1::GiveUpGrowthResponse>, Status> {
        let request = request.into_inner();
        let stream = self.stream(&request.stream)?;
        admin::give_up_growth(&stream, request.attempt);
        Ok(Response::new(v1::GiveUpGrowthResponse {}))
    }

    async fn observe(
        &self,
        _: Request<v1::ObserveRequest>,
    ) -> Result<Response<v1::ObserveResponse>, Status> {
        let observed = api::observe(&self.shared).await;
        let observed = observed.map_err(status)?;
        Ok(Response::new((*observed).clone()))
    }

    async fn peek_lane(
        &self,
        request: Request<v1::PeekLaneRequest>,
    ) -> Result<Response<v1::PeekLaneResponse>, Status> {
        let read = request.into_inner().read.unwrap_or_default();
        let peeked = api::peek(&self.shared, read).await;
        peeked.map(Response::new).map_err(status)
    }
}
