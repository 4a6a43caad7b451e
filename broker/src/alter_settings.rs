//! Changing broker settings, and taking in what others changed.

use std::sync::Arc;

use arc_swap::Guard;
use kera_metadata::{Image, SettingsRecord};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;

use crate::config::{ALTERABLE, BrokerConfig};
use crate::replaced_record::change_record;
use crate::settings::{Scope, Values};
use crate::shared::Shared;

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
        let Some(scope) = Scope::of(&record, self.broker_id) else {
            return;
        };
        let mut known = self.settings.known.lock();
        if known.of(scope).revision >= record.revision {
            return;
        }
        self.settings.take_version(&record);
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
        self.admission.set_most(&now);
        self.coordination.set_limits(&now);
        self.settings.now.store(Arc::new(now));
        self.retimed.wake();
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
        (*self.config).clone().alter_all(values).map_err(invalid)?;
        // This broker's own values come before those of all.
        let (mut together, own) = match scope {
            Scope::All => (values.clone(), self.settings.set_of(Scope::Own)),
            Scope::Own => (self.settings.set_of(Scope::All), values.clone()),
        };
        together.extend(own);
        (*self.config).clone().alter_all(&together).map_err(invalid)
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
    let changed = change_settings(shared, scope, move |record| {
        let present = record.values.clone();
        change(&mut record.values);
        shared.altered(scope, &record.values)?;
        Ok(!only_check && record.values != present)
    });
    changed.await.map(drop)
}

/// Changes the record of a scope's settings and takes it in: `change` makes the record that is to be of the one that is,
/// anew each time that others were faster, and says whether there is anything to write. The record as it is then.
///
/// # Errors
/// As [`change_record`].
pub(crate) async fn change_settings(
    shared: &Arc<Shared>,
    scope: Scope,
    mut change: impl FnMut(&mut SettingsRecord) -> Result<bool, WireError>,
) -> Result<SettingsRecord, WireError> {
    let id = shared.settings.id(scope);
    let changed = change_record(
        &shared.metadata,
        move |store| store.settings(id),
        |record| Ok(((), change(record)?)),
        |record| shared.take_settings(record.clone()),
    );
    Ok(changed.await?.0)
}
