//! What a producer is set to, checked.

use std::time::Duration;

use kera_protocol::batch::Compression;
use kera_rpc::RetryPolicy;

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
    pub(crate) retry: RetryPolicy,
}
