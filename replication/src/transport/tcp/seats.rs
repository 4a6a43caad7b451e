//! Each primary has one data connection: who takes the place of whom.
//!
//! There is no authentication. A hello with another broker's number would end that broker's connection, again
//! and again, so a primary that is at work keeps its seat against whoever comes from another machine and is
//! not where the brokers of the cluster know it to be.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::places::Peers;
use crate::ids::BrokerId;

/// When a connection wrote last; never, before it has.
#[derive(Debug)]
pub(super) struct LastWrite {
    since: Instant,
    /// Milliseconds of `since`, and one; zero for never.
    at: AtomicU64,
}

impl LastWrite {
    pub(super) fn never() -> Arc<Self> {
        let (since, at) = (Instant::now(), AtomicU64::new(0));
        Arc::new(Self { since, at })
    }

    fn now(&self) -> u64 {
        self.since.elapsed().as_millis() as u64 + 1
    }

    pub(super) fn note(&self) {
        self.at.store(self.now(), Ordering::Relaxed);
    }

    fn is_within(&self, time: Duration) -> bool {
        match self.at.load(Ordering::Relaxed) {
            0 => false,
            at => u128::from(self.now().saturating_sub(at)) < time.as_millis(),
        }
    }
}

/// The connection of a primary, as its successor sees it.
#[derive(Debug)]
struct Seat {
    number: u64,
    from: IpAddr,
    wrote: Arc<LastWrite>,
    /// Asked to leave when this is sent, or dropped.
    leave: watch::Sender<bool>,
    /// Its sender is dropped when the connection's last byte is placed.
    gone: watch::Receiver<()>,
}

/// A seat that was taken.
#[derive(Debug)]
pub(super) struct Seated {
    number: u64,
    pub(super) wrote: Arc<LastWrite>,
    /// Becomes true when a successor has come.
    pub(super) leaving: watch::Receiver<bool>,
    /// To be dropped after the connection.
    _here: watch::Sender<()>,
}

/// Why a newcomer does not get a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Occupied {
    /// Where the one who has it comes from.
    pub(super) by: IpAddr,
}

/// The data connections that there are, one of each primary.
#[derive(Debug)]
pub(super) struct Seats {
    /// A connection that wrote within this time is not put out by just anybody.
    kept: Duration,
    taken: Mutex<HashMap<BrokerId, Seat>>,
    served: AtomicU64,
}

impl Seats {
    pub(super) fn new(kept: Duration) -> Self {
        Self {
            kept,
            taken: Mutex::default(),
            served: AtomicU64::new(0),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.taken.lock().len()
    }

    /// Seats a connection of `primary` that comes `from` there, once any earlier one has gone.
    ///
    /// # Errors
    /// [`Occupied`] if the earlier one stays.
    pub(super) async fn take(
        &self,
        primary: BrokerId,
        from: IpAddr,
        peers: &dyn Peers,
    ) -> Result<Seated, Occupied> {
        let from = from.to_canonical();
        let (leave, leaving) = watch::channel(false);
        let (here, gone) = watch::channel(());
        let number = self.served.fetch_add(1, Ordering::Relaxed);
        let wrote = LastWrite::never();
        let is_known = peers.is_at(from, Some(primary));
        if is_known {
            // It came to write, and is not to be put out before it has.
            wrote.note();
        }
        let seat = Seat {
            number,
            from,
            wrote: wrote.clone(),
            leave,
            gone,
        };
        let predecessor = {
            let mut taken = self.taken.lock();
            if let Some(present) = taken.get(&primary)
                && present.from != from
                && present.wrote.is_within(self.kept)
                && !is_known
            {
                return Err(Occupied { by: present.from });
            }
            taken.insert(primary, seat)
        };
        if let Some(mut predecessor) = predecessor {
            predecessor.leave.send_replace(true);
            // Ends with an error when the predecessor's sender is dropped, which is what is waited for.
            while predecessor.gone.changed().await.is_ok() {}
        }
        Ok(Seated {
            number,
            wrote,
            leaving,
            _here: here,
        })
    }

    /// Its connection has ended. Successors that wait for it go on.
    pub(super) fn leave(&self, primary: BrokerId, seated: Seated) {
        let mut taken = self.taken.lock();
        let seat = taken.get(&primary);
        if seat.is_some_and(|seat| seat.number == seated.number) {
            taken.remove(&primary);
        }
    }
}
