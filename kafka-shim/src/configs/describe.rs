//! DescribeConfigs: every setting with its value, where that comes from and what it means.

use std::collections::HashSet;

use kafka_protocol::messages::create_topics_response::CreatableTopicConfigs;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use kafka_protocol::messages::{DescribeConfigsRequest, DescribeConfigsResponse};
use kafka_protocol::protocol::StrBytes;
use kera_broker::log_levels::Logger;
use kera_broker::shares::{self, GroupSettings};
use kera_coordinator::classic::shares::CONFIGS;
use kera_metadata::StreamConfig;

use super::broker::{self, BrokerValue};
use super::{BROKER, GROUP, LOGGERS, TOPIC, flush_interval, loggers, no_resource};
use crate::access;
use crate::config_table::{ConfigKind, Effect, Setting, TOPIC_CONFIGS, TopicConfig};
use crate::context::Ctx;
use crate::refusal::{Refusal, text};
use crate::topic;
use crate::topic_config::value_of;

/// Where a value comes from, as answers number it.
const FROM_TOPIC: i8 = 1;
const FROM_DEFAULT: i8 = 5;
const FROM_GROUP: i8 = 8;
const FROM_LOGGERS: i8 = 6;
/// First version that tells kinds and documentation.
const KINDS_FROM: i16 = 3;

/// A value of a topic's setting, and whether it is the topic's own: another than that of a topic for
/// which nothing was set, and no mere consequence of its number of partitions.
fn topic_value(ctx: &Ctx, config: &TopicConfig, stream: &StreamConfig) -> (String, bool) {
    let every = flush_interval(ctx);
    let value = value_of(config, stream, every);
    let ordinary = StreamConfig {
        max_batch_bytes: StreamConfig::default_max_batch_bytes(stream.segment_size),
        ..StreamConfig::default()
    };
    let follows = matches!(
        config.effect,
        Effect::Shown(_) | Effect::AtCreation(Setting::Lanes)
    );
    let own = !follows && value != value_of(config, &ordinary, every);
    (value, own)
}

fn read_only(config: &TopicConfig) -> bool {
    !matches!(config.effect, Effect::Works(_))
}

/// The settings of a topic that was just created, for the answer.
pub(crate) fn of_created(ctx: &Ctx, stream: &StreamConfig) -> Vec<CreatableTopicConfigs> {
    let configs = TOPIC_CONFIGS.iter().map(|config| {
        let (value, own) = topic_value(ctx, config, stream);
        CreatableTopicConfigs::default()
            .with_name(StrBytes::from_static_str(config.name))
            .with_value(Some(text(value)))
            .with_read_only(read_only(config))
            .with_config_source(if own { FROM_TOPIC } else { FROM_DEFAULT })
    });
    configs.collect()
}

