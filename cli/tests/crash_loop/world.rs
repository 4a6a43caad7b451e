//! What all clients of a run share.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use kera_consumer::{LaneKey, StreamId};
use kera_history::{Event, History, Lane, NamedThing, Order, Recorder};
use kera_producer::ProduceError;
use kera_protocol::v1;
use kera_rpc::{Client, ClientOptions, RetryPolicy, RpcError};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::common::PATIENCE;

/// The stream whose lanes are chosen by key, and grow.
pub const KEYED: u32 = 0;
/// The stream whose lanes are chosen by producer.
pub const PINNED: u32 = 1;
/// M of both streams.
pub const STREAMLETS: u32 = 2;
/// Q of both streams, at first.
pub const LANES: u32 = 2;
/// The group that reads in order.
pub const ORDERED: u32 = 0;
/// The group that shares lanes.
pub const SHARED: u32 = 1;

/// Shared by all clients.
#[derive(Clone)]
pub struct World {
    inner: Arc<Inner>,
}

struct Inner {
    recorder: Recorder,
    client: Client,
    address: String,
    streams: OnceLock<HashMap<StreamId, u32>>,
    acknowledged: AtomicU64,
    /// By streamlet.
    reached: Mutex<HashMap<(u32, u32), u64>>,
    /// With more records than that acknowledged, producers go slowly.
    budget: AtomicU64,
    news: Notify,
    stopping: AtomicBool,
    next_consumer: AtomicU32,
    complaints: Mutex<Vec<String>>,
    /// Acknowledgements survive nothing.
    forgetful: bool,
    /// How far each lane was to be trimmed at most.
    trims: Mutex<HashMap<Lane, u64>>,
}

impl World {
    pub fn new(path: &Path, title: &str, address: &str, forgetful: bool) -> Self {
        let recorder = Recorder::to_file(path, title).expect("a history can be written");
        for stream in [KEYED, PINNED] {
            recorder.record(Event::Named {
                thing: NamedThing::Stream,
                id: stream,
                name: Self::stream_name(stream).to_owned(),
            });
        }
        for (group, order) in [(ORDERED, Order::Lane), (SHARED, Order::None)] {
            recorder.record(Event::Named {
                thing: NamedThing::Group,
                id: group,
                name: Self::group_name(group).to_owned(),
            });
            recorder.record(Event::GroupDefined {
                group,
                stream: KEYED,
                order,
            });
        }
        let options = ClientOptions {
            retry: Self::retry(),
            ..ClientOptions::default()
        };
        Self {
            inner: Arc::new(Inner {
                recorder,
                client: Client::new(address, options).expect("the broker's address is one"),
                address: address.to_owned(),
                streams: OnceLock::new(),
                acknowledged: AtomicU64::new(0),
                reached: Mutex::new(HashMap::new()),
                budget: AtomicU64::new(u64::MAX),
                news: Notify::new(),
                stopping: AtomicBool::new(false),
                next_consumer: AtomicU32::new(0),
                complaints: Mutex::new(Vec::new()),
                forgetful,
                trims: Mutex::new(HashMap::new()),
            }),
        }
    }

