//! The broker's settings: what it was started with, what tools look for under Kafka's names, and what was
//! changed while it runs.

use std::collections::HashSet;

use kafka_protocol::error::ResponseError;
use kera_broker::audit;
use kera_broker::config::{ALTERABLE, Alterable, BrokerConfig, KEYS, KafkaUnit, Key, ListenerName};
use kera_broker::settings::{Scope, Values};

use super::{Change, DELETE, SET, broker_named};
use crate::brokers;
use crate::config_table::{ConfigKind, TOPIC_CONFIGS};
use crate::context::Ctx;
use crate::refusal::{Refusal, short};

/// Where a value comes from, as answers number it.
const CHANGED_HERE: i8 = 2;
const CHANGED_FOR_ALL: i8 = 3;
const STARTED_WITH: i8 = 4;
const DEFAULT: i8 = 5;

/// A value, and where it comes from.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) source: i8,
}

/// A setting of the broker.
#[derive(Clone, Debug)]
pub(super) struct BrokerValue {
    pub(super) name: String,
    pub(super) kind: ConfigKind,
    pub(super) about: String,
    /// It can change while the broker runs.
    pub(super) alterable: bool,
    /// Its values, the one that counts first; never empty.
    pub(super) layers: Vec<Layer>,
}

/// How answers name the kind of a value in Kafka's form.
fn kind_of(unit: KafkaUnit) -> ConfigKind {
    match unit {
        KafkaUnit::Switch => ConfigKind::Boolean,
        KafkaUnit::Count | KafkaUnit::Bytes | KafkaUnit::Minutes => ConfigKind::Int,
        KafkaUnit::Milliseconds | KafkaUnit::MillisecondsOrNever => ConfigKind::Long,
        KafkaUnit::TextOrNone => ConfigKind::Text,
    }
}

/// A configuration of nothing but defaults and one value.
fn with(one: &Alterable, value: &str) -> BrokerConfig {
    let mut config = BrokerConfig::default();
    // What cannot be read is not applied either, and then the default is shown.
    let _ = config.alter(one.name, value);
    config
}

/// The layers of a setting: what was changed here, for all brokers, in its configuration, by default.
fn layers(
    ctx: &Ctx,
    name: &str,
    alterable: Option<&Alterable>,
    shown: impl Fn(&BrokerConfig) -> String,
) -> Vec<Layer> {
    let shared = &ctx.shared;
    let mut found = Vec::new();
    let mut push = |value: String, source: i8| {
        found.push(Layer {
            name: name.to_owned(),
            value,
            source,
        });
    };
    for (scope, source) in [(Scope::Own, CHANGED_HERE), (Scope::All, CHANGED_FOR_ALL)] {
        let Some(one) = alterable else { break };
        if let Some(value) = shared.settings.set_of(scope).get(one.name) {
            push(shown(&with(one, value)), source);
        }
    }
    let (started, default) = (shown(&shared.config), shown(&BrokerConfig::default()));
    if started != default {
        push(started, STARTED_WITH);
    }
    push(default, DEFAULT);
    found
}

/// What the broker was told, under Kera's names, and what tools look for, under Kafka's.
fn values(ctx: &Ctx) -> Vec<BrokerValue> {
    let own = KEYS.iter().map(|key| {
        let alterable = ALTERABLE.iter().find(|one| one.name == key.name);
        BrokerValue {
            name: key.name.to_owned(),
            kind: ConfigKind::Text,
            about: key.paragraph(),
            alterable: alterable.is_some(),
            layers: layers(ctx, key.name, alterable, |config| key.value_in(config)),
        }
    });
    let kafkas = ALTERABLE.iter().map(|one| BrokerValue {
        name: one.kafka_name.to_owned(),
        kind: kind_of(one.unit),
        about: format!("Kera's {}. {}", one.name, one.about()),
        alterable: true,
        layers: layers(ctx, one.kafka_name, Some(one), |config| {
            one.kafka_value(config)
        }),
    });
    let mut values: Vec<_> = own.chain(kafkas).chain(fixed(ctx)).collect();
    values.sort_by(|a, b| a.name.cmp(&b.name));
    values
}

/// What tools look for and no key tells.
fn fixed(ctx: &Ctx) -> impl Iterator<Item = BrokerValue> {
    let id = brokers::me(ctx).0.to_string();
    let listener = &ctx.listener;
    let protocol = listener.security.protocol().name();
    let name = listener.name.as_ref();
    let advertised = format!(
        "{}://{}:{}",
        name.map_or(protocol, ListenerName::as_str),
        listener.advertised_host,
        listener.advertised_port
    );
    let fixed = [
        (
            "broker.id",
            id.clone(),
            ConfigKind::Int,
            "This broker's number.",
        ),
        (
            "advertised.listeners",
            advertised,
            ConfigKind::List,
            "Where clients of the listener that was asked reach this broker: Kera's kafka.advertise.",
        ),
        ("node.id", id, ConfigKind::Int, "This broker's number."),
        (
            "default.replication.factor",
            "1".to_owned(),
            ConfigKind::Int,
            "Topics have one replica unless their creator asks for more.",
        ),
        (
            "delete.topic.enable",
            "true".to_owned(),
            ConfigKind::Boolean,
            "Topics can be deleted.",
        ),
    ];
    fixed
        .into_iter()
        .map(|(name, value, kind, about)| BrokerValue {
            name: name.to_owned(),
            kind,
            about: about.to_owned(),
            alterable: false,
            layers: vec![Layer {
                name: name.to_owned(),
                value,
                source: STARTED_WITH,
            }],
        })
}

