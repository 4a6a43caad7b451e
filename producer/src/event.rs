//! What the helper tasks of the background task bring about.

use std::sync::Arc;

use kera_protocol::v1;
use kera_rpc::{DataConnection, RpcError, StreamMeta};

use crate::link::Link;

/// What a helper task of the driver brought about.
pub(crate) enum Event {
    Connected(Arc<Link>, Result<Arc<DataConnection>, RpcError>),
    Identity(usize, Result<v1::InitProducerResponse, RpcError>),
    Meta(Result<Arc<StreamMeta>, RpcError>),
}
