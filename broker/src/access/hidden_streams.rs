//! What somebody may see of a consumer group, and do to it, who has no right to all streams that it reads.

use std::collections::BTreeSet;

use kera_grpc::serve::Caller;
use kera_metadata::access::{Kind, Operation};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;

use super::native::via_of;
use super::{Who, may_see};
use crate::config::Listener;
use crate::principal::Principal;
use crate::shared::Shared;

/// Leaves out of a group's summary the streams that the caller may not see, and their lag. True if there are some.
pub(crate) fn hide_streams(
    shared: &Shared,
    caller: Option<&Caller>,
    summary: &mut v1::GroupSummary,
) -> bool {
    let may = |stream: &str| may_see(shared, caller, (Kind::Stream, stream));
    if summary.kind() == v1::GroupKind::Native {
        let is_hidden = !may(&summary.stream);
        if is_hidden {
            summary.stream.clear();
            summary.lag = 0;
            summary.unknown_lanes = 0;
        }
        return is_hidden;
    }
    let told = summary.streams.len();
    summary.streams.retain(|of| may(&of.stream));
    let is_hidden = summary.streams.len() < told;
    if is_hidden {
        summary.lag = summary.streams.iter().map(|of| of.lag).sum();
        summary.unknown_lanes = summary.streams.iter().map(|of| of.unknown_lanes).sum();
    }
    is_hidden
}

/// The same of all that is told of a group: neither is told how far it is in such a stream.
pub(crate) fn hide_progress(
    shared: &Shared,
    caller: Option<&Caller>,
    told: &mut v1::DescribeGroupResponse,
) {
    let may = |stream: &str| may_see(shared, caller, (Kind::Stream, stream));
    told.partitions.retain(|of| may(&of.stream));
    if let Some(summary) = &mut told.summary
        && hide_streams(shared, caller, summary)
        && summary.kind() == v1::GroupKind::Native
    {
        told.lanes.clear();
    }
}

/// Checks that the caller may read every stream that a group reads, as to commit positions in each of them takes.
///
/// # Errors
/// [`ErrorCode::NotAuthorized`], which names no stream that the caller may not see.
pub(crate) fn may_read_all(
    shared: &Shared,
    (via, caller): (Listener, Option<&Caller>),
    group: &v1::DescribeGroupResponse,
) -> Result<(), WireError> {
    let Some(caller) = caller.filter(|_| shared.access.is_enforced()) else {
        return Ok(());
    };
    let principal = Principal::of(caller.user.as_ref());
    let who = Who {
        principal: &principal,
        host: caller.address,
        via: via_of(via, caller),
    };
    for stream in streams_of(group) {
        let thing = (Kind::Stream, stream);
        let refused = shared.access.require(who, Operation::Read, thing);
        if refused.is_err() && !shared.access.allows(who, Operation::Describe, thing) {
            let user = who.user();
            let text = format!(
                "the group reads a stream that User:{user} may not read; who may change rules can see which (kera group describe) and allow it"
            );
            return Err(WireError::new(ErrorCode::NotAuthorized, text));
        }
        refused?;
    }
    Ok(())
}

/// Each stream that a group reads, or has an offset in.
fn streams_of(group: &v1::DescribeGroupResponse) -> BTreeSet<&str> {
    let summary = group.summary.iter();
    let read = summary.flat_map(|all| {
        let streams = all.streams.iter().map(|of| &of.stream);
        std::iter::once(&all.stream).chain(streams)
    });
    let streams = read.chain(group.partitions.iter().map(|of| &of.stream));
    let named = streams.filter(|name| !name.is_empty());
    named.map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_a_group_are_all_that_it_has_something_to_do_with() {
        let name = String::from;
        let lag = |stream| v1::StreamLag {
            stream: name(stream),
            ..Default::default()
        };
        let partition = |stream| v1::PartitionProgress {
            stream: name(stream),
            ..Default::default()
        };
        let summary = v1::GroupSummary {
            stream: name("native"),
            streams: vec![lag("with lag")],
            ..Default::default()
        };
        let mut group = v1::DescribeGroupResponse {
            summary: Some(summary),
            partitions: vec![partition("with an offset"), partition("with lag")],
            ..Default::default()
        };
        let all = streams_of(&group);
        assert_eq!(
            Vec::from_iter(all),
            ["native", "with an offset", "with lag"]
        );
        group.summary = Some(v1::GroupSummary::default());
        assert_eq!(streams_of(&group).len(), 2);
    }
}
