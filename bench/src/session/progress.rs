//! How far a session is.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar with an estimate on a terminal; lines elsewhere.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub fn new(runs: u64) -> Self {
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::new(runs)
        } else {
            ProgressBar::hidden()
        };
        let style = "{bar:24} {pos}/{len} runs, {elapsed} gone, about {eta} to go: {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { bar }
    }

    /// What is being done.
    pub fn doing(&self, what: String) {
        self.bar.set_message(what);
    }

    pub fn one_done(&self) {
        self.bar.inc(1);
    }

    /// Something that is to stay on the screen.
    pub fn say(&self, what: String) {
        self.bar.suspend(|| eprintln!("{what}"));
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
