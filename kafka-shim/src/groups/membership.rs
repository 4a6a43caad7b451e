//! Joining, syncing, heartbeats and leaving.

use std::collections::BTreeMap;

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::{
    HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest,
    LeaveGroupResponse, SyncGroupRequest, SyncGroupResponse,
};
use kera_coordinator::classic::{
    Fault, Heartbeat, JoinGroup, LeaveGroup, Reply, Request, SyncGroup,
};
use kera_coordinator::{Reply as AnyReply, Request as AnyRequest};
use uuid::Uuid;

use super::{ask, coordinator_code, fault_code, mismatch, owned, result_code, text};
use crate::access;
use crate::context::Ctx;
use crate::errors::NONE;

/// Bytes of a client's or an instance's name that its member id begins with.
const ID_PREFIX_BYTES: usize = 255;

/// JoinGroup: waits until the next generation begins.
pub(crate) async fn join_group(
    ctx: &Ctx,
    version: i16,
    request: JoinGroupRequest,
) -> JoinGroupResponse {
    let response = JoinGroupResponse::default().with_member_id(request.member_id.clone());
    if !ctx.may_group(&request.group_id) {
        return response.with_error_code(access::group_code());
    }
    let client_id = ctx.client_id.as_ref().map_or("", |id| id.as_str());
    let instance = owned(&request.group_instance_id);
    let join = JoinGroup {
        group: request.group_id.to_string(),
        member: request.member_id.to_string(),
        fresh_member: fresh_id(instance.as_deref().unwrap_or(client_id)),
        client_id: client_id.to_owned(),
        client_host: super::host(ctx),
        session_ms: request.session_timeout_ms,
        rebalance_ms: if version >= 1 {
            request.rebalance_timeout_ms
        } else {
            request.session_timeout_ms
        },
        protocol_type: request.protocol_type.to_string(),
        // Copied: a slice would keep the whole request in memory.
        protocols: request
            .protocols
            .iter()
            .map(|p| (p.name.to_string(), Bytes::copy_from_slice(&p.metadata)))
            .collect(),
        require_known_member: version >= 4 && instance.is_none(),
        can_skip_assignment: version >= 9,
        instance,
    };
    // It may wait for minutes; what the coordinator does not keep is not kept here.
    drop(request);
    let group = join.group.clone();
    let asked = AnyRequest::Classic(Request::Join(join));
    let coordination = &ctx.shared.coordination;
    let joined = match coordination.call(&ctx.shared, &group, asked).await {
        Ok(AnyReply::Classic(Reply::Joined(joined))) => joined,
        Ok(AnyReply::Classic(Reply::Refused(fault))) => {
            let response = response.with_error_code(fault_code(&fault));
            return match fault {
                Fault::MemberIdRequired(id) => response.with_member_id(text(id)),
                _ => response,
            };
        }
        Ok(AnyReply::Classic(other)) => return response.with_error_code(mismatch(&other)),
        Ok(_) => return response.with_error_code(ResponseError::UnknownServerError.code()),
        Err(error) => return response.with_error_code(coordinator_code(&error)),
    };
    let members = joined.members.into_iter().map(|member| {
        JoinGroupResponseMember::default()
            .with_member_id(text(member.member))
            .with_group_instance_id(member.instance.filter(|_| version >= 5).map(text))
            .with_metadata(member.metadata)
    });
    let response = response
        .with_error_code(NONE)
        .with_generation_id(joined.generation)
        .with_protocol_name(Some(text(joined.protocol)))
        .with_leader(text(joined.leader))
        .with_member_id(text(joined.member))
        .with_members(members.collect())
        .with_skip_assignment(joined.skip_assignment && version >= 9);
    if version >= 7 {
        response.with_protocol_type(Some(text(joined.protocol_type)))
    } else {
        response
    }
}

/// An id that no other member ever has.
pub(super) fn fresh_id(prefix: &str) -> String {
    let mut end = prefix.len().min(ID_PREFIX_BYTES);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}-{}", &prefix[..end], Uuid::new_v4())
}

