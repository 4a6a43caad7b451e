//! The error codes of the native protocol: numbered once, never reused.

use std::fmt;

use crate::v1::{AppendResponse, Placement};

macro_rules! error_codes {
    ($( $(#[doc = $doc:literal])+ $name:ident = $number:literal, $text:literal, $retry:literal, $placement:ident; )+) => {
        /// A code as it travels in responses. The number and the name of a code never change and
        /// are never given to another meaning; new codes are added at the end.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $( $(#[doc = $doc])+ $name = $number, )+
        }

        impl ErrorCode {
            /// Every code, in the order of their numbers.
            pub const ALL: &'static [ErrorCode] = &[ $( ErrorCode::$name, )+ ];

            /// The code of a number; `None` for a number this build does not know.
            pub fn from_number(number: u32) -> Option<Self> {
                match number {
                    $( $number => Some(Self::$name), )+
                    _ => None,
                }
            }

            /// The name as documented, such as `UNKNOWN_STREAM`.
            pub fn name(self) -> &'static str {
                match self { $( Self::$name => $text, )+ }
            }

            /// True when the same request may succeed later without any change by its sender.
            pub fn is_retryable(self) -> bool {
                match self { $( Self::$name => $retry, )+ }
            }

            /// What the code alone says of a batch that is answered with it: may the batch have its place,
            /// so that it is stored, or will be? An answer that says so itself knows better; see
            /// [`AppendResponse::may_be_placed`].
            pub fn placement(self) -> Placement {
                match self { $( Self::$name => Placement::$placement, )+ }
            }

            /// What the code means, as one paragraph for the documentation's table.
            pub fn description(self) -> &'static str {
                match self { $( Self::$name => concat!($($doc),+).trim_start(), )+ }
            }
        }
    };
}

