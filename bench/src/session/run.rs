//! `kera-bench run`: several files of scenarios in one session.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::interrupt::Interrupt;
use super::progress::Progress;
use super::workplace::{self, Workplace};
use super::{Session, brokers_of};
use crate::args::{ListArgs, RunArgs, Selection};
use crate::measure::disk::{self, Disk};
use crate::measure::machine::{Machine, commit, utc_now};
use crate::peers::{self, Places};
use crate::report;
use crate::results::{BrokerFacts, LeftOut, Results};
use crate::scenario::{Case, Cases, Contender, File};

/// Left free on the disk whatever happens.
const SPARE: u64 = 2 << 30;

/// A file of the session.
struct Part {
    file: File,
    cases: Cases,
    /// Where its results go.
    out: PathBuf,
    /// Results that are to be completed.
    old: Option<Results>,
}

impl Part {
    fn runs(&self) -> u64 {
        self.cases.runs(self.file.repetitions)
    }
}

/// `kera-bench list`.
pub(crate) fn list(args: &ListArgs) -> Result<()> {
    let (mut cases, mut runs) = (0, 0);
    for part in select(&args.selection, Path::new(""))? {
        for case in &part.cases.0 {
            let names: Vec<_> = case.able().map(Contender::name).collect();
            println!("{}: {}", case.name(), names.join(", "));
        }
        cases += part.cases.0.len();
        runs += part.runs();
    }
    println!("{cases} cases, {runs} runs");
    Ok(())
}

/// Reads the files and chooses their cases; files without one are dropped.
fn select(selection: &Selection, out: &Path) -> Result<Vec<Part>> {
    let mut parts: Vec<Part> = Vec::new();
    for path in &selection.scenarios {
        let mut file = File::read(path)?;
        file.repetitions = selection.repetitions.unwrap_or(file.repetitions);
        file.warm_up_records /= selection.divide;
        let cases = Cases::of(&file, selection.divide);
        let cases = cases.select(&selection.only, &selection.contenders);
        let name = path.with_extension("json");
        let out = out.join(name.file_name().context("a file of scenarios has a name")?);
        for other in &parts {
            ensure!(
                other.out != out && other.file.title != file.title,
                "{} has the title or the name of another file of this session",
                path.display()
            );
        }
        if !cases.0.is_empty() {
            parts.push(Part {
                file,
                cases,
                out,
                old: None,
            });
        }
    }
    ensure!(
        !parts.is_empty(),
        "no case is chosen; `kera-bench list` shows their names"
    );
    Ok(parts)
}

/// Leaves only cases that the results so far lack.
fn keep_missing(parts: &mut Vec<Part>) -> Result<()> {
    for part in parts.iter_mut().filter(|part| part.out.exists()) {
        let old = Results::read(&part.out)?;
        part.cases.0.retain(|case| !old.has(case));
        part.old = Some(old);
    }
    parts.retain(|part| !part.cases.0.is_empty());
    ensure!(!parts.is_empty(), "no case is missing");
    Ok(())
}

