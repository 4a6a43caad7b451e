//! Places of connections that clients cannot take.

use std::net::SocketAddr;

use kera_protocol::frame::{self, Hello};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::Cluster;

/// A connection from another address of this machine, and whether its hello is answered.
async fn connect(from: &str, to: SocketAddr) -> (TcpStream, bool) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    let mut stream = socket.connect(to).await.unwrap();
    stream.write_all(&Hello::CURRENT.encode()).await.unwrap();
    let mut first = [0; 4];
    stream.read_exact(&mut first).await.unwrap();
    (stream, first == frame::MAGIC)
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_leave_places_for_other_brokers() {
    let cluster = Cluster::with(|config| {
        config.server.max_connections = 30;
        // The clients of this test are on the same machine.
        config.server.reserved_connections = 0;
        config.cluster.reserved_connections = 20;
    })
    .await;
    let to = cluster.brokers[0].0.local_addr();
    let mut open = Vec::new();
    loop {
        let (stream, admitted) = connect("127.0.0.2", to).await;
        if !admitted {
            break;
        }
        open.push(stream);
        assert!(open.len() <= 30, "there is no limit");
    }
    assert!(!connect("127.0.0.2", to).await.1);
    // Who is refused and says nothing waits to be told, and takes no place of anybody.
    let mut silent = Vec::new();
    for _ in 0..60 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        silent.push(socket.connect(to).await.unwrap());
    }
    // The address at which the other brokers are known.
    let (_broker, admitted) = connect("127.0.0.1", to).await;
    assert!(
        admitted,
        "a broker is refused because clients took all places"
    );
}

/// The same at the address for other brokers, where settings are the first answer to HTTP/2.
async fn call(from: &str, to: SocketAddr) -> (TcpStream, bool) {
    const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    let mut stream = socket.connect(to).await.unwrap();
    let _ = stream.write_all(HTTP2).await;
    let answered = stream.read_exact(&mut [0; 9]).await.is_ok();
    (stream, answered)
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_leave_places_for_other_brokers_to_keep_copies() {
    let cluster = Cluster::with(|config| {
        config.cluster.max_connections = 30;
        config.cluster.reserved_connections = 20;
    })
    .await;
    let member = cluster.brokers[0]
        .0
        .shared()
        .clustered
        .as_ref()
        .map(|c| &c.peers);
    let backup = &member.expect("it is one of three").backup;
    let mut open = Vec::new();
    loop {
        let (stream, admitted) = call("127.0.0.2", backup.local_addr()).await;
        if !admitted {
            break;
        }
        open.push(stream);
        assert!(open.len() <= 30, "there is no limit");
    }
    let (_broker, admitted) = call("127.0.0.1", backup.local_addr()).await;
    let (open, refused) = backup.connections();
    assert!(admitted, "strangers took all places: {open:?} {refused:?}");
    assert!(open.peers > 0 && open.strangers > 0, "{open:?}");
    assert!(refused.strangers > 0, "{refused:?}");
    assert_eq!(refused.peers, 0, "{refused:?}");
}
