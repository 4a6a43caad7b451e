//! A share group of a run: members over Kafka's protocol, which come, go and vanish with what they have acquired, and what
//! must be true of what they get.
//!
//! The brokers of such a run have a listener for Kafka's clients; the group reads a stream of its own.

mod cluster;
mod draining;
mod judge;
mod letters;
mod member;
mod producing;
mod session;
mod wire;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use kera_protocol::ids::StreamId;
use kera_protocol::partition::place_of;

pub use draining::{configure, drain};
pub use letters::read as read_letters;
pub use member::run as consume;
pub use producing::run as produce;

use crate::brokers::KAFKA_PORT;
use crate::load::Load;
use crate::plan::SharesPlan;
use crate::store::Store;
use judge::{Limits, Shares};

/// The group's name.
const GROUP_NAME: &str = "shared";

/// What clients of the stream share.
pub struct Shared {
    pub load: Arc<Load>,
    pub judge: Shares,
    plan: SharesPlan,
    store: Arc<Store>,
    stream: OnceLock<StreamId>,
}

impl Shared {
    /// None if the run has no such group.
    pub fn of(load: &Arc<Load>, store: &Arc<Store>) -> Option<Arc<Self>> {
        let plan = load.plan.shares.clone()?;
        let limits = Limits {
            deliveries: plan.deliveries,
            lock: plan.lock,
        };
        Some(Arc::new(Self {
            load: load.clone(),
            judge: Shares::new(limits),
            plan,
            store: store.clone(),
            stream: OnceLock::new(),
        }))
    }

    pub fn plan(&self) -> &SharesPlan {
        &self.plan
    }

    fn name(&self) -> &str {
        &self.plan.stream.name
    }

    /// Where Kafka's clients find brokers at first.
    fn addresses(&self) -> Vec<SocketAddr> {
        let native = self.load.bootstrap.split(',');
        let native = native.filter_map(|address| address.parse::<SocketAddr>().ok());
        native
            .map(|address| SocketAddr::new(address.ip(), KAFKA_PORT))
            .collect()
    }

    /// The recorded owner of a partition, and its epoch.
    fn owner(&self, partition: u32) -> Option<(u32, u32)> {
        let stream = match self.stream.get() {
            Some(stream) => *stream,
            None => {
                let found = self.store.stream_named(self.name())?;
                *self.stream.get_or_init(|| found)
            }
        };
        let (streamlet, _) = place_of(partition, self.plan.stream.streamlets);
        self.store.owner_of(stream, streamlet)
    }
}
