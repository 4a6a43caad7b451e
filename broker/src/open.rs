//! The middle of a start: the metadata store, new epochs for every streamlet of this broker, and all
//! that its parts share.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kera_grpc::Channels;
use kera_log_segments::io::{EngineKind, open_engine};
use kera_log_segments::local_writer::LocalWriter;
use kera_log_segments::pool::ChunkPool;
use kera_metadata::{
    BrokerRecord, ClusterStore, Compare, EmbeddedOptions, EmbeddedStore, Image, Key, MetadataError,
    MetadataStore, Role, Transaction, Write,
};
use kera_replication::own::OwnFiles;
use kera_streamlet::{Env, Job, Limits};
use tokio::sync::watch;

use crate::access::Access;
use crate::admission::Admission;
use crate::audit::Audit;
use crate::auth::Auth;
use crate::clock::wall_ms;
use crate::cluster::ownership::newcomer;
use crate::cluster::ownership::watching::remember;
use crate::cluster::store_restore::{self, Restored};
use crate::cluster::{Backup, Clustered, Joined, Peers, host_name};
use crate::cluster_version;
use crate::config::{BrokerConfig, EngineChoice, TlsListener};
use crate::coordination::Coordination;
use crate::copy_reads::listed::Listed;
use crate::data::DataPlane;
use crate::data::directory::{Alone, BrokerInfo, Directory, with_names};
use crate::error::BrokerError;
use crate::group_records::GroupRecords;
use crate::job_queue::{Jobs, Retimed};
use crate::log_levels::LogLevels;
use crate::maintenance::Maintenance;
use crate::metrics::Family;
use crate::panicked_threads::Fallen;
use crate::quotas::Quotas;
use crate::recover::{recover_all, remove_deleted_streams};
use crate::settings::Settings;
use crate::shared::{BROKER_ID, Shared};
use crate::store_dir::{StoreDir, outlasting};
use crate::tls::ServerTls;
use crate::turns::Capacity;
use crate::unheard::Unheard;

/// Longest attempt to connect to another broker.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// What a start has made so far.
pub(crate) struct Begun {
    pub(crate) config: BrokerConfig,
    pub(crate) dir: StoreDir,
    pub(crate) audit: Arc<Audit>,
    /// The native addresses, in the order of the configuration.
    pub(crate) local: Vec<SocketAddr>,
    pub(crate) backup: Option<Arc<Backup>>,
    /// The store that it shares with other brokers; `None` for one of its own.
    pub(crate) store: Option<Arc<dyn ClusterStore>>,
    /// Bytes that connections gave back to the allocator since it was last asked for them.
    pub(crate) freed: Arc<AtomicU64>,
    pub(crate) tls: Option<Arc<ServerTls>>,
    /// Connections that have not said yet what they want, and what strangers hold.
    pub(crate) unheard: Arc<Unheard>,
    /// What was done because the store was put back to an older state; `None` if it was not.
    pub(crate) restored: Option<Restored>,
}

/// Opens the store of a broker that works alone. The directory is this broker's, so whoever has the file
/// open still is ending: a killed process's files are not all closed at once.
pub(crate) fn open_own(dir: &StoreDir) -> Result<EmbeddedStore, MetadataError> {
    outlasting(
        || EmbeddedStore::open(dir.metadata(), EmbeddedOptions::default()),
        |error| matches!(error, MetadataError::Locked { .. }),
    )
}

