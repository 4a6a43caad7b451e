//! A process that only keeps copies: no streams, and no address for clients. Brokers of a cluster find it
//! as they find each other, through a lease and a record at the store that all share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kera_metadata::{ClusterStore, MetadataError, Role};
use kera_replication::ids::BrokerId;
use kera_telemetry::{Exporter, Telemetry};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::ownership::joining::{self, Joined};
use super::peers::others_of;
use super::replica::backup::Backup;
use super::replica::deleted_streams::catch_up;
use super::store_restore::last_known;
use crate::access::Access;
use crate::audit::Audit;
use crate::auth::Auth;
use crate::clock::wall_ms;
use crate::cluster_id::base64url;
use crate::cluster_version;
use crate::config::{BrokerConfig, Listener, TlsListener};
use crate::error::BrokerError;
use crate::http::{Http, Told};
use crate::metrics::Family;
use crate::open::{advertised_address, record_broker};
use crate::peer_addresses::PeerAddresses;
use crate::store_calls::blocking;
use crate::store_dir::StoreDir;
use crate::tls::{self, ServerTls};
use crate::unheard::Unheard;
use crate::{machine, scrape, telemetry};

/// How often users and rules are read, where metrics are for users.
const LOOK_FOR_USERS: Duration = Duration::from_secs(1);

/// Copies of other brokers' groups, and nothing else.
pub struct BackupProcess {
    told: Arc<State>,
    http: Option<Http>,
    /// Locked for as long as this process has it.
    _dir: Arc<StoreDir>,
    tasks: Vec<JoinHandle<()>>,
    exporter: Option<Exporter>,
}

struct State {
    backup: Arc<Backup>,
    joined: Joined,
    /// Those who may ask for its metrics, and for nothing else.
    auth: Auth,
    access: Access,
    stopping: AtomicBool,
}

impl State {
    /// Takes in users and rules as they are recorded. Blocks.
    fn read_users(&self) -> Result<(), MetadataError> {
        self.auth.take(&self.joined.store.users()?);
        let asked = self.access.asks();
        self.access.confirm(&self.joined.store.rules()?, asked);
        Ok(())
    }

    /// The metrics, by the names of this version alone.
    fn current(&self) -> String {
        let lease = self.joined.membership.is_valid();
        scrape::current_backup(&self.backup, self.ready().is_ok(), lease)
    }
}

impl Told for State {
    fn metrics(&self) -> String {
        let lease = self.joined.membership.is_valid();
        scrape::render_backup(&self.backup, self.ready().is_ok(), lease)
    }

    fn live(&self) -> Result<(), String> {
        Ok(())
    }

