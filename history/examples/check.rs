//! Judges a history file: `cargo run -p kera-history --example check -- FILE [--complete] [--json]`.
//!
//! For a file that a failed test left behind.

use std::process::ExitCode;

use kera_history::{Expectations, History, check};

fn main() -> ExitCode {
    let (flags, files): (Vec<_>, Vec<_>) = std::env::args()
        .skip(1)
        .partition(|argument| argument.starts_with("--"));
    let [file] = &files[..] else {
        eprintln!("usage: check FILE [--complete] [--json]");
        return ExitCode::from(2);
    };
    let expectations = Expectations {
        complete: flags.iter().any(|flag| flag == "--complete"),
        ..Expectations::default()
    };
    let report = match History::open(file).and_then(|history| check(&history, &expectations)) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    if flags.iter().any(|flag| flag == "--json") {
        // The report holds only numbers, strings and lists, which always are JSON.
        println!("{}", report.to_json().unwrap_or_default());
    } else {
        print!("{report}");
    }
    ExitCode::from(u8::from(!report.is_clean()))
}