/// The settings of a broker, or, without a name, those that were changed for all brokers.
///
/// # Errors
/// A broker that is not this one.
pub(super) fn described(ctx: &Ctx, name: &str) -> Result<Vec<BrokerValue>, Refusal> {
    if !name.is_empty() {
        broker_named(ctx, name)?;
        return Ok(values(ctx));
    }
    let mut of_all = values(ctx);
    for value in &mut of_all {
        value.layers.retain(|layer| layer.source == CHANGED_FOR_ALL);
    }
    of_all.retain(|value| !value.layers.is_empty());
    Ok(of_all)
}

/// A change of one key: its new value as Kera writes it, or none to delete it.
type KeyChange = (&'static str, Option<String>);

/// Changes settings of a broker or, without a name, of all; with `whole`, what is not named is deleted.
///
/// # Errors
/// A broker that is not this one, a setting that cannot change while the broker runs, or a value that it
/// cannot take.
pub(super) async fn alter(
    ctx: &Ctx,
    name: &str,
    changes: &[Change<'_>],
    whole: bool,
    only_check: bool,
) -> Result<(), Refusal> {
    let scope = match name.is_empty() {
        true => Scope::All,
        false => {
            broker_named(ctx, name)?;
            Scope::Own
        }
    };
    let mut seen = HashSet::new();
    let mut wanted = Vec::with_capacity(changes.len());
    for change in changes {
        let wish = wish(change)?;
        if !seen.insert(wish.0) {
            let text = format!("\"{}\" is changed twice", short(change.name));
            return Err(Refusal::new(ResponseError::InvalidRequest, text));
        }
        wanted.push(wish);
    }
    let change = |values: &mut Values| {
        if whole {
            values.clear();
        }
        for (name, value) in &wanted {
            match value {
                Some(value) => values.insert((*name).to_owned(), value.clone()),
                None => values.remove(*name),
            };
        }
    };
    let attempt = (!only_check && (whole || !changes.is_empty())).then(|| {
        let of = if name.is_empty() { "all" } else { name };
        let values = wanted.iter().map(|(name, value)| match value {
            Some(value) => format!("{name}={value}"),
            None => format!("{name} as configured"),
        });
        let others = whole.then(|| "all others as configured".to_owned());
        let detail: Vec<_> = values.chain(others).collect();
        let change = audit::Change::new("alter_settings", "broker", of, detail.join(" "));
        ctx.attempt(change)
    });
    let altered = kera_broker::alter_settings(&ctx.shared, scope, only_check, change).await;
    if let Some(attempt) = attempt {
        attempt.end(altered.as_ref());
    }
    altered.map_err(Refusal::of_settings)
}

fn wish(change: &Change<'_>) -> Result<KeyChange, Refusal> {
    let invalid = |text: String| Refusal::new(ResponseError::InvalidConfig, text);
    let Some(one) = Alterable::find(change.name) else {
        return Err(invalid(fixed_text(change.name)));
    };
    match (change.operation, change.value) {
        (DELETE, _) => Ok((one.name, None)),
        (SET, None) => {
            let text = format!("{} has no value", change.name);
            Err(Refusal::new(ResponseError::InvalidRequest, text))
        }
        (SET, Some(value)) if change.name == one.name => Ok((one.name, Some(value.to_owned()))),
        (SET, Some(value)) => match one.from_kafka(&short(value)) {
            Ok(value) => Ok((one.name, Some(value))),
            Err(error) => Err(invalid(format!("{}: {error}", one.kafka_name))),
        },
        (2 | 3, _) => Err(invalid(format!(
            "{} is no list: it can be set or deleted",
            change.name
        ))),
        (other, _) => {
            let text = format!("there is no change of kind {other}");
            Err(Refusal::new(ResponseError::InvalidRequest, text))
        }
    }
}

/// Why a setting cannot be changed here, and where it can.
fn fixed_text(name: &str) -> String {
    if Key::find(name).is_some() {
        return format!(
            "{name} cannot be changed while the broker runs: set it in the configuration file and restart"
        );
    }
    let of_topics = TOPIC_CONFIGS.iter().find(|c| c.broker_name == name);
    if let Some(topics) = of_topics {
        return format!(
            "{name} is no setting of the broker here: set {} of the topics",
            topics.name
        );
    }
    let names: Vec<_> = ALTERABLE.iter().map(|one| one.kafka_name).collect();
    format!(
        "\"{}\" cannot be changed while the broker runs; {} can. Set others in the configuration file, under Kera's names (`kera config print`), and restart",
        short(name),
        names.join(", ")
    )
}
