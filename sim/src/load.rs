//! What clients of a run share, and the streams that they use.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kera_consumer::{LaneKey, StreamId};
use kera_history::{Event, History, HistoryError, Lane, NamedThing, Order, Recorder};
use kera_protocol::v1;
use kera_rpc::{Client, ClientOptions, RetryPolicy};
use parking_lot::Mutex;

use crate::os;
use crate::plan::Plan;

/// The group that reads the first stream in order.
pub const GROUP: u32 = 0;
pub const GROUP_NAME: &str = "ordered";
/// How long clients go on trying: longer than any trouble lasts.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// Bytes of a segment.
const SEGMENT: u32 = 64 << 10;
/// Largest batch of every stream.
pub const MAX_BATCH_BYTES: u32 = 32 << 10;

/// Shared by all clients of a run.
pub struct Load {
    pub plan: Plan,
    pub bootstrap: String,
    recorder: Mutex<Recorder>,
    streams: OnceLock<BTreeMap<StreamId, u32>>,
    acknowledged: AtomicU64,
    stopping: AtomicBool,
    /// A member has joined the group, which is there from then on.
    joined: AtomicBool,
    complaints: Mutex<Vec<String>>,
    /// The metadata store was put back to an older state.
    put_back: AtomicBool,
    /// By lane, the ordinal below which records were to be trimmed.
    trimmed: Mutex<BTreeMap<Lane, u64>>,
}

impl Load {
    pub fn new(plan: &Plan, bootstrap: String) -> Arc<Self> {
        let recorder = Recorder::in_memory();
        for (id, stream) in plan.streams.iter().enumerate() {
            recorder.record(Event::Named {
                thing: NamedThing::Stream,
                id: id as u32,
                name: stream.name.clone(),
            });
        }
        recorder.record(Event::Named {
            thing: NamedThing::Group,
            id: GROUP,
            name: GROUP_NAME.to_owned(),
        });
        recorder.record(Event::GroupDefined {
            group: GROUP,
            stream: 0,
            order: Order::Lane,
        });
        Arc::new(Self {
            plan: plan.clone(),
            bootstrap,
            recorder: Mutex::new(recorder),
            streams: OnceLock::new(),
            acknowledged: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            joined: AtomicBool::new(false),
            complaints: Mutex::default(),
            put_back: AtomicBool::new(false),
            trimmed: Mutex::default(),
        })
    }

    /// Control calls go on trying while brokers are away.
    pub fn retry() -> RetryPolicy {
        RetryPolicy {
            first: Duration::from_millis(20),
            longest: Duration::from_millis(500),
            deadline: PATIENCE,
        }
    }

    pub fn client(&self) -> Client {
        let options = ClientOptions {
            retry: Self::retry(),
            ..ClientOptions::default()
        };
        Client::new(&self.bootstrap, options).expect("the addresses are addresses")
    }

    /// Records what a client does or sees.
    pub fn record(&self, event: Event) {
        self.recorder.lock().record(event);
    }

    /// The same, of several in a row.
    pub fn record_all(&self, events: impl IntoIterator<Item = Event>) {
        self.recorder.lock().record_all(events);
    }

    /// The time of the next event.
    pub fn moment(&self) -> u64 {
        self.recorder.lock().now()
    }

    /// All that was recorded, which is kept no longer.
    ///
    /// # Errors
    /// None: it is in memory.
    pub fn history(&self) -> Result<History, HistoryError> {
        std::mem::replace(&mut *self.recorder.lock(), Recorder::in_memory()).finish()
    }

    /// Something that must not be, whatever the history says.
    pub fn complain(&self, text: String) {
        os::log(&format!("COMPLAINT {text}"));
        self.complaints.lock().push(text);
    }

    pub fn complaints(&self) -> Vec<String> {
        self.complaints.lock().clone()
    }

    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    pub fn has_joined(&self) -> bool {
        self.joined.load(Ordering::SeqCst)
    }

    pub fn note_joined(&self) {
        self.joined.store(true, Ordering::SeqCst);
    }

    pub fn note_put_back(&self) {
        self.record(Event::StorePutBack);
        self.put_back.store(true, Ordering::SeqCst);
    }

