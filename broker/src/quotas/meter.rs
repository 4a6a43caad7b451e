//! What one connection takes of quotas.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use kera_metadata::quota::QuotaKind;
use rustix::time::{ClockId, clock_gettime};

use super::Quotas;
use super::bucket::Bucket;
use crate::access::ANONYMOUS;
use crate::principal::Principal;
use crate::turns::Seat;

/// Most bytes of a client id that tell one client from another.
pub const MOST_OF_A_CLIENT_ID: usize = 255;
/// A connection that waits looks so often whether it still has to: quotas may have been raised.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The longest that a connection waits at a time because of the time that its requests took, as with Kafka: a member of a
/// group still sends its heartbeats.
const LONGEST_FOR_TIME: Duration = Duration::from_secs(1);

/// The quotas of one connection's client, looked up once as long as they stay the same.
pub struct Meter {
    quotas: Arc<Quotas>,
    user: Arc<str>,
    client: Arc<str>,
    /// The quotas that the rest is of; `None`: of none yet.
    revision: Option<u64>,
    kinds: [OfKind; Metered::ALL.len()],
    /// While the thread works for the connection, and a quota limits that: its time when it was last charged.
    working_since: Option<Duration>,
    /// The client has not proved yet who it is: until then its time is nobody's.
    is_nobody: bool,
    /// Its turns, while some user has an objective.
    seat: Seat,
}

/// What is metered for each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metered {
    /// Bytes that are appended.
    Appends,
    /// Bytes that are read.
    Reads,
    /// Time that threads work for the connection, in nanoseconds.
    Time,
}

impl Metered {
    pub(super) const ALL: [Self; 3] = [Self::Appends, Self::Reads, Self::Time];

    fn kind(self) -> QuotaKind {
        match self {
            Self::Appends => QuotaKind::ProducerByteRate,
            Self::Reads => QuotaKind::ConsumerByteRate,
            Self::Time => QuotaKind::RequestPercentage,
        }
    }

