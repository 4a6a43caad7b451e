//! AlterConfigs and IncrementalAlterConfigs.

use std::collections::HashSet;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::alter_configs_response::AlterConfigsResourceResponse;
use kafka_protocol::messages::incremental_alter_configs_request::AlterableConfig;
use kafka_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse as IncrementalResponse;
use kafka_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResponse, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
};
use kafka_protocol::protocol::StrBytes;
use kera_broker::admin;
use kera_broker::audit::{self, settings_text};
use kera_broker::shares::{self, GroupSettings};
use kera_coordinator::classic::shares::DEAD_LETTER_TOPIC;
use kera_metadata::StreamConfig;
use kera_metadata::access::{Kind, Operation};

use super::{
    BROKER, Change, DELETE, GROUP, LOGGERS, SET, TOPIC, broker, flush_interval, loggers,
    no_resource,
};
use crate::access;
use crate::config_table::{ConfigKind, TOPIC_CONFIGS, TopicConfig};
use crate::context::Ctx;
use crate::groups::host;
use crate::refusal::{Refusal, short};
use crate::shares::check_feature;
use crate::topic;
use crate::topic_config::{Wanted, known, list, same, value_of};

/// Further changes of a value, of lists.
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

/// Sets the whole of a topic's or broker's settings: what is not named gets its default.
pub(crate) async fn alter_configs(
    ctx: &Ctx,
    _version: i16,
    request: AlterConfigsRequest,
) -> AlterConfigsResponse {
    let work = Work {
        ctx,
        whole: true,
        validate_only: request.validate_only,
        doubled: doubled(
            request
                .resources
                .iter()
                .map(|r| (r.resource_type, &r.resource_name)),
        ),
    };
    let mut responses = Vec::with_capacity(request.resources.len());
    for resource in &request.resources {
        ctx.pause().await;
        let changes: Vec<_> = resource
            .configs
            .iter()
            .map(|config| Change {
                name: &config.name,
                operation: SET,
                value: config.value.as_deref(),
            })
            .collect();
        let key = (resource.resource_type, resource.resource_name.clone());
        let outcome = work.alter(&key, &changes).await;
        let mut response = AlterConfigsResourceResponse::default()
            .with_error_message(None)
            .with_resource_type(key.0)
            .with_resource_name(key.1);
        if let Err(refusal) = outcome {
            response.error_code = refusal.code;
            response.error_message = Some(refusal.text());
        }
        responses.push(response);
    }
    AlterConfigsResponse::default().with_responses(responses)
}

/// Changes single settings of topics and brokers.
pub(crate) async fn incremental_alter_configs(
    ctx: &Ctx,
    _version: i16,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let work = Work {
        ctx,
        whole: false,
        validate_only: request.validate_only,
        doubled: doubled(
            request
                .resources
                .iter()
                .map(|r| (r.resource_type, &r.resource_name)),
        ),
    };
    let mut responses = Vec::with_capacity(request.resources.len());
    for resource in &request.resources {
        ctx.pause().await;
        let changes: Vec<_> = resource.configs.iter().map(change_of).collect();
        let key = (resource.resource_type, resource.resource_name.clone());
        let outcome = work.alter(&key, &changes).await;
        let mut response = IncrementalResponse::default()
            .with_error_message(None)
            .with_resource_type(key.0)
            .with_resource_name(key.1);
        if let Err(refusal) = outcome {
            response.error_code = refusal.code;
            response.error_message = Some(refusal.text());
        }
        responses.push(response);
    }
    IncrementalAlterConfigsResponse::default().with_responses(responses)
}

fn change_of(config: &AlterableConfig) -> Change<'_> {
    Change {
        name: &config.name,
        operation: config.config_operation,
        value: config.value.as_deref(),
    }
}

fn doubled<'a>(keys: impl Iterator<Item = (i8, &'a StrBytes)>) -> HashSet<(i8, StrBytes)> {
    let mut seen = HashSet::new();
    keys.filter(|key| !seen.insert(*key))
        .map(|(kind, name)| (kind, name.clone()))
        .collect()
}

fn named_twice() -> Refusal {
    Refusal::new(
        ResponseError::InvalidRequest,
        "the resource is named twice in one request",
    )
}

struct Work<'a> {
    ctx: &'a Ctx,
    /// What is not named gets its default.
    whole: bool,
    validate_only: bool,
    /// Resources that the request names more than once.
    doubled: HashSet<(i8, StrBytes)>,
}

