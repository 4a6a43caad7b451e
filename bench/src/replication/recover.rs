//! The process that takes over from a primary that is gone: recovers its groups and reads them back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use kera_protocol::ids::{Epoch, GroupId, LaneId, StreamId, StreamletId};
use kera_replication::ids::{BrokerId, CopyId, Incarnation, Replica, StreamletKey};
use kera_replication::primary::{Config, Primary};
use kera_replication::records::{
    Change, MAX_CHANGES, MemoryRecords, OpenRecord, RecordsRef, Transaction, commit, take_epoch,
};
use kera_replication::recovery::{RecoverSpec, Unclean, recover};
use kera_replication::runtime::{RuntimeRef, TokioRuntime};
use kera_replication::transport::{Reply, Request, TransportRef};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::ends::{PRIMARY, runtime, transport};
use super::plan::{Ask, Recorded, RecoveryPlan, Restored, Said, hear, say, say_cpu};

/// Bytes of one read.
const PIECE: u32 = 1 << 20;
/// Reads under way at once.
const READS: usize = 8;

/// The process `kera-bench replication-recovery`.
pub fn recovery() -> Result<()> {
    let plan: RecoveryPlan = hear()?.context("the harness went away")?;
    let runtime = runtime(plan.threads)?;
    let stage = runtime.block_on(Stage::open(&plan))?;
    say(&Said::Ready)?;
    while let Some(ask) = hear()? {
        match ask {
            Ask::Go => say(&Said::Restored(runtime.block_on(stage.restore())?))?,
            Ask::Cpu => say_cpu()?,
            Ask::Records => bail!("a recovery has no records to tell"),
        }
    }
    Ok(())
}

struct Stage {
    primary: Arc<Primary>,
    transport: TransportRef,
    streamlet: StreamletKey,
    copies: usize,
    /// Where each lane begins: nothing was trimmed.
    starts: BTreeMap<LaneId, u64>,
}

/// The records as the primary left them.
async fn remembered(
    recorded: &Recorded,
    streamlet: StreamletKey,
    clock: &RuntimeRef,
) -> Result<RecordsRef> {
    let records = MemoryRecords::default();
    records.create(streamlet);
    let records: RecordsRef = Arc::new(records);
    let mut epoch = Epoch(0);
    while epoch.0 < recorded.epoch {
        (epoch, _) = take_epoch(&records, &**clock, streamlet, PRIMARY).await?;
    }
    let changes = recorded.groups.iter().map(|group| {
        let holders = group.holders.iter().map(|holder| Replica {
            broker: BrokerId(holder.broker),
            incarnation: Incarnation {
                store_id: Uuid::from_bytes(holder.store),
                boot_id: Uuid::from_bytes(holder.boot),
            },
        });
        Change::Open {
            group: GroupId(group.group),
            lane: LaneId(group.lane),
            record: OpenRecord {
                first_ordinal: None,
                holders: holders.collect(),
            },
        }
    });
    let changes: Vec<_> = changes.collect();
    for some in changes.chunks(MAX_CHANGES) {
        let transaction = Transaction {
            streamlet,
            epoch,
            changes: some.to_vec(),
        };
        commit(&records, &**clock, &transaction, false).await?;
    }
    Ok(records)
}

impl Stage {
    async fn open(plan: &RecoveryPlan) -> Result<Self> {
        let clock: RuntimeRef = Arc::new(TokioRuntime::new(tokio::runtime::Handle::current()));
        let transport = transport(plan.wire, &plan.peers)?;
        let stream = StreamId::from_slice(&plan.records.stream);
        let streamlet = StreamletKey {
            stream: stream.context("a stream's id has 16 bytes")?,
            streamlet: StreamletId(0),
        };
        let records = remembered(&plan.records, streamlet, &clock).await?;
        let config = Config {
            // A seal walks all of a store's open groups before it answers.
            scan_timeout: std::time::Duration::from_secs(60),
            flush_timeout: std::time::Duration::from_secs(60),
            ..Config::default()
        };
        let peers = plan.peers.iter().map(|peer| BrokerId(peer.id)).collect();
        let primary = Primary::new(PRIMARY, peers, transport.clone(), records, clock, config);
        Ok(Self {
            primary: Arc::new(primary),
            transport,
            streamlet,
            copies: plan.peers.len(),
            starts: plan
                .records
                .groups
                .iter()
                .map(|group| (LaneId(group.lane), 0))
                .collect(),
        })
    }

    async fn restore(&self) -> Result<Restored> {
        let begin = Instant::now();
        let spec = RecoverSpec {
            streamlet: self.streamlet,
            min_copies: self.copies,
            unclean: Unclean::Wait,
            starts: self.starts.clone(),
        };
        let recovered = recover(&self.primary, &spec).await?;
        let closed_seconds = begin.elapsed().as_secs_f64();
        let (mut records, mut pieces) = (0, Vec::new());
        for lane in &recovered.lanes {
            if let Some(stopped) = &lane.stopped {
                bail!("lane {} is not recovered: {stopped}", lane.lane);
            }
            for (copy, closed) in &lane.groups {
                records += closed.end_ordinal - closed.first_ordinal;
                for (turn, at) in (0..closed.length).step_by(PIECE as usize).enumerate() {
                    let len = (closed.length - at).min(u64::from(PIECE)) as u32;
                    // In turn from whoever holds it.
                    let holder = closed.holders.get(turn % closed.holders.len().max(1));
                    let holder = holder.context("a closed group has holders")?;
                    pieces.push((holder.broker, *copy, at, len));
                }
            }
        }
        let bytes = self.read(pieces).await?;
        Ok(Restored {
            records,
            bytes,
            closed_seconds,
            read_seconds: begin.elapsed().as_secs_f64(),
        })
    }

    /// Reads all pieces, a few at a time; how many bytes they have.
    async fn read(&self, pieces: Vec<(BrokerId, CopyId, u64, u32)>) -> Result<u64> {
        let mut running = JoinSet::new();
        let mut total = 0;
        let mut pieces = pieces.into_iter();
        loop {
            while running.len() < READS
                && let Some((from, copy, address, len)) = pieces.next()
            {
                let request = Request::Read { copy, address, len };
                let read = self.transport.call(from, request);
                running.spawn(async move { (read.await, len) });
            }
            let Some(read) = running.join_next().await else {
                return Ok(total);
            };
            let (reply, len) = read?;
            let Reply::Bytes(bytes) = reply? else {
                bail!("a read is not answered by bytes");
            };
            ensure!(bytes.len() == len as usize, "a read came short");
            total += u64::from(len);
        }
    }
}
