//! Apache Kafka's brokers, each a controller too, configured as the single one is.

use std::path::Path;

use anyhow::Result;
use kera_testkit::ports::Reserved;

use super::{Started, list};
use crate::peers::child::Process;
use crate::peers::kafka::{JVM, PROPERTIES, format, java, java_version, random_id, version};
use crate::scenario::ClientPath;

/// Copies of Kafka's own topics, and how many must be left.
const OWN_TOPICS: [&str; 2] = ["offsets.topic", "transaction.state.log"];

/// Starts so many nodes on an empty directory.
pub(super) fn start(build: &Path, data: &Path, brokers: u32) -> Result<Started> {
    let mut ports = Vec::new();
    for number in 1..=brokers {
        ports.push((number, Reserved::for_ever(), Reserved::for_ever()));
    }
    let voters: Vec<_> = ports
        .iter()
        .map(|(number, _, controller)| format!("{number}@{controller}"))
        .collect();
    let replicas = brokers.min(3);
    let copies: String = OWN_TOPICS
        .iter()
        .chain(&["share.coordinator.state.topic"])
        .map(|topic| format!("{topic}.replication.factor={replicas}\n"))
        .collect();
    std::fs::create_dir_all(data)?;
    let options = data.join("jvm.options");
    std::fs::write(&options, JVM)?;
    let id = random_id(build, &options)?;
    let (mut members, mut folders, mut addresses) = (Vec::new(), Vec::new(), Vec::new());
    for (number, address, controller) in &ports {
        let folder = data.join(format!("broker{number}"));
        std::fs::create_dir_all(&folder)?;
        // Of a name that comes twice the last counts.
        let ours = format!(
            "node.id={number}\n\
             listeners=PLAINTEXT://{address},CONTROLLER://{controller}\n\
             advertised.listeners=PLAINTEXT://{address}\n\
             controller.quorum.voters={}\n\
             log.dirs={}\n{copies}",
            voters.join(","),
            folder.join("logs").display()
        );
        let properties = folder.join("server.properties");
        std::fs::write(&properties, format!("{PROPERTIES}{ours}"))?;
        format(build, &options, &id, &properties)?;
        let mut command = java(build, &options, "kafka.Kafka");
        command.arg(&properties);
        let process = Process::start(command, folder.join("broker.log"), false)?;
        members.push(process);
        folders.push(folder);
        addresses.push(address.clone());
    }
    Ok(Started {
        members,
        etcd: None,
        addresses: [(ClientPath::Kafka, list(&addresses))].into(),
        data: folders,
        kept: None,
        version: format!("{} ({})", version(), java_version()),
        configuration: format!(
            "{JVM}\n{PROPERTIES}\n# {brokers} nodes, each broker and controller.\n{copies}"
        ),
    })
}
