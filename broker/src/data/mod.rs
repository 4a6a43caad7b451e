//! Appends and reads: what a frame of data needs, and nothing of administration, groups of consumers or the metadata
//! store.
//!
//! | module | what it is |
//! |---|---|
//! | `catalog` | the streams there are, with their streamlets and owners |
//! | `directory` | the brokers there are and who owns what, as clients are told |
//! | `accept` | a stream's own rules for batches |
//! | `append` | append frames: check, place, wait for the durable head, acknowledge |
//! | `fetch` | reads and subscriptions |
//! | `memory_budget` | what one connection claims of the bytes that all may hold |
//! | `send_steps` | whose turn it is while too much waits to be sent |
//! | `memory_shares` | what each principal holds of them, so that one leaves room for others |
//! | `traced` | spans of batches whose producers have them traced |

pub mod accept;
pub mod append;
pub mod catalog;
pub mod directory;
pub mod fetch;
pub mod memory_budget;
mod memory_shares;
pub mod send_steps;
pub mod traced;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kera_log_segments::io::Io;
use kera_streamlet::Env;
use kera_telemetry::Spans;
use parking_lot::Mutex;

use crate::clock::now_ms;
use crate::config::BrokerConfig;
use crate::metrics::Metrics;
use catalog::Catalog;
use directory::Directory;
use memory_shares::{Shares, may_hold};
use send_steps::SendSteps;

/// [`DataPlane::memory_wait`] unless it is changed.
const MEMORY_WAIT: Duration = Duration::from_secs(10);

/// While too much waits to be sent connections go on in steps, which together hold this part of the limit beside it.
const STEPS_PART: u64 = 4;

/// Bytes that may wait to be sent over all connections: what waits is mostly the pool's memory, which appends need as well.
fn most_outgoing(config: &BrokerConfig, env: &Env) -> u64 {
    let pool = env.pool.limit() as u64;
    config.server.max_in_flight_bytes.min(pool / 2)
}

/// What appends and reads of all connections share.
pub struct DataPlane {
    /// The configuration of the start.
    pub config: Arc<BrokerConfig>,
    /// What streamlets share.
    pub env: Arc<Env>,
    /// The streams.
    pub catalog: Arc<Catalog>,
    /// Which brokers there are, and who owns what.
    pub directory: Arc<dyn Directory>,
    /// Metrics.
    pub metrics: Metrics,
    /// Bytes appended and not yet acknowledged, over all connections.
    pub in_flight: AtomicU64,
    /// When somebody who holds nothing got no room for a large frame last.
    pub(super) starved: Mutex<Option<Instant>>,
    /// Bytes of larger buffers that connections receive into, over all connections.
    pub incoming: AtomicU64,
    /// Bytes that wait to be sent, or come from the disk to be sent, over all connections.
    pub outgoing: AtomicU64,
    /// What each principal holds of them.
    shares: Shares,
    /// Whose turn it is while too much waits to be sent.
    pub steps: Arc<SendSteps>,
    /// Bytes of connections that were given back to the allocator, and not yet to the system.
    pub(crate) freed: Arc<AtomicU64>,
    /// See [`Self::memory_wait`]; milliseconds.
    memory_wait_ms: AtomicU64,
    /// Somebody is giving back memory right now.
    releasing: AtomicBool,
    /// The last write to the page cache took long: write on a thread that may block.
    stalling: AtomicBool,
    /// Where spans go, if a collector is told any.
    spans: OnceLock<Arc<Spans>>,
}

impl DataPlane {
    /// Nothing is under way yet. Bytes given back to the allocator are counted in `freed`.
    pub(crate) fn new(
        config: Arc<BrokerConfig>,
        env: Arc<Env>,
        catalog: Arc<Catalog>,
        directory: Arc<dyn Directory>,
        freed: Arc<AtomicU64>,
    ) -> Self {
        Self {
            shares: Shares::new(&config),
            steps: SendSteps::new(most_outgoing(&config, &env) / STEPS_PART),
            config,
            env,
            catalog,
            directory,
            metrics: Metrics::default(),
            in_flight: AtomicU64::new(0),
            starved: Mutex::default(),
            incoming: AtomicU64::new(0),
            outgoing: AtomicU64::new(0),
            freed,
            memory_wait_ms: AtomicU64::new(MEMORY_WAIT.as_millis() as u64),
            releasing: AtomicBool::new(false),
            stalling: AtomicBool::new(false),
            spans: OnceLock::new(),
        }
    }

    /// Where spans go, if a collector is told any.
    #[inline]
    pub(crate) fn spans(&self) -> Option<&Arc<Spans>> {
        self.spans.get()
    }

    /// From now on spans go there. The first call counts.
    pub(crate) fn trace(&self, spans: Arc<Spans>) {
        let _ = self.spans.set(spans);
    }

    /// Writes out and gives back what lanes hold beyond need: the pool is empty. Many connections may
    /// ask at once; one at a time does it.
    pub fn release_memory(&self) {
        if self.releasing.swap(true, Ordering::Acquire) {
            return;
        }
        for stream in self.catalog.all() {
            for streamlet in &stream.streamlets {
                streamlet.release_idle(now_ms(), 0);
            }
        }
        self.releasing.store(false, Ordering::Release);
    }

    /// How long an append waits for memory before it is refused with `OVERLOADED`: 10 s.
    pub fn memory_wait(&self) -> Duration {
        Duration::from_millis(self.memory_wait_ms.load(Ordering::Relaxed))
    }

    /// Changes [`Self::memory_wait`], in whole milliseconds; for tests and for tools in the same
    /// process.
    pub fn set_memory_wait(&self, wait: Duration) {
        self.memory_wait_ms
            .store(wait.as_millis() as u64, Ordering::Relaxed);
    }

    /// True while more waits to be sent than should.
    pub fn sends_much(&self) -> bool {
        self.is_crowded(None)
    }

    /// The same for a principal for whom `own` bytes wait to be sent.
    fn is_crowded(&self, own: Option<u64>) -> bool {
        let total = self.outgoing.load(Ordering::Relaxed);
        !may_hold(total + 1, own, most_outgoing(&self.config, &self.env))
    }

    /// Less waits to be sent: if it is no longer about as much as there may be, nobody waits for a turn.
    fn end_crowd(&self) {
        if self.steps.waiting() > 0 {
            let limit = most_outgoing(&self.config, &self.env);
            if self.outgoing.load(Ordering::Relaxed) <= limit / 4 * 3 {
                self.steps.end();
            }
        }
    }

    /// Connections gave `bytes` back to the allocator.
    pub fn note_freed(&self, bytes: usize) {
        self.freed.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The name of the engine that files are read and written with.
    pub fn engine(&self) -> &'static str {
        let io: &dyn Io = &*self.env.io;
        io.name()
    }
}
