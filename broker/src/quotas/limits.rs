//! Which limit counts for whom: Kafka's order.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use kera_metadata::QuotasRecord;
use kera_metadata::quota::{Limit, QuotaEntity, QuotaKind, Whom};

use crate::unheard::Source;

/// Who shares what is used of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sharers {
    /// A user, a client id, or a client id of a user.
    Clients {
        user: Option<Arc<str>>,
        client: Option<Arc<str>>,
    },
    /// An address.
    Address(Source),
}

/// The quotas as they are asked for.
#[derive(Debug, Default)]
pub(super) struct Limits {
    by_entity: HashMap<QuotaEntity, Vec<(QuotaKind, Limit)>>,
    pub(super) revision: u64,
}

impl Limits {
    pub(super) fn of(record: &QuotasRecord) -> Self {
        let quotas = record.quotas.iter().map(|quota| {
            let limits = quota.limits.iter();
            let limits = limits.map(|(kind, limit)| (*kind, *limit)).collect();
            (quota.entity.clone(), limits)
        });
        Self {
            by_entity: quotas.collect(),
            revision: record.revision,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_entity.is_empty()
    }

    fn at(&self, kind: QuotaKind, entity: &QuotaEntity) -> Option<Limit> {
        let mut limits = self.by_entity.get(entity)?.iter();
        limits
            .find(|(found, _)| *found == kind)
            .map(|(_, limit)| *limit)
    }

    /// The limit of a kind for a client, and with whom the client shares it. The first of these that is there counts:
    ///
    /// 1. of the user and the client id, 2. of the user and any client id, 3. of the user;
    /// 4. of any user and the client id, 5. of any user and any client id, 6. of any user;
    /// 7. of the client id, 8. of any client id.
    pub(super) fn find(
        &self,
        kind: QuotaKind,
        user: &Arc<str>,
        client: &Arc<str>,
    ) -> Option<(Limit, Sharers)> {
        if self.is_empty() {
            return None;
        }
        let named = |name: &Arc<str>| Some(Whom::Name(name.to_string()));
        let users = [named(user), Some(Whom::Default), None];
        let clients = [named(client), Some(Whom::Default), None];
        for user_part in &users {
            for client_part in &clients {
                let entity = QuotaEntity {
                    user: user_part.clone(),
                    client: client_part.clone(),
                    ip: None,
                };
                if let Some(limit) = self.at(kind, &entity) {
                    let sharers = Sharers::Clients {
                        user: user_part.is_some().then(|| user.clone()),
                        client: client_part.is_some().then(|| client.clone()),
                    };
                    return Some((limit, sharers));
                }
            }
        }
        None
    }

    /// The limit of a kind for an address.
    pub(super) fn of_address(&self, kind: QuotaKind, address: IpAddr) -> Option<Limit> {
        if self.is_empty() {
            return None;
        }
        let whom = [Whom::Name(address.to_string()), Whom::Default];
        whom.into_iter().find_map(|whom| {
            let entity = QuotaEntity {
                ip: Some(whom),
                ..QuotaEntity::default()
            };
            self.at(kind, &entity)
        })
    }
}

#[cfg(test)]
mod tests {
    use kera_metadata::Quota;
    use proptest::prelude::*;

    use super::*;

    /// Kafka's order, as its documentation lists it: user and client id of `/config/users/U/clients/C`, `*` for the
    /// default, nothing where a part is missing; and who shares it.
    const KAFKA: [(&str, &str, (bool, bool)); 8] = [
        ("ann", "app", (true, true)),
        ("ann", "*", (true, true)),
        ("ann", "", (true, false)),
        ("*", "app", (true, true)),
        ("*", "*", (true, true)),
        ("*", "", (true, false)),
        ("", "app", (false, true)),
        ("", "*", (false, true)),
    ];

    fn part(text: &str) -> Option<Whom> {
        match text {
            "" => None,
            "*" => Some(Whom::Default),
            name => Some(Whom::Name(name.to_owned())),
        }
    }

    fn record(entities: &[(QuotaEntity, f64)], kind: QuotaKind) -> QuotasRecord {
        let quotas = entities.iter().map(|(entity, value)| Quota {
            entity: entity.clone(),
            limits: [(kind, Limit::new(*value).unwrap())].into(),
        });
        QuotasRecord {
            quotas: quotas.collect(),
            revision: 1,
        }
    }

    proptest! {
        /// Of any set of quotas the first in Kafka's order counts, whatever else there is for others and of other kinds.
        #[test]
        fn the_first_in_kafkas_order_counts(present in 0..256_u32, others in any::<bool>()) {
            let kind = QuotaKind::ConsumerByteRate;
            let mut entities = Vec::new();
            for (number, (user, client, _)) in KAFKA.iter().enumerate() {
                if present & (1 << number) != 0 {
                    let (user, client) = (part(user), part(client));
                    let entity = QuotaEntity { user, client, ip: None };
                    entities.push((entity, number as f64 + 1.0));
                }
            }
            let mut wanted = record(&entities, kind);
            if others {
                for (user, client) in [("bob", "app"), ("ann", "other"), ("bob", ""), ("", "other")] {
                    let (user, client) = (part(user), part(client));
                    let entity = QuotaEntity { user, client, ip: None };
                    wanted.quotas.extend(record(&[(entity, 99.0)], kind).quotas);
                }
            }
            let limits = Limits::of(&wanted);
            let (user, client): (Arc<str>, Arc<str>) = ("ann".into(), "app".into());
            let found = limits.find(kind, &user, &client);
            let first = (0..8).find(|number| present & (1 << number) != 0);
            prop_assert_eq!(found.as_ref().map(|(limit, _)| limit.value()), first.map(|n| f64::from(n) + 1.0));
            if let (Some((_, sharers)), Some(first)) = (found, first) {
                let (by_user, by_client) = KAFKA[first as usize].2;
                let wanted = Sharers::Clients {
                    user: by_user.then_some(user.clone()),
                    client: by_client.then_some(client.clone()),
                };
                prop_assert_eq!(sharers, wanted);
            }
            // Each kind by itself.
            prop_assert!(limits.find(QuotaKind::ProducerByteRate, &user, &client).is_none());
        }
    }

    #[test]
    fn an_address_has_its_own_limit_or_the_default() {
        let kind = QuotaKind::ConnectionCreationRate;
        let of = |whom: Whom| QuotaEntity {
            ip: Some(whom),
            ..QuotaEntity::default()
        };
        let own = (of(Whom::Name("10.0.0.1".to_owned())), 5.0);
        let limits = Limits::of(&record(std::slice::from_ref(&own), kind));
        assert_eq!(limits.of_address(kind, "10.0.0.2".parse().unwrap()), None);
        let limits = Limits::of(&record(&[(of(Whom::Default), 2.0), own], kind));
        let value = |address: &str| {
            let limit = limits.of_address(kind, address.parse().unwrap());
            limit.map(Limit::value)
        };
        assert_eq!(value("10.0.0.1"), Some(5.0));
        assert_eq!(value("10.0.0.2"), Some(2.0));
    }
}
