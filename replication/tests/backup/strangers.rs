//! Who connects to a backup and is no broker of the cluster. There is no authentication; what is left are
//! addresses. Brokers are at 127.0.0.1 and strangers at 127.0.0.2.

use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kera_replication::backup::{ReplicaStore, ShmMemory};
use kera_replication::faults::Faults;
use kera_replication::ids::{BrokerId, BufferKey};
use kera_replication::transport::tcp::{
    BackupServer, Counts, LinkOptions, Peers, ServerOptions, TcpTransport, WriteHead,
};
use kera_replication::transport::{Link, LinkError, Request, Transport, Write};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::content::copy;
use crate::stage::{Ask, PRIMARY, limits, options, shared_dir};

const BACKUP: BrokerId = BrokerId(4);
const BROKERS: Ipv4Addr = Ipv4Addr::LOCALHOST;
const STRANGERS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Where the primary is known to be as well.
const MOVED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const WELCOME_BYTES: usize = 16;
/// Whatever takes longer does not come.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug)]
struct Known(Vec<(Ipv4Addr, BrokerId)>);

impl Peers for Known {
    fn is_at(&self, address: IpAddr, number: Option<BrokerId>) -> bool {
        let is = |(at, broker): &(Ipv4Addr, BrokerId)| {
            address == IpAddr::V4(*at) && number.is_none_or(|number| number == *broker)
        };
        self.0.iter().any(is)
    }
}

struct Served {
    store: Arc<ReplicaStore>,
    server: Arc<BackupServer>,
    address: SocketAddr,
    transport: TcpTransport,
    _dir: TempDir,
}

async fn served(server: ServerOptions, known: &[(Ipv4Addr, BrokerId)]) -> Served {
    let dir = shared_dir();
    let memory = ShmMemory::new(options(dir.path(), false));
    let store = ReplicaStore::start(memory, limits(), Faults::default()).expect("starts");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let known = Arc::new(Known(known.to_vec()));
    let server = BackupServer::among(store.clone(), server, known, None);
    let serving = server.clone();
    tokio::spawn(async move { serving.serve(listener).await });
    let transport = TcpTransport::new(PRIMARY, LinkOptions::default());
    let set = transport.set_address(BACKUP, &address.to_string());
    set.expect("an address");
    Served {
        store,
        server,
        address,
        transport,
        _dir: dir,
    }
}

impl Served {
    async fn from(&self, host: Ipv4Addr) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        let host = SocketAddr::new(host.into(), 0);
        socket.bind(host).expect("an address of this machine");
        socket.connect(self.address).await.expect("connects")
    }

    /// A data connection by hand, before it is answered.
    async fn says(&self, host: Ipv4Addr, primary: BrokerId) -> TcpStream {
        let mut stream = self.from(host).await;
        let mut hello = b"KERAREPL\x02\0\0\0".to_vec();
        hello.extend_from_slice(&primary.0.to_le_bytes());
        hello.extend_from_slice(&self.store.process().0.to_le_bytes());
        stream.write_all(&hello).await.expect("is sent");
        stream
    }

    async fn welcomed(&self, host: Ipv4Addr, primary: BrokerId) -> TcpStream {
        let mut stream = self.says(host, primary).await;
        let mut word = [0; WELCOME_BYTES];
        stream.read_exact(&mut word).await.expect("a word");
        assert_eq!(word[..6], *b"KRBK\x01\0", "{word:?}");
        stream
    }

    async fn link(&self) -> Box<dyn Link> {
        let connected = self.transport.connect(BACKUP, self.store.process()).await;
        connected.expect("connects")
    }

    fn key(&self, group: u64) -> BufferKey {
        let opened = self.store.open_first(&copy(group, 7));
        opened.expect("opens").buffers[0].key
    }

    fn counts(&self) -> (Counts, Counts) {
        let server = &self.server;
        (server.connections(), server.refused_connections())
    }
}

fn counts(peers: u64, strangers: u64) -> Counts {
    Counts { peers, strangers }
}

fn write(buffer: BufferKey, offset: u64, bytes: &[u8]) -> Write {
    Write {
        buffer,
        offset,
        parts: vec![Bytes::copy_from_slice(bytes)],
    }
}

async fn completed(link: &mut Box<dyn Link>, number: u64) {
    while poll_fn(|cx| link.poll_completed(cx))
        .await
        .expect("the link goes on")
        < number
    {}
}

async fn last_words(stream: &mut TcpStream) -> String {
    let mut words = Vec::new();
    let ended = timeout(PATIENCE, stream.read_to_end(&mut words)).await;
    assert!(ended.is_ok(), "the connection is not ended");
    String::from_utf8_lossy(&words).into_owned()
}

#[tokio::test]
async fn brokers_get_in_when_strangers_hold_all_other_places() {
    let options = ServerOptions {
        connections: 2,
        reserved: 1,
        ..ServerOptions::default()
    };
    let served = served(options, &[(BROKERS, PRIMARY)]).await;
    let mut strangers = Vec::new();
    for number in 100..102 {
        strangers.push(served.welcomed(STRANGERS, BrokerId(number)).await);
    }
    let mut refused = served.from(STRANGERS).await;
    assert_eq!(last_words(&mut refused).await, "", "it is closed");
    assert_eq!(served.counts(), (counts(0, 2), counts(0, 1)));
    let link = served.link().await;
    assert_eq!(served.counts(), (counts(1, 2), counts(0, 1)));
    // What is reserved is taken.
    let called = served.transport.call(BACKUP, Request::Describe).await;
    assert!(called.is_err(), "{called:?}");
    let (open, refused) = served.counts();
    assert_eq!((open, refused.strangers), (counts(1, 2), 1));
    assert!(refused.peers >= 1, "{refused:?}");
    // A place that a stranger leaves is anybody's.
    strangers.pop();
    while served
        .transport
        .call(BACKUP, Request::Describe)
        .await
        .is_err()
    {
        tokio::task::yield_now().await;
    }
    drop(link);
}