impl Work<'_> {
    async fn alter(&self, key: &(i8, StrBytes), changes: &[Change<'_>]) -> Result<(), Refusal> {
        if self.doubled.contains(key) {
            return Err(named_twice());
        }
        let (kind, name) = (key.0, key.1.as_str());
        match kind {
            TOPIC => {
                self.ctx.check_topic(name)?;
                self.alter_topic(name, changes).await
            }
            BROKER => {
                self.ctx.check_cluster()?;
                broker::alter(self.ctx, name, changes, self.whole, self.validate_only).await
            }
            LOGGERS => {
                self.ctx.check_cluster()?;
                if self.whole {
                    return Err(loggers::one_by_one());
                }
                loggers::alter(self.ctx, name, changes, self.validate_only)
            }
            GROUP if self.ctx.may_group(name) => self.alter_group(name, changes).await,
            GROUP => Err(access::no_group()),
            other => Err(no_resource(other)),
        }
    }

    /// Settings of share groups. Nothing is made of a group that only leaves its settings as they are.
    async fn alter_group(&self, name: &str, changes: &[Change<'_>]) -> Result<(), Refusal> {
        check_feature(self.ctx)?;
        if changes.is_empty() && !self.whole {
            return Ok(());
        }
        let mut wanted = GroupSettings {
            group: name.to_owned(),
            whole: self.whole,
            validate_only: self.validate_only,
            client_host: host(self.ctx),
            ..GroupSettings::default()
        };
        for change in changes {
            let value = match (change.operation, change.value) {
                (SET, Some(value)) => Some(value.to_owned()),
                (DELETE, _) => None,
                (SET, None) => {
                    let text = format!("\"{}\" has no value", short(change.name));
                    return Err(Refusal::new(ResponseError::InvalidRequest, text));
                }
                _ => {
                    let text = format!(
                        "\"{}\" is no list: it can be set or deleted",
                        short(change.name)
                    );
                    return Err(Refusal::new(ResponseError::InvalidConfig, text));
                }
            };
            wanted.changes.push((change.name.to_owned(), value));
        }
        self.check_dead_letters(&wanted)?;
        let texts = wanted.changes.iter().map(|(name, value)| {
            let value = value.as_deref().unwrap_or("default");
            format!("{}={}", short(name), short(value))
        });
        let change = audit::Change::new(
            "alter_group",
            "group",
            name,
            texts.collect::<Vec<_>>().join(" "),
        );
        let attempt = (!self.validate_only).then(|| self.ctx.attempt(change));
        let set = match shares::settings(&self.ctx.shared, wanted).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(text)) => Err(Refusal::new(ResponseError::InvalidConfig, text)),
            Err(error) => Err(Refusal::from(error)),
        };
        if let Some(attempt) = attempt {
            match &set {
                Ok(()) => attempt.made(),
                Err(refusal) => refusal.end(attempt),
            }
        }
        set
    }

    /// Brokers write there for the group, whoever its members are: who has them do so may write there too.
    fn check_dead_letters(&self, wanted: &GroupSettings) -> Result<(), Refusal> {
        let topics = wanted.changes.iter();
        let mut topics = topics.filter_map(|(name, value)| match name.as_str() {
            DEAD_LETTER_TOPIC => value.as_deref().filter(|topic| !topic.is_empty()),
            _ => None,
        });
        match topics.all(|topic| self.ctx.may_also(Operation::Write, (Kind::Stream, topic))) {
            true => Ok(()),
            false => Err(access::no_topic()),
        }
    }

    async fn alter_topic(&self, name: &str, changes: &[Change<'_>]) -> Result<(), Refusal> {
        let stream = topic::named(&self.ctx.shared, name);
        let stream = stream.ok_or_else(|| Refusal::no_topic(name))?;
        let present = stream.record.load().config.clone();
        let mut wanted = Wanted::default();
        if self.whole {
            let named = |config: &TopicConfig| changes.iter().any(|c| c.name == config.name);
            for config in TOPIC_CONFIGS.iter().filter(|config| !named(config)) {
                wanted.reset(config);
            }
        }
        let mut seen = HashSet::new();
        for change in changes {
            if !seen.insert(change.name) {
                let text = format!("\"{}\" is changed twice", short(change.name));
                return Err(Refusal::new(ResponseError::InvalidRequest, text));
            }
            self.take(&mut wanted, &present, change)?;
        }
        let invalid = |text| Refusal::new(ResponseError::InvalidConfig, text);
        let wire = wanted.for_change(&present).map_err(invalid)?;
        let config = admin::altered_config(&self.ctx.shared, &stream, &wire)
            .map_err(Refusal::of_settings)?;
        if self.validate_only || config == present {
            return Ok(());
        }
        let change = audit::Change::new("alter_stream", "stream", name, settings_text(&wire));
        let attempt = self.ctx.attempt(change);
        let altered = admin::alter_stream(&self.ctx.shared, &stream, &wire).await;
        attempt.end(altered.as_ref());
        altered.map(drop).map_err(Refusal::of_settings)
    }

    fn take(
        &self,
        wanted: &mut Wanted,
        present: &StreamConfig,
        change: &Change<'_>,
    ) -> Result<(), Refusal> {
        let invalid = |text: String| Refusal::new(ResponseError::InvalidConfig, text);
        let config = known(change.name).map_err(invalid)?;
        let every = flush_interval(self.ctx);
        if change.operation == DELETE {
            wanted.reset(config);
            return Ok(());
        }
        let Some(value) = change.value else {
            let text = format!("{} has no value", config.name);
            return Err(Refusal::new(ResponseError::InvalidRequest, text));
        };
        match change.operation {
            SET => wanted.set(config, value, every).map_err(invalid),
            APPEND | SUBTRACT if config.kind != ConfigKind::List => Err(invalid(format!(
                "{} is no list: it can be set or deleted",
                config.name
            ))),
            APPEND | SUBTRACT => {
                let present = value_of(config, present, every);
                let mut words: Vec<&str> = list(&present).collect();
                for word in list(value) {
                    if change.operation == SUBTRACT {
                        words.retain(|w| *w != word);
                    } else if !words.contains(&word) {
                        words.push(word);
                    }
                }
                let words = words.join(",");
                if same(config.kind, &words, &present) {
                    return Ok(());
                }
                wanted.set(config, &words, every).map_err(invalid)
            }
            other => {
                let text = format!("there is no change of kind {other}");
                Err(Refusal::new(ResponseError::InvalidRequest, text))
            }
        }
    }
}