/// `kera-bench run`.
pub(crate) fn run(args: &RunArgs) -> Result<()> {
    // What is wrong with a file is said before anything is locked, built or started.
    select(&args.selection, Path::new(""))?;
    let workplace = Workplace::open(args.data_dir.as_deref())?;
    workplace::raise_open_files();
    let out = args.out.as_ref().unwrap_or(&workplace.build);
    ensure!(
        !out.is_file() && out.extension().is_none_or(|ending| ending != "json"),
        "--out names a folder now, not {}",
        out.display()
    );
    let mut parts = select(&args.selection, out)?;
    if args.missing {
        keep_missing(&mut parts)?;
    }
    let all: Vec<Case> = parts.iter().flat_map(|part| part.cases.0.clone()).collect();
    let all: Vec<&Case> = all.iter().collect();
    check_room(&all, &workplace.data)?;
    let mut disk = Disk::below(&workplace.data)?;
    disk.measure(&workplace.data)?;
    let kera = match &args.kera {
        _ if !brokers_of(&all).keys().any(|broker| broker.is_kera()) => None,
        Some(path) => Some(std::path::absolute(path)?),
        None => Some(peers::kera_binary(&args.profile, &workplace.target)?),
    };
    let places = Places {
        build: workplace.build.clone(),
        data: workplace.data.clone(),
        kera,
    };
    let mut session = Session {
        brokers: BTreeMap::new(),
        interrupt: Interrupt::watch()?,
        noise: args.noise,
        noisy_repeats: args.noisy_repeats,
        topics: 0,
        places,
        peaks: BTreeMap::new(),
    };
    let (facts, left_out) = session.start(&all);
    ensure!(!session.brokers.is_empty(), "no broker could be started");
    let progress = Progress::new(&all, |case| {
        let part = parts.iter().find(|part| part.cases.0.contains(case));
        part.map_or(1, |part| part.file.repetitions)
    });
    let warm_up = parts.iter().map(|part| part.file.warm_up_records).max();
    session.warm_up(&all, warm_up.unwrap_or(0), &progress)?;

    let mut failed = 0;
    let last = parts.len() - 1;
    for (turn, part) in parts.iter().enumerate() {
        progress.file(turn + 1, parts.len(), &part.file.title);
        let mut results = begin(part, args.noise, &disk, (&facts, &left_out));
        let started = Instant::now();
        for case in &part.cases.0 {
            let runs = session.case(case, part.file.repetitions, &progress)?;
            results.cases.push(runs);
            results.minutes = started.elapsed().as_secs_f64() / 60.0;
            // What is done is kept, whatever happens to the rest.
            keep(&results, part)?;
        }
        if turn == last {
            progress.finish();
            session.brokers.clear();
        }
        let mut now = disk.clone();
        now.write_mb_per_second.clear();
        now.measure(&workplace.data)?;
        results
            .disk
            .write_mb_per_second
            .extend(&now.write_mb_per_second);
        disk = now;
        keep(&results, part)?;
        progress.print(&report::render(&results));
        progress.say(format!("results are in {}", part.out.display()));
        let runs = results.cases.iter().flat_map(|case| &case.runs);
        failed += runs.filter(|run| run.failure.is_some()).count();
    }
    drop(session);
    for one in &left_out {
        eprintln!("{} WAS LEFT OUT: {}", one.broker.title(), one.why);
    }
    if let Some(document) = &args.document {
        report::rebuild(std::slice::from_ref(out), document)?;
    }
    ensure!(failed == 0, "{failed} runs failed; what they said is above");
    Ok(())
}

/// Writes what was measured, with what is to be completed by it.
fn keep(results: &Results, part: &Part) -> Result<()> {
    match &part.old {
        Some(old) => {
            let mut whole = old.clone();
            whole.complete_from(results)?;
            whole.write(&part.out)
        }
        None => results.write(&part.out),
    }
}

/// The results of a file before its first case.
fn begin(
    part: &Part,
    noise: f64,
    disk: &Disk,
    (facts, left_out): (&[BrokerFacts], &[LeftOut]),
) -> Results {
    let file = &part.file;
    let cases: Vec<&Case> = part.cases.0.iter().collect();
    let ours = brokers_of(&cases);
    Results {
        format: Results::format(),
        title: file.title.clone(),
        command: file.command.clone(),
        started: utc_now(),
        minutes: 0.0,
        repetitions: file.repetitions,
        noise,
        machine: Machine::look(),
        disk: disk.clone(),
        versions: versions(),
        brokers: facts
            .iter()
            .filter(|one| ours.contains_key(&one.broker))
            .cloned()
            .collect(),
        left_out: left_out
            .iter()
            .filter(|one| ours.contains_key(&one.broker))
            .cloned()
            .collect(),
        targets: file.target.clone(),
        plots: file.plot.clone(),
        others: Vec::new(),
        cases: Vec::new(),
    }
}

fn check_room(cases: &[&Case], data: &Path) -> Result<()> {
    let largest = cases.iter().map(|case| case.bytes()).max().unwrap_or(0);
    let free = disk::free(data)?;
    ensure!(
        free > 3 * largest + SPARE,
        "only {} MB are free below {}; name another directory with --data-dir",
        free / 1_000_000,
        data.display()
    );
    Ok(())
}

fn versions() -> BTreeMap<String, String> {
    let (_, librdkafka) = rdkafka::util::get_rdkafka_version();
    let mut versions = BTreeMap::from([("librdkafka".to_owned(), librdkafka)]);
    versions.extend(commit().map(|commit| ("commit".to_owned(), commit)));
    versions
}
