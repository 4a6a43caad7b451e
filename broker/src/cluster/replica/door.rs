//! Who gets to replicas where `cluster.listen` has TLS: brokers, by their certificates.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kera_replication::transport::Pending;
use kera_replication::transport::tcp::Door;
use tokio::net::TcpStream;

use crate::config::{BrokerConfig, TlsListener};
use crate::tls::{ServerTls, Stream, principal_of};

/// Lets in clients with a certificate of an authority in `tls.broker_ca`; with rules only those that are super users, as
/// brokers are.
pub(super) struct BrokersDoor {
    tls: Arc<ServerTls>,
    /// `acl.super_users`, if `acl.enabled`.
    names: Option<Vec<String>>,
}

impl std::fmt::Debug for BrokersDoor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BrokersDoor").finish_non_exhaustive()
    }
}

impl BrokersDoor {
    /// As configured; `None` if `cluster.listen` has no TLS.
    pub(super) fn of(config: &BrokerConfig, tls: Option<&Arc<ServerTls>>) -> Option<Arc<dyn Door>> {
        let tls = tls.filter(|tls| tls.serves(TlsListener::Cluster))?.clone();
        let names = config.acl.enabled.then(|| config.acl.super_users.clone());
        Some(Arc::new(Self { tls, names }))
    }

    fn check(&self, stream: &Stream, peer: SocketAddr) -> io::Result<()> {
        let Some(names) = &self.names else {
            return Ok(());
        };
        let user = principal_of(stream).to_string();
        if names.contains(&user) {
            return Ok(());
        }
        self.tls.tell(peer, TlsListener::Cluster, &format!("{user} has a certificate of an authority in tls.broker_ca but is not among acl.super_users, so it is no broker; name every broker's certificate there"));
        Err(ErrorKind::PermissionDenied.into())
    }
}

impl Door for BrokersDoor {
    fn enter(
        self: Arc<Self>,
        socket: TcpStream,
        peer: SocketAddr,
        within: Duration,
    ) -> Pending<io::Result<Stream>> {
        Box::pin(async move {
            let listener = TlsListener::Cluster;
            let stream = self.tls.accept(socket, peer, listener, within).await?;
            self.check(&stream, peer)?;
            Ok(stream)
        })
    }
}
