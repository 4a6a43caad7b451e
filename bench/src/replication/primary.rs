//! The process of a primary: lanes that append as fast as acknowledgements allow.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kera_log_segments::pool::ChunkPool;
use kera_protocol::ids::{Epoch, GroupId, LaneId, StreamId, StreamletId};
use kera_replication::ids::{BrokerId, CopyId, StreamletKey};
use kera_replication::primary::{Config, CopySet, Lane, LaneSpec, Primary, Shape, Source};
use kera_replication::records::{MemoryRecords, take_epoch};
use kera_replication::runtime::{RuntimeRef, TokioRuntime};
use kera_replication::transport::{Request, TransportRef};
use tokio::time::timeout;

use super::ends::{PRIMARY, runtime, transport};
use super::plan::{
    Ask, Done, Load, PrimaryPlan, Recorded, RecordedGroup, RecordedHolder, Said, WARM_UP, Wire,
    hear, say, say_cpu,
};
use super::source::{Batch, PoolSource, Refused};
use crate::load::{Latency, histogram};

/// Memory of groups that is not on its way yet, at most.
const POOL_BYTES: usize = 4 << 30;
/// Longest wait for a backup.
const PATIENCE: Duration = Duration::from_secs(30);

/// The process `kera-bench replication-primary`.
pub fn primary() -> Result<()> {
    let plan: PrimaryPlan = hear()?.context("the harness went away")?;
    let runtime = runtime(plan.load.threads)?;
    let stage = runtime.block_on(Stage::open(&plan))?;
    say(&Said::Ready)?;
    let mut stage = stage;
    while let Some(ask) = hear()? {
        match ask {
            Ask::Go => {
                let millis = Duration::from_millis(plan.load.millis);
                let (used, done) = runtime.block_on(stage.work(plan.load.bytes, millis))?;
                stage = used;
                say(&Said::Done(Box::new(done)))?;
            }
            Ask::Cpu => say_cpu()?,
            Ask::Records => say(&Said::Records(stage.recorded()?))?,
        }
    }
    Ok(())
}

/// What all lanes share.
struct Shared {
    load: Load,
    batch: Batch,
    pool: ChunkPool,
    transport: TransportRef,
    streamlet: StreamletKey,
    epoch: Epoch,
    next_group: Arc<AtomicU64>,
}

/// What is left of a load.
struct Budget {
    appends: AtomicI64,
    /// What a lane may take of it, so that none outgrows what was reserved for it.
    each: u64,
    until: Instant,
}

impl Budget {
    /// True if a lane that has taken so many may append once more.
    fn take(&self, taken: u64) -> bool {
        taken < self.each
            && Instant::now() < self.until
            && self.appends.fetch_sub(1, Ordering::Relaxed) > 0
    }
}

struct Stage {
    shared: Arc<Shared>,
    records: Arc<MemoryRecords>,
    lanes: Vec<Writer>,
    /// Appended so far.
    appended: u64,
}

