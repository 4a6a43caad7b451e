//! Tansu: built by cargo from its crate, when it is asked for; its options in `bench/peers/tansu`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use kera_testkit::ports::Reserved;

use super::Started;
use super::child::Process;
use crate::scenario::{Broker, ClientPath};

const VERSION: &str = "0.6.0";
/// Storage in memory, and in a file of SQLite's.
const FEATURES: &str = "dynostore,libsql";
const OPTIONS: &str = include_str!("../../peers/tansu/options.txt");

fn home(build: &Path) -> PathBuf {
    build.join(format!("tansu-{VERSION}"))
}

/// Builds Tansu with cargo, unless it is there; cargo shows how far it is.
pub(super) fn fetch(build: &Path) -> Result<()> {
    let home = home(build);
    if home.join("bin/tansu").exists() {
        return Ok(());
    }
    eprintln!("building Tansu {VERSION} with cargo, about 20 minutes");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["install", "tansu", "--locked", "--version", VERSION])
        .args(["--features", FEATURES, "--root"])
        .arg(&home)
        .arg("--target-dir")
        .arg(home.join("target"))
        .stdout(Stdio::null())
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "cargo could not build tansu {VERSION}");
    // Only the program is needed.
    let _ = fs::remove_dir_all(home.join("target"));
    Ok(())
}

/// The options of `tansu broker`, one a line.
fn options() -> impl Iterator<Item = &'static str> {
    let lines = OPTIONS.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Where records are kept; paths are relative to the working directory.
fn storage(broker: Broker) -> &'static str {
    if broker == Broker::TansuMemory {
        "memory://tansu/"
    } else {
        "sqlite://store/tansu.db"
    }
}

/// Starts a broker on an empty directory.
pub(super) fn start(broker: Broker, build: &Path, data: &Path) -> Result<Started> {
    let address = Reserved::for_ever();
    let url = format!("tcp://{address}");
    let storage = storage(broker);
    fs::create_dir_all(data.join("store"))?;
    let mut command = Command::new(home(build).join("bin/tansu"));
    command
        .current_dir(data)
        .arg("broker")
        .args(["--listener-url", &url, "--advertised-listener-url", &url])
        .args(["--storage-engine", storage])
        .args(options());
    let process = Process::start(command, data.join("broker.log"), false)?;
    Ok(Started {
        process,
        addresses: [(ClientPath::Kafka, address)].into(),
        version: VERSION.to_owned(),
        configuration: format!("--storage-engine {storage}\n{OPTIONS}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_without_remarks() {
        assert!(options().count() > 0);
        assert!(options().all(|option| option.starts_with("--")));
        assert_ne!(storage(Broker::Tansu), storage(Broker::TansuMemory));
    }
}
