//! Builds the client programs, below cargo's target directory.

use std::collections::HashMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kera_testkit::command::run;

/// For downloads and builds on a slow machine.
const BUILD: Duration = Duration::from_secs(600);

/// Where the clients' programs are.
fn sources(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)
}

fn built(folder: &str) -> PathBuf {
    kera_testkit::scratch().join(folder)
}

/// Lines of what a process wrote that a failed test shows.
const LAST_WORDS: usize = 60;

/// Whether the machine has a program.
pub fn has(program: &str) -> bool {
    // All of them know one of the two.
    ["--version", "version", "-version", "-V"]
        .iter()
        .any(|flag| {
            Command::new(program)
                .arg(flag)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        })
}

/// None when all are there; else what is missing.
pub fn missing(programs: &[&str]) -> Option<String> {
    let missing: Vec<&str> = programs
        .iter()
        .copied()
        .filter(|program| !has(program))
        .collect();
    (!missing.is_empty()).then(|| format!("needs {} (see scripts/needs.sh)", missing.join(" and ")))
}

/// As [`missing`], for Go: from 1.21 on it gets the version that a module asks for by itself.
pub fn missing_go() -> Option<String> {
    let output = Command::new("go").args(["env", "GOVERSION"]).output().ok();
    let version = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let minor = version
        .as_deref()
        .and_then(|version| version.trim().strip_prefix("go1."))
        .and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    match minor {
        Some(21..) => None,
        _ => Some("needs go 1.21 or later (see scripts/needs.sh)".to_owned()),
    }
}

/// As [`missing`], for Python with its virtual environments.
pub fn missing_python() -> Option<String> {
    let found = Command::new("python3")
        .args(["-c", "import ensurepip, venv"])
        .stderr(Stdio::null())
        .status();
    match found {
        Ok(status) if status.success() => None,
        _ => Some("needs python3 with venv (see scripts/needs.sh)".to_owned()),
    }
}

static BUILT: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);

/// Runs `build` once in this process, and not at all if an earlier one did with the same sources.
fn once(name: &str, folder: &str, build: impl FnOnce(&Path, &Path)) -> PathBuf {
    let mut known = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_with(HashMap::new);
    if let Some(path) = known.get(name) {
        return path.clone();
    }
    let (from, to) = (sources(folder), built(&format!("kafka-{name}")));
    fs::create_dir_all(&to).expect("the build's directory can be written");
    // Other test programs may run at the same time.
    let lock = File::create(built(&format!("kafka-{name}.lock"))).expect("a lock file");
    lock.lock().expect("a file can be locked");
    let mut hasher = DefaultHasher::new();
    hash_tree(&from, &mut hasher);
    let stamp = to.join("stamp");
    let wanted = hasher.finish().to_string();
    if fs::read_to_string(&stamp).ok().as_ref() != Some(&wanted) {
        build(&from, &to);
        fs::write(&stamp, wanted).expect("the build's directory can be written");
    }
    known.insert(name.to_owned(), to.clone());
    to
}

fn hash_tree(path: &Path, hasher: &mut DefaultHasher) {
    let mut entries: Vec<PathBuf> = fs::read_dir(path)
        .expect("the clients' sources are there")
        .map(|entry| entry.expect("a directory can be read").path())
        .collect();
    entries.sort();
    for entry in entries {
        if entry.is_dir() {
            hash_tree(&entry, hasher);
        } else {
            entry.hash(hasher);
            fs::read(&entry).expect("a file can be read").hash(hasher);
        }
    }
}

/// Compiles a Maven project; its class path. `name` tells apart builds of one project with
/// different `properties`.
pub fn java(name: &str, folder: &str, properties: &[&str]) -> String {
    let to = once(name, folder, |from, to| {
        let mut command = Command::new("mvn");
        command
            .env("MAVEN_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            .args(["--batch-mode", "--quiet", "--no-transfer-progress"])
            .arg("--file")
            .arg(from.join("pom.xml"))
            .arg(format!("-Dagent.build={}", to.display()))
            .args(properties)
            .args(["compile", "dependency:build-classpath"])
            .arg(format!(
                "-Dmdep.outputFile={}",
                to.join("classpath").display()
            ));
        run(command, b"", BUILD);
    });
    let jars = fs::read_to_string(to.join("classpath")).expect("Maven wrote the class path");
    format!("{}:{}", to.join("classes").display(), jars.trim())
}

/// A Java command with such a class path, quick to start.
pub fn java_command(class_path: &str) -> Command {
    let mut command = Command::new("java");
    command
        .args([
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xshare:auto",
            "-Xmx256m",
        ])
        .args([
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            class_path,
        ]);
    command
}

/// Compiles a Go program.
pub fn go(name: &str, folder: &str) -> PathBuf {
    once(name, folder, |from, to| {
        let mut command = Command::new("go");
        command
            .current_dir(from)
            .args(["build", "-mod=readonly", "-o"])
            .arg(to.join("agent"))
            .arg(".");
        run(command, b"", BUILD);
    })
    .join("agent")
}

/// Makes a virtual environment with what `requirements.txt` names; its interpreter.
pub fn python(name: &str, folder: &str) -> PathBuf {
    let to = once(name, folder, |from, to| {
        let mut command = Command::new("python3");
        command.args(["-m", "venv", "--clear"]).arg(to.join("venv"));
        run(command, b"", BUILD);
        let mut command = Command::new(to.join("venv/bin/python"));
        command
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ])
            .arg("--requirement")
            .arg(from.join("requirements.txt"));
        run(command, b"", BUILD);
    });
    to.join("venv/bin/python")
}

/// Installs what `package.json` names next to a copy of a Node program; where that is.
pub fn node(name: &str, folder: &str) -> PathBuf {
    once(name, folder, |from, to| {
        for entry in fs::read_dir(from).expect("the clients' sources are there") {
            let entry = entry.expect("a directory can be read");
            fs::copy(entry.path(), to.join(entry.file_name())).expect("a file can be copied");
        }
        let mut command = Command::new("npm");
        command
            .current_dir(to)
            .args(["ci", "--silent", "--no-audit", "--no-fund"]);
        run(command, b"", BUILD);
    })
}

/// Shows the end of the log of a process of a test that fails.
pub fn show_last_words(of: &str, log: &Path) {
    if !std::thread::panicking() {
        return;
    }
    let log = fs::read(log).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().collect();
    eprintln!("the last words of {of}:");
    for line in &lines[lines.len().saturating_sub(LAST_WORDS)..] {
        eprintln!("    {line}");
    }
}
