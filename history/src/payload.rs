//! Payloads that say which record they are, so that a reader can tell one that was never sent or
//! was altered on the way.
//!
//! Layout, little-endian: magic u32, producer u32, sequence u64, length of the whole payload u32,
//! filler made from producer and sequence, CRC-32C of all before it u32.

use crc_fast::{CrcAlgorithm, checksum};

use crate::event::Record;

/// The smallest payload, in bytes.
pub const MIN_SIZE: usize = HEAD + 4;

const HEAD: usize = 20;
const MAGIC: u32 = u32::from_le_bytes(*b"kHis");

/// Why bytes are not a payload made by [`encode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// Fewer than [`MIN_SIZE`] bytes.
    #[error("payload of {0} bytes is too short to be one of this history")]
    TooShort(usize),
    /// It does not start as a payload does.
    #[error("payload does not start with this history's magic number")]
    Magic,
    /// Its length is not the one it was made with.
    #[error("payload of {found} bytes says it has {stated}")]
    Length {
        /// Bytes there are.
        found: usize,
        /// Bytes there were.
        stated: u32,
    },
    /// Its bytes do not match its checksum.
    #[error("payload does not match its checksum")]
    Checksum,
}

/// A payload of `size` bytes, or [`MIN_SIZE`] if that is more, for a producer's record.
pub fn encode(producer: u32, seq: u64, size: usize) -> Vec<u8> {
    let mut payload = Vec::new();
    encode_into(&mut payload, producer, seq, size);
    payload
}

/// As [`encode`], into a buffer that is cleared first.
pub fn encode_into(payload: &mut Vec<u8>, producer: u32, seq: u64, size: usize) {
    // No record can be larger than this, so that the length field always fits.
    let size = size.clamp(MIN_SIZE, u32::MAX as usize);
    payload.clear();
    payload.reserve(size);
    payload.extend_from_slice(&MAGIC.to_le_bytes());
    payload.extend_from_slice(&producer.to_le_bytes());
    payload.extend_from_slice(&seq.to_le_bytes());
    payload.extend_from_slice(&(size as u32).to_le_bytes());
    let mut state = seq ^ u64::from(producer) << 40;
    while payload.len() < size - 4 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let left = size - 4 - payload.len();
        payload.extend_from_slice(&state.to_be_bytes()[..left.min(8)]);
    }
    let sum = checksum(CrcAlgorithm::Crc32Iscsi, payload) as u32;
    payload.extend_from_slice(&sum.to_le_bytes());
}

/// The record that a payload says it is.
pub fn decode(payload: &[u8]) -> Result<Record, PayloadError> {
    if payload.len() < MIN_SIZE {
        return Err(PayloadError::TooShort(payload.len()));
    }
    if u32_at(payload, 0) != MAGIC {
        return Err(PayloadError::Magic);
    }
    let stated = u32_at(payload, 16);
    if payload.len() != stated as usize {
        return Err(PayloadError::Length {
            found: payload.len(),
            stated,
        });
    }
    let (body, sum) = payload.split_at(payload.len() - 4);
    if u64::from(u32_at(sum, 0)) != checksum(CrcAlgorithm::Crc32Iscsi, body) {
        return Err(PayloadError::Checksum);
    }
    Ok(Record {
        producer: u32_at(payload, 4),
        seq: u64::from(u32_at(payload, 12)) << 32 | u64::from(u32_at(payload, 8)),
    })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lengths_are_told_apart() {
        assert_eq!(encode(1, 2, 0).len(), MIN_SIZE);
        assert_eq!(encode(1, 2, 101).len(), 101);
        assert_eq!(decode(b"short"), Err(PayloadError::TooShort(5)));
        assert_eq!(decode(&[0; 40]), Err(PayloadError::Magic));
        let payload = encode(1, 2, 50);
        assert_eq!(
            decode(&payload[..49]),
            Err(PayloadError::Length {
                found: 49,
                stated: 50
            })
        );
    }

    proptest! {
        #[test]
        fn any_changed_bit_is_noticed(
            producer: u32, seq: u64, size in 0usize..300, byte: prop::sample::Index, bit in 0u8..8,
        ) {
            let mut payload = encode(producer, seq, size);
            prop_assert_eq!(decode(&payload), Ok(Record { producer, seq }));
            let at = byte.index(payload.len());
            payload[at] ^= 1 << bit;
            prop_assert!(decode(&payload).is_err());
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }
}
