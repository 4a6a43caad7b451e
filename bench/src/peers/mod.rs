//! The brokers of a comparison: had from where they are published, started, and stopped again.

mod answer;
mod child;
mod kafka;
mod kera;
mod nats;
mod share;
mod streams;
mod tansu;
mod topics;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use self::child::Process;
pub use self::child::pause;
pub use self::kera::{binary as kera_binary, profiling_binary as profiling_kera_binary};
pub use self::share::program as share_load;
use crate::measure::process::{self, Memory};
use crate::results::BrokerFacts;
use crate::scenario::{Broker, ClientPath, Durability};

/// A broker that runs.
pub struct Running {
    pub facts: BrokerFacts,
    process: Process,
    /// HOST:PORT for each kind of clients that it has.
    addresses: BTreeMap<ClientPath, String>,
    data: PathBuf,
    /// The program that makes load for NATS.
    nats_load: PathBuf,
}

/// Where things are found and put.
pub struct Places {
    /// Below cargo's target folder: what is downloaded once.
    pub build: PathBuf,
    /// For the data of brokers; the harness has it to itself.
    pub data: PathBuf,
    /// The `kera` binary, if Kera takes part.
    pub kera: Option<PathBuf>,
}

/// What a start gives.
struct Started {
    process: Process,
    addresses: BTreeMap<ClientPath, String>,
    version: String,
    configuration: String,
}

impl Running {
    /// Starts a broker on an empty directory and waits until it answers. It will be used with
    /// `modes`.
    pub fn start(broker: Broker, modes: &[Durability], places: &Places) -> Result<Self> {
        Self::start_in(broker, modes, places, &places.data.join(broker.name()))
    }

    /// Starts a broker on a directory of its own, empty or as an earlier one of its kind left it.
    pub fn start_in(
        broker: Broker,
        modes: &[Durability],
        places: &Places,
        data: &Path,
    ) -> Result<Self> {
        std::fs::create_dir_all(data)?;
        let build = &places.build;
        match broker {
            Broker::Kafka => kafka::fetch(build)?,
            Broker::Nats | Broker::NatsSynced => nats::fetch(build)?,
            Broker::Tansu | Broker::TansuMemory => tansu::fetch(build)?,
            Broker::Kera => {}
        }
        let started = match broker {
            Broker::Kafka => kafka::start(build, data)?,
            Broker::Nats | Broker::NatsSynced => nats::start(broker, build, data)?,
            Broker::Tansu | Broker::TansuMemory => tansu::start(broker, build, data)?,
            Broker::Kera => {
                let kera = places.kera.as_deref();
                kera::start(kera.context("there is no kera binary")?, data)?
            }
        };
        if let Some(kafka) = started.addresses.get(&ClientPath::Kafka) {
            let answered = answer::first(kafka);
            answered.with_context(|| started.process.log_tail())?;
        }
        let start_seconds = started.process.begun().elapsed().as_secs_f64();
        if let Some(kafka) = started.addresses.get(&ClientPath::Kafka) {
            let waited = topics::wait_until_up(kafka);
            waited.with_context(|| started.process.log_tail())?;
        }
        let idle = Memory::of(started.process.pid())?;
        let facts = BrokerFacts {
            broker,
            version: started.version,
            durability: durability(broker, modes),
            configuration: started.configuration,
            start_seconds,
            idle,
        };
        Ok(Self {
            facts,
            process: started.process,
            addresses: started.addresses,
            data: data.to_owned(),
            nats_load: nats::load(build),
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
        let address = self.addresses.get(&path);
        let address = address.map(String::as_str);
        address.context("the broker has no such clients")
    }

    /// The program that makes load for clients of that path.
    pub fn load(&self, path: ClientPath) -> Result<Command> {
        let program = match path {
            ClientPath::Kafka | ClientPath::Native => std::env::current_exe()?,
            ClientPath::Nats => self.nats_load.clone(),
        };
        let mut command = Command::new(program);
        command.arg("load");
        Ok(command)
    }

    /// Makes a topic that is ready for clients and gives that durability.
    pub fn create(&self, topic: &str, partitions: u32, durability: Durability) -> Result<()> {
        let created = match self.addresses.get(&ClientPath::Nats) {
            Some(address) => nats::create(&self.nats_load, address, topic, durability),
            None => {
                let setting = durability.setting(self.facts.broker);
                let address = self.address(ClientPath::Kafka)?;
                topics::create(address, topic, partitions, setting)
            }
        };
        created.with_context(|| format!("cannot create topic {topic}"))
    }

    /// Waits until the first and the last partition of a topic tell their ends, and that there is
    /// something in them; the time since the process began. `None` for a broker that cannot be asked
    /// so: what it has is there once it answers.
    pub fn wait_until_served(&self, topic: &str, partitions: u32) -> Result<Option<Duration>> {
        let Some(address) = self.addresses.get(&ClientPath::Kafka) else {
            return Ok(None);
        };
        topics::wait_until_served(address, topic, partitions)
            .with_context(|| format!("topic {topic} is not served"))?;
        Ok(Some(self.process.begun().elapsed()))
    }

    /// Makes a stream for Kera's own clients.
    pub fn create_stream(
        &self,
        stream: &str,
        streamlets: u32,
        lanes: u32,
        durability: Durability,
    ) -> Result<()> {
        let address = self.address(ClientPath::Native)?;
        streams::create(address, stream, (streamlets, lanes), durability)
            .with_context(|| format!("cannot create stream {stream}"))
    }

    /// Deletes a topic and waits until its space on the disk is given back.
    pub fn delete(&self, topic: &str) -> Result<()> {
        let deleted = match self.addresses.get(&ClientPath::Nats) {
            Some(address) => nats::delete(&self.nats_load, address, topic),
            None => topics::delete(self.address(ClientPath::Kafka)?, topic),
        };
        deleted.with_context(|| format!("cannot delete topic {topic}"))?;
        // SQLite keeps its file as large as it was.
        if self.facts.broker != Broker::Tansu {
            topics::wait_until_freed(&self.data);
        }
        Ok(())
    }

    /// The end of what the broker wrote to its log.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }
}

/// What acknowledgements mean, in one line.
fn durability(broker: Broker, modes: &[Durability]) -> String {
    let modes = modes.iter().filter_map(|mode| {
        let means = mode.means(broker)?;
        Some(format!("{}: {means}", mode.name()))
    });
    modes.collect::<Vec<_>>().join("; ")
}

/// A port of the loopback interface that is free just now.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.port())
}
