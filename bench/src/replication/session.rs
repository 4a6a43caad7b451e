//! Runs by turns: each starts processes of its own, and ends them.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::brokers;
use super::cases::{Case, Section, Work};
use super::child::Worker;
use super::plan::{
    Ask, BackupPlan, Done, Load, Peer, PrimaryPlan, RecoveryPlan, Restored, Said, Wire,
};
use crate::load::Latency;
use crate::measure::disk;
use crate::measure::noise::Snapshot;
use crate::session::interrupt::Interrupt;

/// The least number of a backup; the primary is broker 1.
const FIRST_BACKUP: u32 = 2;
/// What a backup has beside what its groups take.
const SPARE: u64 = 64 << 20;

/// What a run measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Taken {
    pub records: u64,
    pub bytes: u64,
    pub seconds: f64,
    /// Of the primary with its load, or of who recovers.
    pub primary_cpu_seconds: f64,
    /// Of all backups together.
    pub backup_cpu_seconds: f64,
    pub latency: Option<Latency>,
    pub restored: Option<Restored>,
    /// Of the whole machine, the kernel's own work included.
    #[serde(default)]
    pub machine_cpu_seconds: f64,
    /// Share of the cores that other processes used.
    pub others: f64,
    /// From 1; more if it had to be repeated because others used too much.
    pub attempts: u32,
}

/// Where runs take place, and what they have in common.
pub struct Stage {
    /// On shared memory; this process's own.
    folder: PathBuf,
    pub backups: u32,
    /// Where backups listen.
    address: IpAddr,
    pub interrupt: Interrupt,
    /// A run in which others use more is repeated.
    pub noise: f64,
    /// What whole brokers are started from, and where they keep their data.
    pub brokers: Option<brokers::Places>,
}

/// How often a noisy run is repeated.
const NOISY_REPEATS: u32 = 2;

impl Stage {
    /// A stage below `memory`, which is to be on shared memory.
    ///
    /// # Errors
    /// If there is too little of it.
    pub fn open(
        memory: &Path,
        backups: u32,
        address: IpAddr,
        noise: f64,
        cases: &[Case],
    ) -> Result<Self> {
        let wanted = cases
            .iter()
            .filter(|case| case.wires.iter().any(|wire| wire.keeps()))
            .map(|case| used(case) * u64::from(backups))
            .max();
        let wanted = wanted.unwrap_or(0);
        let free = disk::free(memory).with_context(|| format!("in {}", memory.display()))?;
        ensure!(
            free > wanted,
            "{} has {} MB, the largest case takes {} MB; name another folder with --memory (containers: --shm-size)",
            memory.display(),
            free / 1_000_000,
            wanted / 1_000_000
        );
        let folder = memory.join(format!("kera-bench-replication-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(Self {
            folder,
            backups,
            address,
            interrupt: Interrupt::watch()?,
            noise,
            brokers: None,
        })
    }

    /// Runs a case over one way, again if others used the machine.
    pub fn run(&self, case: &Case, wire: Wire) -> Result<Taken> {
        let mut attempts = 1;
        loop {
            let mut taken = self.once(case, wire)?;
            taken.attempts = attempts;
            if taken.others <= self.noise || attempts > NOISY_REPEATS {
                return Ok(taken);
            }
            attempts += 1;
        }
    }

    fn once(&self, case: &Case, wire: Wire) -> Result<Taken> {
        let load = case.work.load();
        if let Work::Produce(_) = case.work {
            return self.produces(load, wire);
        }
        let mut backups = self.start_backups(case, wire)?;
        let peers: Vec<_> = backups.iter().map(|(peer, _)| peer.clone()).collect();
        let plan = PrimaryPlan {
            wire,
            peers: peers.clone(),
            load: load.clone(),
        };
        let mut primary = Worker::start("replication-primary", &plan)?;
        self.ready(&mut primary)?;
        let taken = match case.work {
            Work::Append(_) | Work::Produce(_) => self.appends(&mut primary, &mut backups),
            Work::Recover { .. } => self.recovers(primary, &mut backups, wire, peers, load),
        };
        drop(backups);
        for entry in fs::read_dir(&self.folder)? {
            fs::remove_dir_all(entry?.path())?;
        }
        taken
    }

    fn produces(&self, load: &Load, wire: Wire) -> Result<Taken> {
        let places = self.brokers.as_ref().context("there is no kera binary")?;
        let all = self.backups + 1;
        let copies = if wire == Wire::Copies { all } else { 1 };
        let taken = brokers::run(places, &self.folder, load, copies, all, &self.interrupt);
        for folder in [&places.data, &self.folder] {
            for entry in fs::read_dir(folder)? {
                fs::remove_dir_all(entry?.path())?;
            }
        }
        taken
    }

    fn start_backups(&self, case: &Case, wire: Wire) -> Result<Vec<(Peer, Worker)>> {
        let mut backups = Vec::new();
        if wire == Wire::Alone {
            return Ok(backups);
        }
        let load = case.work.load();
        for id in (FIRST_BACKUP..).take(self.backups as usize) {
            let memory = match wire {
                Wire::Bare => 0,
                Wire::BareKept => u64::from(load.lanes) * u64::from(load.segment_bytes),
                _ => quota(case),
            };
            let plan = BackupPlan {
                wire,
                address: self.address,
                folder: self.folder.join(id.to_string()),
                memory,
                threads: load.threads,
            };
            let mut worker = Worker::start("replication-backup", &plan)?;
            let Said::Listening(address) = worker.hear(&self.interrupt)? else {
                bail!("a backup does not listen");
            };
            backups.push((Peer { id, address }, worker));
        }
        Ok(backups)
    }