fn impatient() -> ServerOptions {
    ServerOptions {
        stall_timeout: Duration::from_millis(20),
        rest_timeout: Duration::from_millis(60),
        ..ServerOptions::default()
    }
}

#[tokio::test]
async fn a_connection_rests_only_while_its_primary_has_an_open_copy() {
    let served = served(impatient(), &[]).await;
    let mut link = served.link().await;
    let key = served.key(1);
    link.submit(vec![write(key, 0, &[1; 10])])
        .expect("is taken");
    completed(&mut link, 1).await;
    // Strangers rest as long several times over, and each is ended.
    for number in 100..103 {
        let mut stranger = served.welcomed(STRANGERS, BrokerId(number)).await;
        let words = last_words(&mut stranger).await;
        assert!(words.contains("no replica is open"), "{words:?}");
    }
    link.submit(vec![write(key, 10, &[2; 10])])
        .expect("is taken");
    completed(&mut link, 2).await;
    // One that was never used: the copy that was opened for it holds it.
    drop(link);
    let mut link = served.link().await;
    let mut stranger = served.welcomed(STRANGERS, BrokerId(100)).await;
    last_words(&mut stranger).await;
    link.submit(vec![write(key, 20, &[3; 10])])
        .expect("is taken");
    completed(&mut link, 1).await;
    let written = [[1; 10], [2; 10], [3; 10]].concat();
    assert_eq!(served.store.bytes(&copy(1, 7), 30), written);
    // Its last copy is sealed, and it rests.
    let here = served.store.incarnation();
    served.store.seal(&copy(1, 7), 8, here).expect("seals");
    let ended = poll_fn(|cx| link.poll_completed(cx)).await;
    let Err(LinkError::Broken { reason, .. }) = ended else {
        panic!("{ended:?}");
    };
    assert!(reason.contains("no replica is open"), "{reason}");
}

#[tokio::test]
async fn a_head_that_comes_byte_by_byte_is_not_waited_for() {
    let options = ServerOptions {
        stall_timeout: Duration::from_millis(100),
        ..ServerOptions::default()
    };
    let served = served(options, &[]).await;
    let mut stranger = served.welcomed(STRANGERS, BrokerId(100)).await;
    let head = WriteHead {
        buffer: BufferKey(7),
        offset: 0,
        len: 9,
        signalled: true,
    };
    // Much less than is waited for in between, and much more over all.
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    for byte in head.encode() {
        pace.tick().await;
        if stranger.write_all(&[byte]).await.is_err() {
            break;
        }
    }
    let words = last_words(&mut stranger).await;
    assert!(words.contains("did not come within"), "{words:?}");
}

#[tokio::test]
async fn a_primary_at_work_is_not_put_out_from_elsewhere() {
    let served = served(ServerOptions::default(), &[(MOVED, PRIMARY)]).await;
    let mut link = served.link().await;
    let key = served.key(1);
    for round in 0..8u8 {
        let at = u64::from(round) * 10;
        let number = link.submit(vec![write(key, at, &[round; 10])]);
        completed(&mut link, number.expect("is taken")).await;
        let mut stranger = served.says(STRANGERS, PRIMARY).await;
        let words = last_words(&mut stranger).await;
        assert!(
            words.contains("127.0.0.2 is none of the addresses"),
            "{words:?}"
        );
        assert!(words.contains("from 127.0.0.1"), "{words:?}");
    }
    let wanted: Vec<u8> = (0..8).flat_map(|round| [round; 10]).collect();
    assert_eq!(served.store.bytes(&copy(1, 7), 80), wanted);
    assert_eq!(served.server.primaries(), 1);

    // From the same machine, as after a restart, and from where it is known to have gone.
    let mut again = served.link().await;
    let ended = poll_fn(|cx| link.poll_completed(cx)).await;
    assert!(matches!(ended, Err(LinkError::Broken { .. })), "{ended:?}");
    again.submit(vec![write(key, 80, &[8; 10])]).expect("taken");
    completed(&mut again, 1).await;
    let mut moved = served.welcomed(MOVED, PRIMARY).await;
    let ended = poll_fn(|cx| again.poll_completed(cx)).await;
    assert!(matches!(ended, Err(LinkError::Broken { .. })), "{ended:?}");
    // Known there, it is not put out before it writes either.
    let words = last_words(&mut served.says(STRANGERS, PRIMARY).await).await;
    assert!(words.contains("from 127.0.0.3"), "{words:?}");
    let head = WriteHead {
        buffer: key,
        offset: 90,
        len: 1,
        signalled: true,
    };
    let write = [&head.encode()[..], &[9]].concat();
    moved.write_all(&write).await.expect("is sent");
    let mut word = [0; WELCOME_BYTES];
    moved.read_exact(&mut word).await.expect("a word");
    assert_eq!(word[..9], *b"KRBK\x02\0\0\0\x01", "{word:?}");
}

#[tokio::test]
async fn a_seat_that_nobody_writes_from_is_given_to_whoever_comes() {
    let served = served(ServerOptions::default(), &[]).await;
    let mut stranger = served.welcomed(STRANGERS, PRIMARY).await;
    let mut link = served.link().await;
    let words = last_words(&mut stranger).await;
    assert!(words.contains("newer connection"), "{words:?}");
    let key = served.key(1);
    link.submit(vec![write(key, 0, &[5; 10])])
        .expect("is taken");
    completed(&mut link, 1).await;
}
