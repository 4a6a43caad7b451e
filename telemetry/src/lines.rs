//! Lines of the log, as a layer of a `tracing` subscriber takes them.

use std::fmt::{Debug, Write as _};
use std::sync::Arc;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, SeverityNumber};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::exporter::attribute;
use crate::queue::Queue;

/// The most bytes of a line, its fields included; the rest is cut off.
pub(crate) const MOST_BYTES: usize = 4096;

/// What sending itself writes about: lines about it would make more lines.
const OF_SENDING: [&str; 6] = ["h2", "hyper", "hyper_util", "tonic", "tower", "rustls"];

/// Takes the lines that a subscriber's filter lets through. Never waits.
pub struct Lines {
    queue: Arc<Queue<LogRecord>>,
}

impl Lines {
    pub(crate) fn new(queue: Arc<Queue<LogRecord>>) -> Self {
        Self { queue }
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let of = metadata.target().split("::").next();
        if of.is_some_and(|of| OF_SENDING.contains(&of)) {
            return;
        }
        let mut line = Line {
            text: String::new(),
            attributes: vec![attribute("code.namespace", metadata.target().to_owned())],
            left: MOST_BYTES,
        };
        event.record(&mut line);
        let now = crate::now();
        self.queue.push(LogRecord {
            time_unix_nano: now,
            observed_time_unix_nano: now,
            severity_number: severity(*metadata.level()) as i32,
            severity_text: metadata.level().to_string(),
            body: Some(AnyValue {
                value: Some(Value::StringValue(line.text)),
            }),
            attributes: line.attributes,
            ..LogRecord::default()
        });
    }
}

fn severity(level: Level) -> SeverityNumber {
    match level {
        Level::ERROR => SeverityNumber::Error,
        Level::WARN => SeverityNumber::Warn,
        Level::INFO => SeverityNumber::Info,
        Level::DEBUG => SeverityNumber::Debug,
        Level::TRACE => SeverityNumber::Trace,
    }
}

/// A line as its event tells its fields.
struct Line {
    text: String,
    attributes: Vec<KeyValue>,
    /// Bytes that it may still have.
    left: usize,
}

impl Line {
    fn note(&mut self, field: &Field, mut text: String) {
        if text.len() > self.left {
            text.truncate(text.floor_char_boundary(self.left));
            text.shrink_to_fit();
        }
        self.left -= text.len();
        if field.name() == "message" {
            self.text = text;
        } else if self.left > 0 {
            self.attributes.push(attribute(field.name(), text));
        }
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.note(field, value.to_owned());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.attributes.push(KeyValue {
            key: field.name().to_owned(),
            value: Some(AnyValue {
                value: Some(Value::IntValue(value)),
            }),
            ..KeyValue::default()
        });
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match i64::try_from(value) {
            Ok(value) => self.record_i64(field, value),
            Err(_) => self.note(field, value.to_string()),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        // A value that cannot be written is told as far as it was.
        let _ = write!(text, "{value:?}");
        self.note(field, text);
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    fn lines_of(log: impl FnOnce()) -> Vec<LogRecord> {
        let queue = Arc::new(Queue::new(8));
        let subscriber = tracing_subscriber::registry().with(Lines::new(queue.clone()));
        tracing::subscriber::with_default(subscriber, log);
        queue.take()
    }

    fn body(line: &LogRecord) -> &str {
        match line.body.as_ref().and_then(|body| body.value.as_ref()) {
            Some(Value::StringValue(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_line_keeps_its_text_its_fields_and_how_severe_it_is() {
        let lines = lines_of(|| tracing::warn!(address = %"a:1", streams = 3, "serving {}", "now"));
        let [line] = &lines[..] else {
            panic!("{lines:?}");
        };
        assert_eq!(body(line), "serving now");
        assert_eq!(
            (line.severity_number, line.severity_text.as_str()),
            (SeverityNumber::Warn as i32, "WARN")
        );
        let named = |name: &str| {
            let found = line.attributes.iter().find(|a| a.key == name);
            found.and_then(|a| a.value.clone()?.value)
        };
        assert_eq!(named("address"), Some(Value::StringValue("a:1".to_owned())));
        assert_eq!(named("streams"), Some(Value::IntValue(3)));
        assert!(line.time_unix_nano > 0);
    }

    #[test]
    fn a_long_line_is_cut_and_lines_about_sending_are_left_out() {
        let lines = lines_of(|| {
            tracing::info!(target: "h2::client", "of the connection");
            tracing::info!(more = "x", "{}", "ä".repeat(MOST_BYTES));
        });
        assert_eq!(lines.len(), 1);
        assert_eq!(body(&lines[0]).len(), MOST_BYTES);
    }
}
