//! Spans, and the context of a trace as records carry it in their headers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::common::v1::any_value;
use opentelemetry_proto::tonic::trace::v1 as otlp;
use parking_lot::Mutex;

use crate::exporter::attribute_of;
use crate::queue::Queue;

/// Spans that wait for the collector at most.
const MOST_SPANS: usize = 4096;

/// Which trace something is part of, and below which of its spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    trace: [u8; 16],
    parent: [u8; 8],
}

impl TraceContext {
    /// The header of a record that carries it, by the recommendation "Trace Context" of the W3C.
    pub const HEADER: &'static str = "traceparent";

    /// Reads it from the value of a record's header; `None` if that is none, or its trace is not sampled.
    ///
    /// ```
    /// use kera_telemetry::TraceContext;
    ///
    /// let sampled = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    /// assert!(TraceContext::of(sampled).is_some());
    /// let not_sampled = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    /// assert!(TraceContext::of(not_sampled).is_none());
    /// ```
    pub fn of(value: &[u8]) -> Option<Self> {
        let (known, later) = value.split_at_checked(55)?;
        let part = |from: usize, bytes: &mut [u8]| {
            for (at, byte) in bytes.iter_mut().enumerate() {
                *byte = hex(known[from + 2 * at])? << 4 | hex(known[from + 2 * at + 1])?;
            }
            Some(())
        };
        let (mut version, mut flags) = ([0], [0]);
        let (mut trace, mut parent) = ([0; 16], [0; 8]);
        part(0, &mut version)?;
        part(3, &mut trace)?;
        part(36, &mut parent)?;
        part(53, &mut flags)?;
        let dashes = [2, 35, 52].iter().all(|at| known[*at] == b'-');
        // A later version may say more.
        let ends = match version[0] {
            0 => later.is_empty(),
            0xff => false,
            _ => later.first().is_none_or(|next| *next == b'-'),
        };
        let is_sampled = flags[0] & 1 == 1;
        let is_some = trace != [0; 16] && parent != [0; 8];
        (dashes && ends && is_sampled && is_some).then_some(Self { trace, parent })
    }
}

/// By the recommendation, in lower case.
fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// What a span is, seen from its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// A request that was served.
    Server,
    /// A part of that.
    Internal,
}

/// A value of a span's attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Text.
    Text(String),
    /// A number.
    Number(u64),
}

