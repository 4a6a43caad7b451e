//! What is left of a consumer group for somebody who may see the group, and not all streams that it reads.

use kera_grpc::serve::Caller;
use kera_metadata::access::Kind;
use kera_protocol::v1;

use super::may_see;
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
