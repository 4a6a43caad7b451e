//! What a broker tells a collector of OpenTelemetry over OTLP (gRPC): its metrics, the lines of its log, and
//! spans of batches whose producers have them traced.
//!
//! | module | what it is |
//! |---|---|
//! | `options` | where the collector is, and what it is told |
//! | `text` | metrics, from the text that `/metrics` serves |
//! | `lines` | lines of the log |
//! | `spans` | spans, and the context of a trace as records carry it |
//! | `queue` | what waits for the collector, bounded |
//! | `exporter` | the one task that sends |
//!
//! Nothing here holds anybody up: what the collector does not take in time is dropped, counted, and the log says
//! so once.
//!
//! ```
//! use kera_telemetry::{Options, Telemetry};
//!
//! let options = Options {
//!     endpoint: "http://127.0.0.1:4317".to_owned(),
//!     ..Options::default()
//! };
//! let telemetry = Telemetry::new(options);
//! assert!(telemetry.spans().is_some(), "all three signals, unless some are left out");
//! ```
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod exporter;
mod lines;
mod options;
mod queue;
mod spans;
mod text;

use std::sync::Arc;
use std::time::SystemTime;

pub use exporter::Exporter;
pub use lines::Lines;
pub use options::{Options, Signal, WrongHeaders, headers_of};
pub use spans::{Span, SpanKind, Spans, TraceContext, Value};

use opentelemetry_proto::tonic::logs::v1::LogRecord;
use queue::Queue;

/// Lines that wait for the collector at most; each is at most [`lines::MOST_BYTES`] long.
const MOST_LINES: usize = 2048;

/// What is told to one collector. Clones tell the same one.
#[derive(Clone)]
pub struct Telemetry {
    options: Arc<Options>,
    lines: Option<Arc<Queue<LogRecord>>>,
    spans: Option<Arc<Spans>>,
    /// When counting began, nanoseconds since 1970.
    began: u64,
}

impl Telemetry {
    /// Nothing is sent before [`Self::start`]; until then lines and spans wait.
    pub fn new(options: Options) -> Self {
        let has = |signal| options.signals.contains(&signal);
        Self {
            lines: has(Signal::Logs).then(|| Arc::new(Queue::new(MOST_LINES))),
            spans: has(Signal::Traces).then(|| Arc::new(Spans::new(options.traces_per_second))),
            options: Arc::new(options),
            began: now(),
        }
    }

    /// Where lines of the log go, a layer of a `tracing` subscriber; none if logs are not told.
    pub fn lines(&self) -> Option<Lines> {
        self.lines.clone().map(Lines::new)
    }

    /// Where spans go; none if traces are not told.
    pub fn spans(&self) -> Option<Arc<Spans>> {
        self.spans.clone()
    }

    /// What was dropped because the collector did not take it: for each signal its name and a number.
    pub fn dropped(&self) -> Vec<(&'static str, u64)> {
        let lines = self.lines.iter().map(|queue| ("logs", queue.dropped()));
        let spans = self.spans.iter().map(|spans| ("traces", spans.dropped()));
        lines.chain(spans).collect()
    }

    /// Begins to send, on the current runtime. `resource` is who tells: attributes such as `service.name`. `metrics` is
    /// asked for what `/metrics` tells, each time that the collector is told.
    pub fn start(
        &self,
        resource: Vec<(&'static str, String)>,
        metrics: impl Fn() -> String + Send + Sync + 'static,
    ) -> Exporter {
        Exporter::start(self.clone(), resource, Arc::new(metrics))
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}
