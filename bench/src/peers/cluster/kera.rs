//! Kera's brokers with an etcd, configured as the single one is.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use kera_testkit::ports::Reserved;

use super::{Etcd, Shared, Started, list};
use crate::peers::kera::{CONFIGURATION, launch, undisturbed, version};
use crate::scenario::ClientPath;

/// Shared memory that copies may take at one broker, in bytes.
const MEMORY: u64 = 1 << 30;
/// Where shared memory is.
const SHARED: &str = "/dev/shm";

/// Starts so many brokers on a directory, empty or as earlier ones left it. Copies may lie on one machine, as there is one.
pub(super) fn start(binary: &Path, data: &Path, brokers: u32) -> Result<Started> {
    let place = data.join("etcd");
    let is_new = !place.exists();
    let etcd = Etcd::start(&place)?;
    let shared = Shared::new(Path::new(SHARED))?;
    if is_new {
        let made = undisturbed(binary)
            .args(["cluster", "init", "--cluster", &etcd.url()])
            .output()
            .context("cannot run kera")?;
        ensure!(
            made.status.success(),
            "the cluster is refused: {}",
            String::from_utf8_lossy(&made.stderr).trim()
        );
    }
    let (mut members, mut folders) = (Vec::new(), Vec::new());
    let (mut native, mut kafka) = (Vec::new(), Vec::new());
    for number in 1..=brokers {
        let name = format!("broker{number}");
        let folder = data.join(&name);
        std::fs::create_dir_all(&folder)?;
        let configuration = folder.join("kera.toml");
        std::fs::write(&configuration, CONFIGURATION)?;
        let mut command = undisturbed(binary);
        command
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(["--kafka-listen", "127.0.0.1:0", "--config"])
            .arg(&configuration)
            .arg("--data-dir")
            .arg(folder.join("data"))
            .args(["--cluster", &etcd.url()])
            .args(["--broker-id", &number.to_string()])
            .args(["--rack", &name])
            .args(["--replication-listen", &Reserved::for_ever()])
            .arg("--allow-same-host")
            .arg("--replica-store-shared-dir")
            .arg(shared.path().join(&name))
            .args(["--replica-store-memory-bytes", &MEMORY.to_string()]);
        let (process, said) = launch(command, folder.join("broker.log"))?;
        members.push(process);
        native.push(said.address);
        kafka.push(said.kafka);
        folders.push(folder);
    }
    let configuration = format!(
        "{CONFIGURATION}\n# {brokers} brokers, each with --cluster, --allow-same-host and\n\
         # --replica-store-memory-bytes {MEMORY}; etcd with its defaults.\n"
    );
    Ok(Started {
        members,
        addresses: [
            (ClientPath::Kafka, list(&kafka)),
            (ClientPath::Native, list(&native)),
        ]
        .into(),
        data: folders,
        kept: Some(shared),
        version: format!("{}, etcd {}", version(binary), etcd.version),
        configuration,
        etcd: Some(etcd),
    })
}
