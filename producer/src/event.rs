//! What the helper tasks of the background task bring about.

use std::sync::Arc;

use kera_protocol::v1;
use kera_rpc::{RpcError, StreamMeta};

/// What a helper task of the driver brought about.
pub(crate) enum Event {
    Identity(usize, Result<v1::InitProducerResponse, RpcError>),
    Meta(Result<Arc<StreamMeta>, RpcError>),
    /// Lanes of these slots were to become part of the transaction of a producer of this id and epoch.
    Added((i64, i16), Vec<usize>, Result<u64, RpcError>),
}
