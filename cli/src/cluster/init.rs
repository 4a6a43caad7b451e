//! `kera cluster init`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use kera_metadata::{EtcdAccess, EtcdOptions, EtcdStore, MetadataError};
use serde::Serialize;

use crate::failure::{Failure, Outcome};
use crate::members::how_to_start;
use crate::output::{Out, OutputArgs, print_json};

/// Arguments of `kera cluster init`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera cluster init --cluster etcd://127.0.0.1:2379
  kera cluster init --cluster etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/kera --json

Done once in a cluster's life, before its first broker starts; done again it is refused and changes nothing. With \
--if-needed that is no failure, for services that run it at each start. A path after the addresses keeps clusters apart \
that share an etcd.")]
pub(crate) struct InitArgs {
    /// The metadata store, as brokers are told it
    #[arg(long, value_name = "STORE", env = "KERA_CLUSTER_STORE")]
    cluster: String,
    #[command(flatten)]
    access: AccessArgs,
    /// Succeed if the store has been prepared already
    #[arg(long)]
    if_needed: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Who this command is to an etcd that wants TLS or a password, as brokers are told it.
#[derive(Debug, Args)]
pub(super) struct AccessArgs {
    /// The authority by which etcd's certificate is signed, in PEM: connect with TLS
    #[arg(long, value_name = "FILE", env = "KERA_CLUSTER_STORE_CA")]
    cluster_store_ca: Option<PathBuf>,
    /// A certificate for etcd, in PEM
    #[arg(long, value_name = "FILE", env = "KERA_CLUSTER_STORE_CERTIFICATE")]
    cluster_store_certificate: Option<PathBuf>,
    /// Its private key, in PEM
    #[arg(long, value_name = "FILE", env = "KERA_CLUSTER_STORE_KEY")]
    cluster_store_key: Option<PathBuf>,
    /// A user of etcd
    #[arg(long, value_name = "NAME", env = "KERA_CLUSTER_STORE_USER")]
    cluster_store_user: Option<String>,
    /// A file with the user's password
    #[arg(long, value_name = "FILE", env = "KERA_CLUSTER_STORE_PASSWORD_FILE")]
    cluster_store_password_file: Option<PathBuf>,
}

impl AccessArgs {
    pub(super) fn access(&self) -> EtcdAccess {
        // As a broker's settings have it.
        let file = |path: &Option<PathBuf>| path.clone().filter(|path| path.as_os_str() != "off");
        EtcdAccess {
            ca: file(&self.cluster_store_ca),
            certificate: file(&self.cluster_store_certificate),
            key: file(&self.cluster_store_key),
            user: self.cluster_store_user.clone().filter(|user| user != "off"),
            password_file: file(&self.cluster_store_password_file),
            ..EtcdAccess::default()
        }
    }
}

/// What became of an attempt that failed, and what to do.
fn explained(error: MetadataError, address: &str) -> Failure {
    let text = match error {
        MetadataError::Unavailable { store, detail } => format!(
            "no cluster was made: the etcd at {store} cannot be reached ({detail}); check that it runs at that address and run this again"
        ),
        MetadataError::UnknownOutcome { detail, .. } => format!(
            "it is unknown whether a cluster was made at {address}: etcd did not answer ({detail}); run this again with --if-needed, which changes nothing where one was made"
        ),
        MetadataError::Initialized { store, cluster } => format!(
            "no cluster was made: the etcd at {store} holds cluster {cluster} already, which is left as it is; start brokers with `{}` to join it, or make another cluster beside it with another path after the address",
            how_to_start("N", &store)
        ),
        MetadataError::Corrupt { path, detail } => format!(
            "no cluster was made: the etcd at {} is not Kera's, or damaged ({detail}); choose another path after the address, or restore its newest snapshot",
            path.display()
        ),
        MetadataError::Storage { path, detail } => {
            format!("no cluster was made at {}: {detail}", path.display())
        }
        other => return other.into(),
    };
    Failure::message(text)
}

#[derive(Serialize)]
struct Made {
    cluster: String,
    store: String,
    /// False if it was there already.
    new: bool,
}

pub(super) async fn run(args: InitArgs) -> Outcome {
    let store = args.cluster.clone();
    let access = args.access.access();
    let init = move || EtcdStore::init_with(&store, &access, EtcdOptions::default());
    let (cluster, new) = match tokio::task::spawn_blocking(init).await? {
        Err(MetadataError::Initialized { cluster, .. }) if args.if_needed => (cluster, false),
        Err(error) => return Err(explained(error, &args.cluster)),
        Ok(made) => (made, true),
    };
    if args.output.json {
        print_json(&Made {
            cluster: cluster.to_string(),
            store: args.cluster,
            new,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = Out::stdout();
    let already = if new { "" } else { " already" };
    out.line(format_args!(
        "cluster {cluster} at {}{already}",
        args.cluster
    ))?;
    out.line(format_args!(
        "start brokers with `{}`: another N for each, and for HOST an address of its machine that clients and the other brokers reach",
        how_to_start("N", &args.cluster)
    ))?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
