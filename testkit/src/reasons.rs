//! Why a run in a process of its own failed, said so briefly that it survives a log that is cut off.

use std::any::Any;
use std::panic;
use std::process::Output;
use std::sync::{Mutex, Once, PoisonError};

/// What each line begins with by which a run's process says why it failed.
const MARK: &str = "REASON: ";
/// Panics of a process that are remembered; the first is the cause of the others.
const KEPT: usize = 6;
/// Characters of a reason that are shown.
const LONGEST: usize = 600;

static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Remembers every panic of this process from now on.
pub fn remember() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let place = info.location().map(ToString::to_string);
            note(&place.unwrap_or_default(), &message(info.payload()));
            before(info);
        }));
    });
}

fn note(place: &str, message: &str) {
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if seen.len() < KEPT {
        // What stands at the beginning says what it is.
        let first: String = message.chars().take(LONGEST).collect();
        seen.push(format!("{place}: {}", first.replace('\n', " | ")));
    }
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without words".to_owned())
}

/// Says them, as the last that this process writes.
pub fn tell() {
    let seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    for reason in seen.iter() {
        eprintln!("{MARK}{reason}");
    }
}

/// Why a run's process failed, in few lines: what it said itself, or how it ended and its last words.
pub fn of(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    let told: Vec<&str> = errors
        .lines()
        .filter_map(|line| line.strip_prefix(MARK))
        .collect();
    if !told.is_empty() {
        return told.join("\n");
    }
    let lines: Vec<&str> = errors.lines().collect();
    let last = &lines[lines.len().saturating_sub(8)..];
    format!("it ended with {}: {}", output.status, last.join(" | "))
}
