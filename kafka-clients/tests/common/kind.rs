//! The clients, and what each can do.

use std::path::Path;
use std::process::Command;

use super::agent::{Agent, Client};
use super::librdkafka::Librdkafka;
use super::{logins, machine, tools};

/// A client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Apache Kafka's own, of release 4.
    Java,
    /// The C library, through crate `rdkafka`.
    Librdkafka,
    FranzGo,
    KafkaPython,
    /// Apache Kafka's own, of release 3.9.
    Java3,
    Sarama,
    Aiokafka,
    /// The C library of another release, through its Python wrapper.
    Confluent,
    Kafkajs,
}

/// What not every client can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Can {
    /// Header values of null.
    NullHeaders,
    /// Where a consumer is.
    Position,
    /// ListOffsets for the greatest timestamp.
    MaxTimestamp,
    /// Admin: offsets of a group, listed and deleted without being a member.
    GroupOffsets,
    DeleteOffsets,
    DescribeCluster,
    CreatePartitions,
    DeleteRecords,
    DescribeGroups,
    DeleteGroups,
    Configs,
    /// Telling why configs could not be altered.
    AlterErrors,
    /// The cooperative assignor.
    Cooperative,
    /// `group.instance.id`.
    Static,
    /// Offsets with metadata.
    Metadata,
    /// An answer "offset out of range" reaches the application.
    ResetNone,
    /// Offset of a time, from a consumer or an admin client.
    OffsetForTime,
    /// Keys and values that are there and empty.
    EmptyBytes,
    /// Partitions assigned by hand, without commits.
    Assign,
    /// Records with neither key nor value.
    NoBytes,
    /// Going on with a producer after the broker refused a record as too large.
    GoOnAfterRefusal,
    Snappy,
    Lz4,
    Zstd,
}

impl Kind {
    /// Whether a scenario gets a second try, and the summary says so: kafka-python 3.0, newly
    /// written from the ground up, was seen once in some 650 runs to join a group and then send
    /// nothing more, with a broker that went on to serve the others.
    pub fn gets_stuck(self) -> bool {
        matches!(self, Self::KafkaPython)
    }

    /// Whether the client has it at all.
    pub fn can(self, what: Can) -> bool {
        match self {
            Self::Java | Self::Java3 => true,
            Self::Librdkafka => !matches!(
                what,
                // The crate does not wrap these, and ignores errors of the last.
                Can::MaxTimestamp | Can::GroupOffsets | Can::DeleteOffsets | Can::AlterErrors
            ),
            Self::FranzGo => !matches!(what, Can::Position),
            Self::KafkaPython => !matches!(
                what,
                Can::NullHeaders | Can::NoBytes | Can::GoOnAfterRefusal
            ),
            Self::Sarama => !matches!(
                what,
                Can::Position
                    | Can::MaxTimestamp
                    | Can::Cooperative
                    | Can::EmptyBytes
                    | Can::DeleteOffsets
                    | Can::DescribeCluster
            ),
            Self::Aiokafka => !matches!(
                what,
                Can::MaxTimestamp
                    | Can::Cooperative
                    | Can::Configs
                    | Can::DescribeCluster
                    | Can::DescribeGroups
                    | Can::DeleteOffsets
                    | Can::DeleteGroups
                    | Can::Metadata
                    | Can::NullHeaders
                    | Can::NoBytes
            ),
            Self::Confluent => what != Can::DeleteOffsets,
            Self::Kafkajs => !matches!(
                what,
                Can::Assign
                    | Can::Position
                    | Can::MaxTimestamp
                    | Can::Cooperative
                    | Can::Static
                    | Can::Configs
                    | Can::DescribeGroups
                    | Can::ResetNone
                    | Can::DeleteOffsets
                    | Can::NullHeaders
                    | Can::Snappy
                    | Can::Lz4
                    | Can::Zstd
            ),
        }
    }

    /// The name in test output and in what the broker is told.
    pub fn name(self) -> &'static str {
        match self {
            Self::Java => "java",
            Self::Librdkafka => "librdkafka",
            Self::FranzGo => "franz-go",
            Self::KafkaPython => "kafka-python",
            Self::Java3 => "java-3",
            Self::Sarama => "sarama",
            Self::Aiokafka => "aiokafka",
            Self::Confluent => "confluent-kafka",
            Self::Kafkajs => "kafkajs",
        }
    }

    /// Why the client cannot run on this machine, if so.
    fn missing(self) -> Option<String> {
        match self {
            Self::Java | Self::Java3 => tools::missing(&["java", "javac", "mvn"]),
            Self::Librdkafka => None,
            Self::FranzGo | Self::Sarama => tools::missing_go(),
            Self::KafkaPython | Self::Aiokafka | Self::Confluent => tools::missing_python(),
            Self::Kafkajs => tools::missing(&["node", "npm"]),
        }
    }

    /// Whether the client can run on this machine; if not, says that `test` did not run.
    pub fn is_here(self, test: &str) -> bool {
        match self.missing() {
            None => true,
            Some(reason) => {
                machine::skip(&format!("{test}, {}", self.name()), &reason);
                false
            }
        }
    }

    /// Starts the client.
    pub fn open(self) -> Box<dyn Client + Send> {
        self.open_for("")
    }

    /// The same; Java's may get tokens at that address.
    pub fn open_for(self, tokens: &str) -> Box<dyn Client + Send> {
        match self {
            Self::Librdkafka => Box::new(Librdkafka::new()),
            Self::Java => java(&tools::java("java", "java", &[]), tokens),
            Self::Java3 => {
                let class_path = tools::java("java-3", "java", &["-Dkafka.version=3.9.1"]);
                java(&class_path, tokens)
            }
            Self::FranzGo => program(Command::new(tools::go("go", "go"))),
            Self::Sarama => program(Command::new(tools::go("sarama", "sarama"))),
            Self::KafkaPython => python("python"),
            Self::Aiokafka => python("aiokafka"),
            Self::Confluent => python("confluent"),
            Self::Kafkajs => {
                let mut command = Command::new("node");
                command.arg(tools::node("kafkajs", "kafkajs").join("agent.js"));
                program(command)
            }
        }
    }
}

fn program(command: Command) -> Box<dyn Client + Send> {
    Box::new(Agent::start(command))
}

fn java(class_path: &str, tokens: &str) -> Box<dyn Client + Send> {
    let mut command = tools::java_command(class_path);
    command.args([&logins::allowed(tokens), "kera.Agent"]);
    program(command)
}

fn python(folder: &str) -> Box<dyn Client + Send> {
    let mut command = Command::new(tools::python(folder, folder));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    command
        .arg(source.join("agent.py"))
        // The sources stay as they are.
        .env("PYTHONDONTWRITEBYTECODE", "1");
    program(command)
}
