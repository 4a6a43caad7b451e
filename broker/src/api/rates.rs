//! Rates, from counters that brokers tell again and again.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use kera_protocol::v1;

use super::views::Rates;

/// Rates are those of the last looks that lie within this time.
const WINDOW: Duration = Duration::from_secs(5);
/// A look that is older says nothing about now.
const STALE: Duration = Duration::from_secs(15);
/// Looks that are kept.
const LOOKS: usize = 8;

/// Counters that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Totals {
    records_in: u64,
    bytes_in: u64,
    bytes_out: u64,
}

impl Totals {
    fn add(&mut self, more: Self) {
        self.records_in += more.records_in;
        self.bytes_in += more.bytes_in;
        self.bytes_out += more.bytes_out;
    }
}

/// A streamlet at a broker: its counters begin anew where another broker serves it, or the same after a restart.
type Place = (u32, u64, Vec<u8>, u32);

/// One look at everything.
#[derive(Debug, Default)]
struct Look {
    at: Option<Instant>,
    streams: HashMap<Vec<u8>, Totals>,
    brokers: HashMap<u32, (Totals, f64)>,
    lags: HashMap<String, u64>,
}

/// Turns what brokers count into rates.
#[derive(Debug, Default)]
pub(super) struct Meter {
    seen: HashMap<Place, Totals>,
    looks: VecDeque<Look>,
}

impl Meter {
    /// Takes in what brokers have just told.
    pub(super) fn take<'a>(
        &mut self,
        now: Instant,
        told: impl Iterator<Item = &'a v1::ObserveResponse>,
        lags: impl Iterator<Item = (String, u64)>,
    ) {
        let stale = |look: &Look| look.at.is_none_or(|at| now.duration_since(at) > STALE);
        if self.looks.back().is_some_and(stale) {
            self.looks.clear();
            self.seen.clear();
        }
        let (mut streams, mut brokers) = match self.looks.back() {
            Some(last) => (last.streams.clone(), last.brokers.clone()),
            None => Default::default(),
        };
        let mut seen = HashMap::new();
        for broker in told {
            let (of_broker, cpu) = brokers.entry(broker.broker).or_default();
            *cpu = broker.cpu_seconds;
            for stream in &broker.streams {
                let of_stream = streams.entry(stream.stream.to_vec()).or_default();
                for traffic in &stream.traffic {
                    let id = stream.stream.to_vec();
                    let place = (broker.broker, broker.started_ms, id, traffic.streamlet);
                    let now = Totals {
                        records_in: traffic.appended_records,
                        bytes_in: traffic.appended_bytes,
                        bytes_out: traffic.read_bytes,
                    };
                    if let Some(before) = self.seen.get(&place) {
                        let more = Totals {
                            records_in: now.records_in.saturating_sub(before.records_in),
                            bytes_in: now.bytes_in.saturating_sub(before.bytes_in),
                            bytes_out: now.bytes_out.saturating_sub(before.bytes_out),
                        };
                        of_stream.add(more);
                        of_broker.add(more);
                    }
                    seen.insert(place, now);
                }
            }
        }
        self.seen = seen;
        self.looks.push_back(Look {
            at: Some(now),
            streams,
            brokers,
            lags: lags.collect(),
        });
        // One look is older than the window, if there is one.
        let is_old = |look: &Look| look.at.is_none_or(|at| now.duration_since(at) >= WINDOW);
        while self.looks.len() > LOOKS || self.looks.get(1).is_some_and(is_old) {
            self.looks.pop_front();
        }
    }

    /// The first and the last look, and the seconds between them.
    fn ends(&self) -> Option<(&Look, &Look, f64)> {
        let (first, last) = (self.looks.front()?, self.looks.back()?);
        let between = last.at?.duration_since(first.at?).as_secs_f64();
        (between > 0.0).then_some((first, last, between))
    }

    /// A stream's, by the bytes of its id.
    pub(super) fn of_stream(&self, id: &[u8]) -> Rates {
        let Some((first, last, between)) = self.ends() else {
            return Rates::default();
        };
        let at = |look: &Look| look.streams.get(id).copied().unwrap_or_default();
        rates(at(first), at(last), between)
    }

    /// A broker's, and the share of a core that it uses.
    pub(super) fn of_broker(&self, id: u32) -> (Rates, Option<f64>) {
        let known = self.ends().and_then(|(first, last, between)| {
            let (first, last) = (first.brokers.get(&id)?, last.brokers.get(&id)?);
            // After a restart it counts from nothing.
            let cpu = (last.1 >= first.1).then(|| (last.1 - first.1) / between);
            Some((rates(first.0, last.0, between), cpu))
        });
        known.unwrap_or_default()
    }

    /// By how much a group's lag grows in a second.
    pub(super) fn lag_growth(&self, group: &str) -> Option<f64> {
        let (first, last, between) = self.ends()?;
        let (before, now) = (*first.lags.get(group)?, *last.lags.get(group)?);
        Some((now as f64 - before as f64) / between)
    }
}

