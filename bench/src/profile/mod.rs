//! `kera-bench profile`: where the broker's time goes, as a flame graph and as a table of nanoseconds
//! per record by step of the data path, beside what bare loops take on the same machine.

mod args;
mod flame;
mod floor;
mod perf;
mod stacks;
mod steps;
mod table;

use std::path::Path;

use anyhow::{Context, Result, ensure};

pub(crate) use self::args::ProfileArgs;
use self::args::Works;
use self::floor::Floor;
use self::perf::Perf;
use self::table::Profile;
use kera_load::Done;

use crate::load::Plan;
use crate::measure::disk;
use crate::measure::machine::{Machine, utc_now};
use crate::peers::{self, Places, Running};
use crate::scenario::{Broker, ClientPath, Crowd, Durability, Size, Work};
use crate::session::interrupt::Interrupt;
use crate::session::loader::Loader;
use crate::session::workplace::Workplace;
use kera_load::process::Usage;

/// What a record takes in a batch beside its value.
const RECORD_FIELDS: f64 = 9.0;
/// Fewer samples say nothing of steps that take a few percent.
const SAMPLES: u64 = 500;
/// The linger of the load's producer, in microseconds: batches are full.
const LINGER_US: u64 = 5_000;

/// Runs a load and profiles the broker.
pub(crate) fn run(args: &ProfileArgs) -> Result<()> {
    // First what may be missing, for the builds take long.
    let perf = Perf::look()?;
    if cfg!(debug_assertions) {
        eprintln!(
            "kera-bench is built without optimisation: ITS BARE LOOPS ARE SLOW; use --release"
        );
    }
    let workplace = Workplace::open(args.data_dir.as_deref())?;
    let bytes = args.records * u64::from(args.record_bytes);
    let free = disk::free(&workplace.data)?;
    ensure!(
        free > 2 * bytes,
        "only {} MB are free below {}; name another directory with --data-dir, or fewer --records",
        free / 1_000_000,
        workplace.data.display()
    );
    let places = Places {
        build: workplace.build.clone(),
        data: workplace.data.clone(),
        kera: Some(match &args.kera {
            Some(path) => std::path::absolute(path)?,
            None => peers::profiling_kera_binary(&workplace.target)?,
        }),
    };
    let out = args.out.clone();
    let out = out.unwrap_or_else(|| workplace.build.join("profile"));
    std::fs::create_dir_all(&out)?;
    let session = Session {
        args,
        perf,
        broker: Running::start(Broker::Kera, &[args.ack], &places)?,
        interrupt: Interrupt::watch()?,
        workplace: &workplace,
    };
    session.run(&out)
}

struct Session<'a> {
    args: &'a ProfileArgs,
    perf: Perf,
    broker: Running,
    interrupt: Interrupt,
    workplace: &'a Workplace,
}

