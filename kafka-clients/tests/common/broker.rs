//! The broker that the clients talk to: Kera as a process; or another one, to see that the tests
//! test what Kafka does.
//!
//! - `KAFKA_BOOTSTRAP=HOST:PORT`: a broker that runs already. Tests that restart or set up their
//!   broker say that they did not run, unless there is also
//! - `KAFKA_LIB=DIR`: a directory with the jars of Apache Kafka, which is started where a test needs
//!   a broker of its own, or for every test if there is no `KAFKA_BOOTSTRAP`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use super::apache::Apache;
use super::command::{finish, run};
use super::ports::Reserved;
use super::{PATIENCE, machine};

/// Lines of the broker's log shown when a test fails.
const LOG_LINES: usize = 60;

/// How a test wants its broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Whether asking for a topic's metadata may create it.
    pub auto_create: bool,
    /// Whether the test kills it, or asks for something that not every broker has been set up to.
    pub own: bool,
}

impl Setup {
    /// Nothing special.
    pub const PLAIN: Self = Self {
        auto_create: true,
        own: false,
    };
    /// To be killed.
    pub const KILLED: Self = Self {
        auto_create: true,
        own: true,
    };
    pub const NO_AUTO_CREATE: Self = Self {
        auto_create: false,
        own: true,
    };
    pub const AUTO_CREATE: Self = Self {
        auto_create: true,
        own: true,
    };
}

/// A broker.
pub struct Broker {
    process: Process,
    /// HOST:PORT for Kafka clients; the same after each restart.
    bootstrap: String,
}

enum Process {
    Kera(Kera),
    Apache(Apache),
    External,
}

struct Kera {
    child: Option<Child>,
    home: Option<TempDir>,
    auto_create: bool,
    /// HOST:PORT for native clients.
    address: String,
    /// Keep its ports for it while it does not run.
    _ports: [Reserved; 2],
}

/// An empty directory on the disk that holds the build.
pub fn home() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("the build's directory can be written")
}

impl Broker {
    /// A broker for the test `name`; none if there is none on this machine, which is said.
    pub fn start(name: &str, setup: Setup) -> Option<Self> {
        let external = std::env::var("KAFKA_BOOTSTRAP").ok();
        let lib = std::env::var_os("KAFKA_LIB");
        match (external, lib) {
            (Some(bootstrap), _) if !setup.own => Some(Self {
                process: Process::External,
                bootstrap,
            }),
            (_, Some(lib)) => {
                let apache = Apache::start(Path::new(&lib), setup);
                Some(Self {
                    bootstrap: apache.bootstrap(),
                    process: Process::Apache(apache),
                })
            }
            (Some(_), None) => {
                machine::skip(
                    name,
                    "the broker of KAFKA_BOOTSTRAP cannot be set up or killed",
                );
                None
            }
            (None, None) => {
                let (native, kafka) = (Reserved::new(), Reserved::new());
                let mut broker = Self {
                    bootstrap: kafka.address().to_owned(),
                    process: Process::Kera(Kera {
                        child: None,
                        home: Some(home()),
                        auto_create: setup.auto_create,
                        address: native.address().to_owned(),
                        _ports: [native, kafka],
                    }),
                };
                broker.restart();
                Some(broker)
            }
        }
    }

    /// HOST:PORT for Kafka clients; the same after each restart.
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// Whether it is Kera, and so keeps to Kera's rules where they differ from Kafka's.
    pub fn is_kera(&self) -> bool {
        matches!(self.process, Process::Kera(_))
    }

    /// Starts the broker on its directory and its ports; returns when it serves.
    pub fn restart(&mut self) {
        match &mut self.process {
            Process::Kera(kera) => self.bootstrap = kera.restart(&self.bootstrap),
            Process::Apache(apache) => apache.restart(),
            Process::External => panic!("another's broker is not restarted"),
        }
    }

