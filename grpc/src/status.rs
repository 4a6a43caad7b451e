//! How errors travel in gRPC.

use kera_protocol::error::{ErrorCode, WireError};
use kera_rpc::{ConnectionError, RpcError};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// The metadata key of a gRPC status under which an [`ErrorCode`]'s number travels.
pub const ERROR_METADATA_KEY: &str = "kera-error";

/// The gRPC status that carries `error`.
pub fn status_of(error: &WireError) -> Status {
    use ErrorCode as E;
    let code = match error.code {
        E::Ok => Code::Ok,
        E::UnknownStream
        | E::UnknownStreamlet
        | E::UnknownLane
        | E::UnknownConsumerGroup
        | E::UnknownMember
        | E::UnknownProducer
        | E::UnknownTransaction
        | E::UnknownUser => Code::NotFound,
        E::StreamExists => Code::AlreadyExists,
        E::InvalidName
        | E::InvalidArgument
        | E::CorruptBatch
        | E::InvalidBatch
        | E::BatchTooLarge
        | E::FrameTooLarge
        | E::MalformedFrame
        | E::UnsupportedCompression => Code::InvalidArgument,
        E::UnsupportedVersion => Code::Unimplemented,
        E::StorageFull | E::Overloaded | E::TooManyConnections => Code::ResourceExhausted,
        E::Timeout => Code::DeadlineExceeded,
        E::ShuttingDown | E::CoordinatorLoading | E::StorageError => Code::Unavailable,
        E::OutOfRange => Code::OutOfRange,
        E::NotAuthorized => Code::PermissionDenied,
        E::Damaged => Code::DataLoss,
        E::Internal => Code::Internal,
        _ => Code::FailedPrecondition,
    };
    let mut status = Status::new(code, error.message.clone());
    status
        .metadata_mut()
        .insert(ERROR_METADATA_KEY, MetadataValue::from(error.code as u16));
    status
}

/// The error that a status carries; `None` if no broker made it, as when the connection is lost.
pub fn wire_error_of_status(status: &Status) -> Option<WireError> {
    let number: u32 = status
        .metadata()
        .get(ERROR_METADATA_KEY)?
        .to_str()
        .ok()?
        .parse()
        .ok()?;
    Some(WireError::from_number(number, status.message()))
}

/// What a failed gRPC call to the broker at `address` means.
pub fn error_of_status(address: &str, status: &Status) -> RpcError {
    if let Some(error) = wire_error_of_status(status) {
        return error.into();
    }
    if let Some(refused) = ConnectionError::refusal_in(address, status) {
        return refused.into();
    }
    if is_unconnected(status) {
        return ConnectionError::Connect {
            address: address.into(),
            reason: reason_of(status).into(),
        }
        .into();
    }
    match status.code() {
        Code::DeadlineExceeded => {
            WireError::new(ErrorCode::Timeout, status.message().to_owned()).into()
        }
        // What tonic reports when a connection cannot be made or breaks under a call.
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal => {
            ConnectionError::Lost {
                address: address.into(),
                reason: reason_of(status).into(),
            }
            .into()
        }
        _ => WireError::new(ErrorCode::Internal, status.message().to_owned()).into(),
    }
}

/// True if no connection came about.
fn is_unconnected(status: &Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The innermost cause, which names what the system said.
fn reason_of(status: &Status) -> String {
    let mut reason = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(cause) = source {
        reason = cause.to_string();
        source = cause.source();
    }
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_the_way_through_a_status() {
        for code in ErrorCode::ALL.iter().skip(1) {
            let error = WireError::new(*code, format!("stream s: {code}"));
            let status = status_of(&error);
            assert_ne!(status.code(), Code::Ok);
            assert_eq!(wire_error_of_status(&status), Some(error));
        }
    }

    #[test]
    fn a_status_no_broker_made_is_a_lost_connection() {
        let error = error_of_status("b:1", &Status::unavailable("tcp connect error"));
        assert!(error.is_retryable());
        assert_eq!(error.code(), None);
        let error = error_of_status("b:1", &Status::deadline_exceeded("late"));
        assert_eq!(error.code(), Some(ErrorCode::Timeout));
    }

    #[test]
    fn a_code_of_a_newer_broker_keeps_its_number_in_the_message() {
        let mut status = Status::internal("new trouble");
        status
            .metadata_mut()
            .insert(ERROR_METADATA_KEY, MetadataValue::from(9_999_u16));
        let error = wire_error_of_status(&status).expect("a broker made it");
        assert_eq!(error.code, ErrorCode::Internal);
        assert!(error.message.contains("9999"));
    }
}
