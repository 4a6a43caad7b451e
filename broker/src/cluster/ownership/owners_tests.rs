//! Three brokers of one process over a store in memory.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Instant;

use kera_metadata::{
    BrokerRecord, ClusterStore, Compare, Done, Image, Incarnation, Key, LiveBroker, LiveState,
    Membership, MemoryCluster, MetadataError, MetadataStore, Record, Transaction, Watched, Write,
};
use kera_protocol::batch::{
    BatchBuilder, BatchHeader, Compression, NewRecord, ProducerStamp, Records,
};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::ids::{Epoch, LaneId, StreamId, StreamletId};
use kera_protocol::v1;
use kera_streamlet::{
    AppendError, AppendSpec, Appended, LaneReadError, LaneReadSpec, Located, Outcome,
};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use super::*;
use crate::cluster::ownership::hand_over::hand_over;
use crate::config::BrokerConfig;
use crate::data::append::{Refused, find_streamlet, place_batch};
use crate::data::fetch::{Read, Step};
use crate::{Broker, BrokerError};

const PATIENCE: Duration = Duration::from_secs(30);
const LANE: LaneId = LaneId(0);

/// One broker's way to the store, which outlives it.
struct View {
    store: Arc<MemoryCluster>,
    /// While true it is told nothing of what others record.
    late: watch::Receiver<bool>,
    /// While true its broker does not get beyond its lease.
    starting: watch::Receiver<bool>,
    held: Held,
    /// How often its broker has read a stream's record.
    streams_read: Arc<AtomicU64>,
    /// If not 0, every other change of groups is refused.
    stops: Arc<AtomicU64>,
}

/// What a broker wants recorded, while that is held back.
type Held = Arc<Mutex<Option<Vec<(Transaction, Done)>>>>;

impl MetadataStore for View {
    fn made_with(&self) -> Result<u32, MetadataError> {
        self.store.made_with()
    }

    fn load(&self) -> Result<Image, MetadataError> {
        self.store.load()
    }

    fn load_streamlet(&self, stream: StreamId, id: StreamletId) -> Result<Image, MetadataError> {
        self.store.load_streamlet(stream, id)
    }

    fn read(&self, key: &Key) -> Result<Option<Record>, MetadataError> {
        if matches!(key, Key::Stream(_)) {
            self.streams_read.fetch_add(1, Ordering::SeqCst);
        }
        self.store.read(key)
    }

    fn streamlets(&self) -> Result<Vec<StreamletRecord>, MetadataError> {
        self.store.streamlets()
    }

    fn records_of(&self, kind: u8, stream: Option<StreamId>) -> Result<Image, MetadataError> {
        self.store.records_of(kind, stream)
    }

    fn submit(&self, transaction: Transaction, done: Done) {
        // Streams are created in parts, by however many writes.
        let compared = transaction.compare.len();
        if compared > self.max_operations() {
            let text = format!("{compared} comparisons; split it");
            let refused = WireError::new(ErrorCode::InvalidArgument, text);
            return done(Err(MetadataError::Invalid(refused)));
        }
        if let Some(held) = &mut *self.held.lock() {
            return held.push((transaction, done));
        }
        let is_group = |write: &Write| matches!(write, Write::PutGroup(_) | Write::DeleteGroup(_));
        if self.stops.load(Ordering::SeqCst) > 0
            && transaction.write.iter().any(is_group)
            && self.stops.fetch_add(1, Ordering::SeqCst) % 2 == 1
        {
            let refused = WireError::new(ErrorCode::InvalidArgument, "it stops here");
            return done(Err(MetadataError::Invalid(refused)));
        }
        self.store.submit(transaction, done);
    }

    fn max_operations(&self) -> usize {
        // As few as etcd takes.
        128
    }

    fn close(&self) {}
}

impl ClusterStore for View {
    fn watch(&self, after: u64) -> mpsc::Receiver<Watched> {
        let mut told = self.store.watch(after);
        let mut late = self.late.clone();
        let (sender, receiver) = mpsc::channel(64);
        tokio::spawn(async move {
            while let Some(watched) = told.recv().await {
                // Whoever makes it late may be gone.
                let _ = late.wait_for(|late| !late).await;
                if sender.send(watched).await.is_err() {
                    return;
                }
            }
        });
        receiver
    }

