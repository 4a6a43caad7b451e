use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::config::BrokerConfig;
use crate::readiness::may_serve;
use crate::start::Broker;

/// Status and body of a GET.
async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(address).await.expect("connects");
    let request = format!("GET {path} HTTP/1.1\r\nHost: kera\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.expect("asks");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.expect("answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.expect("a status"), body.to_owned())
}

async fn broker(dir: &tempfile::TempDir) -> (Broker, SocketAddr) {
    let mut config = BrokerConfig {
        data_dir: dir.path().join("data"),
        ..BrokerConfig::default()
    };
    config.server.listen = "127.0.0.1:0".into();
    config.http.listen = Some("127.0.0.1:0".into());
    config.memory.pool = 32 << 20;
    let broker = Broker::start(config).await.expect("the broker starts");
    let address = broker.http_addr().expect("it has an HTTP address");
    (broker, address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovering_broker_lives_and_is_not_ready() {
    let http = Http::start("127.0.0.1:0", &BrokerConfig::default().http, None)
        .await
        .expect("listens");
    let address = http.local_addr();
    assert_eq!(get(address, "/livez").await, (200, "ok\n".into()));
    assert_eq!(get(address, "/readyz").await, (503, "recovering\n".into()));
    let (status, text) = get(address, "/metrics").await;
    assert_eq!(status, 200);
    assert!(text.contains("\nkera_ready 0\n"), "{text}");
    http.end().await;
    assert!(TcpStream::connect(address).await.is_err(), "it listens on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_serving_broker_is_ready_until_it_drains() {
    let dir = tempfile::tempdir().expect("a directory");
    let (broker, address) = broker(&dir).await;
    let shared = broker.shared().clone();
    assert_eq!(get(address, "/readyz").await, (200, "ready\n".into()));
    assert!(
        get(address, "/metrics")
            .await
            .1
            .contains("\nkera_ready 1\n")
    );

    // As the first step of a shutdown does it.
    shared.stopping.send_replace(true);
    let (status, text) = get(address, "/readyz").await;
    assert_eq!(
        (status, text.as_str()),
        (503, "draining: the broker stops\n")
    );
    assert_eq!(get(address, "/livez").await.0, 200);
    assert!(
        get(address, "/metrics")
            .await
            .1
            .contains("\nkera_ready 0\n")
    );
    drop(shared);
    broker.shutdown().await;
    assert!(TcpStream::connect(address).await.is_err(), "it listens on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_whose_thread_fell_is_not_live() {
    let dir = tempfile::tempdir().expect("a directory");
    let (broker, address) = broker(&dir).await;
    assert_eq!(get(address, "/livez").await.0, 200);
    let shared = broker.shared().clone();
    let thread = std::thread::spawn(move || {
        let _watch = shared.fallen.watch("kera-pump");
        // Without the hook: the message of a panic that is wanted would mislead.
        std::panic::resume_unwind(Box::new("planted"));
    });
    thread.join().expect_err("it panics");
    let (status, text) = get(address, "/livez").await;
    assert_eq!(status, 500);
    assert!(text.contains("kera-pump"), "{text}");
    broker.shutdown().await;
}

#[test]
fn appends_that_are_refused_make_a_broker_unready() {
    assert_eq!(may_serve(false, false, true, false), Ok(()));
    let full = may_serve(false, true, true, false).expect_err("a full disk");
    assert!(full.contains("disk full"), "{full}");
    let draining = may_serve(true, true, false, true).expect_err("the end comes first");
    assert!(draining.contains("draining"), "{draining}");
    let alone = may_serve(false, false, false, false).expect_err("no lease");
    assert!(alone.contains("no lease"), "{alone}");
    let strange = may_serve(false, false, true, true).expect_err("another store");
    assert!(strange.contains("wrong metadata store"), "{strange}");
}

fn limited(max_connections: u32, request_timeout: std::time::Duration) -> HttpConfig {
    HttpConfig {
        max_connections,
        request_timeout,
        ..BrokerConfig::default().http
    }
}

/// Reads until the broker closes the connection.
async fn closed(socket: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    let read = timeout(Duration::from_secs(60), socket.read_to_end(&mut rest)).await;
    read.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_request_is_not_waited_for() {
    let config = limited(64, Duration::from_millis(300));
    let http = Http::start("127.0.0.1:0", &config, None)
        .await
        .expect("listens");
    for said in [&b""[..], b"GET /metrics HTTP/1.1\r\nX: "] {
        let mut socket = TcpStream::connect(http.local_addr())
            .await
            .expect("connects");
        socket.write_all(said).await.expect("says so much");
        assert!(closed(&mut socket).await, "still open after {said:?}");
    }
    // Byte after byte does not help.
    let mut socket = TcpStream::connect(http.local_addr())
        .await
        .expect("connects");
    let mut sent = 0;
    while socket.write_all(b"G").await.is_ok() {
        sent += 1;
        assert!(sent < 3_000, "still open");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    http.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_ask_nothing_make_room_for_probes() {
    let config = limited(4, Duration::from_secs(3600));
    let http = Http::start("127.0.0.1:0", &config, None)
        .await
        .expect("listens");
    let mut silent = Vec::new();
    for _ in 0..12 {
        let mut socket = TcpStream::connect(http.local_addr())
            .await
            .expect("connects");
        socket
            .write_all(b"GET /livez HTTP/1.1\r\n")
            .await
            .expect("half");
        silent.push(socket);
        assert_eq!(get(http.local_addr(), "/livez").await.0, 200);
    }
    assert!(closed(&mut silent[0]).await, "the oldest has made room");
    drop(silent);
    http.end().await;
}