    fn ready(&self) -> Result<(), &'static str> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err("stopping: open replicas go to disk");
        }
        match self.joined.membership.is_valid() {
            true => Ok(()),
            false => {
                Err("no lease: the metadata store does not answer, brokers place no replicas here")
            }
        }
    }

    fn rights(&self) -> (&Auth, &Access) {
        (&self.auth, &self.access)
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
        let store = blocking(move || joining::open_store(&named)).await?;
        Self::start_sharing(config, store.ok_or(BrokerError::NoStore)?).await
    }

    /// As [`start`](Self::start), over a metadata store that is shared with brokers, whatever the
    /// configuration names. For tests and for tools in the same process.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_sharing(
        config: &BrokerConfig,
        store: Arc<dyn ClusterStore>,
    ) -> Result<Self, BrokerError> {
        // It has no listener for clients.
        let own = [TlsListener::Http, TlsListener::Cluster];
        let unheard = Arc::new(Unheard::with_most(config.auth.max_unproven_bytes));
        let tls = match own.iter().any(|own| config.tls.listeners.contains(own)) {
            true => ServerTls::open(config, &Audit::off(), &unheard)?,
            false => None,
        };
        // Before the store, which reads and seals what it finds: probes are to see a process that lives.
        let http = match &config.http.listen {
            Some(address) => Some(Http::start(address, config, tls.clone(), &unheard).await?),
            None => None,
        };
        let (named, shared_store) = (config.clone(), store.clone());
        let opened =
            blocking(move || joining::open_dir(&named, Some(&*shared_store), Role::ReplicaStore));
        let dir = Arc::new(opened.await?.0);
        let backup = Backup::start(config, tls.as_ref(), false).await?;
        let joined = match join(config, store, &dir, &backup).await {
            Ok(joined) => joined,
            Err(error) => {
                backup.stop().await;
                return Err(error);
            }
        };
        let mut tasks = vec![
            follow(&joined, backup.peers().clone()),
            forget(&joined, backup.clone(), config.cluster.repair_interval),
        ];
        tasks.extend(tls.map(|tls| tokio::spawn(tls::watch(tls, |_| ()))));
        machine::report(&machine::Needs::of_backup());
        let counts = Family::default();
        let told = Arc::new(State {
            backup,
            joined,
            auth: Auth::new(&config.auth, None, counts, Audit::off())
                .with_tokens(&config.oauth, config.takes_tokens()),
            access: Access::new(&config.acl, None, Audit::off()),
            stopping: AtomicBool::new(false),
        });
        if config.auth.listeners.contains(&Listener::Http) {
            tasks.push(follow_users(told.clone()));
            let oauth = told.auth.oauth().cloned();
            tasks.extend(oauth.map(|oauth| tokio::spawn(oauth.keep())));
        }
        if let Some(http) = &http {
            http.recovered(told.clone());
        }
        Ok(Self {
            told,
            http,
            _dir: dir,
            tasks,
            exporter: None,
        })
    }

    /// Begins to tell a collector: metrics and lines of the log. Once for a process.
    pub fn tell(&mut self, told: Telemetry) {
        let member = &self.told.joined;
        let cluster = base64url(*member.store.cluster().as_bytes());
        let resource = telemetry::resource(&cluster, member.id, "replica-store");
        let state = self.told.clone();
        self.exporter = Some(told.start(resource, move || state.current()));
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
        self.tasks.iter().for_each(JoinHandle::abort);
        let told = self.told.clone();
        let leaving = tokio::task::spawn_blocking(move || {
            told.joined.membership.leave();
            told.joined.store.close();
        });
        if let Err(error) = leaving.await {
            tracing::error!(%error, "leaving the cluster did not finish");
        }
        self.told.backup.stop().await;
        if let Some(exporter) = self.exporter {
            exporter.finish(telemetry::FINISH_WITHIN).await;
        }
        if let Some(http) = self.http {
            http.end().await;
        }
    }
}

/// Tells the brokers that share `store` of the copies that `backup` serves already.
async fn join(
    config: &BrokerConfig,
    store: Arc<dyn ClusterStore>,
    dir: &Arc<StoreDir>,
    backup: &Arc<Backup>,
) -> Result<Joined, BrokerError> {
    let (config, dir, backup) = (config.clone(), dir.clone(), backup.clone());
    blocking(move || {
        let advertise = config.server.first_advertised().map(str::to_owned);
        let advertised = advertise.unwrap_or_else(|| advertised_address(backup.local_addr()));
        let role = Role::ReplicaStore;
        cluster_version::check_program(store.cluster_version()?)?;
        let joined = Joined::join(
            store,
            &config,
            &dir,
            Some(&*backup),
            (&advertised, &[]),
            role,
        )?;
        let address = &joined.live.replication_address;
        let restore = last_known(&joined.store.brokers()?);
        let role = (role, restore);
        record_broker(&*joined.store, &dir, joined.id, address, wall_ms(), role)?;
        Ok(joined)
    })
    .await
}

/// Keeps `peers` to those that live.
fn follow(joined: &Joined, peers: PeerAddresses) -> JoinHandle<()> {
    let (me, mut living) = (joined.id, joined.store.living());
    tokio::spawn(async move {
        loop {
            peers.list(others_of(&living.borrow_and_update(), me));
            if living.changed().await.is_err() {
                return;
            }
        }
    })
}

/// Keeps users and rules as they are recorded.
fn follow_users(told: Arc<State>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut looks = interval(LOOK_FOR_USERS);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let told = told.clone();
            let read = tokio::task::spawn_blocking(move || told.read_users());
            match read.await {
                Ok(Ok(())) => {}
                // What is known stays in force, and `/readyz` tells of it.
                Ok(Err(error)) => tracing::debug!(%error, "users and rules cannot be read"),
                Err(error) => tracing::error!(%error, "reading users and rules failed"),
            }
        }
    })
}

/// Frees copies of streams that were deleted while nobody could tell, at once and then at an interval.
fn forget(joined: &Joined, backup: Arc<Backup>, interval: Duration) -> JoinHandle<()> {
    let (me, shared) = (BrokerId(joined.id), joined.store.clone());
    tokio::spawn(async move {
        loop {
            catch_up(me, backup.store(), &shared, |_| false).await;
            tokio::time::sleep(interval).await;
        }
    })
}
