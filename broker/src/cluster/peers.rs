//! This broker among others, and its peers as it sees them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use kera_metadata::{LiveBroker, LiveState, Living};
use kera_replication::ids::BrokerId;
use kera_replication::own::{OwnFiles, OwnRef};
use kera_replication::placement::Placement;
use kera_replication::primary::{Config as PrimaryConfig, Primary};
use kera_replication::records::RecordsRef;
use kera_replication::runtime::TokioRuntime;
use kera_rpc::ClientTls;

use crate::config::{BrokerConfig, TlsListener, is_of_every_machine};
use crate::error::BrokerError;
use crate::fault_rules::{self, Rule};
use crate::tls::ServerTls;

use super::LATER;
use super::ownership::joining::{elsewhere, host_name};
use super::replica::backup::Backup;
use super::replica::local::{Known, LocalReplicas, OwnWriters};
use super::replica::transports::Ways;

/// How long a broker that breaks [`Rule::OwnFilesDenied`] denies them: some rounds of others' jobs.
const DENIED_FOR: Duration = Duration::from_secs(15);

/// Another broker, or a replica store, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number.
    pub id: u32,
    /// Where it listens for other brokers, as it tells them.
    pub address: String,
    /// The machine it runs on.
    pub host: String,
}

/// This broker among others. There is one if it shares its metadata store.
pub struct Peers {
    /// This broker.
    pub me: BrokerId,
    /// The machine it runs on.
    pub host: String,
    /// Copies of a group may lie on one machine.
    pub allow_same_host: bool,
    /// This broker's side as the primary of its streamlets. It knows itself as the first candidate
    /// for a copy, and every peer.
    pub primary: Arc<Primary>,
    /// Copies of other brokers' groups.
    pub backup: Arc<Backup>,
    peers: ArcSwap<Vec<Peer>>,
    /// The brokers that share the store, as they were last followed.
    seen: ArcSwap<BTreeMap<u32, LiveBroker>>,
    ways: Ways,
    /// Its own files as others ask for them, who may own what it owned.
    writers: Arc<OwnWriters>,
}

impl Peers {
    /// This broker, number `id`, as `config` describes it, over the copies that `backup` serves already.
    /// `own` are this broker's own files, `records` is where its groups are recorded.
    ///
    /// To be called within a tokio runtime.
    ///
    /// # Errors
    /// [`BrokerError::Transport`] if the transport that was asked for cannot be.
    pub fn new(
        config: &BrokerConfig,
        id: u32,
        tls: Option<&ServerTls>,
        backup: Arc<Backup>,
        own: Arc<OwnFiles>,
        records: RecordsRef,
    ) -> Result<Self, BrokerError> {
        let cluster = &config.cluster;
        let me = BrokerId(id);
        let ways = Ways::new(me, config)?;
        ways.use_tls(tls.and_then(|tls| tls.for_brokers(TlsListener::Cluster)));
        let writers = OwnWriters::new(own.clone());
        let own: OwnRef = LocalReplicas::new(me, own, backup.store().clone());
        let primary = Primary::new(
            me,
            vec![me],
            ways.transport(),
            records,
            Arc::new(TokioRuntime::new(tokio::runtime::Handle::current())),
            PrimaryConfig {
                tidy_after: LATER,
                ..PrimaryConfig::default()
            },
        )
        .with_own(own)
        .with_faults(fault_rules::faults());
        let this = Self {
            me,
            host: cluster.host.clone().unwrap_or_else(host_name),
            allow_same_host: cluster.allow_same_host,
            primary: Arc::new(primary),
            backup,
            peers: ArcSwap::default(),
            seen: ArcSwap::default(),
            ways,
            writers,
        };
        let rack = cluster.rack.clone().map(|rack| (me, rack));
        this.set_peers(Vec::new(), rack.into_iter().collect(), Vec::new());
        Ok(this)
    }

    /// Reaches replicas with `tls` from now on, or without.
    pub(crate) fn use_tls(&self, tls: Option<ClientTls>) {
        self.ways.use_tls(tls);
    }

    /// The other brokers: numbers, addresses and hosts fit together.
    pub fn peers(&self) -> Arc<Vec<Peer>> {
        self.peers.load_full()
    }

    /// Says whose streamlets write this broker's own files, which other brokers may ask for from now on.
    pub(crate) fn written_by(&self, known: Known) {
        self.writers.written_by(known);
        let (store, writers) = (self.backup.store().clone(), self.writers.clone());
        if Rule::OwnFilesDenied.is_broken() {
            tokio::spawn(async move {
                tokio::time::sleep(DENIED_FOR).await;
                store.set_beside(writers);
            });
            return;
        }
        store.set_beside(writers);
    }

    /// Waits until no other broker writes one of this broker's own files of a streamlet that it is known to
    /// own.
    pub(crate) async fn wait_for_other_writers(&self) {
        let writers = self.writers.clone();
        // Ends when the runtime does, and then nobody reads what is written.
        let _waited = tokio::task::spawn_blocking(move || writers.wait_for_others()).await;
    }

