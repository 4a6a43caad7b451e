//! What one connection takes of quotas.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kera_metadata::quota::QuotaKind;

use super::Quotas;
use super::bucket::Bucket;
use crate::access::ANONYMOUS;
use crate::principal::Principal;

/// Most bytes of a client id that tell one client from another.
pub const MOST_OF_A_CLIENT_ID: usize = 255;
/// A connection that waits looks so often whether it still has to: quotas may have been raised.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The quotas of one connection's client, looked up once as long as they stay the same.
pub struct Meter {
    quotas: Arc<Quotas>,
    user: Arc<str>,
    client: Arc<str>,
    /// The quotas that the rest is of; `None`: of none yet.
    revision: Option<u64>,
    kinds: [OfKind; Metered::ALL.len()],
}

/// What is metered for each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metered {
    /// Bytes that are appended.
    Appends,
    /// Bytes that are read.
    Reads,
}

impl Metered {
    const ALL: [Self; 2] = [Self::Appends, Self::Reads];

    fn kind(self) -> QuotaKind {
        match self {
            Self::Appends => QuotaKind::ProducerByteRate,
            Self::Reads => QuotaKind::ConsumerByteRate,
        }
    }
}

#[derive(Default)]
struct OfKind {
    bucket: Option<Arc<Bucket>>,
    /// It was charged before, on this connection.
    is_charged: bool,
    /// The connection waits until then, unless there is no debt earlier.
    until: Option<Instant>,
}

impl Meter {
    /// Of a connection whose client has taken nothing yet.
    pub fn new(quotas: Arc<Quotas>, principal: &Principal) -> Self {
        Self {
            quotas,
            user: user(principal),
            client: "".into(),
            revision: None,
            kinds: Default::default(),
        }
    }

    /// The client has proved who it is.
    pub fn set_principal(&mut self, principal: &Principal) {
        self.user = user(principal);
        self.revision = None;
    }

    /// The client has named itself.
    pub fn set_client(&mut self, id: &str) {
        let id = client(id);
        if self.client != id {
            self.client = id;
            self.revision = None;
        }
    }

    /// Looks the quotas up again if they have changed.
    fn renew(&mut self) {
        let revision = self.quotas.revision();
        if self.revision != Some(revision) {
            self.revision = Some(revision);
            let now = Instant::now();
            for metered in Metered::ALL {
                let bucket = self
                    .quotas
                    .bucket(metered.kind(), &self.user, &self.client, now);
                self.kinds[metered as usize].bucket = bucket;
            }
        }
    }

    /// Whether the connection waits before it takes more of this: others of the client may have left a debt.
    pub fn waits(&mut self, metered: Metered) -> bool {
        self.waits_at(metered, Instant::now)
    }

    pub(super) fn waits_at(&mut self, metered: Metered, now: impl FnOnce() -> Instant) -> bool {
        self.renew();
        let of = &mut self.kinds[metered as usize];
        let Some(bucket) = &of.bucket else {
            of.until = None;
            return false;
        };
        if of.until.is_none() && of.is_charged {
            return false;
        }
        let now = now();
        let wait = bucket.wait(now);
        if !of.is_charged && !wait.is_zero() {
            // Otherwise a client that opens a connection for each request would never wait.
            of.until = Some(now + wait);
            self.quotas.note(metered.kind(), wait);
        }
        of.is_charged = true;
        of.until = of.until.filter(|until| *until > now && !wait.is_zero());
        of.until.is_some()
    }

    /// Takes `amount`: how long the connection is to wait before it takes more.
    pub fn charge(&mut self, metered: Metered, amount: usize) -> Duration {
        self.charge_at(metered, amount, Instant::now)
    }

    pub(super) fn charge_at(
        &mut self,
        metered: Metered,
        amount: usize,
        now: impl FnOnce() -> Instant,
    ) -> Duration {
        self.renew();
        let of = &mut self.kinds[metered as usize];
        let Some(bucket) = &of.bucket else {
            return Duration::ZERO;
        };
        of.is_charged = true;
        let now = now();
        let wait = bucket.charge(amount as f64, now);
        if !wait.is_zero() {
            of.until = Some(now + wait);
            self.quotas.note(metered.kind(), wait);
        }
        wait
    }

    /// How long those who share the quota are in debt.
    pub fn debt(&mut self, metered: Metered) -> Duration {
        self.renew();
        let bucket = &self.kinds[metered as usize].bucket;
        bucket
            .as_ref()
            .map_or(Duration::ZERO, |bucket| bucket.wait(Instant::now()))
    }

    /// How much may be taken at once, of what the client asked for.
    pub fn most(&mut self, metered: Metered, asked: usize) -> usize {
        self.renew();
        match &self.kinds[metered as usize].bucket {
            None => asked,
            Some(bucket) => asked.min((bucket.burst() as usize).max(1)),
        }
    }

    /// True if it waits, as far as it was looked at.
    pub fn is_waiting(&self, metered: Metered) -> bool {
        self.kinds[metered as usize].until.is_some()
    }

    /// When to look again whether it still waits, if it does.
    pub fn look_at(&self, metered: Metered) -> Option<Instant> {
        let until = self.kinds[metered as usize].until?;
        Some(until.min(Instant::now() + LOOK_AGAIN))
    }
}

/// Whose quotas count for a client.
pub(super) fn user(principal: &Principal) -> Arc<str> {
    principal.user().unwrap_or_else(|| ANONYMOUS.into())
}

/// As much of a client id as tells one client from another.
pub(super) fn client(id: &str) -> Arc<str> {
    id[..id.floor_char_boundary(MOST_OF_A_CLIENT_ID)].into()
}
