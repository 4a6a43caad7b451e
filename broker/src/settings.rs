//! Broker settings that are changed while the broker runs.
//!
//! The metadata store keeps them: those of all brokers in one record, those of each broker in another. A
//! broker's own value comes before that of all brokers, and both before its configuration. A broker that
//! shares the store hears of changes by watching it; the one that was asked applies them at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use kera_metadata::{CLUSTER_VERSION, Image, SettingsRecord};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::config::BrokerConfig;

/// Values by name, as a configuration file has them.
pub type Values = BTreeMap<String, String>;

/// Whose settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Of this broker alone.
    Own,
    /// Of all brokers that have no value of their own.
    All,
}

impl Scope {
    /// Whose settings `record` has, as broker `me` sees it; `None`: another broker's.
    pub(crate) fn of(record: &SettingsRecord, me: u32) -> Option<Self> {
        match record.broker {
            None => Some(Self::All),
            Some(id) => (id == me).then_some(Self::Own),
        }
    }
}

/// The settings of one broker as they are now.
#[derive(Debug)]
pub struct Settings {
    broker: u32,
    /// The cluster version that the store was made with.
    made_with: u32,
    /// The cluster version that counts, as it is raised.
    pub(crate) version: watch::Sender<u32>,
    pub(crate) known: Mutex<Known>,
    pub(crate) now: ArcSwap<BrokerConfig>,
}

/// What is recorded, as far as it is known here.
#[derive(Debug, Default)]
pub(crate) struct Known {
    all: SettingsRecord,
    own: SettingsRecord,
}

impl Known {
    pub(crate) fn of(&mut self, scope: Scope) -> &mut SettingsRecord {
        match scope {
            Scope::All => &mut self.all,
            Scope::Own => &mut self.own,
        }
    }

    /// A configuration with what is recorded over it. A value that this build does not take, as of a newer
    /// one, is left out; where the values do not go together, all are.
    pub(crate) fn over(&self, config: &BrokerConfig) -> BrokerConfig {
        let mut now = config.clone();
        for (name, value) in self.all.values.iter().chain(&self.own.values) {
            if let Err(error) = now.alter(name, value) {
                tracing::warn!(
                    error,
                    "a broker setting in the metadata store is not applied; delete it or set another value"
                );
            }
        }
        match now.alter_all(&Values::new()) {
            Ok(()) => now,
            Err(errors) => {
                tracing::error!(
                    error = errors.join("; "),
                    "the broker settings in the metadata store do not go together with the configuration file and are not applied; change one of them"
                );
                config.clone()
            }
        }
    }
}

impl Settings {
    /// Those of broker `broker`, from its configuration and what the store held at the start; `made_with` is the cluster
    /// version that the store was made with.
    pub fn new(config: &BrokerConfig, broker: u32, made_with: u32, image: &Image) -> Self {
        let mut known = Known::default();
        for record in &image.settings {
            if let Some(scope) = Scope::of(record, broker) {
                *known.of(scope) = record.clone();
            }
        }
        let version = known.all.cluster_version.max(made_with);
        Self {
            broker,
            made_with,
            version: watch::Sender::new(version),
            now: ArcSwap::from_pointee(known.over(config)),
            known: Mutex::new(known),
        }
    }

    /// The configuration with every change over it.
    pub fn now(&self) -> Guard<Arc<BrokerConfig>> {
        self.now.load()
    }

    /// The cluster version that counts: what may be used.
    pub fn cluster_version(&self) -> u32 {
        *self.version.borrow()
    }

    /// Returns, once that is so, the cluster version that others finalized and this program cannot.
    pub async fn outdated(&self) -> u32 {
        let mut version = self.version.subscribe();
        let found = version.wait_for(|version| *version > CLUSTER_VERSION).await;
        // The sender is here.
        found.map_or(CLUSTER_VERSION, |found| *found)
    }

    /// The cluster version that counts if these are the settings of all brokers.
    pub(crate) fn version_of(&self, record: &SettingsRecord) -> u32 {
        record.cluster_version.max(self.made_with)
    }

    /// Takes in the cluster version that the settings of all brokers say.
    pub(crate) fn take_version(&self, record: &SettingsRecord) {
        let version = self.version_of(record);
        if record.broker.is_none()
            && self.version.send_if_modified(|known| {
                let changed = *known != version;
                *known = version;
                changed
            })
        {
            tracing::info!(version, "the cluster version was finalized");
        }
    }

    /// What was set of a scope, by name.
    pub fn set_of(&self, scope: Scope) -> Values {
        self.known.lock().of(scope).values.clone()
    }

    pub(crate) fn id(&self, scope: Scope) -> Option<u32> {
        match scope {
            Scope::All => None,
            Scope::Own => Some(self.broker),
        }
    }
}