    /// The brokers that share the store are these now; true if that is news.
    pub(crate) fn follow(&self, living: &Living) -> bool {
        let (before, before_seen) = (self.peers(), self.seen.swap(living.clone()));
        let others = living.values().filter(|live| live.id != self.me.0);
        self.backup.peers().list(others_of(living, self.me.0));
        let others = others.filter(|live| !live.replication_address.is_empty());
        let mut peers = Vec::new();
        for live in others {
            let peer = Peer {
                id: live.id,
                address: live.replication_address.clone(),
                host: live.host.clone(),
            };
            if elsewhere(&self.host, &live.host) && is_of_every_machine(&peer.address) {
                let told = before_seen.get(&live.id);
                if told.is_none_or(|told| told.replication_address != peer.address) {
                    tracing::error!(
                        broker = live.id,
                        host = live.host,
                        address = peer.address,
                        "a broker on another machine names an address where every machine finds itself: it gets no replicas; set cluster.advertise there to an address that other machines reach, or cluster.host to the same name if both run on one machine"
                    );
                }
                continue;
            }
            let known = before.iter().find(|known| known.id == peer.id);
            let moved = known.is_none_or(|known| known.address != peer.address);
            let set = |peer: &Peer| self.ways.set_address(BrokerId(peer.id), &peer.address);
            if moved && let Err(error) = set(&peer) {
                tracing::error!(broker = peer.id, address = peer.address, %error, "a broker cannot be reached at the address it names");
                continue;
            }
            peers.push(peer);
        }
        for peer in peers
            .iter()
            .filter(|p| !before.iter().any(|b| b.id == p.id))
        {
            tracing::info!(
                broker = peer.id,
                address = peer.address,
                "a broker is there"
            );
        }
        for peer in before
            .iter()
            .filter(|b| !peers.iter().any(|p| p.id == b.id))
        {
            tracing::warn!(
                broker = peer.id,
                address = peer.address,
                "a broker is gone: its lease has ended"
            );
        }
        let is_news = before_seen != *living;
        if is_news {
            let racks = living.values().filter_map(|live| {
                let rack = live.rack.clone()?;
                Some((BrokerId(live.id), rack))
            });
            let leaving = living
                .values()
                .filter(|live| live.state == LiveState::Draining);
            let leaving = leaving.map(|live| BrokerId(live.id)).collect();
            self.set_peers(peers, racks.collect(), leaving);
        }
        is_news
    }

    fn set_peers(&self, peers: Vec<Peer>, racks: Vec<(BrokerId, String)>, leaving: Vec<BrokerId>) {
        let hosts = peers
            .iter()
            .map(|peer| (BrokerId(peer.id), peer.host.clone()));
        let mine = std::iter::once((self.me, self.host.clone()));
        let hosts: Vec<_> = mine.chain(hosts).collect();
        let mut brokers: Vec<_> = hosts.iter().map(|(broker, _)| *broker).collect();
        // In the same order at every broker: each chooses from its own place on.
        brokers.sort_unstable();
        let placement = Placement::new(hosts, self.allow_same_host).with_racks(racks);
        warn_if_crowded(&placement, &brokers);
        self.primary.set_peers(brokers, placement, leaving);
        self.peers.store(Arc::new(peers));
    }

    /// All brokers, this one first.
    fn brokers(&self) -> Vec<BrokerId> {
        let peers = self.peers();
        let peers = peers.iter().map(|peer| BrokerId(peer.id));
        std::iter::once(self.me).chain(peers).collect()
    }

    /// The most copies that a group can have, the primary's own included: one on each machine, or
    /// one at each broker where machines may hold several.
    pub fn most_copies(&self) -> usize {
        self.primary.placement().most_copies(&self.brokers())
    }

    /// Whether a group can have `replicas` copies.
    ///
    /// # Errors
    /// Says, for people, what is missing and what to do.
    pub fn check_copies(&self, replicas: u32) -> Result<(), String> {
        let (most, brokers) = (self.most_copies(), self.brokers().len());
        if replicas as usize <= most {
            return Ok(());
        }
        let more = "start more, with the same --cluster";
        if replicas as usize <= brokers {
            return Err(format!(
                "{replicas} replicas need {replicas} machines, and the {brokers} brokers known here run on {most}; {more} on other machines, or set cluster.allow_same_host"
            ));
        }
        Err(format!(
            "{replicas} replicas need {replicas} brokers, and {brokers} are known here; {more}"
        ))
    }
}

/// The addresses of all that live but `me`.
pub(crate) fn others_of(living: &Living, me: u32) -> BTreeMap<u32, Vec<String>> {
    let others = living.values().filter(|live| live.id != me);
    let addresses = |live: &LiveBroker| {
        let addresses = [&live.address, &live.replication_address];
        let told = addresses.into_iter().filter(|address| !address.is_empty());
        (live.id, told.cloned().collect())
    };
    others.map(addresses).collect()
}

/// Brokers that can never hold copies together are most likely not meant.
fn warn_if_crowded(placement: &Placement, brokers: &[BrokerId]) {
    for (index, broker) in brokers.iter().enumerate() {
        let mut others = brokers[..index].iter();
        let Some(other) = others.find(|other| placement.same_host(**other, *broker)) else {
            continue;
        };
        if placement.most_copies(brokers) < brokers.len() {
            tracing::warn!(
                "{other} and {broker} run on one machine, {}: no group has replicas on both; set cluster.host where these are several, or cluster.allow_same_host",
                placement.host(*broker).unwrap_or_default()
            );
        }
    }
}