    fn join(&self, live: LiveBroker, ttl: Duration) -> Result<Membership, MetadataError> {
        let joined = self.store.join(live, ttl);
        // Until its test ends, at the latest.
        while *self.starting.borrow() && self.starting.has_changed().is_ok() {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        joined
    }

    fn cluster(&self) -> Uuid {
        self.store.cluster()
    }

    fn brokers(&self) -> Result<Vec<BrokerRecord>, MetadataError> {
        self.store.brokers()
    }

    fn living(&self) -> watch::Receiver<Living> {
        self.store.living()
    }

    fn controller(&self) -> watch::Receiver<Option<u32>> {
        self.store.controller()
    }
}

/// Brokers 1 to 3.
struct Trio {
    store: Arc<MemoryCluster>,
    dirs: Vec<TempDir>,
    brokers: Vec<Option<Broker>>,
    /// Which of them hear of nothing for now.
    late: Vec<watch::Sender<bool>>,
    streams_read: [Arc<AtomicU64>; 3],
    /// Which of them do not get beyond their lease when they start.
    starting: Vec<watch::Sender<bool>>,
    held: Vec<Held>,
    /// Of which of them every other change of groups is refused.
    stops: [Arc<AtomicU64>; 3],
    /// How often jobs are at it, if not as usual.
    repair: Option<Duration>,
    /// A controller that decides nothing, so that streamlets move as the tests say.
    _idle: Membership,
}

fn idle_controller(store: &MemoryCluster) -> Membership {
    let incarnation = Incarnation {
        store_id: Uuid::from_u128(99),
        boot_id: Uuid::nil(),
    };
    let live = LiveBroker {
        state: LiveState::Draining,
        ..LiveBroker::new(99, incarnation)
    };
    let seat = store.join(live, Duration::from_secs(60));
    let seat = seat.expect("nobody has that number");
    seat.campaign();
    seat
}

impl Trio {
    async fn start() -> Self {
        Self::start_of(3, None).await
    }

    /// Brokers 1 to `brokers`; the others may join later.
    async fn start_of(brokers: u32, repair: Option<Duration>) -> Self {
        let store = Arc::new(MemoryCluster::new());
        let mut trio = Self {
            _idle: idle_controller(&store),
            store,
            dirs: (0..3)
                .map(|_| TempDir::new().expect("a directory"))
                .collect(),
            brokers: vec![None, None, None],
            late: (0..3).map(|_| watch::Sender::new(false)).collect(),
            streams_read: Default::default(),
            starting: (0..3).map(|_| watch::Sender::new(false)).collect(),
            held: (0..3).map(|_| Held::default()).collect(),
            stops: Default::default(),
            repair,
        };
        for id in 1..=brokers {
            trio.begin(id).await;
        }
        let others = brokers as usize - 1;
        let all = |trio: &Self| {
            (1..=brokers).all(|id| {
                let cluster = trio.shared(id).clustered.as_ref().map(|c| &c.peers);
                cluster.is_some_and(|cluster| cluster.peers().len() == others)
            })
        };
        until(|| all(&trio)).await;
        trio
    }

    fn config(&self, id: u32) -> BrokerConfig {
        let dir = self.dirs[id as usize - 1].path();
        let mut config = BrokerConfig {
            data_dir: dir.join("data"),
            ..BrokerConfig::default()
        };
        config.server.listen = "127.0.0.1:0".into();
        config.http.listen = None;
        // A broker that stops keeps what it owns.
        config.server.drain_timeout = Duration::ZERO;
        config.memory.pool = 64 << 20;
        config.cluster.broker_id = Some(id);
        config.cluster.listen = "127.0.0.1:0".into();
        config.cluster.allow_same_host = true;
        if let Some(repair) = self.repair {
            config.cluster.repair_interval = repair;
        }
        config.replica_store.memory_bytes = 32 << 20;
        config.replica_store.shared_dir = Some(dir.join("shared"));
        config
    }

    async fn begin(&mut self, id: u32) {
        self.brokers[id as usize - 1] = Some(self.beginning(id).await.expect("it starts"));
    }

    /// Its start, which needs nothing of the others.
    fn beginning(&self, id: u32) -> impl Future<Output = Result<Broker, BrokerError>> + use<> {
        Broker::start_sharing(self.config(id), Some(self.view(id)))
    }

    fn view(&self, id: u32) -> Arc<dyn ClusterStore> {
        Arc::new(View {
            store: self.store.clone(),
            late: self.late[id as usize - 1].subscribe(),
            starting: self.starting[id as usize - 1].subscribe(),
            held: self.held[id as usize - 1].clone(),
            streams_read: self.streams_read[id as usize - 1].clone(),
            stops: self.stops[id as usize - 1].clone(),
        })
    }

