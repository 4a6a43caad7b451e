//! Where lanes have what a start names.

use kera_protocol::v1::{Cursor, LaneCursor};
use kera_rpc::{Client, RpcError};

use crate::config::{Seek, Start};
use crate::error::ConsumeError;

/// Where each lane of a stream has what `start` names.
pub(crate) async fn find(
    client: &Client,
    stream: &str,
    start: Start,
) -> Result<Vec<LaneCursor>, RpcError> {
    let meta = client.stream(stream).await?;
    client.find_ordinals(&meta, start.into()).await
}

/// Where one lane has it: the broker is asked unless that is known.
///
/// # Errors
/// If the broker does not answer, or the stream has no such lane.
pub(crate) async fn find_in_lane(
    client: &Client,
    stream: &str,
    (streamlet, lane): (u32, u32),
    to: Seek,
) -> Result<Cursor, ConsumeError> {
    let start = match to {
        Seek::Cursor(cursor) => return Ok(cursor),
        Seek::To(start) => start,
    };
    let mut found = find(client, stream, start).await?.into_iter();
    let found = found.find(|found| (found.streamlet, found.lane) == (streamlet, lane));
    found
        .and_then(|found| found.cursor)
        .ok_or(ConsumeError::UnknownLane { streamlet, lane })
}
