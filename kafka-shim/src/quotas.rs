//! DescribeClientQuotas and AlterClientQuotas: quotas by Kafka's names.

use std::collections::HashSet;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::alter_client_quotas_request::{
    EntityData as AlteredPart, EntryData as Alteration,
};
use kafka_protocol::messages::alter_client_quotas_response::{
    EntityData as AnsweredPart, EntryData as Answered,
};
use kafka_protocol::messages::describe_client_quotas_request::ComponentData;
use kafka_protocol::messages::describe_client_quotas_response::{
    EntityData as DescribedPart, EntryData as Described, ValueData,
};
use kafka_protocol::messages::{
    AlterClientQuotasRequest, AlterClientQuotasResponse, DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
};
use kera_broker::audit;
use kera_broker::quotas::{self, Change};
use kera_metadata::Quota;
use kera_metadata::quota::{QuotaEntity, Whom};

use crate::context::Ctx;
use crate::refusal::{Refusal, short, text};

const USER: &str = "user";
const CLIENT: &str = "client-id";
const IP: &str = "ip";

/// How a part of a filter is compared.
const EXACT: i8 = 0;
const DEFAULT: i8 = 1;
const ANY: i8 = 2;

/// The quotas that a filter finds.
pub(crate) async fn describe_client_quotas(
    ctx: &Ctx,
    version: i16,
    request: DescribeClientQuotasRequest,
) -> DescribeClientQuotasResponse {
    let refused = |refusal: Refusal| {
        DescribeClientQuotasResponse::default()
            .with_error_code(refusal.code)
            .with_error_message(Some(refusal.text()))
            .with_entries(None)
    };
    if let Err(refusal) = ctx.check_cluster() {
        return refused(refusal);
    }
    let filter = match Filter::of(&request) {
        Ok(filter) => filter,
        Err(refusal) => return refused(refusal),
    };
    let found = match quotas::list(&ctx.shared).await {
        Ok(found) => found,
        Err(error) => return refused(error.into()),
    };
    let mut entries = Vec::new();
    for quota in found.iter().filter(|quota| filter.fits(&quota.entity)) {
        let entry = described(quota);
        if !ctx.has_room_for_item(&entry, version).await {
            return refused(Refusal::too_long());
        }
        entries.push(entry);
    }
    DescribeClientQuotasResponse::default()
        .with_error_message(None)
        .with_entries(Some(entries))
}

/// The types of an entity and whom it names of each, `None` for the default.
fn parts(entity: &QuotaEntity) -> impl Iterator<Item = (&'static str, Option<&str>)> {
    let all = [
        (USER, &entity.user),
        (CLIENT, &entity.client),
        (IP, &entity.ip),
    ];
    all.into_iter().filter_map(|(kind, whom)| {
        Some(match whom.as_ref()? {
            Whom::Default => (kind, None),
            Whom::Name(name) => (kind, Some(name.as_str())),
        })
    })
}

fn described(quota: &Quota) -> Described {
    let entity = parts(&quota.entity).map(|(kind, name)| {
        DescribedPart::default()
            .with_entity_type(text(kind))
            .with_entity_name(name.map(text))
    });
    let values = quota.limits.iter().map(|(kind, limit)| {
        ValueData::default()
            .with_key(text(kind.name()))
            .with_value(limit.value())
    });
    Described::default()
        .with_entity(entity.collect())
        .with_values(values.collect())
}

/// Which quotas are meant.
struct Filter {
    parts: Vec<(&'static str, Wanted)>,
    /// They have no other parts.
    strict: bool,
}

enum Wanted {
    Exactly(Whom),
    Any,
}

impl Filter {
    fn of(request: &DescribeClientQuotasRequest) -> Result<Self, Refusal> {
        let mut seen = HashSet::new();
        let parts = request.components.iter().map(|part| {
            let kind = kind_of(part.entity_type.as_str())?;
            if !seen.insert(kind) {
                return Err(invalid(format!("{kind} is named twice")));
            }
            Ok((kind, wanted(part)?))
        });
        Ok(Self {
            parts: parts.collect::<Result<_, _>>()?,
            strict: request.strict,
        })
    }

