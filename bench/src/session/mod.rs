//! A session: brokers are started, and every case is run by turns.

pub mod interrupt;
pub mod loader;
mod peak;
mod prepare;
mod progress;
mod turn;
pub mod workplace;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use self::interrupt::Interrupt;
use self::prepare::Prepared;
use self::progress::Progress;
use self::workplace::Workplace;
use crate::args::{ListArgs, RunArgs, Selection};
use crate::measure::disk::{self, Disk};
use crate::measure::machine::{Machine, first_line_of, utc_now};
use crate::peers::{self, Places, Running};
use crate::report;
use crate::results::{CaseRuns, LeftOut, Results, Run, Taken};
use crate::scenario::{
    Acks, Broker, Case, Cases, Contender, Crowd, Durability, File, Keys, Size, Work,
};

/// Left free on the disk whatever happens.
const SPARE: u64 = 2 << 30;
/// How long a warm-up appends at most, for each kind of batches.
const WARM_UP_SECONDS: f64 = 10.0;
/// Runs of one contender that may fail in a row before its turn is dropped from a case.
const FAILURES: u32 = 2;

/// `kera-bench list`.
pub fn list(args: &ListArgs) -> Result<()> {
    let (file, cases) = select(&args.selection)?;
    for case in &cases.0 {
        let names: Vec<_> = case.able().map(Contender::name).collect();
        println!("{}: {}", case.name(), names.join(", "));
    }
    println!(
        "{} cases, {} runs",
        cases.0.len(),
        cases.runs(file.repetitions)
    );
    Ok(())
}

fn select(selection: &Selection) -> Result<(File, Cases)> {
    let mut file = match &selection.workload {
        Some(workload) => File::of_workload(workload)?,
        None => File::read(selection.path())?,
    };
    file.repetitions = selection.repetitions.unwrap_or(file.repetitions);
    file.warm_up_records /= selection.divide;
    let cases = Cases::of(&file, selection.divide).select(&selection.only, &selection.contenders);
    ensure!(
        !cases.0.is_empty(),
        "no case is chosen; `kera-bench list` shows their names"
    );
    Ok((file, cases))
}

/// `kera-bench run`.
pub fn run(args: &RunArgs) -> Result<()> {
    let (file, cases) = select(&args.selection)?;
    let workplace = Workplace::open(args.data_dir.as_deref())?;
    workplace::raise_open_files();
    let largest = cases.0.iter().map(Case::bytes).max().unwrap_or(0);
    let free = disk::free(&workplace.data)?;
    ensure!(
        free > 3 * largest + SPARE,
        "only {} MB are free below {}; name another directory with --data-dir",
        free / 1_000_000,
        workplace.data.display()
    );
    let mut disk = Disk::below(&workplace.data)?;
    disk.measure(&workplace.data)?;
    let kera = match &args.kera {
        _ if !brokers(&cases).contains_key(&Broker::Kera) => None,
        Some(path) => Some(std::path::absolute(path)?),
        None => Some(peers::kera_binary(&args.profile, &workplace.target)?),
    };
    let places = Places {
        build: workplace.build.clone(),
        data: workplace.data.clone(),
        kera,
    };
    let out = match &args.out {
        Some(path) => path.clone(),
        None => {
            let name = args.selection.path().with_extension("json");
            let name = name.file_name().unwrap_or_default().to_owned();
            workplace.build.join(name)
        }
    };
    let begin = Instant::now();
    let mut results = Results {
        format: Results::format(),
        title: file.title.clone(),
        command: file.command.clone(),
        started: utc_now(),
        minutes: 0.0,
        repetitions: file.repetitions,
        noise: args.noise,
        machine: Machine::look(),
        disk,
        versions: versions(),
        brokers: Vec::new(),
        left_out: Vec::new(),
        targets: file.target.clone(),
        cases: Vec::new(),
    };
    let mut session = Session {
        brokers: BTreeMap::new(),
        interrupt: Interrupt::watch()?,
        noise: args.noise,
        noisy_repeats: args.noisy_repeats,
        topics: 0,
        build: places.build.clone(),
        peaks: BTreeMap::new(),
    };
    session.start(&cases, &places, &mut results);
    ensure!(!session.brokers.is_empty(), "no broker could be started");
    let progress = Progress::new(cases.runs(file.repetitions));
    session.warm_up(&cases, file.warm_up_records, &progress)?;
    for case in &cases.0 {
        let runs = session.case(case, file.repetitions, &progress)?;
        results.cases.push(runs);
        results.minutes = begin.elapsed().as_secs_f64() / 60.0;
        // What is done is kept, whatever happens to the rest.
        results.write(&out)?;
    }
    progress.finish();
    drop(session);
    results.disk.measure(&workplace.data)?;
    results.minutes = begin.elapsed().as_secs_f64() / 60.0;
    results.write(&out)?;
    print!("{}", report::render(&results));
    eprintln!("results are in {}", out.display());
    for left_out in &results.left_out {
        eprintln!("{} WAS LEFT OUT: {}", left_out.broker.title(), left_out.why);
    }
    if let Some(document) = &args.document {
        report::into_document(&results, document, &link(document, &out))?;
    }
    let runs = results.cases.iter().flat_map(|case| &case.runs);
    let failed = runs.filter(|run| run.failure.is_some()).count();
    ensure!(failed == 0, "{failed} runs failed; what they said is above");
    Ok(())
}

