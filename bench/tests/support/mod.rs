//! What several tests of the comparison need.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::SystemTime;

/// The binary beside this test, if it is younger than all that it is made of.
fn kera() -> Option<PathBuf> {
    let changed = |path: &Path| -> Option<SystemTime> { fs::metadata(path).ok()?.modified().ok() };
    let test = std::env::current_exe().ok()?;
    let binary = test.ancestors().nth(2)?.join("kera");
    let built = changed(&binary)?;
    let sources = fs::read_to_string(binary.with_extension("d")).ok()?;
    let mut sources = sources.split_once(": ")?.1.split_whitespace();
    let fresh = sources.all(|source| changed(Path::new(source)).is_some_and(|at| at <= built));
    fresh.then_some(binary)
}

/// `kera-bench run` with files of `folder`: scenarios, results, a document and data.
#[allow(dead_code)]
pub fn run_in(folder: &Path, scenarios: &str) -> Command {
    let path = |name: &str| folder.join(name);
    fs::write(path("smoke.toml"), scenarios).expect("written");
    fs::write(path("doc.md"), "# Figures\n\nBy hand.\n").expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kera-bench"));
    command
        .arg("run")
        .arg(path("smoke.toml"))
        .arg("--out")
        .arg(folder)
        .arg("--document")
        .arg(path("doc.md"))
        .arg("--data-dir")
        .arg(path("data"))
        // The machine is busy with other tests, which is no fault here.
        .args(["--noise", "100"]);
    with_kera(&mut command);
    command
}

/// Has it take the `kera` beside this test, or build one.
pub fn with_kera(command: &mut Command) {
    match kera() {
        Some(binary) => command.arg("--kera").arg(binary),
        // The harness tells times by this in `make test`; build scripts must not see it.
        None => command
            .args(["--profile", "dev"])
            .env_remove("RUSTC_BOOTSTRAP"),
    };
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Says loudly that a test did not run here; `make test` counts and lists it.
#[allow(dead_code)]
pub fn skip(name: &str, reason: &str) {
    let line = format!("SKIPPED: {name}: {}", reason.trim());
    eprintln!("{line}");
    if let Some(path) = std::env::var_os("KERA_SKIP_FILE") {
        let mut file = fs::File::options()
            .create(true)
            .append(true)
            .open(path)
            .expect("the list for the summary can be written");
        writeln!(file, "{line}").expect("the list for the summary can be written");
    }
}
