use std::path::PathBuf;
use std::sync::Arc;

use kera_rpc::tls::{certificates, private_key};
use kera_testkit::issuer::Key;
use rustls::ServerConfig;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

fn keys() -> String {
    json!({"keys": [Key::es256("a").public()]}).to_string()
}

fn answer(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}")
}

/// A server that sends each client `answer`, and leaves the connection open. What it is asked for at `path`.
async fn serving(scheme: &str, tls: Option<Arc<ServerConfig>>, answer: String) -> KeySource {
    let listening = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listening.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((socket, _)) = listening.accept().await {
            let stream = match tls.clone() {
                Some(config) => Stream::accept(socket, config).await,
                None => Ok(Stream::from(socket)),
            };
            let Ok(mut stream) = stream else { continue };
            let mut asked = [0; 4096];
            let read = stream.read(&mut asked).await.unwrap_or(0);
            let asked = String::from_utf8_lossy(&asked[..read]).to_lowercase();
            let whole = asked.starts_with("get /a?b=c http/1.1\r\n")
                && asked.contains(&format!("\r\nhost: localhost:{port}\r\n"));
            if whole {
                let _ = stream.write_all(answer.as_bytes()).await;
            }
            open.push(stream);
        }
    });
    let uri = format!("{scheme}://localhost:{port}/a?b=c");
    KeySource::Server(uri.parse().unwrap())
}

async fn refused(source: &KeySource, ca: Option<&Path>) -> String {
    match key_set(source, ca).await {
        Ok(_) => panic!("keys of {source}"),
        Err(why) => why,
    }
}

#[tokio::test]
async fn a_server_proves_by_tls_who_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let made = |name: &str| {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let file: PathBuf = dir.path().join(name);
        std::fs::write(&file, made.cert.pem()).unwrap();
        (made, file)
    };
    let (own, ca) = made("own.pem");
    let (_, other) = made("other.pem");
    let chain = certificates(own.cert.pem().as_bytes()).unwrap();
    let key = private_key(own.signing_key.serialize_pem().as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let source = serving("https", Some(Arc::new(config)), answer("200 OK", &keys())).await;
    let found = key_set(&source, Some(&ca)).await;
    assert!(found.is_ok(), "{:?}", found.err());
    let why = refused(&source, Some(&other)).await;
    assert!(why.contains("certificate"), "{why}");
    let why = refused(&source, Some(&dir.path().join("none"))).await;
    assert!(why.contains("oauth.keys_ca: cannot read"), "{why}");
    // Another name than the certificate's.
    let KeySource::Server(uri) = &source else {
        unreachable!("it is a server");
    };
    let elsewhere = uri.to_string().replace("localhost", "127.0.0.1");
    let elsewhere = KeySource::Server(elsewhere.parse().unwrap());
    let why = refused(&elsewhere, Some(&ca)).await;
    assert!(why.contains("certificate"), "{why}");
}

#[tokio::test]
async fn answers_without_keys_are_none() {
    let long = format!("{}{}", " ".repeat(MAX_KEY_SET), keys());
    for (text, told) in [
        (answer("404 Not Found", &keys()), "answers 404"),
        (
            answer("302 Found\r\nLocation: /keys", &keys()),
            "answers 302",
        ),
        (answer("200 OK", &long), "did not come whole"),
        (answer("200 OK", "{}"), "no JSON web key set"),
        ("SSH-2.0\r\n\r\n".to_owned(), "HTTP"),
    ] {
        let source = serving("http", None, text).await;
        let why = refused(&source, None).await;
        assert!(why.contains(told), "{why}");
    }
    let found = key_set(
        &serving("http", None, answer("200 OK", &keys())).await,
        None,
    )
    .await;
    assert!(found.is_ok(), "{:?}", found.err());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stands_still_is_given_up() {
    let begin = answer("200 OK", &keys()).split_at(100).0.to_owned();
    for said in [String::new(), "HTTP/1.1 200".to_owned(), begin] {
        let why = refused(&serving("http", None, said).await, None).await;
        assert_eq!(why, "no answer within 10 s");
    }
}

#[tokio::test]
async fn a_pipe_is_no_file_of_keys() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let why = refused(&KeySource::File(pipe), None).await;
    assert!(why.contains("no regular file"), "{why}");
    let why = refused(&KeySource::File(dir.path().join("none")), None).await;
    assert!(why.contains("No such file"), "{why}");
}
