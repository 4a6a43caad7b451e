//! Metrics of turns and latency objectives.

use std::sync::atomic::Ordering;

use prometheus_client::registry::Registry;

use super::Turns;
use crate::metrics::gauge;

/// Tells of them, while there are objectives or have been.
pub(crate) fn register(turns: &Turns, registry: &mut Registry) {
    registry.register(
        "objective_answers",
        "Answers to users with a latency objective, by user and by whether they came in time",
        turns.answers.clone(),
    );
    registry.register(
        "scheduled_tokens",
        "Millionths of a second of the broker that requests took while some user had an objective, by class",
        turns.tokens.clone(),
    );
    registry.register(
        "turn_waits",
        "Requests that waited for their turn beside users with a latency objective",
        turns.waits.clone(),
    );
    registry.register(
        "turn_wait_microseconds",
        "How long they waited",
        turns.waited_us.clone(),
    );
    gauge(
        registry,
        "turns_waiting",
        "Requests that wait for their turn",
        turns.waiting(),
    );
    gauge(
        registry,
        "objectives_guaranteed_percent",
        "What objectives guarantee, in percent of what clients may use while there are any",
        turns.guaranteed_percent.load(Ordering::Relaxed),
    );
}