    async fn end(&mut self, id: u32) {
        let broker = self.brokers[id as usize - 1].take().expect("it runs");
        let shared = Arc::downgrade(broker.shared());
        broker.shutdown().await;
        // Tasks that were told to end hold the directory until they have.
        until(|| shared.strong_count() == 0).await;
    }

    fn shared(&self, id: u32) -> &Arc<Shared> {
        let broker = self.brokers[id as usize - 1].as_ref();
        broker.expect("it runs").shared()
    }

    /// A stream of three streamlets with three copies, created at broker `at`, once all know it.
    async fn create(&self, at: u32, name: &str) -> StreamId {
        self.create_of(at, name, 64 << 10).await
    }

    /// The same, with segments of so many bytes.
    async fn create_of(&self, at: u32, name: &str, segment_size: u32) -> StreamId {
        self.create_with(at, name, small(segment_size)).await
    }

    async fn create_with(&self, at: u32, name: &str, config: StreamConfig) -> StreamId {
        let id = self.record(at, name, config).await;
        let running = self.brokers.iter().flatten();
        let running: Vec<_> = running.map(|broker| broker.shared().clone()).collect();
        until(|| {
            running
                .iter()
                .all(|shared| shared.data.catalog.get(id).is_some())
        })
        .await;
        id
    }

    /// Creates a stream at broker `at`; others may not know it yet.
    async fn record(&self, at: u32, name: &str, config: StreamConfig) -> StreamId {
        let (shared, name) = (self.shared(at).clone(), name.to_owned());
        let record = StreamRecord::new(name, config, now_ms());
        let created = tokio::task::spawn_blocking(move || shared.create_stream(record)).await;
        created.expect("no panic").expect("it is created").id()
    }

    fn streamlet(&self, at: u32, stream: StreamId, number: u32) -> Arc<Streamlet> {
        let found = self.shared(at).streamlet(stream, StreamletId(number));
        found.expect("it is known")
    }

    fn owner(&self, at: u32, stream: StreamId, number: u32) -> Owner {
        let found = self
            .shared(at)
            .data
            .catalog
            .get(stream)
            .expect("it is known");
        found.owner(StreamletId(number)).expect("it has one")
    }

    /// Records another owner, as a controller does.
    fn assign(&self, stream: StreamId, number: u32, to: u32) -> Epoch {
        let found = self.store.streamlet(stream, StreamletId(number));
        let found = found.expect("it is read").expect("it is recorded");
        let epoch = Epoch(found.epoch.0 + 1);
        let compare = Compare::streamlet(&found);
        let next = StreamletRecord {
            owner: to,
            epoch,
            ..found
        };
        let write = vec![Write::PutStreamlet(next)];
        let committed = self.store.commit(Transaction::new(vec![compare], write));
        committed.expect("nobody was faster");
        epoch
    }

    /// Broker `at` serves the streamlet.
    async fn served(&self, at: u32, stream: StreamId, number: u32) -> Arc<Streamlet> {
        let serves = || {
            let directory = &self.shared(at).data.directory;
            directory.serves(stream, StreamletId(number))
        };
        until(serves).await;
        self.streamlet(at, stream, number)
    }
}

/// Three streamlets with three copies, and segments of so many bytes.
fn small(segment_size: u32) -> StreamConfig {
    StreamConfig {
        streamlets: 3,
        lanes: 1,
        replicas: 3,
        min_insync_replicas: 2,
        segment_size,
        segments_per_group: 2,
        max_batch_bytes: 16 << 10,
        ..StreamConfig::default()
    }
}

/// Waits until `true`; fails when that takes too long.
async fn until(mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "it took too long");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Appends a record as number `sequence` of producer 7.
fn append(streamlet: &Streamlet, shared: &Shared, sequence: i32) -> Result<Appended, AppendError> {
    append_value(streamlet, shared, sequence, &value(sequence))
}

fn append_value(
    streamlet: &Streamlet,
    shared: &Shared,
    sequence: i32,
    value: &[u8],
) -> Result<Appended, AppendError> {
    append_batch(streamlet, shared, batch(sequence, value))
}

/// A batch of one record, of producer 7.
fn batch(sequence: i32, value: &[u8]) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    let record = NewRecord {
        key: None,
        value: Some(value),
        headers: &[],
        timestamp: 1,
    };
    builder.push(&record).expect("it fits");
    let stamp = ProducerStamp {
        producer_id: 7,
        producer_epoch: 0,
        base_sequence: sequence,
    };
    let bytes = builder.finish(Compression::None, stamp).expect("a batch");
    bytes.to_vec()
}

