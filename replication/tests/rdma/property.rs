//! The suite over RDMA: data from card to card, control calls over TCP.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use kera_replication::backup::ReplicaStore;
use kera_replication::ids::{BrokerId, ProcessId};
use kera_replication::transport::rdma::{Otherwise, RdmaOptions, RdmaServer, RdmaTransport};
use kera_replication::transport::{
    CallError, Link, LinkError, Pending, Reply, Request, Transport, TransportRef,
};

use crate::machine;
use crate::sockets::gates::{GatedLink, Gates};
use crate::sockets::{self, TcpWay, Way};

/// Data between the cards behind one address.
struct OverRdma(IpAddr);

impl Way for OverRdma {
    fn address(&self) -> IpAddr {
        self.0
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(2000)
    }

    fn serve(&self, store: &Arc<ReplicaStore>, address: SocketAddr) {
        let server = RdmaServer::bind(address, store).expect("listens");
        tokio::spawn(async move { server.serve().await });
    }

    fn transport(&self, from: BrokerId, tcp: TcpWay, gates: &Arc<Gates>) -> TransportRef {
        let options = RdmaOptions {
            // So small that both are met again and again.
            send_bytes: 4096,
            requests: 8,
            told_every: 3,
            connect_timeout: self.patience() / 2,
            ..RdmaOptions::default()
        };
        let inner = RdmaTransport::new(from, options, tcp.transport, Otherwise::Unreachable);
        Arc::new(Gated {
            from,
            inner: Arc::new(inner),
            gates: gates.clone(),
            forwarders: tcp.forwarders,
        })
    }
}

/// A transport whose links stand behind gates.
struct Gated {
    from: BrokerId,
    inner: Arc<RdmaTransport>,
    gates: Arc<Gates>,
    forwarders: HashMap<BrokerId, String>,
}

impl Transport for Gated {
    fn connect(
        &self,
        to: BrokerId,
        process: ProcessId,
    ) -> Pending<Result<Box<dyn Link>, LinkError>> {
        let (from, inner, gates) = (self.from, self.inner.clone(), self.gates.clone());
        let control = self.forwarders[&to].clone();
        Box::pin(async move {
            gates.passes(from, to).await;
            let Some(data) = gates.address(to) else {
                let reason = "it does not run".to_string();
                return Err(LinkError::Unreachable { backup: to, reason });
            };
            let known = inner.set_addresses(to, &data, &control);
            known.expect("addresses");
            let link = inner.connect(to, process).await?;
            Ok(Box::new(GatedLink::new(link, gates, from, to)) as Box<dyn Link>)
        })
    }

    fn call(&self, to: BrokerId, request: Request) -> Pending<Result<Reply, CallError>> {
        self.inner.call(to, request)
    }
}

#[test]
fn everything_acknowledged_is_recovered() {
    let Some(address) = machine::address("everything_acknowledged_is_recovered") else {
        return;
    };
    let way: Arc<dyn Way> = Arc::new(OverRdma(address));
    sockets::suite(&way, 4);
}