/// The results as the document links to them: relative, if they lie below its folder.
fn link(document: &Path, out: &Path) -> String {
    let folder = document.parent().unwrap_or(Path::new(""));
    let out = out.strip_prefix(folder).unwrap_or(out);
    out.display().to_string()
}

fn versions() -> BTreeMap<String, String> {
    let (_, librdkafka) = rdkafka::util::get_rdkafka_version();
    let mut versions = BTreeMap::from([("librdkafka".to_owned(), librdkafka)]);
    let root = env!("CARGO_MANIFEST_DIR");
    let commit = first_line_of("git", &["-C", root, "rev-parse", "--short", "HEAD"]);
    if let Some(commit) = commit {
        let changed = first_line_of("git", &["-C", root, "status", "--porcelain"]).is_some();
        let changed = if changed { " with changes" } else { "" };
        versions.insert("commit".to_owned(), format!("{commit}{changed}"));
    }
    versions
}

/// The brokers that cases need, and the modes in which they are used.
fn brokers(cases: &Cases) -> BTreeMap<Broker, Vec<Durability>> {
    let mut wanted: BTreeMap<Broker, BTreeSet<Durability>> = BTreeMap::new();
    for case in &cases.0 {
        for contender in case.able() {
            let modes = wanted.entry(case.broker(contender)).or_default();
            modes.insert(case.durability);
        }
    }
    let wanted = wanted.into_iter();
    wanted
        .map(|(broker, modes)| (broker, modes.into_iter().collect()))
        .collect()
}

/// The brokers at work.
struct Session {
    brokers: BTreeMap<Broker, Running>,
    interrupt: Interrupt,
    noise: f64,
    noisy_repeats: u32,
    /// Topics made so far; each has a name of its own.
    topics: u64,
    /// Where programs are kept that are built when they are needed.
    build: PathBuf,
    /// Records a second that a contender has shown it can do, for each kind of case.
    peaks: BTreeMap<(Contender, String), Result<f64, String>>,
}

impl Session {
    fn start(&mut self, cases: &Cases, places: &Places, results: &mut Results) {
        for (broker, modes) in brokers(cases) {
            eprintln!("starting {}", broker.title());
            match Running::start(broker, &modes, places) {
                Ok(running) => {
                    results.brokers.push(running.facts.clone());
                    self.brokers.insert(broker, running);
                }
                Err(error) => {
                    let why = format!("{error:#}");
                    eprintln!("{} IS LEFT OUT: {why}", broker.title());
                    results.left_out.push(LeftOut { broker, why });
                }
            }
        }
    }

    fn new_topic(&mut self) -> String {
        self.topics += 1;
        format!("bench-{}", self.topics)
    }

    /// Lets every contender do some work of each kind that it will be measured at.
    fn warm_up(&mut self, cases: &Cases, records: u64, progress: &Progress) -> Result<()> {
        if records == 0 {
            return Ok(());
        }
        let mut contenders: Vec<Contender> = cases
            .0
            .iter()
            .flat_map(|case| case.contenders.clone())
            .collect();
        contenders.sort();
        contenders.dedup();
        contenders.retain(|one| self.brokers.contains_key(&one.broker()));
        for contender in contenders {
            progress.doing(format!("warming up {}", contender.name()));
            if let Err(error) = self.warm_up_one(contender, records) {
                self.interrupt.check()?;
                progress.say(format!("{} DID NOT WARM UP: {error:#}", contender.name()));
            }
        }
        Ok(())
    }

