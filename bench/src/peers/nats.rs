//! NATS JetStream: a server from the Go module proxy, its configuration and its load in
//! `bench/peers/nats`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::Started;
use super::child::{Process, pause};
use crate::scenario::{Broker, ClientPath, Durability};

const MODULE: &str = "github.com/nats-io/nats-server/v2";
const VERSION: &str = "2.15.2";
const CONFIGURATION: &str = include_str!("../../peers/nats/nats.conf");
const LOAD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/nats/load");
/// How long it may take until it answers.
const START: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(5);

fn home(build: &Path) -> PathBuf {
    build.join(format!("nats-{VERSION}"))
}

/// The program that makes load, and streams.
pub(super) fn load(build: &Path) -> PathBuf {
    home(build).join("nats-load")
}

/// Builds the server and the load with Go, unless they are there and as they should be.
pub(super) fn fetch(build: &Path) -> Result<()> {
    let home = home(build);
    fs::create_dir_all(&home)?;
    if !home.join("nats-server").exists() {
        eprintln!("fetching NATS server {VERSION} with Go, about a minute");
        let mut install = go();
        install
            .current_dir(&home)
            .env("GOBIN", &home)
            .args(["install", &format!("{MODULE}@v{VERSION}")]);
        succeed(&mut install, "the NATS server cannot be had")?;
    }
    // Go knows whether there is anything to do.
    let mut compile = go();
    compile
        .current_dir(LOAD)
        .args(["build", "-trimpath", "-o"])
        .arg(load(build))
        .arg(".");
    succeed(&mut compile, "the load for NATS cannot be built")
}

fn go() -> Command {
    let mut command = Command::new("go");
    command.env("GOWORK", "off");
    command
}

fn succeed(command: &mut Command, what: &str) -> Result<()> {
    let output = command.output().context("cannot run go; install Go")?;
    ensure!(output.status.success(), "{what}: {}", last_words(&output));
    Ok(())
}

/// The end of what a program said before it failed.
fn last_words(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<_> = text.trim().lines().map(str::trim).collect();
    lines[lines.len().saturating_sub(3)..].join("; ")
}

/// Starts a server on an empty directory.
pub(super) fn start(broker: Broker, build: &Path, data: &Path) -> Result<Started> {
    let configuration = data.join("nats.conf");
    fs::write(&configuration, CONFIGURATION)?;
    let sync = if broker == Broker::NatsSynced {
        "always"
    } else {
        "2m"
    };
    let mut command = Command::new(home(build).join("nats-server"));
    command
        // The server reads a variable as if its text stood in the file.
        .env("KERA_BENCH_STORE", format!("{:?}", data.join("store")))
        .env("KERA_BENCH_SYNC", sync)
        .arg("-c")
        .arg(&configuration)
        .arg("--ports_file_dir")
        .arg(data);
    let mut process = Process::start(command, data.join("broker.log"), false)?;
    let ports = data.join(format!("nats-server_{}.ports", process.pid()));
    let address = wait_until_up(&mut process, &ports);
    let address = address.with_context(|| process.log_tail())?;
    Ok(Started {
        process,
        addresses: [(ClientPath::Nats, address)].into(),
        version: VERSION.to_owned(),
        configuration: format!("# KERA_BENCH_SYNC={sync}\n{CONFIGURATION}"),
    })
}

/// Waits until the server has said which port it took, and answers there.
fn wait_until_up(process: &mut Process, ports: &Path) -> Result<String> {
    let begin = Instant::now();
    loop {
        // The file may be there before its text.
        let text = fs::read_to_string(ports).unwrap_or_default();
        if let Some(address) = address(&text) {
            let stream = TcpStream::connect(&address)?;
            stream.set_read_timeout(Some(START))?;
            let mut greeting = String::new();
            BufReader::new(stream).read_line(&mut greeting)?;
            ensure!(
                has_jetstream(&greeting),
                "the server at {address} has no JetStream: {greeting}"
            );
            return Ok(address);
        }
        if process.ended() {
            bail!("the NATS server ended at once");
        }
        ensure!(
            begin.elapsed() < START,
            "no NATS server answers after {START:?}"
        );
        pause(LOOK_EVERY);
    }
}

/// HOST:PORT in what the server says of its ports.
fn address(ports: &str) -> Option<String> {
    let ports: Value = serde_json::from_str(ports).ok()?;
    let url = ports["nats"][0].as_str()?;
    Some(url.strip_prefix("nats://")?.to_owned())
}

/// The first line of a server is `INFO` and an object.
fn has_jetstream(greeting: &str) -> bool {
    let info = greeting.strip_prefix("INFO ").unwrap_or_default();
    serde_json::from_str::<Value>(info).is_ok_and(|info| info["jetstream"] == true)
}

/// Makes a stream.
pub(super) fn create(
    load: &Path,
    address: &str,
    stream: &str,
    durability: Durability,
) -> Result<()> {
    change(Command::new(load).args(["create", address, stream, durability.name()]))
}

/// Deletes a stream.
pub(super) fn delete(load: &Path, address: &str, stream: &str) -> Result<()> {
    change(Command::new(load).args(["delete", address, stream]))
}

fn change(command: &mut Command) -> Result<()> {
    let output = command.output().context("cannot run the load for NATS")?;
    ensure!(output.status.success(), "{}", last_words(&output));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_server_listens_is_read() {
        let said = r#"{"nats":["nats://127.0.0.1:35067"],"monitoring":[]}"#;
        assert_eq!(address(said), Some("127.0.0.1:35067".to_owned()));
        for odd in ["", "{", "{}", r#"{"nats":[]}"#, r#"{"nats":["tls://x"]}"#] {
            assert_eq!(address(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_server_without_jetstream_is_told_apart() {
        assert!(has_jetstream("INFO {\"jetstream\":true,\"port\":1}\r\n"));
        assert!(!has_jetstream("INFO {\"port\":1}\r\n"));
        assert!(!has_jetstream("-ERR\r\n"));
    }

    #[test]
    fn the_load_is_pinned() {
        let module = fs::read_to_string(Path::new(LOAD).join("go.mod")).unwrap();
        assert!(
            module.contains("github.com/nats-io/nats.go v1."),
            "{module}"
        );
        assert!(CONFIGURATION.contains("$KERA_BENCH_SYNC"));
    }
}
