//! Many runs, each in a process of its own.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::child::{LOG, OUTCOME};
use crate::cut::Cut;
use crate::{Args, os};

/// By this name the process of a run hears of a rule that brokers are to break.
const RULE: &str = "KERA_BROKEN_RULE";
/// Bytes that are free in memory where runs write there. A run takes some 20 MB.
const MEMORY: u64 = 2 << 30;
/// Findings of a run that are printed.
const MOST_TOLD: usize = 8;

/// A run under way.
struct Playing {
    seed: u64,
    /// Which of the runs at a time it is.
    place: usize,
    dir: TempDir,
    process: Child,
    begun: Instant,
}

/// What became of a run.
pub struct Outcome {
    seed: u64,
    pub findings: Vec<String>,
    digest: String,
    turns: u64,
    pub facts: Value,
    took: Duration,
    log: String,
}

impl Outcome {
    fn has_findings(&self) -> bool {
        !self.findings.is_empty()
    }
}

/// Plays what `args` ask for, and sums it up.
pub fn play(args: &Args) -> ExitCode {
    let seeds: Vec<u64> = match args.seed {
        Some(seed) => vec![seed],
        None => (args.first..args.first + args.seeds).collect(),
    };
    let jobs = args
        .jobs
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let mut waiting: VecDeque<u64> = seeds.iter().copied().collect();
    if args.twice {
        waiting = seeds.iter().flat_map(|seed| [*seed, *seed]).collect();
    }
    let (mut playing, mut outcomes, begun) = (Vec::new(), Vec::new(), Instant::now());
    while !waiting.is_empty() || !playing.is_empty() {
        while playing.len() < jobs
            && let Some(seed) = waiting.pop_front()
        {
            let is_free = |place: &usize| playing.iter().all(|run: &Playing| run.place != *place);
            let place = (0..jobs).find(is_free).unwrap_or(0);
            match start(args, seed, &args.cut, args.planted.as_deref(), place) {
                Ok(run) => playing.push(run),
                Err(error) => {
                    eprintln!("a run cannot be started: {error}");
                    return ExitCode::from(2);
                }
            }
        }
        std::thread::park_timeout(Duration::from_millis(5));
        let (over, rest) = part(playing, Duration::from_secs(args.within));
        playing = rest;
        for outcome in over {
            tell(args, &outcome);
            outcomes.push(outcome);
        }
        if args.planted.is_some() && outcomes.iter().any(Outcome::has_findings) {
            waiting.clear();
        }
    }
    if let Some(rule) = &args.planted {
        return say_when(args, rule, &outcomes);
    }
    sum_up(args, &outcomes, begun.elapsed())
}

