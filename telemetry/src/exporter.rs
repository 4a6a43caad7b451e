//! The one task that sends.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::metrics::v1::{Metric, ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tonic::metadata::{MetadataKey, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};

use crate::Telemetry;
use crate::options::{Options, Signal};
use crate::queue::Queue;
use crate::text::{self, metrics_of};

/// A collector that has not answered by then is asked again.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Lines and spans wait at most this long for others.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// Calls of a signal one after the other before others have their turn: as many as a full queue takes, and what waits to be repeated.
const MOST_CALLS: usize = 10;
/// Characters of a collector's message in the log.
const MOST_TOLD: usize = 200;
/// How long after a call that came to nothing the next one is made; it doubles up to the second.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Sends until it is told to finish.
pub struct Exporter {
    end: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Exporter {
    pub(crate) fn start(
        telemetry: Telemetry,
        resource: Vec<(&'static str, String)>,
        metrics: Arc<dyn Fn() -> String + Send + Sync>,
    ) -> Self {
        let (end, mut ended) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut sender = match Sender::new(&telemetry.options, resource) {
                Ok(sender) => sender,
                Err(problem) => {
                    tracing::error!(
                        "{problem}; nothing is told to a collector until the broker is started again"
                    );
                    return;
                }
            };
            let signals = &telemetry.options.signals;
            let tells_metrics = signals.contains(&Signal::Metrics);
            let mut due = tokio::time::interval(telemetry.options.interval);
            let mut flush = tokio::time::interval(FLUSH_INTERVAL);
            for timer in [&mut due, &mut flush] {
                timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
            }
            let spans = telemetry.spans.as_deref().map(|spans| &spans.queue);
            let lines = telemetry.lines.as_deref();
            loop {
                let mut is_last = false;
                let mut with_metrics = false;
                tokio::select! {
                    _ = due.tick(), if tells_metrics => with_metrics = true,
                    _ = flush.tick() => {}
                    () = many(lines) => {}
                    () = many(spans) => {}
                    // Also when the exporter was dropped.
                    _ = ended.wait_for(|end| *end) => is_last = true,
                }
                // What would be lost comes first: the next metrics tell what these would have.
                if let Some(lines) = lines {
                    sender.empty(lines, is_last).await;
                }
                if let Some(spans) = spans {
                    sender.empty(spans, is_last).await;
                }
                if tells_metrics && (with_metrics || is_last) {
                    let (metrics, began) = (metrics.clone(), telemetry.began);
                    // They ask disks, and all lanes.
                    let told = tokio::task::spawn_blocking(move || {
                        let now = crate::now();
                        metrics_of(&metrics(), text::Span { began, now })
                    });
                    // If that panicked, it has said so.
                    if let Ok(told) = told.await {
                        sender.metrics(told).await;
                    }
                }
                if is_last {
                    return;
                }
            }
        });
        Self { end, task }
    }

    /// Sends what waits, and ends; what was not sent within that time is not sent.
    pub async fn finish(self, within: Duration) {
        self.end.send_replace(true);
        let mut task = self.task;
        if tokio::time::timeout(within, &mut task).await.is_err() {
            task.abort();
            // Then it holds nothing of the broker any more.
            let _ = task.await;
        }
    }
}

async fn many<T>(queue: Option<&Queue<T>>) {
    match queue {
        Some(queue) => queue.many().await,
        None => std::future::pending().await,
    }
}

/// The connection, and what is being sent.
struct Sender {
    channel: Channel,
    headers: Vec<(
        MetadataKey<tonic::metadata::Ascii>,
        MetadataValue<tonic::metadata::Ascii>,
    )>,
    resource: Resource,
    endpoint: String,
    lines: Unsent<LogRecord>,
    spans: Unsent<Span>,
    /// The signals that the collector did not take the last time.
    refused: Vec<Signal>,
}

/// What was taken from a queue and not taken by the collector yet.
struct Unsent<T> {
    items: Vec<T>,
    /// Not before then, after a call that came to nothing.
    not_before: Option<Instant>,
    pause: Duration,
}

impl<T: Clone> Unsent<T> {
    fn new() -> Self {
        Self {
            items: Vec::new(),
            not_before: None,
            pause: PAUSE.0,
        }
    }

