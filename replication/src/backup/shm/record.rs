//! What a copy's file is, as stored beside it.
//!
//! ```text
//! "KERACOPY" | version u32 | epoch u32 | segment size u32 | segments u32 | group u64 | streamlet u32
//! | built u32 | stream uuid (16) | store id (16) | boot id (16) | crc32c of all before, u32
//! ```

use kera_protocol::batch::crc32c;
use kera_protocol::ids::{Epoch, GroupId, StreamId, StreamletId};

use super::super::memory::CopySpec;
use crate::ids::{CopyId, Incarnation, StreamletKey};

const MAGIC: [u8; 8] = *b"KERACOPY";
const VERSION: u32 = 1;
const BYTES: usize = 88;

pub(super) fn encode(spec: &CopySpec) -> Vec<u8> {
    let mut out = Vec::with_capacity(BYTES + 4);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&spec.copy.epoch.0.to_le_bytes());
    out.extend_from_slice(&spec.segment_size.to_le_bytes());
    out.extend_from_slice(&spec.segments.to_le_bytes());
    out.extend_from_slice(&spec.copy.group.0.to_le_bytes());
    out.extend_from_slice(&spec.copy.streamlet.streamlet.0.to_le_bytes());
    out.extend_from_slice(&u32::from(spec.built).to_le_bytes());
    out.extend_from_slice(spec.copy.streamlet.stream.as_bytes());
    out.extend_from_slice(&spec.incarnation.store_id);
    out.extend_from_slice(&spec.incarnation.boot_id);
    let crc = crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

/// `None` if the bytes are no record that this build can read.
pub(super) fn decode(bytes: &[u8]) -> Option<CopySpec> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    if body.len() != BYTES || body[..8] != MAGIC || crc32c(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    let u32_at = |at: usize| Some(u32::from_le_bytes(*body[at..].first_chunk::<4>()?));
    let uuid_at = |at: usize| body[at..].first_chunk::<16>().copied();
    if u32_at(8)? > VERSION {
        return None;
    }
    Some(CopySpec {
        copy: CopyId {
            streamlet: StreamletKey {
                stream: StreamId::from_slice(&uuid_at(40)?)?,
                streamlet: StreamletId(u32_at(32)?),
            },
            group: GroupId(u64::from_le_bytes(*body[24..].first_chunk::<8>()?)),
            epoch: Epoch(u32_at(12)?),
        },
        segment_size: u32_at(16)?,
        segments: u32_at(20)?,
        incarnation: Incarnation {
            store_id: uuid_at(56)?,
            boot_id: uuid_at(72)?,
        },
        built: u32_at(36)? != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_encoding_and_no_flipped_bit_does() {
        let spec = CopySpec {
            copy: CopyId {
                streamlet: StreamletKey {
                    stream: StreamId::random(),
                    streamlet: StreamletId(3),
                },
                group: GroupId(1 << 40),
                epoch: Epoch(9),
            },
            segment_size: 8 << 20,
            segments: 16,
            incarnation: Incarnation {
                store_id: [1; 16],
                boot_id: [2; 16],
            },
            built: true,
        };
        let bytes = encode(&spec);
        assert_eq!(decode(&bytes), Some(spec));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bad), None, "bit {bit}");
        }
    }
}
