//! Control calls.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kera_protocol::Message;
use kera_protocol::error::ErrorCode;
use kera_protocol::frame::Frame;
use kera_protocol::v1::{self, CallMethod, Cursor, find_ordinals_request::At};

use super::{Fake, STREAM_ID};

/// A call's reply, or the code that it is refused with.
type Answered<T> = Result<T, ErrorCode>;

/// Calls, as one of the brokers takes them.
#[derive(Clone)]
pub(super) struct Control(pub Arc<Fake>, pub usize);

impl Control {
    /// The reply to a call.
    pub(super) async fn answer(&self, frame: Frame) -> Answered<Vec<u8>> {
        macro_rules! answer {
            ($function:ident) => {{
                let request = Message::decode(frame.body).unwrap();
                Ok(self.$function(request).await?.encode_to_vec())
            }};
        }
        self.0.while_it_runs(self.1).await;
        let call: v1::CallRequest = frame.message().unwrap();
        match call.method() {
            CallMethod::GetStream => answer!(get_stream),
            CallMethod::FindOrdinals => answer!(find_ordinals),
            CallMethod::FindCopies => answer!(find_copies),
            CallMethod::Join => answer!(join),
            CallMethod::Heartbeat => answer!(heartbeat),
            CallMethod::Acquire => answer!(acquire),
            CallMethod::Commit => answer!(commit),
            CallMethod::FindCoordinator => answer!(find_coordinator),
            CallMethod::Leave => answer!(leave),
            other => panic!("consumers do not call {other:?}"),
        }
    }

    /// Refuses what is about a stream of which the broker has not heard.
    fn check_heard(&self) -> Answered<()> {
        match self.0.state.lock().unheard.contains(&self.1) {
            true => Err(ErrorCode::UnknownStream),
            false => Ok(()),
        }
    }

    /// Fails as planned, or checks that the group is coordinated here and the member is known.
    fn enter(&self, member: Option<&str>) -> Answered<()> {
        let mut state = self.0.state.lock();
        if state.coordinator != self.1 {
            return Err(ErrorCode::NotCoordinator);
        }
        if state.failures > 0 {
            state.failures -= 1;
            self.0.changed.notify_waiters();
            return Err(ErrorCode::ShuttingDown);
        }
        match member {
            Some(member) if !state.members.contains(member) => Err(ErrorCode::UnknownMember),
            _ => Ok(()),
        }
    }

    async fn get_stream(&self, _: v1::GetStreamRequest) -> Answered<v1::StreamInfo> {
        self.0.until(|state| state.owners_told != Some(0)).await;
        self.check_heard()?;
        let mut state = self.0.state.lock();
        state.owners_told = state.owners_told.map(|left| left - 1);
        let streamlets = 1 + state.lanes.keys().map(|lane| lane.0).max().unwrap();
        let lanes = 1 + state.lanes.keys().map(|lane| lane.1).max().unwrap();
        Ok(v1::StreamInfo {
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
        })
    }

    async fn find_ordinals(
        &self,
        request: v1::FindOrdinalsRequest,
    ) -> Answered<v1::FindOrdinalsResponse> {
        self.check_heard()?;
        let member = self.1;
        self.0
            .until(|state| !state.silent_finds.contains(&member))
            .await;
        let at = request.at.unwrap();
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
        Ok(v1::FindOrdinalsResponse { lanes })
    }

    async fn find_copies(
        &self,
        request: v1::FindCopiesRequest,
    ) -> Answered<v1::FindCopiesResponse> {
        let found = self.0.find(&request);
        self.0.change(|state| state.copies_told += 1);
        Ok(found)
    }

    async fn join(&self, request: v1::JoinRequest) -> Answered<v1::JoinResponse> {
        self.enter(None)?;
        let mut state = self.0.state.lock();
        if state.joins_unheard > 0 {
            state.joins_unheard -= 1;
            return Err(ErrorCode::UnknownStream);
        }
        state.joins += 1;
        let member = match state.members.contains(&request.member) {
            true => request.member,
            false => format!("m{}", state.joins),
        };
        state.members.insert(member.clone());
        drop(state);
        self.0.changed.notify_waiters();
        Ok(v1::JoinResponse {
            member,
            session_ms: request.session_ms,
            heartbeat_ms: 20,
        })
    }

    async fn heartbeat(&self, request: v1::HeartbeatRequest) -> Answered<v1::HeartbeatResponse> {
        self.enter(Some(&request.member))?;
        self.0.change(|state| state.beats_waiting += 1);
        self.0.until(|state| !state.beats_wait).await;
        let answer = {
            let mut state = self.0.state.lock();
            state.beats_waiting -= 1;
            state.heartbeats += 1;
            v1::HeartbeatResponse {
                give_back: state.give_back.clone(),
                lost: request
                    .leases
                    .into_iter()
                    .filter(|lease| !state.held.contains_key(lease))
                    .collect(),
            }
        };
        self.0.changed.notify_waiters();
        Ok(answer)
    }

    async fn acquire(&self, request: v1::AcquireRequest) -> Answered<v1::AcquireResponse> {
        let wait = Duration::from_millis(u64::from(request.max_wait_ms));
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
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
                self.0.until(|state| !state.untold).await;
                return Ok(v1::AcquireResponse { leases });
            }
        }
    }

    async fn commit(&self, request: v1::CommitRequest) -> Answered<v1::CommitResponse> {
        self.enter(Some(&request.member))?;
        let (mut stale, mut pending) = (Vec::new(), Vec::new());
        let is_held = |state: &super::State| {
            let mut leases = request.commits.iter().map(|commit| commit.lease);
            leases.any(|lease| state.sent.contains(&lease))
        };
        if !request.accepts_pending && is_held(&self.0.state.lock()) {
            return Err(ErrorCode::TransactionPending);
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
        Ok(v1::CommitResponse { stale, pending })
    }

    async fn find_coordinator(
        &self,
        _: v1::FindCoordinatorRequest,
    ) -> Answered<v1::FindCoordinatorResponse> {
        let mut state = self.0.state.lock();
        state.lookups += 1;
        Ok(v1::FindCoordinatorResponse {
            broker_id: state.coordinator as u32,
            address: self.0.members[state.coordinator].control_address.clone(),
        })
    }

    async fn leave(&self, request: v1::LeaveRequest) -> Answered<v1::LeaveResponse> {
        self.enter(None)?;
        self.0.change(|state| {
            state.left += usize::from(state.members.remove(&request.member));
            state.held.clear();
        });
        Ok(v1::LeaveResponse {})
    }
}
