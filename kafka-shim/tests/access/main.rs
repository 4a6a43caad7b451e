//! Rules of access: what each API needs, who may do what, and rules by Kafka's own requests.

mod acls;
#[path = "../common/mod.rs"]
mod common;
mod data;
mod each_api;
mod requests;
#[path = "../support/responses.rs"]
mod responses;
mod two_phase;

use kafka_protocol::protocol::StrBytes;
use kera_broker::access;
use kera_broker::config::BrokerConfig;
use kera_metadata::access::{ANY, CLUSTER_NAME, Kind, Operation, Pattern, Permission};
use kera_metadata::{Rule, StreamConfig};

use common::World;

/// What clients of these tests are: they prove nothing.
const EVERYBODY: &str = "User:ANONYMOUS";
/// The one topic and the one group that requests are about.
const TOPIC: &str = "secret";
const GROUP: &str = "secret-group";

/// A broker that enforces rules, of which there are none.
async fn world() -> World {
    World::with(enforce).await
}

fn enforce(config: &mut BrokerConfig) {
    config.acl.enabled = true;
    config.acl.super_users = vec!["User:admin".to_owned()];
}

fn one_partition() -> StreamConfig {
    StreamConfig {
        streamlets: 1,
        lanes: 1,
        ..StreamConfig::default()
    }
}

/// The name of the thing of a kind that requests are about.
fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Stream => TOPIC,
        Kind::Group => GROUP,
        Kind::TransactionalId => "t",
        _ => CLUSTER_NAME,
    }
}

fn rule(permission: Permission, kind: Kind, operation: Operation) -> Rule {
    Rule {
        kind,
        name: name_of(kind).to_owned(),
        // Of share groups there is another one: a group does not change its kind to theirs.
        pattern: match kind {
            Kind::Group => Pattern::Prefixed,
            _ => Pattern::Literal,
        },
        principal: EVERYBODY.to_owned(),
        host: ANY.to_owned(),
        operation,
        permission,
    }
}

async fn allow(world: &World, kind: Kind, operation: Operation) {
    let rule = rule(Permission::Allow, kind, operation);
    let added = access::add(world.broker.shared(), &[rule]).await;
    added.expect("the rule is added");
}

async fn deny(world: &World, kind: Kind, operation: Operation) {
    let rule = rule(Permission::Deny, kind, operation);
    let added = access::add(world.broker.shared(), &[rule]).await;
    added.expect("the rule is added");
}

async fn forget_rules(world: &World) {
    let all = [access::Filter::default()];
    let removed = access::remove(world.broker.shared(), &all).await;
    removed.expect("rules are removed");
}

fn words(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}
