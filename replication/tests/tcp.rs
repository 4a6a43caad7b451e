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
use kera_replication::transport::tcp::{BackupServer, LinkOptions, ServerOptions, TcpTransport};
use kera_replication::transport::{Reply, Request, TransportRef};
use tokio::net::TcpListener;

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