impl Stage {
    /// Opens all lanes and appends a little to each.
    async fn open(plan: &PrimaryPlan) -> Result<Self> {
        let load = plan.load.clone();
        ensure!(load.lanes > 0 && load.outstanding > 0, "nothing to append");
        let clock: RuntimeRef = Arc::new(TokioRuntime::new(tokio::runtime::Handle::current()));
        let transport = transport(plan.wire, &plan.peers)?;
        let records = Arc::new(MemoryRecords::default());
        let streamlet = StreamletKey {
            stream: StreamId::random(),
            streamlet: StreamletId(0),
        };
        records.create(streamlet);
        let primary = Arc::new(Primary::new(
            PRIMARY,
            plan.peers.iter().map(|peer| BrokerId(peer.id)).collect(),
            transport.clone(),
            records.clone(),
            clock.clone(),
            Config {
                // Where groups do not roll, all that a run needs is reserved by its warm-up.
                first_buffer_bytes: match load.frees {
                    true => Config::default().first_buffer_bytes,
                    false => load.segment_bytes,
                },
                buffer_bytes: load.segment_bytes,
                // A machine that is busy loses no copy for that.
                call_timeout: PATIENCE,
                drain_timeout: PATIENCE,
                ..Config::default()
            },
        ));
        let records_ref: kera_replication::records::RecordsRef = records.clone();
        let (epoch, _) = take_epoch(&records_ref, &*clock, streamlet, PRIMARY).await?;
        let shared = Arc::new(Shared {
            batch: Batch::new(load.record_bytes, load.append_bytes)?,
            pool: ChunkPool::new(POOL_BYTES)?,
            transport,
            streamlet,
            epoch,
            next_group: Arc::default(),
            load,
        });
        let mut lanes = Vec::new();
        for number in 0..shared.load.lanes {
            let copies = plan.peers.len();
            let spec = LaneSpec {
                streamlet,
                epoch,
                lane: LaneId(number),
                replicas: copies,
                min_copies: copies,
            };
            let lane = (plan.wire != Wire::Alone)
                .then(|| Lane::new(primary.clone(), spec, shared.next_group.clone()));
            lanes.push(Writer {
                shared: shared.clone(),
                number: LaneId(number),
                lane,
                open: None,
                next_ordinal: 0,
                ending: VecDeque::new(),
                depth: depth(&shared.load, number),
            });
        }
        let stage = Self {
            shared,
            records,
            lanes,
            appended: 0,
        };
        let warm = WARM_UP * u64::from(stage.shared.load.lanes);
        let bytes = warm * stage.shared.batch.len() as u64;
        let (stage, _) = stage.work(bytes, Duration::from_secs(60)).await?;
        Ok(stage)
    }

    /// Appends on all lanes; nothing is under way when it returns.
    async fn work(mut self, bytes: u64, time: Duration) -> Result<(Self, Done)> {
        let begin = Instant::now();
        let appends = bytes.div_ceil(self.shared.batch.len() as u64);
        let budget = Arc::new(Budget {
            appends: AtomicI64::new(i64::try_from(appends)?),
            each: Load::share(appends, self.shared.load.lanes),
            until: begin + time,
        });
        let mut running = Vec::new();
        for writer in std::mem::take(&mut self.lanes) {
            running.push(tokio::spawn(writer.work(budget.clone())));
        }
        let mut latencies = histogram()?;
        let mut appends = 0;
        for task in running {
            let done = timeout(time + PATIENCE, task).await;
            let (writer, taken) = done.context("appends are not acknowledged")???;
            appends += taken.len() as u64;
            for nanos in taken {
                latencies.saturating_record(nanos);
            }
            self.lanes.push(writer);
        }
        let records = appends * u64::from(self.shared.batch.records);
        self.appended += records;
        let done = Done {
            appends,
            records,
            all_records: self.appended,
            bytes: appends * self.shared.batch.len() as u64,
            seconds: begin.elapsed().as_secs_f64(),
            latency: Latency::of(&latencies),
        };
        Ok((self, done))
    }

    /// What a recovery is told of the groups: all are open.
    fn recorded(&self) -> Result<Recorded> {
        let shared = &self.shared;
        let found = self.records.look(shared.streamlet);
        let found = found.context("the streamlet is recorded")?;
        let mut groups = Vec::new();
        for record in found.groups {
            let Some(open) = record.open() else {
                bail!("group {} is closed; give groups more segments", record.copy);
            };
            let holders = open.holders.iter().map(|holder| RecordedHolder {
                broker: holder.broker.0,
                store: holder.incarnation.store_id.into_bytes(),
                boot: holder.incarnation.boot_id.into_bytes(),
            });
            groups.push(RecordedGroup {
                group: record.copy.group.0,
                lane: record.lane.0,
                holders: holders.collect(),
            });
        }
        Ok(Recorded {
            stream: *shared.streamlet.stream.as_bytes(),
            epoch: shared.epoch.0,
            groups,
        })
    }
}

/// Appends that lane `number` may have under way.
fn depth(load: &Load, number: u32) -> usize {
    let (each, more) = (load.outstanding / load.lanes, load.outstanding % load.lanes);
    (each + u32::from(number < more)).max(1) as usize
}

