//! Levels of a broker's loggers, which change until it stops.

use std::collections::HashSet;

use kafka_protocol::error::ResponseError;
use kera_broker::audit;
use kera_broker::log_levels::{LevelError, Logger, ROOT};

use super::{Change, DELETE, SET, broker_named};
use crate::context::Ctx;
use crate::refusal::{Refusal, short};

/// What answers say of each.
pub(super) const ABOUT: &str = "What is logged, until the broker stops. OFF, ERROR, WARN, INFO, DEBUG or TRACE; deleted, it is as log.level says.";

/// The loggers of this broker, and modules of theirs that have a level of their own.
///
/// # Errors
/// A broker that is not this one.
pub(super) fn described(ctx: &Ctx, broker: &str) -> Result<Vec<Logger>, Refusal> {
    broker_named(ctx, broker)?;
    Ok(ctx.shared.log_levels.all())
}

/// AlterConfigs would reset all levels that it does not name: Kafka refuses it as well.
pub(super) fn one_by_one() -> Refusal {
    let text = "log levels are changed one by one: use IncrementalAlterConfigs";
    Refusal::new(ResponseError::InvalidRequest, text)
}

/// Changes levels of this broker, all or none.
///
/// # Errors
/// A broker that is not this one, a logger that there is not, or a level that is none.
pub(super) fn alter(
    ctx: &Ctx,
    broker: &str,
    changes: &[Change<'_>],
    only_check: bool,
) -> Result<(), Refusal> {
    broker_named(ctx, broker)?;
    let invalid = |text: String| Refusal::new(ResponseError::InvalidRequest, text);
    let mut seen = HashSet::new();
    let mut wanted = Vec::with_capacity(changes.len());
    for change in changes {
        let name = change.name;
        if !seen.insert(name) {
            return Err(invalid(format!("\"{}\" is changed twice", short(name))));
        }
        match (change.operation, change.value) {
            (DELETE, _) if name == ROOT => {
                let text = "what all loggers have by default cannot be deleted: set it";
                return Err(invalid(text.to_owned()));
            }
            (DELETE, _) => wanted.push((name, None)),
            (SET, Some(level)) => wanted.push((name, Some(level))),
            (SET, None) => return Err(invalid(format!("{} has no level", short(name)))),
            _ => {
                let text = "a level can be set or deleted";
                return Err(invalid(text.to_owned()));
            }
        }
    }
    let attempt = (!only_check && !wanted.is_empty()).then(|| {
        let levels = wanted.iter().map(|(name, level)| match level {
            Some(level) => format!("{}={}", short(name), short(level)),
            None => format!("{} as configured", short(name)),
        });
        let detail: Vec<_> = levels.collect();
        let change = audit::Change::new("alter_log_levels", "broker", broker, detail.join(" "));
        ctx.attempt(change)
    });
    let changed = ctx.shared.log_levels.change(&wanted, only_check);
    if let Some(attempt) = attempt {
        match &changed {
            Ok(()) => attempt.made(),
            Err(error) => attempt.failed(&error.to_string()),
        }
    }
    changed.map_err(|error| match error {
        LevelError::NotApplied(_) => {
            Refusal::new(ResponseError::UnknownServerError, error.to_string())
        }
        wrong => Refusal::new(ResponseError::InvalidConfig, wrong.to_string()),
    })
}