    /// What is sent now; none if there is nothing, or it is too early.
    fn next(&mut self, queue: &Queue<T>, is_last: bool) -> Option<Vec<T>> {
        let waits = self.not_before.is_some_and(|at| at > Instant::now());
        if waits && !is_last {
            return None;
        }
        if self.items.is_empty() {
            self.items = queue.take();
        }
        (!self.items.is_empty()).then(|| self.items.clone())
    }

    /// What became of it.
    fn told(&mut self, result: &Result<u64, Status>, queue: &Queue<T>) {
        let lost = match result {
            Ok(rejected) => (*rejected as usize).min(self.items.len()),
            Err(status) if may_be_repeated(status) => {
                self.not_before = Some(Instant::now() + self.pause);
                self.pause = (2 * self.pause).min(PAUSE.1);
                return;
            }
            Err(_) => self.items.len(),
        };
        queue.drop_some(lost);
        *self = Self::new();
    }
}

/// What waits in a queue to be sent.
trait Queued: Clone + Send {
    const SIGNAL: Signal;

    fn unsent(sender: &mut Sender) -> &mut Unsent<Self>;

    /// How many of them the collector rejected.
    fn send(sender: &Sender, items: Vec<Self>) -> impl Future<Output = Result<u64, Status>> + Send;
}

impl Queued for LogRecord {
    const SIGNAL: Signal = Signal::Logs;

    fn unsent(sender: &mut Sender) -> &mut Unsent<Self> {
        &mut sender.lines
    }

    async fn send(sender: &Sender, log_records: Vec<Self>) -> Result<u64, Status> {
        let message = ExportLogsServiceRequest {
            resource_logs: vec![ResourceLogs {
                resource: Some(sender.resource.clone()),
                scope_logs: vec![ScopeLogs {
                    scope: Some(scope()),
                    log_records,
                    ..ScopeLogs::default()
                }],
                ..ResourceLogs::default()
            }],
        };
        let mut client = LogsServiceClient::new(sender.channel.clone());
        let answer = client.export(sender.request(message)).await?;
        let part = answer.into_inner().partial_success;
        Ok(part.map_or(0, |part| part.rejected_log_records.max(0) as u64))
    }
}

impl Queued for Span {
    const SIGNAL: Signal = Signal::Traces;

    fn unsent(sender: &mut Sender) -> &mut Unsent<Self> {
        &mut sender.spans
    }

    async fn send(sender: &Sender, spans: Vec<Self>) -> Result<u64, Status> {
        let message = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(sender.resource.clone()),
                scope_spans: vec![ScopeSpans {
                    scope: Some(scope()),
                    spans,
                    ..ScopeSpans::default()
                }],
                ..ResourceSpans::default()
            }],
        };
        let mut client = TraceServiceClient::new(sender.channel.clone());
        let answer = client.export(sender.request(message)).await?;
        let part = answer.into_inner().partial_success;
        Ok(part.map_or(0, |part| part.rejected_spans.max(0) as u64))
    }
}

/// As OTLP's specification has it.
fn may_be_repeated(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
            | Code::ResourceExhausted
    )
}

