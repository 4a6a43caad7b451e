//! `kera replica-store`.

use std::process::ExitCode;

use clap::Args;
use kera_broker::cluster::BackupProcess;
use kera_broker::config::Listener;
use kera_broker::telemetry::telemetry_of;

use crate::config::ConfigArgs;
use crate::failure::{Failure, Outcome};
use crate::interrupts::Interrupts;
use crate::output::{Out, say};
use crate::serve::{raise_open_files, runtime_of, set_up_log, stopped_hard};

/// Arguments of `kera replica-store`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera replica-store --cluster etcd://127.0.0.1:2379 --broker-id 3
  kera replica-store --cluster etcd://10.0.0.1:2379 --broker-id 5 --replication-listen 10.0.0.5:7601 --rack b --insecure cluster
  kera replica-store --config store.toml

The brokers that share the store place replicas of their groups here. It has no streams and no address for clients. The \
replicas are kept on shared memory until their groups close, then below the data directory; another start with the same \
directories goes on with them. SIGTERM or SIGINT stops it, and what open replicas hold goes to disk.")]
pub(crate) struct ReplicaStoreArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

/// Keeps copies until a signal ends it.
pub(crate) fn run(args: &ReplicaStoreArgs) -> Outcome {
    if std::env::args().nth(1).is_some_and(|name| name == "backup") {
        say(
            "warning: `kera backup` is now `kera replica-store`; the old name goes with the next version",
        );
    }
    let resolved = args.config.resolve_to_open(&Listener::OF_REPLICA_STORES)?;
    let config = resolved.config;
    let telemetry = telemetry_of(&config.telemetry)?;
    set_up_log(&config.log, telemetry.as_ref())?;
    // It has no address for clients that others could be told.
    let mine = |warning: &&String| !warning.starts_with("server.");
    for warning in resolved.warnings.iter().filter(mine) {
        tracing::warn!("{warning}");
    }
    raise_open_files();
    runtime_of(&config)?.block_on(async {
        // Before anything can be interrupted half-way.
        let mut interrupts = Interrupts::new()?;
        let mut process = BackupProcess::start(&config).await?;
        if let Some(telemetry) = telemetry {
            process.tell(telemetry);
        }
        announce(&process)?;
        let signal = interrupts.next().await;
        tracing::info!("{signal}: stopping");
        tokio::select! {
            () = process.shutdown() => {
                tracing::info!("stopped");
                Ok(ExitCode::SUCCESS)
            }
            _ = interrupts.next() => Err(stopped_hard()),
        }
    })
}

fn announce(process: &BackupProcess) -> Result<(), Failure> {
    let backup = process.backup();
    let options = backup.options();
    let mut out = Out::stdout();
    out.line(format_args!(
        "keeping replicas for other brokers on {}",
        backup.local_addr()
    ))?;
    out.line(format_args!(
        "replicas in {} and {}",
        options.shared_dir.display(),
        options.disk_dir.display()
    ))?;
    if let Some(address) = process.http_addr() {
        out.line(format_args!("metrics on http://{address}/metrics"))?;
    }
    out.flush()
}
