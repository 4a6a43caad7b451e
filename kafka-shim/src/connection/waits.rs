//! What a request at the front waits for: what its client owes, and its turn.

use kera_broker::client_link::ClientLink;
use kera_broker::quotas::Metered;

use super::{FETCH, PRODUCE, SHARE_FETCH};
use crate::fetch::FetchRequest;
use crate::sasl;
use crate::versions;
use crate::wire::request::RequestHead;

/// Those that wait for nobody with a latency objective: logins, ApiVersions, and what keeps a member in its group. FindCoordinator,
/// OffsetCommit, JoinGroup, Heartbeat, LeaveGroup, SyncGroup, ConsumerGroupHeartbeat, ShareGroupHeartbeat, ShareAcknowledge.
const PASSING: [i16; 12] = [
    versions::KEY,
    sasl::HANDSHAKE,
    sasl::AUTHENTICATE,
    8,
    10,
    11,
    12,
    13,
    14,
    68,
    76,
    79,
];

/// True while the client waits because it has used up a quota: nothing is read of it, and what it is owed is sent. But
/// for what memory was claimed before, which others may wait for.
pub(super) fn is_muted(link: &ClientLink) -> bool {
    let waits = link.meter.is_waiting(Metered::Appends) || link.meter.is_waiting(Metered::Reads);
    waits && !link.claims.has_frame()
}

/// True if the request at the front waits until its client owes nothing.
pub(super) fn must_wait(link: &mut ClientLink, metered: Metered) -> bool {
    !link.claims.has_frame() && link.meter.waits(metered)
}

/// True if the request at the front waits for its turn, because some user has a latency objective.
pub(super) fn waits_for_turn(
    link: &mut ClientLink,
    head: &RequestHead<'_>,
    request: &[u8],
) -> bool {
    let (metered, bytes) = match head.api_key {
        passing if PASSING.contains(&passing) => return false,
        PRODUCE => (Metered::Appends, request.len()),
        FETCH => {
            let asked = FetchRequest::max_bytes(&request[head.body_at..], head.api_version);
            (Metered::Reads, asked.unwrap_or(0))
        }
        SHARE_FETCH => (Metered::Reads, usize::MAX),
        _ => (Metered::Time, 0),
    };
    !link.claims.has_frame() && link.meter.waits_for_turn(metered, bytes, &link.waker)
}
