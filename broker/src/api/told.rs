//! What brokers told of themselves, all at about the same time.

use std::sync::Arc;

use kera_protocol::error::WireError;
use kera_protocol::v1;

use super::views::Silent;

/// What brokers told.
pub(super) struct Told {
    pub(super) brokers: Vec<Arc<v1::ObserveResponse>>,
    pub(super) silent: Vec<Silent>,
    pub(super) cluster: Option<v1::DescribeClusterResponse>,
}

impl Told {
    pub(super) fn new(
        own: Arc<v1::ObserveResponse>,
        others: Vec<(u32, Result<v1::ObserveResponse, WireError>)>,
        cluster: Option<v1::DescribeClusterResponse>,
    ) -> Self {
        let (mut brokers, mut silent) = (vec![own], Vec::new());
        for (broker_id, answer) in others {
            match answer {
                Ok(answer) => brokers.push(Arc::new(answer)),
                Err(error) => silent.push(Silent {
                    broker_id,
                    reason: error.message,
                }),
            }
        }
        brokers.sort_by_key(|broker| broker.broker);
        Self {
            brokers,
            silent,
            cluster,
        }
    }

    pub(super) fn of(&self, broker: u32) -> Option<&v1::ObserveResponse> {
        let found = self.brokers.iter().find(|one| one.broker == broker);
        found.map(Arc::as_ref)
    }

    /// Groups with the brokers that coordinate them.
    pub(super) fn groups(&self) -> impl Iterator<Item = (u32, &v1::GroupSummary)> {
        let of = |broker: &'_ Arc<v1::ObserveResponse>| broker.broker;
        let all = self.brokers.iter();
        all.flat_map(move |broker| broker.groups.iter().map(move |group| (of(broker), group)))
    }
}
