//! librdkafka, as kcat has it, over TLS.

use std::path::Path;
use std::process::{Command, Output};

use crate::certificates::{Authority, Files};
use crate::common::ports::Reserved;
use crate::common::{finish, machine};

/// Runs kcat over TLS, trusting `ca`, with more settings of librdkafka.
fn kcat(
    address: &str,
    patience: &str,
    ca: &Path,
    words: &[&str],
    input: &[u8],
) -> crate::common::Finished {
    let mut command = Command::new("kcat");
    command
        // Cargo's has a librdkafka without TLS.
        .env_remove("LD_LIBRARY_PATH")
        .args([
            "-b",
            address,
            "-m",
            patience,
            "-X",
            "security.protocol=ssl",
            "-X",
        ])
        .arg(format!("ssl.ca.location={}", ca.display()))
        .args(words);
    finish(command, input)
}

#[test]
fn kcat_produces_and_consumes_with_a_certificate_of_its_own() {
    let version = Command::new("kcat").arg("-V").output();
    if !version.is_ok_and(|Output { status, .. }| status.success()) {
        machine::skip("kcat over TLS", "kcat is not installed");
        return;
    }
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let kafka = Reserved::new();
    let files = Files::new(&servers.server(&["localhost", "127.0.0.1"]), Some(&clients));
    let flags = [
        "--kafka-listen",
        kafka.address(),
        "--tls-client-auth",
        "required",
    ];
    let broker = files.broker("kafka", &flags);
    broker.run(&["stream", "create", "clicks"]);
    let ann = clients.client("ann");
    let ca = files.write("ca.pem", &servers.pem);
    let certificate = files.write("ann.pem", &ann.certificate);
    let key = files.write("ann-key.pem", &ann.key);
    let certificate = format!("ssl.certificate.location={}", certificate.display());
    let key = format!("ssl.key.location={}", key.display());
    let identity = ["-X", &certificate, "-X", &key];
    // Some larger than one record of TLS.
    let lines: Vec<String> = (0..2000_usize)
        .map(|number| format!("{number}-{}", "x".repeat(number * 13 % 40_000)))
        .collect();
    let produce = [&identity[..], &["-P", "-t", "clicks"]].concat();
    let sent = kcat(
        kafka.address(),
        "60",
        &ca,
        &produce,
        (lines.join("\n") + "\n").as_bytes(),
    );
    assert!(sent.status.success(), "{}", sent.stderr);
    let consume = [
        &identity[..],
        &["-C", "-t", "clicks", "-o", "beginning", "-e", "-q"],
    ]
    .concat();
    let read = kcat(kafka.address(), "60", &ca, &consume, b"");
    assert!(read.status.success(), "{}", read.stderr);
    let text = read.text();
    assert!(
        text.lines().eq(lines.iter().map(String::as_str)),
        "{} bytes",
        text.len()
    );
    // Without a certificate of its own it is kept out.
    let stranger = kcat(kafka.address(), "3", &ca, &["-L"], b"");
    assert!(!stranger.status.success(), "{}", stranger.text());
}
