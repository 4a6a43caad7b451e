//! How much clients may do: quotas as Kafka has them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// Most quotas of a store, and most bytes of the names in them: they are one record, and etcd takes no larger one.
pub const MAX_QUOTAS: usize = 4096;
/// See [`MAX_QUOTAS`].
pub const MAX_QUOTAS_BYTES: usize = 512 << 10;
/// Most bytes of a user's name or of a client id.
pub const MAX_QUOTA_NAME: usize = 255;
/// Most users with an objective: brokers look at all of them whenever they fill buckets.
pub const MAX_OBJECTIVES: usize = 64;

/// What a quota limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaKind {
    /// Bytes of records that are produced, a second.
    ProducerByteRate,
    /// Bytes of records that are read, a second.
    ConsumerByteRate,
    /// Time of the broker's cores that requests take, in hundredths of one core.
    RequestPercentage,
    /// Partitions that are created and deleted, a second.
    ControllerMutationRate,
    /// Connections that are opened, a second.
    ConnectionCreationRate,
    /// Of an objective: milliseconds from request to answer, which at most one answer in a hundred exceeds.
    ObjectiveLatency,
    /// Of an objective: requests a second that are guaranteed.
    ObjectiveRequestRate,
    /// Of an objective: bytes a second, appended and read together, that are guaranteed.
    ObjectiveByteRate,
}

impl QuotaKind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::ProducerByteRate,
        Self::ConsumerByteRate,
        Self::RequestPercentage,
        Self::ControllerMutationRate,
        Self::ConnectionCreationRate,
        Self::ObjectiveLatency,
        Self::ObjectiveRequestRate,
        Self::ObjectiveByteRate,
    ];
    /// The parts of an objective. A user has all of them or none.
    pub const OBJECTIVE: [Self; 3] = [
        Self::ObjectiveLatency,
        Self::ObjectiveRequestRate,
        Self::ObjectiveByteRate,
    ];

    /// Kafka's name of it where Kafka has such a limit. It is stored under this name as well.
    pub fn name(self) -> &'static str {
        match self {
            Self::ProducerByteRate => "producer_byte_rate",
            Self::ConsumerByteRate => "consumer_byte_rate",
            Self::RequestPercentage => "request_percentage",
            Self::ControllerMutationRate => "controller_mutation_rate",
            Self::ConnectionCreationRate => "connection_creation_rate",
            Self::ObjectiveLatency => "objective_latency_ms",
            Self::ObjectiveRequestRate => "objective_request_rate",
            Self::ObjectiveByteRate => "objective_byte_rate",
        }
    }

    /// The kind of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// True if it limits addresses, and not users and client ids.
    pub fn is_of_addresses(self) -> bool {
        self == Self::ConnectionCreationRate
    }

    /// True for a part of an objective, which guarantees something instead of limiting it.
    pub fn is_of_objective(self) -> bool {
        Self::OBJECTIVE.contains(&self)
    }

    /// True if only whole numbers are taken, as at Kafka.
    fn is_whole(self) -> bool {
        matches!(
            self,
            Self::ProducerByteRate | Self::ConsumerByteRate | Self::ConnectionCreationRate
        )
    }
}

impl fmt::Display for QuotaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A limit: a number above zero.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Limit(f64);

impl Eq for Limit {}

impl Limit {
    /// A limit; `None` for what is none.
    pub fn new(value: f64) -> Option<Self> {
        (value.is_finite() && value > 0.0).then_some(Self(value))
    }

    /// The number.
    pub fn value(self) -> f64 {
        self.0
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whom a quota is about, of one type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Whom {
    /// All that have no quota of their own, each by itself.
    Default,
    /// The one of this name.
    Name(String),
}

impl fmt::Display for Whom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("<default>"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Whom a quota is about: a user, a client id, a client id of a user, or an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuotaEntity {
    /// The user, by name without `User:`.
    pub user: Option<Whom>,
    /// The client id.
    pub client: Option<Whom>,
    /// The address; no other may be set then.
    pub ip: Option<Whom>,
}

impl QuotaEntity {
    /// Checks an entity by itself.
    ///
    /// # Errors
    /// What is wrong with it, and what to do.
    pub fn check(&self) -> Result<(), String> {
        match (&self.user, &self.client, &self.ip) {
            (None, None, None) => {
                return Err("a quota is about a user, a client id or an address: name one".into());
            }
            (None, None, Some(_)) | (_, _, None) => {}
            _ => {
                return Err("a quota of an address is of no user and of no client id".into());
            }
        }
        for (what, whom) in [("user", &self.user), ("client id", &self.client)] {
            let Some(Whom::Name(name)) = whom else {
                continue;
            };
            if name.is_empty() || name.len() > MAX_QUOTA_NAME || name.contains(char::is_control) {
                let shown: String = name.chars().take(64).collect();
                return Err(format!(
                    "the {what} {shown:?} has {} bytes; 1 to {MAX_QUOTA_NAME} without control characters are taken",
                    name.len()
                ));
            }
        }
        if let Some(Whom::Name(name)) = &self.ip
            && name.parse::<IpAddr>().is_err()
        {
            let shown: String = name.chars().take(64).collect();
            return Err(format!(
                "{shown:?} is no IP address; names and networks are not taken"
            ));
        }
        Ok(())
    }

    fn text_bytes(&self) -> usize {
        let length = |whom: &Option<Whom>| match whom {
            Some(Whom::Name(name)) => name.len(),
            _ => 0,
        };
        length(&self.user) + length(&self.client) + length(&self.ip)
    }
}

impl fmt::Display for QuotaEntity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("user", &self.user),
            ("client id", &self.client),
            ("address", &self.ip),
        ];
        let named = parts
            .iter()
            .filter_map(|(what, whom)| Some((what, whom.as_ref()?)));
        for (number, (what, whom)) in named.enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            write!(f, "{comma}{what} {whom}")?;
        }
        Ok(())
    }
}

