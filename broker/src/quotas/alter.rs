//! Seeing and changing quotas.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use kera_metadata::quota::{Limit, QuotaEntity, QuotaKind, Whom, check_limit};
use kera_metadata::{Quota, QuotasRecord};
use kera_protocol::error::{ErrorCode, WireError};

use super::ENFORCED;
use crate::replaced_record::{change_record, read_record};
use crate::shared::Shared;

/// A change of what one entity may do: limits by Kafka's name; `None` takes one away.
#[derive(Clone, Debug)]
pub struct Change {
    /// Whom it is about.
    pub entity: QuotaEntity,
    /// The limits that change.
    pub limits: Vec<(String, Option<f64>)>,
}

impl Change {
    /// The limits that change, for people.
    pub fn limits_text(&self) -> String {
        let texts = self.limits.iter().map(|(name, value)| match value {
            Some(value) => format!("{name}={value}"),
            None => format!("{name}=none"),
        });
        texts.collect::<Vec<_>>().join(" ")
    }

    /// Whom it is about, as quotas are looked for and stored.
    fn stored_entity(&self) -> QuotaEntity {
        let mut entity = self.entity.clone();
        if let Some(Whom::Name(name)) = &mut entity.ip {
            *name = address_text(name);
        }
        entity
    }

    /// What is to be stored.
    fn checked(&self) -> Result<Vec<(QuotaKind, Option<Limit>)>, WireError> {
        self.entity.check().map_err(invalid)?;
        let limits = self.limits.iter().map(|(name, value)| {
            let Some(kind) = QuotaKind::named(name).filter(|kind| ENFORCED.contains(kind)) else {
                let shown: String = name.chars().take(64).collect();
                let known: Vec<_> = ENFORCED.iter().map(|kind| kind.name()).collect();
                return Err(invalid(format!(
                    "there is no limit {shown:?}; this broker knows {}",
                    known.join(", ")
                )));
            };
            let value = value.map(|value| check_limit(&self.entity, kind, value));
            Ok((kind, value.transpose().map_err(invalid)?))
        });
        limits.collect()
    }
}

/// The text of an address that all ways to write it share: `::ffff:192.0.2.1` is 192.0.2.1. What is no address stays.
pub fn address_text(name: &str) -> String {
    let address = name.parse::<IpAddr>();
    address.map_or_else(|_| name.to_owned(), |ip| ip.to_canonical().to_string())
}

/// The quotas that are recorded, by entity.
///
/// # Errors
/// What the metadata store answers.
pub async fn list(shared: &Arc<Shared>) -> Result<Vec<Quota>, WireError> {
    let recorded = read_record(&shared.metadata, |store| store.quotas());
    Ok(recorded.await?.quotas)
}

/// Makes changes, in order and all at once; for each whether it was made, and if not, why. With `only_check` nothing
/// is changed.
///
/// # Errors
/// None was made: too many quotas, or what the metadata store answers.
pub async fn alter(
    shared: &Arc<Shared>,
    changes: &[Change],
    only_check: bool,
) -> Result<Vec<Result<(), WireError>>, WireError> {
    let checked: Vec<_> = changes.iter().map(Change::checked).collect();
    let changed = change_record(
        &shared.metadata,
        |store| store.quotas(),
        |record| {
            let quotas = record.quotas.iter();
            let mut quotas: BTreeMap<QuotaEntity, BTreeMap<QuotaKind, Limit>> = quotas
                .map(|quota| (quota.entity.clone(), quota.limits.clone()))
                .collect();
            let before = quotas.clone();
            let mut made = Vec::new();
            for (change, limits) in changes.iter().zip(&checked) {
                let limits = match limits {
                    Ok(limits) => limits,
                    Err(error) => {
                        made.push(Err(error.clone()));
                        continue;
                    }
                };
                let entity = change.stored_entity();
                let kept = quotas.get(&entity).cloned();
                let quota = quotas.entry(entity.clone()).or_default();
                for (kind, limit) in limits {
                    match limit {
                        Some(limit) => quota.insert(*kind, *limit),
                        None => quota.remove(kind),
                    };
                }
                let promises = limits.iter().any(|(kind, _)| kind.is_of_objective());
                let admitted = match promises {
                    true => admits(shared, &entity, &quotas),
                    false => Ok(()),
                };
                if admitted.is_err() {
                    quotas.insert(entity, kept.unwrap_or_default());
                }
                made.push(admitted);
            }
            quotas.retain(|_, limits| !limits.is_empty());
            let is_other = quotas != before;
            record.quotas = listed(quotas);
            record.check().map_err(invalid)?;
            Ok((made, is_other && !only_check))
        },
        |record| shared.quotas.take(record),
    );
    let (_, made) = changed.await?;
    Ok(made)
}

fn invalid(text: String) -> WireError {
    WireError::new(ErrorCode::InvalidArgument, text)
}

fn listed(quotas: BTreeMap<QuotaEntity, BTreeMap<QuotaKind, Limit>>) -> Vec<Quota> {
    let quotas = quotas.into_iter();
    let quotas = quotas.map(|(entity, limits)| Quota { entity, limits });
    quotas.collect()
}

/// Checks that an entity's objective has all its parts, and that this broker can keep it together with the other objectives.
fn admits(
    shared: &Shared,
    entity: &QuotaEntity,
    quotas: &BTreeMap<QuotaEntity, BTreeMap<QuotaKind, Limit>>,
) -> Result<(), WireError> {
    if let Some(limits) = quotas.get(entity) {
        let (entity, limits) = (entity.clone(), limits.clone());
        let quota = Quota { entity, limits };
        quota.check_objective().map_err(invalid)?;
    }
    let Some(Whom::Name(user)) = &entity.user else {
        return Ok(());
    };
    let record = QuotasRecord {
        quotas: listed(quotas.clone()),
        revision: 0,
    };
    let capacity = &shared.quotas.turns.capacity;
    capacity.admits(&record, user).map_err(invalid)
}
