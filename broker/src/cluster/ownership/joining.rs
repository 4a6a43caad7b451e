//! Becoming one of the brokers that share a store: the store is opened, the broker's place in it is taken, and the
//! addresses that brokers tell each other are checked.
//!
//! Loopback leads every machine to itself. Two brokers that name machines of their own and tell such an address
//! would keep both replicas of a group on one of them.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kera_metadata::{
    AdvertisedAddress, BrokerRecord, ClientKind, ClusterStore, EtcdAccess, EtcdOptions, EtcdStore,
    Incarnation, LiveBroker, Living, Membership, MetadataError, ReadFile, Role, Stranger,
};
use kera_rpc::small_file::{self, Takes};

use crate::cluster::replica::backup::Backup;
use crate::config::{BrokerConfig, is_of_every_machine};
use crate::error::BrokerError;
use crate::store_dir::{StoreDir, cluster_of};

/// Longest wait for the store to tell who else is alive.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

/// This broker's place among those that share a store.
pub(crate) struct Joined {
    /// The store.
    pub(crate) store: Arc<dyn ClusterStore>,
    /// The lease, which lives as long as this.
    pub(crate) membership: Arc<Membership>,
    /// This broker's number.
    pub(crate) id: u32,
    /// What the others are told of it.
    pub(crate) live: LiveBroker,
}

impl Joined {
    /// Takes this broker's place, that is its lease, with a directory that [`open_dir`] found to be its own.
    /// Nothing is recorded yet. Blocks, and is to be called within a tokio runtime.
    ///
    /// # Errors
    /// [`BrokerError`] if the number is taken, if the store cannot be reached, or if this broker and one on
    /// another machine do not reach each other.
    pub(crate) fn join(
        store: Arc<dyn ClusterStore>,
        config: &BrokerConfig,
        dir: &StoreDir,
        backup: Option<&Backup>,
        (advertised, named): (&str, &[(String, String)]),
        role: Role,
    ) -> Result<Self, BrokerError> {
        let id = config.cluster.broker_id.ok_or(BrokerError::NoNumber)?;
        let incarnation = Incarnation {
            store_id: dir.incarnation().store_id,
            boot_id: dir.incarnation().boot_id,
        };
        let mut live = LiveBroker::new(id, incarnation);
        live.role = role;
        if role == Role::Broker {
            live.address = advertised.to_owned();
            let named = named.iter().map(|(name, address)| AdvertisedAddress {
                clients: ClientKind::Native,
                name: name.clone(),
                address: address.clone(),
            });
            live.named = named.collect();
        }
        live.replication_address = replication_address(config, backup, advertised);
        live.host = config.cluster.host.clone().unwrap_or_else(host_name);
        live.rack = config.cluster.rack.clone();
        live.version = env!("CARGO_PKG_VERSION").to_owned();
        let membership = store.join(live.clone(), config.cluster.lease)?;
        // Once it has the place: of two that join at once, one sees the other.
        check(&live, &seen_with(&*store, &live))?;
        Ok(Self {
            store,
            membership: Arc::new(membership),
            id,
            live,
        })
    }
}

/// Locks the data directory and, where brokers share `store`, checks that it is that of the configured broker. To be
/// done before replicas are served: a replica store seals what it finds when it starts, and the replicas in a directory
/// given by mistake are another broker's. Answers the brokers that are recorded, too. Blocks.
///
/// # Errors
/// [`BrokerError`] if another process has the directory, if it belongs to another broker or another cluster, if the
/// store is older than what the broker has seen of it, if the number has another role, or if the store cannot be
/// reached.
pub(crate) fn open_dir(
    config: &BrokerConfig,
    store: Option<&dyn ClusterStore>,
    role: Role,
) -> Result<(StoreDir, Vec<BrokerRecord>), BrokerError> {
    let dir = StoreDir::open(&config.data_dir)?;
    let mut brokers = Vec::new();
    if let Some(store) = store {
        let id = config.cluster.broker_id.ok_or(BrokerError::NoNumber)?;
        // A new directory has seen nothing of it.
        let seen = dir.revision();
        dir.belongs_to(store.cluster())?;
        store.require(seen)?;
        brokers = store.brokers()?;
        check_number(&brokers, &dir, id, role)?;
    }
    Ok((dir, brokers))
}

/// Who is alive, once that is known to be as new as the place of `live`.
fn seen_with(store: &dyn ClusterStore, live: &LiveBroker) -> Living {
    let mut living = store.living();
    let mine = |all: &Living| {
        let place = all.get(&live.id);
        place.is_some_and(|place| place.incarnation == live.incarnation)
    };
    let seen = tokio::runtime::Handle::current().block_on(async {
        let seen = tokio::time::timeout(SEEN_WITHIN, living.wait_for(mine));
        matches!(seen.await, Ok(Ok(_)))
    });
    if !seen {
        tracing::warn!("the metadata store does not tell who is alive yet");
    }
    store.living().borrow().clone()
}

