//! ShareFetch and ShareAcknowledge in their newest version, which the codec does not know: members may renew their locks
//! (KIP-1222), and say how exactly `max_records` is meant (KIP-1206).

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::{
    ShareAcknowledgeRequest, ShareAcknowledgeResponse, ShareFetchRequest, ShareFetchResponse,
};
use kafka_protocol::protocol::buf::ByteBufMut;
use kafka_protocol::protocol::{Decodable, Encodable};

use super::newer::decode_without;
use super::reader::{ReadError, Reader};

/// The first version with renewals.
pub const RENEWALS_FROM: i16 = 2;
/// The newest version that the codec knows.
const KNOWN: i16 = RENEWALS_FROM - 1;

/// A request, and what the codec does not know of it.
#[derive(Debug, PartialEq)]
pub struct Renewing<Q> {
    /// The rest.
    pub request: Q,
    /// Whether locks are renewed by it.
    pub renews: bool,
    /// Of a fetch: 0 if more records than `max_records` may be acquired, to have whole batches, and 1 if not.
    pub acquire_mode: i8,
}

/// Decodes a ShareFetch that [`super::walk::walk`] has accepted.
///
/// # Errors
/// What is wrong with it.
pub fn decode_fetch(body: &mut Bytes, version: i16) -> Result<Renewing<ShareFetchRequest>, String> {
    // Epoch, longest wait, least and most bytes, most records, size of batches.
    decode(body, version, 6, true)
}

/// Decodes a ShareAcknowledge that [`super::walk::walk`] has accepted.
///
/// # Errors
/// What is wrong with it.
pub fn decode_acknowledge(
    body: &mut Bytes,
    version: i16,
) -> Result<Renewing<ShareAcknowledgeRequest>, String> {
    decode(body, version, 1, false)
}

/// Group and member, so many numbers, and then the fields that the codec does not know.
fn decode<Q: Decodable>(
    body: &mut Bytes,
    version: i16,
    numbers: usize,
    has_mode: bool,
) -> Result<Renewing<Q>, String> {
    if version < RENEWALS_FROM {
        let request = Q::decode(body, version).map_err(|error| error.to_string())?;
        return Ok(Renewing {
            request,
            renews: false,
            acquire_mode: 0,
        });
    }
    let mut reader = Reader::new(body, true);
    let mut fields = || {
        reader.nullable_string()?;
        reader.nullable_string()?;
        for _ in 0..numbers {
            reader.i32()?;
        }
        let from = reader.at();
        let acquire_mode = if has_mode { reader.i8()? } else { 0 };
        let renews = reader.i8()? != 0;
        Ok((from..reader.at(), acquire_mode, renews))
    };
    let fields: Result<_, ReadError> = fields();
    let (fields, acquire_mode, renews) = fields.map_err(|error| error.to_string())?;
    Ok(Renewing {
        request: decode_without(body, fields, KNOWN)?,
        renews,
        acquire_mode,
    })
}

/// The answer to a ShareFetch, which is the same in both versions.
#[derive(Debug)]
pub struct Fetched(pub ShareFetchResponse);

impl Encodable for Fetched {
    fn encode<B: ByteBufMut>(&self, buf: &mut B, version: i16) -> anyhow::Result<()> {
        self.0.encode(buf, version.min(KNOWN))
    }

    fn compute_size(&self, version: i16) -> anyhow::Result<usize> {
        self.0.compute_size(version.min(KNOWN))
    }
}

/// The answer to a ShareAcknowledge.
#[derive(Debug)]
pub struct Acknowledged {
    /// As the codec knows it.
    pub response: ShareAcknowledgeResponse,
    /// How long what was renewed is locked, milliseconds.
    pub lock_ms: i32,
}

impl Encodable for Acknowledged {
    fn encode<B: ByteBufMut>(&self, buf: &mut B, version: i16) -> anyhow::Result<()> {
        if version < RENEWALS_FROM {
            return self.response.encode(buf, version);
        }
        let mut known = BytesMut::with_capacity(self.response.compute_size(KNOWN)?);
        self.response.encode(&mut known, KNOWN)?;
        let mut reader = Reader::new(&known, true);
        // The time to wait, the error and its text.
        reader.i32()?;
        reader.i16()?;
        reader.nullable_string()?;
        let at = reader.at();
        buf.put_slice(&known[..at]);
        buf.put_i32(self.lock_ms);
        buf.put_slice(&known[at..]);
        Ok(())
    }

