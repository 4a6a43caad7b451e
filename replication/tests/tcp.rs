//! The suite over TCP, with real sockets and files on shared memory.

mod sockets;
mod suite;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use kera_log_segments::ship::Shipping;
use kera_protocol::ids::LaneId;
use kera_replication::backup::{Limits, ReplicaStore, SimMemory};
use kera_replication::faults::Faults;
use kera_replication::ids::{AckPolicy, BrokerId, CopyId};
use kera_replication::primary::{Config, Lane, LaneSpec, Primary};
use kera_replication::records::MemoryRecords;
use kera_replication::recovery::{RecoverSpec, Unclean, recover};
use kera_replication::runtime::TokioRuntime;
use kera_replication::transport::tcp::{
    BackupServer, Door, LinkOptions, Peers, ServerOptions, TcpTransport,
};
use kera_replication::transport::{Pending, Reply, Request, TransportRef};
use kera_rpc::ClientTls;
use kera_rpc::stream::{FRAMES, HTTP2, Stream};
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use sockets::gates::Gates;
use sockets::{TcpWay, Way};
use suite::scenario::streamlet;
use suite::test_group::TestGroup;

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

/// The same with TLS.
#[derive(Debug)]
struct OverTls {
    server: Arc<ServerConfig>,
    client: ClientTls,
}

impl OverTls {
    fn new() -> Self {
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("it signs itself");
        let pem = certificate.pem();
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key in DER");
        let server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key);
        let mut server = server.expect("they go together");
        server.alpn_protocols = vec![HTTP2.to_vec(), FRAMES.to_vec()];
        Self {
            server: Arc::new(server),
            client: ClientTls::from_pem(pem.as_bytes(), None).expect("an authority"),
        }
    }
}

/// Lets in whoever speaks TLS.
#[derive(Debug)]
struct TlsDoor(Arc<ServerConfig>);

impl Door for TlsDoor {
    fn enter(
        self: Arc<Self>,
        socket: TcpStream,
        _: SocketAddr,
        within: Duration,
    ) -> Pending<std::io::Result<Stream>> {
        Box::pin(async move {
            let entered = tokio::time::timeout(within, Stream::accept(socket, self.0.clone()));
            entered.await.unwrap_or_else(|late| Err(late.into()))
        })
    }
}

impl Way for OverTls {
    fn address(&self) -> IpAddr {
        Ipv4Addr::LOCALHOST.into()
    }

    fn serve(&self, _: &Arc<ReplicaStore>, _: SocketAddr) {}

    fn answer(
        &self,
        store: Arc<ReplicaStore>,
        listener: TcpListener,
        runtime: &tokio::runtime::Handle,
    ) -> Box<dyn Send> {
        let door = Arc::new(TlsDoor(self.server.clone()));
        let options = ServerOptions::default();
        let server = BackupServer::among(store, options, Arc::new(Strangers), Some(door));
        runtime.spawn(async move { server.serve(listener).await });
        Box::new(())
    }

    fn transport(&self, _: BrokerId, tcp: TcpWay, _: &Arc<Gates>) -> TransportRef {
        tcp.transport.use_tls(Some(self.client.clone()));
        Arc::new(tcp.transport)
    }
}

/// No broker is known anywhere.
#[derive(Debug)]
struct Strangers;

impl Peers for Strangers {
    fn is_at(&self, _: IpAddr, _: Option<BrokerId>) -> bool {
        false
    }
}

#[test]
fn everything_acknowledged_is_recovered_with_tls() {
    let way: Arc<dyn Way> = Arc::new(OverTls::new());
    sockets::suite(&way, 6);
}

