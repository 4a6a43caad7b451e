//! Whole brokers: three `kera serve` that know each other, and a producer that sends to the first.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::plan::Load;
use super::session::Taken;
use crate::load::{Done, Plan};
use crate::measure::noise::Snapshot;
use crate::measure::process::Usage;
use crate::peers::{Process, free_port};
use crate::scenario::{Acks, ClientPath, Crowd, Durability, Keys, Work};
use crate::session::interrupt::Interrupt;
use crate::session::loader::Loader;

/// How long a broker may take until it says where it listens.
const START: Duration = Duration::from_secs(30);
/// The stream's name.
const STREAM: &str = "copies";
/// The linger of the producer, in microseconds: batches are full.
const LINGER_US: u64 = 5_000;

/// One record of so many goes before those that are measured.
const WARM_UP: u64 = 2;

/// Where whole brokers come from and keep their data.
pub struct Places {
    pub kera: PathBuf,
    /// On a disk; the harness has it to itself.
    pub data: PathBuf,
}

/// Bytes of shared memory that copies may take at one broker: open groups, and closed ones on their
/// way to the disk.
pub fn memory(load: &Load) -> u64 {
    let group = u64::from(load.segment_bytes) * u64::from(load.segments);
    let all = 4 * u64::from(load.lanes) * group + (64 << 20);
    all.min(2 << 30)
}

/// A broker, and its address for clients.
struct Started {
    process: Process,
    address: String,
}

/// Runs a load at the first of three brokers, whose stream has so many copies.
pub fn run(
    places: &Places,
    shared: &Path,
    load: &Load,
    copies: u32,
    brokers: u32,
    interrupt: &Interrupt,
) -> Result<Taken> {
    let brokers = start_all(places, shared, load, brokers)?;
    let first = brokers.first().context("there is a broker")?;
    create(places, &first.address, load, copies).with_context(|| first.process.log_tail())?;
    let loader = |load: &Load| {
        let mut program = Command::new(std::env::current_exe()?);
        program.arg("load");
        Loader::start(program, &plan(load, &first.address), interrupt)
    };
    let warm = Load {
        bytes: load.bytes / WARM_UP,
        ..load.clone()
    };
    let warmed = loader(&warm)?.work(interrupt);
    warmed.with_context(|| first.process.log_tail())?;
    let mut loader = loader(load)?;
    let mut ours: Vec<u32> = brokers.iter().map(|broker| broker.process.pid()).collect();
    ours.push(loader.pid());
    ours.push(std::process::id());
    let machine = Snapshot::take(&ours);
    let before = cpu(&brokers)?;
    let done = loader.work(interrupt);
    let done: Done = done.with_context(|| first.process.log_tail())?;
    let after = cpu(&brokers)?;
    let used: Vec<f64> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
    let now = Snapshot::take(&ours);
    Ok(Taken {
        records: done.records,
        bytes: done.bytes,
        seconds: done.seconds,
        primary_cpu_seconds: used[0],
        backup_cpu_seconds: used[1..].iter().sum(),
        latency: done.latency,
        restored: None,
        machine_cpu_seconds: now.busy_since(&machine).as_secs_f64(),
        others: now.others_since(&machine),
        attempts: 1,
    })
}

fn cpu(brokers: &[Started]) -> Result<Vec<f64>> {
    let used = brokers.iter().map(|broker| {
        let usage = Usage::of(broker.process.pid())?;
        Ok(usage.cpu.as_secs_f64())
    });
    used.collect()
}

fn plan(load: &Load, address: &str) -> Plan {
    Plan {
        path: ClientPath::Native,
        bootstrap: address.to_owned(),
        topic: STREAM.to_owned(),
        work: Work::Produce,
        records: load.bytes / u64::from(load.record_bytes),
        record_bytes: load.record_bytes,
        keys: Keys::None,
        batch_bytes: load.append_bytes,
        linger_us: LINGER_US,
        partitions: load.lanes,
        acks: Acks::All,
        durability: Durability::Written,
        most_ms: Some(load.millis),
        rate: None,
        crowd: Crowd::default(),
    }
}

fn start_all(places: &Places, shared: &Path, load: &Load, brokers: u32) -> Result<Vec<Started>> {
    let mut ports = Vec::new();
    for _ in 0..brokers {
        ports.push(free_port()?);
    }
    let all: Vec<(u32, u16)> = (1..).zip(ports).collect();
    let mut started = Vec::new();
    for (number, port) in &all {
        let peers = all.iter().filter(|(other, _)| other != number);
        let peers: Vec<_> = peers
            .map(|(id, at)| format!("{id}@127.0.0.1:{at}"))
            .collect();
        let name = format!("broker{number}");
        let (data, shared) = (places.data.join(&name), shared.join(&name));
        fs::create_dir_all(&data)?;
        let mut command = undisturbed(&places.kera);
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--http-listen", "off"])
            .arg("--data-dir")
            .arg(data.join("data"))
            .args(["--broker-id", &number.to_string()])
            .args(["--replication-listen", &format!("127.0.0.1:{port}")])
            .args(["--peers", &peers.join(","), "--allow-same-host"])
            .arg("--backup-shared-dir")
            .arg(shared)
            .args(["--backup-memory-bytes", &memory(load).to_string()]);
        started.push(start(command, &data)?);
    }
    Ok(started)
}

/// The program, without what the environment would tell it.
fn undisturbed(kera: &Path) -> Command {
    let mut command = Command::new(kera);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"KERA_") {
            command.env_remove(name);
        }
    }
    command
}

fn start(command: Command, data: &Path) -> Result<Started> {
    let mut process = Process::start(command, data.join("broker.log"), true)?;
    let stdout = process.stdout().context("the output is piped")?;
    let (lines, said) = sync_channel(1);
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Some(address) = line.strip_prefix("listening on ") {
                // Whatever else it says is read and dropped.
                let _ = lines.try_send(address.trim().to_owned());
            }
        }
    });
    let address = said.recv_timeout(START);
    let address = address.with_context(|| process.log_tail())?;
    Ok(Started { process, address })
}

fn create(places: &Places, address: &str, load: &Load, copies: u32) -> Result<()> {
    let least = copies.min(2).to_string();
    let mut command = undisturbed(&places.kera);
    command
        .args(["stream", "create", STREAM, "--bootstrap", address])
        .args(["--streamlets", "1", "--lanes", &load.lanes.to_string()])
        .args(["--ack", "written"])
        .args(["--segment-size", &load.segment_bytes.to_string()])
        .args(["--segments-per-group", &load.segments.to_string()])
        .args(["--replicas", &copies.to_string(), "--min-copies", &least])
        .stdin(Stdio::null());
    let output = command.output()?;
    ensure!(
        output.status.success(),
        "the stream is refused: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