    fn compute_size(&self, version: i16) -> anyhow::Result<usize> {
        let more = if version < RENEWALS_FROM {
            0
        } else {
            size_of::<i32>()
        };
        Ok(self.response.compute_size(version.min(KNOWN))? + more)
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::share_acknowledge_response::ShareAcknowledgeTopicResponse;

    use super::*;
    use crate::wire::walk::{Limits, walk};

    /// Group "g", member "m", epoch 3, then a renewal of offsets 5 to 7 in partition 2 of topic 09..09.
    const RENEWS: [u8; 58] = [
        2, b'g', 2, b'm', 0, 0, 0, 3, // who, and the session's epoch
        1, // renews
        2, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, // one topic
        2, 0, 0, 0, 2, // one partition
        2, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 7, 2, 4, 0, // one batch, of kind 4
        0, 0, 0, // no more fields
        0xaa, 0xbb, 0xcc, 0xdd, // what follows the request
    ];

    #[test]
    fn a_renewal_is_read_as_kafkas_client_writes_it() {
        let whole = &RENEWS[..RENEWS.len() - 4];
        walk(79, RENEWALS_FROM, whole, &Limits::default()).expect("it is whole");
        assert!(walk(79, RENEWALS_FROM + 1, whole, &Limits::default()).is_err());
        let mut body = Bytes::from_static(&RENEWS);
        let read = decode_acknowledge(&mut body, RENEWALS_FROM).expect("it is decoded");
        assert_eq!(body[..], [0xaa, 0xbb, 0xcc, 0xdd]);
        assert!(read.renews);
        assert_eq!(read.request.share_session_epoch, 3);
        let partition = &read.request.topics[0].partitions[0];
        let batch = &partition.acknowledgement_batches[0];
        assert_eq!(partition.partition_index, 2);
        assert_eq!((batch.first_offset, batch.last_offset), (5, 7));
        assert_eq!(batch.acknowledge_types, [4]);
        for length in 0..whole.len() {
            let mut short = Bytes::from_static(&RENEWS[..length]);
            assert!(decode_acknowledge(&mut short, RENEWALS_FROM).is_err());
        }
    }

    #[test]
    fn a_fetch_says_how_it_acquires() {
        let request = ShareFetchRequest::default()
            .with_max_records(9)
            .with_batch_size(7);
        let mut known = BytesMut::new();
        request.encode(&mut known, KNOWN).expect("it encodes");
        let mut old = known.clone().freeze();
        let read = decode_fetch(&mut old, KNOWN).expect("it is decoded");
        assert_eq!((read.renews, read.acquire_mode), (false, 0));
        // No topics, no topics to forget, no tagged fields.
        let at = known.len() - 3;
        let newer = [&known[..at], &[1, 1], &known[at..]].concat();
        walk(78, RENEWALS_FROM, &newer, &Limits::default()).expect("it is whole");
        let read = decode_fetch(&mut Bytes::from(newer), RENEWALS_FROM).expect("it is decoded");
        assert_eq!((read.renews, read.acquire_mode), (true, 1));
        assert_eq!((read.request.max_records, read.request.batch_size), (9, 7));
    }

    #[test]
    fn an_answer_tells_how_long_what_is_renewed_is_locked() {
        let topic = ShareAcknowledgeTopicResponse::default().with_partitions(Vec::new());
        let response = ShareAcknowledgeResponse::default()
            .with_throttle_time_ms(1)
            .with_error_code(2)
            .with_error_message(None)
            .with_responses(vec![topic]);
        let answer = Acknowledged {
            response,
            lock_ms: 30_000,
        };
        for (version, lock) in [(KNOWN, &[][..]), (RENEWALS_FROM, &[0, 0, 0x75, 0x30][..])] {
            let mut out = BytesMut::new();
            answer.encode(&mut out, version).expect("it encodes");
            let head = [0, 0, 0, 1, 0, 2, 0];
            assert_eq!(out[..7], head);
            assert_eq!(out[7..7 + lock.len()], *lock);
            // One topic: an id of zeros, no partitions, no tagged fields; no endpoints, and no tagged fields.
            assert_eq!(
                out[7 + lock.len()..],
                [&[2][..], &[0; 16], &[1, 0, 1, 0]].concat()
            );
            assert_eq!(answer.compute_size(version).expect("a size"), out.len());
        }
    }
}
