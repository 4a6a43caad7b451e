//! A process that only keeps copies: no streams, and no address for clients. Brokers of a cluster find it
//! as they find each other, through a lease and a record at the store that all share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kera_metadata::{ClusterStore, Role};
use tokio::task::JoinHandle;

use super::{Backup, Joined, others_of, store};
use crate::clock::wall_ms;
use crate::config::BrokerConfig;
use crate::error::BrokerError;
use crate::http::{Http, Told};
use crate::open::{advertised_address, record_broker};
use crate::start::off_runtime;
use crate::store_dir::StoreDir;
use crate::{machine, scrape};

/// Copies of other brokers' groups, and nothing else.
pub struct BackupProcess {
    told: Arc<State>,
    http: Option<Http>,
    /// What the others are told of it; `None` while brokers are to name it in their configuration.
    seat: Option<Seat>,
}

struct Seat {
    joined: Arc<Joined>,
    /// Locked for as long as this process has it.
    _dir: StoreDir,
    following: JoinHandle<()>,
}

struct State {
    backup: Arc<Backup>,
    joined: Option<Arc<Joined>>,
    stopping: AtomicBool,
}

impl State {
    fn is_member(&self) -> bool {
        let joined = self.joined.as_ref();
        joined.is_none_or(|joined| joined.membership.is_valid())
    }
}

impl Told for State {
    fn metrics(&self) -> String {
        let lease = self.joined.is_some().then(|| self.is_member());
        scrape::render_backup(&self.backup, self.ready().is_ok(), lease)
    }

    fn live(&self) -> Result<(), String> {
        Ok(())
    }

    fn ready(&self) -> Result<(), &'static str> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err("stopping: open replicas go to disk");
        }
        match self.is_member() {
            true => Ok(()),
            false => {
                Err("no lease: the metadata store does not answer, brokers place no replicas here")
            }
        }
    }
}

impl BackupProcess {
    /// Starts it and returns once it serves and the brokers of the cluster are told of it. Of `config` it
    /// takes the number, the store, the addresses and the sections `backup` and `http`.
    ///
    /// # Errors
    /// [`BrokerError`] says what stands in the way and what to do.
    pub async fn start(config: &BrokerConfig) -> Result<Self, BrokerError> {
        let named = config.clone();
        let store = off_runtime(move || store::open(&named)).await?;
        Self::start_sharing(config, store).await
    }

    /// As [`start`](Self::start), over a metadata store that is shared with brokers, whatever the
    /// configuration names. For tests and for tools in the same process.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_sharing(
        config: &BrokerConfig,
        store: Option<Arc<dyn ClusterStore>>,
    ) -> Result<Self, BrokerError> {
        // Before the store, which reads and seals what it finds: probes are to see a process that lives.
        let http = match &config.http.listen {
            Some(address) => Some(Http::start(address, &config.http).await?),
            None => None,
        };
        let dir = match &store {
            Some(_) => {
                let path = config.data_dir.clone();
                Some(off_runtime(move || StoreDir::open(&path)).await?)
            }
            None => None,
        };
        let backup = Backup::start(config, false).await?;
        let backup = backup.ok_or(BrokerError::NoNumber)?;
        let seat = match store.zip(dir) {
            Some((store, dir)) => match Seat::take(config, store, dir, &backup).await {
                Ok(seat) => Some(seat),
                Err(error) => {
                    backup.stop().await;
                    return Err(error);
                }
            },
            None => None,
        };
        machine::report(&machine::Needs::of_backup());
        let told = Arc::new(State {
            backup,
            joined: seat.as_ref().map(|seat| seat.joined.clone()),
            stopping: AtomicBool::new(false),
        });
        if let Some(http) = &http {
            http.recovered(told.clone());
        }
        Ok(Self { told, http, seat })
    }

    /// The copies.
    pub fn backup(&self) -> &Backup {
        &self.told.backup
    }

    /// The address of metrics and health, if they are served.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(Http::local_addr)
    }

    /// Stops: the others are told that it leaves, then what open copies hold goes to disk.
    pub async fn shutdown(self) {
        self.told.stopping.store(true, Ordering::Relaxed);
        if let Some(seat) = self.seat {
            seat.following.abort();
            let joined = seat.joined;
            let leaving = tokio::task::spawn_blocking(move || {
                joined.membership.leave();
                joined.store.close();
            });
            if let Err(error) = leaving.await {
                tracing::error!(%error, "leaving the cluster did not finish");
            }
        }
        self.told.backup.stop().await;
        if let Some(http) = self.http {
            http.end().await;
        }
    }
}

impl Seat {
    /// Tells the brokers that share `store` of the copies that `backup` serves already.
    async fn take(
        config: &BrokerConfig,
        store: Arc<dyn ClusterStore>,
        dir: StoreDir,
        backup: &Arc<Backup>,
    ) -> Result<Self, BrokerError> {
        let (config, kept) = (config.clone(), backup.clone());
        let (joined, dir) = off_runtime(move || {
            let advertise = config.server.advertise.clone();
            let advertised = advertise.unwrap_or_else(|| advertised_address(kept.local_addr()));
            let role = Role::ReplicaStore;
            let joined = Joined::join(store, &config, &dir, Some(&*kept), &advertised, role)?;
            let address = &joined.live.replication_address;
            record_broker(&*joined.store, &dir, joined.id, address, wall_ms(), role)?;
            Ok((Arc::new(joined), dir))
        })
        .await?;
        let (me, peers) = (joined.id, backup.peers().clone());
        let mut living = joined.store.living();
        let following = tokio::spawn(async move {
            loop {
                peers.list(others_of(&living.borrow_and_update(), me));
                if living.changed().await.is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            joined,
            _dir: dir,
            following,
        })
    }
}
