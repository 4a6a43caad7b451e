//! What the clients tell in their log goes to Python's logger `kera`: warnings, such as that of a broker that does not
//! answer, and batches that are skipped.

use std::collections::VecDeque;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once};

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// Lines that wait for a thread of Python; later ones are dropped.
const MOST_LINES: usize = 1_000;

/// A thread of the runtime must not wait for the interpreter: whoever holds it may wait for that thread.
static LINES: Mutex<VecDeque<(Level, String)>> = Mutex::new(VecDeque::new());
static WAITING: AtomicBool = AtomicBool::new(false);

/// Keeps what is told from now on.
pub(crate) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // This library has the only tracing of its own.
        let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Lines));
    });
}

/// Hands over what was told meanwhile.
#[inline]
pub(crate) fn pass_on(py: Python<'_>) -> PyResult<()> {
    if WAITING.load(Ordering::Relaxed) {
        return pass_on_lines(py);
    }
    Ok(())
}

#[cold]
fn pass_on_lines(py: Python<'_>) -> PyResult<()> {
    WAITING.store(false, Ordering::Relaxed);
    let lines = match LINES.try_lock() {
        Ok(mut lines) => std::mem::take(&mut *lines),
        Err(_) => {
            // Held for a moment by a thread of the runtime, or for ever in a child.
            WAITING.store(true, Ordering::Relaxed);
            return Ok(());
        }
    };
    for (level, line) in lines {
        match log(py, level, &line) {
            // A logger that fails must not fail what it is told about.
            Err(error) if error.is_instance_of::<PyException>(py) => {
                error.write_unraisable(py, None)
            }
            // A signal's handler ran within it.
            Err(error) => return Err(error),
            Ok(()) => {}
        }
    }
    Ok(())
}

fn log(py: Python<'_>, level: Level, line: &str) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", ("kera",))?;
    let method = if level == Level::ERROR {
        "error"
    } else {
        "warning"
    };
    logger.call_method1(method, ("%s", line))?;
    Ok(())
}

struct Lines;

impl<S: Subscriber> Layer<S> for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>, _context: Context<'_, S>) -> bool {
        *metadata.level() <= Level::WARN
            && metadata
                .target()
                .trim_start_matches('_')
                .starts_with("kera")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        // A line less is better than a thread that waits for ever: in a child the lock may be held by nobody who is there.
        let Ok(mut lines) = LINES.try_lock() else {
            return;
        };
        if lines.len() < MOST_LINES {
            lines.push_back((*event.metadata().level(), line.message + &line.fields));
            WAITING.store(true, Ordering::Relaxed);
        }
    }
}

/// An event as text: `message name=value name=value`.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // A string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
