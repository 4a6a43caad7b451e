//! The passive side: a store of other brokers' copies, and the listener through which they reach it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kera_replication::backup::{Limits, ReplicaStore, ShmMemory, ShmOptions, StartError};
use kera_replication::transport::TransportKind;
use kera_replication::transport::tcp::{BackupServer, Counts, ServerOptions};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::door::BrokersDoor;
use super::{cards, transports};
use crate::config::{BrokerConfig, TransportChoice, units};
use crate::error::BrokerError;
use crate::fault_rules::{self, Rule};
use crate::peer_addresses::PeerAddresses;
use crate::socket;
use crate::tls::ServerTls;

/// Where shared memory is.
const SHARED_MEMORY: &str = "/dev/shm";

/// What a backup store is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupOptions {
    /// Where copies lie until they are on disk.
    pub shared_dir: PathBuf,
    /// Where copies are written when their group closes.
    pub disk_dir: PathBuf,
    /// Between two flushes of open copies.
    pub flush_interval: Duration,
    /// How much it takes.
    pub limits: Limits,
    /// Where other brokers connect.
    pub listen: String,
}

impl BackupOptions {
    /// What `config` says, with directories derived from its data directory where it names none.
    ///
    /// # Errors
    /// [`BrokerError::DataDir`] if the data directory is needed and cannot be made.
    pub fn of(config: &BrokerConfig) -> Result<Self, BrokerError> {
        let data_dir = &config.data_dir;
        let shared_dir = match &config.replica_store.shared_dir {
            Some(dir) => dir.clone(),
            None => derived_shared_dir(data_dir)?,
        };
        let disk_dir = config.replica_store.disk_dir.clone();
        Ok(Self {
            shared_dir,
            disk_dir: disk_dir.unwrap_or_else(|| data_dir.join("backup")),
            flush_interval: config.replica_store.flush_interval,
            limits: Limits {
                memory_bytes: config.replica_store.memory_bytes,
                copies_in_memory: config.replica_store.max_replicas_in_memory as usize,
                copies: config.replica_store.max_replicas as usize,
                streamlets: config.replica_store.max_streamlets as usize,
            },
            listen: config.cluster.listen.clone(),
        })
    }
}

/// A directory on shared memory that is this data directory's own: another path has another name,
/// and the same path the same one after a restart.
fn derived_shared_dir(data_dir: &Path) -> Result<PathBuf, BrokerError> {
    // Links and dots must not make two names of one directory.
    let made = std::fs::create_dir_all(data_dir).and_then(|()| data_dir.canonicalize());
    let path = made.map_err(|error| BrokerError::DataDir {
        path: data_dir.to_path_buf(),
        reason: format!("it cannot be created: {error}"),
    })?;
    let number = fnv1a(path.as_os_str().as_encoded_bytes());
    Ok(Path::new(SHARED_MEMORY).join(format!("kera-{number:016x}")))
}

