//! How many lines a second there may be of what clients can have in any number.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::unheard::Source;

const WINDOW: Duration = Duration::from_secs(1);
/// One address gets a quarter of the lines, so a client that fails all the time does not use up the lines of others.
const OF_ONE: u32 = 4;

/// A number of lines in each second, and of those a part for each address.
pub(super) struct Limit {
    most: u32,
    window: Mutex<Window>,
}

struct Window {
    begun: Instant,
    lines: u32,
    /// No more than there are lines.
    by_source: HashMap<Source, u32>,
}

impl Limit {
    pub(super) fn new(most: u32) -> Self {
        let window = Window {
            begun: Instant::now(),
            lines: 0,
            by_source: HashMap::new(),
        };
        Self {
            most,
            window: Mutex::new(window),
        }
    }

    /// Whether there may be one more line at `now`, about a client at `source`.
    pub(super) fn admits(&self, source: Source, now: Instant) -> bool {
        let mut window = self.window.lock();
        if now.saturating_duration_since(window.begun) >= WINDOW {
            window.begun = now;
            window.lines = 0;
            window.by_source.clear();
        }
        if window.lines >= self.most {
            return false;
        }
        let of_one = self.most.div_ceil(OF_ONE);
        let mine = window.by_source.entry(source).or_default();
        if *mine >= of_one {
            return false;
        }
        *mine += 1;
        window.lines += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn one_address_has_its_part_and_all_have_the_whole() {
        let (limit, now) = (Limit::new(100), Instant::now());
        let admitted = |last: u8, now| {
            let source = Source::from(IpAddr::from([10, 0, 0, last]));
            (0..1000).filter(|_| limit.admits(source, now)).count()
        };
        assert_eq!(admitted(1, now), 25);
        assert_eq!(admitted(2, now), 25);
        let others: usize = (3..100).map(|last| admitted(last, now)).sum();
        assert_eq!(others, 50);
        assert_eq!(admitted(1, now + WINDOW), 25, "a second later");
    }
}
