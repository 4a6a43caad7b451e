//! Finding coordinators; describing, listing and deleting groups.

use std::collections::HashSet;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::{
    DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest, DescribeGroupsResponse,
    FindCoordinatorRequest, FindCoordinatorResponse, GroupId, ListGroupsRequest,
    ListGroupsResponse,
};
use kafka_protocol::protocol::StrBytes;
use kera_broker::audit::Change;
use kera_broker::coordination::CoordinatorKind;
use kera_coordinator::classic::shares::SHARE;
use kera_coordinator::classic::{Listing, Reply, Request};

use super::{coordinator_code, mismatch, text, try_ask};
use crate::access;
use crate::brokers::{self, Endpoint, NOBODY};
use crate::context::Ctx;
use crate::errors::NONE;
use crate::refusal::Refusal;

/// The kind of key that names a group.
const KEY_GROUP: i8 = 0;
/// The kind of key that names a transactional producer.
const KEY_TRANSACTION: i8 = 1;
/// The types that Kafka gives groups.
const CLASSIC: &str = "classic";
const CONSUMER: &str = "consumer";

/// FindCoordinator: the broker that coordinates a group, or a transactional id.
pub(crate) async fn find_coordinator(
    ctx: &Ctx,
    version: i16,
    request: FindCoordinatorRequest,
) -> FindCoordinatorResponse {
    let refused = match request.key_type {
        KEY_GROUP | KEY_TRANSACTION => None,
        _ => Some("there are coordinators of groups and of transactions only"),
    };
    let kind = match request.key_type {
        KEY_TRANSACTION => CoordinatorKind::Transactions,
        _ => CoordinatorKind::Groups,
    };
    let response = FindCoordinatorResponse::default();
    if version >= 4 {
        let mut coordinators = Vec::with_capacity(request.coordinator_keys.len());
        for key in request.coordinator_keys {
            let found = match refused {
                // As for a kind that a broker does not know: clients give up instead of trying for ever.
                Some(reason) => Err((ResponseError::InvalidRequest.code(), reason.to_owned())),
                None => coordinator_of(ctx, kind, &key).await,
            };
            let coordinator = Coordinator::default().with_key(key);
            let coordinator = match found {
                Ok(broker) => coordinator
                    .with_node_id(broker.id)
                    .with_host(broker.host)
                    .with_port(broker.port),
                Err((code, reason)) => coordinator
                    .with_node_id(NOBODY)
                    .with_port(-1)
                    .with_error_code(code)
                    .with_error_message(Some(text(reason))),
            };
            coordinators.push(if ctx.has_room_for_item(&coordinator, version).await {
                coordinator
            } else {
                Coordinator::default()
                    .with_key(coordinator.key)
                    .with_node_id(NOBODY)
                    .with_port(-1)
                    .with_error_code(ResponseError::PolicyViolation.code())
            });
        }
        return response.with_coordinators(coordinators);
    }
    let found = match refused {
        None => coordinator_of(ctx, kind, &request.key).await,
        Some(reason) => Err((ResponseError::InvalidRequest.code(), reason.to_owned())),
    };
    match found {
        Ok(broker) => response
            .with_node_id(broker.id)
            .with_host(broker.host)
            .with_port(broker.port),
        Err((code, reason)) => {
            let response = response
                .with_node_id(NOBODY)
                .with_port(-1)
                .with_error_code(code);
            if version >= 1 {
                response.with_error_message(Some(text(reason)))
            } else {
                response
            }
        }
    }
}

/// Where the coordinator of a group, or of a transactional id, is reached; otherwise Kafka's number and why not.
async fn coordinator_of(
    ctx: &Ctx,
    kind: CoordinatorKind,
    name: &str,
) -> Result<Endpoint, (i16, String)> {
    let (may_see, denied) = match kind {
        CoordinatorKind::Groups => (ctx.may_group(name), access::group_code()),
        CoordinatorKind::Transactions => (
            ctx.may_transactional_id(name),
            ResponseError::TransactionalIdAuthorizationFailed.code(),
        ),
    };
    if !may_see {
        let reason = "the rules of access do not let you see it";
        return Err((denied, reason.to_owned()));
    }
    let place = ctx.shared.coordination.place(&ctx.shared, kind, name).await;
    let broker = place
        .map_err(|error| (coordinator_code(&error), error.message))?
        .broker;
    let me = ctx.shared.data.directory.me();
    let named = broker != me || ctx.shared.data.directory.is_current();
    let found = brokers::endpoint(ctx, broker).filter(|_| named);
    found.ok_or_else(|| {
        let reason = format!("broker {broker}, which coordinates it, is not reached");
        (ResponseError::CoordinatorNotAvailable.code(), reason)
    })
}

