//! InitProducerId in all of its versions: the codec's encoder does not know the newest one.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::InitProducerIdRequest;
use kafka_protocol::protocol::Encodable;

/// The newest version that the codec encodes.
const CODECS: i16 = 5;

fn encoded(request: &InitProducerIdRequest, version: i16) -> BytesMut {
    let mut out = BytesMut::new();
    let done = request.encode(&mut out, version);
    done.unwrap_or_else(|error| panic!("version {version} does not encode: {error}"));
    out
}

/// The body of a request.
pub fn body(request: &InitProducerIdRequest, version: i16) -> Bytes {
    if version <= CODECS {
        return encoded(request, version).freeze();
    }
    // What is newer goes in front of the tagged fields, of which there are none in one byte.
    let plain = request
        .clone()
        .with_unknown_tagged_fields(Default::default());
    let at = encoded(&plain, CODECS).len() - 1;
    let whole = encoded(request, CODECS);
    let mut out = BytesMut::from(&whole[..at]);
    out.put_u8(request.enable_2_pc.into());
    out.put_u8(request.keep_prepared_txn.into());
    out.extend_from_slice(&whole[at..]);
    out.freeze()
}
