//! Control calls.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1::{self, Cursor, find_ordinals_request::At};
use kera_rpc::status_of;
use kera_rpc::v1::consumers_server::Consumers;
use kera_rpc::v1::streams_server::Streams;
use tonic::{Request, Response, Status};

use super::{Fake, STREAM_ID};

#[derive(Clone)]
pub(super) struct Control(pub Arc<Fake>, pub usize);

fn refuse(code: ErrorCode) -> Status {
    status_of(&WireError::new(code, "planted"))
}

impl Control {
    /// As a call finds the broker.
    async fn reach(&self) -> Result<(), Status> {
        self.0.while_it_runs(self.1).await;
        match self.0.is_dead(self.1) {
            true => Err(Status::unavailable("it is dead")),
            false => Ok(()),
        }
    }

    /// Refuses what is about a stream of which the broker has not heard.
    fn check_heard(&self) -> Result<(), Status> {
        match self.0.state.lock().unheard.contains(&self.1) {
            true => Err(refuse(ErrorCode::UnknownStream)),
            false => Ok(()),
        }
    }

    /// Fails as planned, or checks that the group is coordinated here and the member is known.
    fn enter(&self, member: Option<&str>) -> Result<(), Status> {
        let mut state = self.0.state.lock();
        if state.coordinator != self.1 {
            return Err(refuse(ErrorCode::NotCoordinator));
        }
        if state.failures > 0 {
            state.failures -= 1;
            self.0.changed.notify_waiters();
            return Err(Status::unavailable("planted"));
        }
        match member {
            Some(member) if !state.members.contains(member) => {
                Err(refuse(ErrorCode::UnknownMember))
            }
            _ => Ok(()),
        }
    }
}

macro_rules! not_needed {
    ($($name:ident($request:ident) -> $response:ident;)+) => {
        $(
            fn $name<'life0, 'async_trait>(
                &'life0 self,
                _: Request<v1::$request>,
            ) -> std::pin::Pin<
                Box<
                    dyn Future<Output = Result<Response<v1::$response>, Status>>
                        + Send
                        + 'async_trait,
                >,
            >
            where
                'life0: 'async_trait,
                Self: 'async_trait,
            {
                Box::pin(async { Err(Status::unimplemented("not needed by consumers")) })
            }
        )+
    };
}

#[tonic::async_trait]
impl Streams for Control {
    async fn get_stream(
        &self,
        _: Request<v1::GetStreamRequest>,
    ) -> Result<Response<v1::StreamInfo>, Status> {
        self.reach().await?;
        self.0.until(|state| state.owners_told != Some(0)).await;
        self.check_heard()?;
        let mut state = self.0.state.lock();
        state.owners_told = state.owners_told.map(|left| left - 1);
        let streamlets = 1 + state.lanes.keys().map(|lane| lane.0).max().unwrap();
        let lanes = 1 + state.lanes.keys().map(|lane| lane.1).max().unwrap();
        Ok(Response::new(v1::StreamInfo {
            name: "s".to_owned(),
            id: Bytes::copy_from_slice(&STREAM_ID),
            config: Some(v1::StreamConfig {
                streamlets: Some(streamlets),
                lanes: Some(lanes),
                ..v1::StreamConfig::default()
            }),
            streamlets: (0..streamlets)
                .map(|streamlet| v1::StreamletInfo {
                    streamlet,
                    owner: self.0.members[state.owner].data_address.clone(),
                    epoch: 1,
                    ..v1::StreamletInfo::default()
                })
                .collect(),
            ..v1::StreamInfo::default()
        }))
    }

    async fn find_ordinals(
        &self,
        request: Request<v1::FindOrdinalsRequest>,
    ) -> Result<Response<v1::FindOrdinalsResponse>, Status> {
        self.reach().await?;
        self.check_heard()?;
        let member = self.1;
        self.0
            .until(|state| !state.silent_finds.contains(&member))
            .await;
        let at = request.into_inner().at.unwrap();
        let state = self.0.state.lock();
        let lanes = state
            .lanes
            .iter()
            .map(|(lane, log)| v1::LaneCursor {
                streamlet: lane.0,
                lane: lane.1,
                cursor: Some(Cursor {
                    ordinal: match at {
                        At::Earliest(_) => log.log_start,
                        At::Latest(_) => log.head,
                        // Record n was written at time n.
                        At::TimestampMs(n) | At::Ordinal(n) => n.clamp(log.log_start, log.head),
                    },
                    ..Cursor::default()
                }),
                head_ordinal: log.head,
                log_start: log.log_start,
            })
            .chain(state.planted_lane)
            .collect();
        Ok(Response::new(v1::FindOrdinalsResponse { lanes }))
    }

    async fn find_copies(
        &self,
        request: Request<v1::FindCopiesRequest>,
    ) -> Result<Response<v1::FindCopiesResponse>, Status> {
        self.reach().await?;
        let found = self.0.find(&request.into_inner());
        self.0.change(|state| state.copies_told += 1);
        Ok(Response::new(found))
    }

