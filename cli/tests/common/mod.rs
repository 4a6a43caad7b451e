//! Runs the real `kera` binary: a broker that can be killed and brought back, and client commands.

// Each test program uses a part of it.
#![allow(dead_code)]

pub mod command;
pub mod holdings;
pub mod http;
pub mod machine;
pub mod ports;
pub mod raw;
pub mod reasons;
pub mod small_disk;
pub mod standstill;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use ports::Reserved;

pub use command::{Finished, finish, kera, kera_within};

/// Whatever takes longer has failed. Nothing is expected to take anywhere near as long.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Lines of the broker's log shown when a test fails.
const LOG_LINES: usize = 80;

/// What a process is, and the line with which it says where it listens.
#[derive(Clone, Copy)]
struct Role {
    command: &'static str,
    listen: &'static str,
    announced: &'static str,
}

const SERVE: Role = Role {
    command: "serve",
    listen: "--listen",
    announced: "listening on ",
};
const BACKUP: Role = Role {
    command: "replica-store",
    listen: "--replication-listen",
    announced: "keeping replicas for other brokers on ",
};

/// A broker process with a data directory of its own, on a port of its own.
pub struct Broker {
    role: Role,
    child: Option<Child>,
    home: Option<TempDir>,
    data_dir: PathBuf,
    flags: Vec<String>,
    address: String,
    /// Keeps its port for it while it does not run.
    _port: Option<Reserved>,
    /// What goes before its command line: a program that starts it elsewhere.
    within: Vec<String>,
}

/// An empty directory on the disk that holds the build, for data that is to be durable.
pub fn home() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("the build's directory can be written")
}

impl Broker {
    /// Starts a broker on a port that the system chooses.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// As [`start`](Self::start), with more flags of `kera serve`.
    pub fn with(flags: &[&str]) -> Self {
        let home = home();
        let data_dir = home.path().join("data");
        Self::new(SERVE, home, data_dir, flags)
    }

    /// A `kera replica-store` with more flags; its address is the one for other brokers.
    pub fn backup(flags: &[&str]) -> Self {
        Self::backup_at("127.0.0.1", flags)
    }

    /// As [`backup`](Self::backup), at another address of this machine.
    pub fn backup_at(ip: &str, flags: &[&str]) -> Self {
        let home = home();
        let data_dir = home.path().join("data");
        Self::listening(BACKUP, format!("{ip}:0"), home, data_dir, flags)
    }

    /// A broker whose data directory is elsewhere.
    pub fn on(data_dir: &Path) -> Self {
        Self::new(SERVE, home(), data_dir.to_owned(), &[])
    }

    /// A broker at an address of its own, whose process is started by the program `within`.
    pub fn within(within: Vec<String>, address: &str, flags: Vec<String>) -> Self {
        Self::started_by(SERVE, within, address, flags)
    }

    /// The same of a `kera replica-store`.
    pub fn backup_within(within: Vec<String>, address: &str, flags: Vec<String>) -> Self {
        Self::started_by(BACKUP, within, address, flags)
    }

    fn started_by(role: Role, within: Vec<String>, address: &str, flags: Vec<String>) -> Self {
        let home = home();
        let data_dir = home.path().join("data");
        let (address, port) = reserved(address);
        let mut broker = Self {
            role,
            child: None,
            home: Some(home),
            data_dir,
            flags,
            address,
            _port: port,
            within,
        };
        broker.restart();
        broker
    }

    fn new(role: Role, home: TempDir, data_dir: PathBuf, flags: &[&str]) -> Self {
        Self::listening(role, "127.0.0.1:0".to_owned(), home, data_dir, flags)
    }

    fn listening(
        role: Role,
        address: String,
        home: TempDir,
        data_dir: PathBuf,
        flags: &[&str],
    ) -> Self {
        let (address, port) = reserved(&address);
        let mut broker = Self {
            role,
            child: None,
            home: Some(home),
            data_dir,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            address,
            _port: port,
            within: Vec::new(),
        };
        broker.restart();
        broker
    }

    /// From its next start on it has these flags and no others.
    pub fn set_flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    /// HOST:PORT; the same after each restart.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// It was started, and nobody has stopped it.
    pub fn was_started(&self) -> bool {
        self.child.is_some()
    }

