//! The broker that the clients talk to: Kera as a process; or another one, to see that the tests
//! test what Kafka does.
//!
//! - `KAFKA_BOOTSTRAP=HOST:PORT`: a broker that runs already. Tests that restart or set up their
//!   broker say that they did not run, unless there is also
//! - `KAFKA_LIB=DIR`: a directory with the jars of Apache Kafka, which is started where a test needs
//!   a broker of its own, or for every test if there is no `KAFKA_BOOTSTRAP`.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kera_testkit::command::finish_within;
use kera_testkit::machine;
use kera_testkit::ports::Reserved;

use super::PATIENCE;
use super::apache::Apache;

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
    Kera(Box<Kera>),
    Apache(Apache),
    External,
}

struct Kera {
    broker: kera_testkit::Broker,
    /// Keeps its port for it while it does not run.
    _port: Reserved,
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
                let port = Reserved::new();
                let kafka = port.address().to_owned();
                let mut broker = Self {
                    process: Process::Kera(Box::new(Kera {
                        broker: kera(&kafka, setup.auto_create),
                        _port: port,
                    })),
                    bootstrap: kafka,
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
            Process::Kera(kera) => {
                kera.broker.restart();
            }
            Process::Apache(apache) => apache.restart(),
            Process::External => panic!("another's broker is not restarted"),
        }
    }

    /// Starts the broker and kills it after `delay`, whether or not it serves by then.
    pub fn restart_in_vain(&mut self, delay: Duration) {
        if let Process::Kera(kera) = &mut self.process {
            kera.broker.restart_in_vain(delay);
        }
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self) {
        match &mut self.process {
            Process::Kera(kera) => kera.broker.kill(),
            Process::Apache(apache) => apache.kill(),
            Process::External => panic!("another's broker is not killed"),
        }
    }

    /// Runs a native client command against this broker, which is Kera; what it wrote.
    pub fn kera(&self, words: &[&str], input: &[u8]) -> String {
        let Process::Kera(kera) = &self.process else {
            panic!("only Kera has native clients");
        };
        kera.broker.feed(words, input)
    }
}

/// Kera, not started, that listens there for Kafka's clients.
fn kera(kafka: &str, auto_create: bool) -> kera_testkit::Broker {
    let flags = vec!["--kafka-listen".to_owned(), kafka.to_owned()];
    let environment = vec![
        ("KERA_KAFKA_AUTO_CREATE_TOPICS", auto_create.to_string()),
        ("KERA_LOG_LEVEL", "debug".to_owned()),
        ("KERA_KAFKA_SESSION_MIN", "500ms".to_owned()),
        ("KERA_KAFKA_CONSUMER_HEARTBEAT", "300ms".to_owned()),
        ("KERA_KAFKA_CONSUMER_SESSION", "6s".to_owned()),
        ("KERA_KAFKA_GROUP_INITIAL_REBALANCE_DELAY", "0ms".to_owned()),
    ];
    kera_testkit::Broker::unstarted(Vec::new(), "127.0.0.1:0", flags, environment)
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
    finish_within(command, b"", PATIENCE).status.success()
}
