//! What the demo shows while it runs: bars and a table on a terminal, plain lines elsewhere.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tokio::sync::Notify;

use super::data::carrier_name;
use crate::failure::Failure;
use crate::output::{Table, count, per_second};

/// How often a terminal is repainted.
const REPAINT: Duration = Duration::from_millis(100);
/// How often a line is written elsewhere.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// Carriers shown.
const CARRIERS: usize = 8;

/// What is known so far; written by producers and consumers.
#[derive(Default)]
pub(super) struct Progress {
    /// Records handed to producers.
    pub(super) sent: AtomicU64,
    /// Records acknowledged.
    pub(super) acknowledged: AtomicU64,
    /// Records processed, each counted once.
    pub(super) processed: AtomicU64,
    /// Records handed out again, as after a crash between work and commit.
    pub(super) again: AtomicU64,
    /// Consumers at work.
    pub(super) consumers: AtomicUsize,
    /// The longest lag seen.
    pub(super) longest_lag: AtomicU64,
    /// Rung at each acknowledgement.
    pub(super) acknowledgement: Notify,
    delays: Mutex<BTreeMap<String, Delays>>,
    trouble: Mutex<Option<Failure>>,
}

/// The flights of a carrier.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delays {
    /// All flights.
    pub(super) flights: u64,
    /// Those that arrived.
    pub(super) arrived: u64,
    /// The sum of their delays, in minutes.
    pub(super) minutes: i64,
}

impl Progress {
    /// Acknowledged and not processed yet.
    pub(super) fn lag(&self) -> u64 {
        self.acknowledged
            .load(Relaxed)
            .saturating_sub(self.processed.load(Relaxed))
    }

    /// Notes why the demo cannot go on; the first reason counts.
    pub(super) fn fail(&self, failure: Failure) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.get_or_insert(failure);
        self.acknowledgement.notify_waiters();
    }

    /// Why the demo cannot go on, if it cannot.
    pub(super) fn trouble(&self) -> Result<(), Failure> {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.take().map_or(Ok(()), Err)
    }

    /// Adds what a consumer computed from a batch.
    pub(super) fn add_delays<'a>(&self, batch: impl IntoIterator<Item = (&'a str, Delays)>) {
        // Poisoned only if a thread panicked here, where nothing does.
        let mut delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner);
        for (carrier, more) in batch {
            let sum = match delays.get_mut(carrier) {
                Some(sum) => sum,
                None => delays.entry(carrier.to_owned()).or_default(),
            };
            sum.flights += more.flights;
            sum.arrived += more.arrived;
            sum.minutes += more.minutes;
        }
    }

    /// The table computed from the stream: delay by carrier, the most flights first.
    pub(super) fn table(&self) -> String {
        let delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rows: Vec<(&String, &Delays)> = delays.iter().collect();
        rows.sort_by_key(|(code, delays)| (std::cmp::Reverse(delays.flights), code.as_str()));
        let mut table = Table::new(&["carrier", "", ">flights", ">mean delay"]);
        for (code, delays) in rows.into_iter().take(CARRIERS) {
            let mean = delays.minutes as f64 / delays.arrived.max(1) as f64;
            table.row([
                code.clone(),
                carrier_name(code).to_owned(),
                count(delays.flights),
                format!("{mean:+.1} min"),
            ]);
        }
        table.render()
    }
}

/// Shows [`Progress`].
pub(super) struct View {
    records: u64,
    begin: Instant,
    terminal: Option<Terminal>,
}

struct Terminal {
    bars: MultiProgress,
    acknowledged: ProgressBar,
    processed: ProgressBar,
    lag: ProgressBar,
    table: ProgressBar,
}

impl View {
    /// A view of so many records.
    pub(super) fn new(records: u64) -> Self {
        let terminal = std::io::stderr()
            .is_terminal()
            .then(|| Terminal::new(records));
        Self {
            records,
            begin: Instant::now(),
            terminal,
        }
    }