/// Says after how many seeds a rule that is broken on purpose was noticed, and whether the seed is well with it kept.
fn say_when(args: &Args, rule: &str, outcomes: &[Outcome]) -> ExitCode {
    let found = outcomes.iter().filter(|one| one.has_findings());
    let Some(one) = found.min_by_key(|one| one.seed) else {
        println!("{rule}: not noticed by {} seeds", outcomes.len());
        return ExitCode::FAILURE;
    };
    let sound = play_one(args, one.seed, &args.cut, None);
    let is_sound = sound.is_ok_and(|sound| !sound.has_findings());
    println!(
        "{rule}: noticed after {} seeds, by seed {}, which {} with the rule kept",
        one.seed.saturating_sub(args.seed.unwrap_or(args.first)) + 1,
        one.seed,
        if is_sound { "is well" } else { "fails" },
    );
    match is_sound {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Plays what is left of the run of `seed`, with a broken rule or none.
pub fn play_one(args: &Args, seed: u64, cut: &Cut, rule: Option<&str>) -> std::io::Result<Outcome> {
    let mut playing = vec![start(args, seed, cut, rule, 0)?];
    loop {
        std::thread::park_timeout(Duration::from_millis(5));
        let (mut over, rest) = part(playing, Duration::from_secs(args.within));
        if let Some(outcome) = over.pop() {
            return Ok(outcome);
        }
        playing = rest;
    }
}

fn start(
    args: &Args,
    seed: u64,
    cut: &Cut,
    rule: Option<&str>,
    place: usize,
) -> std::io::Result<Playing> {
    let dir = tempfile::Builder::new()
        .prefix("kera-sim-")
        .tempdir_in(writes_to())?;
    // The paths of two runs of a seed are as long as each other, and part of neither's log.
    std::fs::create_dir(dir.path().join("m"))?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("--seed")
        .arg(seed.to_string())
        .arg("--child")
        .arg(".")
        .arg("--log")
        .arg(&args.log)
        .args(cut.options())
        .current_dir(dir.path())
        .env_clear()
        .envs(std::env::vars().filter(|(name, _)| name.starts_with("KERA_") && name != RULE))
        .stdin(Stdio::null());
    if args.trace {
        command.arg("--trace");
    }
    if args.no_losses {
        command.arg("--no-losses");
    }
    if let Some(rule) = rule {
        command.env(RULE, rule);
    }
    let processors = os::processors();
    let processor = place.checked_rem(processors.len());
    os::settle(&mut command, processor.map(|at| processors[at]));
    Ok(Playing {
        seed,
        place,
        process: command.spawn()?,
        dir,
        begun: Instant::now(),
    })
}

/// Where runs write: into memory where there is plenty, unless TMPDIR says otherwise. Simulated disks take the same time
/// anywhere, and a file system on a disk takes a tenth of a run's.
fn writes_to() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let free = || rustix::fs::statvfs(memory).map(|found| found.f_bavail * found.f_frsize);
    match std::env::var_os("TMPDIR") {
        None if free().is_ok_and(|free| free >= MEMORY) => memory.to_owned(),
        _ => std::env::temp_dir(),
    }
}

/// Those that have ended, and the others.
fn part(runs: Vec<Playing>, within: Duration) -> (Vec<Outcome>, Vec<Playing>) {
    let (mut over, mut rest) = (Vec::new(), Vec::new());
    for mut run in runs {
        match run.process.try_wait() {
            Ok(None) if run.begun.elapsed() < within => rest.push(run),
            Ok(None) => {
                // Whether it could be killed shows in what it left.
                let _ = run.process.kill();
                let _ = run.process.wait();
                over.push(outcome(run, "it did not come to its end in time"));
            }
            Ok(Some(status)) => over.push(outcome(run, &format!("its process ended: {status}"))),
            Err(error) => over.push(outcome(run, &error.to_string())),
        }
    }
    (over, rest)
}

fn outcome(run: Playing, otherwise: &str) -> Outcome {
    let read = |name: &str| std::fs::read_to_string(run.dir.path().join(name)).unwrap_or_default();
    let log = read(LOG);
    let told: Option<Value> = serde_json::from_str(&read(OUTCOME)).ok();
    let took = run.begun.elapsed();
    let Some(told) = told else {
        return Outcome {
            seed: run.seed,
            findings: vec![otherwise.to_owned()],
            digest: "none".to_owned(),
            turns: 0,
            facts: Value::Null,
            took,
            log,
        };
    };
    let findings = told["findings"].as_array().into_iter().flatten();
    Outcome {
        seed: run.seed,
        findings: findings
            .filter_map(|text| text.as_str().map(str::to_owned))
            .collect(),
        digest: told["digest"].as_str().unwrap_or_default().to_owned(),
        turns: told["turns"].as_u64().unwrap_or(0),
        facts: told["facts"].clone(),
        took,
        log,
    }
}

fn tell(args: &Args, outcome: &Outcome) {
    if args.story {
        print!("{}", outcome.log);
    }
    let facts = &outcome.facts;
    println!(
        "seed {}: {} in {:.1} s: {:.0} s of the cluster, {} records, {} transactions, {} of {} records of a table, {} by key, {} for share groups, {} kills, {} turns, log {}",
        outcome.seed,
        if !outcome.has_findings() {
            "well"
        } else {
            "FAILED"
        },
        outcome.took.as_secs_f64(),
        facts["seconds"].as_f64().unwrap_or(0.0),
        facts["history"]["acknowledged"],
        facts["transactions"]["committed"].as_u64().unwrap_or(0),
        facts["table"]["left"].as_u64().unwrap_or(0),
        facts["table"]["written"].as_u64().unwrap_or(0),
        facts["keys"]["written"].as_u64().unwrap_or(0),
        facts["shares"]["written"].as_u64().unwrap_or(0),
        facts["history"]["kills"],
        outcome.turns,
        outcome.digest,
    );
    for finding in outcome.findings.iter().take(MOST_TOLD) {
        let text: String = finding.chars().take(1_500).collect();
        println!("  {text}");
    }
    if outcome.findings.len() > MOST_TOLD {
        println!("  and {} more findings", outcome.findings.len() - MOST_TOLD);
    }
    if outcome.has_findings() {
        println!("  again: {}", args.again(outcome.seed, &args.cut));
    }
}

fn sum_up(args: &Args, outcomes: &[Outcome], took: Duration) -> ExitCode {
    let failed = outcomes.iter().filter(|one| one.has_findings()).count();
    let mut differ = Vec::new();
    if args.twice {
        for (at, one) in outcomes.iter().enumerate() {
            let other = outcomes[..at].iter().find(|other| other.seed == one.seed);
            if let Some(other) =
                other.filter(|other| other.log != one.log || other.digest != one.digest)
            {
                let lines = one.log.lines().zip(other.log.lines()).enumerate();
                let first = lines
                    .filter(|(_, (a, b))| a != b)
                    .map(|(number, (a, b))| format!("line {}:\n  {a}\n  {b}", number + 1))
                    .next();
                println!(
                    "seed {}: two runs differ, {}",
                    one.seed,
                    first.unwrap_or_else(|| "in length".to_owned())
                );
                differ.push(one.seed);
            }
        }
    }
    let seconds: f64 = outcomes
        .iter()
        .filter_map(|one| one.facts["seconds"].as_f64())
        .sum();
    println!(
        "{} runs, {failed} failed, {} differ; {seconds:.0} s of clusters in {:.0} s",
        outcomes.len(),
        differ.len(),
        took.as_secs_f64()
    );
    match failed + differ.len() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
