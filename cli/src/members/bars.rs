//! Bars that show how far something has come, where a terminal shows them.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::say;

/// How often it shows that something still goes on.
const TICK: Duration = Duration::from_secs(1);

/// A bar over streamlets or groups that move.
pub(crate) fn progress(moves: u64) -> ProgressBar {
    bar(moves, "[{bar:40.green}] {pos}/{len} {msg}")
}

/// A bar over bytes that come.
pub(crate) fn progress_bytes() -> ProgressBar {
    bar(
        0,
        "[{bar:40.green}] {binary_bytes}/{binary_total_bytes} {msg}, {eta} left",
    )
}

/// Something that goes on for nobody knows how long: on a terminal for how long it has, elsewhere once what it is.
pub(crate) fn working(what: String) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        say(&what);
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner:.green} {elapsed} {wide_msg}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
    let bar = ProgressBar::new_spinner()
        .with_style(style)
        .with_message(what);
    bar.tick();
    bar.enable_steady_tick(TICK);
    bar
}

fn bar(length: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style.progress_chars("=> "))
}
