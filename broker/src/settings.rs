//! Broker settings that are changed while the broker runs.
//!
//! The metadata store keeps them: those of all brokers in one record, those of each broker in another. A
//! broker's own value comes before that of all brokers, and both before its configuration. A broker that
//! shares the store hears of changes by watching it; the one that was asked applies them at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use kera_metadata::{
    Compare, Image, MetadataError, MetadataStore, SettingsRecord, Transaction, Write,
};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;
use parking_lot::Mutex;

use crate::admin::{blocking, metadata_error};
use crate::config::{ALTERABLE, BrokerConfig};
use crate::start::Shared;

/// Attempts to change settings that others change at the same time.
const ATTEMPTS: u32 = 16;

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

/// The settings of one broker as they are now.
#[derive(Debug)]
pub struct Settings {
    broker: u32,
    known: Mutex<Known>,
    now: ArcSwap<BrokerConfig>,
}

/// What is recorded, as far as it is known here.
#[derive(Debug, Default)]
struct Known {
    all: SettingsRecord,
    own: SettingsRecord,
}

impl Known {
    fn of(&mut self, scope: Scope) -> &mut SettingsRecord {
        match scope {
            Scope::All => &mut self.all,
            Scope::Own => &mut self.own,
        }
    }

    /// A configuration with what is recorded over it. A value that this build does not take, as of a newer
    /// one, is left out; where the values do not go together, all are.
    fn over(&self, config: &BrokerConfig) -> BrokerConfig {
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
    /// Those of broker `broker`, from its configuration and what the store held at the start.
    pub fn new(config: &BrokerConfig, broker: u32, image: &Image) -> Self {
        let mut known = Known::default();
        for record in &image.settings {
            match record.broker {
                None => known.all = record.clone(),
                Some(id) if id == broker => known.own = record.clone(),
                Some(_) => {}
            }
        }
        Self {
            broker,
            now: ArcSwap::from_pointee(known.over(config)),
            known: Mutex::new(known),
        }
    }

    /// The configuration with every change over it.
    pub fn now(&self) -> Guard<Arc<BrokerConfig>> {
        self.now.load()
    }

    /// What was set of a scope, by name.
    pub fn set_of(&self, scope: Scope) -> Values {
        self.known.lock().of(scope).values.clone()
    }

    fn id(&self, scope: Scope) -> Option<u32> {
        match scope {
            Scope::All => None,
            Scope::Own => Some(self.broker),
        }
    }
}

impl Shared {
    /// The configuration as it is now, with what was changed since the start. Only the keys of
    /// [`ALTERABLE`] ever differ from [`Shared::config`].
    pub fn live(&self) -> Guard<Arc<BrokerConfig>> {
        self.settings.now()
    }

    /// The settings that have a value of their own, whatever the broker was started with.
    pub fn changed_settings(&self) -> Vec<v1::ChangedSetting> {
        let own = self.settings.set_of(Scope::Own);
        let all = self.settings.set_of(Scope::All);
        let (now, set) = (self.live(), |name| {
            own.contains_key(name) || all.contains_key(name)
        });
        let changed = ALTERABLE.iter().filter(|one| set(one.name));
        changed
            .map(|one| v1::ChangedSetting {
                name: one.name.to_owned(),
                value: one.value(&now),
                configured: one.value(&self.config),
                of_all: !own.contains_key(one.name),
            })
            .collect()
    }

    /// Takes in what is recorded of settings, unless something newer is known.
    pub(crate) fn take_settings(&self, record: SettingsRecord) {
        let scope = match record.broker {
            None => Scope::All,
            Some(id) if id == self.broker_id => Scope::Own,
            Some(_) => return,
        };
        let mut known = self.settings.known.lock();
        if known.of(scope).revision >= record.revision {
            return;
        }
        *known.of(scope) = record;
        let (before, now) = (self.settings.now.load_full(), known.over(&self.config));
        if *before == now {
            return;
        }
        for one in ALTERABLE {
            let (old, new) = (one.value(&before), one.value(&now));
            if old != new {
                tracing::info!(setting = one.name, old, new, "a setting changed");
            }
        }
        // Still under the lock: of two changes the later one stays.
        self.admission.set_most(now.server.max_connections);
        self.coordination.set_limits(&now);
        self.settings.now.store(Arc::new(now));
        self.intervals_changed();
    }

    /// Takes in all that is recorded of settings.
    pub(crate) fn take_all_settings(&self, image: &Image) {
        for record in &image.settings {
            self.take_settings(record.clone());
        }
    }

    /// What a change would make of the settings of a scope.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] for values that are illegal, or do not go together.
    fn altered(&self, scope: Scope, values: &Values) -> Result<(), WireError> {
        let invalid =
            |errors: Vec<String>| WireError::new(ErrorCode::InvalidArgument, errors.join("; "));
        // By themselves first: a value of all brokers that this one has another for counts too.
        self.config.clone().alter_all(values).map_err(invalid)?;
        // This broker's own values come before those of all.
        let (mut together, own) = match scope {
            Scope::All => (values.clone(), self.settings.set_of(Scope::Own)),
            Scope::Own => (self.settings.set_of(Scope::All), values.clone()),
        };
        together.extend(own);
        self.config.clone().alter_all(&together).map_err(invalid)
    }
}

/// Changes the settings of a scope: `change` makes the values that are to be of those that are. With
/// `only_check` nothing is changed.
///
/// # Errors
/// [`ErrorCode::InvalidArgument`] for values that are illegal or do not go together, or what the metadata
/// store answers.
pub async fn alter(
    shared: &Arc<Shared>,
    scope: Scope,
    only_check: bool,
    change: impl Fn(&mut Values),
) -> Result<(), WireError> {
    for _ in 0..ATTEMPTS {
        let (reading, id) = (shared.clone(), shared.settings.id(scope));
        let read = move || {
            let record = reading.metadata.settings(id);
            record.map_err(|error| metadata_error(&error))
        };
        let present = blocking(read).await?;
        let mut record = present.clone();
        change(&mut record.values);
        shared.altered(scope, &record.values)?;
        if only_check || record.values == present.values {
            return Ok(());
        }
        let (writing, wanted) = (shared.clone(), record.clone());
        let write = move || write(&*writing.metadata, wanted);
        if let Some(revision) = blocking(write).await? {
            record.revision = revision;
            shared.take_settings(record);
            return Ok(());
        }
    }
    let text = "the settings were changed by others at the same time, again and again; try again";
    Err(WireError::new(ErrorCode::Overloaded, text))
}

/// Writes the settings over those of the revision in them; `None` if they have another by now.
fn write(store: &dyn MetadataStore, record: SettingsRecord) -> Result<Option<u64>, WireError> {
    let compare = Compare::SettingsRevision {
        broker: record.broker,
        revision: record.revision,
    };
    let write = Write::PutSettings(record);
    match store.commit(Transaction::new(vec![compare], vec![write])) {
        Ok(committed) => Ok(Some(committed.revision)),
        Err(MetadataError::Conflict(_)) => Ok(None),
        Err(error) => Err(metadata_error(&error)),
    }
}
