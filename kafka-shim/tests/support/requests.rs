//! Whole requests: header and body.

use bytes::BytesMut;
use kafka_protocol::messages::RequestHeader;
use kafka_protocol::protocol::Encodable;

use crate::dice::Dice;
use crate::messages;

/// A random request as it follows its length on the wire: header and body.
pub fn request(api_key: i16, version: i16, correlation: i32, dice: &mut Dice) -> Vec<u8> {
    let (body, header_version) = messages::body(api_key, version, dice);
    let header = RequestHeader::default()
        .with_request_api_key(api_key)
        .with_request_api_version(version)
        .with_correlation_id(correlation)
        .with_client_id(dice.maybe(Dice::text))
        .with_unknown_tagged_fields(dice.tags(header_version >= 2));
    let mut out = BytesMut::new();
    let encoded = header.encode(&mut out, header_version);
    encoded.expect("a header encodes");
    out.extend_from_slice(&body);
    out.to_vec()
}
