//! The control calls that brokers take as frames, by their requests.

use kera_protocol::Message;
use kera_protocol::frame::MAX_CALL_REPLY_BYTES;
use kera_protocol::v1::{self, CallMethod};

/// Longest places accepted: more than those of a stream with as many lanes as one can have.
pub(crate) const MAX_FOUND_BYTES: usize = 8 << 20;

/// The request of a control call.
pub trait ControlCall: Message + Clone {
    /// The number of its method.
    const METHOD: CallMethod;
    /// Longest reply accepted.
    const MAX_REPLY_BYTES: usize = MAX_CALL_REPLY_BYTES;
    /// What it is answered.
    type Reply: Message + Default;
}

macro_rules! control_calls {
    ($($method:ident($request:ident) -> $reply:ident $(<= $most:expr)?;)+) => {
        $(impl ControlCall for v1::$request {
            const METHOD: CallMethod = CallMethod::$method;
            $(const MAX_REPLY_BYTES: usize = $most;)?
            type Reply = v1::$reply;
        })+

        #[cfg(test)]
        const METHODS: &[CallMethod] = &[$(CallMethod::$method),+];
    };
}

control_calls! {
    GetStream(GetStreamRequest) -> StreamInfo;
    ListStreams(ListStreamsRequest) -> ListStreamsResponse;
    CreateStream(CreateStreamRequest) -> StreamInfo;
    AlterStream(AlterStreamRequest) -> StreamInfo;
    DeleteStream(DeleteStreamRequest) -> DeleteStreamResponse;
    DescribeStream(DescribeStreamRequest) -> DescribeStreamResponse;
    TrimStream(TrimStreamRequest) -> TrimStreamResponse;
    CompactStream(CompactStreamRequest) -> CompactStreamResponse;
    RecoverStream(RecoverStreamRequest) -> RecoverStreamResponse;
    FindOrdinals(FindOrdinalsRequest) -> FindOrdinalsResponse <= MAX_FOUND_BYTES;
    FindCopies(FindCopiesRequest) -> FindCopiesResponse;
    InitProducer(InitProducerRequest) -> InitProducerResponse;
    FindCoordinator(FindCoordinatorRequest) -> FindCoordinatorResponse;
    Join(JoinRequest) -> JoinResponse;
    Heartbeat(HeartbeatRequest) -> HeartbeatResponse;
    Acquire(AcquireRequest) -> AcquireResponse;
    Commit(CommitRequest) -> CommitResponse;
    Leave(LeaveRequest) -> LeaveResponse;
    ListGroups(ListGroupsRequest) -> ListGroupsResponse;
    DescribeGroup(DescribeGroupRequest) -> DescribeGroupResponse;
    ResetGroup(ResetGroupRequest) -> ResetGroupResponse;
    DeleteGroup(DeleteGroupRequest) -> DeleteGroupResponse;
    CommitPositions(CommitPositionsRequest) -> CommitPositionsResponse;
    SendPositions(SendPositionsRequest) -> SendPositionsResponse;
    GetGenerations(GetGenerationsRequest) -> GetGenerationsResponse;
    CutLane(CutLaneRequest) -> CutLaneResponse;
    WatchLanes(WatchLanesRequest) -> WatchLanesResponse;
    InitTransactions(InitTransactionsRequest) -> InitTransactionsResponse;
    AddToTransaction(AddToTransactionRequest) -> AddToTransactionResponse;
    PrepareTransaction(PrepareTransactionRequest) -> PrepareTransactionResponse;
    EndTransaction(EndTransactionRequest) -> EndTransactionResponse;
    ForgetTransaction(ForgetTransactionRequest) -> ForgetTransactionResponse;
    ListOpenTransactions(ListOpenTransactionsRequest) -> ListOpenTransactionsResponse;
    HeartbeatTransaction(HeartbeatTransactionRequest) -> HeartbeatTransactionResponse;
    AbortTransactions(AbortTransactionsRequest) -> AbortTransactionsResponse;
    DescribeCluster(DescribeClusterRequest) -> DescribeClusterResponse;
    CreatePin(CreatePinRequest) -> CreatePinResponse;
    ListPins(ListPinsRequest) -> ListPinsResponse;
    DeletePin(DeletePinRequest) -> DeletePinResponse;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_has_its_request() {
        let mut number = 1;
        while let Ok(method) = CallMethod::try_from(number) {
            assert!(METHODS.contains(&method), "{method:?}");
            number += 1;
        }
        assert_eq!(METHODS.len() + 1, number as usize);
    }
}
