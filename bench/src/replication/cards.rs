//! Both ends of a way through a network card for RDMA: builds with the feature `rdma`. `no_cards`
//! stands in for it in the others.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use kera_replication::backup::BackupStore;
use kera_replication::ids::BrokerId;
use kera_replication::transport::TransportRef;
use kera_replication::transport::rdma::{Otherwise, RdmaOptions, RdmaServer, RdmaTransport};
use kera_replication::transport::tcp::{LinkOptions, TcpTransport};
use tokio::runtime::Runtime;

use super::plan::Peer;

/// Serves `store` through the card of `address`, beside its TCP listener there.
///
/// # Errors
/// What is missing: the library, a card, a device file.
pub fn serve(runtime: &Runtime, address: SocketAddr, store: &BackupStore) -> Result<()> {
    let _within = runtime.enter();
    let server = RdmaServer::bind(address, store)?;
    runtime.spawn(async move {
        if let Err(error) = server.serve().await {
            eprintln!("connections of cards are no longer taken: {error}");
        }
    });
    Ok(())
}

/// A primary's way to its backups, which takes no other: what is measured is what is named.
///
/// # Errors
/// If an address is none.
pub fn transport(me: BrokerId, peers: &[Peer]) -> Result<TransportRef> {
    let tcp = TcpTransport::new(me, LinkOptions::default());
    let options = RdmaOptions::default();
    let transport = RdmaTransport::new(me, options, tcp, Otherwise::Unreachable);
    for peer in peers {
        transport.set_address(BrokerId(peer.id), &peer.address)?;
    }
    Ok(Arc::new(transport))
}
