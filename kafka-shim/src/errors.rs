//! Kera's errors as Kafka's.

use kafka_protocol::error::ResponseError;
use kera_protocol::error::{ErrorCode, WireError};
use kera_streamlet::producers::SequenceError;
use kera_streamlet::transactions::TransactionError;
use kera_streamlet::{AppendError, Streamlet};

/// The number that says nothing went wrong.
pub(crate) const NONE: i16 = 0;

/// Kafka's number for one of Kera's errors.
pub(crate) fn code_of(error: &WireError) -> i16 {
    use ResponseError as Kafka;
    let kafka = match error.code {
        ErrorCode::Ok => return NONE,
        ErrorCode::UnknownStream | ErrorCode::UnknownStreamlet | ErrorCode::UnknownLane => {
            Kafka::UnknownTopicOrPartition
        }
        ErrorCode::StreamExists => Kafka::TopicAlreadyExists,
        ErrorCode::InvalidName => Kafka::InvalidTopicException,
        ErrorCode::CorruptBatch | ErrorCode::Damaged => Kafka::CorruptMessage,
        ErrorCode::InvalidBatch => Kafka::InvalidRecord,
        ErrorCode::BatchTooLarge | ErrorCode::FrameTooLarge => Kafka::MessageTooLarge,
        ErrorCode::UnsupportedVersion => Kafka::UnsupportedVersion,
        ErrorCode::SequenceGap => Kafka::OutOfOrderSequenceNumber,
        ErrorCode::FencedProducer => Kafka::InvalidProducerEpoch,
        ErrorCode::UnknownProducer => Kafka::UnknownProducerId,
        ErrorCode::StaleLanes | ErrorCode::NotOwner | ErrorCode::ShuttingDown => {
            Kafka::NotLeaderOrFollower
        }
        ErrorCode::StorageFull | ErrorCode::StorageError => Kafka::KafkaStorageError,
        ErrorCode::Overloaded | ErrorCode::Timeout => Kafka::RequestTimedOut,
        ErrorCode::NotEnoughCopies => Kafka::NotEnoughReplicas,
        ErrorCode::OutOfRange => Kafka::OffsetOutOfRange,
        ErrorCode::UnknownConsumerGroup => Kafka::GroupIdNotFound,
        ErrorCode::UnknownMember => Kafka::UnknownMemberId,
        ErrorCode::StaleLease => Kafka::IllegalGeneration,
        ErrorCode::CoordinatorLoading => Kafka::CoordinatorLoadInProgress,
        ErrorCode::NotCoordinator => Kafka::NotCoordinator,
        ErrorCode::GroupConflict => Kafka::InconsistentGroupProtocol,
        ErrorCode::GroupNotEmpty => Kafka::NonEmptyGroup,
        ErrorCode::UnsupportedCompression => Kafka::UnsupportedCompressionType,
        ErrorCode::UnknownUser => Kafka::ResourceNotFound,
        ErrorCode::NotAuthorized => Kafka::ClusterAuthorizationFailed,
        ErrorCode::InvalidArgument | ErrorCode::MalformedFrame => Kafka::InvalidRequest,
        _ => Kafka::UnknownServerError,
    };
    kafka.code()
}

/// First version of Produce whose clients know that a transaction is to be aborted, and may go on then.
const ABORTABLE_FROM: i16 = 12;

/// Kafka's number for an append that is refused to a request of this version.
pub(crate) fn append_code(error: &AppendError, version: i16) -> i16 {
    use ResponseError as Kafka;
    let kafka = match error {
        AppendError::UnknownLane { .. } | AppendError::Deleted => Kafka::UnknownTopicOrPartition,
        AppendError::StaleLanes { .. } | AppendError::NotOwner => Kafka::NotLeaderOrFollower,
        AppendError::Sequence(SequenceError::Gap { .. }) => Kafka::OutOfOrderSequenceNumber,
        AppendError::Sequence(SequenceError::Fenced { .. }) => Kafka::InvalidProducerEpoch,
        AppendError::Sequence(SequenceError::Unknown { .. } | SequenceError::Lost { .. }) => {
            Kafka::UnknownProducerId
        }
        AppendError::Sequence(SequenceError::TooMany { .. }) => Kafka::PolicyViolation,
        AppendError::Sequence(SequenceError::Transaction(error)) => match error {
            // As with Kafka: clients send the batch again soon.
            TransactionError::Unverified { .. } => Kafka::NotEnoughReplicas,
            TransactionError::TooManyOpen { .. } if version >= ABORTABLE_FROM => {
                Kafka::TransactionAbortable
            }
            TransactionError::NotOpen { .. }
            | TransactionError::Open { .. }
            | TransactionError::TooManyOpen { .. } => Kafka::InvalidTxnState,
        },
        AppendError::TooLarge { .. } => Kafka::MessageTooLarge,
        AppendError::NoMemory => Kafka::RequestTimedOut,
        AppendError::DiskFull
        | AppendError::DiskFailing
        | AppendError::Recovering
        | AppendError::Unread { .. }
        | AppendError::Unreadable { .. } => Kafka::KafkaStorageError,
        AppendError::NotRecovered => Kafka::NotEnoughReplicas,
        AppendError::Exhausted => Kafka::InvalidRecord,
    };
    kafka.code()
}

/// Kafka's number for a client whose leader epoch is not the streamlet's; `None` if it is, or if the
/// client knows none.
pub(crate) fn epoch_code(known: i32, streamlet: &Streamlet) -> Option<i16> {
    if known < 0 {
        return None;
    }
    match known.cmp(&(streamlet.epoch().0 as i32)) {
        std::cmp::Ordering::Less => Some(ResponseError::FencedLeaderEpoch.code()),
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Greater => Some(ResponseError::UnknownLeaderEpoch.code()),
    }
}
