//! What commands wait for is said on standard error, so that none waits in silence.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use kera_rpc::{Reports, told};
use tokio::time::Instant;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::Channel;
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

use crate::output::marked;

/// Warnings of the client crates: what they wait for, and what they pass by.
const WARNINGS: &str = "off,kera=warn,kera_rpc=warn,kera_producer=warn,kera_consumer=warn";

/// From now on the warnings of the client crates go to standard error.
pub(crate) fn say() {
    // A command says what it has to say without them, too.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(WARNINGS))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .event_format(Warning::default())
        .try_init();
}

/// A line for each warning, and for the same again only at growing intervals.
#[derive(Default)]
struct Warning {
    said: Mutex<HashMap<String, Reports>>,
}

/// Texts that are remembered as said.
const REMEMBERED: usize = 1_000;

impl<S, N> FormatEvent<S, N> for Warning
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() >= REMEMBERED {
            said.clear();
        }
        let reports = said.entry(text.clone()).or_default();
        if !reports.is_due(Instant::now(), &text) {
            return Ok(());
        }
        writeln!(writer, "{}", marked(&format!("warning: {text}")))
    }
}

/// A channel whose calls say what they wait for.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    channel: Channel,
    address: Arc<str>,
}

impl Watched {
    /// A channel to the broker at `address`.
    pub(crate) fn new(channel: Channel, address: &str) -> Self {
        Self {
            channel,
            address: address.into(),
        }
    }
}

impl Service<http::Request<Body>> for Watched {
    type Response = http::Response<Body>;
    type Error = tonic::transport::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let call = request.uri().path().rsplit('/').next().unwrap_or_default();
        let waits = format!("broker {} has not answered {call} yet", self.address);
        let answer = self.channel.call(request);
        Box::pin(told(answer, move || Some(waits.clone())))
    }
}