/// A span that has ended.
#[derive(Clone, Debug)]
pub struct Span {
    /// What it was about, such as `append orders`.
    pub name: String,
    /// What it is.
    pub kind: SpanKind,
    /// Which trace it is part of.
    pub context: TraceContext,
    /// How long it took; it ended now.
    pub took: Duration,
    /// What happened in it: a name, and how long after its begin.
    pub events: Vec<(&'static str, Duration)>,
    /// More about it.
    pub attributes: Vec<(&'static str, Value)>,
    /// Why it came to nothing, if it did.
    pub error: Option<String>,
}

/// Takes spans. Never waits.
pub struct Spans {
    pub(crate) queue: Queue<otlp::Span>,
    per_second: u32,
    left: Mutex<Left>,
    /// Of looks at what costs more to look at than a span.
    looks: Mutex<Left>,
    skipped: AtomicU64,
}

/// How many more may begin in the second that began then.
struct Left {
    since: Instant,
    spans: u32,
}

impl Left {
    fn of(spans: u32) -> Self {
        Self {
            since: Instant::now(),
            spans,
        }
    }

    fn takes_one(&mut self, per_second: u32) -> bool {
        if self.since.elapsed() >= Duration::from_secs(1) {
            *self = Self::of(per_second);
        }
        let may = self.spans > 0;
        self.spans = self.spans.saturating_sub(1);
        may
    }
}

impl Spans {
    pub(crate) fn new(per_second: u32) -> Self {
        Self {
            queue: Queue::new(MOST_SPANS),
            per_second,
            left: Mutex::new(Left::of(per_second)),
            looks: Mutex::new(Left::of(per_second)),
            skipped: AtomicU64::new(0),
        }
    }

    /// Whether one more may be made in this second. What may not is counted.
    pub fn may_begin(&self) -> bool {
        let may = self.left.lock().takes_one(self.per_second);
        if !may {
            self.skipped.fetch_add(1, Ordering::Relaxed);
        }
        may
    }

    /// Whether one more batch may be looked into, in this second, of those that cost much to look into. What may not is not
    /// counted: nobody knows whether it is traced.
    pub fn may_look(&self) -> bool {
        self.looks.lock().takes_one(self.per_second)
    }

    /// A span has ended.
    pub fn end(&self, span: Span) {
        let end = crate::now();
        let start = end.saturating_sub(span.took.as_nanos() as u64);
        let events = span
            .events
            .into_iter()
            .map(|(name, after)| otlp::span::Event {
                name: name.to_owned(),
                time_unix_nano: start + after.as_nanos() as u64,
                ..otlp::span::Event::default()
            });
        let attributes = span.attributes.into_iter().map(|(name, value)| {
            attribute_of(
                name,
                match value {
                    Value::Text(text) => any_value::Value::StringValue(text),
                    Value::Number(number) => any_value::Value::IntValue(number as i64),
                },
            )
        });
        let id = uuid::Uuid::new_v4();
        let kind = match span.kind {
            SpanKind::Server => otlp::span::SpanKind::Server,
            SpanKind::Internal => otlp::span::SpanKind::Internal,
        };
        self.queue.push(otlp::Span {
            trace_id: span.context.trace.to_vec(),
            parent_span_id: span.context.parent.to_vec(),
            span_id: id.as_bytes()[..8].to_vec(),
            // It is sampled, and its parent may be of another process.
            flags: 0x301,
            name: span.name,
            kind: kind as i32,
            start_time_unix_nano: start,
            end_time_unix_nano: end,
            attributes: attributes.collect(),
            events: events.collect(),
            status: span.error.map(|message| otlp::Status {
                message,
                code: otlp::status::StatusCode::Error as i32,
            }),
            ..otlp::Span::default()
        });
    }

    /// Spans that were not told: too many in a second, or the collector did not take them.
    pub(crate) fn dropped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed) + self.queue.dropped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_context_is_what_the_recommendation_says() {
        let context = TraceContext::of(SAMPLED.as_bytes()).expect("sampled");
        assert_eq!(context.trace[..2], [0x0a, 0xf7]);
        assert_eq!(context.parent[7], 0x31);
        let later = SAMPLED.replacen("00", "01", 1);
        assert!(TraceContext::of(later.as_bytes()).is_some());
        assert!(TraceContext::of(format!("{later}-more").as_bytes()).is_some());
        for wrong in [
            String::new(),
            SAMPLED[..54].to_owned(),
            format!("{SAMPLED}-more"),
            format!("{later}more"),
            SAMPLED.replacen("00", "ff", 1),
            SAMPLED.to_uppercase(),
            SAMPLED.replace('-', "_"),
            SAMPLED.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            SAMPLED.replace("b7ad6b7169203331", &"0".repeat(16)),
            SAMPLED.replace("-01", "-02"),
        ] {
            assert_eq!(TraceContext::of(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn a_second_has_only_so_many_spans_and_the_others_are_counted() {
        let spans = Spans::new(2);
        // However busy the machine is, only a whole second later there are more.
        let may = [spans.may_begin(), spans.may_begin()];
        assert_eq!(may, [true, true]);
        spans.left.lock().since = Instant::now() + Duration::from_secs(3600);
        assert!(!spans.may_begin());
        assert_eq!(spans.dropped(), 1);
    }

    #[test]
    fn a_span_that_ends_is_told_with_what_happened_in_it() {
        let spans = Spans::new(2);
        spans.end(Span {
            name: "append orders".to_owned(),
            kind: SpanKind::Server,
            context: TraceContext::of(SAMPLED.as_bytes()).expect("sampled"),
            took: Duration::from_millis(5),
            events: vec![("placed", Duration::from_millis(2))],
            attributes: vec![("kera.lane", Value::Number(3))],
            error: Some("no".to_owned()),
        });
        let told = spans.queue.take().remove(0);
        assert_eq!(
            told.end_time_unix_nano - told.start_time_unix_nano,
            5_000_000
        );
        let event = &told.events[0];
        assert_eq!(event.time_unix_nano - told.start_time_unix_nano, 2_000_000);
        assert_eq!(told.parent_span_id.len(), 8);
        assert_eq!(told.span_id.len(), 8);
        assert_eq!(told.status.expect("a status").message, "no");
    }
}
