//! Brokers that are awaited after a restore of the metadata store: until they have recorded what they have, or nothing was heard
//! of them for too long. One that looks through many files writes its record again and again meanwhile.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long nothing may be heard of a broker that is awaited.
pub(super) const OTHERS_WITHIN: Duration = Duration::from_secs(600);

/// Brokers that are awaited: the revision of each one's record, and when that was seen first.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    seen: BTreeMap<u32, (u64, Instant)>,
}

impl Awaited {
    /// Whether any of the brokers that are `late`, each with its record's revision, is awaited still: they are since `since`, and it
    /// is `now`.
    pub(super) fn is_any(
        &mut self,
        late: impl IntoIterator<Item = (u32, u64)>,
        (since, now): (Instant, Instant),
    ) -> bool {
        let mut is_any = false;
        for (broker, revision) in late {
            let (known, at) = self.seen.entry(broker).or_insert((revision, since));
            if *known != revision {
                (*known, *at) = (revision, now);
            }
            is_any |= now.saturating_duration_since(*at) < OTHERS_WITHIN;
        }
        is_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_is_awaited_as_long_as_it_is_heard_of() {
        let since = Instant::now();
        let mut awaited = Awaited::default();
        let mut at = |late: &[(u32, u64)], seconds| {
            let now = since + Duration::from_secs(seconds);
            awaited.is_any(late.iter().copied(), (since, now))
        };
        assert!(!at(&[], 1), "all are there");
        assert!(at(&[(2, 7), (3, 8)], 599));
        // Broker 3 is looking through its files.
        assert!(at(&[(2, 7), (3, 9)], 601));
        assert!(at(&[(2, 7), (3, 9)], 1200));
        assert!(!at(&[(2, 7), (3, 9)], 1201));
        assert!(at(&[(3, 10)], 1800));
        // Nothing was ever heard of this one.
        assert!(!at(&[(2, 7)], 1801));
    }
}