    pub fn stream_name(stream: u32) -> &'static str {
        if stream == PINNED { "pinned" } else { "keyed" }
    }

    pub fn group_name(group: u32) -> &'static str {
        if group == SHARED { "shared" } else { "ordered" }
    }

    /// Control calls go on trying while the broker is away.
    pub fn retry() -> RetryPolicy {
        RetryPolicy {
            first: Duration::from_millis(20),
            longest: Duration::from_millis(200),
            deadline: PATIENCE,
        }
    }

    pub fn recorder(&self) -> &Recorder {
        &self.inner.recorder
    }

    pub fn client(&self) -> &Client {
        &self.inner.client
    }

    pub fn address(&self) -> &str {
        &self.inner.address
    }

    /// Looks up the streams' ids, once they exist.
    pub async fn learn_streams(&self) {
        let mut streams = HashMap::new();
        for stream in [KEYED, PINNED] {
            let meta = self.client().refresh(Self::stream_name(stream)).await;
            streams.insert(meta.expect("the stream exists").id, stream);
        }
        assert!(
            self.inner.streams.set(streams).is_ok(),
            "streams are learnt once"
        );
    }

    /// The lanes of a stream as the brokers describe them, once all of its streamlets are served.
    pub async fn describe(&self, stream: u32) -> Result<Vec<v1::LaneDescription>, RpcError> {
        let request = v1::DescribeStreamRequest {
            name: Self::stream_name(stream).to_owned(),
            local: false,
        };
        let described = async {
            loop {
                let call = self.client().call(request.clone());
                let described = call.await?;
                if described.unrecovered.is_empty() {
                    return Ok(described.lanes);
                }
                tokio::task::yield_now().await;
            }
        };
        let described = timeout(PATIENCE, described).await;
        described.expect("all streamlets are served in time")
    }

    /// Whether a producer may hear that: a broker that has forgotten all about it cannot tell
    /// whether it had stored a batch. Others remember.
    pub fn may_fail_with(&self, error: &ProduceError) -> bool {
        self.inner.forgetful && error.is_uncertain()
    }

    /// A lane is about to be trimmed up to there.
    pub fn note_trim(&self, lane: Lane, to: u64) {
        let mut trims = self.inner.trims.lock().expect("no client panicked");
        let most = trims.entry(lane).or_default();
        *most = to.max(*most);
    }

    /// How far a lane was to be trimmed at most.
    pub fn trimmed(&self, lane: Lane) -> u64 {
        let trims = self.inner.trims.lock().expect("no client panicked");
        trims.get(&lane).copied().unwrap_or(0)
    }

    /// A lane as the history names it.
    pub fn lane(&self, key: LaneKey) -> Lane {
        let streams = self.inner.streams.get().expect("streams are known");
        Lane {
            stream: streams[&key.stream],
            streamlet: key.streamlet.0,
            lane: key.lane.0,
        }
    }

    pub fn next_consumer(&self) -> u32 {
        self.inner.next_consumer.fetch_add(1, Ordering::Relaxed)
    }

    pub fn acknowledged(&self) -> u64 {
        self.inner.acknowledged.load(Ordering::SeqCst)
    }

    pub fn count_acknowledged(&self, lane: Lane) {
        self.inner.acknowledged.fetch_add(1, Ordering::SeqCst);
        let mut reached = self.inner.reached.lock().expect("no client panicked");
        *reached.entry((lane.stream, lane.streamlet)).or_default() += 1;
        drop(reached);
        self.inner.news.notify_waiters();
    }

    /// Waits until more records are acknowledged than before.
    pub async fn acknowledged_above(&self, before: u64) {
        let waiting = async {
            loop {
                let news = self.inner.news.notified();
                if self.acknowledged() > before {
                    return;
                }
                news.await;
            }
        };
        let result = timeout(PATIENCE, waiting).await;
        assert!(
            result.is_ok(),
            "nothing beyond {before} records was acknowledged at {} within {PATIENCE:?}; {}",
            self.address(),
            self.complaints().err().unwrap_or_default()
        );
    }

    /// From so many acknowledged records on producers go slowly, so that a run on a fast machine fits
    /// the disks that it was given.
    pub fn set_budget(&self, records: u64) {
        self.inner.budget.store(records, Ordering::SeqCst);
    }

    pub fn is_over_budget(&self) -> bool {
        self.acknowledged() > self.inner.budget.load(Ordering::SeqCst)
    }

    /// How many records of each streamlet were acknowledged, by stream and streamlet.
    pub fn reached(&self) -> HashMap<(u32, u32), u64> {
        let reached = self.inner.reached.lock().expect("no client panicked");
        reached.clone()
    }

    /// Waits until more records of every streamlet are acknowledged than before.
    pub async fn acknowledged_everywhere(&self) {
        let before = self.reached();
        let all = [KEYED, PINNED]
            .into_iter()
            .flat_map(|stream| (0..STREAMLETS).map(move |streamlet| (stream, streamlet)));
        let waiting = async {
            loop {
                let news = self.inner.news.notified();
                let now = self.reached();
                if all.clone().all(|at| now.get(&at) > before.get(&at)) {
                    return;
                }
                news.await;
            }
        };
        if timeout(PATIENCE, waiting).await.is_err() {
            let now = self.reached();
            let stuck: Vec<_> = all.filter(|at| now.get(at) <= before.get(at)).collect();
            panic!(
                "nothing more was acknowledged of (stream, streamlet) {stuck:?} within {PATIENCE:?}; {}",
                self.complaints().err().unwrap_or_default()
            );
        }
    }

    /// Tells consumers to come to an end.
    pub fn stop(&self) {
        self.inner.stopping.store(true, Ordering::SeqCst);
    }

    pub fn is_stopping(&self) -> bool {
        self.inner.stopping.load(Ordering::SeqCst)
    }

    /// Something that no client should ever see, whatever is done to the broker.
    pub fn complain(&self, what: String) {
        self.recorder().record(Event::Note { text: what.clone() });
        let complaints = self.inner.complaints.lock();
        let mut complaints = complaints.expect("no client panicked");
        // The first few tell what went wrong; the history has all of them.
        if complaints.len() < 10 {
            eprintln!("complaint: {what}");
            complaints.push(what);
        }
    }

    pub fn complaints(&self) -> Result<(), String> {
        let complaints = self.inner.complaints.lock().expect("no client panicked");
        if complaints.is_empty() {
            Ok(())
        } else {
            Err(format!("clients complain: {}", complaints.join("; ")))
        }
    }

    /// Ends recording. All other clients must be gone.
    pub fn finish(self) -> History {
        let inner = Arc::into_inner(self.inner).expect("all clients have ended");
        inner.recorder.finish().expect("the history is written")
    }
}

/// A key as histories name it.
pub fn hashed(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}
