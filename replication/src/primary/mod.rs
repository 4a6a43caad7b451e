//! The primary's side: copy sets, pumps, and what ends a group.
//!
//! A [`Primary`] is one per broker. Its [`Lane`]s take groups in order ([`Lane::open`]); each group's
//! bytes come from a [`Source`], go to every copy of its set, and count once all of them have
//! them. Whatever happens to a copy, the answer is the same: the group ends, the lane goes on in the
//! next one.

mod close;
mod copy_set;
mod lane;
mod pump;
mod shipment;
mod source;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub use copy_set::CopySet;
pub use lane::{AppendError, Head, Lane, LaneSpec};
pub use pump::PumpHandle;
pub(crate) use pump::call;
pub use source::{Run, Shape, Source};

use crate::faults::Faults;
use crate::health::Health;
use crate::ids::{BackupId, Holder};
use crate::records::RecordsRef;
use crate::runtime::{RuntimeRef, all};
use crate::transport::{Pending, Reply, Request, TransportRef};
use pump::Pump;

/// How a primary goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Longest wait for one control call or connection.
    pub call_timeout: Duration,
    /// Attempts at one backup before a copy counts as lost.
    pub attempts: u32,
    /// Pause between them.
    pub pause: Duration,
    /// Longest wait for the survivors of a group that has ended; who is slower is lost.
    pub drain_timeout: Duration,
    /// Longest wait of an append for its copies.
    pub append_deadline: Duration,
    /// Most bytes under way to one backup.
    pub in_flight_bytes: u64,
    /// Most bytes of one submission.
    pub submission_bytes: u64,
    /// Most bytes of one group in one submission, so that none holds up the others.
    pub turn_bytes: u64,
    /// Bytes of a buffer asked at once.
    pub buffer_bytes: u32,
    /// Groups recorded ahead of their use, per lane.
    pub ahead: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            call_timeout: Duration::from_secs(2),
            attempts: 2,
            pause: Duration::from_millis(50),
            drain_timeout: Duration::from_secs(2),
            append_deadline: Duration::from_secs(30),
            in_flight_bytes: 16 << 20,
            submission_bytes: 4 << 20,
            turn_bytes: 1 << 20,
            buffer_bytes: 8 << 20,
            ahead: 1,
        }
    }
}

/// A broker as the primary of its streamlets.
pub struct Primary {
    pub(crate) me: BackupId,
    pub(crate) peers: Vec<BackupId>,
    pub(crate) transport: TransportRef,
    pub(crate) records: RecordsRef,
    pub(crate) runtime: RuntimeRef,
    pub(crate) config: Config,
    pub(crate) faults: Faults,
    health: Arc<Health>,
    pumps: Mutex<BTreeMap<BackupId, Arc<PumpHandle>>>,
}

impl std::fmt::Debug for Primary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Primary")
            .field("me", &self.me)
            .field("peers", &self.peers)
            .finish_non_exhaustive()
    }
}

impl Primary {
    /// The broker `me` among `peers`, all brokers that may hold copies. If `me` is among them its own
    /// copy is reached through the transport like any other; otherwise whoever writes the group's
    /// file says how far it is, with [`CopySet::completed`] (not used by any broker yet).
    pub fn new(
        me: BackupId,
        peers: Vec<BackupId>,
        transport: TransportRef,
        records: RecordsRef,
        runtime: RuntimeRef,
        config: Config,
    ) -> Self {
        Self {
            me,
            peers,
            transport,
            records,
            runtime,
            config,
            faults: Faults::default(),
            health: Arc::default(),
            pumps: Mutex::default(),
        }
    }

    /// Breaks rules on purpose, for tests of the tests.
    #[must_use]
    pub fn with_faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// What traffic has shown of the peers.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// The pump of a backup; it starts with its first group.
    pub(crate) fn pump(&self, backup: BackupId) -> Arc<PumpHandle> {
        let mut pumps = self.pumps.lock();
        if let Some(handle) = pumps.get(&backup) {
            return handle.clone();
        }
        let pump = Pump::new(
            self.me,
            backup,
            self.config,
            self.transport.clone(),
            self.runtime.clone(),
            self.health.clone(),
        );
        let handle = pump.handle();
        pumps.insert(backup, handle.clone());
        drop(pumps);
        self.runtime.spawn(Box::pin(pump.run()));
        handle
    }

    /// Up to `count` holders that answer now, this broker first, none of `without`.
    pub(crate) async fn choose(&self, count: usize, without: &[BackupId]) -> Vec<Holder> {
        let mut candidates: Vec<_> = self.peers.clone();
        // This broker's own copy costs no network; then whoever follows it, so that brokers'
        // copies spread.
        let peers = self.peers.len().max(1);
        let mine = self.peers.iter().position(|p| *p == self.me).unwrap_or(0);
        candidates.rotate_left(mine % peers);
        candidates.retain(|candidate| !without.contains(candidate));
        let mut order = self
            .health
            .order(&candidates, self.runtime.now())
            .into_iter();
        let mut chosen = Vec::new();
        while chosen.len() < count {
            // As many side by side as are wanting; who does not answer is made up for.
            let asked: Vec<_> = order.by_ref().take(count - chosen.len()).collect();
            if asked.is_empty() {
                break;
            }
            let answers = all(asked.into_iter().map(|b| self.holder(b)).collect()).await;
            chosen.extend(answers.into_iter().flatten());
        }
        chosen
    }

    /// The backup as the holder it is now, if it answers.
    pub(crate) fn holder(&self, backup: BackupId) -> Pending<Option<Holder>> {
        let (transport, runtime) = (self.transport.clone(), self.runtime.clone());
        let (health, timeout) = (self.health.clone(), self.config.call_timeout);
        Box::pin(async move {
            let request = Request::Describe;
            match call(&transport, &*runtime, timeout, backup, &request).await {
                Ok(Reply::Description(description)) => {
                    health.success(backup);
                    Some(Holder {
                        broker: backup,
                        incarnation: description.incarnation,
                    })
                }
                _ => {
                    health.failure(backup, runtime.now());
                    None
                }
            }
        })
    }
}
