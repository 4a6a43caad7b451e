//! What a producer is set to, checked.

use std::time::Duration;

use kera_protocol::batch::Compression;
use kera_rpc::RetryPolicy;

use crate::error::BuildError;

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) stream: String,
    pub(crate) batch_bytes: usize,
    pub(crate) linger: Duration,
    pub(crate) memory_limit: usize,
    pub(crate) in_flight_batches: usize,
    pub(crate) compression: Compression,
    pub(crate) deadline: Duration,
    pub(crate) idempotent: bool,
    pub(crate) transactional_id: Option<String>,
    pub(crate) transaction_timeout: Duration,
    pub(crate) transaction_heartbeats: bool,
    pub(crate) retry: RetryPolicy,
}

impl Settings {
    /// Refuses an empty name.
    pub(crate) fn check_stream(&self) -> Result<(), BuildError> {
        match self.stream.is_empty() {
            true => Err(BuildError::Setting {
                name: "stream",
                reason: "name the stream to append to".to_owned(),
            }),
            false => Ok(()),
        }
    }
}