    /// How long a connection waits at most before it may do something.
    fn longest(self) -> Duration {
        match self {
            Self::Appends | Self::Reads => Duration::MAX,
            Self::Time => LONGEST_FOR_TIME,
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
        let user = user(principal);
        Self {
            seat: Seat::new(quotas.turns.clone(), user.clone()),
            quotas,
            user,
            client: "".into(),
            revision: None,
            kinds: Default::default(),
            working_since: None,
            is_nobody: false,
        }
    }

    /// The client has to prove who it is. Time is not charged until then: strangers would use up that of all others who are
    /// on their way in.
    pub fn set_nobody(&mut self) {
        self.is_nobody = true;
        self.revision = None;
    }

    /// The client has proved who it is.
    pub fn set_principal(&mut self, principal: &Principal) {
        self.user = user(principal);
        self.is_nobody = false;
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
                let quotas = &self.quotas;
                let find = || quotas.bucket(metered.kind(), &self.user, &self.client, now);
                let bucket = match metered {
                    Metered::Time if self.is_nobody => None,
                    _ => find(),
                };
                self.kinds[metered as usize].bucket = bucket;
            }
            self.seat.renew(&self.user);
        }
    }

    /// Whether the connection waits before it takes more of this, for which it also takes time: others of the client may
    /// have left a debt.
    pub fn waits(&mut self, metered: Metered) -> bool {
        self.waits_at(metered, Instant::now)
    }

    pub(super) fn waits_at(&mut self, metered: Metered, now: impl Fn() -> Instant) -> bool {
        self.renew();
        // Both are looked at: what is over is noticed here.
        let time = self.waits_for(Metered::Time, &now);
        time | (metered != Metered::Time && self.waits_for(metered, now))
    }

    fn waits_for(&mut self, metered: Metered, now: impl Fn() -> Instant) -> bool {
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
            let wait = wait.min(metered.longest());
            of.until = Some(now + wait);
            self.quotas.note(metered.kind(), wait);
        }
        of.is_charged = true;
        of.until = of.until.filter(|until| *until > now && !wait.is_zero());
        of.until.is_some()
    }

    /// Whether the connection waits for its turn before it appends `bytes` or reads up to as many, because some user has an
    /// objective; `waker` is told when it has one.
    pub fn waits_for_turn(&mut self, metered: Metered, bytes: usize, waker: &Waker) -> bool {
        self.renew();
        !self.is_nobody && self.seat.waits(metered, bytes, waker)
    }

    /// There is nothing yet for the read that has its turn.
    pub fn found_nothing(&mut self) {
        self.seat.found_nothing();
    }

    /// It took a request that appends and reads nothing.
    pub fn take_turn(&mut self) {
        self.seat.charge(Metered::Time, 0);
    }

    /// Something was answered that took so long.
    pub fn answered(&self, took: Duration) {
        self.seat.answered(took);
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
        self.seat.charge(metered, amount);
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

    /// The thread works for the connection from now on.
    pub fn begin_work(&mut self) {
        self.renew();
        self.working_since = self.measures_time().then(thread_time);
    }

    /// Something is answered: charges the time that the thread has worked until now. How long the connection is to wait
    /// because of time before it takes more.
    pub fn time_wait(&mut self) -> Duration {
        if let Some(since) = self.working_since {
            let now = thread_time();
            self.working_since = Some(now);
            self.charge_time(now.saturating_sub(since));
        }
        self.time_wait_at(Instant::now)
    }

    pub(super) fn time_wait_at(&mut self, now: impl FnOnce() -> Instant) -> Duration {
        let of = &mut self.kinds[Metered::Time as usize];
        let Some(bucket) = &of.bucket else {
            return Duration::ZERO;
        };
        let now = now();
        if of.until.is_none_or(|until| until <= now) {
            let wait = bucket.wait(now).min(LONGEST_FOR_TIME);
            of.until = (!wait.is_zero()).then(|| now + wait);
            if !wait.is_zero() {
                self.quotas.note(QuotaKind::RequestPercentage, wait);
            }
        }
        of.is_charged = true;
        let until = of.until.unwrap_or(now);
        until.saturating_duration_since(now)
    }

    /// As [`charge`](Self::charge), of something that is answered: for both what is taken and time.
    pub fn charge_answered(&mut self, metered: Metered, amount: usize) -> Duration {
        self.charge(metered, amount).max(self.time_wait())
    }

    /// It works for others from now on.
    pub fn end_work(&mut self) {
        if let Some(since) = self.working_since.take() {
            self.charge_time(thread_time().saturating_sub(since));
        }
    }

    /// True if a quota limits how long threads work for the connection.
    pub(crate) fn measures_time(&self) -> bool {
        self.kinds[Metered::Time as usize].bucket.is_some()
    }

    /// So long a thread has worked for it. It is owed, and waited for once something is [answered](Self::time_wait): a
    /// connection that only waits takes some time too.
    pub(crate) fn charge_time(&mut self, worked: Duration) {
        self.charge_time_at(worked, Instant::now);
    }

    pub(super) fn charge_time_at(&mut self, worked: Duration, now: impl FnOnce() -> Instant) {
        self.renew();
        if let Some(bucket) = &self.kinds[Metered::Time as usize].bucket {
            bucket.charge(worked.as_nanos() as f64, now());
        }
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
        let asked = match metered {
            Metered::Reads => asked.min(self.seat.most_read()),
            _ => asked,
        };
        match &self.kinds[metered as usize].bucket {
            None => asked,
            Some(bucket) => asked.min((bucket.burst() as usize).max(1)),
        }
    }

    /// True if it [waits](Self::waits), or [for its turn](Self::waits_for_turn), as far as it was looked at.
    pub fn is_waiting(&self, metered: Metered) -> bool {
        let is_set = |one: Metered| self.kinds[one as usize].until.is_some();
        is_set(metered) || is_set(Metered::Time) || self.seat.is_waiting(metered)
    }

    /// When to look again whether it still waits, if it does.
    pub fn look_at(&self, metered: Metered) -> Option<Instant> {
        let until = |one: Metered| self.kinds[one as usize].until;
        let until = until(metered).into_iter().chain(until(Metered::Time));
        let again = Instant::now() + LOOK_AGAIN;
        let turn = self.seat.is_waiting(metered).then_some(again);
        let until = until.chain(turn).min()?;
        Some(until.min(again))
    }
}

/// How long this thread has worked since it began, whatever others did meanwhile on its core.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Neither is below zero.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What comes of `future`. How long threads worked for that is added to `worked`, unless it is `None`.
pub(crate) async fn measured<F: Future>(future: F, worked: &mut Option<Duration>) -> F::Output {
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        let since = worked.is_some().then(thread_time);
        let polled = future.as_mut().poll(context);
        if let (Some(worked), Some(since)) = (worked.as_mut(), since) {
            *worked += thread_time().saturating_sub(since);
        }
        polled
    })
    .await
}

/// Whose quotas count for a client.
pub(super) fn user(principal: &Principal) -> Arc<str> {
    principal.user().unwrap_or_else(|| ANONYMOUS.into())
}

/// As much of a client id as tells one client from another.
pub(super) fn client(id: &str) -> Arc<str> {
    id[..id.floor_char_boundary(MOST_OF_A_CLIENT_ID)].into()
}
