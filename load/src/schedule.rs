//! When each of several producers sends what.

use std::time::Duration;

use crate::Load;

/// Most records between two looks at the clock.
const BURST: u64 = 256;

/// One producer's part of what all are to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Among all producers.
    index: u64,
    /// Producers.
    of: u64,
    /// At a rate so many records are due at a time.
    at_once: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// So many records, as fast as they are taken.
    Records(u64),
    /// As fast as they are taken, for this long.
    Time(Duration),
    /// All producers together at a rate, whatever becomes of those before; so many records.
    Rate(u64, u64),
}

/// What a producer does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send so many records.
    Send(u64),
    /// Wait until a record is due, about so long.
    Wait(Duration),
    /// All is done.
    Done,
}

impl Part {
    /// The part of producer `index`, counted from 0. With `endless` an open loop goes on until it is
    /// told to stop.
    pub(crate) fn of(load: &Load, index: u32, endless: bool) -> Self {
        let (index, of) = (u64::from(index), u64::from(load.producers.max(1)));
        let share = |records: u64| records / of + u64::from(index < records % of);
        let kind = match (load.rate, load.time) {
            (Some(rate), _) if endless => Kind::Rate(rate.max(1), u64::MAX),
            (Some(rate), _) => Kind::Rate(rate.max(1), share(load.records)),
            (None, Some(time)) => Kind::Time(time),
            (None, None) => Kind::Records(share(load.records)),
        };
        Self {
            index,
            of,
            at_once: load.at_once.unwrap_or(1).max(1),
            kind,
        }
    }

    /// True if records are due at times of their own.
    pub(crate) fn is_paced(&self) -> bool {
        matches!(self.kind, Kind::Rate(..))
    }

    /// What to do after `sent` records, so long after the beginning.
    pub(crate) fn next(&self, sent: u64, elapsed: Duration) -> Next {
        let ready = match self.kind {
            Kind::Records(records) => records - sent.min(records),
            Kind::Time(time) if elapsed < time => BURST,
            Kind::Time(_) => 0,
            Kind::Rate(rate, records) => {
                let due = self.due_by(rate, elapsed).min(records);
                if due <= sent && sent < records {
                    return Next::Wait(self.due(sent).saturating_sub(elapsed));
                }
                due.saturating_sub(sent)
            }
        };
        match ready {
            0 => Next::Done,
            ready => Next::Send(ready.min(BURST)),
        }
    }

    /// How long after the beginning its record `number` is due; at once if there is no rate.
    pub(crate) fn due(&self, number: u64) -> Duration {
        let Kind::Rate(rate, _) = self.kind else {
            return Duration::ZERO;
        };
        let turn = u128::from(number / self.at_once) * u128::from(self.of) + u128::from(self.index);
        // Rounded up: at that time it is due.
        let nanos = (turn * u128::from(self.at_once) * 1_000_000_000).div_ceil(u128::from(rate));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// How many of its records are due by then.
    fn due_by(&self, rate: u64, elapsed: Duration) -> u64 {
        let each = 1_000_000_000 * u128::from(self.at_once);
        let turns = elapsed.as_nanos() * u128::from(rate) / each + 1;
        let turns = u64::try_from(turns).unwrap_or(u64::MAX);
        // Those of all producers, dealt out turn by turn.
        let own = turns.saturating_sub(self.index).div_ceil(self.of);
        own.saturating_mul(self.at_once)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(producers: u32, records: u64, rate: Option<u64>, millis: Option<u64>) -> Load {
        Load {
            rate,
            time: millis.map(Duration::from_millis),
            ..Load::of_producers(producers, records)
        }
    }

    const MS: Duration = Duration::from_millis(1);

    /// Sends what is due until there is nothing at `elapsed`.
    fn sent_by(part: &Part, elapsed: Duration) -> u64 {
        let mut sent = 0;
        while let Next::Send(more) = part.next(sent, elapsed) {
            sent += more;
        }
        sent
    }

    #[test]
    fn records_are_dealt_out_and_none_is_lost() {
        let load = load(3, 1_000, None, None);
        let parts: Vec<u64> = (0..3)
            .map(|index| sent_by(&Part::of(&load, index, false), MS))
            .collect();
        assert_eq!(parts, [334, 333, 333]);
        assert_eq!(Part::of(&load, 0, false).next(334, MS), Next::Done);
    }

    #[test]
    fn time_ends_it() {
        let part = Part::of(&load(2, 0, None, Some(50)), 1, false);
        assert!(!part.is_paced());
        assert_eq!(part.next(1 << 40, 49 * MS), Next::Send(BURST));
        assert_eq!(part.next(0, 50 * MS), Next::Done);
    }

    #[test]
    fn a_rate_is_kept_by_all_together() {
        let load = load(3, 100, Some(1_000), Some(9_999));
        let parts: Vec<Part> = (0..3).map(|index| Part::of(&load, index, false)).collect();
        // Records 0 to 10 are due by then: four, four and three of them.
        let sent: Vec<u64> = parts.iter().map(|part| sent_by(part, 10 * MS)).collect();
        assert_eq!(sent, [4, 4, 3]);
        assert_eq!(parts[1].due(0), MS);
        assert_eq!(parts[1].next(4, 10 * MS), Next::Wait(3 * MS));
        // Whoever is late sends all that is due, and no more than its part.
        let all: u64 = parts.iter().map(|part| sent_by(part, 500 * MS)).sum();
        assert_eq!(all, 100);
        assert_eq!(parts[0].next(34, 500 * MS), Next::Done);
        let endless = Part::of(&load, 0, true);
        assert_eq!(endless.next(34, 10 * MS), Next::Wait(92 * MS));
    }

    #[test]
    fn records_that_are_due_at_once_come_together_and_producers_take_turns() {
        let load = Load {
            at_once: Some(10),
            ..load(2, 100, Some(1_000), None)
        };
        let parts = [0, 1].map(|index| Part::of(&load, index, false));
        let sent = |elapsed| parts.map(|part| sent_by(&part, elapsed));
        assert_eq!(sent(9 * MS), [10, 0]);
        assert_eq!(sent(10 * MS), [10, 10]);
        assert_eq!(sent(39 * MS), [20, 20]);
        assert_eq!((parts[1].due(9), parts[1].due(10)), (10 * MS, 30 * MS));
        assert_eq!(parts[0].next(10, 15 * MS), Next::Wait(5 * MS));
        assert_eq!(sent(500 * MS), [50, 50]);
    }

    #[test]
    fn a_record_is_due_when_it_says_so() {
        for (rate, at_once) in [(1, None), (3, Some(4)), (7, None), (999_983, Some(3))] {
            let load = Load {
                at_once,
                ..load(7, 1_000, Some(rate), None)
            };
            let part = Part::of(&load, 5, false);
            for number in [0, 1, 13].map(|number| number * at_once.unwrap_or(1)) {
                let due = part.due(number);
                assert!(
                    matches!(part.next(number, due), Next::Send(_)),
                    "{rate} {number}"
                );
                let before = due.saturating_sub(Duration::from_nanos(1));
                assert!(
                    matches!(part.next(number, before), Next::Wait(_)),
                    "{rate} {number}"
                );
            }
        }
    }
}