/// Settings of topics and of the broker.
pub(crate) async fn describe_configs(
    ctx: &Ctx,
    version: i16,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResponse {
    let show = Show {
        ctx,
        synonyms: request.include_synonyms,
        kinds: version >= KINDS_FROM,
        documentation: version >= KINDS_FROM && request.include_documentation,
    };
    let mut seen = HashSet::new();
    let mut results = Vec::new();
    for asked in request.resources {
        // Asked for twice it is answered once: an answer grows with topics, not with requests.
        if !seen.insert((asked.resource_type, asked.resource_name.clone())) {
            continue;
        }
        let mut result = DescribeConfigsResult::default()
            .with_error_message(None)
            .with_resource_type(asked.resource_type)
            .with_resource_name(asked.resource_name.clone());
        match show.resource(&asked).await {
            Ok(configs) => result.configs = configs,
            Err(refusal) => {
                result.error_code = refusal.code;
                result.error_message = Some(refusal.text());
            }
        }
        if !ctx.has_room_for_item(&result, version).await {
            let refusal = Refusal::too_long();
            result.configs = Vec::new();
            result.error_code = refusal.code;
            result.error_message = Some(refusal.text());
        }
        results.push(result);
    }
    DescribeConfigsResponse::default().with_results(results)
}

/// What counts for every group. Members of classic groups bring their own times.
fn group_values(ctx: &Ctx) -> [(&'static str, u128); 2] {
    let kafka = &ctx.shared.live().kafka;
    [
        (
            "consumer.heartbeat.interval.ms",
            kafka.consumer_heartbeat.as_millis(),
        ),
        (
            "consumer.session.timeout.ms",
            kafka.consumer_session.as_millis(),
        ),
    ]
}

struct Show<'a> {
    ctx: &'a Ctx,
    synonyms: bool,
    kinds: bool,
    documentation: bool,
}

impl Show<'_> {
    async fn resource(
        &self,
        asked: &DescribeConfigsResource,
    ) -> Result<Vec<DescribeConfigsResourceResult>, Refusal> {
        let keys: Option<HashSet<&str>> = asked
            .configuration_keys
            .as_ref()
            .map(|keys| keys.iter().map(|key| key.as_str()).collect());
        let wanted = |name: &str| keys.as_ref().is_none_or(|keys| keys.contains(name));
        let name = asked.resource_name.as_str();
        match asked.resource_type {
            TOPIC => {
                self.ctx.check_topic(name)?;
                let stream = topic::shown(&self.ctx.shared, name);
                let stream = stream.ok_or_else(|| Refusal::no_topic(name))?;
                let config = &stream.record.load().config;
                let shown = TOPIC_CONFIGS.iter().filter(|c| wanted(c.name));
                Ok(shown.map(|c| self.topic(c, config)).collect())
            }
            BROKER => {
                self.ctx.check_cluster()?;
                let values = broker::described(self.ctx, name)?.into_iter();
                let shown = values.filter(|value| wanted(&value.name));
                Ok(shown.filter_map(|value| self.broker(value)).collect())
            }
            LOGGERS => {
                self.ctx.check_cluster()?;
                let loggers = loggers::described(self.ctx, name)?.into_iter();
                let shown = loggers.filter(|logger| wanted(&logger.name));
                Ok(shown.map(|logger| self.logger(logger)).collect())
            }
            GROUP if self.ctx.may_group(name) => {
                let asked = GroupSettings {
                    group: name.to_owned(),
                    ..GroupSettings::default()
                };
                let set = shares::settings(&self.ctx.shared, asked).await;
                let set = set.map_err(Refusal::from)?.unwrap_or_default();
                let values = group_values(self.ctx).into_iter();
                let values = values.map(|(name, ms)| (name, ms.to_string(), true));
                let set = CONFIGS
                    .iter()
                    .map(|(name, _)| (*name, set.value(name).to_owned(), false));
                let shown = values.chain(set).filter(|(name, _, _)| wanted(name));
                Ok(shown.map(|value| self.group(value)).collect())
            }
            GROUP => Err(access::no_group()),
            other => Err(no_resource(other)),
        }
    }

    fn topic(&self, config: &TopicConfig, stream: &StreamConfig) -> DescribeConfigsResourceResult {
        let (value, own) = topic_value(self.ctx, config, stream);
        let mut shown = DescribeConfigsResourceResult::default()
            .with_name(StrBytes::from_static_str(config.name))
            .with_value(Some(text(value.clone())))
            .with_read_only(read_only(config))
            .with_config_source(if own { FROM_TOPIC } else { FROM_DEFAULT })
            .with_documentation(None);
        if self.synonyms {
            let synonym = |name: &'static str, value: String, source| {
                DescribeConfigsSynonym::default()
                    .with_name(StrBytes::from_static_str(name))
                    .with_value(Some(text(value)))
                    .with_source(source)
            };
            if own {
                shown.synonyms.push(synonym(config.name, value, FROM_TOPIC));
            }
            if !config.broker_name.is_empty() {
                let default = config.default.to_owned();
                shown
                    .synonyms
                    .push(synonym(config.broker_name, default, FROM_DEFAULT));
            }
        }
        if self.kinds {
            shown.config_type = config.kind as i8;
        }
        if self.documentation {
            shown.documentation = Some(text(config.documentation()));
        }
        shown
    }

    /// A setting of a group: its name, its value, and whether it is the broker's.
    fn group(
        &self,
        (name, value, of_broker): (&'static str, String, bool),
    ) -> DescribeConfigsResourceResult {
        let is_number = value.parse::<u64>().is_ok();
        let by_default = CONFIGS.contains(&(name, value.as_str()));
        let mut shown = DescribeConfigsResourceResult::default()
            .with_name(StrBytes::from_static_str(name))
            .with_value(Some(text(value)))
            .with_read_only(of_broker)
            .with_config_source(if of_broker || by_default {
                FROM_DEFAULT
            } else {
                FROM_GROUP
            })
            .with_documentation(None);
        if self.kinds {
            shown.config_type = match is_number {
                true => ConfigKind::Int as i8,
                false => ConfigKind::Text as i8,
            };
        }
        if self.documentation {
            let about = match of_broker {
                true => {
                    "of members of the consumer protocol; the same for all groups, a setting of the broker"
                }
                false => "of share groups; a partition takes it up when its readers begin anew",
            };
            shown.documentation = Some(text(about));
        }
        shown
    }

    fn logger(&self, logger: Logger) -> DescribeConfigsResourceResult {
        let source = match logger.is_changed {
            true => FROM_LOGGERS,
            false => FROM_DEFAULT,
        };
        let mut shown = DescribeConfigsResourceResult::default()
            .with_name(text(logger.name))
            .with_value(Some(text(logger.level.to_uppercase())))
            .with_config_source(source)
            .with_documentation(None);
        if self.kinds {
            shown.config_type = ConfigKind::Text as i8;
        }
        if self.documentation {
            shown.documentation = Some(text(loggers::ABOUT));
        }
        shown
    }

    fn broker(&self, value: BrokerValue) -> Option<DescribeConfigsResourceResult> {
        let first = value.layers.first()?;
        let mut shown = DescribeConfigsResourceResult::default()
            .with_name(text(value.name))
            .with_value(Some(text(first.value.clone())))
            .with_read_only(!value.alterable)
            .with_config_source(first.source)
            .with_documentation(None);
        if self.synonyms {
            let synonyms = value.layers.into_iter().map(|layer| {
                DescribeConfigsSynonym::default()
                    .with_name(text(layer.name))
                    .with_value(Some(text(layer.value)))
                    .with_source(layer.source)
            });
            shown.synonyms = synonyms.collect();
        }
        if self.kinds {
            shown.config_type = value.kind as i8;
        }
        if self.documentation {
            shown.documentation = Some(text(value.about));
        }
        Some(shown)
    }
}