    /// The data directory.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    fn home(&self) -> &Path {
        self.home.as_ref().expect("a broker has a home").path()
    }

    /// The running broker's process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the broker runs").id()
    }

    /// What the broker logged, over all its lives.
    pub fn log(&self) -> String {
        fs::read_to_string(self.home().join("broker.log")).unwrap_or_default()
    }

    /// Starts the broker on its directory and its port; returns when it serves, with how long that took.
    pub fn restart(&mut self) -> Duration {
        assert!(self.child.is_none(), "the broker runs already");
        let begin = Instant::now();
        let mut child = self
            .command()
            .stdout(Stdio::piped())
            .stderr(self.open_log())
            .spawn()
            .expect("the broker can be started");
        let lines = lines_of(&mut child);
        self.child = Some(child);
        loop {
            let Ok(line) = lines.recv_timeout(PATIENCE) else {
                panic!("the broker did not say that it listens");
            };
            if let Some(address) = line.strip_prefix(self.role.announced) {
                self.address = address.trim().to_owned();
                return begin.elapsed();
            }
        }
    }

    /// Starts the broker and kills it after `delay`, whether or not it serves by then.
    #[expect(
        clippy::disallowed_methods,
        reason = "a random moment is what is wanted"
    )]
    pub fn restart_in_vain(&mut self, delay: Duration) {
        assert!(self.child.is_none(), "the broker runs already");
        let mut child = self
            .command()
            .stdout(Stdio::null())
            .stderr(self.open_log())
            .spawn()
            .expect("the broker can be started");
        std::thread::sleep(delay);
        child.kill().expect("a child can be killed");
        child.wait().expect("a child can be waited for");
    }

    /// A process like this one, not started.
    pub fn command(&self) -> Command {
        let mut command = match self.within.split_first() {
            None => kera(),
            Some((program, arguments)) => kera_within(program, arguments),
        };
        command
            .arg(self.role.command)
            .args([self.role.listen, &self.address])
            .arg("--data-dir")
            .arg(self.data_dir())
            .args(&self.flags)
            .stdin(Stdio::null());
        if !self.flags.iter().any(|flag| flag == "--http-listen") {
            command.args(["--http-listen", "off"]);
        }
        command
    }

    fn open_log(&self) -> File {
        let path = self.home().join("broker.log");
        let file = File::options().create(true).append(true).open(path);
        file.expect("the broker's log can be written")
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("the broker runs");
        child.kill().expect("a child can be killed");
        child.wait().expect("a child can be waited for");
    }

    /// SIGTERM; how the broker ended.
    pub fn stop(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("the broker runs");
        let pid = pid_of(&child);
        kill_process(pid, Signal::TERM).expect("a child is signalled");
        let (ended, waiting) = sync_channel(1);
        std::thread::spawn(move || ended.send(child.wait()));
        let Ok(status) = waiting.recv_timeout(PATIENCE) else {
            // It has not been waited for, so the id is still its own.
            let _ = kill_process(pid, Signal::KILL);
            panic!("the broker did not stop at SIGTERM");
        };
        status.expect("a child can be waited for")
    }

    /// Stops the process where it is, or lets it go on. Stopped, all of it stands still.
    pub fn pause(&self, paused: bool) {
        let child = self.child.as_ref().expect("the broker runs");
        if paused {
            standstill::stand_still(child);
        } else {
            standstill::go_on(child);
        }
    }

    /// Whether the broker process still runs.
    pub fn is_running(&mut self) -> bool {
        self.child
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Runs a client command against this broker; it must succeed. What it wrote.
    pub fn run(&self, words: &[&str]) -> String {
        self.feed(words, b"")
    }

    /// As [`run`](Self::run), with standard input.
    pub fn feed(&self, words: &[&str], input: &[u8]) -> String {
        let finished = self.attempt(words, input);
        assert!(
            finished.status.success(),
            "kera {} failed: {}",
            words.join(" "),
            finished.stderr
        );
        finished.text()
    }

    /// Runs a client command that must fail with status 1; what it said.
    pub fn refused(&self, words: &[&str]) -> String {
        let finished = self.attempt(words, b"");
        assert_eq!(
            finished.status.code(),
            Some(1),
            "kera {} ended with {}: {}",
            words.join(" "),
            finished.status,
            finished.stderr
        );
        finished.stderr
    }

    /// Runs a client command, however it ends.
    pub fn attempt(&self, words: &[&str], input: &[u8]) -> Finished {
        let mut command = kera();
        command.args(words).env("KERA_BOOTSTRAP", &self.address);
        finish(command, input)
    }

    /// Waits until this broker has heard of a stream that was made at another.
    pub fn hears_of(&self, stream: &str) {
        self.until(&["stream", "list"], |listed| {
            let mut streams = listed.as_array().into_iter().flatten();
            streams.any(|found| found["name"] == stream)
        });
    }

    /// Asks until the answer is as it is to be: a broker may serve before the store has told it of all.
    pub fn until(&self, words: &[&str], wanted: impl Fn(&serde_json::Value) -> bool) {
        let begin = Instant::now();
        loop {
            let answer = self.json(words);
            if wanted(&answer) {
                return;
            }
            let words = words.join(" ");
            assert!(begin.elapsed() < PATIENCE, "kera {words} stays at {answer}");
        }
    }

    /// Runs a client command with `--json`; its answer.
    pub fn json(&self, words: &[&str]) -> serde_json::Value {
        let words: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
        let text = self.run(&words);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Gone already, or going now; either will do.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking()
            && let Some(home) = self.home.take()
        {
            let home = home.keep();
            let log = fs::read_to_string(home.join("broker.log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
            eprintln!("the broker's last words, from {}:", home.display());
            eprintln!("{}", last.join("\n"));
        }
    }
}

/// `address`, and what keeps its port if it names none.
fn reserved(address: &str) -> (String, Option<Reserved>) {
    match address.strip_suffix(":0") {
        Some(ip) => {
            let port = Reserved::at(ip);
            (port.address().to_owned(), Some(port))
        }
        None => (address.to_owned(), None),
    }
}

/// A child's process id, for as long as it was not waited for.
pub fn pid_of(child: &Child) -> Pid {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.expect("a child has a process id")
}

/// The lines that a child writes to its standard output, read as they come so that it never waits.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let stdout = child.stdout.take().expect("standard output is piped");
    let (lines, received) = sync_channel(16);
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // Read on even when nobody listens any more.
            let _ = lines.send(line);
        }
    });
    received
}