    fn fits(&self, entity: &QuotaEntity) -> bool {
        let fit = |(kind, wanted): &(&str, Wanted)| {
            let mut found = parts(entity).filter(|(of, _)| of == kind);
            found.next().is_some_and(|(_, name)| match wanted {
                Wanted::Any => true,
                Wanted::Exactly(Whom::Default) => name.is_none(),
                Wanted::Exactly(Whom::Name(wanted)) => name == Some(wanted.as_str()),
            })
        };
        self.parts.iter().all(fit) && (!self.strict || parts(entity).count() == self.parts.len())
    }
}

fn wanted(part: &ComponentData) -> Result<Wanted, Refusal> {
    match (part.match_type, &part._match) {
        (EXACT, Some(name)) => {
            let is_address = part.entity_type.as_str() == IP;
            let name = match is_address {
                true => quotas::address_text(name),
                false => name.to_string(),
            };
            Ok(Wanted::Exactly(Whom::Name(name)))
        }
        (EXACT, None) => Err(invalid("an exact match needs a name")),
        (DEFAULT, None) => Ok(Wanted::Exactly(Whom::Default)),
        (ANY, None) => Ok(Wanted::Any),
        (DEFAULT | ANY, Some(_)) => Err(invalid("only an exact match has a name")),
        (other, _) => Err(invalid(format!("there is no match type {other}"))),
    }
}

fn kind_of(kind: &str) -> Result<&'static str, Refusal> {
    let known = [USER, CLIENT, IP].into_iter().find(|known| *known == kind);
    known.ok_or_else(|| {
        let kind = short(kind);
        invalid(format!(
            "there are no quotas of {kind:?}; there are of user, client-id and ip"
        ))
    })
}

fn invalid(why: impl Into<String>) -> Refusal {
    Refusal::new(ResponseError::InvalidRequest, why)
}

/// Changes quotas. What is wrong with one keeps none of the others from being changed.
pub(crate) async fn alter_client_quotas(
    ctx: &Ctx,
    _version: i16,
    request: AlterClientQuotasRequest,
) -> AlterClientQuotasResponse {
    let denied = ctx.check_cluster().err();
    let mut seen = HashSet::new();
    let changes = request.entries.iter().map(|entry| {
        if let Some(refusal) = &denied {
            return Err(refusal.clone());
        }
        let change = change_of(entry)?;
        match seen.insert(change.entity.clone()) {
            true => Ok(change),
            false => Err(invalid(format!("{} is named twice", change.entity))),
        }
    });
    let changes: Vec<Result<Change, Refusal>> = changes.collect();
    let whole: Vec<Change> = changes.iter().flatten().cloned().collect();
    let tried = whole.iter().filter(|_| !request.validate_only);
    let attempts = tried.map(|change| {
        let name = change.entity.to_string();
        let what = audit::Change::new("alter_quota", "quota", name, change.limits_text());
        ctx.attempt(what)
    });
    let attempts: Vec<_> = attempts.collect();
    let made = match whole.is_empty() {
        true => Ok(Vec::new()),
        false => quotas::alter(&ctx.shared, &whole, request.validate_only).await,
    };
    for (at, attempt) in attempts.into_iter().enumerate() {
        match &made {
            Ok(made) => attempt.end(made[at].as_ref()),
            Err(error) => attempt.end(Err::<&(), _>(error)),
        }
    }
    let mut made = made.map(Vec::into_iter).map_err(Refusal::from);
    let entries = request.entries.into_iter().zip(changes);
    let entries = entries.map(|(entry, change)| {
        let outcome = change.and_then(|_| match &mut made {
            Ok(made) => match made.next().unwrap_or(Ok(())) {
                Ok(()) => Ok(()),
                Err(error) => Err(Refusal::from(error)),
            },
            Err(refusal) => Err(refusal.clone()),
        });
        let parts = entry.entity.into_iter().map(|part| {
            AnsweredPart::default()
                .with_entity_type(part.entity_type)
                .with_entity_name(part.entity_name)
        });
        let answered = Answered::default()
            .with_entity(parts.collect())
            .with_error_message(None);
        match outcome {
            Ok(()) => answered,
            Err(refusal) => answered
                .with_error_code(refusal.code)
                .with_error_message(Some(refusal.text())),
        }
    });
    AlterClientQuotasResponse::default().with_entries(entries.collect())
}

fn change_of(entry: &Alteration) -> Result<Change, Refusal> {
    let mut entity = QuotaEntity::default();
    for part in &entry.entity {
        let kind = kind_of(part.entity_type.as_str())?;
        let place = match kind {
            USER => &mut entity.user,
            CLIENT => &mut entity.client,
            _ => &mut entity.ip,
        };
        if place.replace(whom(part)).is_some() {
            return Err(invalid(format!("{kind} is named twice")));
        }
    }
    let limits = entry.ops.iter().map(|op| {
        let value = (!op.remove).then_some(op.value);
        (op.key.to_string(), value)
    });
    let limits: Vec<_> = limits.collect();
    let mut keys = HashSet::new();
    if let Some((twice, _)) = limits.iter().find(|(key, _)| !keys.insert(key.as_str())) {
        return Err(invalid(format!("{} is changed twice", short(twice))));
    }
    Ok(Change { entity, limits })
}

fn whom(part: &AlteredPart) -> Whom {
    let name = part.entity_name.as_ref();
    name.map_or(Whom::Default, |name| Whom::Name(name.to_string()))
}
