//! Metrics and probes over TLS.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use kera_protocol::frame::Hello;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::certificates::{Authority, Files};
use crate::common::ports::Reserved;
use crate::common::{Broker, PATIENCE, finish, kera};

const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// A client without a certificate, which resumes sessions where it can.
pub fn client(trusts: &Authority) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(trusts.pem.as_bytes());
    roots.add(authority.expect("PEM")).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions that ring has")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

/// What is answered to `said`, as far as the first `most` bytes.
fn ask(config: &Arc<ClientConfig>, address: &str, said: &[u8], most: u64) -> io::Result<Vec<u8>> {
    let name = ServerName::try_from("localhost").expect("a name");
    let session = ClientConnection::new(config.clone(), name).expect("a session");
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut stream = StreamOwned::new(session, socket);
    stream.write_all(said)?;
    let mut answer = Vec::new();
    stream.take(most).read_to_end(&mut answer)?;
    Ok(answer)
}

pub fn get(config: &Arc<ClientConfig>, address: &str, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let answer = ask(config, address, request.as_bytes(), u64::MAX);
    String::from_utf8(answer.expect("an answer")).expect("text")
}

fn broker(files: &Files, http: &Reserved) -> Broker {
    let flags = [
        "--http-listen",
        http.address(),
        "--tls-client-auth",
        "required",
    ];
    files.broker("native,http", &flags)
}

#[test]
fn metrics_and_probes_have_tls_and_ask_for_no_certificate() {
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let http = Reserved::new();
    let files = Files::new(&servers.server(&NAMES), Some(&clients));
    let _broker = broker(&files, &http);
    let config = client(&servers);
    for (path, expected) in [
        ("/livez", "ok\n"),
        ("/readyz", "ready\n"),
        ("/metrics", "kera_tls_handshakes_total"),
    ] {
        let answer = get(&config, http.address(), path);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains(expected), "{answer}");
    }
    let mut plain = TcpStream::connect(http.address()).expect("it listens");
    plain.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    plain
        .write_all(b"GET /livez HTTP/1.1\r\n\r\n")
        .expect("it is taken");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

#[test]
fn a_session_that_proved_nothing_is_not_resumed_where_a_certificate_is_required() {
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let http = Reserved::new();
    let files = Files::new(&servers.server(&NAMES), Some(&clients));
    let broker = broker(&files, &http);
    // It keeps what it is given for another session with a server of this name.
    let config = client(&servers);
    for _ in 0..3 {
        get(&config, http.address(), "/livez");
        let greeted = ask(&config, broker.address(), &Hello::CURRENT.encode(), 4);
        let refused = greeted.is_err() || greeted.is_ok_and(|answer| answer.is_empty());
        assert!(refused, "it is let in without a certificate");
    }
}

#[test]
fn top_asks_as_a_user_over_tls() {
    let servers = Authority::new("servers");
    let http = Reserved::new();
    let files = Files::new(&servers.server(&NAMES), None);
    let ca = files.write("ca.pem", &servers.pem);
    let password = files.write("password", "long secret\n");
    let other = files.write("other.pem", &Authority::new("strangers").pem);
    let first = password.to_str().expect("a path of the build");
    let flags = [
        ["--http-listen", http.address()],
        ["--auth-listeners", "native,http"],
        ["--auth-first-user", "ann"],
        ["--auth-first-user-password-file", first],
    ];
    let broker = files.broker("native,http", flags.as_flattened());
    let top = |place: &str, ca: Option<&std::path::Path>| {
        let mut command = kera();
        command.args(["top", "--json", "--http", place]);
        command.args(["--user", "ann", "--user-password-file", first]);
        if let Some(ca) = ca {
            command.arg("--tls-ca").arg(ca);
        }
        finish(command, b"")
    };
    let place = http.address();
    let secure = format!("https://{place}");
    for place in [place, &secure] {
        let told = top(place, Some(&ca));
        assert!(told.status.success(), "{}", told.stderr);
        assert!(told.text().contains("NORMAL"), "{}", told.text());
    }
    let plain = format!("http://{place}");
    for (place, ca, why) in [
        (secure.as_str(), None, "--tls-ca"),
        (place, None, "if it has TLS"),
        (&plain, Some(&*ca), "if it has TLS"),
        (place, Some(&*other), "is not trusted here"),
        ("ftp://localhost:1", Some(&*ca), "neither https://"),
    ] {
        let told = top(place, ca);
        assert!(!told.status.success(), "{place}: {}", told.text());
        assert!(told.stderr.contains(why), "{place}: {}", told.stderr);
    }
    drop(broker);
    // An address without TLS that is asked with it.
    let broker = Broker::with(&["--http-listen", place]);
    let told = top(place, Some(&ca));
    assert!(told.stderr.contains("--http http://"), "{}", told.stderr);
    drop(broker);
}
