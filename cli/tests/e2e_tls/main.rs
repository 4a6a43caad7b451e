//! TLS at the listeners of the real binary, with certificates made for the test.

#[path = "../common/mod.rs"]
mod common;

mod access;
mod certificates;
mod cluster;
mod commands;
mod dev;
mod fuzz;
mod hostile;
mod hostile_suite;
mod http;
mod kcat;
mod listeners;
mod logins;
mod principals;
mod refused;
mod reload;
mod replicas;
mod session;
mod shut_out;
mod strangers;
mod users;

use common::{Broker, PATIENCE};

/// Waits until the broker's log has `text`: a client may hear of what it did before it is written.
fn tells(broker: &Broker, text: &str) {
    let begin = std::time::Instant::now();
    while !broker.log().contains(text) {
        assert!(
            begin.elapsed() < PATIENCE,
            "no `{text}` in {}",
            broker.log()
        );
    }
}
