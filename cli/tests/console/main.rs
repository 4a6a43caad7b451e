//! The console: that the broker holds what its sources give, and each screen in a real browser over a live cluster.

mod browser;
mod built;
#[path = "../common/mod.rs"]
mod common;
mod login;
mod screens;
#[path = "../control/together.rs"]
#[allow(dead_code)]
mod together;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kera_testkit::command::ended_within;
use kera_testkit::etcd;

/// For downloads on a slow line.
const INSTALL: Duration = Duration::from_secs(300);

fn repository(path: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    root.expect("the crate lies in the workspace").join(path)
}

/// A folder below cargo's directory for tests with the Node packages that the lock file in `from` names, and with its
/// other files; `None` where npm or its registry is missing.
fn node_folder(from: &str, files: &[&str]) -> Option<PathBuf> {
    let from = repository(from);
    let name = from.file_name().expect("a folder").to_owned();
    let base = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let to = base.join("console-node").join(name);
    fs::create_dir_all(&to).expect("the build's directory can be written");
    let lock = File::create(to.join(".lock")).expect("a lock file");
    lock.lock().expect("a file can be locked");
    for file in ["package.json", "package-lock.json"].iter().chain(files) {
        copy(&from.join(file), &to.join(file));
    }
    let wanted = fs::read(from.join("package-lock.json")).expect("the lock file is there");
    let stamp = to.join("stamp");
    if fs::read(&stamp).ok().as_ref() != Some(&wanted) {
        let mut install = Command::new("npm");
        install
            .current_dir(&to)
            .args(["ci", "--silent", "--no-audit", "--no-fund"]);
        install.env("PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD", "1");
        if !ran(install, INSTALL).0 {
            return None;
        }
        fs::write(&stamp, wanted).expect("the build's directory can be written");
    }
    Some(to)
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        // What is no longer there is not built.
        let _ = fs::remove_dir_all(to);
        fs::create_dir_all(to).expect("a folder can be made");
        for entry in fs::read_dir(from).expect("a folder can be read") {
            let entry = entry.expect("a folder can be read");
            copy(&entry.path(), &to.join(entry.file_name()));
        }
        return;
    }
    fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
}

/// Runs a program to its end; whether it was content, and what it said.
fn ran(mut command: Command, within: Duration) -> (bool, String) {
    use std::process::Stdio;
    let shown = format!("{command:?}");
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(child) = child else {
        return (false, format!("{shown} cannot be run"));
    };
    let ended = ended_within(child, within, &shown);
    let said = format!("{}{}", ended.text(), ended.stderr);
    (ended.status.success(), said)
}
