//! Brokers for tests: lanes in memory, served over frames, and a coordinator that does what
//! the test says. Most tests need one; several share lanes and coordinator, as if every copy were
//! everywhere, and one of them owns each.
#![allow(dead_code)]

mod control;
mod copies;
mod damaged;
mod data;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use bytes::{Bytes, BytesMut};
use kera_consumer::Batch;
use kera_protocol::batch::{BatchBuilder, Compression, NewRecord, ProducerStamp, patch};
use kera_protocol::error::ErrorCode;
use kera_protocol::ids::Epoch;
use kera_protocol::slices::SliceSet;
use kera_protocol::v1::{self, Cursor};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};

pub(super) use copies::Asked;
use copies::Group;

pub(super) const STREAM_ID: [u8; 16] = [9; 16];

/// The ordinals of a batch made by [`Fake::fill`].
pub(super) fn values(batch: &Batch) -> Vec<u64> {
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
pub(super) struct LaneLog {
    pub log_start: u64,
    pub head: u64,
    /// (first ordinal, next ordinal, bytes).
    pub batches: Vec<(u64, u64, Bytes)>,
    /// Lane generation -> where it ended.
    pub boundaries: BTreeMap<u32, u64>,
}

#[derive(Default)]
pub(super) struct State {
    pub lanes: BTreeMap<(u32, u32), LaneLog>,
    /// Batches to damage on their way, by their first ordinal.
    pub corrupt: BTreeSet<u64>,
    /// Answers every look at a lane.
    pub refusal: Option<ErrorCode>,
    /// Leases are of this stream from now on: the first one was deleted, and this one has its name.
    pub made_anew: Option<[u8; 16]>,
    /// Leases for whoever asks next.
    pub grants: VecDeque<v1::Lease>,
    pub held: BTreeMap<u64, v1::Lease>,
    pub give_back: Vec<u64>,
    pub commits: BTreeMap<u64, u64>,
    /// Commits are made and not answered.
    pub unanswered: bool,
    /// Leases are granted, and nobody is told.
    pub untold: bool,
    /// Heartbeats wait before they are looked at.
    pub beats_wait: bool,
    /// How many do.
    pub beats_waiting: u64,
    /// Heartbeats that were answered.
    pub heartbeats: u64,
    pub released: Vec<u64>,
    /// Leases of which a transaction commits positions, and how often that was told.
    pub sent: BTreeSet<u64>,
    pub told_pending: usize,
    pub members: BTreeSet<String>,
    pub joins: usize,
    pub left: usize,
    pub last_lease: u64,
    /// Control calls that fail from now on.
    pub failures: usize,
    /// Most bytes that were pushed without credit.
    pub overdraft: i64,
    pub pushed_bytes: usize,
    /// All credit that was ever given, and what is left of it in each subscription.
    pub granted: usize,
    pub credit: BTreeMap<u32, usize>,
    /// The broker that owns all streamlets, and the one that coordinates groups; the others refuse.
    pub owner: usize,
    pub coordinator: usize,
    /// Times that a group's coordinator was looked up.
    pub lookups: usize,
    /// Closed groups of which copies are known, in order, and the rack of each broker; empty: none.
    pub groups: Vec<Group>,
    pub racks: Vec<&'static str>,
    /// Times that it was asked, and told, who holds copies.
    pub copies_told: usize,
    /// Answers about the stream, which name the owners, that are left; who asks then waits.
    pub owners_told: Option<usize>,
    /// Brokers that have not heard of the stream.
    pub unheard: BTreeSet<usize>,
    /// Brokers that say nothing when they are asked for places.
    pub silent_finds: BTreeSet<usize>,
    /// Told as another lane of the stream.
    pub planted_lane: Option<v1::LaneCursor>,
    /// Joins that are refused because the coordinator has not heard of it.
    pub joins_unheard: usize,
    /// Reads and subscriptions, in the order they came.
    pub asked: Vec<Asked>,
}

/// One of the brokers.
struct Member {
    control_address: String,
    data_address: String,
    condition: watch::Sender<Condition>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Lives,
    /// Connections break, and no new one comes about.
    Dead,
    /// Connections stay, and nothing comes over them.
    Stopped,
}

pub(super) struct Fake {
    pub state: parking_lot::Mutex<State>,
    pub changed: Notify,
    /// All of them.
    pub bootstrap: String,
    members: Vec<Member>,
    /// Counts up to end all data connections.
    killed: watch::Sender<u64>,
    pub refuse: AtomicBool,
    pub reads: AtomicUsize,
    pub subscribes: AtomicUsize,
}

impl Fake {
    pub(super) async fn start(streamlets: u32, lanes: u32) -> Arc<Self> {
        Self::start_several(1, streamlets, lanes).await
    }

    /// Starts so many brokers; number 0 owns all streamlets and coordinates all groups.
    pub(super) async fn start_several(count: usize, streamlets: u32, lanes: u32) -> Arc<Self> {
        let mut listeners = Vec::new();
        let mut members = Vec::new();
        for _ in 0..count {
            let control = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let data = TcpListener::bind("127.0.0.1:0").await.unwrap();
            members.push(Member {
                control_address: control.local_addr().unwrap().to_string(),
                data_address: data.local_addr().unwrap().to_string(),
                condition: watch::Sender::new(Condition::Lives),
            });
            listeners.push((control, data));
        }
        let addresses: Vec<_> = members.iter().map(|m| m.control_address.as_str()).collect();
        let mut state = State::default();
        for streamlet in 0..streamlets {
            for lane in 0..lanes {
                state.lanes.insert((streamlet, lane), LaneLog::default());
            }
        }
        let fake = Arc::new(Self {
            state: parking_lot::Mutex::new(state),
            changed: Notify::new(),
            bootstrap: addresses.join(","),
            members,
            killed: watch::Sender::new(0),
            refuse: AtomicBool::new(false),
            reads: AtomicUsize::new(0),
            subscribes: AtomicUsize::new(0),
        });
        for (member, (control, data)) in listeners.into_iter().enumerate() {
            // A broker's one address takes both; clients that heard of it as an owner's make calls there.
            tokio::spawn(data::accept(fake.clone(), member, control, false));
            tokio::spawn(data::accept(fake.clone(), member, data, true));
        }
        fake
    }

    /// Kills a broker: its connections break.
    pub(super) fn kill(&self, member: usize) {
        self.members[member].condition.send_replace(Condition::Dead);
        self.changed.notify_waiters();
    }

    /// Stops a broker as SIGSTOP does: its connections stay, and it says nothing.
    pub(super) fn stop(&self, member: usize) {
        let condition = &self.members[member].condition;
        condition.send_replace(Condition::Stopped);
    }

    /// Does nothing while a broker is stopped.
    async fn while_it_runs(&self, member: usize) {
        let mut condition = self.members[member].condition.subscribe();
        let _ = condition
            .wait_for(|condition| *condition != Condition::Stopped)
            .await;
    }

    /// Appends one batch of these values.
    pub(super) fn append(&self, lane: (u32, u32), values: &[&str]) {
        self.append_compressed(lane, values, Compression::None);
    }

    pub(super) fn append_compressed(
        &self,
        lane: (u32, u32),
        values: &[&str],
        compression: Compression,
    ) {
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

    pub(super) fn append_batch(&self, lane: (u32, u32), batch: Bytes) {
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

    /// The broker leaves so many records out of what it answers, as of transactions that were aborted.
    pub(super) fn leave_out(&self, lane: (u32, u32), count: u64) {
        let mut state = self.state.lock();
        let log = state.lanes.entry(lane).or_default();
        let after = log.head + count;
        log.batches.push((log.head, after, Bytes::new()));
        log.head = after;
        drop(state);
        self.changed.notify_waiters();
    }

    /// So many batches of just so many bytes, a multiple of 4 KiB.
    pub(super) fn fill_even(&self, lane: (u32, u32), batches: usize, bytes: usize) {
        let size = |value: usize| {
            let mut builder = BatchBuilder::new();
            let value = vec![b'x'; value];
            let record = NewRecord {
                value: Some(&value),
                ..NewRecord::default()
            };
            builder.push(&record).unwrap();
            builder.finish(Compression::None, ProducerStamp::NONE)
        };
        let around = size(bytes - 200).unwrap().len() - (bytes - 200);
        let batch = size(bytes - around).unwrap();
        assert_eq!(batch.len(), bytes);
        for _ in 0..batches {
            self.append_batch(lane, batch.clone());
        }
    }

    /// Values "0", "1", ... `count`, in batches of `size`; each value is its ordinal.
    pub(super) fn fill(&self, lane: (u32, u32), count: u64, size: u64) {
        let head = self.state.lock().lanes[&lane].head;
        let mut next = head;
        while next < head + count {
            let end = (next + size).min(head + count);
            let values: Vec<String> = (next..end).map(|value| value.to_string()).collect();
            self.append(lane, &values.iter().map(String::as_str).collect::<Vec<_>>());
            next = end;
        }
    }

    pub(super) fn trim(&self, lane: (u32, u32), to: u64) {
        let mut state = self.state.lock();
        let log = state.lanes.get_mut(&lane).unwrap();
        log.log_start = to;
        log.batches.retain(|batch| batch.1 > to);
    }

    /// Grants a lease of a lane, or of a range of it.
    pub(super) fn grant(&self, lane: (u32, u32), start: u64, end: u64) -> u64 {
        let mut state = self.state.lock();
        state.last_lease += 1;
        let lease = v1::Lease {
            lease: state.last_lease,
            stream: Bytes::copy_from_slice(&state.made_anew.unwrap_or(STREAM_ID)),
            streamlet: lane.0,
            lane: lane.1,
            start: Some(Cursor {
                ordinal: start,
                ..Cursor::default()
            }),
            end_ordinal: end,
            lane_generation: Some(0),
            ..v1::Lease::default()
        };
        state.grants.push_back(lease);
        let id = state.last_lease;
        drop(state);
        self.changed.notify_waiters();
        id
    }

    /// Grants slices of a lane from `start` on, each so far above it.
    pub(super) fn grant_slices(
        &self,
        lane: (u32, u32),
        start: u64,
        slices: SliceSet,
        above: &[u64],
    ) -> u64 {
        let id = self.grant(lane, start, 0);
        let mut state = self.state.lock();
        let granted = state.grants.iter_mut().find(|lease| lease.lease == id);
        let granted = granted.expect("nobody asks yet");
        granted.slices = slices.bits();
        granted.slice_starts = above.to_vec();
        id
    }

    /// Records without a key, so many in a batch; the value of each is its ordinal.
    pub(super) fn fill_keyless(&self, lane: (u32, u32), count: u64, size: u64) {
        let head = self.state.lock().lanes[&lane].head;
        for first in (head..head + count).step_by(size as usize) {
            let mut builder = BatchBuilder::new();
            for value in first..first + size {
                let value = value.to_string();
                let record = NewRecord {
                    value: Some(value.as_bytes()),
                    ..NewRecord::default()
                };
                builder.push(&record).unwrap();
            }
            let batch = builder.finish(Compression::None, ProducerStamp::NONE);
            self.append_batch(lane, batch.unwrap());
        }
    }

    /// Ends all data connections; new ones are accepted.
    pub(super) fn kill_connections(&self) {
        self.killed.send_modify(|count| *count += 1);
    }

    /// Changes the state and wakes all that wait for it.
    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.notify_waiters();
    }

    /// Waits until the state is so.
    pub(super) async fn until(&self, so: impl Fn(&State) -> bool) {
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