/// The hash of Fowler, Noll and Vo, of 64 bits: the same in every build.
fn fnv1a(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// A store of other brokers' copies, being served.
#[derive(Debug)]
pub struct Backup {
    options: BackupOptions,
    store: Arc<ReplicaStore>,
    server: Arc<BackupServer>,
    peers: PeerAddresses,
    /// The network card through which it is served too, or why it is not though that was wanted;
    /// `None` where it was not.
    cards: Option<Result<cards::Listener, String>>,
    local: SocketAddr,
    serving: Mutex<Option<JoinHandle<std::io::Result<()>>>>,
}

impl Backup {
    /// Starts the store and listens: waits for the store's predecessor to be gone, reads its seals,
    /// seals what it left open, and only then lets other brokers in. One that `has_files` of its own, which others may ask for, says once it
    /// has started which they are.
    ///
    /// # Errors
    /// [`BrokerError`] if another process has the store, if the file system cannot hold the quota,
    /// if the address cannot be listened on, or if RDMA is asked for by name and cannot be used there.
    pub(crate) async fn start(
        config: &BrokerConfig,
        tls: Option<&Arc<ServerTls>>,
        has_files: bool,
    ) -> Result<Arc<Self>, BrokerError> {
        let options = BackupOptions::of(config)?;
        let kind = transports::pick(config)?;
        let opening = options.clone();
        let opened = tokio::task::spawn_blocking(move || open(&opening)).await;
        let store = opened.map_err(|panic| BrokerError::System {
            what: "opening the replica store failed",
            error: std::io::Error::other(panic),
        })??;
        if has_files && !Rule::OwnFilesDenied.is_broken() {
            store.expect_beside();
        }
        let listener = socket::bind(&options.listen, "cluster.listen").await?;
        let local = listener.local_addr().map_err(|error| BrokerError::Listen {
            address: options.listen.clone(),
            key: "cluster.listen",
            error,
        })?;
        // Before anybody is let in: what is opened from now on is registered.
        let cards = match kind {
            TransportKind::Tcp => None,
            TransportKind::Rdma => Some(cards::Listener::start(local, &store)),
        };
        match &cards {
            Some(Ok(cards)) => {
                tracing::info!(address = %local, card = cards.device(), "replicas are received over RDMA");
            }
            Some(Err(reason)) if config.cluster.transport == TransportChoice::Auto => {
                tracing::info!(address = %local, reason, "replicas are received over TCP only");
            }
            Some(Err(reason)) => {
                return Err(BrokerError::Transport {
                    name: kind.to_string(),
                    reason: reason.clone(),
                });
            }
            None => {}
        }
        let peers = PeerAddresses::default();
        let server = BackupServer::among(
            store.clone(),
            ServerOptions {
                connections: config.cluster.max_connections as usize,
                reserved: config.cluster.reserved_connections as usize,
                flush_interval: options.flush_interval,
                ..ServerOptions::default()
            },
            Arc::new(peers.clone()),
            BrokersDoor::of(config, tls),
        );
        let serving = server.clone();
        let task = tokio::spawn(async move { serving.serve(listener).await });
        tracing::info!(address = %local, store = %options.shared_dir.display(), "keeping replicas for other brokers");
        Ok(Arc::new(Self {
            options,
            store,
            server,
            peers,
            cards,
            local,
            serving: Mutex::new(Some(task)),
        }))
    }

    /// Where other brokers connect.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Where the other brokers of the cluster are known.
    pub fn peers(&self) -> &PeerAddresses {
        &self.peers
    }

    /// Connections that are open, and how many were refused.
    pub fn connections(&self) -> (Counts, Counts) {
        (self.server.connections(), self.server.refused_connections())
    }

    /// What it was told to be.
    pub fn options(&self) -> &BackupOptions {
        &self.options
    }

    /// The listener's side: who is connected, what has come.
    pub fn server(&self) -> &Arc<BackupServer> {
        &self.server
    }

    /// Other brokers that have a connection for data here, whatever it goes over.
    pub fn primaries(&self) -> usize {
        let by_card = match &self.cards {
            Some(Ok(cards)) => cards.primaries(),
            _ => 0,
        };
        self.server.primaries() + by_card
    }

    /// Why copies are not taken through a network card, where that was wanted.
    pub(crate) fn without_cards(&self) -> Option<&str> {
        match &self.cards {
            Some(Err(reason)) => Some(reason),
            _ => None,
        }
    }

    /// The copies.
    pub fn store(&self) -> &Arc<ReplicaStore> {
        &self.store
    }

    /// Stops: connections are closed, then what open copies hold goes to disk. Primaries go on with
    /// others; the copies stay, and are sealed at the next start.
    pub async fn stop(&self) {
        self.server.stop();
        if let Some(Ok(cards)) = &self.cards {
            cards.stop().await;
        }
        let serving = self.serving.lock().take();
        let Some(serving) = serving else { return };
        match serving.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "the replica store's server ended with an error")
            }
            Err(error) => tracing::error!(%error, "the replica store's server failed"),
        }
        let store = self.store.clone();
        let _ = tokio::task::spawn_blocking(move || store.flush_open_and_tell()).await;
    }
}

/// Opens the replica store, which does not answer requests yet. Waits until the earlier process has let go of it, reads its seals,
/// and seals what that process left open. Blocks.
///
/// # Errors
/// As [`Backup::start`].
pub(crate) fn open(options: &BackupOptions) -> Result<Arc<ReplicaStore>, BrokerError> {
    warn_about_room(options);
    let memory = ShmMemory::new(ShmOptions {
        dir: options.shared_dir.clone(),
        disk: Some(options.disk_dir.clone()),
        quota: options.limits.memory_bytes,
    });
    ReplicaStore::start(memory, options.limits, fault_rules::faults()).map_err(
        |error| match error {
            StartError::TooSmall { path, size, quota } => BrokerError::BackupRoom {
                path,
                size: units::show_size(size),
                quota: units::show_size(quota),
            },
            error => BrokerError::Backup(error),
        },
    )
}

/// What is allowed and will be refused later, or slower than meant.
fn warn_about_room(options: &BackupOptions) {
    let dir = &options.shared_dir;
    if crate::config::volatile_filesystem(dir).is_none() {
        tracing::warn!(
            "{} is not on shared memory: replicas are written to disk twice; name a directory on a tmpfs with replica_store.shared_dir",
            dir.display()
        );
    }
    // Found on the nearest directory there is: the store's own may not exist yet.
    let existing = dir.ancestors().find(|ancestor| ancestor.exists());
    let Some(Ok(stat)) = existing.map(rustix::fs::statvfs) else {
        return;
    };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let held = bytes_below(dir);
    if stat.f_blocks > 0 && free.saturating_add(held) < options.limits.memory_bytes {
        tracing::warn!(
            "replica_store.shared_dir {} has {} free beside this store's files, and replica_store.memory_bytes is {}: other files take the rest, and replicas are refused once it is full; make room there, or set replica_store.memory_bytes to at most {}",
            dir.display(),
            units::show_size(free),
            units::show_size(options.limits.memory_bytes),
            units::show_size(free.saturating_add(held))
        );
    }
}

/// Bytes that the files below `dir` take, as far as they can be counted.
fn bytes_below(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(dir) else {
        return 0;
    };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_directory_has_one_place_on_shared_memory() {
        let dir = tempfile::tempdir().expect("a directory");
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let first = derived_shared_dir(&a).expect("a name");
        assert_eq!(
            derived_shared_dir(&a.join("../a/.")).expect("a name"),
            first
        );
        assert_ne!(derived_shared_dir(&b).expect("a name"), first);
        assert!(first.starts_with(SHARED_MEMORY), "{}", first.display());
        // Fixed by the algorithm: another build finds the copies again.
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
