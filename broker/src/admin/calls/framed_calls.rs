//! Control calls as frames: the functions that serve them over gRPC, by number.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kera_grpc::serve::Caller;
use kera_grpc::v1::clusters_server::Clusters;
use kera_grpc::v1::consumers_server::Consumers;
use kera_grpc::v1::lanes_server::Lanes;
use kera_grpc::v1::streams_server::Streams;
use kera_grpc::v1::transactions_server::Transactions;
use kera_protocol::Message;
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::frame::{MAX_CALL_BYTES, MAX_CALL_REPLY_BYTES, MAX_CALLS, PREFIX_BYTES};
use kera_protocol::v1::{self, CallMethod};
use tokio::task::{Id, JoinError, JoinSet};
use tonic::Request;

use super::cluster::ClustersService;
use super::consumers::ConsumersService;
use super::lanes::LanesService;
use super::streams::StreamsService;
use super::transactions::TransactionsService;
use super::{CONNECTION_BYTES, TOTAL_BYTES, TOTAL_CALLS, error_of};
use crate::access::Guarded;
use crate::shared::Shared;

/// About what a call takes beside the bytes of its request.
const CALL_BYTES: usize = 16 << 10;
/// A connection that holds no more is not refused for what others hold.
const SMALL_BYTES: usize = 32 << 10;
/// Likewise one that has no more calls.
const FEW_CALLS: usize = 8;
/// Most bytes of a message about an error: it is sent in a header.
const MOST_TEXT: usize = 16 << 10;

/// A reply's message, or why there is none.
pub(crate) type Answered = Result<Bytes, WireError>;

/// Serves the calls of all connections of one address.
pub(crate) struct FramedCalls {
    shared: Arc<Shared>,
    streams: Guarded<StreamsService>,
    consumers: Guarded<ConsumersService>,
    lanes: Guarded<LanesService>,
    transactions: Guarded<TransactionsService>,
    clusters: Guarded<ClustersService>,
    /// Calls under way, and bytes that they take.
    calls: AtomicUsize,
    bytes: AtomicUsize,
}

/// Decodes the request, and calls the method of the service that gRPC would call.
macro_rules! by_method {
    ($self:ident, $method:ident, $caller:ident, $body:ident: $($name:ident => $service:ident.$function:ident($request:ident),)*) => {
        match $method {
            $(CallMethod::$name => {
                let request = v1::$request::decode($body).map_err(|error| {
                    let text = format!("the body of the call is no {}: {error}", stringify!($request));
                    WireError::new(ErrorCode::InvalidArgument, text)
                })?;
                let mut request = Request::new(request);
                request.extensions_mut().insert($caller);
                let reply = $self.$service.$function(request).await;
                let reply = reply.map_err(|status| error_of(&status))?.into_inner();
                let bytes = reply.encoded_len();
                if bytes > $self.most_reply_bytes() {
                    return Err(too_long(bytes, $self.most_reply_bytes()));
                }
                Ok(Bytes::from(reply.encode_to_vec()))
            })*
            CallMethod::Unspecified => Err(unknown(0)),
        }
    };
}

