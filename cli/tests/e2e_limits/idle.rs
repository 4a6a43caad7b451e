//! Control connections without a call: ended by the broker, and made again by clients that need them.
//!
//! The broker runs within the test, which sees how many connections it has.

use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::Ordering;
use std::time::Duration;

use kera_broker::Broker;
use kera_broker::config::BrokerConfig;
use kera_grpc::Channels;
use kera_grpc::v1::streams_client::StreamsClient;
use kera_protocol::v1::ListStreamsRequest;
use tokio::task::block_in_place;
use tokio::time::{interval, timeout};

use crate::common::raw::Raw;
use crate::common::{PATIENCE, home};

/// HTTP/2's frame by which a peer is asked whether it is there, and the flag of the answer.
const PING: u8 = 6;
const ACK: u8 = 1;

/// Waits until the broker closes a connection that calls nothing and answers pings: one that does not would be
/// closed for that.
fn answer_until_closed(raw: &mut Raw) {
    loop {
        let mut head = [0; 9];
        match raw.socket.read_exact(&mut head) {
            Ok(()) => {}
            // Closed by the broker: with an error where it had something unread.
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return;
            }
            Err(error) => panic!("the broker does not close it: {error}"),
        }
        let mut frame = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        if raw.socket.read_exact(&mut frame).is_err() {
            return;
        }
        if (head[3], head[4] & ACK) == (PING, 0) {
            head[4] |= ACK;
            // It may be closed meanwhile.
            let _ = raw.socket.write_all(&[&head[..], &frame].concat());
        }
    }
}

async fn until_alone(broker: &Broker) {
    let alone = async {
        let mut looks = interval(Duration::from_millis(5));
        while broker.shared().connections.load(Ordering::Relaxed) > 0 {
            looks.tick().await;
        }
    };
    timeout(PATIENCE, alone)
        .await
        .expect("the broker ends control connections that have no call");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_control_connection_is_ended_and_its_client_notices_nothing() {
    let home = home();
    let mut config = BrokerConfig {
        data_dir: home.path().join("data"),
        ..BrokerConfig::default()
    };
    config.server.listen = "127.0.0.1:0".into();
    // Long enough for who is held up between its connection and its call.
    config.server.control_idle_timeout = Duration::from_secs(1);
    config.server.hello_timeout = Duration::from_secs(5);
    config.http.listen = None;
    let broker = Broker::start(config).await.expect("the broker starts");
    let address = broker.local_addr().to_string();

    // With no retries: every call must do by itself.
    let channel = Channels::new(PATIENCE).to(&address).expect("an address");
    let mut stub = StreamsClient::new(channel);
    for _ in 0..3 {
        let listed = stub.list_streams(ListStreamsRequest::default()).await;
        listed.expect("the connection is made anew");
        until_alone(&broker).await;
    }

    // Of those that never call each is ended as well.
    block_in_place(|| {
        let mut idle: Vec<Raw> = (0..50).map(|_| Raw::connect_to(&address)).collect();
        for raw in &mut idle {
            raw.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
        }
        idle.iter_mut().for_each(answer_until_closed);
    });
    until_alone(&broker).await;
    broker.shutdown().await;
}
