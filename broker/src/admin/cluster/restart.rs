//! The order of a rolling restart.

use std::sync::Arc;

use kera_controller::{Members, Picture, restart_plan};
use kera_metadata::Living;
use kera_protocol::error::WireError;
use kera_protocol::v1;

use super::describe::{address_of, describe};
use super::with_picture;
use crate::cluster::ownership::live_state::clustered;
use crate::shared::Shared;

/// An order in which brokers can be restarted, for a client that came in by the native address of this name.
///
/// # Errors
/// As of [`super::describe_cluster`].
pub async fn plan_restart(
    shared: &Arc<Shared>,
    listener: Option<&str>,
) -> Result<v1::PlanRestartResponse, WireError> {
    let listener = listener.map(str::to_owned);
    let clustered = clustered(shared)?;
    let controller = *clustered.store.controller().borrow();
    with_picture(shared, move |picture, members, living| {
        let steps = restart_plan(picture, members, controller).into_iter();
        let steps = steps.map(|step| {
            let live = living.get(&step.broker);
            v1::RestartStep {
                broker: step.broker,
                address: live
                    .map(|live| address_of(live, listener.as_deref()))
                    .unwrap_or_default(),
                host: live.map(|live| live.host.clone()).unwrap_or_default(),
                handed_over: step.handed_over as u64,
                offline: step.offline.into_iter().collect(),
                waiting: step.waiting.into_iter().collect(),
                unreadable: step.unreadable.into_iter().collect(),
                open_copies: step.open_copies as u64,
                controller: controller == Some(step.broker),
            }
        });
        v1::PlanRestartResponse {
            steps: steps.collect(),
            wait_for: wait_for(picture, members, living),
        }
    })
    .await
}

/// What is amiss before a rolling restart begins.
fn wait_for(picture: &Picture, members: &Members, living: &Living) -> Vec<String> {
    let now = describe(picture, members, living);
    let mut reasons = Vec::new();
    let away = |one: &&v1::ClusterBroker| one.state() == v1::BrokerState::Gone;
    for broker in now.brokers.iter().filter(away) {
        reasons.push(format!("broker {} is not alive", broker.id));
    }
    let partial = |one: &&v1::ClusterBroker| {
        matches!(
            one.state(),
            v1::BrokerState::Joining | v1::BrokerState::Partial
        )
    };
    for broker in now.brokers.iter().filter(partial) {
        reasons.push(format!(
            "broker {} has not got its share of the streamlets yet, {} of {}",
            broker.id, broker.streamlets, broker.share
        ));
    }
    if now.under_replicated_groups > 0 {
        reasons.push(format!(
            "{} closed groups have too few live replicas",
            now.under_replicated_groups
        ));
    }
    reasons
}