impl FramedCalls {
    /// Calls over the broker's catalog and coordinators.
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: shared.clone(),
            streams: super::guarded_streams(shared),
            consumers: super::guarded_consumers(shared),
            lanes: super::guarded_lanes(shared),
            transactions: super::guarded_transactions(shared),
            clusters: super::guarded_clusters(shared),
            calls: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        }
    }

    fn most_reply_bytes(&self) -> usize {
        let frame = self.shared.config.server.max_frame_bytes as usize;
        MAX_CALL_REPLY_BYTES.min(frame.saturating_sub(PREFIX_BYTES))
    }

    async fn answer(&self, method: CallMethod, caller: Caller, body: Bytes) -> Answered {
        by_method! { self, method, caller, body:
            GetStream => streams.get_stream(GetStreamRequest),
            ListStreams => streams.list_streams(ListStreamsRequest),
            CreateStream => streams.create_stream(CreateStreamRequest),
            AlterStream => streams.alter_stream(AlterStreamRequest),
            DeleteStream => streams.delete_stream(DeleteStreamRequest),
            DescribeStream => streams.describe_stream(DescribeStreamRequest),
            TrimStream => streams.trim_stream(TrimStreamRequest),
            CompactStream => streams.compact_stream(CompactStreamRequest),
            RecoverStream => streams.recover_stream(RecoverStreamRequest),
            FindOrdinals => streams.find_ordinals(FindOrdinalsRequest),
            FindCopies => streams.find_copies(FindCopiesRequest),
            InitProducer => streams.init_producer(InitProducerRequest),
            FindCoordinator => consumers.find_coordinator(FindCoordinatorRequest),
            Join => consumers.join(JoinRequest),
            Heartbeat => consumers.heartbeat(HeartbeatRequest),
            Acquire => consumers.acquire(AcquireRequest),
            Commit => consumers.commit(CommitRequest),
            Leave => consumers.leave(LeaveRequest),
            ListGroups => consumers.list_groups(ListGroupsRequest),
            DescribeGroup => consumers.describe_group(DescribeGroupRequest),
            ResetGroup => consumers.reset_group(ResetGroupRequest),
            DeleteGroup => consumers.delete_group(DeleteGroupRequest),
            CommitPositions => consumers.commit_positions(CommitPositionsRequest),
            SendPositions => consumers.send_positions(SendPositionsRequest),
            GetGenerations => lanes.get_generations(GetGenerationsRequest),
            CutLane => lanes.cut_lane(CutLaneRequest),
            WatchLanes => lanes.watch_lanes(WatchLanesRequest),
            InitTransactions => transactions.init_transactions(InitTransactionsRequest),
            AddToTransaction => transactions.add_to_transaction(AddToTransactionRequest),
            PrepareTransaction => transactions.prepare_transaction(PrepareTransactionRequest),
            EndTransaction => transactions.end_transaction(EndTransactionRequest),
            ForgetTransaction => transactions.forget_transaction(ForgetTransactionRequest),
            ListOpenTransactions => transactions.list_open_transactions(ListOpenTransactionsRequest),
            HeartbeatTransaction => transactions.heartbeat_transaction(HeartbeatTransactionRequest),
            AbortTransactions => transactions.abort_transactions(AbortTransactionsRequest),
            DescribeCluster => clusters.describe_cluster(DescribeClusterRequest),
            CreatePin => streams.create_pin(CreatePinRequest),
            ListPins => streams.list_pins(ListPinsRequest),
            DeletePin => streams.delete_pin(DeletePinRequest),
        }
    }
}

/// A call's part of the bounds, until it is dropped.
struct Held {
    calls: Arc<FramedCalls>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.calls.calls.fetch_sub(1, Ordering::Relaxed);
        self.calls.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.calls.shared.data.note_freed(self.bytes);
    }
}

/// The calls of one connection. They end with it.
pub(crate) struct ConnectionCalls {
    calls: Arc<FramedCalls>,
    caller: Caller,
    /// The answer, and the bytes that the call held.
    under_way: JoinSet<(Answered, usize)>,
    correlations: HashMap<Id, u32>,
    bytes: usize,
}

impl ConnectionCalls {
    /// None are under way yet.
    pub(crate) fn new(calls: Arc<FramedCalls>, caller: Caller) -> Self {
        Self {
            calls,
            caller,
            under_way: JoinSet::new(),
            correlations: HashMap::new(),
            bytes: 0,
        }
    }

    /// True if no call waits for its answer.
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Begins a call, in a task of its own: others of the connection do not wait for it.
    ///
    /// # Errors
    /// The call is refused, and nothing was done.
    pub(crate) fn begin(
        &mut self,
        correlation: u32,
        request: &v1::CallRequest,
        body: &[u8],
    ) -> Result<(), WireError> {
        let known = CallMethod::try_from(request.method).ok();
        let method = known.filter(|method| *method != CallMethod::Unspecified);
        let method = method.ok_or_else(|| unknown(request.method))?;
        if body.len() > MAX_CALL_BYTES {
            return Err(too_long(body.len(), MAX_CALL_BYTES));
        }
        let held = self.hold(CALL_BYTES + body.len())?;
        let (calls, caller) = (self.calls.clone(), self.caller.clone());
        let body = Bytes::copy_from_slice(body);
        let within = request.deadline_ms;
        let task = self.under_way.spawn(async move {
            let answer = calls.answer(method, caller, body);
            let answered = if within == 0 {
                answer.await
            } else {
                let within = Duration::from_millis(within.into());
                let late = |_| Err(overdue(within));
                tokio::time::timeout(within, answer)
                    .await
                    .unwrap_or_else(late)
            };
            (answered, held.bytes)
        });
        self.correlations.insert(task.id(), correlation);
        Ok(())
    }

