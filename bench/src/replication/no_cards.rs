//! Stands in for `cards` in builds without the feature `rdma`.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use kera_replication::backup::BackupStore;
use kera_replication::ids::BrokerId;
use kera_replication::transport::TransportRef;
use tokio::runtime::Runtime;

use super::plan::Peer;

/// What to do about it.
const WITHOUT: &str = "this build knows no network cards; build it with --features rdma";

/// Nothing is served.
///
/// # Errors
/// Always.
pub fn serve(_: &Runtime, _: SocketAddr, _: &BackupStore) -> Result<()> {
    bail!(WITHOUT)
}

/// There is none.
///
/// # Errors
/// Always.
pub fn transport(_: BrokerId, _: &[Peer]) -> Result<TransportRef> {
    bail!(WITHOUT)
}
