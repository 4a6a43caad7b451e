//! Connections without a call, and calls that never arrive or whose replies are not taken, as the server of
//! control calls treats them.

#[path = "serving/calls.rs"]
mod calls;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kera_grpc::serve::{CallLimits, CallServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::service::Routes;

const PATIENCE: Duration = Duration::from_secs(60);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The kind of HTTP/2's frame that says that a connection ends.
const GOAWAY: u8 = 7;
/// By which a peer is asked whether it is there, and the flag of the answer.
const PING: u8 = 6;
const ACK: u8 = 1;

const LIMITS: CallLimits = CallLimits {
    first_call: Duration::from_secs(600),
    idle: Duration::from_secs(600),
    receive: Duration::from_secs(600),
    send: Duration::from_secs(600),
    quiet_connections: 4,
    calls: 8,
    total_calls: 1000,
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
        Self::of(limits, Routes::default()).await
    }

    async fn of(limits: CallLimits, routes: Routes) -> Self {
        let (running, stopping) = watch::channel(false);
        let (server, _) = CallServer::new(routes, limits, stopping, Arc::default());
        Self {
            server,
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            _running: running,
        }
    }

    /// A client that has begun to speak HTTP/2, and has heard that the server does.
    async fn client(&self) -> TcpStream {
        self.client_until(None).await
    }

    /// The same, on a connection that is to end at a time.
    async fn client_until(&self, until: Option<Instant>) -> TcpStream {
        let address = self.listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        let (stream, _) = self.listener.accept().await.unwrap();
        let server = self.server.clone();
        let caller = std::net::IpAddr::from(Ipv4Addr::LOCALHOST);
        tokio::spawn(async move { server.connection_until(stream, caller, None, until).await });
        client.write_all(PREFACE).await.unwrap();
        frame(&mut client).await.unwrap();
        client
    }
}

/// The next frame that the server sends: its head, and what follows.
async fn frame(client: &mut TcpStream) -> std::io::Result<([u8; 9], Vec<u8>)> {
    let mut head = [0; 9];
    client.read_exact(&mut head).await?;
    let mut rest = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    client.read_exact(&mut rest).await?;
    Ok((head, rest))
}

/// Waits until the server has closed a connection; true if it said so before. Pings are answered: a connection that
/// does not would be closed for that.
async fn ends(client: &mut TcpStream) -> bool {
    timeout(PATIENCE, answer_until_closed(client))
        .await
        .expect("the server closes it")
}

async fn answer_until_closed(client: &mut TcpStream) -> bool {
    let mut is_told = false;
    // It may be closed with what was sent unread.
    while let Ok((mut head, rest)) = frame(client).await {
        is_told |= head[3] == GOAWAY;
        if (head[3], head[4] & ACK) == (PING, 0) {
            head[4] |= ACK;
            // It may be closed meanwhile.
            let _ = client.write_all(&[&head[..], &rest].concat()).await;
        }
    }
    is_told
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