fn rates(first: Totals, last: Totals, between: f64) -> Rates {
    let rate = |of: fn(&Totals) -> u64| {
        let more = of(&last).saturating_sub(of(&first)) as f64;
        Some((more / between * 10.0).round() / 10.0)
    };
    Rates {
        records_in: rate(|t| t.records_in),
        bytes_in: rate(|t| t.bytes_in),
        bytes_out: rate(|t| t.bytes_out),
    }
}

/// The sum; known as soon as one is.
pub(super) fn sum<'a>(all: impl Iterator<Item = &'a Rates>) -> Rates {
    let add = |sum: Option<f64>, one: Option<f64>| match (sum, one) {
        (Some(sum), Some(one)) => Some(sum + one),
        (known, None) | (None, known) => known,
    };
    all.fold(Rates::default(), |sum, one| Rates {
        records_in: add(sum.records_in, one.records_in),
        bytes_in: add(sum.bytes_in, one.bytes_in),
        bytes_out: add(sum.bytes_out, one.bytes_out),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(broker: u32, started_ms: u64, records: u64) -> v1::ObserveResponse {
        v1::ObserveResponse {
            broker,
            started_ms,
            streams: vec![v1::ObservedStream {
                stream: vec![7; 16].into(),
                traffic: vec![v1::ObservedTraffic {
                    streamlet: 3,
                    appended_records: records,
                    appended_bytes: records * 100,
                    read_bytes: records * 50,
                }],
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    fn lag(records: u64) -> impl Iterator<Item = (String, u64)> {
        std::iter::once(("g".to_owned(), records))
    }

    #[test]
    fn a_rate_needs_two_looks() {
        let (mut meter, now) = (Meter::default(), Instant::now());
        meter.take(now, [told(1, 5, 1000)].iter(), lag(10));
        assert_eq!(meter.of_stream(&[7; 16]).records_in, None);
        assert_eq!(meter.lag_growth("g"), None);
        let later = now + Duration::from_secs(2);
        meter.take(later, [told(1, 5, 1500)].iter(), lag(4));
        let rates = meter.of_stream(&[7; 16]);
        assert_eq!(rates.records_in, Some(250.0));
        assert_eq!(rates.bytes_in, Some(25_000.0));
        assert_eq!(rates.bytes_out, Some(12_500.0));
        assert_eq!(meter.of_broker(1).0.records_in, Some(250.0));
        assert_eq!(meter.lag_growth("g"), Some(-3.0));
    }

    #[test]
    fn counters_that_begin_anew_count_from_there() {
        let (mut meter, now) = (Meter::default(), Instant::now());
        meter.take(now, [told(1, 5, 1000)].iter(), lag(0));
        // Another broker serves the streamlet, and then the first one again after a restart.
        let second = Duration::from_secs(1);
        meter.take(now + second, [told(2, 6, 4000)].iter(), lag(0));
        meter.take(now + 2 * second, [told(2, 6, 4100)].iter(), lag(0));
        meter.take(now + 3 * second, [told(1, 9, 20)].iter(), lag(0));
        meter.take(now + 4 * second, [told(1, 9, 120)].iter(), lag(0));
        assert_eq!(meter.of_stream(&[7; 16]).records_in, Some(50.0));
    }

    #[test]
    fn a_look_long_ago_says_nothing_about_now() {
        let (mut meter, now) = (Meter::default(), Instant::now());
        meter.take(now, [told(1, 5, 0)].iter(), lag(0));
        meter.take(now + 2 * STALE, [told(1, 5, 9_000_000)].iter(), lag(0));
        assert_eq!(meter.of_stream(&[7; 16]).records_in, None);
    }

    #[test]
    fn rates_are_those_of_the_last_seconds() {
        let (mut meter, now) = (Meter::default(), Instant::now());
        for second in 0..60 {
            let at = now + Duration::from_secs(second);
            let records = if second < 30 { second * 1000 } else { 30_000 };
            meter.take(at, [told(1, 5, records)].iter(), lag(0));
        }
        assert_eq!(meter.of_stream(&[7; 16]).records_in, Some(0.0));
        assert!(meter.looks.len() <= LOOKS);
    }
}
