//! Brokers of one kind that form one system on this machine.

mod etcd;
mod kafka;
mod kera;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

pub(crate) use self::etcd::{Counts, Etcd};
use super::Places;
use super::child::Process;
use crate::scenario::{Broker, ClientPath};
use crate::session::workplace::remove_stale;

/// Folders on shared memory, before the process id of their session.
const FOLDERS: &str = "kera-bench-cluster-";

/// Tells this session's folders apart.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A cluster that was started; it may take a while until its brokers know each other.
pub(super) struct Started {
    /// The brokers, in order of their numbers.
    pub members: Vec<Process>,
    /// What Kera's brokers share.
    pub etcd: Option<Etcd>,
    /// For each kind of clients, HOST:PORT of every broker, with commas between.
    pub addresses: BTreeMap<ClientPath, String>,
    /// The folders of the brokers' data.
    pub data: Vec<PathBuf>,
    /// What is to go when the brokers have ended.
    pub kept: Option<Shared>,
    pub version: String,
    pub configuration: String,
}

/// Starts a cluster on an empty directory.
pub(super) fn start(broker: Broker, places: &Places, data: &Path) -> Result<Started> {
    match broker {
        Broker::KafkaCluster(brokers) => {
            super::kafka::fetch(&places.build)?;
            kafka::start(&places.build, data, brokers.into())
        }
        Broker::KeraCluster(brokers) => {
            let binary = places.kera.as_deref().context("there is no kera binary")?;
            kera::start(binary, data, brokers.into())
        }
        other => anyhow::bail!("{} is no cluster", other.title()),
    }
}

/// A folder on shared memory, removed with its contents.
pub(super) struct Shared(PathBuf);

impl Shared {
    /// One of its own, in `above`.
    pub(super) fn new(above: &Path) -> Result<Self> {
        remove_stale(above, FOLDERS);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = above.join(format!("{FOLDERS}{}-{number}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Addresses as clients take them.
fn list(addresses: &[String]) -> String {
    addresses.join(",")
}