fn append_batch(
    streamlet: &Streamlet,
    shared: &Shared,
    mut bytes: Vec<u8>,
) -> Result<Appended, AppendError> {
    let spec = AppendSpec {
        lane: LANE.0,
        lane_generation: None,
        now_ms: now_ms(),
        essential: false,
    };
    let mut touched = Vec::new();
    let placed = place_batch(
        &shared.data,
        streamlet,
        None,
        &mut bytes,
        spec,
        &mut touched,
    );
    let appended = placed.map_err(|refused| match refused {
        Refused::Append(error) => error,
        Refused::Batch(error) => panic!("it is a batch: {error}"),
    })?;
    appended.group.pump(&shared.data.env.pump);
    Ok(appended)
}

fn value(sequence: i32) -> Vec<u8> {
    format!("record {sequence}").into_bytes()
}

async fn outcome(appended: &Appended) -> Outcome {
    let settled = poll_fn(|cx| match appended.poll(cx.waker()) {
        Outcome::Pending => Poll::Pending,
        settled => Poll::Ready(settled),
    });
    let settled = tokio::time::timeout(PATIENCE, settled).await;
    settled.expect("it settles")
}

/// Appends and waits for the acknowledgement.
async fn append_all(shared: &Shared, streamlet: &Streamlet, sequences: std::ops::Range<i32>) {
    for sequence in sequences {
        let appended = append(streamlet, shared, sequence).expect("it is taken");
        assert_eq!(outcome(&appended).await, Outcome::Durable, "{sequence}");
    }
}

/// All values of a streamlet's lane.
async fn values(streamlet: &Arc<Streamlet>) -> Vec<Vec<u8>> {
    let streamlet = streamlet.clone();
    let read = tokio::task::spawn_blocking(move || {
        let (mut values, mut scratch) = (Vec::new(), Vec::new());
        let mut from = Located::default();
        loop {
            let spec = LaneReadSpec {
                lane: LANE,
                from,
                end_ordinal: u64::MAX,
                max_bytes: 1 << 20,
                cached_only: false,
            };
            let found = streamlet.read(spec).expect("it can be read");
            if found.batches == 0 {
                return values;
            }
            let bytes = found.bufs.concat();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let header = BatchHeader::peek(rest).expect("a header");
                let (one, after) = rest.split_at(header.total_bytes);
                rest = after;
                let records = Records::open(one, 1 << 20, &mut scratch).expect("records");
                for record in records {
                    let record = record.expect("a record");
                    values.push(record.value.unwrap_or_default().to_vec());
                }
            }
            from = found.next;
        }
    });
    read.await.expect("no panic")
}