/// SyncGroup: waits for the leader's assignments.
pub(crate) async fn sync_group(
    ctx: &Ctx,
    version: i16,
    request: SyncGroupRequest,
) -> SyncGroupResponse {
    let response = SyncGroupResponse::default();
    if !ctx.may_group(&request.group_id) {
        return response.with_error_code(access::group_code());
    }
    if version >= 5 && (request.protocol_type.is_none() || request.protocol_name.is_none()) {
        return response.with_error_code(ResponseError::InconsistentGroupProtocol.code());
    }
    let assignments = request.assignments.iter();
    let sync = SyncGroup {
        group: request.group_id.to_string(),
        member: request.member_id.to_string(),
        instance: owned(&request.group_instance_id),
        generation: request.generation_id,
        protocol_type: owned(&request.protocol_type),
        protocol: owned(&request.protocol_name),
        assignments: assignments
            .map(|a| {
                (
                    a.member_id.to_string(),
                    Bytes::copy_from_slice(&a.assignment),
                )
            })
            .collect::<BTreeMap<_, _>>(),
    };
    drop(request);
    match ask(ctx, Request::Sync(sync)).await {
        Ok(Reply::Synced(synced)) => {
            let response = response.with_assignment(synced.assignment);
            if version >= 5 {
                response
                    .with_protocol_type(Some(text(synced.protocol_type)))
                    .with_protocol_name(Some(text(synced.protocol)))
            } else {
                response
            }
        }
        Ok(other) => response.with_error_code(mismatch(&other)),
        Err(code) => response.with_error_code(code),
    }
}

/// Heartbeat.
pub(crate) async fn heartbeat(
    ctx: &Ctx,
    _version: i16,
    request: HeartbeatRequest,
) -> HeartbeatResponse {
    if !ctx.may_group(&request.group_id) {
        return HeartbeatResponse::default().with_error_code(access::group_code());
    }
    let beat = Heartbeat {
        group: request.group_id.to_string(),
        member: request.member_id.to_string(),
        instance: owned(&request.group_instance_id),
        generation: request.generation_id,
    };
    let code = match ask(ctx, Request::Heartbeat(beat)).await {
        Ok(Reply::Alive) => NONE,
        Ok(other) => mismatch(&other),
        Err(code) => code,
    };
    HeartbeatResponse::default().with_error_code(code)
}

/// LeaveGroup: of the sender, or from version 3 on of several members.
pub(crate) async fn leave_group(
    ctx: &Ctx,
    version: i16,
    request: LeaveGroupRequest,
) -> LeaveGroupResponse {
    let response = LeaveGroupResponse::default();
    if !ctx.may_group(&request.group_id) {
        return response.with_error_code(access::group_code());
    }
    let members = if version >= 3 {
        let members = request.members.iter();
        members
            .map(|m| (m.member_id.to_string(), owned(&m.group_instance_id)))
            .collect()
    } else {
        vec![(request.member_id.to_string(), None)]
    };
    let group = request.group_id.to_string();
    let results = match ask(ctx, Request::Leave(LeaveGroup { group, members })).await {
        Ok(Reply::Left(results)) => results,
        Ok(other) => return response.with_error_code(mismatch(&other)),
        Err(code) => return response.with_error_code(code),
    };
    if version < 3 {
        return response.with_error_code(results.first().map_or(NONE, result_code));
    }
    let members = request.members.into_iter().zip(&results);
    let members = members.map(|(member, result)| {
        MemberResponse::default()
            .with_member_id(member.member_id)
            .with_group_instance_id(member.group_instance_id)
            .with_error_code(result_code(result))
    });
    response.with_members(members.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_ids_differ_and_do_not_split_characters() {
        assert_ne!(fresh_id("a"), fresh_id("a"));
        assert!(fresh_id("a").starts_with("a-"));
        let long = "é".repeat(ID_PREFIX_BYTES);
        assert_eq!(fresh_id(&long).len(), 254 + 37);
    }
}