impl Session<'_> {
    fn run(&self, out: &Path) -> Result<()> {
        const TOPIC: &str = "profile";
        let durability = self.args.ack;
        self.broker
            .create(TOPIC, self.args.partitions, durability, None)?;
        let mut text = self.heading();
        let produce = self.args.work != Works::Consume;
        if produce {
            text += &self.profiled(Work::Produce, TOPIC, out)?;
        } else {
            self.loaded(Work::Produce, TOPIC, &mut || Ok(()))?;
        }
        if self.args.work != Works::Produce {
            // Nothing is left to be written while readers are profiled.
            rustix::fs::sync();
            text += &self.profiled(Work::Consume, TOPIC, out)?;
        }
        let file = out.join("profile.md");
        std::fs::write(&file, &text)?;
        print!("{text}");
        eprintln!("flame graphs and tables are in {}", out.display());
        Ok(())
    }

    fn heading(&self) -> String {
        let machine = Machine::look();
        let kernel = if self.perf.kernel {
            ""
        } else {
            ", WITHOUT THE KERNEL'S PART"
        };
        format!(
            "{} UTC, {} cores ({}) shared by broker and client, {}; sampled by {}{kernel} at {} Hz. \
             The bare loop receives, checks, copies and writes (or reads and sends) the same bytes \
             and does nothing else.\n\n",
            utc_now(),
            machine.cores,
            machine.processor,
            machine.kernel,
            self.perf.event,
            self.args.frequency,
        )
    }

    fn plan(&self, work: Work, topic: &str) -> Result<Plan> {
        let path = ClientPath::from(self.args.path);
        Ok(Plan {
            path,
            bootstrap: self.broker.address(path)?.to_owned(),
            topic: topic.to_owned(),
            work,
            records: self.args.records,
            record_bytes: self.args.record_bytes,
            keys: self.args.keys,
            batch_bytes: self.args.batch.0,
            linger_us: LINGER_US,
            partitions: self.args.partitions,
            acks: ProfileArgs::ACKS,
            durability: self.args.ack,
            most_ms: None,
            transactions: false,
            at_once: None,
            rate: None,
            crowd: Crowd::default(),
        })
    }

    /// Runs a load; `ready` is called when it is about to begin.
    fn loaded(
        &self,
        work: Work,
        topic: &str,
        ready: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Done> {
        let plan = self.plan(work, topic)?;
        let program = self.broker.load(plan.path)?;
        let mut loader = Loader::start(program, &plan, &self.interrupt)?;
        ready()?;
        let done = loader.work(&self.interrupt);
        done.with_context(|| self.broker.log_tail())
    }

    fn profiled(&self, work: Work, topic: &str, out: &Path) -> Result<String> {
        let name = match work {
            Work::Produce => "produce",
            _ => "consume",
        };
        eprintln!("profiling: {name}");
        let pid = self.broker.pid();
        let samples = self.workplace.data.join("perf.data");
        let (mut recording, mut before) = (None, Usage::default());
        let done = self.loaded(work, topic, &mut || {
            recording = Some(self.perf.record(pid, self.args.frequency, &samples)?);
            before = Usage::of(pid)?;
            Ok(())
        })?;
        let used = Usage::of(pid)?.since(&before);
        let stacks = recording.context("it was started")?.stop()?;
        let _ = std::fs::remove_file(&samples);
        if stacks.total() < SAMPLES {
            eprintln!(
                "only {} samples: small steps may be missing; profile more --records",
                stacks.total()
            );
        }
        let floor = self.floor(work)?;
        let title = self.title(name, &done);
        let nanos = used.cpu.as_nanos() as f64 / done.records.max(1) as f64;
        let graph = flame::svg(&format!("Kera's broker: {title}"), &stacks, nanos);
        std::fs::write(out.join(format!("flame-{name}.svg")), graph)?;
        let profile = Profile {
            title,
            stacks,
            nanos,
            bytes: f64::from(self.args.record_bytes) + RECORD_FIELDS,
            floor,
        };
        Ok(profile.table() + "\n")
    }

    fn floor(&self, work: Work) -> Result<Floor> {
        let bytes = self.args.records * u64::from(self.args.record_bytes);
        let (batch, folder) = (self.args.batch.0 as usize, &self.workplace.data);
        match work {
            Work::Produce => {
                let write = self.args.ack != Durability::Memory;
                Floor::of_produce(batch, bytes, folder, write)
            }
            _ => Floor::of_consume(batch, bytes, folder),
        }
    }

    fn title(&self, name: &str, done: &Done) -> String {
        let Size(bytes) = self.args.batch;
        let path = match self.args.path {
            args::Path::Native => "native clients",
            args::Path::Kafka => "Kafka clients",
        };
        format!(
            "{name}, {path}, ack {}, {} of {} bytes in batches of {}, {} at {:.1} million records/s",
            self.args.ack.name(),
            records(done.records),
            self.args.record_bytes,
            Size(bytes),
            if self.args.partitions == 1 {
                "1 partition".to_owned()
            } else {
                format!("{} partitions", self.args.partitions)
            },
            done.records as f64 / done.seconds.max(1e-9) / 1e6,
        )
    }
}

fn records(number: u64) -> String {
    if number >= 1_000_000 {
        format!("{:.1} million records", number as f64 / 1e6)
    } else {
        format!("{number} records")
    }
}
