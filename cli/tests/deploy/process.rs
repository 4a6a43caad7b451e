//! A broker as a process, started in ways that the shared harness does not know: under a filter of
//! system calls, under limits, with a service manager that listens.

use std::fs::{self, File};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::{Announced, finish, home, http, kera};

/// A broker that serves metrics and Kafka's clients, and logs into a file.
pub struct Process {
    child: Child,
    home: TempDir,
    /// Its native address.
    pub address: String,
    /// Its address of metrics and probes.
    pub http: String,
    /// Its address of Kafka's clients.
    pub kafka: String,
}

impl Process {
    /// Has `start` spawn a `kera serve`, and returns when that serves. None where `start` gives none.
    pub fn start(start: impl FnOnce(Command) -> Option<Child>) -> Option<Self> {
        Self::by(kera(), start)
    }

    /// As [`start`](Self::start), by a shell that runs `first` before it becomes the broker.
    pub fn after(first: &str) -> Self {
        let kera = kera();
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &format!("{first} && exec \"$@\""), "sh"])
            .arg(kera.get_program());
        // What `kera()` takes from the environment.
        for (name, value) in kera.get_envs() {
            if value.is_none() {
                shell.env_remove(name);
            }
        }
        let started = Self::by(shell, |mut shell| Some(shell.spawn().expect("a shell")));
        started.expect("it is started")
    }

    fn by(mut command: Command, start: impl FnOnce(Command) -> Option<Child>) -> Option<Self> {
        let home = home();
        command
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(["--http-listen", "127.0.0.1:0"])
            .args(["--kafka-listen", "127.0.0.1:0"])
            .arg("--data-dir")
            .arg(home.path().join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(home.path().join("log")).expect("a log"));
        let mut child = start(command)?;
        let said = Announced::on(child.stdout.take(), true, true);
        // Kept either way, so that it ends with this.
        let mut process = Self {
            child,
            home,
            address: String::new(),
            http: String::new(),
            kafka: String::new(),
        };
        let said = said.unwrap_or_else(|error| panic!("{error}: {}", process.log()));
        (process.address, process.kafka, process.http) = (said.address, said.kafka, said.http);
        Some(process)
    }

    /// A broker that nothing restrains.
    pub fn free() -> Self {
        Self::with(&[])
    }

    /// As [`free`](Self::free), with more flags of `kera serve`.
    pub fn with(flags: &[&str]) -> Self {
        let started = Self::start(|mut command| {
            let child = command.args(flags).spawn();
            Some(child.expect("it can be started"))
        });
        started.expect("it is started")
    }

    /// What it logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    /// Runs a client command against it; it must succeed. What that wrote.
    pub fn run(&self, words: &[&str], input: &[u8]) -> String {
        let mut command = kera();
        command.args(words).env("KERA_BOOTSTRAP", &self.address);
        let finished = finish(command, input);
        assert!(
            finished.status.success(),
            "kera {} failed: {}\nthe broker: {}",
            words.join(" "),
            finished.stderr,
            self.log()
        );
        finished.text()
    }

    /// Status and body of a GET at its HTTP address.
    pub fn get(&self, path: &str) -> (u16, String) {
        let answer = http::get(&self.http, path);
        let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.expect("a status"), body.to_owned())
    }

    /// Sends it SIGTERM.
    pub fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("a child is signalled");
    }

    /// Waits for its end; how it ended.
    pub fn ended(mut self) -> ExitStatus {
        self.child.wait().expect("a child can be waited for")
    }

    /// SIGTERM; how it ended.
    pub fn stop(self) -> ExitStatus {
        self.terminate();
        self.ended()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Gone already, or going now; either will do.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the broker's log:\n{}", self.log());
        }
    }
}