fn expected(sequences: std::ops::Range<i32>) -> Vec<Vec<u8>> {
    sequences.map(value).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_spread_over_the_brokers_and_all_know_it() {
    let trio = Trio::start().await;
    let stream = trio.create(2, "clicks").await;
    let owners = |at| {
        (0..3)
            .map(|n| trio.owner(at, stream, n))
            .collect::<Vec<_>>()
    };
    for at in 1..=3 {
        assert_eq!(owners(at), owners(2), "broker {at}");
    }
    let mut brokers: Vec<_> = owners(1).iter().map(|owner| owner.broker).collect();
    brokers.sort_unstable();
    assert_eq!(brokers, [1, 2, 3]);

    let owner = trio.owner(1, stream, 0).broker;
    let other = owner % 3 + 1;
    assert!(find_streamlet(&trio.shared(owner).data, stream.as_bytes(), 0).is_ok());
    let refused = find_streamlet(&trio.shared(other).data, stream.as_bytes(), 0);
    let Err(refused) = refused else {
        panic!("it is another's");
    };
    assert_eq!(refused.code, ErrorCode::NotOwner);
    // Not where: that depends on where the client came in.
    let (named, address) = (format!("broker {owner}"), &trio.shared(owner).advertised);
    assert!(refused.message.contains(&named), "{refused}");
    assert!(!refused.message.contains(address), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_takes_everything_along() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let old = trio.owner(1, stream, 0);
    let to = old.broker % 3 + 1;
    let from = trio.shared(old.broker).clone();
    let before = trio.streamlet(old.broker, stream, 0);
    append_all(&from, &before, 0..10).await;

    hand_over(&from, stream, StreamletId(0), to)
        .await
        .expect("it is handed over");
    assert_eq!(trio.owner(old.broker, stream, 0).broker, to);
    assert!(before.is_moved() && trio.streamlet(old.broker, stream, 0).is_moved());
    assert!(matches!(
        append(&before, &from, 10),
        Err(AppendError::NotOwner)
    ));

    let after = trio.served(to, stream, 0).await;
    assert_eq!(after.epoch(), Epoch(old.epoch.0 + 1));
    assert_eq!(values(&after).await, expected(0..10));
    let shared = trio.shared(to);
    let again = append(&after, shared, 9).expect("it is known");
    assert!(again.duplicate, "what a producer sent is remembered");
    append_all(shared, &after, 10..15).await;
    assert_eq!(values(&after).await, expected(0..15));

    // And back.
    hand_over(shared, stream, StreamletId(0), old.broker)
        .await
        .expect("it is handed back");
    let back = trio.served(old.broker, stream, 0).await;
    assert_eq!(values(&back).await, expected(0..15));
    let gone = hand_over(shared, stream, StreamletId(0), old.broker).await;
    assert_eq!(gone.expect_err("it is gone").code, ErrorCode::NotOwner);
}

/// A broker keeps the files that it wrote as an owner, and they are in no list of its copies.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_owner_has_in_its_files_is_not_copied_to_it() {
    let trio = Trio::start_of(3, Some(Duration::from_millis(50))).await;
    let stream = trio.create(1, "clicks").await;
    let old = trio.owner(1, stream, 0).broker;
    let to = old % 3 + 1;
    let from = trio.shared(old).clone();
    append_all(&from, &trio.streamlet(old, stream, 0), 0..10).await;
    hand_over(&from, stream, StreamletId(0), to)
        .await
        .expect("it is handed over");
    let after = trio.served(to, stream, 0).await;
    let recorded = || {
        let image = trio.store.load_streamlet(stream, StreamletId(0));
        image.expect("it is read").groups
    };
    let before = recorded();
    assert!(before.iter().any(|group| group.copies.len() == 3));
    let jobs = || {
        let replicated = trio.shared(to).clustered.as_ref().map(|c| &c.replicated);
        replicated.expect("it has copies elsewhere").job_stats()
    };
    let begun = jobs().rounds;
    until(|| jobs().rounds > begun + 3).await;
    let stats = jobs();
    assert_eq!((stats.built, stats.wanting), (0, 0), "{stats:?}");
    assert_eq!(recorded(), before);
    assert_eq!(values(&after).await, expected(0..10));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_recorded_takes_over_from_one_that_still_serves() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let old = trio.owner(1, stream, 0).broker;
    let to = old % 3 + 1;
    let before = trio.streamlet(old, stream, 0);
    append_all(trio.shared(old), &before, 0..50).await;

    let epoch = trio.assign(stream, 0, to);
    // It goes on until it hears of it; what it acknowledges still counts.
    let mut acknowledged = 50;
    while let Ok(appended) = append(&before, trio.shared(old), acknowledged) {
        if outcome(&appended).await != Outcome::Durable {
            break;
        }
        acknowledged += 1;
    }
    assert!(before.is_moved());
    let after = trio.served(to, stream, 0).await;
    assert!(after.epoch() >= epoch);
    let found = values(&after).await;
    let least = expected(0..acknowledged);
    assert_eq!(found[..least.len()], least, "nothing acknowledged is lost");
    assert!(
        found.len() <= least.len() + 1,
        "what nobody sent is not there"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_lease_nobody_waits_at_the_head() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let owner = trio.owner(1, stream, 0).broker;
    let shared = trio.shared(owner).clone();
    append_all(&shared, &trio.streamlet(owner, stream, 0), 0..3).await;
    let request = |ordinal| v1::ReadRequest {
        stream: stream.as_bytes().to_vec().into(),
        cursor: Some(v1::Cursor {
            ordinal,
            ..Default::default()
        }),
        max_bytes: 1 << 20,
        max_wait_ms: 60_000,
        ..Default::default()
    };
    let step = |ordinal| {
        let mut read = Read::new(&shared.data, 0, &request(ordinal)).expect("it is served");
        read.step(Waker::noop(), Instant::now(), 1 << 20, true)
    };
    assert!(matches!(step(3), Step::Wait));
    let named = |id: u32| trio.shared(id).named_owner(&trio.streamlet(id, stream, 0));
    let other = owner % 3 + 1;
    assert_eq!((named(owner), named(other)), (Some(owner), Some(owner)));
    trio.store.expire(owner);
    assert!(!shared.data.directory.is_current());
    // Another may own it by now: it names itself nowhere, and who asks goes on to others.
    assert_eq!(named(owner), None);
    let Step::Reply(refused, _) = step(3) else {
        panic!("it waits");
    };
    assert_eq!(refused.error, ErrorCode::NotOwner as u32);
    let Step::Reply(below, bytes) = step(0) else {
        panic!("what lies below the head is served");
    };
    assert!(below.error == 0 && !bytes.is_empty());
    trio.store.revive(owner);
    until(|| shared.data.directory.is_current()).await;
    assert!(matches!(step(3), Step::Wait));
    assert_eq!(named(owner), Some(owner));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_lease_nobody_judges_what_producers_send() {
    let trio = Trio::start().await;
    let stream = trio.create(1, "clicks").await;
    let owner = trio.owner(1, stream, 0).broker;
    let shared = trio.shared(owner).clone();
    let streamlet = trio.streamlet(owner, stream, 0);
    append_all(&shared, &streamlet, 0..3).await;
    let later = |shared: &Shared| append(&streamlet, shared, 5).expect_err("3 and 4 are not there");
    assert!(matches!(later(&shared), AppendError::Sequence(_)));
    trio.store.expire(owner);
    // They may be where another broker has owned the streamlet since.
    assert!(matches!(later(&shared), AppendError::NotOwner));
    trio.store.revive(owner);
    until(|| shared.data.directory.is_current()).await;
    assert!(matches!(later(&shared), AppendError::Sequence(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_takes_up_what_is_still_its_own() {
    let mut trio = Trio::start().await;
    let (kept, moved) = (trio.create(1, "kept").await, trio.create(1, "moved").await);
    let number = |trio: &Trio, stream| {
        let of_one = (0..3).find(|n| trio.owner(1, stream, *n).broker == 1);
        of_one.expect("it owns one of three")
    };
    let (kept_at, moved_at) = (number(&trio, kept), number(&trio, moved));
    for (stream, at) in [(kept, kept_at), (moved, moved_at)] {
        append_all(trio.shared(1), &trio.streamlet(1, stream, at), 0..5).await;
    }
    let epoch = trio.streamlet(1, kept, kept_at).epoch();
    trio.end(1).await;
    trio.assign(moved, moved_at, 2);
    let taken = trio.served(2, moved, moved_at).await;
    assert_eq!(values(&taken).await, expected(0..5));

    trio.begin(1).await;
    // It is broker 1's still, unless the controller was faster than its start.
    let serving = || {
        let serves = |id: &u32| {
            let directory = &trio.shared(*id).data.directory;
            directory.serves(kept, StreamletId(kept_at))
        };
        (1..=3).find(serves)
    };
    until(|| serving().is_some()).await;
    let owner = serving().expect("it is served");
    let found = trio.streamlet(owner, kept, kept_at);
    assert!(found.epoch() > epoch);
    assert_eq!(values(&found).await, expected(0..5));
    append_all(trio.shared(owner), &found, 5..8).await;
    assert_eq!(trio.owner(1, moved, moved_at).broker, 2);
    assert!(trio.streamlet(1, moved, moved_at).is_moved());
    append_all(trio.shared(2), &taken, 5..8).await;
}

#[path = "owners_alter_tests.rs"]
mod alter;
#[path = "owners_groups_tests.rs"]
mod groups;
#[path = "growth_tests.rs"]
mod growth;
#[path = "internal_stream_tests.rs"]
mod internal_stream;
#[path = "joining_tests.rs"]
mod joining;
#[path = "owners_long_tests.rs"]
mod long;
#[path = "owners_races_tests.rs"]
mod races;
#[path = "owners_records_tests.rs"]
mod records;
#[path = "replica_store_tests.rs"]
mod replica_store;
#[path = "owners_restored_tests.rs"]
mod restored;
#[path = "stall_report_tests.rs"]
mod stall_report;
#[path = "owners_transactions_tests.rs"]
mod transactions;
#[path = "owners_unwritable_tests.rs"]
mod unwritable;
