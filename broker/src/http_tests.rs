use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::config::BrokerConfig;
use crate::readiness::may_serve;
use crate::start::Broker;
use crate::unheard::Unheard;

async fn started(config: &BrokerConfig) -> Http {
    let unheard = Arc::new(Unheard::with_most(config.auth.max_unproven_bytes));
    let http = Http::start("127.0.0.1:0", config, None, &unheard).await;
    http.expect("listens")
}

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

async fn broker(
    dir: &tempfile::TempDir,
    change: impl FnOnce(&mut BrokerConfig),
) -> (Broker, SocketAddr) {
    let mut config = BrokerConfig {
        data_dir: dir.path().join("data"),
        ..BrokerConfig::default()
    };
    config.server.listen = "127.0.0.1:0".into();
    config.http.listen = Some("127.0.0.1:0".into());
    config.memory.pool = 32 << 20;
    change(&mut config);
    let broker = Broker::start(config).await.expect("the broker starts");
    let address = broker.http_addr().expect("it has an HTTP address");
    (broker, address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovering_broker_lives_and_is_not_ready() {
    let http = started(&BrokerConfig::default()).await;
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
    let (broker, address) = broker(&dir, |_| {}).await;
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
    let (broker, address) = broker(&dir, |_| {}).await;
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

fn limited(max_connections: u32, request_timeout: std::time::Duration) -> BrokerConfig {
    let mut config = BrokerConfig::default();
    config.http.max_connections = max_connections;
    config.http.request_timeout = request_timeout;
    config
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
    let http = started(&config).await;
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
    let http = started(&config).await;
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

/// A head that goes on and on, as much of it as is wanted.
fn endless(bytes: usize) -> Vec<u8> {
    let mut head = b"GET /livez HTTP/1.1\r\nX: ".to_vec();
    head.resize(bytes, b'x');
    head
}

/// True if an answer has all of its body.
fn is_whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let mut lines = head.lines();
    let length = lines.find_map(|line| line.strip_prefix("content-length: "));
    length.is_some_and(|length| length.parse() == Ok(body.len()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_of_requests_count_among_what_strangers_hold() {
    const MOST: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let (broker, address) = broker(&dir, |config| {
        config.auth.max_unproven_bytes = MOST;
        config.http.request_timeout = Duration::from_secs(3600);
    })
    .await;
    // Together twice as much as there is, each a head that is taken as such.
    let mut strangers = Vec::new();
    for _ in 0..16 {
        let mut socket = TcpStream::connect(address).await.expect("connects");
        // The broker may have ended it already.
        let _ = socket.write_all(&endless(128 << 10)).await;
        strangers.push(socket);
    }
    assert!(closed(&mut strangers[0]).await, "the oldest makes room");
    let unheard = &broker.shared().unheard;
    assert!(unheard.ended() > 0);
    // What a connection holds is known once it has been received.
    assert!(unheard.bytes() <= MOST + (256 << 10), "{}", unheard.bytes());
    assert_eq!(get(address, "/livez").await.0, 200);
    drop(strangers);
    // One after another, answered each, they hold nothing.
    let mut socket = TcpStream::connect(address).await.expect("connects");
    for _ in 0..32 {
        let request = [&endless(64 << 10)[..], b"\r\nHost: kera\r\n\r\n"].concat();
        socket.write_all(&request).await.expect("asks");
        let mut answer = Vec::new();
        while !is_whole(&answer) {
            let read = socket.read_buf(&mut answer).await.expect("answers");
            assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
        }
    }
    broker.shutdown().await;
}

/// The head of the answer to a GET with these header lines.
async fn head(address: SocketAddr, path: &str, headers: &[u8]) -> String {
    let mut socket = TcpStream::connect(address).await.expect("connects");
    let begin = format!("GET {path} HTTP/1.1\r\nHost: kera\r\nConnection: close\r\n");
    let request = [begin.as_bytes(), headers, b"\r\n"].concat();
    socket.write_all(&request).await.expect("asks");
    let mut answer = Vec::new();
    // It may close while there is more to read.
    let _ = socket.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer);
    let head = answer.split("\r\n\r\n").next().unwrap_or_default();
    head.to_lowercase()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_headers_are_answered_and_harm_nobody() {
    let dir = tempfile::tempdir().expect("a directory");
    let (broker, address) = broker(&dir, |config| {
        config.auth.listeners = vec![Listener::Http];
    })
    .await;
    // Begins of recovery apart, nobody is told metrics; probes are for everybody.
    assert_eq!(get(address, "/livez").await.0, 200);
    assert_eq!(get(address, "/readyz").await.0, 200);
    let challenge = "www-authenticate: basic realm=\"kera\", charset=\"utf-8\"";
    let long = |bytes: usize| [b"Authorization: Basic ", &vec![b'A'; bytes][..], b"\r\n"].concat();
    let unauthorized: [&[u8]; 9] = [
        b"",
        b"Authorization: Basic YW5uOnNlY3JldA==\r\n",
        b"Authorization: Basic YW5uOnNlY3JldA==\r\nAuthorization: Basic YW5uOnNlY3JldA==\r\n",
        b"Authorization: Basic \xff\xfe\xfd\r\n",
        b"Authorization: Basic ====\r\n",
        b"Authorization: Basic AAAA\r\n",
        b"Authorization: Negotiate abc\r\n",
        b"Authorization:\r\n",
        &long(20_000),
    ];
    for headers in unauthorized {
        for path in ["/metrics", "/", "/api/v1/overview", "/api/v1/live"] {
            let shown = String::from_utf8_lossy(&headers[..headers.len().min(99)]);
            let head = head(address, path, headers).await;
            assert!(head.starts_with("http/1.1 401 "), "{path} {shown}: {head}");
            assert!(head.contains(challenge), "{path} {shown}: {head}");
        }
    }
    // What is no HTTP, or too much of it, does not get that far.
    for headers in [
        &b"Authorization: Basic a\0b\r\n"[..],
        b"Authorization: Basic a\rb\r\n",
        b"Authorization : Basic abc\r\n",
        &long(2_000_000),
        &b"Authorization: Basic abc\r\n".repeat(1_000),
    ] {
        let head = head(address, "/metrics", headers).await;
        let shown = String::from_utf8_lossy(&headers[..headers.len().min(99)]);
        assert!(
            head.is_empty() || head.starts_with("http/1.1 4"),
            "{shown}: {head}"
        );
    }
    assert_eq!(get(address, "/readyz").await, (200, "ready\n".into()));
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_are_open_as_the_setting_says() {
    use OpenPath::{Metrics, Probes};
    let dir = tempfile::tempdir().expect("a directory");
    for (asks, open, probes, metrics) in [
        (false, vec![], 200, 200),
        (true, vec![Probes], 200, 401),
        (true, vec![Metrics], 401, 200),
        (true, vec![], 401, 401),
    ] {
        let (broker, address) = broker(&dir, |config| {
            config.auth.listeners = asks.then_some(Listener::Http).into_iter().collect();
            config.http.open_paths = open;
        })
        .await;
        for path in ["/livez", "/healthz", "/readyz"] {
            assert_eq!(get(address, path).await.0, probes, "{path}");
        }
        assert_eq!(get(address, "/metrics").await.0, metrics);
        broker.shutdown().await;
    }
}

/// Tests ask each path of [`routes`] without rights; one that is added beside the tables would be asked by none.
#[test]
fn every_path_that_is_served_is_in_a_table() {
    for (source, places) in [
        // The table of what is plain.
        (include_str!("http.rs"), 1),
        // The console's table, what is live, and the API's tables.
        (include_str!("api/mod.rs"), 3),
    ] {
        assert_eq!(source.matches(".route(").count(), places);
        for other in [".route_service(", ".nest(", ".fallback("] {
            assert!(!source.contains(other), "{other}");
        }
    }
    let mut all = routes();
    let many = all.len();
    all.sort();
    all.dedup();
    assert_eq!((all.len(), many), (24, 24), "{all:?}");
}