    fn warm_up_one(&mut self, contender: Contender, records: u64) -> Result<()> {
        let kinds = [(16 << 10, 1), (16 << 10, 16), (128 << 10, 1)];
        for (batch, partitions) in kinds {
            let produce = Case {
                scenario: "warm-up".to_owned(),
                work: Work::Produce,
                contenders: vec![contender],
                records: (records / kinds.len() as u64).max(1),
                record_bytes: 100,
                keys: Keys::Random,
                batch: Size(batch),
                linger_ms: 5.0,
                partitions,
                acks: Acks::All,
                durability: Durability::Written,
                most_seconds: Some(WARM_UP_SECONDS),
                rate: None,
                crowd: Crowd::default(),
                targets: Vec::new(),
            };
            let topic = self.new_topic();
            let broker = self.broker(&produce, contender)?;
            broker.create(&topic, partitions, produce.durability)?;
            let (produced, _) = self.run_load(&produce, contender, &topic, None)?;
            let consume = Case {
                work: Work::Consume,
                records: produced.records,
                ..produce
            };
            self.run_load(&consume, contender, &topic, None)?;
            broker.delete(&topic)?;
        }
        Ok(())
    }

    /// The broker that a contender speaks to.
    fn broker(&self, case: &Case, contender: Contender) -> Result<&Running> {
        let running = self.brokers.get(&case.broker(contender));
        let running = running.context("the broker does not run")?;
        running.check()?;
        Ok(running)
    }

    /// Runs a case: every contender in turn, and that so often.
    fn case(&mut self, case: &Case, repetitions: u32, progress: &Progress) -> Result<CaseRuns> {
        let mut runs: Vec<Run> = Vec::new();
        let present = |one: &Contender| self.brokers.contains_key(&case.broker(*one));
        let contenders: Vec<_> = case.able().filter(present).collect();
        let prepared = self.prepare(case, &contenders, progress)?;
        let actual = self.at_share_of_peak(case, &contenders, progress)?;
        let mut failed: BTreeMap<Contender, u32> = BTreeMap::new();
        for repetition in 1..=repetitions {
            for &contender in &contenders {
                if failed
                    .get(&contender)
                    .is_some_and(|&times| times >= FAILURES)
                {
                    continue;
                }
                progress.doing(format!("{} {}", contender.name(), case.name()));
                let pace = contender.paced_by().map(|pace| rate_of(&runs, pace));
                let topic = prepared.get(&case.broker(contender));
                let run = match (topic, &actual[&contender]) {
                    (Some(Err(why)), _) | (_, Err(why)) => {
                        Run::failed(contender, repetition, why.clone())
                    }
                    _ if pace == Some(None) => {
                        Run::failed(contender, repetition, "nothing gives its pace".into())
                    }
                    (topic, Ok(actual)) => {
                        let topic = topic.and_then(|topic| topic.as_ref().ok());
                        let who = (contender, pace.flatten());
                        self.repeat_while_noisy(actual, who, repetition, topic)
                    }
                };
                self.interrupt.check()?;
                if let Some(why) = &run.failure {
                    *failed.entry(contender).or_default() += 1;
                    let running = self.brokers.get(&case.broker(contender));
                    let log = running.map(Running::log_tail).unwrap_or_default();
                    progress.say(format!("{} FAILED: {why}\n  {log}", contender.name()));
                } else {
                    failed.remove(&contender);
                }
                runs.push(run);
                progress.one_done();
            }
        }
        self.clean_up(prepared, progress);
        let runs = CaseRuns {
            case: case.clone(),
            runs,
        };
        progress.say(report::one_line(&runs));
        Ok(runs)
    }

    fn repeat_while_noisy(
        &mut self,
        case: &Case,
        (contender, pace): (Contender, Option<u64>),
        repetition: u32,
        prepared: Option<&Prepared>,
    ) -> Run {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let done = match prepared {
                Some(prepared) => self.run_prepared(case, contender, prepared),
                None => self.one_run(case, (contender, pace)),
            };
            match done {
                Ok((_, others)) if others > self.noise && attempts <= self.noisy_repeats => {}
                Ok((taken, others)) => {
                    return Run {
                        contender,
                        repetition,
                        attempts,
                        noisy: others > self.noise,
                        others,
                        taken: Some(taken),
                        failure: None,
                    };
                }
                Err(error) => return Run::failed(contender, repetition, format!("{error:#}")),
            }
        }
    }

    /// A run on a topic of its own.
    fn one_run(
        &mut self,
        case: &Case,
        (contender, pace): (Contender, Option<u64>),
    ) -> Result<(Taken, f64)> {
        let topic = self.new_topic();
        self.create(case, contender, &topic)?;
        let result = self
            .fill_backlog(case, contender, &topic)
            .and_then(|()| self.run_load(case, contender, &topic, pace));
        let deleted = self.broker(case, contender)?.delete(&topic);
        if result.is_ok() {
            deleted?;
        }
        result
    }
}

/// Records a second that a contender reached in its last run.
fn rate_of(runs: &[Run], contender: Contender) -> Option<u64> {
    let mut runs = runs.iter().rev().filter(|run| run.contender == contender);
    let taken = runs.find_map(|run| run.taken.as_ref())?;
    Some((taken.records as f64 / taken.seconds) as u64)
}