/// The one who appends to a lane.
struct Writer {
    shared: Arc<Shared>,
    number: LaneId,
    /// None if nothing is shipped.
    lane: Option<Arc<Lane>>,
    open: Option<(Option<Arc<CopySet>>, Arc<PoolSource>)>,
    next_ordinal: u64,
    /// Full groups that may not have their close yet.
    ending: VecDeque<Arc<CopySet>>,
    depth: usize,
}

/// An append that is not acknowledged.
struct Flight {
    source: Arc<PoolSource>,
    /// Where it ends there.
    to: u64,
    begun: Instant,
}

impl Writer {
    /// Appends until the budget is used up; how long each append took, in nanoseconds.
    async fn work(mut self, budget: Arc<Budget>) -> Result<(Self, Vec<u64>)> {
        let mut taken = Vec::new();
        let mut begun_here = 0;
        let mut flying: VecDeque<Flight> = VecDeque::new();
        loop {
            while flying.len() < self.depth && budget.take(begun_here) {
                begun_here += 1;
                let begun = Instant::now();
                let (source, to) = self.append()?;
                flying.push_back(Flight { source, to, begun });
            }
            let Some(Flight { source, to, .. }) = flying.front() else {
                return Ok((self, taken));
            };
            if self.lane.is_some() {
                source.reaches(*to).await;
            } else {
                // As a wait for others would, it lets others go on.
                tokio::task::yield_now().await;
                flying
                    .iter()
                    .for_each(|flight| flight.source.durable(flight.to));
            }
            let now = Instant::now();
            while let Some(flight) = flying.pop_front_if(|f| f.source.acknowledged() >= f.to) {
                taken.push((now - flight.begun).as_nanos() as u64);
            }
            if let Some((_, source)) = &self.open {
                source.release(source.acknowledged());
            }
        }
    }

    /// Appends once; to what, and where that ends there.
    fn append(&mut self) -> Result<(Arc<PoolSource>, u64)> {
        loop {
            if let Some((set, source)) = &self.open {
                match source.append(&self.shared.batch)? {
                    Ok(address) => {
                        if let (Some(lane), Some(set)) = (&self.lane, set) {
                            lane.grew(set);
                        }
                        return Ok((source.clone(), address));
                    }
                    Err(Refused::Frozen) => bail!("a copy was lost in the middle of a run"),
                    Err(Refused::Full) => {}
                }
            }
            self.roll()?;
        }
    }

    /// Ends the open group, if there is one, and goes on in the next.
    fn roll(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        if let Some((set, source)) = self.open.take() {
            self.next_ordinal = source.freeze().ordinal;
            if let (Some(lane), Some(set)) = (&self.lane, set) {
                lane.froze(&set);
                self.ending.push_back(set);
            }
        }
        while let Some(set) = self.ending.pop_front_if(|set| set.is_closed()) {
            if shared.load.frees {
                self.free(&set);
            }
        }
        let group = match &self.lane {
            Some(lane) => lane.next_group(),
            None => GroupId(shared.next_group.fetch_add(1, Ordering::Relaxed)),
        };
        let copy = CopyId {
            streamlet: shared.streamlet,
            group,
            epoch: shared.epoch,
        };
        let shape = Shape {
            segment_size: shared.load.segment_bytes,
            segments: shared.load.segments,
        };
        let pool = shared.pool.clone();
        let source = PoolSource::new(copy, self.number, shape, self.next_ordinal, pool)?;
        let source = Arc::new(source);
        let set = self
            .lane
            .as_ref()
            .map(|lane| lane.open(group, source.clone()));
        self.open = Some((set, source));
        Ok(())
    }

    fn free(&self, set: &CopySet) {
        for holder in set.holders() {
            let request = Request::Free {
                copy: set.id(),
                epoch: self.shared.epoch,
                version: None,
            };
            let freed = self.shared.transport.call(holder.broker, request);
            tokio::spawn(async move {
                if let Err(error) = freed.await {
                    eprintln!("a closed group is not freed: {error}");
                }
            });
        }
    }
}
