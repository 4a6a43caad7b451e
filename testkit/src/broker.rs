//! Brokers as processes: each can be stopped, killed and brought back, and asked with client commands.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::command::{Finished, ended_within, finish, killed, lines_of, stopped};
use crate::ports::Reserved;
use crate::program::{kera, kera_within, started_within, undisturbed};
use crate::{PATIENCE, home, standstill};

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

/// Where a broker says that it listens, as HOST:PORT; empty where it was not waited for.
#[derive(Clone, Debug, Default)]
pub struct Announced {
    pub address: String,
    pub kafka: String,
    pub http: String,
}

impl Announced {
    /// Waits until a broker has said on its standard output where it listens: for its own clients, and for Kafka's and
    /// over HTTP where that is wanted.
    ///
    /// # Errors
    /// What it said instead.
    pub fn on(stdout: Option<ChildStdout>, kafka: bool, http: bool) -> Result<Self, String> {
        Self::after(SERVE.announced, stdout, kafka, http)
    }

    fn after(
        first: &str,
        stdout: Option<ChildStdout>,
        kafka: bool,
        http: bool,
    ) -> Result<Self, String> {
        let lines = lines_of(stdout.expect("standard output is piped"));
        let mut said = Self::default();
        while said.address.is_empty()
            || (kafka && said.kafka.is_empty())
            || (http && said.http.is_empty())
        {
            let Ok(line) = lines.recv_timeout(PATIENCE) else {
                return Err(format!("the broker did not say that it listens: {said:?}"));
            };
            if let Some(address) = line.strip_prefix(first) {
                said.address = address.trim().to_owned();
            } else if let Some(address) = line.strip_prefix("Kafka clients on ") {
                said.kafka = address.trim().to_owned();
            } else if let Some(url) = line.strip_prefix("metrics on http://") {
                said.http = url.trim().trim_end_matches("/metrics").to_owned();
            }
        }
        Ok(said)
    }
}

/// A broker process with a data directory of its own, on a port of its own.
pub struct Broker {
    role: Role,
    child: Option<Child>,
    home: Option<TempDir>,
    data_dir: PathBuf,
    flags: Vec<String>,
    /// More variables of its environment.
    environment: Vec<(&'static str, String)>,
    said: Announced,
    /// Keeps its port for it while it does not run.
    _port: Option<Reserved>,
    /// What goes before its command line: a program that starts it elsewhere.
    within: Vec<String>,
    /// Its program where that is not this build's.
    program: Option<PathBuf>,
}

impl Broker {
    /// Starts a broker on a port that the system chooses.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// As [`start`](Self::start), with more flags of `kera serve`.
    pub fn with(flags: &[&str]) -> Self {
        Self::started(SERVE, Vec::new(), "127.0.0.1:0", owned(flags), None)
    }

    /// A `kera replica-store` with more flags; its address is the one for other brokers.
    pub fn backup(flags: &[&str]) -> Self {
        Self::backup_at("127.0.0.1", flags)
    }

    /// As [`backup`](Self::backup), at another address of this machine.
    pub fn backup_at(ip: &str, flags: &[&str]) -> Self {
        let address = format!("{ip}:0");
        Self::started(BACKUP, Vec::new(), &address, owned(flags), None)
    }

    /// As [`with`](Self::with), with a data directory that is elsewhere.
    pub fn on(data_dir: &Path, flags: &[&str]) -> Self {
        let flags = owned(flags);
        Self::started(SERVE, Vec::new(), "127.0.0.1:0", flags, Some(data_dir))
    }

    /// As [`on`](Self::on), of a process that the program `within` starts.
    pub fn on_within(within: Vec<String>, data_dir: &Path, flags: &[&str]) -> Self {
        let flags = owned(flags);
        Self::started(SERVE, within, "127.0.0.1:0", flags, Some(data_dir))
    }

    /// The same of a `kera replica-store`.
    pub fn backup_on_within(within: Vec<String>, data_dir: &Path, flags: &[&str]) -> Self {
        let flags = owned(flags);
        Self::started(BACKUP, within, "127.0.0.1:0", flags, Some(data_dir))
    }

    /// A broker at an address of its own, whose process is started by the program `within`.
    pub fn within(within: Vec<String>, address: &str, flags: Vec<String>) -> Self {
        Self::started(SERVE, within, address, flags, None)
    }

    /// The same of a `kera replica-store`.
    pub fn backup_within(within: Vec<String>, address: &str, flags: Vec<String>) -> Self {
        Self::started(BACKUP, within, address, flags, None)
    }