    pub fn was_put_back(&self) -> bool {
        self.put_back.load(Ordering::SeqCst)
    }

    /// Records of a lane below an ordinal are about to be trimmed.
    pub fn note_trim(&self, lane: Lane, to: u64) {
        let mut trimmed = self.trimmed.lock();
        let before = trimmed.entry(lane).or_default();
        *before = to.max(*before);
    }

    /// Below which ordinal records of a lane were to be trimmed.
    pub fn trimmed(&self, lane: Lane) -> u64 {
        self.trimmed.lock().get(&lane).copied().unwrap_or(0)
    }

    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    pub fn count_acknowledged(&self) {
        self.acknowledged.fetch_add(1, Ordering::SeqCst);
    }

    /// The name of a stream.
    pub fn name(&self, stream: u32) -> &str {
        &self.plan.streams[stream as usize].name
    }

    /// A lane as the history names it.
    pub fn lane(&self, key: LaneKey) -> Lane {
        let streams = self.streams.get().expect("streams are known");
        Lane {
            stream: streams[&key.stream],
            streamlet: key.streamlet.0,
            lane: key.lane.0,
        }
    }

    /// Makes the streams of the plan, and learns their ids.
    pub async fn create_streams(&self) -> Result<(), String> {
        let client = self.client();
        let mut ids = BTreeMap::new();
        let transactions = self.plan.transactions.iter().map(|plan| &plan.stream);
        let table = self.plan.table.iter().map(|plan| &plan.stream);
        let keys = self.plan.keys.iter().map(|plan| &plan.stream);
        let shares = self.plan.shares.iter().map(|plan| &plan.stream);
        let letters = self.plan.shares.iter().filter_map(|plan| plan.letters());
        let letters: Vec<_> = letters.collect();
        let apart = transactions.chain(table).chain(keys).chain(shares);
        let apart = apart.chain(&letters);
        for (number, stream) in self.plan.streams.iter().chain(apart).enumerate() {
            let config = v1::StreamConfig {
                streamlets: Some(stream.streamlets),
                lanes: Some(stream.lanes),
                lane_by: Some(v1::LaneBy::Key as i32),
                segment_size: Some(SEGMENT),
                segments_per_group: Some(stream.segments_per_group),
                ack: Some(stream.ack as i32),
                max_batch_bytes: Some(MAX_BATCH_BYTES),
                replicas: Some(stream.replicas),
                min_insync_replicas: Some(stream.min_insync),
                cleanup: stream.compacted.map(|_| v1::Cleanup::Compact as i32),
                delete_retention_ms: stream
                    .compacted
                    .map(|how| how.delete_retention.as_millis() as u64),
                min_dirty_permille: stream.compacted.map(|how| how.min_dirty_permille),
                dead_letters: stream.dead_letters.then_some(true),
                retention_bytes: stream.retention_bytes,
                ..v1::StreamConfig::default()
            };
            let request = v1::CreateStreamRequest {
                name: stream.name.clone(),
                config: Some(config),
            };
            let until = os::now() + PATIENCE;
            // Brokers that serve may not have heard of each other yet.
            loop {
                let call = client.call(request.clone());
                let error = match call.await {
                    Ok(_) => break,
                    Err(error) => error,
                };
                if client.refresh(&stream.name).await.is_ok() {
                    break;
                }
                if os::now() > until {
                    return Err(format!("stream {} cannot be made: {error}", stream.name));
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            let meta = client
                .refresh(&stream.name)
                .await
                .map_err(|error| error.to_string())?;
            ids.insert(meta.id, number as u32);
        }
        self.streams
            .set(ids)
            .map_err(|_| "streams are made once".to_owned())
    }
}

/// Runs a client on a machine of its own until it ends.
pub fn on_own<F>(
    node: u32,
    name: &str,
    client: impl FnOnce() -> F + Send + 'static,
) -> std::thread::JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: Send + 'static,
{
    os::on_node(node, name, move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(client())
    })
}

/// What stands for a key in the history.
pub fn hashed(key: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    key.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}
