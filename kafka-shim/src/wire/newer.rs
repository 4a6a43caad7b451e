//! Requests in versions that the codec does not know, which have a few fields more among those that it knows.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use kafka_protocol::protocol::Decodable;

/// Decodes a request as the codec's newest version has it, passing over the bytes of `fields`; what is left of `body` is what
/// lies behind the request.
///
/// # Errors
/// What the codec says.
pub(super) fn decode_without<Q: Decodable>(
    body: &mut Bytes,
    fields: Range<usize>,
    known: i16,
) -> Result<Q, String> {
    let mut rest = BytesMut::with_capacity(body.len());
    rest.extend_from_slice(&body[..fields.start]);
    rest.extend_from_slice(&body[fields.end..]);
    let mut rest = rest.freeze();
    let length = rest.len();
    let request = Q::decode(&mut rest, known).map_err(|error| error.to_string())?;
    *body = body.slice(length - rest.len() + fields.len()..);
    Ok(request)
}
