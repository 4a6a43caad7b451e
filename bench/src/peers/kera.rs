//! Kera: a binary that is built or named, its configuration in `bench/peers/kera`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Started;
use super::child::Process;
use crate::measure::machine::first_line_of;
use crate::scenario::ClientPath;

pub(super) const CONFIGURATION: &str = include_str!("../../peers/kera/kera.toml");
/// How long it may take until it says where it listens.
const START: Duration = Duration::from_secs(30);

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
    let launched = launch(command, data.join("broker.log"))?;
    Ok(Started {
        process: launched.process,
        addresses: [
            (ClientPath::Kafka, launched.kafka),
            (ClientPath::Native, launched.native),
        ]
        .into(),
        version: version(binary),
        configuration: CONFIGURATION.to_owned(),
    })
}

/// The program, without what the environment would tell it.
pub(super) fn undisturbed(binary: &Path) -> Command {
    let mut command = Command::new(binary);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"KERA_") {
            command.env_remove(name);
        }
    }
    command
}

/// The program's version.
pub(super) fn version(binary: &Path) -> String {
    let version = first_line_of(&binary.to_string_lossy(), &["--version"]).unwrap_or_default();
    version.trim_start_matches("kera ").to_owned()
}

/// A broker that says where it listens.
pub(super) struct Launched {
    pub process: Process,
    /// HOST:PORT for Kera's own clients.
    pub native: String,
    /// And for Kafka's.
    pub kafka: String,
}

/// Starts a broker that has a Kafka listener and waits until it says where it listens.
pub(super) fn launch(command: Command, log: PathBuf) -> Result<Launched> {
    let mut process = Process::start(command, log, true)?;
    let stdout = process.stdout().context("the output is piped")?;
    let (lines, said) = sync_channel(16);
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // Whatever comes after the addresses is read and dropped.
            let _ = lines.try_send(line);
        }
    });
    let wait = |beginning: &str| -> Result<String> {
        loop {
            let line = said
                .recv_timeout(START)
                .with_context(|| format!("kera does not say `{beginning}`"))?;
            if let Some(rest) = line.strip_prefix(beginning) {
                return Ok(rest.trim().to_owned());
            }
        }
    };
    let native = wait("listening on ").with_context(|| process.log_tail())?;
    let kafka = wait("Kafka clients on ").with_context(|| process.log_tail())?;
    Ok(Launched {
        process,
        native,
        kafka,
    })
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
