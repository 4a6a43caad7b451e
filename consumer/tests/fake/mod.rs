//! A broker for tests: lanes in memory, served over data frames, and a coordinator that does what
//! the test says.
#![allow(dead_code)]

mod control;
mod data;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use bytes::{Bytes, BytesMut};
use kera_consumer::Batch;
use kera_protocol::batch::{BatchBuilder, Compression, NewRecord, ProducerStamp, patch};
use kera_protocol::ids::Epoch;
use kera_protocol::v1::{self, Cursor};
use kera_rpc::v1::consumers_server::ConsumersServer;
use kera_rpc::v1::streams_server::StreamsServer;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tonic::transport::server::TcpIncoming;

pub const STREAM_ID: [u8; 16] = [9; 16];

/// The ordinals of a batch made by [`Fake::fill`].
pub fn values(batch: &Batch) -> Vec<u64> {
    batch
        .records()
        .map(|record| {
            let record = record.unwrap();
            let text = std::str::from_utf8(record.value.unwrap()).unwrap();
            assert_eq!(text, record.ordinal.to_string());
            record.ordinal
        })
        .collect()
}

#[derive(Clone, Default)]
pub struct LaneLog {
    pub log_start: u64,
    pub head: u64,
    /// (first ordinal, next ordinal, bytes).
    pub batches: Vec<(u64, u64, Bytes)>,
    /// Lane generation -> where it ended.
    pub boundaries: BTreeMap<u32, u64>,
}

#[derive(Default)]
pub struct State {
    pub lanes: BTreeMap<(u32, u32), LaneLog>,
    /// Batches to damage on their way, by their first ordinal.
    pub corrupt: BTreeSet<u64>,
    /// Leases for whoever asks next.
    pub grants: VecDeque<v1::Lease>,
    pub held: BTreeMap<u64, v1::Lease>,
    pub give_back: Vec<u64>,
    pub commits: BTreeMap<u64, u64>,
    pub released: Vec<u64>,
    pub members: BTreeSet<String>,
    pub joins: usize,
    pub left: usize,
    pub last_lease: u64,
    /// Control calls that fail from now on.
    pub failures: usize,
    /// Most bytes that were pushed without credit.
    pub overdraft: i64,
    pub pushed_bytes: usize,
}

pub struct Fake {
    pub state: parking_lot::Mutex<State>,
    pub changed: Notify,
    pub bootstrap: String,
    data_address: String,
    /// Counts up to end all data connections.
    killed: watch::Sender<u64>,
    pub refuse: AtomicBool,
    pub reads: AtomicUsize,
    pub subscribes: AtomicUsize,
}

impl Fake {
    pub async fn start(streamlets: u32, lanes: u32) -> Arc<Self> {
        let control = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let data = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut state = State::default();
        for streamlet in 0..streamlets {
            for lane in 0..lanes {
                state.lanes.insert((streamlet, lane), LaneLog::default());
            }
        }
        let fake = Arc::new(Self {
            state: parking_lot::Mutex::new(state),
            changed: Notify::new(),
            bootstrap: control.local_addr().unwrap().to_string(),
            data_address: data.local_addr().unwrap().to_string(),
            killed: watch::Sender::new(0),
            refuse: AtomicBool::new(false),
            reads: AtomicUsize::new(0),
            subscribes: AtomicUsize::new(0),
        });
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(StreamsServer::new(control::Control(fake.clone())))
                .add_service(ConsumersServer::new(control::Control(fake.clone())))
                .serve_with_incoming(TcpIncoming::from(control)),
        );
        tokio::spawn(data::accept(fake.clone(), data));
        fake
    }

    /// Appends one batch of these values.
    pub fn append(&self, lane: (u32, u32), values: &[&str]) {
        self.append_compressed(lane, values, Compression::None);
    }

    pub fn append_compressed(&self, lane: (u32, u32), values: &[&str], compression: Compression) {
        let mut builder = BatchBuilder::new();
        for value in values {
            builder
                .push(&NewRecord {
                    key: Some(b"k"),
                    value: Some(value.as_bytes()),
                    timestamp: 1_000,
                    ..NewRecord::default()
                })
                .unwrap();
        }
        self.append_batch(
            lane,
            builder.finish(compression, ProducerStamp::NONE).unwrap(),
        );
    }

    pub fn append_batch(&self, lane: (u32, u32), batch: Bytes) {
        let mut bytes = BytesMut::from(&batch[..]);
        let mut state = self.state.lock();
        let log = state.lanes.entry(lane).or_default();
        patch(&mut bytes, log.head, Epoch(1));
        let header = kera_protocol::batch::verify(&bytes).unwrap();
        log.batches
            .push((log.head, header.next_ordinal(), bytes.freeze()));
        log.head = header.next_ordinal();
        drop(state);
        self.changed.notify_waiters();
    }

    /// Values "0", "1", ... `count`, in batches of `size`; each value is its ordinal.
    pub fn fill(&self, lane: (u32, u32), count: u64, size: u64) {
        let head = self.state.lock().lanes[&lane].head;
        let mut next = head;
        while next < head + count {
            let end = (next + size).min(head + count);
            let values: Vec<String> = (next..end).map(|value| value.to_string()).collect();
            self.append(lane, &values.iter().map(String::as_str).collect::<Vec<_>>());
            next = end;
        }
    }

    pub fn trim(&self, lane: (u32, u32), to: u64) {
        let mut state = self.state.lock();
        let log = state.lanes.get_mut(&lane).unwrap();
        log.log_start = to;
        log.batches.retain(|batch| batch.1 > to);
    }

    /// Grants a lease of a lane, or of a range of it.
    pub fn grant(&self, lane: (u32, u32), start: u64, end: u64) -> u64 {
        let mut state = self.state.lock();
        state.last_lease += 1;
        let lease = v1::Lease {
            lease: state.last_lease,
            stream: Bytes::copy_from_slice(&STREAM_ID),
            streamlet: lane.0,
            lane: lane.1,
            start: Some(Cursor {
                ordinal: start,
                ..Cursor::default()
            }),
            end_ordinal: end,
            lane_generation: Some(0),
        };
        state.grants.push_back(lease);
        let id = state.last_lease;
        drop(state);
        self.changed.notify_waiters();
        id
    }

    /// Ends all data connections; new ones are accepted.
    pub fn kill_connections(&self) {
        self.killed.send_modify(|count| *count += 1);
    }

    /// Changes the state and wakes all that wait for it.
    pub fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.notify_waiters();
    }

    /// Waits until the state is so.
    pub async fn until(&self, so: impl Fn(&State) -> bool) {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if so(&self.state.lock()) {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), wait)
            .await
            .expect("the broker came to the state that the test waits for");
    }
}
