//! Certificates that change under a broker that works.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::certificates::{Authority, Files, Identity};
use crate::common::ports::Reserved;
use crate::common::{Broker, PATIENCE, http};
use crate::session::Client;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

fn der(identity: &Identity) -> Vec<u8> {
    let der = CertificateDer::from_pem_slice(identity.certificate.as_bytes());
    der.expect("PEM").to_vec()
}

/// The value of a metric.
fn metric(http: &str, name: &str) -> f64 {
    let text = http::get(http, "/metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let value = line.unwrap_or_else(|| panic!("no {name} in {text}"));
    value.trim().parse().expect("a number")
}

pub fn until(what: &str, broker: &Broker, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}: {}", broker.log());
    }
}

#[test]
fn a_new_certificate_is_taken_under_load_and_a_broken_one_is_not() {
    let authority = Authority::new("ours");
    let (first, second) = (authority.server(&NAMES), authority.server(&NAMES));
    let files = Files::new(&first, None);
    let metrics = Reserved::new();
    let broker = files.broker(
        "native",
        &[
            "--tls-reload-interval",
            "100ms",
            "--http-listen",
            metrics.address(),
        ],
    );
    let address = broker.address().to_owned();
    let opened = |authority: &Authority| {
        let mut session = Client::trusting(authority)
            .open(&address)
            .expect("it gets in");
        session.hello().expect("the hello is answered");
        session
    };
    let mut old = opened(&authority);
    assert_eq!(old.certificate(), der(&first));
    let (stop, connected) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert!(opened(&authority).answers());
                    connected.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until("the new certificate is not used", &broker, || {
                // Certificate and key are two files: whatever is seen between them is not used.
                files.put(&second);
                opened(&authority).certificate() == der(&second)
            });
            until("it is said to be stale", &broker, || {
                metric(metrics.address(), "kera_tls_reload_failed") == 0.0
            });
            files.write("certificate.pem", "-----BEGIN CERTIFICATE-----\nnonsense");
            until("a broken file is not told of", &broker, || {
                metric(metrics.address(), "kera_tls_reload_failed") == 1.0
            });
            assert_eq!(opened(&authority).certificate(), der(&second));
            files.put(&first);
            until("it does not recover", &broker, || {
                opened(&authority).certificate() == der(&first)
            });
        }));
        stop.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(old.answers(), "a connection outlives its certificate");
    assert!(connected.load(Ordering::Relaxed) > 0);
    until("it is said to be stale", &broker, || {
        metric(metrics.address(), "kera_tls_reload_failed") == 0.0
    });
    let log = broker.log();
    assert!(log.contains("the certificate in use stays"), "{log}");
    // rcgen's certificates end in the year 4096.
    let end = metric(metrics.address(), "kera_tls_certificate_not_after_seconds");
    assert_eq!(end, 67_090_118_400.0);
    assert!(metric(metrics.address(), "kera_tls_handshakes_total") > 3.0);
}
