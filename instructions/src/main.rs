//! `kera-instructions`: how many instructions the data path takes, against what is recorded.
//!
//! Wall time on a shared machine tells a change of 5 % from noise only after many runs; the number of
//! instructions is the same in every run. Each case runs under callgrind, which has a processor of its
//! own, so that the counts should not depend on the machine; what does change them is the compiler.
//!
//! - `check` fails if a case takes more or less than recorded, by more than the tolerance;
//! - `accept` records what is counted now;
//! - `case NAME` runs a case's work, for callgrind.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod callgrind;
mod cases;
mod compare;
mod counted;
mod recorded;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use cases::CASES;
use compare::{Verdict, compare};
use recorded::{Recorded, Toolchain};

const USAGE: &str = "usage: kera-instructions check | accept | list | case NAME [--planted]";
/// The case that shows, in every check, that more work is seen.
const PLANTED: &str = "decode";

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = args.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["check"] => check(),
        ["accept"] => accept(),
        ["list"] => {
            CASES
                .iter()
                .for_each(|case| println!("{}: {}", case.name, case.what));
            Ok(())
        }
        ["case", name] => run(name, false),
        ["case", name, "--planted"] => run(name, true),
        _ => Err(anyhow::anyhow!(USAGE)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kera-instructions: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Where the counts are recorded.
fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("counts.toml")
}

fn run(name: &str, planted: bool) -> Result<()> {
    let case = CASES.iter().find(|case| case.name == name);
    let case = case.with_context(|| format!("there is no case {name}; `list` shows them"))?;
    let times = if planted {
        case.times + case.times.div_ceil(10)
    } else {
        case.times
    };
    (case.run)(times);
    Ok(())
}

fn check() -> Result<()> {
    let Some(valgrind) = callgrind::version() else {
        return skip("valgrind is missing; install it with your system's packages");
    };
    let recorded = Recorded::read(&file())?;
    let here = Toolchain::look();
    eprintln!("{valgrind}, {here}");
    let mut wrong = Vec::new();
    for case in &CASES {
        let count = callgrind::count(case, false)?;
        let before = recorded.counts.get(case.name).copied();
        let verdict = compare(before, count, recorded.tolerance);
        println!("{:<16} {:>9} {}: {verdict}", case.name, count, case.unit);
        if verdict != Verdict::Same {
            wrong.push(format!("{}: {verdict}", case.name));
        }
    }
    let extra = recorded.counts.keys();
    for name in extra.filter(|name| CASES.iter().all(|case| case.name != **name)) {
        wrong.push(format!("{name} is recorded, but is no case"));
    }
    planted_work_is_seen(recorded.tolerance)?;
    if wrong.is_empty() {
        return Ok(());
    }
    let wrong = wrong.join("; ");
    if here != recorded.toolchain {
        return skip(&format!(
            "{wrong}; but the counts were recorded with {}, and here is {here}",
            recorded.toolchain
        ));
    }
    bail!(
        "{wrong}. If that is as it should be, `make regenerate` or `kera-instructions accept` \
         records it"
    )
}

/// Counts a case with a tenth more work than it should have: a check that does not see that would
/// see nothing.
fn planted_work_is_seen(tolerance: f64) -> Result<()> {
    let case = CASES.iter().find(|case| case.name == PLANTED);
    let case = case.context("the planted case is gone")?;
    let (plain, planted) = (
        callgrind::count(case, false)?,
        callgrind::count(case, true)?,
    );
    let verdict = compare(Some(plain), planted, tolerance);
    ensure!(
        matches!(verdict, Verdict::More { .. }),
        "a tenth more work in {PLANTED} was not seen: {verdict}"
    );
    println!("{PLANTED:<16} {planted:>9} with work planted: {verdict}, as it must be");
    Ok(())
}

fn accept() -> Result<()> {
    ensure!(
        callgrind::version().is_some(),
        "valgrind is missing; install it with your system's packages"
    );
    let path = file();
    let mut recorded = Recorded {
        tolerance: Recorded::read(&path).map_or(recorded::TOLERANCE, |before| before.tolerance),
        toolchain: Toolchain::look(),
        counts: Default::default(),
    };
    for case in &CASES {
        let count = callgrind::count(case, false)?;
        println!("{:<16} {count:>9} {}", case.name, case.unit);
        recorded.counts.insert(case.name.to_owned(), count);
    }
    recorded.write(&path)
}

/// Says loudly that nothing was compared, where the sums of all tests list it.
fn skip(why: &str) -> Result<()> {
    use std::io::Write;
    let line = format!("SKIPPED: instructions: {why}");
    eprintln!("{line}");
    if let Some(path) = std::env::var_os("KERA_SKIP_FILE") {
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)?;
        writeln!(file, "{line}")?;
    }
    Ok(())
}