/// Opens the metadata store and recovers this broker's streamlets. Blocks. To be called within a tokio
/// runtime.
///
/// # Errors
/// [`BrokerError`] says what stands in the way and what to do.
pub(crate) fn open(begun: Begun) -> Result<(Arc<Shared>, Maintenance), BrokerError> {
    let Begun {
        config,
        dir,
        audit,
        local,
        backup,
        store,
        freed,
        tls,
        unheard,
        restored,
    } = begun;
    let told = config.server.listeners().zip(&local);
    let told = told.map(|((listen, told), local)| {
        let told = told.map_or_else(|| advertised_address(*local), str::to_owned);
        let name = listen.name.as_ref().map(|name| name.as_str().to_owned());
        (name, told)
    });
    let told: Vec<_> = told.collect();
    let advertised = told
        .first()
        .map_or_else(String::new, |(_, one)| one.clone());
    let named: Vec<_> = with_names(&told).collect();
    let started_ms = wall_ms();
    let joined = match store {
        Some(store) => Some(Joined::join(
            store,
            &config,
            &dir,
            backup.as_deref(),
            (&advertised, &named),
            Role::Broker,
        )?),
        None => None,
    };
    let (metadata, broker_id): (Arc<dyn MetadataStore>, u32) = match &joined {
        Some(joined) => (joined.store.clone(), joined.id),
        None => {
            dir.works_alone()?;
            dir.has_its_records()?;
            let store = open_own(&dir)?;
            refuse_replicated(&store.load()?, &dir)?;
            let id = number(&store, &dir, config.cluster.broker_id)?;
            (Arc::new(store), id)
        }
    };
    audit.name(broker_id);
    cluster_version::check_program(metadata.cluster_version()?)?;
    // Before any streamlet is taken over.
    let restore = match (&joined, restored) {
        (_, Some(restored)) => restored.restore,
        (Some(joined), None) => {
            let brokers = joined.store.brokers()?;
            match newcomer::is_alone(joined, &dir, &brokers, config.cluster.lease)? {
                true => store_restore::suppose(&*joined.store, &dir, &brokers)?,
                false => store_restore::take_part(&*joined.store, &dir, (broker_id, &brokers))?,
            }
        }
        (None, None) => 0,
    };
    dir.keep_restore(restore)?;
    if let Some(restored) = restored
        && let Err(error) = dir.keep_restored(restored.revision)
    {
        tracing::warn!(%error, "if this start fails, the next one takes the metadata store for one that was put back once more");
    }
    record_broker(
        &*metadata,
        &dir,
        broker_id,
        &advertised,
        started_ms,
        (Role::Broker, restore),
    )?;
    let streamlets = metadata.bump_epochs(broker_id)?;
    let image = metadata.load()?;
    // A store that may be older than the files here says nothing of what it does not know: one of its own
    // may have been restored from a backup, and a shared one too.
    let believed = joined.is_some() && restored.is_none() && !dir.is_after_restore();
    if joined.is_some()
        && let Err(error) = dir.keep_revision(image.revision)
    {
        // Before anything here rests on it, or goes because of it.
        tracing::warn!(%error, "how far the metadata store was read cannot be remembered");
    }
    if joined.is_some() {
        remember(&dir, &image.brokers);
    }

    let io = open_engine(match config.storage.engine {
        EngineChoice::Auto => EngineKind::Auto,
        EngineChoice::Uring => EngineKind::Uring,
        EngineChoice::Blocking => EngineKind::Blocking,
    });
    let pool = ChunkPool::new(usize::try_from(config.memory.pool).unwrap_or(usize::MAX)).map_err(
        |error| BrokerError::System {
            what: "reserving memory.pool failed",
            error,
        },
    )?;
    let recorder = Arc::new(GroupRecords::new(
        metadata.clone(),
        broker_id,
        dir.incarnation(),
        &streamlets,
    ));
    let own = OwnFiles::new(io.clone(), dir.streams(), dir.incarnation());
    match own.sweep_unfinished() {
        Ok(0) => {}
        Ok(files) => {
            tracing::info!(
                files,
                "group files that were being fetched when the broker ended are removed"
            );
        }
        Err(error) => {
            tracing::warn!(%error, dir = %dir.streams().display(), "unfinished group files of the last run cannot all be removed; the next start tries again: check the directory");
        }
    }
    let is_shared = joined.is_some();
    let peers = match (&joined, backup) {
        (Some(joined), Some(backup)) => {
            let recorder = recorder.clone();
            Some(Peers::new(
                &config,
                joined.id,
                tls.as_deref(),
                backup,
                own,
                recorder,
            )?)
        }
        _ => None,
    };
    let (jobs, rereads) = (Arc::new(Jobs::default()), Arc::new(Jobs::default()));
    let pump = LocalWriter::new(io.clone());
    let env = Arc::new(Env {
        io,
        pool,
        pump,
        recorder: recorder.clone(),
        incarnation: dir.incarnation(),
        jobs: Box::new({
            let (jobs, rereads) = (jobs.clone(), rereads.clone());
            move |job| match job {
                Job::Remember(_) => rereads.push(job),
                _ => jobs.push(job),
            }
        }),
        root: dir.streams(),
        limits: Limits {
            max_producers: config.producers.max_per_lane as usize,
            producer_expiry_ms: config.producers.expiry.as_millis() as u64,
            prepare_at: if config.groups.prepare_ahead {
                0.5
            } else {
                2.0
            },
            ..Limits::default()
        },
        disk_full: Default::default(),
        losses: Default::default(),
    });
    env.losses.files_aside.fetch_add(
        restored.map_or(0, |restored| restored.set_aside),
        Ordering::Relaxed,
    );
    let catalog = recover_all(&image, &streamlets, is_shared, &env, &recorder)?;
    let catalog = Arc::new(catalog);
    if let Some(joined) = &joined {
        joined.membership.read_to(image.revision);
    }
    remove_deleted_streams(&dir, &image, believed);
    let clustered = match (joined, peers) {
        (Some(joined), Some(peers)) => {
            let forget = dir.path().join("forget");
            let clustered = Clustered::new(
                joined,
                peers,
                &catalog,
                &recorder,
                forget,
                config.cluster.disk_timeout,
                &image,
            );
            Some(Arc::new(clustered))
        }
        _ => None,
    };
    let directory: Arc<dyn Directory> = match &clustered {
        Some(clustered) => clustered.members.clone(),
        None => {
            let me = BrokerInfo {
                id: broker_id,
                address: advertised.clone(),
                native_named: named,
                host: config.cluster.host.clone().unwrap_or_else(host_name),
                rack: config.cluster.rack.clone(),
                ..BrokerInfo::default()
            };
            let cluster_id = crate::cluster_id::base64url(dir.incarnation().store_id.into_bytes());
            Arc::new(Alone::new(cluster_id, me))
        }
    };
    let config = Arc::new(config);
    let log_levels = LogLevels::new(&config.log.level);
    let settings = Settings::new(&config, broker_id, metadata.made_with()?, &image);
    let for_brokers = tls
        .as_ref()
        .and_then(|tls| tls.for_brokers(TlsListener::Native));
    let others = Channels::new(CONNECT_WITHIN).with_tls(for_brokers);
    let shared = Arc::new(Shared {
        failed_reads: parking_lot::Mutex::default(),
        full_offsets: parking_lot::Mutex::default(),
        bad_connections: parking_lot::Mutex::default(),
        auth: Auth::new(
            &config.auth,
            image.users.as_ref(),
            tls.as_ref()
                .map_or_else(Family::default, |tls| tls.authentications.clone()),
            audit.clone(),
        )
        .counting(&config.mechanisms_asked())
        .with_tokens(&config.oauth, config.takes_tokens()),
        access: Access::new(&config.acl, image.rules.as_ref(), audit.clone()),
        audit,
        quotas: Arc::new(Quotas::new(
            image.quotas.as_ref(),
            Capacity::of(&config.objectives),
        )),
        coordination: Coordination::new(&settings.now()),
        transactions: Default::default(),
        shares: Default::default(),
        admission: Admission::new(&settings.now()),
        unheard,
        tls,
        retimed: Retimed::default(),
        settings,
        data: Arc::new(DataPlane::new(
            config.clone(),
            env,
            catalog,
            directory,
            freed,
        )),
        config,
        broker_id,
        clustered,
        dir,
        metadata,
        others,
        listed: Listed::default(),
        recorder,
        connections: AtomicU64::new(0),
        data_connections: AtomicU64::new(0),
        advertised,
        started_ms,
        recovery_ms: AtomicU64::new(0),
        stopping: watch::channel(false).0,
        producer_ids: Default::default(),
        observed: Default::default(),
        pins: Default::default(),
        compactor: Default::default(),
        fallen: Fallen::default(),
        log_levels,
        telemetry: OnceLock::new(),
    });
    if let Some(clustered) = &shared.clustered {
        clustered.serve_own_files(&shared.data.catalog, &shared.metadata);
    }
    let maintenance = Maintenance::start(shared.clone(), jobs, rereads)?;
    Ok((shared, maintenance))
}