    /// As [`within`](Self::within), with more variables of its environment, and not started.
    pub fn unstarted(
        within: Vec<String>,
        address: &str,
        flags: Vec<String>,
        environment: Vec<(&'static str, String)>,
    ) -> Self {
        let mut broker = Self::new(SERVE, within, address, flags, None);
        broker.environment = environment;
        broker
    }

    fn started(
        role: Role,
        within: Vec<String>,
        address: &str,
        flags: Vec<String>,
        data_dir: Option<&Path>,
    ) -> Self {
        let mut broker = Self::new(role, within, address, flags, data_dir);
        broker.restart();
        broker
    }

    fn new(
        role: Role,
        within: Vec<String>,
        address: &str,
        flags: Vec<String>,
        data_dir: Option<&Path>,
    ) -> Self {
        let home = home();
        let data_dir = data_dir.map_or_else(|| home.path().join("data"), Path::to_owned);
        let (address, port) = reserved(address);
        Self {
            role,
            child: None,
            home: Some(home),
            data_dir,
            flags,
            environment: Vec::new(),
            said: Announced {
                address,
                ..Announced::default()
            },
            _port: port,
            within,
            program: None,
        }
    }

    /// From its next start on it has these flags and no others.
    pub fn set_flags(&mut self, flags: &[&str]) {
        self.flags = owned(flags);
    }

    /// As [`with`](Self::with), by another program than this build's.
    pub fn of(program: &Path, flags: &[&str]) -> Self {
        let mut broker = Self::new(SERVE, Vec::new(), "127.0.0.1:0", owned(flags), None);
        broker.program = Some(program.to_owned());
        broker.restart();
        broker
    }

    /// From its next start on it is this program; this build's if none is named.
    pub fn set_program(&mut self, program: Option<&Path>) {
        self.program = program.map(Path::to_owned);
    }

    /// HOST:PORT; the same after each restart.
    pub fn address(&self) -> &str {
        &self.said.address
    }

    /// Where clients of a cluster begin: at any of its brokers.
    pub fn bootstrap(brokers: &[Self]) -> String {
        let addresses: Vec<_> = brokers.iter().map(Self::address).collect();
        addresses.join(",")
    }

    /// HOST:PORT for Kafka's clients, if it has some.
    pub fn kafka(&self) -> &str {
        &self.said.kafka
    }

    /// HOST:PORT of its metrics and probes, if it serves them.
    pub fn http(&self) -> &str {
        &self.said.http
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
        let (kafka, http) = (self.has("--kafka-listen"), self.has("--http-listen"));
        let said = Announced::after(
            self.role.announced,
            child.stdout.take(),
            kafka,
            http && self.role.command == SERVE.command,
        );
        // Kept either way, so that it ends with this.
        self.child = Some(child);
        self.said = said.unwrap_or_else(|error| panic!("{error}"));
        begin.elapsed()
    }

    /// Whether it is told to listen there.
    fn has(&self, flag: &str) -> bool {
        let given = self.flags.windows(2).find(|pair| pair[0] == flag);
        given.is_some_and(|pair| pair[1] != "off")
    }

    /// Starts the broker and kills it after `delay`, whether or not it serves by then.
    #[expect(
        clippy::disallowed_methods,
        reason = "a random moment is what is wanted"
    )]
    pub fn restart_in_vain(&mut self, delay: Duration) {
        assert!(self.child.is_none(), "the broker runs already");
        let child = self
            .command()
            .stdout(Stdio::null())
            .stderr(self.open_log())
            .spawn()
            .expect("the broker can be started");
        std::thread::sleep(delay);
        killed(child);
    }

    /// A process like this one, not started.
    pub fn command(&self) -> Command {
        let mut command = match &self.program {
            Some(program) => undisturbed(started_within(&self.within, program.as_ref()), "KERA_"),
            None => kera_within(&self.within),
        };
        command
            .arg(self.role.command)
            .args([self.role.listen, self.address()])
            .arg("--data-dir")
            .arg(self.data_dir())
            .args(&self.flags)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null());
        let given = self.flags.windows(2);
        let mut listens = given.filter(|pair| pair[0].ends_with("-listen") && pair[1] != "off");
        // Of a network that the test made, which nobody else reaches.
        let beyond = |address: &str| !address.starts_with("127.");
        if beyond(self.address()) || listens.any(|pair| beyond(&pair[1])) {
            command.arg("--insecure");
        }
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
        killed(self.child.take().expect("the broker runs"));
    }

    /// SIGTERM; how the broker ended.
    pub fn stop(&mut self) -> ExitStatus {
        stopped(self.child.take().expect("the broker runs"))
    }

    /// Waits until it has ended by itself; what it logged.
    pub fn ended(&mut self) -> String {
        let child = self.child.take().expect("the broker runs");
        ended_within(child, PATIENCE, "the broker");
        self.log()
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
        command.args(words).env("KERA_BOOTSTRAP", self.address());
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
        if let Some(child) = self.child.take() {
            killed(child);
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

fn owned(flags: &[&str]) -> Vec<String> {
    flags.iter().map(|flag| (*flag).to_owned()).collect()
}
