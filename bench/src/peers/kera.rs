//! Kera: a binary that is built or named, its configuration in `bench/peers/kera`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Error, Result, ensure};
use kera_testkit::Announced;
use serde_json::Value;

use super::Started;
use super::child::Process;
use crate::measure::machine::first_line_of;
use crate::scenario::ClientPath;

pub(super) const CONFIGURATION: &str = include_str!("../../peers/kera/kera.toml");

/// Builds `kera` with a profile of cargo's, below the folder `target`; where it is.
pub(crate) fn binary(profile: &str, target: &Path) -> Result<PathBuf> {
    build(profile, target, None)
}

/// Builds `kera` as released, but with names and frame pointers, so that it can be profiled.
pub(crate) fn profiling_binary(target: &Path) -> Result<PathBuf> {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let flags = format!("{flags} -C force-frame-pointers=yes");
    build("profiling", target, Some(flags.trim()))
}

fn build(profile: &str, target: &Path, flags: Option<&str>) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    eprintln!("building kera, profile {profile}");
    let output = Command::new(cargo)
        .envs(flags.map(|flags| ("RUSTFLAGS", flags)))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "--locked", "--quiet", "--package", "kera"])
        .args(["--bin", "kera", "--profile", profile, "--target-dir"])
        .arg(target)
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo; name a binary with --kera")?;
    ensure!(output.status.success(), "kera could not be built");
    executable(&String::from_utf8_lossy(&output.stdout))
        .context("cargo does not say where kera is; name a binary with --kera")
}

/// The binary among cargo's messages, one JSON object a line.
fn executable(messages: &str) -> Option<PathBuf> {
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages
        .filter(|message| message["target"]["name"] == "kera")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

/// Starts a broker on a directory, empty or as an earlier one left it.
pub(super) fn start(binary: &Path, data: &Path) -> Result<Started> {
    let configuration = data.join("kera.toml");
    std::fs::write(&configuration, CONFIGURATION)?;
    let mut command = undisturbed(binary);
    command
        .args(["serve", "--listen", "127.0.0.1:0"])
        .args(["--kafka-listen", "127.0.0.1:0", "--config"])
        .arg(&configuration)
        .arg("--data-dir")
        .arg(data.join("data"));
    let (process, said) = launch(command, data.join("broker.log"))?;
    Ok(Started {
        process,
        addresses: [
            (ClientPath::Kafka, said.kafka),
            (ClientPath::Native, said.address),
        ]
        .into(),
        version: version(binary),
        configuration: CONFIGURATION.to_owned(),
    })
}

/// The program, without what the environment would tell it.
pub(crate) fn undisturbed(binary: &Path) -> Command {
    kera_testkit::program::undisturbed(Command::new(binary), "KERA_")
}

/// The program's version.
pub(super) fn version(binary: &Path) -> String {
    let version = first_line_of(&binary.to_string_lossy(), &["--version"]).unwrap_or_default();
    version.trim_start_matches("kera ").to_owned()
}

/// Starts a broker that has a Kafka listener and waits until it says where it listens.
pub(super) fn launch(command: Command, log: PathBuf) -> Result<(Process, Announced)> {
    let mut process = Process::start(command, log, true)?;
    let said = Announced::on(process.stdout(), true, false).map_err(Error::msg);
    let said = said.with_context(|| process.log_tail())?;
    Ok((process, said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_is_found_among_messages() {
        let messages = "{\"target\":{\"name\":\"kera_rpc\"},\"executable\":null}\n\
            oddity\n\
            {\"target\":{\"name\":\"kera\"},\"executable\":\"/x/kera\"}\n";
        assert_eq!(executable(messages), Some("/x/kera".into()));
        assert_eq!(executable(""), None);
    }
}