    not_needed! {
        create_stream(CreateStreamRequest) -> StreamInfo;
        list_streams(ListStreamsRequest) -> ListStreamsResponse;
        describe_stream(DescribeStreamRequest) -> DescribeStreamResponse;
        recover_stream(RecoverStreamRequest) -> RecoverStreamResponse;
        alter_stream(AlterStreamRequest) -> StreamInfo;
        delete_stream(DeleteStreamRequest) -> DeleteStreamResponse;
        trim_stream(TrimStreamRequest) -> TrimStreamResponse;
        compact_stream(CompactStreamRequest) -> CompactStreamResponse;
        init_producer(InitProducerRequest) -> InitProducerResponse;
        describe_broker(DescribeBrokerRequest) -> DescribeBrokerResponse;
    }
}

#[tonic::async_trait]
impl Consumers for Control {
    async fn join(
        &self,
        request: Request<v1::JoinRequest>,
    ) -> Result<Response<v1::JoinResponse>, Status> {
        self.reach().await?;
        self.enter(None)?;
        let request = request.into_inner();
        let mut state = self.0.state.lock();
        if state.joins_unheard > 0 {
            state.joins_unheard -= 1;
            return Err(refuse(ErrorCode::UnknownStream));
        }
        state.joins += 1;
        let member = match state.members.contains(&request.member) {
            true => request.member,
            false => format!("m{}", state.joins),
        };
        state.members.insert(member.clone());
        drop(state);
        self.0.changed.notify_waiters();
        Ok(Response::new(v1::JoinResponse {
            member,
            session_ms: request.session_ms,
            heartbeat_ms: 20,
        }))
    }

    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatRequest>,
    ) -> Result<Response<v1::HeartbeatResponse>, Status> {
        self.reach().await?;
        let request = request.into_inner();
        self.enter(Some(&request.member))?;
        let state = self.0.state.lock();
        Ok(Response::new(v1::HeartbeatResponse {
            give_back: state.give_back.clone(),
            lost: request
                .leases
                .into_iter()
                .filter(|lease| !state.held.contains_key(lease))
                .collect(),
        }))
    }

    async fn acquire(
        &self,
        request: Request<v1::AcquireRequest>,
    ) -> Result<Response<v1::AcquireResponse>, Status> {
        let request = request.into_inner();
        let wait = Duration::from_millis(u64::from(request.max_wait_ms));
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            self.reach().await?;
            self.enter(Some(&request.member))?;
            let leases: Vec<v1::Lease> = {
                let mut state = self.0.state.lock();
                let count = state.grants.len().min(request.max_leases as usize);
                let leases: Vec<v1::Lease> = state.grants.drain(..count).collect();
                for lease in &leases {
                    state.held.insert(lease.lease, lease.clone());
                }
                leases
            };
            if !leases.is_empty() || tokio::time::timeout_at(deadline, changed).await.is_err() {
                self.0.changed.notify_waiters();
                return Ok(Response::new(v1::AcquireResponse { leases }));
            }
        }
    }

    async fn commit(
        &self,
        request: Request<v1::CommitRequest>,
    ) -> Result<Response<v1::CommitResponse>, Status> {
        self.reach().await?;
        let request = request.into_inner();
        self.enter(Some(&request.member))?;
        let (mut stale, mut pending) = (Vec::new(), Vec::new());
        let is_held = |state: &super::State| {
            let mut leases = request.commits.iter().map(|commit| commit.lease);
            leases.any(|lease| state.sent.contains(&lease))
        };
        if !request.accepts_pending && is_held(&self.0.state.lock()) {
            return Err(refuse(ErrorCode::TransactionPending));
        }
        self.0.change(|state| {
            for commit in request.commits {
                if state.sent.contains(&commit.lease) {
                    state.told_pending += 1;
                    pending.push(commit.lease);
                    continue;
                }
                if !state.held.contains_key(&commit.lease) {
                    stale.push(commit.lease);
                    continue;
                }
                if let Some(next) = commit.next {
                    let before = state.commits.insert(commit.lease, next.ordinal);
                    assert!(before.is_none_or(|before| before < next.ordinal));
                }
                if commit.release {
                    state.held.remove(&commit.lease);
                    state.released.push(commit.lease);
                }
            }
        });
        self.0.until(|state| !state.unanswered).await;
        Ok(Response::new(v1::CommitResponse { stale, pending }))
    }

    async fn find_coordinator(
        &self,
        _: Request<v1::FindCoordinatorRequest>,
    ) -> Result<Response<v1::FindCoordinatorResponse>, Status> {
        self.reach().await?;
        let mut state = self.0.state.lock();
        state.lookups += 1;
        Ok(Response::new(v1::FindCoordinatorResponse {
            broker_id: state.coordinator as u32,
            address: self.0.members[state.coordinator].control_address.clone(),
        }))
    }

    async fn leave(
        &self,
        request: Request<v1::LeaveRequest>,
    ) -> Result<Response<v1::LeaveResponse>, Status> {
        self.reach().await?;
        self.enter(None)?;
        let request = request.into_inner();
        self.0.change(|state| {
            state.left += usize::from(state.members.remove(&request.member));
            state.held.clear();
        });
        Ok(Response::new(v1::LeaveResponse {}))
    }

    not_needed! {
        commit_positions(CommitPositionsRequest) -> CommitPositionsResponse;
        send_positions(SendPositionsRequest) -> SendPositionsResponse;
        list_groups(ListGroupsRequest) -> ListGroupsResponse;
        describe_group(DescribeGroupRequest) -> DescribeGroupResponse;
        reset_group(ResetGroupRequest) -> ResetGroupResponse;
        delete_group(DeleteGroupRequest) -> DeleteGroupResponse;
    }
}