/// DescribeGroups.
pub(crate) async fn describe_groups(
    ctx: &Ctx,
    version: i16,
    request: DescribeGroupsRequest,
) -> DescribeGroupsResponse {
    let mut groups = Vec::with_capacity(request.groups.len());
    // Asked for twice it is answered once: an answer grows with groups, not with requests.
    let mut seen = HashSet::new();
    for group in request.groups {
        if !seen.insert(group.clone()) {
            continue;
        }
        let mut described = describe(ctx, version, &group).await;
        if !ctx.has_room_for_item(&described, version).await {
            let refusal = Refusal::too_long();
            described = DescribedGroup::default().with_error_code(refusal.code);
            if version >= 6 {
                described.error_message = Some(refusal.text());
            }
        }
        if request.include_authorized_operations && described.error_code == NONE {
            let rights = ctx.rights_to_group(&group);
            described = described.with_authorized_operations(rights);
        }
        groups.push(described.with_group_id(group));
    }
    DescribeGroupsResponse::default().with_groups(groups)
}

async fn describe(ctx: &Ctx, version: i16, group: &GroupId) -> DescribedGroup {
    let described = DescribedGroup::default();
    if !ctx.may_group(group) {
        return described.with_error_code(access::group_code());
    }
    let found = match try_ask(ctx, Request::Describe(group.to_string())).await {
        Ok(Reply::Described(found)) => found,
        Ok(other) => return described.with_error_code(mismatch(&other)),
        // Old clients take a group that does not exist, or that is of the consumer protocol, for one that is dead.
        Err(refusal) if refusal.code == ResponseError::GroupIdNotFound.code() => {
            let dead = described.with_group_state(StrBytes::from_static_str("Dead"));
            return if version >= 6 {
                let reason = format!("group {}: {}", group.as_str(), refusal.message);
                dead.with_error_code(refusal.code)
                    .with_error_message(Some(text(reason)))
            } else {
                dead
            };
        }
        Err(refusal) => return described.with_error_code(refusal.code),
    };
    let members = found.members.into_iter().map(|member| {
        DescribedGroupMember::default()
            .with_member_id(text(member.member))
            .with_group_instance_id(member.instance.filter(|_| version >= 4).map(text))
            .with_client_id(text(member.client_id))
            .with_client_host(text(member.client_host))
            .with_member_metadata(member.metadata)
            .with_member_assignment(member.assignment)
    });
    described
        .with_group_state(StrBytes::from_static_str(found.state.name()))
        .with_protocol_type(text(found.protocol_type))
        .with_protocol_data(text(found.protocol))
        .with_members(members.collect())
}

fn type_of(group: &Listing) -> &'static str {
    match (group.is_consumer, group.is_share) {
        (_, true) => SHARE,
        (true, _) => CONSUMER,
        (false, _) => CLASSIC,
    }
}

/// ListGroups: those of Kafka's clients that this broker coordinates; clients ask every broker.
pub(crate) async fn list_groups(
    ctx: &Ctx,
    version: i16,
    request: ListGroupsRequest,
) -> ListGroupsResponse {
    let listed = tokio::task::block_in_place(|| {
        let shared = &ctx.shared;
        shared.coordination.classic_groups(shared)
    });
    let Some(groups) = listed else {
        let loading = ResponseError::CoordinatorLoadInProgress.code();
        return ListGroupsResponse::default().with_error_code(loading);
    };
    let names = |filter: &[StrBytes], name: &str| {
        filter.is_empty() || filter.iter().any(|f| f.eq_ignore_ascii_case(name))
    };
    let groups = groups
        .into_iter()
        .filter(|group| names(&request.states_filter, group.state.name()))
        .filter(|group| names(&request.types_filter, type_of(group)))
        .filter(|group| ctx.sees_group(&group.group))
        .map(|group| {
            let group_type = type_of(&group);
            let mut listed = ListedGroup::default()
                .with_group_id(GroupId(text(group.group)))
                .with_protocol_type(text(group.protocol_type));
            if version >= 4 {
                listed = listed.with_group_state(StrBytes::from_static_str(group.state.name()));
            }
            if version >= 5 {
                listed = listed.with_group_type(StrBytes::from_static_str(group_type));
            }
            listed
        });
    let mut listed = Vec::new();
    for group in groups {
        if !ctx.has_room_for_item(&group, version).await {
            let code = ResponseError::PolicyViolation.code();
            return ListGroupsResponse::default().with_error_code(code);
        }
        listed.push(group);
    }
    ListGroupsResponse::default().with_groups(listed)
}

/// DeleteGroups.
pub(crate) async fn delete_groups(
    ctx: &Ctx,
    _version: i16,
    request: DeleteGroupsRequest,
) -> DeleteGroupsResponse {
    let mut results = Vec::with_capacity(request.groups_names.len());
    for group in request.groups_names {
        let code = match ctx.may_group(&group) {
            false => access::group_code(),
            true => delete_group(ctx, &group).await,
        };
        results.push(
            DeletableGroupResult::default()
                .with_group_id(group)
                .with_error_code(code),
        );
    }
    DeleteGroupsResponse::default().with_results(results)
}

async fn delete_group(ctx: &Ctx, group: &str) -> i16 {
    let attempt = ctx.attempt(Change::new("delete_group", "group", group, ""));
    match try_ask(ctx, Request::Delete(group.to_owned())).await {
        Ok(Reply::Deleted) => {
            attempt.made();
            NONE
        }
        // Its end is not known: dropped, the attempt says so.
        Ok(other) => mismatch(&other),
        Err(refusal) => {
            refusal.end(attempt);
            refusal.code
        }
    }
}
