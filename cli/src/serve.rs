//! `kera serve`.

use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;
use kera_broker::Broker;
use kera_broker::config::{BrokerConfig, Listener, LogConfig, LogFormat, volatile_filesystem};
use kera_broker::telemetry::telemetry_of;
use kera_kafka_shim::Listeners;
use kera_telemetry::Telemetry;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry};

use crate::config::ConfigArgs;
use crate::failure::{Failure, Outcome};
use crate::interrupts::Interrupts;
use crate::notify::Notify;
use crate::output::Out;

/// Arguments of `kera serve`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera serve
  kera serve --data-dir /srv/kera --listen 0.0.0.0:7600 --server-advertise broker1:7600 --insecure native
  kera serve --config kera.toml --memory-pool 4GiB
  kera serve --kafka-listen 127.0.0.1:9092
  kera serve --kafka-listen 0.0.0.0:9092 --kafka-advertise broker1:9092 --auth-listeners kafka
  kera serve --cluster etcd://127.0.0.1:2379 --broker-id 1 --rack a
  KERA_LOG_LEVEL=debug kera serve

The addresses and the data directory are printed once the broker serves. Kafka's clients have addresses of their own, \
none unless --kafka-listen names some; several have commas between them, as have their names for --kafka-advertise. Brokers \
that name one store with --cluster form one system: clients may ask any of them, and what one owned goes to others when it is \
gone; `kera cluster init` prepares the store. A broker without a store works alone. An address beyond loopback that lets \
everybody in is refused, unless --insecure names its listener; --insecure alone accepts all of them. SIGTERM or SIGINT stops it: requests in flight \
are finished and everything is synced; a second one stops it at once. Records that were acknowledged under ack = written \
survive that too. A service manager that sets NOTIFY_SOCKET, as systemd does for Type=notify, is told when the broker serves.")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

/// Runs a broker until a signal stops it.
pub(crate) fn run(args: &ServeArgs) -> Outcome {
    let resolved = args.config.resolve_to_open(&Listener::ALL)?;
    let config = resolved.config;
    let telemetry = telemetry_of(&config.telemetry)?;
    let log = set_up_log(&config.log, telemetry.as_ref())?;
    for warning in &resolved.warnings {
        tracing::warn!("{warning}");
    }
    warn_if_volatile(&config.data_dir);
    raise_open_files();
    let notify = Notify::from_environment();
    notify.status("recovering");
    let runtime = runtime_of(&config)?;
    let data_dir = config.data_dir.clone();
    runtime.block_on(async {
        // Before anything can be interrupted half-way.
        let mut interrupts = Interrupts::new()?;
        let mut broker = Broker::start(config).await?;
        let levels = &broker.shared().log_levels;
        levels.applied_by(move |filter| log.change(filter));
        if let Some(telemetry) = telemetry {
            broker.tell(telemetry);
        }
        let kafka = match kera_kafka_shim::start(broker.shared().clone()).await {
            Ok(listeners) => listeners,
            Err(error) => {
                broker.shutdown().await;
                return Err(error.into());
            }
        };
        announce(&broker, &kafka, &data_dir)?;
        notify.ready(&format!("serving on {}", broker.local_addr()));
        tokio::select! {
            signal = interrupts.next() => tracing::info!("{signal}: draining"),
            version = broker.shared().settings.outdated() => {
                notify.stopping();
                broker.shutdown().await;
                return Err(Failure::message(format!(
                    "the cluster was finalized as version {version}, which this program cannot; start this broker with a program of the version that the others have"
                )));
            }
        }
        notify.stopping();
        tokio::select! {
            () = broker.shutdown() => {
                tracing::info!("stopped");
                Ok(ExitCode::SUCCESS)
            }
            _ = interrupts.next() => Err(stopped_hard()),
        }
    })
}

/// The runtime that `config` asks for.
pub(crate) fn runtime_of(config: &BrokerConfig) -> std::io::Result<tokio::runtime::Runtime> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.enable_all().thread_name("kera");
    if config.runtime.threads > 0 {
        runtime.worker_threads(config.runtime.threads as usize);
    }
    runtime.build()
}

/// A second signal came.
pub(crate) fn stopped_hard() -> Failure {
    Failure::message(
        "stopped by a second signal before everything was synced; the next start recovers what was written",
    )
}

fn announce(broker: &Broker, kafka: &Listeners, data_dir: &Path) -> Result<(), Failure> {
    let mut out = Out::stdout();
    out.line(format_args!("listening on {}", broker.local_addr()))?;
    for address in &broker.local_addrs()[1..] {
        out.line(format_args!("native clients on {address} too"))?;
    }
    for address in &kafka.addresses {
        out.line(format_args!("Kafka clients on {address}"))?;
    }
    out.line(format_args!("data in {}", data_dir.display()))?;
    if let Some(clustered) = &broker.shared().clustered {
        let address = clustered.peers.backup.local_addr();
        out.line(format_args!(
            "keeping replicas for other brokers on {address}"
        ))?;
    }
    if let Some(address) = broker.http_addr() {
        // Whoever connects to another address of this machine has no loopback address either.
        let reached = address.ip().is_loopback() || address.ip().is_unspecified();
        if reached && broker.shared().config.api.enabled {
            let port = address.port();
            out.line(format_args!("console on http://localhost:{port}"))?;
        }
        out.line(format_args!("metrics on http://{address}/metrics"))?;
    }
    out.flush()
}

/// Decides which lines are logged.
pub(crate) struct LogFilter(Handle<EnvFilter, Registry>);

impl LogFilter {
    /// From now on `filter` does, in the form of `log.level`.
    fn change(&self, filter: &str) -> Result<(), String> {
        let filter = EnvFilter::from_str(filter).map_err(|error| error.to_string())?;
        self.0.reload(filter).map_err(|error| error.to_string())
    }
}

/// Lines of the log, as configured, on standard error, and at a collector that is told.
pub(crate) fn set_up_log(
    log: &LogConfig,
    telemetry: Option<&Telemetry>,
) -> Result<LogFilter, Failure> {
    let filter = EnvFilter::from_str(&log.level)
        .map_err(|error| Failure::Usage(format!("log.level: {error}")))?;
    let (filter, handle) = reload::Layer::new(filter);
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(console::colors_enabled_stderr());
    let layer = match log.format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => layer.json().boxed(),
    };
    let lines = telemetry.and_then(Telemetry::lines);
    tracing_subscriber::registry()
        .with(filter)
        .with(layer)
        .with(lines)
        .init();
    Ok(LogFilter(handle))
}

fn warn_if_volatile(data_dir: &Path) {
    if let Some(name) = volatile_filesystem(data_dir) {
        tracing::warn!(
            "{} is on a {name}: everything is lost when the machine restarts, whatever a stream's ack promises; name a directory on a disk with --data-dir",
            data_dir.display()
        );
    }
}

/// Each group and each connection holds a file open: takes as many as the system grants.
pub(crate) fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let wanted = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, wanted) {
        tracing::warn!(
            "cannot raise the limit of open files above {:?}: {error}; raise it before starting with `ulimit -n`",
            limit.current
        );
    }
}