error_codes! {
    /// No error.
    Ok = 0, "OK", false, MayBePlaced;
    /// No stream of that name or id exists. Create it, or check the name.
    UnknownStream = 1, "UNKNOWN_STREAM", false, NotPlaced;
    /// The stream has no streamlet of that number.
    UnknownStreamlet = 2, "UNKNOWN_STREAMLET", false, NotPlaced;
    /// The streamlet has no lane of that number.
    UnknownLane = 3, "UNKNOWN_LANE", false, NotPlaced;
    /// A stream of that name exists already.
    StreamExists = 4, "STREAM_EXISTS", false, NotPlaced;
    /// The name is not legal: 1 to 249 of `a-z A-Z 0-9 . _ -`, not `.` or `..`, no leading `_kera`.
    InvalidName = 5, "INVALID_NAME", false, NotPlaced;
    /// A value of the request is out of range or contradicts another.
    InvalidArgument = 6, "INVALID_ARGUMENT", false, NotPlaced;
    /// The batch's bytes do not match its checksum, or are no batch at all.
    CorruptBatch = 7, "CORRUPT_BATCH", false, NotPlaced;
    /// The batch is intact but breaks a rule, such as a record count that does not fit its length.
    InvalidBatch = 8, "INVALID_BATCH", false, NotPlaced;
    /// The batch is larger than the stream accepts.
    BatchTooLarge = 9, "BATCH_TOO_LARGE", false, NotPlaced;
    /// The frame is larger than the broker accepts; the connection is closed.
    FrameTooLarge = 10, "FRAME_TOO_LARGE", false, MayBePlaced;
    /// The peer speaks a protocol or frame version that this build does not know.
    UnsupportedVersion = 11, "UNSUPPORTED_VERSION", false, MayBePlaced;
    /// The frame cannot be decoded; the connection is closed.
    MalformedFrame = 12, "MALFORMED_FRAME", false, MayBePlaced;
    /// The batch's sequence does not follow the producer's last one: batches in between are missing.
    SequenceGap = 13, "SEQUENCE_GAP", false, NotPlaced;
    /// A newer instance of this producer has started, or its transaction was aborted; this one may not append any more.
    FencedProducer = 14, "FENCED_PRODUCER", false, NotPlaced;
    /// The broker no longer remembers this producer and the batch is not its first.
    UnknownProducer = 15, "UNKNOWN_PRODUCER", false, NotPlaced;
    /// The batch was built for an older number of lanes; refresh the stream and split it again.
    StaleLanes = 16, "STALE_LANES", true, NotPlaced;
    /// This broker does not own the streamlet; refresh and go to its owner.
    NotOwner = 17, "NOT_OWNER", true, MayBePlaced;
    /// The disk is full; nothing was stored. Free space or shorten retention.
    StorageFull = 18, "STORAGE_FULL", true, NotPlaced;
    /// Reading or writing the store failed; the broker's log names file and error.
    StorageError = 19, "STORAGE_ERROR", true, MayBePlaced;
    /// A limit on memory or bytes in flight is reached.
    Overloaded = 20, "OVERLOADED", true, MayBePlaced;
    /// The request was not finished within its deadline; an append may still take effect.
    Timeout = 21, "TIMEOUT", true, MayBePlaced;
    /// The broker is stopping.
    ShuttingDown = 22, "SHUTTING_DOWN", true, MayBePlaced;
    /// The position lies below the log start or above the end.
    OutOfRange = 23, "OUT_OF_RANGE", false, NotPlaced;
    /// Stored bytes do not match their checksum, or their file is gone and no other broker has it; they are not served. The broker's log names file, offset and batch.
    Damaged = 24, "DAMAGED", false, NotPlaced;
    /// No consumer group of that name exists for this stream.
    UnknownConsumerGroup = 25, "UNKNOWN_CONSUMER_GROUP", false, NotPlaced;
    /// The consumer is not, or no longer, a member of its group; join again.
    UnknownMember = 26, "UNKNOWN_MEMBER", false, NotPlaced;
    /// The lease ended or was given to another consumer; nothing was committed.
    StaleLease = 27, "STALE_LEASE", false, NotPlaced;
    /// The coordinator is still reading its state.
    CoordinatorLoading = 28, "COORDINATOR_LOADING", true, NotPlaced;
    /// The group exists with another order or type of consumer.
    GroupConflict = 29, "GROUP_CONFLICT", false, NotPlaced;
    /// The group still has members; stop them first.
    GroupNotEmpty = 30, "GROUP_NOT_EMPTY", false, NotPlaced;
    /// The batch's compression is not one of none, gzip, snappy, lz4, zstd.
    UnsupportedCompression = 31, "UNSUPPORTED_COMPRESSION", false, NotPlaced;
    /// The broker has reached its limit of connections.
    TooManyConnections = 32, "TOO_MANY_CONNECTIONS", true, NotPlaced;
    /// A defect in the broker; its log has the details.
    Internal = 33, "INTERNAL", false, MayBePlaced;
    /// Too few replicas of the streamlet can be reached: an append waited in vain, the streamlet is not recovered yet, or what is damaged here may be whole at a broker that does not answer. Send again; an append may still take effect.
    NotEnoughCopies = 34, "NOT_ENOUGH_COPIES", true, MayBePlaced;
    /// This broker does not coordinate the consumer group; look its coordinator up and ask there.
    NotCoordinator = 35, "NOT_COORDINATOR", true, NotPlaced;
    /// The rules of access do not let this user do that; somebody who may change them can allow it.
    NotAuthorized = 36, "NOT_AUTHORIZED", false, NotPlaced;
    /// There is no such user, or it has no such password.
    UnknownUser = 37, "UNKNOWN_USER", false, NotPlaced;
    /// No such transaction is known: it never was, or how it ended is not remembered any more.
    UnknownTransaction = 38, "UNKNOWN_TRANSACTION", false, NotPlaced;
    /// No transaction is open that this could be done to, or the lane is no part of it: it has ended, or its time was over.
    TransactionNotOpen = 39, "TRANSACTION_NOT_OPEN", false, NotPlaced;
    /// The transaction before it is still ending, or whether it is open is being asked. Try again.
    TransactionPending = 40, "TRANSACTION_PENDING", true, NotPlaced;
    /// The transaction of this id is prepared: it ends by its handle, and no other begins before.
    TransactionPrepared = 41, "TRANSACTION_PREPARED", false, NotPlaced;
    /// The transaction cannot go on as it is, for example because it has too many lanes. Abort it and begin again.
    TransactionAbortable = 42, "TRANSACTION_ABORTABLE", false, NotPlaced;
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl AppendResponse {
    /// True if batches that are answered with this error may have their place all the same, so that they
    /// are stored, or will be. Brokers that do not say so are taken at the error's code.
    pub fn may_be_placed(&self) -> bool {
        let said = match self.placement() {
            Placement::Unspecified => ErrorCode::from_number(self.error)
                .map_or(Placement::MayBePlaced, ErrorCode::placement),
            said => said,
        };
        said != Placement::NotPlaced
    }
}

/// An error as it crosses the wire: the code and one sentence for people, naming the object and
/// what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({code})")]
#[non_exhaustive]
pub struct WireError {
    /// What went wrong, for programs.
    pub code: ErrorCode,
    /// What went wrong, with which object, and what to do, for people: lowercase, no full stop.
    pub message: String,
}

impl WireError {
    /// An error of `code` with a message for people.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// The error of a code's number as it came over the wire. A number that this build does not
    /// know becomes [`ErrorCode::Internal`], with the number in the message.
    pub fn from_number(number: u32, message: impl Into<String>) -> Self {
        let message = message.into();
        match ErrorCode::from_number(number) {
            Some(code) => Self { code, message },
            None => Self {
                code: ErrorCode::Internal,
                message: format!("{message} (error {number}, unknown to this build: upgrade it)"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_dense_unique_and_round_trip() {
        for (index, code) in ErrorCode::ALL.iter().enumerate() {
            assert_eq!(*code as usize, index, "{code} must keep its number");
            assert_eq!(ErrorCode::from_number(*code as u32), Some(*code));
            assert!(!code.description().is_empty());
        }
        assert_eq!(ErrorCode::from_number(60_000), None);
    }

    #[test]
    fn an_answer_that_does_not_say_whether_anything_is_placed_is_taken_at_its_code() {
        let answer = |error: u32, placement: Placement| {
            let answer = AppendResponse {
                error,
                placement: placement as i32,
                ..AppendResponse::default()
            };
            answer.may_be_placed()
        };
        for code in ErrorCode::ALL {
            let number = *code as u32;
            let alone = code.placement() == Placement::MayBePlaced;
            assert_eq!(answer(number, Placement::Unspecified), alone, "{code}");
            assert!(!answer(number, Placement::NotPlaced));
            assert!(answer(number, Placement::MayBePlaced));
        }
        let unknown = answer(60_000, Placement::Unspecified);
        assert!(unknown, "nothing is known of a code from a later version");
    }
}
