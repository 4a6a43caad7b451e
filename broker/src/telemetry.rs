//! What a collector of OpenTelemetry is told: the settings, who tells it, and the metrics of what was lost on the way.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kera_telemetry::{Exporter, Options, Telemetry, headers_of};
use prometheus_client::registry::Registry;

use crate::cluster::ownership::joining;
use crate::config::TelemetryConfig;
use crate::error::BrokerError;
use crate::metrics::{counters, label};
use crate::scrape;
use crate::shared::Shared;

/// The most bytes that a file of headers may have.
const MOST_HEADERS: u64 = 64 * 1024;

/// How long a broker that stops waits until the collector has taken the rest.
pub(crate) const FINISH_WITHIN: Duration = Duration::from_secs(2);

/// What is told to the collector of the settings; `None` without one.
///
/// # Errors
/// [`BrokerError::Telemetry`] if the file of headers cannot be read, or has what is no header.
pub fn telemetry_of(config: &TelemetryConfig) -> Result<Option<Telemetry>, BrokerError> {
    let Some(endpoint) = config.endpoint.clone() else {
        return Ok(None);
    };
    let headers = config.headers_file.as_deref().map(read_headers);
    Ok(Some(Telemetry::new(Options {
        endpoint,
        ca: config.ca.clone(),
        headers: headers.transpose()?.unwrap_or_default(),
        signals: config.signals.clone(),
        interval: config.interval,
        traces_per_second: config.traces_per_second,
    })))
}

fn read_headers(path: &Path) -> Result<Vec<(String, String)>, BrokerError> {
    let wrong = |what: String| {
        BrokerError::Telemetry(format!("telemetry.headers_file {}: {what}", path.display()))
    };
    let mut text = String::new();
    let file = fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
    file.take(MOST_HEADERS + 1)
        .read_to_string(&mut text)
        .map_err(|error| wrong(error.to_string()))?;
    if text.len() as u64 > MOST_HEADERS {
        return Err(wrong(format!(
            "it has more than {MOST_HEADERS} bytes; name a file of headers"
        )));
    }
    headers_of(&text).map_err(|error| wrong(error.to_string()))
}

/// Begins to tell it of a broker that serves.
pub(crate) fn start(telemetry: Telemetry, shared: &Arc<Shared>) -> Exporter {
    if let Some(spans) = telemetry.spans() {
        shared.data.trace(spans);
    }
    // It was not told before.
    let _ = shared.telemetry.set(telemetry.clone());
    let metrics = shared.clone();
    let resource = resource(&shared.cluster_id(), shared.broker_id, "broker");
    telemetry.start(resource, move || scrape::current(&metrics))
}

/// Who tells, by the conventions of OpenTelemetry.
pub(crate) fn resource(cluster: &str, broker: u32, role: &str) -> Vec<(&'static str, String)> {
    vec![
        ("service.name", "kera".to_owned()),
        ("service.namespace", cluster.to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id", format!("{cluster}-{role}-{broker}")),
        ("host.name", joining::host_name()),
        ("kera.broker.id", broker.to_string()),
    ]
}

/// Lines and spans that the collector was not told.
pub(crate) fn register(shared: &Shared, registry: &mut Registry) {
    let Some(telemetry) = shared.telemetry.get() else {
        return;
    };
    let dropped = telemetry.dropped().into_iter();
    counters(
        registry,
        "telemetry_dropped",
        "Lines of the log, and spans, that the collector of telemetry.endpoint was not told",
        dropped.map(|(signal, count)| (label("signal", signal), count)),
    );
}
