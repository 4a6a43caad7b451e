use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::config::BrokerConfig;
use crate::start::Broker;

async fn broker(dir: &tempfile::TempDir, change: impl FnOnce(&mut BrokerConfig)) -> Broker {
    let mut config = BrokerConfig {
        data_dir: dir.path().join("data"),
        ..BrokerConfig::default()
    };
    config.server.listen = "127.0.0.1:0".into();
    config.http.listen = Some("127.0.0.1:0".into());
    config.memory.pool = 32 << 20;
    change(&mut config);
    Broker::start(config).await.expect("the broker starts")
}

async fn ask(address: SocketAddr, host: &str, path: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(address).await.expect("connects");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.expect("asks");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.expect("answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.expect("a status"), body.to_owned())
}

async fn get(broker: &Broker, path: &str) -> (u16, Value) {
    let address = broker.http_addr().expect("it has an HTTP address");
    let (status, body) = ask(address, "localhost:7680", path).await;
    let body = serde_json::from_str(&body);
    (
        status,
        body.unwrap_or_else(|error| panic!("{path}: {error}")),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_answers_this_machine_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = broker(&dir, |_| {}).await;
    let address = broker.http_addr().expect("it has an HTTP address");
    for host in ["localhost:7680", "LocalHost", "127.0.0.1:1", "[::1]:7680"] {
        assert_eq!(
            ask(address, host, "/api/v1/overview").await.0,
            200,
            "{host}"
        );
    }
    let own = "localhost\r\nSec-Fetch-Site: same-origin";
    assert_eq!(ask(address, own, "/api/v1/overview").await.0, 200);
    // A page of another site, or one whose name leads here.
    for host in [
        "localhost\r\nSec-Fetch-Site: cross-site",
        "localhost\r\nSec-Fetch-Site: same-site",
        "example.com",
        "example.com:7680",
        "localhost.example.com",
        "[::2]:1",
        "",
        // Who sends two names could mean either.
        "localhost\r\nHost: example.com",
        "example.com\r\nHost: localhost",
    ] {
        let (status, body) = ask(address, host, "/api/v1/overview").await;
        assert_eq!(status, 403, "{host}: {body}");
        assert!(body.contains("ssh -L"), "{body}");
        assert_eq!(
            ask(address, host, "/api/v1/live?path=/api/v1/overview")
                .await
                .0,
            403
        );
    }
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_path_answers_and_what_is_not_there_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = broker(&dir, |_| {}).await;
    let (status, overview) = get(&broker, "/api/v1/overview").await;
    assert_eq!(status, 200, "{overview}");
    let health = &overview["health"];
    let problems = health["problems"].as_array().expect("problems");
    if problems.is_empty() {
        let told = (health["state"].as_str(), health["sentence"].as_str());
        let well = "All is well: 1 broker serves no stream yet.";
        assert_eq!(told, (Some("ok"), Some(well)), "{health}");
    }
    // The disk of the machine that runs this test may be nearly full.
    for problem in problems {
        let told = problem["problem"].as_str().unwrap_or_default();
        assert!(told.ends_with("of its disk free"), "{health}");
    }
    for (path, total) in [("streams", 0), ("groups", 0), ("brokers", 1)] {
        let (status, list) = get(&broker, &format!("/api/v1/{path}")).await;
        assert_eq!(
            (status, list["total"].as_u64()),
            (200, Some(total)),
            "{list}"
        );
    }
    let (status, one) = get(&broker, "/api/v1/brokers/1").await;
    assert_eq!(
        (status, one["state"].as_str()),
        (200, Some("NORMAL")),
        "{one}"
    );
    let (_, settings) = get(&broker, "/api/v1/settings").await;
    let items = settings["items"].as_array().expect("settings");
    let shown = items.iter().find(|one| one["name"] == "api.records");
    assert_eq!(shown.expect("the setting")["value"], "true");
    for (path, status, word) in [
        ("streams/none", 404, "none"),
        ("streams/none/records", 404, "none"),
        ("groups/none", 404, "none"),
        ("brokers/9", 400, "no broker 9"),
        ("brokers/x", 400, "number"),
        ("nothing", 400, "docs/api.md"),
        ("streams?limit=0", 400, "1 to 200"),
        ("streams?limit=201", 400, "1 to 200"),
        ("streams?order=x", 400, "order"),
        ("streams/%ff", 400, "UTF-8"),
        ("live", 400, "say what to watch"),
        (
            "live?path=/api/v1/streams/s/records",
            400,
            "cannot be watched",
        ),
    ] {
        let (found, error) = get(&broker, &format!("/api/v1/{path}")).await;
        let message = error["message"].as_str().unwrap_or_default();
        assert_eq!(found, status, "{path}: {error}");
        assert!(message.contains(word), "{path}: {error}");
    }
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_and_the_view_of_records_can_be_switched_off() {
    let dir = tempfile::tempdir().expect("a directory");
    let hidden = broker(&dir, |config| config.api.records = false).await;
    let (status, error) = get(&hidden, "/api/v1/streams/s/records").await;
    assert_eq!(status, 403);
    assert!(
        error["message"]
            .as_str()
            .unwrap_or_default()
            .contains("api.records"),
        "{error}"
    );
    hidden.shutdown().await;
    let off = broker(&dir, |config| config.api.enabled = false).await;
    let (status, error) = get(&off, "/api/v1/overview").await;
    assert_eq!(status, 503);
    assert!(
        error["message"]
            .as_str()
            .unwrap_or_default()
            .contains("api.enabled"),
        "{error}"
    );
    off.shutdown().await;
}

/// Reads of a connection until `wanted` came.
async fn read_until(socket: &mut TcpStream, wanted: &str) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !text.contains(wanted) {
        let read = socket.read(&mut buffer);
        let read = tokio::time::timeout(Duration::from_secs(30), read).await;
        let read = read.expect("news in time").expect("news");
        assert_ne!(read, 0, "the news ended: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    text
}

async fn watch(address: SocketAddr) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.expect("connects");
    let request = "GET /api/v1/live?path=%2Fapi%2Fv1%2Foverview&path=%2Fapi%2Fv1%2Fstreams%3Flimit%3D5 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    socket.write_all(request.as_bytes()).await.expect("asks");
    socket
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn news_come_until_the_broker_stops_to_as_many_as_may_watch() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = broker(&dir, |config| config.api.max_event_streams = 1).await;
    let address = broker.http_addr().expect("it has an HTTP address");
    let mut one = watch(address).await;
    let text = read_until(&mut one, "event: answer1").await;
    assert!(text.contains("text/event-stream"), "{text}");
    assert!(
        text.contains("event: answer0\ndata: {\"taken_ms\":"),
        "{text}"
    );
    let mut other = watch(address).await;
    read_until(&mut other, "api.max_event_streams").await;
    drop(other);
    // The second round comes by itself.
    read_until(&mut one, "event: answer0").await;
    broker.shared().stopping.send_replace(true);
    // The last chunk is empty.
    read_until(&mut one, "0\r\n\r\n").await;
    broker.shutdown().await;
}