    fn ready(&self, worker: &mut Worker) -> Result<()> {
        match worker.hear(&self.interrupt)? {
            Said::Ready => Ok(()),
            said => bail!("a process that should get ready says {said:?}"),
        }
    }

    fn appends(&self, primary: &mut Worker, backups: &mut [(Peer, Worker)]) -> Result<Taken> {
        let mut measured = Measured::begin(self, primary, backups)?;
        let Said::Done(done) = primary.ask(Ask::Go, &self.interrupt)? else {
            bail!("a primary does not say what it did");
        };
        measured.end(self, primary, backups)?;
        let Done {
            records,
            bytes,
            seconds,
            latency,
            ..
        } = *done;
        Ok(measured.taken(records, bytes, seconds, latency, None))
    }

    fn recovers(
        &self,
        mut primary: Worker,
        backups: &mut [(Peer, Worker)],
        wire: Wire,
        peers: Vec<Peer>,
        load: &Load,
    ) -> Result<Taken> {
        let Said::Done(done) = primary.ask(Ask::Go, &self.interrupt)? else {
            bail!("a primary does not say what it did");
        };
        let Said::Records(records) = primary.ask(Ask::Records, &self.interrupt)? else {
            bail!("a primary does not say what is recorded");
        };
        // SIGKILL.
        drop(primary);
        let plan = RecoveryPlan {
            wire,
            peers,
            threads: load.threads,
            records,
        };
        let mut successor = Worker::start("replication-recovery", &plan)?;
        self.ready(&mut successor)?;
        let mut measured = Measured::begin(self, &mut successor, backups)?;
        let Said::Restored(restored) = successor.ask(Ask::Go, &self.interrupt)? else {
            bail!("who recovers does not say what it did");
        };
        measured.end(self, &mut successor, backups)?;
        ensure!(
            restored.records == done.all_records,
            "{} records were acknowledged and {} are recovered",
            done.all_records,
            restored.records
        );
        let Restored { records, bytes, .. } = restored;
        let seconds = restored.read_seconds;
        Ok(measured.taken(records, bytes, seconds, None, Some(restored)))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// What a backup of this case may reserve. Where half of it is in use copies get less than they ask for, and
/// what is complete of them goes to the disk: groups that do not roll would be checked and reserved in the
/// middle of a measurement.
fn quota(case: &Case) -> u64 {
    match case.section {
        Section::Rolls | Section::Brokers => used(case),
        _ => 2 * used(case),
    }
}

/// What a backup of this case has reserved at most.
fn used(case: &Case) -> u64 {
    let load = case.work.load();
    let first = u64::from(load.lanes) * u64::from(load.segment_bytes);
    // Where groups roll, closed ones wait to be freed.
    let segments = match case.section {
        Section::Rolls => 8 * u64::from(load.segments),
        Section::Brokers => return brokers::memory(load),
        _ => 1,
    };
    first * segments + SPARE
}

/// CPU time of the processes of a run.
struct Measured {
    machine: Snapshot,
    ours: Vec<u32>,
    primary: f64,
    backups: f64,
    all: f64,
    others: f64,
}

impl Measured {
    fn begin(stage: &Stage, primary: &mut Worker, backups: &mut [(Peer, Worker)]) -> Result<Self> {
        let mut ours: Vec<_> = backups.iter().map(|(_, worker)| worker.pid()).collect();
        ours.extend([primary.pid(), std::process::id()]);
        let machine = Snapshot::take(&ours);
        let (one, all) = cpu(stage, primary, backups)?;
        Ok(Self {
            machine,
            ours,
            primary: -one,
            backups: -all,
            all: 0.0,
            others: 0.0,
        })
    }

    fn end(
        &mut self,
        stage: &Stage,
        primary: &mut Worker,
        backups: &mut [(Peer, Worker)],
    ) -> Result<()> {
        let (one, all) = cpu(stage, primary, backups)?;
        self.primary += one;
        self.backups += all;
        let now = Snapshot::take(&self.ours);
        self.all = now.busy_since(&self.machine).as_secs_f64();
        self.others = now.others_since(&self.machine);
        Ok(())
    }

    fn taken(
        &self,
        records: u64,
        bytes: u64,
        seconds: f64,
        latency: Option<Latency>,
        restored: Option<Restored>,
    ) -> Taken {
        Taken {
            records,
            bytes,
            seconds,
            primary_cpu_seconds: self.primary,
            backup_cpu_seconds: self.backups,
            latency,
            restored,
            machine_cpu_seconds: self.all,
            others: self.others,
            attempts: 1,
        }
    }
}

fn cpu(stage: &Stage, primary: &mut Worker, backups: &mut [(Peer, Worker)]) -> Result<(f64, f64)> {
    let one = primary.cpu(&stage.interrupt)?;
    let mut all = 0.0;
    for (_, backup) in backups {
        all += backup.cpu(&stage.interrupt)?;
    }
    Ok((one, all))
}
