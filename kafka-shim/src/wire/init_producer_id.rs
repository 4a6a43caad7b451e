//! InitProducerId as the codec reads it, and its newest version, which the codec does not know.

use bytes::Bytes;
use kafka_protocol::messages::InitProducerIdRequest;
use kafka_protocol::protocol::Decodable;

use super::newer::decode_without;
use super::reader::Reader;

/// The first version with the two fields of two-phase commit (KIP-939), in front of the tagged fields.
pub const TWO_PHASE_FROM: i16 = 6;
/// Bytes of the two fields.
const FIELDS: usize = 2;

/// Decodes a request that [`super::walk::walk`] has accepted.
///
/// # Errors
/// What is wrong with it.
pub fn decode(body: &mut Bytes, version: i16) -> Result<InitProducerIdRequest, String> {
    if version < TWO_PHASE_FROM {
        return InitProducerIdRequest::decode(body, version).map_err(|error| error.to_string());
    }
    let mut reader = Reader::new(body, true);
    let mut fields = || {
        reader.nullable_string()?;
        reader.i32()?;
        reader.i64()?;
        reader.i16()?;
        let at = reader.at();
        Ok((at, reader.i8()? != 0, reader.i8()? != 0))
    };
    let fields: Result<_, super::reader::ReadError> = fields();
    let (at, enable_2_pc, keep_prepared_txn) = fields.map_err(|error| error.to_string())?;
    let request: InitProducerIdRequest = decode_without(body, at..at + FIELDS, TWO_PHASE_FROM - 1)?;
    Ok(request
        .with_enable_2_pc(enable_2_pc)
        .with_keep_prepared_txn(keep_prepared_txn))
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::wire::walk::{Limits, walk};

    /// As Kafka's own client 4.3 writes them.
    const PREPARES: [u8; 21] = [
        4, 112, 97, 121, 0, 0, 234, 96, 0, 0, 0, 0, 0, 0, 0, 7, 0, 3, 1, 0, 0,
    ];
    const KEEPS: [u8; 18] = [
        0, 0, 0, 234, 96, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 1, 0,
    ];

    fn read(bytes: &[u8]) -> InitProducerIdRequest {
        walk(22, TWO_PHASE_FROM, bytes, &Limits::default()).expect("it is whole");
        let mut body = Bytes::copy_from_slice(bytes);
        let request = decode(&mut body, TWO_PHASE_FROM).expect("it is decoded");
        assert_eq!(body.len(), 0, "bytes are left");
        request
    }

    #[test]
    fn what_kafkas_client_writes_is_read() {
        let prepares = read(&PREPARES);
        let id = prepares.transactional_id.expect("it has one");
        assert_eq!(id.as_str(), "pay");
        assert_eq!((prepares.producer_id.0, prepares.producer_epoch), (7, 3));
        assert_eq!(prepares.transaction_timeout_ms, 60_000);
        assert!(prepares.enable_2_pc && !prepares.keep_prepared_txn);
        let keeps = read(&KEEPS);
        assert_eq!((keeps.transactional_id, keeps.producer_epoch), (None, -1));
        assert!(!keeps.enable_2_pc && keeps.keep_prepared_txn);
    }

    #[test]
    fn tagged_fields_stay_behind_the_two() {
        let tagged = [&PREPARES[..20], &[1, 9, 2, 5, 6]].concat();
        let read = read(&tagged);
        assert_eq!(read.unknown_tagged_fields[&9], Bytes::from_static(&[5, 6]));
        assert!(read.enable_2_pc);
    }

    #[test]
    fn the_answer_is_written_as_kafkas_client_reads_it() {
        use kafka_protocol::messages::{InitProducerIdResponse, ProducerId};
        use kafka_protocol::protocol::Encodable;
        let response = InitProducerIdResponse::default()
            .with_throttle_time_ms(1)
            .with_producer_id(ProducerId(9))
            .with_producer_epoch(4)
            .with_ongoing_txn_producer_id(ProducerId(7))
            .with_ongoing_txn_producer_epoch(3);
        let mut out = BytesMut::new();
        response
            .encode(&mut out, TWO_PHASE_FROM)
            .expect("it encodes");
        let kafkas = [
            0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 4, 0, 0, 0, 0, 0, 0, 0, 7, 0, 3, 0,
        ];
        assert_eq!(out[..], kafkas);
    }
}
