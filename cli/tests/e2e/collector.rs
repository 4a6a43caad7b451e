//! A collector of OpenTelemetry, as brokers see one: it keeps what it is told, or does not take it.

use std::net::TcpListener;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{
    LogsService, LogsServiceServer,
};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::runtime::Runtime;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

use crate::common::PATIENCE;

/// What it does with a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    Takes,
    /// It says no, and that asking again is of no use.
    Forbids,
    /// It never answers.
    Holds,
}

/// What it was told.
#[derive(Default)]
pub(crate) struct Told {
    /// Of the last call that had some.
    pub(crate) metrics: Vec<Metric>,
    pub(crate) lines: Vec<LogRecord>,
    pub(crate) spans: Vec<Span>,
    pub(crate) resources: Vec<Resource>,
    /// The header `api-key` of each call.
    pub(crate) keys: Vec<Option<String>>,
    /// Calls that it does not answer.
    pub(crate) held: usize,
}

struct Heard {
    told: Mutex<Told>,
    changed: Condvar,
    manner: Mutex<Manner>,
}

pub(crate) struct Collector {
    heard: Arc<Heard>,
    /// HOST:PORT.
    pub(crate) address: String,
    _runtime: Runtime,
}

impl Collector {
    pub(crate) fn start() -> Self {
        Self::at("127.0.0.1:0", None)
    }

    pub(crate) fn at(address: &str, identity: Option<Identity>) -> Self {
        let heard = Arc::new(Heard {
            told: Mutex::default(),
            changed: Condvar::new(),
            manner: Mutex::new(Manner::Takes),
        });
        let runtime = Runtime::new().expect("a runtime");
        let listener = TcpListener::bind(address).expect("a port is free");
        let address = listener.local_addr().expect("an address").to_string();
        listener.set_nonblocking(true).expect("it can be set");
        let mut server = Server::builder();
        if let Some(identity) = identity {
            let tls = ServerTlsConfig::new().identity(identity);
            server = server.tls_config(tls).expect("a certificate with its key");
        }
        let ears = || Ears(heard.clone());
        let router = server
            .add_service(MetricsServiceServer::new(ears()))
            .add_service(LogsServiceServer::new(ears()))
            .add_service(TraceServiceServer::new(ears()));
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            router
                .serve_with_incoming(TcpIncoming::from(listener))
                .await
        });
        Self {
            heard,
            address,
            _runtime: runtime,
        }
    }

    pub(crate) fn behave(&self, manner: Manner) {
        *self.heard.manner.lock().unwrap() = manner;
    }

    pub(crate) fn told(&self) -> MutexGuard<'_, Told> {
        self.heard.told.lock().unwrap()
    }

    /// Waits until what it was told is enough.
    pub(crate) fn until(&self, what: &str, enough: impl Fn(&Told) -> bool) {
        let wait = self
            .heard
            .changed
            .wait_timeout_while(self.told(), PATIENCE, |told| !enough(told));
        let (told, waited) = wait.unwrap();
        assert!(
            !waited.timed_out(),
            "it was not told {what}; it has {} lines, {} spans and {} metrics",
            told.lines.len(),
            told.spans.len(),
            told.metrics.len()
        );
    }
}

#[derive(Clone)]
struct Ears(Arc<Heard>);

impl Ears {
    async fn hear<T, R: Default>(
        &self,
        request: Request<T>,
        keep: impl FnOnce(&mut Told, T),
    ) -> Result<Response<R>, Status> {
        let manner = *self.0.manner.lock().unwrap();
        match manner {
            Manner::Takes => {}
            Manner::Forbids => return Err(Status::permission_denied("not from you")),
            Manner::Holds => {
                self.0.told.lock().unwrap().held += 1;
                self.0.changed.notify_all();
                return std::future::pending().await;
            }
        }
        let key = request.metadata().get("api-key");
        let key = key.map(|key| key.to_str().expect("ASCII").to_owned());
        let mut told = self.0.told.lock().unwrap();
        told.keys.push(key);
        keep(&mut told, request.into_inner());
        self.0.changed.notify_all();
        Ok(Response::new(R::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Ears {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.hear(request, |told, message| {
            told.metrics.clear();
            for of in message.resource_metrics {
                told.resources.extend(of.resource);
                let scopes = of.scope_metrics.into_iter();
                told.metrics.extend(scopes.flat_map(|scope| scope.metrics));
            }
        })
        .await
    }
}

#[tonic::async_trait]
impl LogsService for Ears {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        self.hear(request, |told, message| {
            for of in message.resource_logs {
                told.resources.extend(of.resource);
                let scopes = of.scope_logs.into_iter();
                told.lines
                    .extend(scopes.flat_map(|scope| scope.log_records));
            }
        })
        .await
    }
}

#[tonic::async_trait]
impl TraceService for Ears {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.hear(request, |told, message| {
            for of in message.resource_spans {
                told.resources.extend(of.resource);
                let scopes = of.scope_spans.into_iter();
                told.spans.extend(scopes.flat_map(|scope| scope.spans));
            }
        })
        .await
    }
}

/// The value of an attribute that is text.
pub(crate) fn text_of<'a>(attributes: &'a [KeyValue], name: &str) -> Option<&'a str> {
    match value_of(attributes, name)? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

/// The value of an attribute that is a number.
pub(crate) fn number_of(attributes: &[KeyValue], name: &str) -> Option<i64> {
    match value_of(attributes, name)? {
        Value::IntValue(number) => Some(*number),
        _ => None,
    }
}

fn value_of<'a>(attributes: &'a [KeyValue], name: &str) -> Option<&'a Value> {
    let attribute = attributes.iter().find(|attribute| attribute.key == name)?;
    attribute.value.as_ref()?.value.as_ref()
}

/// What a line says.
pub(crate) fn body_of(line: &LogRecord) -> &str {
    match line.body.as_ref().and_then(|body| body.value.as_ref()) {
        Some(Value::StringValue(text)) => text,
        other => panic!("a line without text: {other:?}"),
    }
}
