//! The suite over TCP, with real sockets and files on shared memory.

mod sockets;
mod suite;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use kera_replication::backup::ReplicaStore;
use kera_replication::ids::BrokerId;
use kera_replication::transport::TransportRef;

use sockets::gates::Gates;
use sockets::{TcpWay, Way};

/// Data goes where control calls go, by the forwarders.
struct OverTcp;

impl Way for OverTcp {
    fn address(&self) -> IpAddr {
        Ipv4Addr::LOCALHOST.into()
    }

    fn serve(&self, _: &Arc<ReplicaStore>, _: SocketAddr) {}

    fn transport(&self, _: BrokerId, tcp: TcpWay, _: &Arc<Gates>) -> TransportRef {
        Arc::new(tcp.transport)
    }
}

#[test]
fn everything_acknowledged_is_recovered() {
    let way: Arc<dyn Way> = Arc::new(OverTcp);
    sockets::suite(&way, 6);
}