/// A directory is never another broker's: streamlets and copies there go by its number.
/// A number keeps its role: a broker may own streamlets and have files of its own that a replica store does
/// not serve.
fn check_number(
    brokers: &[BrokerRecord],
    dir: &StoreDir,
    wanted: u32,
    role: Role,
) -> Result<(), BrokerError> {
    let mut same = brokers.iter().filter(|b| b.id == wanted);
    if let Some(other) = same.find(|b| b.role != role) {
        return Err(BrokerError::OtherRole {
            id: wanted,
            found: other.role,
            wanted: role,
        });
    }
    let store_id = dir.incarnation().store_id;
    let mut brokers = brokers.iter();
    match brokers.find(|b| b.store_id == store_id && b.id != wanted) {
        Some(other) => Err(BrokerError::OtherBroker {
            path: dir.path().to_path_buf(),
            found: other.id,
            wanted,
        }),
        None => Ok(()),
    }
}

/// Where other brokers reach the copies here: what is configured, or the address that is listened on,
/// or, where that is every interface, the host that clients are told.
fn replication_address(config: &BrokerConfig, backup: Option<&Backup>, advertised: &str) -> String {
    if let Some(address) = &config.cluster.advertise {
        return address.clone();
    }
    let Some(local) = backup.map(Backup::local_addr) else {
        return String::new();
    };
    reachable(local, advertised)
}

fn reachable(local: SocketAddr, advertised: &str) -> String {
    if !local.ip().is_unspecified() {
        return local.to_string();
    }
    let host = advertised
        .rsplit_once(':')
        .map_or(advertised, |(host, _)| host);
    format!("{host}:{}", local.port())
}

/// Opens the store that `config` names; `None` if the broker has one of its own. Blocks.
///
/// # Errors
/// [`BrokerError::Metadata`] if it cannot be reached or holds no cluster yet.
pub(crate) fn open_store(
    config: &BrokerConfig,
) -> Result<Option<Arc<dyn ClusterStore>>, BrokerError> {
    let Some(address) = &config.cluster.store else {
        return Ok(None);
    };
    match EtcdStore::open_with(address, &access(config), EtcdOptions::default()) {
        Ok(store) => Ok(Some(Arc::new(store))),
        Err(MetadataError::NotInitialized { store }) => Err(nothing_at(store, config).into()),
        Err(error) => Err(error.into()),
    }
}

/// There is no cluster at `store`: none yet, or not any more.
fn nothing_at(store: String, config: &BrokerConfig) -> MetadataError {
    match cluster_of(&config.data_dir) {
        Ok(Some(expected)) => Stranger::Empty { store, expected }.into(),
        // What is wrong with the directory is said when it is opened.
        Ok(None) | Err(_) => MetadataError::NotInitialized { store },
    }
}

/// Who this broker is to etcd.
fn access(config: &BrokerConfig) -> EtcdAccess {
    let cluster = config.cluster.clone();
    EtcdAccess {
        ca: cluster.store_ca,
        certificate: cluster.store_certificate,
        key: cluster.store_key,
        user: cluster.store_user,
        password_file: cluster.store_password_file,
        reads: ReadFile(read_file),
    }
}

/// Most bytes of a file for etcd: certificates of an authority and all below it.
const MOST_BYTES: usize = 1 << 20;

/// Within a time, whatever the path leads to.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let read = small_file::read(path, MOST_BYTES, Takes::Files)?;
    if read.len() > MOST_BYTES {
        let text = format!("it has more than {MOST_BYTES} bytes");
        return Err(io::Error::other(text));
    }
    Ok(read)
}

/// An address of a broker that leads others to themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Astray<'a> {
    /// The address.
    pub(crate) address: &'a str,
    /// The keys that it comes from.
    pub(crate) keys: &'static str,
}

/// The address at which brokers of other machines do not find `live`, if it tells one.
pub(crate) fn astray(live: &LiveBroker) -> Option<Astray<'_>> {
    let told = [
        (
            &live.replication_address,
            "cluster.listen (--replication-listen) or cluster.advertise",
        ),
        (
            &live.address,
            "server.listen (--listen) or server.advertise",
        ),
    ];
    let mut told = told.into_iter();
    let found = told.find(|(address, _)| is_of_every_machine(address));
    found.map(|(address, keys)| Astray { address, keys })
}

/// True if both name the machine they run on, and it is not the same.
pub(crate) fn elsewhere(one: &str, other: &str) -> bool {
    !one.is_empty() && !other.is_empty() && one != other
}