impl Sender {
    fn new(options: &Options, resource: Vec<(&str, String)>) -> Result<Self, String> {
        let wrong = |what: String| format!("telemetry.endpoint {}: {what}", options.endpoint);
        let mut endpoint = Endpoint::from_shared(options.endpoint.clone())
            .map_err(|error| wrong(error.to_string()))?
            .connect_timeout(CALL_TIMEOUT)
            // The next call has another connection if the peer of this one is gone without a word.
            .http2_keep_alive_interval(CALL_TIMEOUT / 2)
            .keep_alive_timeout(CALL_TIMEOUT / 2)
            .timeout(CALL_TIMEOUT);
        if options.endpoint.starts_with("https:") {
            let mut tls = ClientTlsConfig::new().timeout(CALL_TIMEOUT);
            if let Some(ca) = &options.ca {
                tls = tls.ca_certificate(Certificate::from_pem(read(ca)?));
            }
            endpoint = endpoint
                .tls_config(tls)
                .map_err(|error| wrong(error.to_string()))?;
        }
        let headers = options.headers.iter().map(|(name, value)| {
            let name = MetadataKey::from_bytes(name.as_bytes());
            let value = value.parse().ok().map(|mut value: MetadataValue<_>| {
                value.set_sensitive(true);
                value
            });
            name.ok()
                .zip(value)
                .ok_or_else(|| "telemetry.headers_file has what is no header".to_owned())
        });
        let attributes = resource.into_iter();
        Ok(Self {
            channel: endpoint.connect_lazy(),
            headers: headers.collect::<Result<_, _>>()?,
            resource: Resource {
                attributes: attributes
                    .map(|(name, value)| attribute(name, value))
                    .collect(),
                ..Resource::default()
            },
            endpoint: options.endpoint.clone(),
            lines: Unsent::new(),
            spans: Unsent::new(),
            refused: Vec::new(),
        })
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        for (name, value) in &self.headers {
            request.metadata_mut().insert(name.clone(), value.clone());
        }
        request
    }

    /// The next ones are told anyway, and count from the same begin: nothing is sent again.
    async fn metrics(&mut self, metrics: Vec<Metric>) {
        let message = ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(self.resource.clone()),
                scope_metrics: vec![ScopeMetrics {
                    scope: Some(scope()),
                    metrics,
                    ..ScopeMetrics::default()
                }],
                ..ResourceMetrics::default()
            }],
        };
        let mut client = MetricsServiceClient::new(self.channel.clone());
        let answer = client.export(self.request(message)).await;
        let result = answer.map(|answer| {
            let part = answer.into_inner().partial_success;
            part.map_or(0, |part| part.rejected_data_points.max(0) as u64)
        });
        self.note(Signal::Metrics, &result);
    }

    /// Sends what waits in a queue, by the call of its signal.
    async fn empty<T: Queued>(&mut self, queue: &Queue<T>, is_last: bool) {
        for _ in 0..MOST_CALLS {
            let Some(items) = T::unsent(self).next(queue, is_last) else {
                return;
            };
            let result = T::send(self, items).await;
            T::unsent(self).told(&result, queue);
            self.note(T::SIGNAL, &result);
            // Also where it rejected some: what the log says of that is a line itself.
            if !matches!(result, Ok(0)) {
                return;
            }
        }
    }

    /// Says once that the collector does not take a signal, and once that it does again.
    fn note(&mut self, signal: Signal, result: &Result<u64, Status>) {
        let (name, endpoint) = (signal.name(), &self.endpoint);
        let problem = match result {
            Ok(0) => None,
            Ok(rejected) => Some(format!("it rejected {rejected} of them")),
            Err(status) => Some(reason(status)),
        };
        let was_refused = self.refused.contains(&signal);
        match problem {
            Some(problem) if !was_refused => {
                self.refused.push(signal);
                tracing::warn!(
                    "the collector at telemetry.endpoint {endpoint} does not take {name}: {problem}; trying on, and dropping the oldest where too many wait"
                );
            }
            None if was_refused => {
                self.refused.retain(|other| *other != signal);
                tracing::info!("the collector at telemetry.endpoint {endpoint} takes {name} again");
            }
            _ => {}
        }
    }
}

/// What a status tells, down to what lies below it.
fn reason(status: &Status) -> String {
    let mut text = format!("{}: {}", status.code(), told_by(status.message()));
    let mut below = std::error::Error::source(status);
    while let Some(error) = below {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        below = error.source();
    }
    text
}

/// What a collector says, so that it fits a line of the log and forges none.
fn told_by(message: &str) -> String {
    let mut text: String = message.escape_debug().take(MOST_TOLD + 1).collect();
    if text.chars().count() > MOST_TOLD {
        text.pop();
        text.push('…');
    }
    text
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("telemetry.ca {}: {error}", path.display()))
}

fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "kera".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}

/// An attribute that is text.
pub(crate) fn attribute(name: &str, text: impl Into<String>) -> KeyValue {
    attribute_of(name, Value::StringValue(text.into()))
}

pub(crate) fn attribute_of(name: &str, value: Value) -> KeyValue {
    KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}
