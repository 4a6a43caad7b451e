//! DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: settings of topics under Kafka's names, and
//! the broker's own, some of which may change while it runs, as do the levels of its loggers.

mod alter;
mod broker;
mod describe;
mod loggers;

pub(crate) use alter::{alter_configs, incremental_alter_configs};
pub(crate) use describe::{describe_configs, of_created};

use std::time::Duration;

use kafka_protocol::error::ResponseError;

use crate::brokers;
use crate::context::Ctx;
use crate::refusal::{Refusal, short};

/// Kinds of resources, as requests number them.
pub(crate) const TOPIC: i8 = 2;
pub(crate) const BROKER: i8 = 4;
/// What logs lines at a broker.
const LOGGERS: i8 = 8;
const GROUP: i8 = 32;

/// Changes of a value, as requests number them.
const SET: i8 = 0;
const DELETE: i8 = 1;

/// One change of a value.
struct Change<'a> {
    name: &'a str,
    operation: i8,
    value: Option<&'a str>,
}

/// How often the broker flushes what is only written.
pub(crate) fn flush_interval(ctx: &Ctx) -> Duration {
    ctx.shared.live().storage.flush_interval
}

fn broker_named(ctx: &Ctx, name: &str) -> Result<(), Refusal> {
    let me = brokers::me(ctx).0;
    if name == me.to_string() {
        return Ok(());
    }
    let message = format!(
        "broker \"{}\" is not this one, which is {me}; ask it itself",
        short(name)
    );
    Err(Refusal::new(ResponseError::InvalidRequest, message))
}

fn no_resource(kind: i8) -> Refusal {
    let message = format!(
        "resources of kind {kind} have no configs; topics, brokers, their loggers and groups do"
    );
    Refusal::new(ResponseError::InvalidRequest, message)
}
