//! The binary `kera` that tests start.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use crate::command::{finish_within, run};
use crate::machine::skip_this;

/// Longest time of a build.
const BUILD_TIME: Duration = Duration::from_secs(1200);

/// The folder of the build's profile: a test program is `target/PROFILE/deps/TEST`.
pub fn profile() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    let folder = test.ancestors().nth(2).expect("a test is in a folder");
    folder.to_owned()
}

/// `KERA_BIN`, or the one that cargo names, which it does to tests of its own package only; or the binary next to this
/// test if it is up to date, or else it is built.
pub fn kera_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let named = ["KERA_BIN", "CARGO_BIN_EXE_kera"];
        if let Some(path) = named.into_iter().find_map(std::env::var_os) {
            return path.into();
        }
        let folder = profile();
        let binary = folder.join("kera");
        if !is_up_to_date(&binary) {
            eprintln!("building {}", binary.display());
            // With an example all has the features that it has in `cargo test --workspace`.
            cargo_build(&["--bin", "kera", "--example", "check"]);
        }
        binary
    })
}

/// Builds what `what` names in the whole workspace, into the build that this test belongs to. As the tests are built, so that
/// nothing is built in two ways, and nothing is left to do where all was built for its tests.
pub fn cargo_build(what: &[&str]) {
    let profile = profile();
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .args(["build", "--locked", "--quiet", "--workspace"])
        .args(what)
        .arg("--target-dir")
        .arg(profile.parent().expect("a profile is in a folder"));
    if profile.ends_with("release") {
        command.arg("--release");
    }
    hide_test(&mut command);
    run(command, b"", BUILD_TIME);
}

/// Hides from build scripts by what the harness tells times in `make test`, and what cargo tells a test of its package: that of
/// `ring` looks at it, and all that needs ring would be built anew.
fn hide_test(build: &mut Command) {
    let of_package =
        |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| of_package(name) || name == "RUSTC_BOOTSTRAP") {
        build.env_remove(name);
    }
}

/// The program of the version that this one has to work with, built from its commit; `KERA_EARLIER_BIN` names another.
/// `None`, and said so, where that commit is not at hand.
pub fn earlier_binary() -> Option<&'static Path> {
    static BINARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = BINARY.get_or_init(|| {
        if let Some(path) = std::env::var_os("KERA_EARLIER_BIN") {
            return Some(path.into());
        }
        eprintln!("building the earlier version");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/earlier.sh");
        let mut command = Command::new(script);
        let folder = profile();
        command.env("CARGO_TARGET_DIR", folder.parent()?);
        hide_test(&mut command);
        let finished = finish_within(command, b"", BUILD_TIME);
        if finished.status.code() == Some(ABSENT) {
            skip_this(&finished.stderr);
            return None;
        }
        assert!(finished.status.success(), "{script}: {}", finished.stderr);
        Some(finished.text().trim().into())
    });
    found.as_deref()
}

/// How the script ends where the commit is not at hand.
const ABSENT: i32 = 3;

/// Whether the binary is younger than all that it is made of, as cargo wrote down beside it.
fn is_up_to_date(binary: &Path) -> bool {
    let changed = |path: &Path| -> Option<SystemTime> { fs::metadata(path).ok()?.modified().ok() };
    let Some(built) = changed(binary) else {
        return false;
    };
    let Ok(sources) = fs::read_to_string(binary.with_extension("d")) else {
        return false;
    };
    let sources = sources.split_once(": ").map_or("", |(_, sources)| sources);
    !sources.is_empty()
        && sources
            .split_whitespace()
            .all(|source| changed(Path::new(source)).is_some_and(|at| at <= built))
}

/// The `kera` binary of this build, undisturbed by the environment.
pub fn kera() -> Command {
    undisturbed(Command::new(kera_binary()), "KERA_")
}

/// The same, started by another program that becomes it, such as `nsenter`; by none if `within` is empty.
pub fn kera_within(within: &[String]) -> Command {
    undisturbed(started_within(within, kera_binary().as_ref()), "KERA_")
}

/// A program that is started by another one, which becomes it; by none if `within` is empty.
pub(crate) fn started_within(within: &[String], program: &std::ffi::OsStr) -> Command {
    match within.split_first() {
        None => Command::new(program),
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    }
}

/// Without the caller's own settings: variables that begin so.
pub fn undisturbed(mut command: Command, prefix: &str) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(prefix.as_bytes()) {
            command.env_remove(name);
        }
    }
    command
}
