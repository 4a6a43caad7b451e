//! Seeing and changing quotas.

use std::collections::BTreeMap;
use std::sync::Arc;

use kera_metadata::quota::{Limit, QuotaEntity, QuotaKind, check_limit};
use kera_metadata::{Compare, MetadataError, Quota, QuotasRecord, Transaction, Write};
use kera_protocol::error::{ErrorCode, WireError};

use super::ENFORCED;
use crate::shared::Shared;
use crate::store_calls::{blocking, metadata_error};

/// Attempts to change quotas that others change at the same time.
const ATTEMPTS: u32 = 16;

/// A change of what one entity may do: limits by Kafka's name; `None` takes one away.
#[derive(Clone, Debug)]
pub struct Change {
    /// Whom it is about.
    pub entity: QuotaEntity,
    /// The limits that change.
    pub limits: Vec<(String, Option<f64>)>,
}

impl Change {
    /// What is to be stored.
    fn checked(&self) -> Result<Vec<(QuotaKind, Option<Limit>)>, WireError> {
        let invalid = |text: String| WireError::new(ErrorCode::InvalidArgument, text);
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

/// The quotas that are recorded, by entity.
///
/// # Errors
/// What the metadata store answers.
pub async fn list(shared: &Arc<Shared>) -> Result<Vec<Quota>, WireError> {
    Ok(recorded(shared).await?.quotas)
}

async fn recorded(shared: &Arc<Shared>) -> Result<QuotasRecord, WireError> {
    let shared = shared.clone();
    blocking(move || {
        shared
            .metadata
            .quotas()
            .map_err(|error| metadata_error(&error))
    })
    .await
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
    let made = checked.iter().map(|one| match one {
        Ok(_) => Ok(()),
        Err(error) => Err(error.clone()),
    });
    let made: Vec<_> = made.collect();
    for _ in 0..ATTEMPTS {
        let present = recorded(shared).await?;
        let quotas = present.quotas.iter();
        let mut quotas: BTreeMap<QuotaEntity, BTreeMap<QuotaKind, Limit>> = quotas
            .map(|quota| (quota.entity.clone(), quota.limits.clone()))
            .collect();
        for (change, limits) in changes.iter().zip(&checked) {
            let Ok(limits) = limits else { continue };
            let quota = quotas.entry(change.entity.clone()).or_default();
            for (kind, limit) in limits {
                match limit {
                    Some(limit) => quota.insert(*kind, *limit),
                    None => quota.remove(kind),
                };
            }
        }
        quotas.retain(|_, limits| !limits.is_empty());
        let quotas = quotas.into_iter();
        let mut record = QuotasRecord {
            quotas: quotas
                .map(|(entity, limits)| Quota { entity, limits })
                .collect(),
            revision: present.revision,
        };
        record
            .check()
            .map_err(|text| WireError::new(ErrorCode::InvalidArgument, text))?;
        if only_check || record.quotas == present.quotas {
            return Ok(made);
        }
        let (writing, wanted) = (shared.clone(), record.clone());
        let written = blocking(move || {
            let compare = Compare::QuotasRevision {
                revision: wanted.revision,
            };
            let write = Write::PutQuotas(wanted);
            let transaction = Transaction::new(vec![compare], vec![write]);
            match writing.metadata.commit(transaction) {
                Ok(committed) => Ok(Some(committed.revision)),
                Err(MetadataError::Conflict(_)) => Ok(None),
                Err(error) => Err(metadata_error(&error)),
            }
        });
        if let Some(revision) = written.await? {
            record.revision = revision;
            shared.quotas.take(&record);
            return Ok(made);
        }
    }
    let text = "quotas were changed by others at the same time, again and again; try again";
    Err(WireError::new(ErrorCode::Overloaded, text))
}
