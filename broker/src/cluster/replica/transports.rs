//! Over what copies travel, and what else this build and this machine could use.

use std::io;
use std::sync::Arc;

use kera_replication::ids::BrokerId;
use kera_replication::transport::tcp::{LinkOptions, TcpTransport};
use kera_replication::transport::{
    Capability, Preference, TransportKind, TransportRef, capabilities,
};
use kera_rpc::ClientTls;

use super::cards;
use crate::config::{BrokerConfig, TlsListener, TransportChoice};
use crate::error::BrokerError;

/// A way for copies between brokers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportState {
    /// Its name, as configurations write it.
    pub name: String,
    /// Copies travel over it, where the other broker can as well.
    pub used: bool,
    /// The network card that it uses, if it can be used and takes one.
    pub by: String,
    /// Why this build or machine cannot use it.
    pub unusable: Option<String>,
}

/// Every transport, with the one that `config` comes to.
pub fn transports(config: &BrokerConfig) -> Vec<TransportState> {
    let known = known(config);
    let picked = preference(config.cluster.transport).pick(&known);
    // Where the one that was asked for cannot be used, the broker does not start.
    let picked = picked.unwrap_or(TransportKind::Tcp);
    let state = |one: Capability| TransportState {
        name: one.kind.to_string(),
        used: one.kind == picked,
        by: match one.kind {
            TransportKind::Tcp => String::new(),
            TransportKind::Rdma => one.usable.clone().unwrap_or_default(),
        },
        unusable: one.usable.err(),
    };
    known.into_iter().map(state).collect()
}

/// The transport that `config` comes to.
///
/// # Errors
/// [`BrokerError::Transport`] if one is asked for by name and cannot be used.
pub(crate) fn pick(config: &BrokerConfig) -> Result<TransportKind, BrokerError> {
    let choice = config.cluster.transport;
    let known = known(config);
    preference(choice).pick(&known).map_err(|reason| {
        let unusable = known.into_iter().find_map(|one| one.usable.err());
        BrokerError::Transport {
            name: choice.to_string(),
            reason: unusable.unwrap_or(reason),
        }
    })
}

/// What this build and machine can do, and the configuration allows.
fn known(config: &BrokerConfig) -> Vec<Capability> {
    let mut known = capabilities(config.replica_store.memory_bytes);
    let has_tls = config.tls.listeners.contains(&TlsListener::Cluster);
    if has_tls && !config.cluster.trusted_fabric {
        let cards = known
            .iter_mut()
            .filter(|one| one.kind == TransportKind::Rdma);
        for one in cards {
            one.usable = Err(
                "cluster.listen has TLS (tls.listeners), network cards write replicas without, and cluster.trusted_fabric is false"
                    .to_owned(),
            );
        }
    }
    known
}

fn preference(choice: TransportChoice) -> Preference {
    match choice {
        TransportChoice::Auto => Preference::Auto,
        TransportChoice::Tcp => Preference::Only(TransportKind::Tcp),
        TransportChoice::Rdma => Preference::Only(TransportKind::Rdma),
    }
}

/// The way to this broker's peers.
#[derive(Clone, Debug)]
pub enum Ways {
    /// Sockets.
    Tcp(Arc<TcpTransport>),
    /// Network cards, or sockets where a peer has none and `auto` allows it.
    Rdma(cards::Ways),
}

impl Ways {
    /// The way that `config` comes to, for broker `me`; it knows no peers yet. To be called within a
    /// tokio runtime.
    ///
    /// # Errors
    /// [`BrokerError::Transport`] if one is asked for by name and cannot be used.
    pub fn new(me: BrokerId, config: &BrokerConfig) -> Result<Self, BrokerError> {
        let tcp = TcpTransport::new(me, LinkOptions::default());
        Ok(match pick(config)? {
            TransportKind::Tcp => Self::Tcp(Arc::new(tcp)),
            TransportKind::Rdma => {
                let or_tcp = config.cluster.transport == TransportChoice::Auto;
                let ways = cards::Ways::new(me, tcp, or_tcp);
                Self::Rdma(ways.map_err(|reason| BrokerError::Transport {
                    name: TransportKind::Rdma.to_string(),
                    reason,
                })?)
            }
        })
    }

    /// Says where a peer is to be found: HOST:PORT. Links that exist stay as they are.
    ///
    /// # Errors
    /// `InvalidInput` if it is not HOST:PORT.
    pub fn set_address(&self, peer: BrokerId, address: &str) -> io::Result<()> {
        match self {
            Self::Tcp(tcp) => tcp.set_address(peer, address),
            Self::Rdma(cards) => cards.set_address(peer, address),
        }
    }

    /// Connects with `tls` from now on, or without; connections that exist stay as they are. Network cards have none: with
    /// them it is for control calls, and for the data of peers without a card.
    pub fn use_tls(&self, tls: Option<ClientTls>) {
        match self {
            Self::Tcp(tcp) => tcp.use_tls(tls),
            Self::Rdma(cards) => cards.use_tls(tls),
        }
    }

    /// As replication takes it.
    pub fn transport(&self) -> TransportRef {
        match self {
            Self::Tcp(tcp) => tcp.clone(),
            Self::Rdma(cards) => cards.transport(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(choice: TransportChoice) -> BrokerConfig {
        let mut config = BrokerConfig::default();
        config.cluster.transport = choice;
        config
    }

    #[test]
    fn cards_are_used_beside_tls_only_on_a_network_that_is_declared_trusted() {
        let reason = |config: &BrokerConfig| {
            let states = transports(config);
            let rdma = states.into_iter().find(|s| s.name == "rdma");
            rdma.expect("it is known").unusable
        };
        let mut config = with(TransportChoice::Auto);
        let without_tls = reason(&config);
        config.tls.listeners = vec![TlsListener::Cluster];
        let told = reason(&config).expect("it cannot be used");
        assert!(told.contains("cluster.trusted_fabric is false"), "{told}");
        config.cluster.trusted_fabric = true;
        assert_eq!(reason(&config), without_tls);
    }

    #[test]
    fn one_transport_is_used_and_the_others_say_why_not() {
        for choice in [TransportChoice::Auto, TransportChoice::Tcp] {
            let states = transports(&with(choice));
            let used: Vec<_> = states.iter().filter(|s| s.used).collect();
            assert_eq!(used.len(), 1, "{states:?}");
            assert!(used[0].unusable.is_none(), "{states:?}");
            let picked = pick(&with(choice)).expect("there is one");
            assert_eq!(picked.to_string(), used[0].name);
        }
        assert_eq!(
            pick(&with(TransportChoice::Tcp)).expect("sockets"),
            TransportKind::Tcp
        );
        let states = transports(&with(TransportChoice::Rdma));
        let rdma = states.iter().find(|s| s.name == "rdma").expect("known");
        if rdma.unusable.is_some() {
            let error = pick(&with(TransportChoice::Rdma)).expect_err("it cannot be used");
            assert!(error.to_string().contains("use auto or tcp"), "{error}");
        }
    }
}