/// A backup that ends connections as soon as they rest.
async fn impatient(seed: u64) -> (Arc<ReplicaStore>, Arc<BackupServer>, String) {
    let memory = SimMemory::new(seed);
    let store = ReplicaStore::start(memory, Limits::default(), Faults::default());
    let store = store.expect("starts");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let options = ServerOptions {
        stall_timeout: Duration::from_millis(20),
        rest_timeout: Duration::from_millis(20),
        ..ServerOptions::default()
    };
    let server = BackupServer::new(store.clone(), options);
    let serving = server.clone();
    tokio::spawn(async move { serving.serve(listener).await });
    (store, server, address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_whose_connections_were_ended_for_resting_connects_again_to_write() {
    let transport = Arc::new(TcpTransport::new(BrokerId(0), LinkOptions::default()));
    let (mut backups, mut brokers) = (Vec::new(), Vec::new());
    for number in 1..=2 {
        let (store, server, address) = impatient(number.into()).await;
        let set = transport.set_address(BrokerId(number), &address);
        set.expect("an address");
        backups.push((store, server));
        brokers.push(BrokerId(number));
    }
    let records = MemoryRecords::default();
    records.create(streamlet());
    let runtime = Arc::new(TokioRuntime::new(tokio::runtime::Handle::current()));
    let (records, config) = (Arc::new(records), Config::default());
    let primary = Primary::new(BrokerId(0), brokers, transport, records, runtime, config);
    let primary = Arc::new(primary);
    let spec = RecoverSpec {
        streamlet: streamlet(),
        min_insync_replicas: 2,
        unclean: Unclean::Wait,
        starts: Default::default(),
    };
    let recovered = recover(&primary, &spec).await.expect("a recovery");
    let spec = LaneSpec {
        streamlet: streamlet(),
        epoch: recovered.epoch,
        lane: LaneId(0),
        replicas: 2,
        min_insync_replicas: 2,
    };
    let next_group = Arc::new(AtomicU64::new(recovered.next_group.0));
    let lane = Lane::new(primary, spec, next_group);
    let mut first_ordinal = 0;
    for round in 0..3 {
        let copy = CopyId {
            streamlet: streamlet(),
            group: lane.next_group(AckPolicy::Written),
            epoch: recovered.epoch,
            generation: 0,
        };
        let source = Arc::new(TestGroup::new(copy, LaneId(0), first_ordinal));
        let set = source.open(&lane);
        let batch = source.append(round, 20).expect("the group takes it");
        set.grew();
        let acknowledged = source.acknowledged(&lane, batch.end, Duration::from_secs(30));
        acknowledged.await.expect("both are there");
        let wanted = source.bytes();
        for (store, _) in &backups {
            let read = Request::Read {
                copy,
                address: 0,
                len: wanted.len() as u32,
            };
            match store.handle(BrokerId(0), read) {
                Ok(Reply::Bytes(found)) => assert_eq!(found, wanted, "round {round}"),
                other => panic!("{other:?}"),
            }
        }
        first_ordinal = source.end().ordinal;
        source.freeze();
        set.froze();
        // Nothing is open any more: the connections rest, and are ended.
        while !set.is_closed() || backups.iter().any(|(_, server)| server.primaries() > 0) {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_begins_a_hello_and_goes_keeps_no_place() {
    let memory = SimMemory::new(1);
    let store = ReplicaStore::start(memory, Limits::default(), Faults::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let options = ServerOptions {
        hello_timeout: Duration::from_secs(3600),
        ..ServerOptions::default()
    };
    let server = BackupServer::new(store.expect("starts"), options);
    let serving = server.clone();
    tokio::spawn(async move { serving.serve(listener).await });
    let mut crowd = Vec::new();
    for said in [&b""[..], b"K", b"KER"] {
        for _ in 0..4 {
            let mut socket = TcpStream::connect(address).await.expect("connects");
            socket.write_all(said).await.expect("it is taken");
            crowd.push(socket);
        }
    }
    let until = async |wanted: u64| {
        let counted = async {
            while server.connections().strangers != wanted {
                tokio::task::yield_now().await;
            }
        };
        let counted = tokio::time::timeout(Duration::from_secs(60), counted).await;
        counted.expect("who has gone keeps its place");
    };
    until(12).await;
    // Half of them go, the others stay and say no more.
    crowd.truncate(6);
    until(6).await;
    drop(crowd);
    until(0).await;
}
