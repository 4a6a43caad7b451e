//! The brokers of a comparison: had from where they are published, started, and stopped again.

mod answer;
mod child;
mod cluster;
mod iggy;
mod kafka;
mod kera;
mod nats;
mod share;
mod streams;
mod topics;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

pub(crate) use self::child::{Process, pause};
use self::cluster::Shared;
pub(crate) use self::cluster::{Counts, Etcd};
pub(crate) use self::kera::{
    binary as kera_binary, profiling_binary as profiling_kera_binary,
    undisturbed as undisturbed_kera,
};
pub(crate) use self::share::program as share_load;
use crate::results::BrokerFacts;
use crate::scenario::{Broker, ClientPath, Cluster, Durability};
use kera_load::process::{self, Memory};

/// A broker that runs.
pub(crate) struct Running {
    pub facts: BrokerFacts,
    /// The first is the one that clients ask first.
    members: Vec<Process>,
    /// What the brokers of a cluster share, if they do.
    etcd: Option<Etcd>,
    /// HOST:PORT for each kind of clients that it has; of a cluster those of all brokers, with commas.
    addresses: BTreeMap<ClientPath, String>,
    /// Folders that a deleted topic leaves.
    data: Vec<PathBuf>,
    /// Goes when the processes have ended.
    _kept: Option<Shared>,
    /// The program that makes load for NATS.
    nats_load: PathBuf,
}

/// Where things are found and put.
pub(crate) struct Places {
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
    pub(crate) fn start(broker: Broker, modes: &[Durability], places: &Places) -> Result<Self> {
        Self::start_in(broker, modes, places, &places.data.join(broker.name()))
    }

