//! Bars that show how far something has come, where a terminal shows them.

use indicatif::{ProgressBar, ProgressStyle};

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

fn bar(length: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style.progress_chars("=> "))
}
