//! Requests in versions that the codec's encoder does not know: what is newer stands among the fields that it knows.
#![allow(dead_code)]

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{InitProducerIdRequest, ShareAcknowledgeRequest, ShareFetchRequest};
use kafka_protocol::protocol::Encodable;

fn encoded(request: &impl Encodable, version: i16) -> BytesMut {
    let mut out = BytesMut::new();
    let done = request.encode(&mut out, version);
    done.unwrap_or_else(|error| panic!("version {version} does not encode: {error}"));
    out
}

/// `whole` with these bytes in front of what comes from `at` on.
fn with(whole: &[u8], at: usize, newer: &[u8]) -> Bytes {
    let mut out = BytesMut::from(&whole[..at]);
    out.put_slice(newer);
    out.extend_from_slice(&whole[at..]);
    out.freeze()
}

/// The body of an InitProducerId.
pub fn init_producer_id(request: &InitProducerIdRequest, version: i16) -> Bytes {
    const KNOWN: i16 = 5;
    if version <= KNOWN {
        return encoded(request, version).freeze();
    }
    // In front of the tagged fields, of which there are none in one byte.
    let plain = request
        .clone()
        .with_unknown_tagged_fields(Default::default());
    let at = encoded(&plain, KNOWN).len() - 1;
    let newer = [request.enable_2_pc.into(), request.keep_prepared_txn.into()];
    with(&encoded(request, KNOWN), at, &newer)
}

/// The body of a ShareFetch, with its acquire mode and whether it renews locks.
pub fn share_fetch(request: &ShareFetchRequest, version: i16, mode: i8, renews: bool) -> Bytes {
    let whole = encoded(request, 1);
    if version <= 1 {
        return whole.freeze();
    }
    let bare = request
        .clone()
        .with_topics(Vec::new())
        .with_forgotten_topics_data(Vec::new())
        .with_unknown_tagged_fields(Default::default());
    // Two empty arrays, and no tagged fields.
    let at = encoded(&bare, 1).len() - 3;
    with(&whole, at, &[mode as u8, renews.into()])
}

/// The body of a ShareAcknowledge, with whether it renews locks.
pub fn share_acknowledge(request: &ShareAcknowledgeRequest, version: i16, renews: bool) -> Bytes {
    let whole = encoded(request, 1);
    if version <= 1 {
        return whole.freeze();
    }
    let bare = request
        .clone()
        .with_topics(Vec::new())
        .with_unknown_tagged_fields(Default::default());
    let at = encoded(&bare, 1).len() - 2;
    with(&whole, at, &[renews.into()])
}
