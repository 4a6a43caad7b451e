//! What stands for network cards in a build without them: types of which none can be made.

use std::io;
use std::net::SocketAddr;

use kera_replication::backup::ReplicaStore;
use kera_replication::ids::BrokerId;
use kera_replication::transport::TransportRef;
use kera_replication::transport::tcp::TcpTransport;
use kera_rpc::ClientTls;

const MISSING: &str = "this build has it not; build with the feature rdma";

/// The way to peers through this machine's card: there is none.
#[derive(Clone, Debug)]
pub enum Ways {}

impl Ways {
    pub(crate) fn new(_: BrokerId, _: TcpTransport, _: bool) -> Result<Self, String> {
        Err(MISSING.into())
    }

    pub(crate) fn set_address(&self, _: BrokerId, _: &str) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn use_tls(&self, _: Option<ClientTls>) {
        match *self {}
    }

    pub(crate) fn transport(&self) -> TransportRef {
        match *self {}
    }
}

/// A store served through a card: there is none.
#[derive(Debug)]
pub(crate) enum Listener {}

impl Listener {
    pub(crate) fn start(_: SocketAddr, _: &ReplicaStore) -> Result<Self, String> {
        Err(MISSING.into())
    }

    pub(crate) fn device(&self) -> String {
        match *self {}
    }

    pub(crate) fn primaries(&self) -> usize {
        match *self {}
    }

    pub(crate) async fn stop(&self) {
        match *self {}
    }
}