    /// Seconds since the demo began.
    pub(super) fn seconds(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    /// Says something that stays on the screen.
    pub(super) fn say(&self, text: &str) {
        match &self.terminal {
            Some(terminal) => {
                // A terminal that cannot be written to has nobody before it.
                let _ = terminal.bars.println(text);
            }
            None => eprintln!("{text}"),
        }
    }

    /// Shows progress for as long as it is polled.
    pub(super) async fn run(&self, progress: &Progress) {
        let mut ticks = tokio::time::interval(match self.terminal {
            Some(_) => REPAINT,
            None => LINE_EVERY,
        });
        loop {
            ticks.tick().await;
            self.show(progress);
        }
    }

    /// Shows progress once.
    pub(super) fn show(&self, progress: &Progress) {
        let acknowledged = progress.acknowledged.load(Relaxed);
        let processed = progress.processed.load(Relaxed);
        let lag = progress.lag();
        progress.longest_lag.fetch_max(lag, Relaxed);
        let consumers = progress.consumers.load(Relaxed);
        match &self.terminal {
            Some(terminal) => {
                for (bar, done) in [
                    (&terminal.acknowledged, acknowledged),
                    (&terminal.processed, processed),
                ] {
                    bar.set_position(done);
                    bar.set_message(format!(
                        "{}/s",
                        count(per_second(done, self.begin.elapsed()))
                    ));
                }
                terminal.lag.set_position(lag);
                terminal.lag.set_message(format!(
                    "{} behind, {consumers} consumer{} on one lane",
                    count(lag),
                    if consumers == 1 { "" } else { "s" }
                ));
                terminal.table.set_message(progress.table());
            }
            None => eprintln!(
                "{:5.1} s  {:>9} of {} acknowledged  {:>9} processed  {:>9} behind  {consumers} consumers",
                self.seconds(),
                count(acknowledged),
                count(self.records),
                count(processed),
                count(lag),
            ),
        }
    }

    /// Takes the bars away; what was said stays.
    pub(super) fn finish(&self, progress: &Progress) {
        match &self.terminal {
            Some(terminal) => {
                self.show(progress);
                for bar in [&terminal.acknowledged, &terminal.processed, &terminal.lag] {
                    bar.abandon();
                }
                terminal.table.finish_and_clear();
            }
            None => self.show(progress),
        }
    }
}

impl Terminal {
    fn new(records: u64) -> Self {
        let bars = MultiProgress::new();
        let style = |template: &str| {
            ProgressStyle::with_template(template)
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .progress_chars("=> ")
        };
        let add = |length: u64, template: &str, prefix: &'static str| {
            let bar = bars.add(ProgressBar::new(length));
            bar.set_style(style(template));
            bar.set_prefix(prefix);
            bar
        };
        let bar = "{prefix:>12} [{bar:40.green}] {human_pos}/{human_len} {msg}";
        Self {
            acknowledged: add(records, bar, "acknowledged"),
            processed: add(records, bar, "processed"),
            lag: add(records / 8, "{prefix:>12} [{bar:40.yellow}] {msg}", "lag"),
            table: add(0, "\n{msg}", ""),
            bars,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_adds_up() {
        let progress = Progress::default();
        let one = Delays {
            flights: 2,
            arrived: 1,
            minutes: 10,
        };
        progress.add_delays([
            ("UA", one),
            (
                "B6",
                Delays {
                    flights: 1,
                    arrived: 1,
                    minutes: -4,
                },
            ),
        ]);
        progress.add_delays([(
            "UA",
            Delays {
                flights: 1,
                arrived: 1,
                minutes: 20,
            },
        )]);
        let table = progress.table();
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[1].starts_with("UA"), "{table}");
        assert!(lines[1].ends_with("3   +15.0 min"), "{table}");
        assert!(lines[2].ends_with("1    -4.0 min"), "{table}");
    }

    #[test]
    fn lag_never_goes_below_nothing() {
        let progress = Progress::default();
        progress.processed.store(5, Relaxed);
        assert_eq!(progress.lag(), 0);
        progress.acknowledged.store(9, Relaxed);
        assert_eq!(progress.lag(), 4);
    }
}