/// A broker that works alone cannot serve what others hold replicas of, and would lose what it does not know.
fn refuse_replicated(image: &Image, dir: &StoreDir) -> Result<(), BrokerError> {
    let mut streams = image.streams.iter();
    match streams.find(|stream| stream.config.is_replicated()) {
        None => Ok(()),
        Some(stream) => Err(BrokerError::ReplicasElsewhere {
            stream: stream.name.clone(),
            path: dir.path().to_path_buf(),
        }),
    }
}

/// What clients are told: the bound address, or loopback where it is bound to every interface.
pub(crate) fn advertised_address(local: SocketAddr) -> String {
    if local.ip().is_unspecified() {
        return format!("127.0.0.1:{}", local.port());
    }
    local.to_string()
}

/// The broker's number: the one that is recorded, or, in a new data directory, the one that is
/// configured. A directory is never another broker's, since streamlets there are owned by number.
fn number(
    metadata: &dyn MetadataStore,
    dir: &StoreDir,
    configured: Option<u32>,
) -> Result<u32, BrokerError> {
    let likely = configured.unwrap_or(BROKER_ID);
    if metadata.broker(likely)?.is_some() {
        return Ok(likely);
    }
    let recorded = metadata.load()?.brokers.first().map(|broker| broker.id);
    match (recorded, configured) {
        (Some(found), Some(wanted)) if found != wanted => Err(BrokerError::OtherBroker {
            path: dir.path().to_path_buf(),
            found,
            wanted,
        }),
        (recorded, configured) => Ok(recorded.or(configured).unwrap_or(BROKER_ID)),
    }
}

/// Records who has used the metadata store, in which life and as what, and the last restore of the store that it knows of.
pub(crate) fn record_broker(
    metadata: &dyn MetadataStore,
    dir: &StoreDir,
    id: u32,
    address: &str,
    started_ms: u64,
    (role, restore): (Role, u64),
) -> Result<(), BrokerError> {
    let revision = metadata.broker(id)?.map_or(0, |b| b.revision);
    let record = BrokerRecord {
        id,
        address: address.to_string(),
        store_id: dir.incarnation().store_id,
        boot_id: dir.incarnation().boot_id,
        started_ms,
        version: env!("CARGO_PKG_VERSION").to_string(),
        role,
        restore,
        revision: 0,
    };
    metadata.commit(Transaction::new(
        vec![Compare::revision(Key::Broker(id), revision)],
        vec![Write::PutBroker(record)],
    ))?;
    Ok(())
}