/// What one entity may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Whom it is about.
    pub entity: QuotaEntity,
    /// How much; at least one.
    pub limits: BTreeMap<QuotaKind, Limit>,
}

/// What a user is promised beside others, at each broker.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Objective {
    /// Milliseconds that at most one answer in a hundred exceeds.
    pub latency_ms: f64,
    /// Requests a second for which that holds,
    pub request_rate: f64,
    /// and bytes a second, appended and read together.
    pub byte_rate: f64,
}

impl Quota {
    /// The objective, if there is a whole one.
    pub fn objective(&self) -> Option<Objective> {
        let value = |kind| self.limits.get(&kind).copied().map(Limit::value);
        Some(Objective {
            latency_ms: value(QuotaKind::ObjectiveLatency)?,
            request_rate: value(QuotaKind::ObjectiveRequestRate)?,
            byte_rate: value(QuotaKind::ObjectiveByteRate)?,
        })
    }

    /// Checks that there is no part of an objective without the others.
    ///
    /// # Errors
    /// Which parts are missing.
    pub fn check_objective(&self) -> Result<(), String> {
        let has = |kind: &QuotaKind| self.limits.contains_key(kind);
        let missing = QuotaKind::OBJECTIVE.into_iter().filter(|kind| !has(kind));
        let missing: Vec<_> = missing.map(QuotaKind::name).collect();
        match missing.len() {
            0 => Ok(()),
            all if all == QuotaKind::OBJECTIVE.len() => Ok(()),
            _ => Err(format!(
                "the objective of {} lacks {}; set all three, or delete all three",
                self.entity,
                missing.join(" and ")
            )),
        }
    }
}

/// Checks a limit of an entity.
///
/// # Errors
/// What is wrong, and what to do.
pub fn check_limit(entity: &QuotaEntity, kind: QuotaKind, value: f64) -> Result<Limit, String> {
    if kind.is_of_addresses() != entity.ip.is_some() {
        return Err(match kind.is_of_addresses() {
            true => format!("{kind} is a limit of addresses, and not of users or client ids"),
            false => format!("{kind} is a limit of users and client ids, and not of addresses"),
        });
    }
    if kind.is_of_objective()
        && !matches!((&entity.user, &entity.client), (Some(Whom::Name(_)), None))
    {
        return Err(format!(
            "{kind} is of one user by name: what is guaranteed to all users, or to whoever takes a client id, has no bound"
        ));
    }
    let Some(limit) = Limit::new(value) else {
        return Err(format!(
            "{kind} is a number above 0, not {value}; delete it for no limit"
        ));
    };
    if kind.is_whole() && value.fract() != 0.0 {
        return Err(format!("{kind} is a whole number, not {value}"));
    }
    Ok(limit)
}

/// All quotas of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotasRecord {
    /// By entity.
    pub quotas: Vec<Quota>,
    /// Revision of the transaction that wrote this; ignored in a write.
    pub revision: u64,
}

