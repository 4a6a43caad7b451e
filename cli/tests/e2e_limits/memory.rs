//! A pool that is used up: appends wait, and are then refused so that they may be sent again.
//!
//! The broker runs within the test, which takes its memory away and shortens its patience.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kera_broker::Broker;
use kera_broker::config::BrokerConfig;
use kera_log_segments::pool::ChunkWriter;
use kera_producer::{Producer, Record};
use kera_protocol::batch::ProducerStamp;
use kera_protocol::error::ErrorCode;
use kera_protocol::frame::FrameKind;
use kera_protocol::v1;
use tempfile::TempDir;
use tokio::task::block_in_place;
use tokio::time::{interval, timeout};

use crate::common::raw::{Raw, batch_by, batch_of, frame_of};
use crate::common::{PATIENCE, finish, home, kera};

const PATIENCE_OF_THE_BROKER: Duration = Duration::from_millis(100);

struct Small {
    broker: Broker,
    address: String,
    stream: bytes::Bytes,
    _home: TempDir,
}

impl Small {
    /// A broker of 16 MiB with a stream `s` of one lane.
    async fn start() -> Self {
        let home = home();
        let mut config = BrokerConfig {
            data_dir: home.path().join("data"),
            ..BrokerConfig::default()
        };
        config.server.listen = "127.0.0.1:0".into();
        config.http.listen = None;
        config.memory.pool = 16 << 20;
        let broker = Broker::start(config).await.expect("the broker starts");
        broker.shared().data.set_memory_wait(PATIENCE_OF_THE_BROKER);
        let mut small = Self {
            address: broker.local_addr().to_string(),
            broker,
            stream: bytes::Bytes::new(),
            _home: home,
        };
        small.run(&["stream", "create", "s"]);
        let stream = small
            .broker
            .shared()
            .data
            .catalog
            .named("s")
            .expect("it exists");
        small.stream = bytes::Bytes::copy_from_slice(stream.id().as_bytes());
        small
    }

    fn run(&self, words: &[&str]) -> String {
        let mut command = kera();
        command.args(words).env("KERA_BOOTSTRAP", &self.address);
        let finished = block_in_place(|| finish(command, b""));
        assert!(finished.status.success(), "{}", finished.stderr);
        finished.text()
    }

    /// Takes all memory but `left` chunks.
    fn starve(&self, left: usize) -> Vec<ChunkWriter> {
        let pool = &self.broker.shared().data.env.pool;
        let mut taken: Vec<_> = std::iter::from_fn(|| pool.try_take()).collect();
        assert!(taken.len() > left);
        taken.truncate(taken.len() - left);
        taken
    }

    fn append(&self, raw: &mut Raw, body: &[u8]) -> v1::AppendResponse {
        let request = v1::AppendRequest {
            stream: self.stream.clone(),
            ..v1::AppendRequest::default()
        };
        raw.send(&frame_of(FrameKind::Append, 1, &request, body));
        block_in_place(|| raw.append_answer()).1
    }
}

fn overloaded(answer: &v1::AppendResponse) {
    let code = ErrorCode::from_number(answer.error).expect("a known code");
    assert_eq!(code, ErrorCode::Overloaded, "{}", answer.message);
    assert!(code.is_retryable());
    assert!(answer.message.contains("memory.pool"), "{}", answer.message);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_memory_an_append_is_refused_and_may_be_sent_again() {
    let small = Small::start().await;
    let mut raw = block_in_place(|| Raw::open_to(&small.address));
    let taken = small.starve(0);
    for _ in 0..2 {
        let answer = small.append(&mut raw, &batch_of(b"one"));
        overloaded(&answer);
        assert_eq!(answer.placement(), v1::Placement::NotPlaced);
    }
    assert_eq!(small.run(&["consume", "s"]), "", "reading goes on");
    drop(taken);
    let answer = small.append(&mut raw, &batch_of(b"one"));
    assert_eq!(
        (answer.error, answer.base_ordinal),
        (0, 0),
        "{}",
        answer.message
    );
    assert_eq!(small.run(&["consume", "s"]), "one\n");
    small.broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_refused_half_way_is_stored_once_when_it_is_sent_again() {
    let small = Small::start().await;
    let mut raw = block_in_place(|| Raw::open_to(&small.address));
    // A chunk takes the first; the second needs more, whatever is given back for it.
    let values = [vec![b'a'; 30 << 10], vec![b'b'; 150 << 10], vec![b'c'; 10]];
    let body: Vec<u8> = (0..)
        .zip(&values)
        .flat_map(|(base_sequence, value)| {
            let producer = ProducerStamp {
                producer_id: 1,
                producer_epoch: 0,
                base_sequence,
            };
            batch_by(producer, value)
        })
        .collect();
    let appended = || small.broker.shared().data.metrics.appended_records.get();
    let taken = small.starve(1);
    let answer = small.append(&mut raw, &body);
    overloaded(&answer);
    assert_eq!(appended(), 1, "it was refused half-way");
    assert_eq!(answer.placement(), v1::Placement::MayBePlaced);
    drop(taken);
    let answer = small.append(&mut raw, &body);
    assert_eq!(
        (answer.error, answer.base_ordinal),
        (0, 0),
        "{}",
        answer.message
    );
    assert!(!answer.duplicate, "the last of it is new");
    assert_eq!(appended(), 3);
    let stored = small.run(&["consume", "s"]);
    assert!(
        stored.lines().map(str::as_bytes).eq(&values),
        "each batch once, and in order: {} bytes",
        stored.len()
    );
    small.broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_producer_waits_for_memory_and_stores_each_record_once() {
    let small = Small::start().await;
    let producer = Producer::builder()
        .bootstrap(&small.address)
        .stream("s")
        .idempotent(false)
        .batch_size(1 << 10)
        .deadline(PATIENCE)
        .build()
        .await
        .expect("a producer can be built");
    let taken = small.starve(0);
    for n in 0..500 {
        let value = format!("{n:04}");
        producer
            .append(&Record::of_value(value.as_bytes()))
            .expect("a record is taken");
    }
    // Refused several times before there is memory.
    let refused = async {
        let mut looks = interval(Duration::from_millis(5));
        while small.broker.shared().data.metrics.append_errors.get() < 3 {
            looks.tick().await;
        }
    };
    timeout(PATIENCE, refused)
        .await
        .expect("appends are refused");
    drop(taken);
    producer.close().await.expect("everything is stored");
    let stored = small.run(&["consume", "s"]);
    let mut lines: Vec<&str> = stored.lines().collect();
    lines.sort_unstable();
    let all: Vec<String> = (0..500).map(|n| format!("{n:04}")).collect();
    assert_eq!(lines, all);
    assert_eq!(
        small.broker.shared().data.in_flight.load(Ordering::Relaxed),
        0
    );
    small.broker.shutdown().await;
}
