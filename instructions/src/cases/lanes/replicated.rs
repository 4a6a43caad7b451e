//! Appends to a lane with three replicas: this broker's own file takes everything and keeps nothing, and so do the links
//! to two other brokers. Between the two is what a broker runs: the streamlet, the lane, its replica sets, and a
//! shipper for each of the others.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use kera_log_segments::group::AckPolicy;
use kera_log_segments::replicas::{GroupOwner, Mending};
use kera_protocol::batch::BatchHeader;
use kera_protocol::ids::{BrokerId, Epoch, GroupId, Incarnation, LaneId, StreamletKey};
use kera_records::Transaction;
use kera_replication::ids::{BufferKey, ProcessId};
use kera_replication::own::OwnFiles;
use kera_replication::primary::{Config, LaneSpec, Primary, StreamletLanes};
use kera_replication::records::{Records, RecordsError, StreamletRecords};
use kera_replication::runtime::TokioRuntime;
use kera_replication::transport::{
    Buffer, CallError, Description, Link, LinkError, Opened, Pending, Reply, Request, Transport,
    Write,
};
use kera_streamlet::Appended;
use tokio::runtime::Builder;
use tokio::task::yield_now;
use uuid::Uuid;

use super::support::{Bench, batch};
use crate::counted::counted;

const OWNER: BrokerId = BrokerId(1);
/// So long that no timer ends while something is counted.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// The way to two brokers that have room for everything.
struct Others;

impl Transport for Others {
    fn connect(&self, _: BrokerId, _: ProcessId) -> Pending<Result<Box<dyn Link>, LinkError>> {
        let link: Box<dyn Link> = Box::new(Swallow::default());
        Box::pin(std::future::ready(Ok(link)))
    }

    fn call(&self, to: BrokerId, request: Request) -> Pending<Result<Reply, CallError>> {
        let process = ProcessId(u64::from(to.0));
        let reply = match request {
            Request::Describe => Reply::Description(Description {
                incarnation: incarnation(to),
                disk: Ok(incarnation(to)),
                process,
                free_bytes: 1 << 40,
            }),
            Request::Open { address, bytes, .. } => Reply::Opened(Opened {
                buffers: vec![Buffer {
                    key: BufferKey(address),
                    address,
                    bytes,
                }],
                process,
            }),
            _ => Reply::Done,
        };
        Box::pin(std::future::ready(Ok(reply)))
    }
}

fn incarnation(of: BrokerId) -> Incarnation {
    Incarnation {
        store_id: Uuid::from_u128(u128::from(of.0)),
        boot_id: Uuid::from_u128(7),
    }
}

/// A link over which everything arrives at once.
#[derive(Default)]
struct Swallow {
    submitted: u64,
    told: u64,
}

impl Link for Swallow {
    fn submit(&mut self, writes: Vec<Write>) -> Result<u64, LinkError> {
        black_box(writes);
        self.submitted += 1;
        Ok(self.submitted)
    }

    fn poll_completed(&mut self, _: &mut Context<'_>) -> Poll<Result<u64, LinkError>> {
        if self.told == self.submitted {
            // Whoever submits asks again.
            return Poll::Pending;
        }
        self.told = self.submitted;
        Poll::Ready(Ok(self.told))
    }
}

/// Every change is durable at once.
struct Recorded(AtomicU64);

impl Records for Recorded {
    fn try_commit(&self, _: Transaction) -> Pending<Result<u64, RecordsError>> {
        let revision = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        Box::pin(std::future::ready(Ok(revision)))
    }

    fn try_read(&self, of: StreamletKey) -> Pending<Result<StreamletRecords, RecordsError>> {
        Box::pin(std::future::ready(Err(RecordsError::NoStreamlet(of))))
    }

    fn try_take_epoch(
        &self,
        of: StreamletKey,
        _: BrokerId,
    ) -> Pending<Result<(Epoch, u64), RecordsError>> {
        Box::pin(std::future::ready(Err(RecordsError::NoStreamlet(of))))
    }
}

fn primary(bench: &Bench, runtime: tokio::runtime::Handle) -> Arc<Primary> {
    let runtime = Arc::new(TokioRuntime::new(runtime));
    let io = bench.env.io.clone();
    let own = OwnFiles::new(io, bench.env.root.clone(), incarnation(OWNER));
    let config = Config {
        flush_interval: LONG,
        // Room for all that is counted.
        first_buffer_bytes: 8 << 20,
        ..Config::default()
    };
    let peers = vec![OWNER, BrokerId(2), BrokerId(3)];
    let (others, records) = (Arc::new(Others), Arc::new(Recorded(AtomicU64::new(0))));
    let primary = Primary::new(OWNER, peers, others, records, runtime, config);
    Arc::new(primary.with_own(own))
}

/// Until all three replicas have it.
async fn acknowledged(appended: &Appended) {
    while !appended.group.covers(appended.next_ordinal) {
        yield_now().await;
    }
}

/// 1 KiB to a lane of which every append waits for three replicas.
pub(crate) fn append_small(times: u64) {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let bench = Bench::discarding(AckPolicy::Written, 1);
    let owner: Arc<dyn GroupOwner> = bench.streamlet.clone();
    let spec = LaneSpec {
        streamlet: bench.streamlet.key(),
        epoch: bench.streamlet.epoch(),
        lane: LaneId(0),
        replicas: 3,
        min_insync_replicas: 3,
    };
    let primary = primary(&bench, runtime.handle().clone());
    let owner = Arc::downgrade(&owner);
    let lanes = StreamletLanes::new(
        primary,
        spec,
        owner,
        GroupId(1),
        || 1,
        Box::new(|_| Mending::Nowhere),
    );
    bench.streamlet.serve(Arc::new(lanes));
    let mut batch = batch(1 << 10, 1);
    let mut header = BatchHeader::peek(&batch).expect("a batch");
    let mut sequence = 0;
    let mut append = || {
        let appended = bench.append(0, &mut batch, &mut header, &mut sequence);
        runtime.block_on(acknowledged(&appended));
    };
    // Records the lane's group and connects.
    append();
    counted(&mut || (0..times).for_each(|_| append()));
}