/// Whether `live` and those that live on other machines can reach each other, as far as that is told.
///
/// # Errors
/// [`BrokerError::Astray`] names who is to have another address, and the keys to set.
pub(crate) fn check(live: &LiveBroker, living: &Living) -> Result<(), BrokerError> {
    let others = living.values().filter(|other| other.id != live.id);
    for other in others.filter(|other| elsewhere(&live.host, &other.host)) {
        for (of, seen_by) in [(live, other), (other, live)] {
            if let Some(Astray { address, keys }) = astray(of) {
                return Err(BrokerError::Astray {
                    broker: of.id,
                    host: of.host.clone(),
                    address: address.to_owned(),
                    keys,
                    other: seen_by.id,
                    other_host: seen_by.host.clone(),
                });
            }
        }
    }
    Ok(())
}

/// The machine's name, as the system tells it.
pub fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kera_metadata::Incarnation;
    use uuid::Uuid;

    use super::*;

    fn at(id: u32, host: &str, address: &str, replication: &str) -> LiveBroker {
        let incarnation = Incarnation {
            store_id: Uuid::from_u128(id.into()),
            boot_id: Uuid::nil(),
        };
        LiveBroker {
            host: host.into(),
            address: address.into(),
            replication_address: replication.into(),
            ..LiveBroker::new(id, incarnation)
        }
    }

    fn told(live: &LiveBroker, others: &[&LiveBroker]) -> Option<String> {
        let mut living = std::collections::BTreeMap::new();
        for one in others.iter().copied().chain([live]) {
            living.insert(one.id, one.clone());
        }
        let refused = check(live, &Arc::new(living)).err();
        refused.map(|error| error.to_string())
    }

    #[test]
    fn default_addresses_serve_one_machine_only() {
        let first = at(1, "a", "127.0.0.1:7600", "127.0.0.1:7601");
        let beside = at(2, "a", "127.0.0.1:7610", "127.0.0.1:7611");
        let far = at(3, "b", "10.0.0.3:7600", "10.0.0.3:7601");
        assert_eq!(told(&first, &[]), None);
        assert_eq!(told(&beside, &[&first]), None);
        let of_first = "broker 1 on a tells others the address 127.0.0.1:7601";
        for said in [told(&first, &[&far]), told(&far, &[&first, &beside])] {
            let said = said.expect("it is refused");
            assert!(said.contains(of_first), "{said}");
            assert!(said.contains("cluster.advertise"), "{said}");
        }
        // Copies would come, and no control call.
        let half = at(1, "a", "localhost:7600", "10.0.0.1:7601");
        let said = told(&half, &[&far]).expect("it is refused");
        assert!(said.contains("server.advertise"), "{said}");
        let every = at(1, "a", "10.0.0.1:7600", "0.0.0.0:7601");
        assert!(told(&every, &[&far]).is_some());
        let good = at(1, "a", "10.0.0.1:7600", "hosta:7601");
        assert_eq!(told(&good, &[&far]), None);
        // One that keeps no copies, or does not say where it runs.
        let silent = at(4, "", "127.0.0.1:7600", "");
        assert_eq!(told(&good, &[&far, &silent]), None);
    }

    #[test]
    fn files_for_etcd_are_files() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, text) = (dir.path().join("pipe"), dir.path().join("text"));
        std::fs::write(&text, "secret").unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let refused = |change: &dyn Fn(&mut BrokerConfig)| {
            let mut config = BrokerConfig::default();
            config.cluster.store = Some("etcd://127.0.0.1:1".to_owned());
            change(&mut config);
            let refused = open_store(&config).err();
            refused.expect("nobody writes into the pipe").to_string()
        };
        let ca = refused(&|config| config.cluster.store_ca = Some(pipe.clone()));
        let key = refused(&|config| {
            config.cluster.store_ca = Some(text.clone());
            config.cluster.store_certificate = Some(text.clone());
            config.cluster.store_key = Some(pipe.clone());
        });
        let password = refused(&|config| {
            config.cluster.store_user = Some("kera".to_owned());
            config.cluster.store_password_file = Some(pipe.clone());
        });
        let named = ["store_ca", "store_key", "store_password_file"];
        for (name, why) in named.into_iter().zip([ca, key, password]) {
            assert!(why.contains(name), "{why}");
            assert!(why.contains("no regular file"), "{why}");
        }
    }

    #[test]
    fn others_are_told_an_address_that_they_can_reach() {
        let at = |local: &str, advertised: &str| {
            reachable(local.parse().expect("an address"), advertised)
        };
        assert_eq!(at("10.0.0.1:7601", "broker1:7600"), "10.0.0.1:7601");
        assert_eq!(at("0.0.0.0:7601", "broker1:7600"), "broker1:7601");
        assert_eq!(at("[::]:7601", "[fd00::1]:7600"), "[fd00::1]:7601");
    }
}