    fn hold(&mut self, bytes: usize) -> Result<Held, WireError> {
        let refused = |what: &str| {
            let text = format!("{what}; wait for replies, and call again");
            Err(WireError::new(ErrorCode::Overloaded, text))
        };
        if self.under_way.len() >= MAX_CALLS {
            return refused(&format!(
                "the connection has {MAX_CALLS} calls without a reply"
            ));
        }
        if self.bytes + bytes > CONNECTION_BYTES {
            return refused("the requests of the connection's calls take 16 MiB");
        }
        let calls = self.calls.clone();
        let others = calls.calls.fetch_add(1, Ordering::Relaxed);
        let held = calls.bytes.fetch_add(bytes, Ordering::Relaxed);
        // Taken back when it is dropped.
        let part = Held { calls, bytes };
        if others >= TOTAL_CALLS && self.under_way.len() >= FEW_CALLS {
            return refused("the broker has too many calls");
        }
        if held + bytes > TOTAL_BYTES && self.bytes + bytes > SMALL_BYTES {
            return refused("the requests of the broker's calls take too much memory");
        }
        self.bytes += bytes;
        Ok(part)
    }

    /// Waits for the next answer; for ever if there is no call.
    pub(crate) async fn next(&mut self) -> CallOver {
        match self.under_way.join_next_with_id().await {
            Some(over) => CallOver(over),
            None => std::future::pending().await,
        }
    }

    /// Whose answer it is, and the answer.
    pub(crate) fn take(&mut self, over: CallOver) -> Option<(u32, Answered)> {
        let (id, answered) = match over.0 {
            Ok((id, (answered, bytes))) => {
                self.bytes -= bytes;
                (id, answered)
            }
            Err(error) => {
                tracing::error!(%error, "a control call ended without an answer");
                let text = "the call failed within the broker; see the broker's log";
                (error.id(), Err(WireError::new(ErrorCode::Internal, text)))
            }
        };
        let correlation = self.correlations.remove(&id)?;
        // A call that ended without an answer did not tell its bytes.
        if self.under_way.is_empty() {
            self.bytes = 0;
        }
        Some((correlation, answered))
    }

    /// Gives up the calls that are under way, and tells whose they were.
    pub(crate) fn give_up(&mut self) -> Vec<u32> {
        self.under_way = JoinSet::new();
        self.bytes = 0;
        let mut correlations: Vec<u32> = self.correlations.drain().map(|(_, of)| of).collect();
        correlations.sort_unstable();
        correlations
    }
}

/// A call that is over.
pub(crate) struct CallOver(Result<(Id, (Answered, usize)), JoinError>);

/// The header that tells of `error`.
pub(crate) fn refusal(error: &WireError) -> v1::CallResponse {
    let mut message = error.message.clone();
    message.truncate(message.floor_char_boundary(MOST_TEXT));
    v1::CallResponse {
        error: error.code as u32,
        message,
    }
}

fn unknown(method: i32) -> WireError {
    let text = format!("this broker has no call {method}; use a newer broker");
    WireError::new(ErrorCode::UnsupportedVersion, text)
}

fn too_long(bytes: usize, most: usize) -> WireError {
    let text =
        format!("the call's message has {bytes} bytes, at most {most} can be sent; ask for less");
    WireError::new(ErrorCode::FrameTooLarge, text)
}

fn overdue(within: Duration) -> WireError {
    let text = format!("the call took longer than {within:?}; it may have been done all the same");
    WireError::new(ErrorCode::Timeout, text)
}
