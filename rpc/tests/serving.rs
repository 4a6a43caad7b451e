//! Connections without a call, as the server of control calls treats them.

use std::net::Ipv4Addr;
use std::time::Duration;

use kera_rpc::serve::{CallLimits, CallServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::service::Routes;

const PATIENCE: Duration = Duration::from_secs(60);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The kind of HTTP/2's frame that says that a connection ends.
const GOAWAY: u8 = 7;

const LIMITS: CallLimits = CallLimits {
    first_call: Duration::from_secs(600),
    idle: Duration::from_secs(600),
    receive: Duration::from_secs(600),
    send: Duration::from_secs(600),
    quiet_connections: 4,
    calls: 8,
    calls_at_work: 8,
    connection_bytes: 1 << 20,
    total_bytes: 1 << 20,
};

struct Served {
    server: CallServer,
    listener: TcpListener,
    _running: watch::Sender<bool>,
}

impl Served {
    async fn with(limits: CallLimits) -> Self {
        let (running, stopping) = watch::channel(false);
        let (server, _) = CallServer::new(Routes::default(), limits, stopping);
        Self {
            server,
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            _running: running,
        }
    }

    /// A client that has begun to speak HTTP/2, and has heard that the server does.
    async fn client(&self) -> TcpStream {
        let address = self.listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        let (stream, _) = self.listener.accept().await.unwrap();
        let server = self.server.clone();
        let caller = Ipv4Addr::LOCALHOST.into();
        tokio::spawn(async move { server.connection(stream, caller, None).await });
        client.write_all(PREFACE).await.unwrap();
        let mut begin = [0; 9];
        client.read_exact(&mut begin).await.unwrap();
        client
    }
}

/// Waits until the server has closed a connection; true if it said so before.
async fn ends(client: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    let read = timeout(PATIENCE, client.read_to_end(&mut rest));
    // It may be closed with what was sent unread.
    let _ = read.await.expect("the server closes it");
    rest.windows(6).any(|head| head == [GOAWAY, 0, 0, 0, 0, 0])
}

#[tokio::test]
async fn the_connections_that_were_quiet_for_longest_give_way() {
    let served = Served::with(LIMITS).await;
    let mut clients = Vec::new();
    for _ in 0..20 {
        clients.push(served.client().await);
        assert!(served.server.quiet_connections() <= 4 + 1);
    }
    for client in &mut clients[..16] {
        ends(client).await;
    }
    assert_eq!(served.server.quiet_connections(), 4);
}

#[tokio::test]
async fn a_connection_without_a_call_is_told_that_it_ends() {
    let limits = CallLimits {
        first_call: Duration::from_millis(50),
        ..LIMITS
    };
    let served = Served::with(limits).await;
    let mut client = served.client().await;
    assert!(ends(&mut client).await, "it is told");
    assert_eq!(served.server.quiet_connections(), 0);
}
