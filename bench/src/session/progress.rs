//! How far a session is.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::scenario::{Case, Work};

/// A bar with an estimate over all files on a terminal; lines elsewhere.
///
/// Runs take from a second to a minute, so the bar counts the time that they are about to take, and
/// the runs beside it.
pub(super) struct Progress {
    bar: ProgressBar,
    runs: u64,
    done: AtomicU64,
}

impl Progress {
    /// For all cases of a session, each run by every contender so often as `repetitions` tells.
    pub(super) fn new(cases: &[&Case], repetitions: impl Fn(&Case) -> u32) -> Self {
        let (mut time, mut runs) = (0, 0);
        for case in cases {
            let turns = case.able().count() as u64 * u64::from(repetitions(case));
            runs += turns;
            time += turns * expected(case);
        }
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::new(time)
        } else {
            ProgressBar::hidden()
        };
        let style =
            "{bar:24} {percent:>3} %, {prefix}, {elapsed} gone, about {eta} to go: {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.set_prefix(format!("0 of {runs} runs"));
        bar.enable_steady_tick(Duration::from_millis(500));
        Self {
            bar,
            runs,
            done: AtomicU64::new(0),
        }
    }

    /// A file begins.
    pub(super) fn file(&self, turn: usize, files: usize, title: &str) {
        if files > 1 {
            self.say(format!("file {turn} of {files}: {title}"));
        }
    }

    /// What is being done.
    pub(super) fn doing(&self, what: String) {
        self.bar.set_message(what);
    }

    /// A run of `case` is over.
    pub(super) fn one_done(&self, case: &Case) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        self.bar.set_prefix(format!("{done} of {} runs", self.runs));
        self.bar.inc(expected(case));
    }

    /// Something that is to stay on the screen.
    pub(super) fn say(&self, what: String) {
        self.bar.suspend(|| eprintln!("{what}"));
    }

    /// A result, for standard output.
    pub(super) fn print(&self, what: &str) {
        self.bar.suspend(|| print!("{what}"));
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// About how many milliseconds a run takes, start and end included. Only the proportions matter.
fn expected(case: &Case) -> u64 {
    const AROUND: u64 = 1_000;
    // What most clients manage in a millisecond.
    const RECORDS: u64 = 800;
    AROUND
        + match (case.work, case.rate) {
            (Work::Start, _) => case.idle_ms.unwrap_or(0) * 5 / 4 + 2_000,
            (_, _) if case.crowd.millis.is_some() => case.crowd.millis.unwrap_or(0),
            (_, Some(rate)) => case.records * 1_000 / rate.max(1),
            (_, None) => case.records / RECORDS,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Cases, File};

    #[test]
    fn long_runs_weigh_more() {
        let text = r#"
title = "T"
command = "make t"
repetitions = 2
[[scenario]]
name = "produce"
work = "produce"
contenders = ["kera"]
records = 8_000_000
keys = "none"
batch = ["16KiB"]
linger_ms = [5]
partitions = [1]
[[scenario]]
name = "latency"
work = "latency"
contenders = ["kera", "kafka"]
keys = "none"
batch = ["16KiB"]
linger_ms = [5]
partitions = [1]
rate = [1000]
seconds = 4
"#;
        let cases = Cases::of(&File::parse(text).expect("a file"), 1);
        let all: Vec<&Case> = cases.0.iter().collect();
        assert_eq!((expected(all[0]), expected(all[1])), (11_000, 5_000));
        let progress = Progress::new(&all, |_| 2);
        assert_eq!(progress.runs, 6);
        for case in [all[0], all[0], all[1], all[1], all[1], all[1]] {
            progress.one_done(case);
        }
        assert_eq!(progress.bar.position(), 42_000);
        assert_eq!(progress.bar.prefix(), "6 of 6 runs");
    }
}