    /// Starts a broker on a directory of its own, empty or as an earlier one of its kind left it.
    pub(crate) fn start_in(
        broker: Broker,
        modes: &[Durability],
        places: &Places,
        data: &Path,
    ) -> Result<Self> {
        std::fs::create_dir_all(data)?;
        if broker.is_cluster() {
            return Self::start_cluster(broker, modes, places, data);
        }
        let build = &places.build;
        match broker {
            Broker::Kafka => kafka::fetch(build)?,
            Broker::Nats | Broker::NatsSynced => nats::fetch(build)?,
            _ => {}
        }
        let started = match broker {
            Broker::Kafka => kafka::start(build, data)?,
            Broker::Nats | Broker::NatsSynced => nats::start(broker, build, data)?,
            Broker::Iggy | Broker::IggyMemory | Broker::IggySynced => iggy::start(broker, data)?,
            Broker::Kera => {
                let kera = places.kera.as_deref();
                kera::start(kera.context("there is no kera binary")?, data)?
            }
            Broker::KeraCluster(_) | Broker::KafkaCluster(_) => bail!("a cluster is started whole"),
        };
        if let Some(kafka) = started.addresses.get(&ClientPath::Kafka) {
            let answered = answer::first(kafka);
            answered.with_context(|| started.process.log_tail())?;
        }
        let start_seconds = started.process.begun().elapsed().as_secs_f64();
        if let Some(kafka) = started.addresses.get(&ClientPath::Kafka) {
            let waited = topics::wait_until_up(kafka, 1);
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
            members: vec![started.process],
            etcd: None,
            addresses: started.addresses,
            data: vec![data.to_owned()],
            _kept: None,
            nats_load: nats::load(build),
        })
    }

    fn start_cluster(
        broker: Broker,
        modes: &[Durability],
        places: &Places,
        data: &Path,
    ) -> Result<Self> {
        let started = cluster::start(broker, places, data)?;
        let kafka = started.addresses.get(&ClientPath::Kafka);
        let kafka = kafka.context("a cluster has Kafka clients")?;
        for address in kafka.split(',') {
            answer::first(address).with_context(|| log_tails(&started.members))?;
        }
        let first = started.members.first().context("a cluster has brokers")?;
        let start_seconds = first.begun().elapsed().as_secs_f64();
        for address in kafka.split(',') {
            let waited = topics::wait_until_up(address, started.members.len());
            waited.with_context(|| log_tails(&started.members))?;
        }
        let mut facts = BrokerFacts {
            broker,
            version: started.version,
            durability: durability(broker, modes),
            configuration: started.configuration,
            start_seconds,
            idle: Memory::default(),
        };
        for one in started
            .members
            .iter()
            .chain(started.etcd.as_ref().map(|etcd| &etcd.process))
        {
            facts.idle = facts.idle.with(Memory::of(one.pid())?);
        }
        Ok(Self {
            facts,
            members: started.members,
            etcd: started.etcd,
            addresses: started.addresses,
            data: started.data,
            _kept: started.kept,
            nats_load: nats::load(&places.build),
        })
    }

    /// An error if one of its processes has ended.
    pub(crate) fn check(&self) -> Result<()> {
        let ended = self.pids().into_iter().any(process::ended);
        ensure!(!ended, "{} has ended", self.facts.broker.title());
        Ok(())
    }

    /// Its process; of a cluster the first broker's.
    pub(crate) fn pid(&self) -> u32 {
        self.members[0].pid()
    }

    /// All processes: brokers in order of their numbers, then what they share.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let etcd = self.etcd.iter().map(|etcd| etcd.process.pid());
        let brokers = self.members.iter().map(Process::pid);
        brokers.chain(etcd).collect()
    }

    /// What the cluster's etcd has done so far; `None` without one.
    pub(crate) fn store_counts(&self) -> Result<Option<Counts>> {
        self.etcd.as_ref().map(Etcd::counts).transpose()
    }

    /// HOST:PORT for clients of that path.
    pub(crate) fn address(&self, path: ClientPath) -> Result<&str> {
        let address = self.addresses.get(&path);
        let address = address.map(String::as_str);
        address.context("the broker has no such clients")
    }

    /// The clients that make its topics and delete them, and where: Kafka's, if it has any.
    fn administration(&self) -> Result<(ClientPath, &str)> {
        let first = self.addresses.first_key_value();
        let (&path, address) = first.context("the broker has no clients")?;
        Ok((path, address.as_str()))
    }

    /// The program that makes load for clients of that path.
    pub(crate) fn load(&self, path: ClientPath) -> Result<Command> {
        let program = match path {
            ClientPath::Kafka | ClientPath::Native | ClientPath::Iggy => std::env::current_exe()?,
            ClientPath::Nats => self.nats_load.clone(),
        };
        let mut command = Command::new(program);
        command.arg("load");
        Ok(command)
    }

    /// Makes a topic that is ready for clients and gives that durability.
    pub(crate) fn create(
        &self,
        topic: &str,
        partitions: u32,
        durability: Durability,
        cluster: Option<Cluster>,
    ) -> Result<()> {
        let (path, address) = self.administration()?;
        let created = match path {
            ClientPath::Nats => nats::create(&self.nats_load, address, topic, durability),
            ClientPath::Iggy => iggy::create(address, topic, partitions),
            // Of Kafka's clients a cluster of Kera takes one copy for as many as it makes by default.
            ClientPath::Kafka
                if self.facts.broker.is_kera() && cluster.is_some_and(|one| one.replicas == 1) =>
            {
                self.create_stream(topic, partitions, 1, durability, cluster)
                    .and_then(|()| topics::wait_until_led(address, topic, partitions))
            }
            ClientPath::Kafka | ClientPath::Native => {
                let setting = durability.setting(self.facts.broker);
                topics::create(address, topic, partitions, (durability, setting), cluster)
            }
        };
        created.with_context(|| format!("cannot create topic {topic}"))
    }

    /// Looks whether a topic that has records has the copies that a case of a cluster wants.
    pub(crate) fn check_copies(&self, topic: &str, cluster: Cluster) -> Result<()> {
        topics::check_copies(self.address(ClientPath::Kafka)?, topic, cluster.replicas)
    }

    /// Waits until the first and the last partition of a topic tell their ends, and that there is
    /// something in them; the time since the process began. `None` for a broker that cannot be asked
    /// so: what it has is there once it answers.
    pub(crate) fn wait_until_served(
        &self,
        topic: &str,
        partitions: u32,
    ) -> Result<Option<Duration>> {
        let (path, address) = self.administration()?;
        let served = match path {
            ClientPath::Nats => return Ok(None),
            ClientPath::Iggy => iggy::wait_until_served(address, topic, partitions),
            ClientPath::Kafka | ClientPath::Native => {
                topics::wait_until_served(address, topic, partitions)
            }
        };
        served.with_context(|| format!("topic {topic} is not served"))?;
        Ok(Some(self.members[0].begun().elapsed()))
    }

    /// Sends a record with Kera's own client and waits until it is acknowledged; the time since the
    /// process began.
    pub(crate) fn append_one(&self, stream: &str) -> Result<Duration> {
        let address = self.address(ClientPath::Native)?;
        streams::append_one(address, stream).context("no record was acknowledged")?;
        Ok(self.members[0].begun().elapsed())
    }

    /// Makes a stream for Kera's own clients.
    pub(crate) fn create_stream(
        &self,
        stream: &str,
        streamlets: u32,
        lanes: u32,
        durability: Durability,
        cluster: Option<Cluster>,
    ) -> Result<()> {
        let address = self.address(ClientPath::Native)?;
        streams::create(address, stream, (streamlets, lanes), durability, cluster)
            .with_context(|| format!("cannot create stream {stream}"))
    }

    /// Has Kera compact a stream from now on.
    pub(crate) fn compact_from_now(&self, stream: &str) -> Result<()> {
        streams::compact_from_now(self.address(ClientPath::Native)?, stream)
            .with_context(|| format!("stream {stream} is not compacted"))
    }

    /// Deletes a topic and waits until its space on the disk is given back.
    pub(crate) fn delete(&self, topic: &str) -> Result<()> {
        let (path, address) = self.administration()?;
        let deleted = match path {
            ClientPath::Nats => nats::delete(&self.nats_load, address, topic),
            ClientPath::Iggy => iggy::delete(address, topic),
            ClientPath::Kafka | ClientPath::Native => topics::delete(address, topic),
        };
        deleted.with_context(|| format!("cannot delete topic {topic}"))?;
        self.data
            .iter()
            .for_each(|data| topics::wait_until_freed(data));
        Ok(())
    }

    /// The end of what the broker wrote to its log.
    pub(crate) fn log_tail(&self) -> String {
        log_tails(&self.members)
    }
}

/// The ends of what processes wrote to their logs.
fn log_tails(members: &[Process]) -> String {
    members.iter().map(Process::log_tail).collect()
}

/// What acknowledgements mean, in one line.
fn durability(broker: Broker, modes: &[Durability]) -> String {
    let modes = modes.iter().filter_map(|mode| {
        let means = mode.means(broker)?;
        Some(format!("{}: {means}", mode.name()))
    });
    modes.collect::<Vec<_>>().join("; ")
}
