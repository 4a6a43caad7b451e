//! A round of the jobs that look after replicas, of one broker among many that hold what is recorded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kera_metadata::{MetadataStore, Transaction};
use kera_protocol::ids::{BrokerId, Epoch, StreamletKey};
use kera_replication::ids::{CopyId, ProcessId};
use kera_replication::jobs::{Followed, JobConfig, Jobs, Owned};
use kera_replication::primary::{Config, Primary};
use kera_replication::records::{Records, RecordsError, StreamletRecords};
use kera_replication::runtime::TokioRuntime;
use kera_replication::transport::{
    CallError, CopyInfo, CopyState, CopyVersion, Link, LinkError, Pending, Reply, Request,
    Transport,
};

use super::cluster::Cluster;
use crate::os::memory_taken as taken;

/// Whose jobs are looked at.
const ME: u32 = 1;

/// What a round takes in which nothing has changed.
pub struct Round {
    pub messages: u64,
    /// Streamlets that they ask about.
    pub asked: u64,
    /// Replicas that are named in the answers to them.
    pub named: u64,
    pub reads: u64,
    pub transactions: u64,
    pub took: Duration,
    /// Bytes that were taken at the most, beyond those before.
    pub memory: f64,
    /// Bytes that are kept between rounds.
    pub remembered: f64,
}

/// What all brokers hold, and who asks for it.
struct Others {
    held: BTreeMap<BrokerId, BTreeMap<CopyId, CopyInfo>>,
    messages: AtomicU64,
    asked: AtomicU64,
    named: AtomicU64,
    /// Bytes taken at the most while somebody was answered.
    most: AtomicU64,
}

impl Transport for Others {
    fn connect(&self, to: BrokerId, _: ProcessId) -> Pending<Result<Box<dyn Link>, LinkError>> {
        panic!("nobody writes, and {to} is to be connected");
    }

    fn call(&self, to: BrokerId, request: Request) -> Pending<Result<Reply, CallError>> {
        let Request::ListChanged { known } = request else {
            panic!("at rest {to} is asked for {request:?}");
        };
        let held = self.held.get(&to);
        let list = |streamlet| {
            let held = held.map(|held| held.range(CopyId::all_of(streamlet)));
            held.map_or_else(Vec::new, |held| held.map(|(_, info)| *info).collect())
        };
        let reply = Reply::changed(&known, list);
        if let Reply::Changed(lists) = &reply {
            let named = lists.iter().map(|list| list.copies.len() as u64).sum();
            self.named.fetch_add(named, Ordering::Relaxed);
        }
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.asked.fetch_add(known.len() as u64, Ordering::Relaxed);
        self.most.fetch_max(taken() as u64, Ordering::Relaxed);
        Box::pin(std::future::ready(Ok(reply)))
    }
}

/// The store as jobs ask it.
struct Recorded {
    streamlets: BTreeMap<StreamletKey, StreamletRecords>,
    reads: AtomicU64,
    transactions: AtomicU64,
}

impl Records for Recorded {
    fn try_commit(&self, _: Transaction) -> Pending<Result<u64, RecordsError>> {
        self.transactions.fetch_add(1, Ordering::Relaxed);
        let refused = RecordsError::Invalid("nothing is to change".into());
        Box::pin(std::future::ready(Err(refused)))
    }

    fn try_read(&self, of: StreamletKey) -> Pending<Result<StreamletRecords, RecordsError>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let found = self.streamlets.get(&of).cloned();
        Box::pin(std::future::ready(
            found.ok_or(RecordsError::NoStreamlet(of)),
        ))
    }

    fn try_take_epoch(
        &self,
        of: StreamletKey,
        _: BrokerId,
    ) -> Pending<Result<(Epoch, u64), RecordsError>> {
        Box::pin(std::future::ready(Err(RecordsError::NoStreamlet(of))))
    }
}

/// Runs rounds, and tells of the second: the first learns the records.
pub fn round(cluster: &Cluster) -> Round {
    let image = cluster.store.load().expect("it is in memory");
    let mut held: BTreeMap<BrokerId, BTreeMap<CopyId, CopyInfo>> = BTreeMap::new();
    for record in &image.groups {
        let info = CopyInfo {
            copy: CopyId::of(record),
            version: CopyVersion(1),
            state: CopyState::Flushed,
        };
        for copy in &record.copies {
            held.entry(copy.broker).or_default().insert(info.copy, info);
        }
    }
    drop(image);
    let mine = cluster.owned_by(ME);
    let streamlets = mine.iter().map(|streamlet| {
        let found = cluster
            .store
            .load_streamlet(streamlet.stream, streamlet.streamlet);
        let found = found.expect("it is in memory");
        let records = StreamletRecords {
            streamlet: cluster.streamlet(*streamlet).expect("it is recorded"),
            revision: found.revision,
            groups: found.groups,
        };
        (*streamlet, records)
    });
    let records = Arc::new(Recorded {
        streamlets: streamlets.collect(),
        reads: AtomicU64::new(0),
        transactions: AtomicU64::new(0),
    });
    let others = Arc::new(Others {
        held,
        messages: AtomicU64::new(0),
        asked: AtomicU64::new(0),
        named: AtomicU64::new(0),
        most: AtomicU64::new(0),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let clock = Arc::new(TokioRuntime::new(runtime.handle().clone()));
    let peers: Vec<_> = (1..=cluster.brokers).map(BrokerId).collect();
    let config = Config::default();
    let me = BrokerId(ME);
    let primary = Primary::new(me, peers, others.clone(), records.clone(), clock, config);
    let primary = Arc::new(primary);
    let owned = move |one: Option<StreamletKey>| {
        let wanted = mine.iter().filter(|key| one.is_none_or(|one| one == **key));
        let owned = wanted.map(|streamlet| Owned {
            streamlet: *streamlet,
            epoch: Epoch(1),
            replicas: 3,
            min_insync_replicas: 2,
            lanes: Vec::new(),
            mend: None,
        });
        owned.collect()
    };
    let jobs = Jobs::new(&primary, Box::new(owned), JobConfig::default());
    jobs.set_followed(Box::new(|_| Some(Followed::default())));
    let before = taken();
    runtime.block_on(jobs.round());
    let remembered = taken() - before;
    for count in [
        &others.messages,
        &others.asked,
        &others.named,
        &records.reads,
    ] {
        count.store(0, Ordering::Relaxed);
    }
    others.most.store(0, Ordering::Relaxed);
    let (before, begun) = (taken(), Instant::now());
    runtime.block_on(jobs.round());
    let took = begun.elapsed();
    let stats = jobs.stats();
    assert_eq!(
        (
            stats.rounds,
            stats.freed,
            stats.built,
            stats.wanting,
            stats.failed
        ),
        (2, 0, 0, 0, 0)
    );
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    Round {
        messages: count(&others.messages),
        asked: count(&others.asked),
        named: count(&others.named),
        reads: count(&records.reads),
        transactions: count(&records.transactions),
        took,
        memory: (count(&others.most) as f64 - before).max(0.0),
        remembered,
    }
}
