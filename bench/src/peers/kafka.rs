//! Apache Kafka: jars from Maven Central, one node, its configuration in `bench/peers/kafka`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use kera_testkit::ports::Reserved;

use super::Started;
use super::child::Process;
use crate::measure::machine::first_line_of;
use crate::scenario::ClientPath;

const POM: &str = include_str!("../../peers/kafka/pom.xml");
pub(super) const PROPERTIES: &str = include_str!("../../peers/kafka/server.properties");
pub(super) const JVM: &str = include_str!("../../peers/kafka/jvm.options");

/// The version that the pom names.
pub(super) fn version() -> &'static str {
    let after = POM.split_once("<artifactId>kafka_2.13</artifactId>");
    let version = after.and_then(|(_, rest)| rest.split_once("<version>"));
    let version = version.and_then(|(_, rest)| rest.split_once("</version>"));
    version.map_or("unknown", |(version, _)| version)
}

/// Where its jars are kept.
pub(super) fn home(build: &Path) -> PathBuf {
    build.join(format!("kafka-{}", version()))
}

/// Downloads the jars with Maven, unless they are there.
pub(super) fn fetch(build: &Path) -> Result<()> {
    let home = home(build);
    let pom = home.join("pom.xml");
    let complete = home.join("complete");
    if fs::read_to_string(&complete).is_ok_and(|text| text == POM) {
        return Ok(());
    }
    fs::create_dir_all(&home)?;
    fs::write(&pom, POM)?;
    eprintln!("fetching Apache Kafka {} with Maven", version());
    let status = Command::new("mvn")
        .args(["-q", "-B", "-f"])
        .arg(&pom)
        .args(["dependency:copy-dependencies", "-DincludeScope=runtime"])
        .arg(format!("-DoutputDirectory={}", home.join("lib").display()))
        .status()
        .context("cannot run mvn; install Maven")?;
    ensure!(status.success(), "mvn could not fetch the jars");
    Ok(fs::write(complete, POM)?)
}

/// Starts a broker on a directory, which is formatted first if it is empty.
pub(super) fn start(build: &Path, data: &Path) -> Result<Started> {
    let (address, controller) = (Reserved::for_ever(), Reserved::for_ever());
    let ours = format!(
        "listeners=PLAINTEXT://{address},CONTROLLER://{controller}\n\
         advertised.listeners=PLAINTEXT://{address}\n\
         controller.quorum.voters=1@{controller}\n\
         log.dirs={}\n",
        data.join("logs").display()
    );
    let properties = data.join("server.properties");
    fs::write(&properties, format!("{PROPERTIES}{ours}"))?;
    let options = data.join("jvm.options");
    fs::write(&options, JVM)?;
    if !data.join("logs").join("meta.properties").exists() {
        let id = random_id(build, &options)?;
        format(build, &options, &id, &properties)?;
    }
    let mut command = java(build, &options, "kafka.Kafka");
    command.arg(&properties);
    let process = Process::start(command, data.join("broker.log"), false)?;
    Ok(Started {
        process,
        addresses: [(ClientPath::Kafka, address)].into(),
        version: format!("{} ({})", version(), java_version()),
        configuration: format!("{JVM}\n{PROPERTIES}"),
    })
}

/// What runs it.
pub(super) fn java_version() -> String {
    first_line_of("java", &["-version"]).unwrap_or_default()
}

/// A class of its jars, with these options of the virtual machine.
pub(super) fn java(build: &Path, options: &Path, class: &str) -> Command {
    let mut command = Command::new("java");
    command
        .arg(format!("@{}", options.display()))
        .arg("-cp")
        .arg(home(build).join("lib").join("*"))
        .arg(class);
    command
}

/// A name for a cluster.
pub(super) fn random_id(build: &Path, options: &Path) -> Result<String> {
    let id = java(build, options, "kafka.tools.StorageTool")
        .arg("random-uuid")
        .output()
        .context("cannot run java; install a JDK or JRE, 17 or later")?;
    let id = String::from_utf8_lossy(&id.stdout);
    Ok(id.lines().last().unwrap_or_default().trim().to_owned())
}

/// Gives a directory the identity that a broker's must have, in the cluster of that name.
pub(super) fn format(build: &Path, options: &Path, id: &str, properties: &Path) -> Result<()> {
    let formatted = java(build, options, "kafka.tools.StorageTool")
        .args(["format", "-t", id, "-c"])
        .arg(properties)
        .output()?;
    ensure!(
        formatted.status.success(),
        "kafka.tools.StorageTool: {}",
        String::from_utf8_lossy(&formatted.stderr)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pom_names_one_version_of_kafka() {
        assert!(version().starts_with("4."), "{}", version());
        assert_eq!(POM.matches(version()).count(), 2);
    }
}
