//! A broker of a cluster, as commands show it.

use kera_protocol::v1;
use serde::Serialize;

use crate::output::count;

const REPLICA_STORE: &str = "replica store";

/// A broker of a cluster, or a replica store.
#[derive(Serialize)]
pub(crate) struct BrokerView {
    pub(crate) broker_id: u32,
    pub(crate) state: &'static str,
    /// `broker`, `replica store`, or `unknown` of one that is gone.
    pub(crate) role: &'static str,
    pub(crate) address: String,
    pub(crate) replication: String,
    pub(crate) kafka: Option<String>,
    pub(crate) host: String,
    pub(crate) rack: Option<String>,
    pub(crate) version: String,
    /// The newest cluster version that its program can; 0 of one that is gone.
    pub(crate) cluster_version: u32,
    pub(crate) streamlets: u64,
    pub(crate) share: u64,
    pub(crate) bytes: u64,
    pub(crate) copies: u64,
    /// Of closed groups of which it has a copy, its own among them, and of those that are to come.
    pub(crate) held_bytes: u64,
    pub(crate) to_come_bytes: u64,
    /// Why it does not answer although it has its lease, if so.
    pub(crate) silent: Option<String>,
    /// Who refuses its certificate, and why, if the other brokers do.
    pub(crate) refused: Option<String>,
    /// Why it cannot write its own files, if it lives and cannot.
    pub(crate) cannot_write: Option<String>,
}

fn told(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

impl BrokerView {
    pub(crate) fn new(broker: v1::ClusterBroker) -> Self {
        Self {
            state: match broker.refused.is_empty() {
                true => state_name(broker.state()),
                false => "REFUSED",
            },
            broker_id: broker.id,
            role: match (broker.state(), broker.replica_store) {
                (v1::BrokerState::Gone, _) => "unknown",
                (_, true) => REPLICA_STORE,
                (_, false) => "broker",
            },
            address: broker.address,
            replication: broker.replication_address,
            kafka: told(broker.kafka_address),
            host: broker.host,
            rack: told(broker.rack),
            version: broker.version,
            cluster_version: broker.cluster_version,
            streamlets: broker.streamlets,
            share: broker.share,
            bytes: broker.bytes,
            copies: broker.copies,
            held_bytes: broker.held_bytes,
            to_come_bytes: broker.to_come_bytes,
            silent: None,
            refused: told(broker.refused),
            cannot_write: told(broker.cannot_write),
        }
    }

    /// True if it holds replicas alone: it owns nothing, and has no address for control calls.
    pub(crate) fn is_replica_store(&self) -> bool {
        self.role == REPLICA_STORE
    }

    /// It has its lease, and did not answer just now.
    pub(crate) fn silenced(&mut self, reason: String) {
        if self.refused.is_none() {
            self.state = "SILENT";
        }
        self.silent = Some(reason);
    }

    /// The state, with how far it has come where that changes.
    pub(crate) fn state_text(&self) -> String {
        match self.state {
            "PARTIAL" => format!("PARTIAL {}/{}", self.streamlets, self.share),
            "DRAINING" => format!("DRAINING, {} left", count(self.streamlets)),
            state => state.to_owned(),
        }
    }
}

fn state_name(state: v1::BrokerState) -> &'static str {
    match state {
        v1::BrokerState::Unknown => "UNKNOWN",
        v1::BrokerState::Gone => "GONE",
        v1::BrokerState::Joining => "JOINING",
        v1::BrokerState::Partial => "PARTIAL",
        v1::BrokerState::Normal => "NORMAL",
        v1::BrokerState::Draining => "DRAINING",
        v1::BrokerState::Drained => "DRAINED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_tells_how_far_it_has_come() {
        let broker = |state: v1::BrokerState| {
            BrokerView::new(v1::ClusterBroker {
                state: state.into(),
                streamlets: 3,
                share: 12,
                ..Default::default()
            })
            .state_text()
        };
        assert_eq!(broker(v1::BrokerState::Partial), "PARTIAL 3/12");
        assert_eq!(broker(v1::BrokerState::Draining), "DRAINING, 3 left");
        assert_eq!(broker(v1::BrokerState::Normal), "NORMAL");
    }
}