    /// Starts the broker and kills it after `delay`, whether or not it serves by then.
    #[expect(
        clippy::disallowed_methods,
        reason = "a random moment is what is wanted"
    )]
    pub fn restart_in_vain(&mut self, delay: Duration) {
        if let Process::Kera(kera) = &mut self.process {
            let mut child = kera
                .command(&self.bootstrap)
                .stdout(Stdio::null())
                .spawn()
                .expect("the broker can be started");
            std::thread::sleep(delay);
            child.kill().expect("a child can be killed");
            child.wait().expect("a child can be waited for");
        }
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self) {
        match &mut self.process {
            Process::Kera(kera) => {
                let mut child = kera.child.take().expect("the broker runs");
                child.kill().expect("a child can be killed");
                child.wait().expect("a child can be waited for");
            }
            Process::Apache(apache) => apache.kill(),
            Process::External => panic!("another's broker is not killed"),
        }
    }

    /// Runs a native client command against this broker, which is Kera; what it wrote.
    pub fn kera(&self, words: &[&str], input: &[u8]) -> String {
        let Process::Kera(kera) = &self.process else {
            panic!("only Kera has native clients");
        };
        let mut command = kera_command();
        command.args(words).env("KERA_BOOTSTRAP", &kera.address);
        run(command, input, PATIENCE)
    }
}

/// The `kera` binary, undisturbed by the environment.
pub fn kera_command() -> Command {
    let mut command = Command::new(kera_binary());
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"KERA_") {
            command.env_remove(name);
        }
    }
    command
}

/// `KERA_BIN`, or the binary next to this test if it is up to date, or else it is built.
fn kera_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(path) = std::env::var_os("KERA_BIN") {
            return path.into();
        }
        let test = std::env::current_exe().expect("a test knows where it is");
        // target/PROFILE/deps/TEST
        let folder = test.ancestors().nth(2).expect("a test is in a folder");
        let binary = folder.join("kera");
        if !is_up_to_date(&binary) {
            eprintln!("building {}", binary.display());
            let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
            command
                // By this the harness tells times in `make test`; build scripts must not see it.
                .env_remove("RUSTC_BOOTSTRAP")
                .current_dir(env!("CARGO_MANIFEST_DIR"))
                .args(["build", "--locked", "--quiet", "--package", "kera"])
                .arg("--target-dir")
                .arg(folder.parent().expect("a profile is in a folder"));
            if folder.ends_with("release") {
                command.arg("--release");
            }
            run(command, b"", Duration::from_secs(1200));
        }
        binary
    })
}

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

impl Kera {
    fn home(&self) -> &Path {
        self.home.as_ref().expect("a broker has a home").path()
    }

    fn command(&self, kafka: &str) -> Command {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.home().join("broker.log"))
            .expect("the broker's log can be written");
        let mut command = kera_command();
        command
            .arg("serve")
            .args(["--listen", &self.address])
            .args(["--kafka-listen", kafka])
            .args(["--http-listen", "off"])
            .arg("--data-dir")
            .arg(self.home().join("data"))
            .env(
                "KERA_KAFKA_AUTO_CREATE_TOPICS",
                self.auto_create.to_string(),
            )
            .env("KERA_LOG_LEVEL", "debug")
            .env("KERA_KAFKA_SESSION_MIN", "500ms")
            .env("KERA_KAFKA_GROUP_INITIAL_REBALANCE_DELAY", "0ms")
            .stdin(Stdio::null())
            .stderr(log);
        command
    }

    /// Starts it; where it listens for Kafka clients.
    fn restart(&mut self, kafka: &str) -> String {
        assert!(self.child.is_none(), "the broker runs already");
        let mut child = self
            .command(kafka)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the broker can be started");
        let stdout = child.stdout.take().expect("standard output is piped");
        self.child = Some(child);
        let (lines, received) = sync_channel(16);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Read on even when nobody listens any more.
                let _ = lines.send(line);
            }
        });
        let (mut native, mut listens) = (None, None);
        while native.is_none() || listens.is_none() {
            let Ok(line) = received.recv_timeout(PATIENCE) else {
                panic!("the broker did not say that it listens");
            };
            if let Some(address) = line.strip_prefix("listening on ") {
                native = Some(address.trim().to_owned());
            } else if let Some(address) = line.strip_prefix("Kafka clients on ") {
                listens = Some(address.trim().to_owned());
            }
        }
        self.address = native.expect("just seen");
        listens.expect("just seen")
    }
}

impl Drop for Kera {
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

/// A name that no other test, nor an earlier run against the same broker, uses.
pub fn unique(name: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = name.replace('_', "-");
    // The process id tells runs apart.
    format!("{name}-{}-{count}", std::process::id())
}

/// Whether a program runs at all and succeeds.
pub fn succeeds(command: Command) -> bool {
    finish(command, b"", PATIENCE).success
}
