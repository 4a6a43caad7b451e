//! What each principal holds of the bytes that all connections may hold, so that one that takes all it can get leaves room
//! for others, however many connections it has.
//!
//! A part of a limit is kept for principals that hold little. Where no client proves who it is there is only one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::config::BrokerConfig;
use crate::principal::Principal;

/// One part of so many of a limit is kept for those that hold little.
const KEPT: u64 = 4;
/// Who holds no more than one part of so many of a limit holds little.
const LITTLE: u64 = 16;
/// Shares at which those are dropped first that nobody has any more.
const FIRST_SWEEP: usize = 64;

/// What the connections of one principal hold together.
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// Bytes appended and not yet acknowledged, and of large frames that arrive.
    pub(super) in_flight: AtomicU64,
    /// Bytes that wait to be sent.
    pub(super) outgoing: AtomicU64,
}

/// The shares of all principals.
#[derive(Debug)]
pub(crate) struct Shares {
    /// `None`: nobody proves who it is.
    by_principal: Option<Mutex<ByPrincipal>>,
}

#[derive(Debug, Default)]
struct ByPrincipal {
    shares: HashMap<Option<Arc<str>>, Weak<Share>>,
    sweep_at: usize,
}

impl Shares {
    /// Nobody holds anything yet.
    pub(super) fn new(config: &BrokerConfig) -> Self {
        let prove = config.wants_certificates() || config.asks_clients();
        Self {
            by_principal: prove.then(Mutex::default),
        }
    }

    /// The share of a principal, if there are several.
    pub(super) fn of(&self, principal: &Principal) -> Option<Arc<Share>> {
        let mut known = self.by_principal.as_ref()?.lock();
        let user = principal.user();
        if let Some(share) = known.shares.get(&user).and_then(Weak::upgrade) {
            return Some(share);
        }
        if known.shares.len() >= known.sweep_at {
            known.shares.retain(|_, share| share.strong_count() > 0);
            known.sweep_at = (known.shares.len() * 2).max(FIRST_SWEEP);
        }
        let share = Arc::<Share>::default();
        known.shares.insert(user, Arc::downgrade(&share));
        Some(share)
    }
}

/// True if all connections together may hold `total` bytes where `limit` is the most, of which those of one principal would
/// hold `own`; `None` if there is only one.
pub(super) fn may_hold(total: u64, own: Option<u64>, limit: u64) -> bool {
    let is_little = own.is_none_or(|own| own <= limit / LITTLE);
    total <= limit && (is_little || total <= limit - limit / KEPT)
}

/// True if a principal that holds `own` bytes may have a frame of `more` beside the `total` that all hold. One that holds
/// nothing may have a large one of what is kept for those that hold little, but for a last part.
pub(super) fn may_hold_frame(total: u64, more: u64, own: Option<u64>, limit: u64) -> bool {
    let is_first = own == Some(0) && total + more <= limit - limit / LITTLE;
    is_first || may_hold(total + more, own.map(|own| own + more), limit)
}

/// What is in an amount that may be none.
pub(super) fn held(amount: Option<&AtomicU64>) -> Option<u64> {
    amount.map(|amount| amount.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Listener;

    #[test]
    fn a_part_is_left_for_those_that_hold_little() {
        let limit = 1600;
        for (total, own, may) in [
            (1600, None, true),
            (1601, None, false),
            (1200, Some(1200), true),
            (1201, Some(1201), false),
            (1201, Some(101), false),
            (1600, Some(100), true),
            (1601, Some(1), false),
        ] {
            assert_eq!(may_hold(total, own, limit), may, "{total} {own:?}");
        }
    }

    #[test]
    fn a_first_frame_leaves_a_part_for_small_ones() {
        let limit = 1600;
        for (total, more, own, may) in [
            (1200, 300, Some(0), true),
            (1200, 301, Some(0), false),
            (1500, 100, Some(0), true),
            (1200, 300, Some(1), false),
            (0, 1500, Some(0), true),
            (1500, 100, None, true),
            (1500, 101, None, false),
        ] {
            let told = may_hold_frame(total, more, own, limit);
            assert_eq!(told, may, "{total} {more} {own:?}");
        }
    }

    #[test]
    fn connections_of_a_principal_have_one_share_as_long_as_there_are_some() {
        let mut config = BrokerConfig::default();
        let ann = Principal::User("ann".into());
        assert!(Shares::new(&config).of(&ann).is_none(), "nobody proves it");
        config.auth.listeners = vec![Listener::Kafka];
        let shares = Shares::new(&config);
        let one = shares.of(&ann).unwrap();
        assert!(Arc::ptr_eq(&one, &shares.of(&ann).unwrap()));
        let other = shares.of(&Principal::Anonymous).unwrap();
        assert!(!Arc::ptr_eq(&one, &other));
        for number in 0..10 * FIRST_SWEEP {
            let user = Principal::User(number.to_string().into());
            drop(shares.of(&user).unwrap());
        }
        let known = shares.by_principal.as_ref().unwrap().lock().shares.len();
        assert!(known <= FIRST_SWEEP + 2, "{known} are kept");
        assert!(Arc::ptr_eq(&one, &shares.of(&ann).unwrap()));
    }
}
