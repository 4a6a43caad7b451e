//! The brokers of a comparison: had from where they are published, started, and stopped again.

mod child;
mod kafka;
mod kera;
mod topics;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use self::child::Process;
pub use self::kera::binary as kera_binary;
use crate::measure::process::{self, Memory};
use crate::results::BrokerFacts;
use crate::scenario::{Broker, ClientPath};

/// A broker that runs.
pub struct Running {
    pub facts: BrokerFacts,
    process: Process,
    /// HOST:PORT for Kafka clients.
    kafka: String,
    /// HOST:PORT for Kera's own clients, if it has any.
    native: Option<String>,
    data: PathBuf,
}

/// Where things are found and put.
pub struct Places {
    /// Below cargo's target folder: what is downloaded once.
    pub build: PathBuf,
    /// For the data of brokers; the harness has it to itself.
    pub data: PathBuf,
    /// The `kera` binary.
    pub kera: PathBuf,
}

/// What a start gives.
struct Started {
    process: Process,
    kafka: String,
    native: Option<String>,
    version: String,
    durability: &'static str,
    configuration: String,
}

impl Running {
    /// Starts a broker on an empty directory and waits until it answers.
    pub fn start(broker: Broker, places: &Places) -> Result<Self> {
        let data = places.data.join(match broker {
            Broker::Kafka => "kafka",
            Broker::Kera => "kera",
        });
        std::fs::create_dir_all(&data)?;
        if broker == Broker::Kafka {
            kafka::fetch(&places.build)?;
        }
        let begin = Instant::now();
        let started = match broker {
            Broker::Kafka => kafka::start(&places.build, &data)?,
            Broker::Kera => kera::start(&places.kera, &data)?,
        };
        let waited = topics::wait_until_up(&started.kafka);
        waited.with_context(|| started.process.log_tail())?;
        let idle = Memory::of(started.process.pid())?;
        let facts = BrokerFacts {
            broker,
            version: started.version,
            durability: started.durability.to_owned(),
            configuration: started.configuration,
            start_seconds: begin.elapsed().as_secs_f64(),
            idle,
        };
        Ok(Self {
            facts,
            process: started.process,
            kafka: started.kafka,
            native: started.native,
            data,
        })
    }

    /// An error if its process has ended.
    pub fn check(&self) -> Result<()> {
        let ended = process::ended(self.pid());
        ensure!(!ended, "{} has ended", self.facts.broker.title());
        Ok(())
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// HOST:PORT for clients of that path.
    pub fn address(&self, path: ClientPath) -> Result<&str> {
        match path {
            ClientPath::Kafka => Ok(&self.kafka),
            ClientPath::Native => self
                .native
                .as_deref()
                .context("the broker has no clients of its own"),
        }
    }

    /// Makes a topic that is ready for clients.
    pub fn create(&self, topic: &str, partitions: u32) -> Result<()> {
        topics::create(&self.kafka, topic, partitions)
            .with_context(|| format!("cannot create topic {topic}"))
    }

    /// Deletes a topic and waits until its space on the disk is given back.
    pub fn delete(&self, topic: &str) -> Result<()> {
        topics::delete(&self.kafka, topic)
            .with_context(|| format!("cannot delete topic {topic}"))?;
        topics::wait_until_freed(&self.data);
        Ok(())
    }

    /// The end of what the broker wrote to its log.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }
}
