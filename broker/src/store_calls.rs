//! Calls that wait for the metadata store or the disk.

use kera_metadata::MetadataError;
use kera_protocol::error::{ErrorCode, WireError};
use kera_replication::records::RecordsError;
use tokio::task::JoinError;

use crate::error::BrokerError;

/// A step that was to run to its end has panicked, or the runtime ends.
pub(crate) struct Broken(JoinError);

impl From<Broken> for String {
    fn from(broken: Broken) -> Self {
        broken.0.to_string()
    }
}

impl From<Broken> for RecordsError {
    fn from(broken: Broken) -> Self {
        Self::Unknown(broken.0.to_string())
    }
}

impl From<Broken> for BrokerError {
    fn from(broken: Broken) -> Self {
        Self::System {
            what: "starting failed",
            error: std::io::Error::other(broken.0),
        }
    }
}

impl From<Broken> for WireError {
    fn from(Broken(error): Broken) -> Self {
        tracing::error!(%error, "a change or look-up failed");
        let text = "the call failed in the broker; see its log";
        Self::new(ErrorCode::Internal, text)
    }
}

/// Runs what waits for disk or metadata store where that does no harm. That it panics is an error like any other: who
/// waits says so, and tries again. Passed on, it would end a task that nobody begins anew.
pub(crate) async fn blocking<T: Send + 'static, E: From<Broken> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Broken(error).into()))
}

/// Runs `work` to its end, even if the caller is dropped. A call ends with its connection, at any await.
pub(crate) async fn to_its_end<T: Send + 'static, E: From<Broken> + Send + 'static>(
    work: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Result<T, E> {
    let done = tokio::spawn(work).await;
    done.unwrap_or_else(|error| Err(Broken(error).into()))
}

/// What a client is told of an error of the metadata store.
pub(crate) fn metadata_error(error: &MetadataError) -> WireError {
    WireError::new(error.code(), error.to_string())
}