impl QuotasRecord {
    /// Checks the whole.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub fn check(&self) -> Result<(), String> {
        let quotas = &self.quotas;
        let bytes: usize = quotas.iter().map(|one| one.entity.text_bytes()).sum();
        if quotas.len() > MAX_QUOTAS || bytes > MAX_QUOTAS_BYTES {
            return Err(format!(
                "there would be {} quotas with names of {bytes} bytes; at most {MAX_QUOTAS} of {MAX_QUOTAS_BYTES} bytes are kept; use defaults",
                quotas.len()
            ));
        }
        if !quotas.is_sorted_by(|one, next| one.entity < next.entity) {
            return Err("quotas are not in order, each once".to_owned());
        }
        for quota in quotas {
            quota.entity.check()?;
            if quota.limits.is_empty() {
                return Err(format!("the quota of {} limits nothing", quota.entity));
            }
            for (kind, limit) in &quota.limits {
                check_limit(&quota.entity, *kind, limit.value())?;
            }
            quota.check_objective()?;
        }
        let objectives = quotas.iter().filter(|quota| quota.objective().is_some());
        if objectives.count() > MAX_OBJECTIVES {
            return Err(format!(
                "at most {MAX_OBJECTIVES} users have an objective; delete one first"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> Option<Whom> {
        Some(Whom::Name(name.to_owned()))
    }

    #[test]
    fn an_entity_is_of_users_and_client_ids_or_of_an_address() {
        let entity = |user, client, ip| QuotaEntity { user, client, ip };
        let default = || Some(Whom::Default);
        for sound in [
            entity(name("ann"), None, None),
            entity(name("ann"), default(), None),
            entity(default(), name("app"), None),
            entity(None, name("app"), None),
            entity(None, None, default()),
            entity(None, None, name("::1")),
        ] {
            sound.check().unwrap();
        }
        let long = "x".repeat(MAX_QUOTA_NAME + 1);
        for wrong in [
            entity(None, None, None),
            entity(name("ann"), None, default()),
            entity(None, name("app"), name("10.0.0.1")),
            entity(name(""), None, None),
            entity(None, name("a\nb"), None),
            entity(None, name(&long), None),
            entity(None, None, name("10.0.0.0/8")),
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
        let both = entity(name("ann"), default(), None);
        assert_eq!(both.to_string(), "user ann, client id <default>");
    }

    #[test]
    fn limits_are_above_zero_and_of_what_they_limit() {
        let user = QuotaEntity {
            user: Some(Whom::Default),
            ..QuotaEntity::default()
        };
        let address = QuotaEntity {
            ip: Some(Whom::Default),
            ..QuotaEntity::default()
        };
        use QuotaKind as K;
        assert!(check_limit(&user, K::ProducerByteRate, 1.0).is_ok());
        assert!(check_limit(&user, K::RequestPercentage, 0.5).is_ok());
        assert!(check_limit(&address, K::ConnectionCreationRate, 3.0).is_ok());
        for (entity, kind, value) in [
            (&user, K::ProducerByteRate, 0.0),
            (&user, K::ProducerByteRate, -1.0),
            (&user, K::ProducerByteRate, 1.5),
            (&user, K::RequestPercentage, f64::NAN),
            (&user, K::RequestPercentage, f64::INFINITY),
            (&user, K::ConnectionCreationRate, 1.0),
            (&address, K::ConsumerByteRate, 1.0),
        ] {
            assert!(
                check_limit(entity, kind, value).is_err(),
                "{kind} of {value}"
            );
        }
        for kind in K::ALL {
            assert_eq!(K::named(kind.name()), Some(kind));
        }
    }

    #[test]
    fn an_objective_is_whole_and_of_a_user_by_name() {
        use QuotaKind as K;
        let ann = QuotaEntity {
            user: name("ann"),
            ..QuotaEntity::default()
        };
        let others = [
            (Some(Whom::Default), None, None),
            (name("ann"), name("app"), None),
            (None, name("app"), None),
            (None, None, name("10.0.0.1")),
        ];
        for kind in K::OBJECTIVE {
            assert!(check_limit(&ann, kind, 0.5).is_ok());
            for (user, client, ip) in others.clone() {
                let entity = QuotaEntity { user, client, ip };
                assert!(check_limit(&entity, kind, 1.0).is_err(), "{entity}");
            }
        }
        let record = |name: &str, kinds: &[K]| {
            let limits = kinds.iter().map(|kind| (*kind, Limit(2.0)));
            let entity = QuotaEntity {
                user: Some(Whom::Name(name.to_owned())),
                ..QuotaEntity::default()
            };
            let limits = limits.collect();
            Quota { entity, limits }
        };
        let check = |quotas: Vec<Quota>| {
            let revision = 1;
            QuotasRecord { quotas, revision }.check()
        };
        check(vec![record("ann", &K::OBJECTIVE)]).unwrap();
        assert!(record("ann", &K::OBJECTIVE[..2]).objective().is_none());
        let lacking = check(vec![record("ann", &K::OBJECTIVE[..2])]).unwrap_err();
        assert!(lacking.contains("lacks objective_byte_rate"), "{lacking}");
        let all = |count: usize| {
            let names = (0..count).map(|number| format!("{number:04}"));
            check(names.map(|name| record(&name, &K::OBJECTIVE)).collect())
        };
        all(MAX_OBJECTIVES).unwrap();
        assert!(all(MAX_OBJECTIVES + 1).is_err());
    }
}
