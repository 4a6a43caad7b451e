//! What the comparison of replication compares with is right, too: the suite of all transports over
//! backups whose workers handle requests.

#[allow(unused_imports, dead_code)] // its other users are the measurements
#[path = "../src/replication/rpc/mod.rs"]
mod rpc;
#[path = "../../replication/tests/sockets/mod.rs"]
mod sockets;
#[path = "../../replication/tests/suite/mod.rs"]
mod suite;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use kera_replication::backup::BackupStore;
use kera_replication::ids::BrokerId;
use kera_replication::transport::TransportRef;
use tokio::net::TcpListener;

use rpc::{RpcServer, RpcTransport};
use sockets::gates::Gates;
use sockets::{TcpWay, Way};

struct Rpc;

impl Way for Rpc {
    fn address(&self) -> IpAddr {
        Ipv4Addr::LOCALHOST.into()
    }

    fn serve(&self, _: &Arc<BackupStore>, _: SocketAddr) {}

    fn answer(
        &self,
        store: Arc<BackupStore>,
        listener: TcpListener,
        runtime: &tokio::runtime::Handle,
    ) -> Box<dyn Send> {
        let server = RpcServer::start(store, 2).expect("threads");
        runtime.spawn(server.serve(listener));
        Box::new(server)
    }

    fn transport(&self, me: BrokerId, tcp: TcpWay, _: &Arc<Gates>) -> TransportRef {
        let transport = RpcTransport::new(me, tcp.options);
        for (to, address) in &tcp.forwarders {
            transport.set_address(*to, address).expect("an address");
        }
        Arc::new(transport)
    }
}

#[test]
fn everything_acknowledged_is_recovered() {
    let way: Arc<dyn Way> = Arc::new(Rpc);
    sockets::suite(&way, 6);
}
