//! Calls that wait for the metadata store or the disk.

use kera_metadata::MetadataError;
use kera_protocol::error::{ErrorCode, WireError};

/// Runs what waits for disk or metadata store where that does no harm.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, WireError> + Send + 'static,
) -> Result<T, WireError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => {
            tracing::error!(%error, "a change or look-up failed");
            Err(WireError::new(
                ErrorCode::Internal,
                "the call failed in the broker; see its log",
            ))
        }
    }
}

/// What a client is told of an error of the metadata store.
pub(crate) fn metadata_error(error: &MetadataError) -> WireError {
    WireError::new(error.code(), error.to_string())
}
