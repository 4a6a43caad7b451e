//! Running a case under callgrind.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cases::Case;

/// [`counted`](crate::counted::counted) in any scheme of mangling, as a pattern of callgrind's.
const COUNTED: &str = "*7counted7counted*";

/// Callgrind counts every byte that `rep movsb` copies as an instruction.
const COPY_WITHOUT_REP: &str = "glibc.cpu.hwcaps=-ERMS";

/// What `valgrind` calls itself; `None` if there is none.
pub(crate) fn version() -> Option<String> {
    let output = Command::new("valgrind").arg("--version").output().ok()?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(version)
}

/// Instructions of one unit of `case`, rounded; with `planted`, a tenth more work is done.
pub(crate) fn count(case: &Case, planted: bool) -> Result<u64> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("callgrind.out");
    let total = total(case, planted, &out)?;
    let units = case.times * case.units;
    Ok((total + units / 2) / units)
}

fn total(case: &Case, planted: bool, out: &Path) -> Result<u64> {
    let mut command = Command::new("valgrind");
    command
        .env("GLIBC_TUNABLES", COPY_WITHOUT_REP)
        .args(["--tool=callgrind", "--demangle=no", "--quiet"])
        .arg(format!("--toggle-collect={COUNTED}"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe()?)
        .args(["case", case.name]);
    if planted {
        command.arg("--planted");
    }
    let output = command.output().context("cannot run valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{} does not run under callgrind: {}",
        case.name,
        said.trim()
    );
    let text = std::fs::read_to_string(out).context("callgrind wrote nothing")?;
    let total = totals(&text).context("callgrind's file has no totals")?;
    ensure!(
        total > 0,
        "callgrind counted nothing in {}: {COUNTED} matches no function",
        case.name
    );
    Ok(total)
}

/// The number behind `totals:`, or, where the program was still counting when it ended, `summary:`.
fn totals(text: &str) -> Option<u64> {
    let number = |name: &str| {
        let mut lines = text.lines().rev();
        lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    number("totals:").or_else(|| number("summary:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_found() {
        assert_eq!(
            totals("events: Ir\nsummary: 12\nfn=(1) a\n1 2\ntotals: 12\n"),
            Some(12)
        );
        assert_eq!(totals("summary: 13\n"), Some(13));
        assert_eq!(totals("events: Ir\n"), None);
    }
}
