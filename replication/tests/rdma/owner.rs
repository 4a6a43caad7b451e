//! A primary whose copies all lie at other processes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use kera_log_segments::ship::Shipping;
use kera_protocol::ids::LaneId;
use kera_replication::ids::{AckPolicy, BrokerId, CopyId};
use kera_replication::primary::{Config, Lane, LaneSpec, Primary, ReplicaSet, Shape};
use kera_replication::records::RecordsRef;
use kera_replication::recovery::{RecoverSpec, Recovered, Unclean, recover};
use kera_replication::runtime::TokioRuntime;
use kera_replication::transport::rdma::{Otherwise, RdmaOptions, RdmaTransport};
use kera_replication::transport::tcp::{LinkOptions, TcpTransport};
use kera_replication::transport::{Reply, Request, Transport};

use crate::suite::scenario::streamlet;
use crate::suite::test_group::{Appended, TestGroup, Unacknowledged};

pub const MIN_COPIES: usize = 2;

/// How long an append waits for its replicas.
const PATIENCE: Duration = Duration::from_secs(30);

/// A group and where its bytes are.
pub type Opened = (Arc<ReplicaSet>, Arc<TestGroup>);

/// A group with room for all that a test appends.
pub const LARGE: Shape = Shape {
    segment_size: 8 << 20,
    segments: 1,
};

/// How broker `me` reaches `peers`, told as HOST:PORT.
pub fn transport(me: BrokerId, peers: &[(BrokerId, String)]) -> Arc<RdmaTransport> {
    let options = RdmaOptions {
        // Small, so that it is used again and again.
        send_bytes: 256 << 10,
        ..RdmaOptions::default()
    };
    let tcp = TcpTransport::new(me, LinkOptions::default());
    let transport = RdmaTransport::new(me, options, tcp, Otherwise::Unreachable);
    for (id, address) in peers {
        transport.set_address(*id, address).expect("an address");
    }
    Arc::new(transport)
}

/// A broker that owns the streamlet, with one lane.
pub struct Owner {
    pub transport: Arc<RdmaTransport>,
    pub lane: Arc<Lane>,
    pub recovered: Recovered,
    pub shape: Shape,
    next_ordinal: u64,
    open: Option<Opened>,
}

impl Owner {
    /// Takes the streamlet over; `config` as it is in a broker, but for what a test sets.
    pub async fn take(
        me: BrokerId,
        peers: &[(BrokerId, String)],
        records: RecordsRef,
        config: Config,
        shape: Shape,
    ) -> Self {
        let transport = transport(me, peers);
        let runtime = Arc::new(TokioRuntime::new(tokio::runtime::Handle::current()));
        let ids = peers.iter().map(|(id, _)| *id).collect();
        let primary = Primary::new(me, ids, transport.clone(), records, runtime, config);
        let primary = Arc::new(primary);
        let spec = RecoverSpec {
            streamlet: streamlet(),
            min_insync_replicas: MIN_COPIES,
            unclean: Unclean::Wait,
            starts: BTreeMap::new(),
        };
        let recovered = loop {
            let recovered = recover(&primary, &spec).await.expect("a recovery");
            if recovered.lanes.iter().all(|lane| lane.stopped.is_none()) {
                break recovered;
            }
            // A backup is still noticing that its former primary is gone.
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let lane = LaneSpec {
            streamlet: streamlet(),
            epoch: recovered.epoch,
            lane: LaneId(0),
            replicas: 3,
            min_insync_replicas: MIN_COPIES,
        };
        let next_group = Arc::new(AtomicU64::new(recovered.next_group.0));
        Self {
            transport,
            lane: Lane::new(primary, lane, next_group),
            next_ordinal: recovered.lanes.first().map_or(0, |l| l.next_ordinal),
            recovered,
            shape,
            open: None,
        }
    }

    /// The group that takes appends now.
    pub fn group(&mut self) -> Opened {
        if let Some((set, source)) = &self.open {
            if !source.is_frozen() {
                return (set.clone(), source.clone());
            }
            self.next_ordinal = source.end().ordinal;
        }
        let spec = *self.lane.spec();
        let copy = CopyId {
            streamlet: spec.streamlet,
            group: self.lane.next_group(AckPolicy::Written),
            epoch: spec.epoch,
            generation: 0,
        };
        let place = (copy, spec.lane, self.next_ordinal, self.shape);
        let source = match &self.open {
            Some((_, last)) => last.next(place),
            None => TestGroup::with_shape(copy, spec.lane, self.next_ordinal, self.shape),
        };
        let source = Arc::new(source);
        let set = source.open(&self.lane);
        self.open = Some((set.clone(), source.clone()));
        (set, source)
    }

    /// Appends one batch, in the next group if this one is full, and ships it; where it went.
    pub fn append(&mut self, id: u64) -> (Opened, Appended) {
        loop {
            let (set, source) = self.group();
            match source.append(id, 20) {
                Ok(batch) => {
                    set.grew();
                    return ((set, source), batch);
                }
                Err(crate::suite::test_group::Closed::Full) => {
                    source.freeze();
                    set.froze();
                }
                Err(crate::suite::test_group::Closed::Frozen) => {}
            }
        }
    }

    /// Whether what was appended is acknowledged.
    pub async fn acknowledged(
        &self,
        ((_, source), batch): &(Opened, Appended),
    ) -> Result<(), Unacknowledged> {
        source.acknowledged(&self.lane, batch.end, PATIENCE).await
    }

    /// The first `len` bytes of a copy at a backup.
    pub async fn read(&self, at: BrokerId, copy: CopyId, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let request = Request::Read {
                copy,
                address: bytes.len() as u64,
                len: (len - bytes.len()).min(1 << 20) as u32,
            };
            match self.transport.call(at, request).await {
                Ok(Reply::Bytes(part)) => bytes.extend_from_slice(&part),
                other => panic!("{at}: {other:?}"),
            }
        }
        bytes
    }
}
