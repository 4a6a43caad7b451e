//! Network cards that write copies into memory by themselves: builds with the feature `rdma`.
//! `no_cards` stands in for it in the others.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use kera_replication::backup::ReplicaStore;
use kera_replication::ids::BrokerId;
use kera_replication::transport::TransportRef;
use kera_replication::transport::rdma::{Otherwise, RdmaOptions, RdmaServer, RdmaTransport};
use kera_replication::transport::tcp::TcpTransport;
use kera_rpc::ClientTls;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

/// The way to peers through this machine's card.
#[derive(Clone, Debug)]
pub struct Ways(Arc<RdmaTransport>);

impl Ways {
    /// For broker `me`; `tcp` carries control calls and, with `or_tcp`, the data of peers that
    /// take no connection of a card.
    ///
    /// # Errors
    /// None in this build.
    pub(crate) fn new(me: BrokerId, tcp: TcpTransport, or_tcp: bool) -> Result<Self, String> {
        let otherwise = if or_tcp {
            Otherwise::Tcp
        } else {
            Otherwise::Unreachable
        };
        let options = RdmaOptions::default();
        let transport = RdmaTransport::new(me, options, tcp, otherwise);
        Ok(Self(Arc::new(transport)))
    }

    pub(crate) fn set_address(&self, peer: BrokerId, address: &str) -> io::Result<()> {
        self.0.set_address(peer, address)
    }

    pub(crate) fn use_tls(&self, tls: Option<ClientTls>) {
        self.0.use_tls(tls);
    }

    pub(crate) fn transport(&self) -> TransportRef {
        self.0.clone()
    }
}

/// A store's buffers being served through a card, beside its TCP listener.
#[derive(Debug)]
pub(crate) struct Listener {
    server: Arc<RdmaServer>,
    serving: Mutex<Option<JoinHandle<io::Result<()>>>>,
}

impl Listener {
    /// Serves `store` at `address`, where its TCP listener is. To be called within a tokio
    /// runtime, before anybody opens a copy.
    ///
    /// # Errors
    /// What is missing, for people.
    pub(crate) fn start(address: SocketAddr, store: &ReplicaStore) -> Result<Self, String> {
        let server = RdmaServer::bind(address, store).map_err(|error| error.to_string())?;
        let serving = server.clone();
        let task = tokio::spawn(async move { serving.serve().await });
        Ok(Self {
            server,
            serving: Mutex::new(Some(task)),
        })
    }

    /// The card's name.
    pub(crate) fn device(&self) -> String {
        self.server.device()
    }

    /// Brokers that have a connection now.
    pub(crate) fn primaries(&self) -> usize {
        self.server.primaries()
    }

    /// Ends it: nothing is written any more when this returns.
    pub(crate) async fn stop(&self) {
        self.server.stop();
        let serving = self.serving.lock().take();
        let Some(serving) = serving else { return };
        match serving.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "the replica store's RDMA server ended with an error")
            }
            Err(error) => tracing::error!(%error, "the replica store's RDMA server failed"),
        }
    }
}
