//! How much clients may do: the quotas of the metadata store, and what clients have used of them at this broker.
//!
//! The model is Kafka's. A quota is of a user, a client id, a client id of a user, or the default of one of these; of
//! several that fit a client one counts (`limits`). All connections that share a quota share one bucket of tokens. A
//! request takes its tokens from the bucket. If it takes more than there are, the connections that share the bucket wait
//! until the debt is worked off. Connections of other buckets do not wait.

mod alter;
mod bucket;
mod limits;
mod meter;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use kera_metadata::QuotasRecord;
use kera_metadata::quota::{Limit, QuotaKind};
use parking_lot::Mutex;

use crate::metrics::{Counter, Family, Labels};
use crate::principal::Principal;
use crate::turns::{Capacity, Turns};
use bucket::{ANY_DEBT, Bucket};
use limits::{Limits, Sharers};

pub use alter::{Change, address_text, alter, list};
pub(crate) use meter::measured;
pub use meter::{MOST_OF_A_CLIENT_ID, Meter, Metered};

/// Buckets that are kept while they are in use or in debt; clients beyond share one of each kind.
const MOST_BUCKETS: usize = 16_384;
/// Buckets at which those are dropped first that nobody needs.
const FIRST_SWEEP: usize = 64;

/// The kinds that this version enforces.
pub(crate) const ENFORCED: [QuotaKind; 8] = [
    QuotaKind::ProducerByteRate,
    QuotaKind::ConsumerByteRate,
    QuotaKind::RequestPercentage,
    QuotaKind::ControllerMutationRate,
    QuotaKind::ConnectionCreationRate,
    QuotaKind::ObjectiveLatency,
    QuotaKind::ObjectiveRequestRate,
    QuotaKind::ObjectiveByteRate,
];

/// Where all buckets are needed, time between two looks for those that are not.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

type Key = (QuotaKind, Option<Sharers>);

#[derive(Debug)]
struct Buckets {
    by_key: HashMap<Key, Arc<Bucket>>,
    /// So many are let come before another look for those that nobody needs,
    sweep_at: usize,
    /// and none comes sooner than this.
    sweep_from: Option<Instant>,
}

/// How much clients may do at this broker.
pub struct Quotas {
    limits: ArcSwap<Limits>,
    /// Of the limits; another number whenever they have changed.
    revision: AtomicU64,
    buckets: Mutex<Buckets>,
    /// Whose request is next while some user has an objective.
    pub(crate) turns: Arc<Turns>,
    /// Times that clients had to wait, by kind of quota.
    pub(crate) throttled: Family<Labels, Counter>,
    /// For how long, in milliseconds.
    pub(crate) throttled_ms: Family<Labels, Counter>,
}

impl Quotas {
    /// As they are recorded, at a broker that can do so much.
    pub(crate) fn new(recorded: Option<&QuotasRecord>, capacity: Capacity) -> Self {
        let limits = recorded.map(Limits::of).unwrap_or_default();
        let (throttled, throttled_ms) = <(Family<Labels, Counter>, _)>::default();
        for kind in ENFORCED.into_iter().filter(|kind| !kind.is_of_objective()) {
            // All there is to count, from the start.
            for family in [&throttled, &throttled_ms] {
                drop(family.get_or_create_owned(&labels(kind)));
            }
        }
        let turns = Arc::new(Turns::new(capacity));
        if let Some(recorded) = recorded {
            turns.take(recorded);
        }
        Self {
            turns,
            revision: AtomicU64::new(limits.revision),
            limits: ArcSwap::from_pointee(limits),
            buckets: Mutex::new(Buckets {
                by_key: HashMap::new(),
                sweep_at: FIRST_SWEEP,
                sweep_from: None,
            }),
            throttled,
            throttled_ms,
        }
    }

    /// Takes in what is recorded, unless something newer is known.
    pub(crate) fn take(&self, record: &QuotasRecord) {
        let new = Arc::new(Limits::of(record));
        // Of two that come at once the newer one stays.
        self.limits
            .rcu(|known| match known.revision < new.revision {
                true => new.clone(),
                false => known.clone(),
            });
        self.turns.take(record);
        self.revision.fetch_max(new.revision, Ordering::Release);
    }

    /// Requests that wait for their turn, because some user has an objective.
    pub fn waiting_turns(&self) -> u64 {
        self.turns.waiting()
    }

    fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// What a client uses of a kind; `None` if nothing limits it.
    fn bucket(
        &self,
        kind: QuotaKind,
        user: &Arc<str>,
        client: &Arc<str>,
        now: Instant,
    ) -> Option<Arc<Bucket>> {
        let (limit, sharers) = self.limits.load().find(kind, user, client)?;
        let bucket = self
            .buckets
            .lock()
            .of((kind, Some(sharers)), rate(kind, limit), now);
        bucket.set_rate(rate(kind, limit), now);
        Some(bucket)
    }

    /// Charges a client with partitions that it is about to create or delete.
    ///
    /// # Errors
    /// Those that share its quota owe some still: how long it takes until they do not. Nothing is charged then.
    pub fn mutate(
        &self,
        principal: &Principal,
        client: &str,
        partitions: u32,
    ) -> Result<(), Duration> {
        let (kind, now) = (QuotaKind::ControllerMutationRate, Instant::now());
        let bucket = self.bucket(kind, &meter::user(principal), &meter::client(client), now);
        let Some(bucket) = bucket else {
            return Ok(());
        };
        let wait = bucket.wait(now);
        if !wait.is_zero() {
            self.note(kind, wait);
            return Err(wait);
        }
        bucket.charge(partitions.into(), now);
        Ok(())
    }

    /// Whether one more connection from an address may be opened, which counts against its quota then.
    pub(crate) fn admits(&self, address: IpAddr) -> bool {
        let (kind, now) = (QuotaKind::ConnectionCreationRate, Instant::now());
        let address = address.to_canonical();
        let Some(limit) = self.limits.load().of_address(kind, address) else {
            return true;
        };
        let key = (kind, Some(Sharers::Address(address.into())));
        let bucket = self.buckets.lock().of(key, rate(kind, limit), now);
        bucket.set_rate(rate(kind, limit), now);
        let wait = bucket.wait(now);
        if !wait.is_zero() {
            self.note(kind, wait);
            return false;
        }
        bucket.charge(1.0, now);
        true
    }

    fn note(&self, kind: QuotaKind, wait: Duration) {
        let labels = labels(kind);
        let ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        self.throttled.get_or_create_owned(&labels).inc();
        self.throttled_ms.get_or_create_owned(&labels).inc_by(ms);
    }
}

impl Buckets {
    fn of(&mut self, key: Key, rate: f64, now: Instant) -> Arc<Bucket> {
        if let Some(bucket) = self.by_key.get(&key) {
            return bucket.clone();
        }
        if self.by_key.len() >= self.sweep_at && self.sweep_from.is_none_or(|from| from <= now) {
            self.by_key
                .retain(|_, bucket| Arc::strong_count(bucket) > 1 || !bucket.is_full(now));
            self.sweep_at = (self.by_key.len() * 2).clamp(FIRST_SWEEP, MOST_BUCKETS);
            let is_full = self.by_key.len() >= MOST_BUCKETS;
            self.sweep_from = is_full.then(|| now + SWEEP_PAUSE);
        }
        let (kind, _) = key;
        // Clients that make up ever new client ids share one bucket.
        let key = match self.by_key.len() < MOST_BUCKETS {
            true => key,
            false => (kind, None),
        };
        let bucket = self.by_key.entry(key);
        bucket
            .or_insert_with(|| Arc::new(Bucket::new(rate, most_owed(kind), now)))
            .clone()
    }
}

/// What a limit allows in a second, in the unit that its kind is charged in.
fn rate(kind: QuotaKind, limit: Limit) -> f64 {
    match kind {
        // Hundredths of a core, charged in nanoseconds.
        QuotaKind::RequestPercentage => limit.value() * 1e7,
        _ => limit.value(),
    }
}

/// Seconds that a debt of a kind takes at most.
fn most_owed(kind: QuotaKind) -> f64 {
    match kind {
        // A connection waits a second at a time, so that many together owe more than they ever wait for. Kafka looks at
        // eleven seconds.
        QuotaKind::RequestPercentage => 10.0,
        _ => ANY_DEBT,
    }
}

fn labels(kind: QuotaKind) -> Labels {
    vec![("quota", kind.name().to_owned())]
}

#[cfg(test)]
mod tests;
