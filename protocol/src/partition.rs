//! Where a key belongs: Kafka's hash, and how it is split into streamlet and lane.

use crate::ids::{LaneId, StreamletId};

/// Kafka's murmur2 (seed `0x9747b28c`) of `bytes`, as its Java client computes it.
pub fn murmur2(bytes: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;
    const SEED: u32 = 0x9747_b28c;

    let mut h = SEED ^ bytes.len() as u32;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> R;
        h = h.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !rest.is_empty() {
        for (index, byte) in rest.iter().enumerate() {
            h ^= u32::from(*byte) << (8 * index);
        }
        h = h.wrapping_mul(M);
    }
    h ^= h >> 13;
    h = h.wrapping_mul(M);
    h ^ (h >> 15)
}

/// The hash that lanes are chosen by: [`murmur2`] without its sign bit.
pub fn key_hash(key: &[u8]) -> u32 {
    murmur2(key) & 0x7fff_ffff
}

/// Streamlet and lane of `key` in a stream of `streamlets` (M) times `lanes` (Q), with
/// `lane_by = key`. A count of 0 is taken as 1.
pub fn lane_of(key: &[u8], streamlets: u32, lanes: u32) -> (StreamletId, LaneId) {
    let (streamlets, lanes) = (streamlets.max(1), lanes.max(1));
    let hash = key_hash(key);
    (
        StreamletId(hash % streamlets),
        LaneId((hash / streamlets) % lanes),
    )
}

/// Streamlet and lane of `key` in a stream of `streamlets` (M) with `partitions` (n) lanes in all, with
/// `lane_by = key`: partition `h mod n`. A count of 0 is taken as 1.
pub fn lane_among(key: &[u8], streamlets: u32, partitions: u32) -> (StreamletId, LaneId) {
    place_of(key_hash(key) % partitions.max(1), streamlets)
}

/// Kafka's partition of one lane: `lane * M + streamlet`.
pub fn partition_of(streamlet: StreamletId, lane: LaneId, streamlets: u32) -> u64 {
    u64::from(lane.0) * u64::from(streamlets.max(1)) + u64::from(streamlet.0)
}

/// Where a partition is: lane `p div M` of streamlet `p mod M`.
pub fn place_of(partition: u32, streamlets: u32) -> (StreamletId, LaneId) {
    let streamlets = streamlets.max(1);
    (
        StreamletId(partition % streamlets),
        LaneId(partition / streamlets),
    )
}

/// How many of a stream's `partitions` lanes are `streamlet`'s. Where they are no multiple of the
/// streamlets, the first streamlets have one lane more than the others.
pub fn lanes_of(streamlet: StreamletId, streamlets: u32, partitions: u32) -> u32 {
    let streamlets = streamlets.max(1);
    partitions / streamlets + u32::from(streamlet.0 < partitions % streamlets)
}

/// True if a growth from `before` to `after` lanes in all may move keys to another streamlet. Without, the keys of
/// a streamlet stay there, and move among its lanes only.
pub fn keys_move(streamlets: u32, before: u32, after: u32) -> bool {
    let even = |partitions: u32| partitions.is_multiple_of(streamlets.max(1));
    !(even(before) && even(after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn murmur2_gives_what_kafkas_client_gives() {
        let known: [(&[u8], i32); 6] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (
                b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            (b"abc", 479_470_107),
        ];
        for (key, hash) in known {
            assert_eq!(murmur2(key) as i32, hash, "{}", key.escape_ascii());
        }
    }

    #[test]
    fn streamlet_and_lane_together_are_kafkas_partition() {
        for number in 0..2_000_u32 {
            let key = number.to_string();
            for (streamlets, lanes) in [(1, 1), (3, 1), (4, 5), (7, 16)] {
                let (streamlet, lane) = lane_of(key.as_bytes(), streamlets, lanes);
                assert!(streamlet.0 < streamlets && lane.0 < lanes);
                assert_eq!(
                    partition_of(streamlet, lane, streamlets),
                    u64::from(key_hash(key.as_bytes()) % (streamlets * lanes))
                );
            }
        }
    }

    #[test]
    fn any_number_of_partitions_is_split_as_kafka_does() {
        for (streamlets, partitions) in
            (1..=9_u32).flat_map(|m| (m..m * 4 + 3).map(move |n| (m, n)))
        {
            let held = (0..streamlets).map(|s| lanes_of(StreamletId(s), streamlets, partitions));
            assert_eq!(held.sum::<u32>(), partitions);
            for partition in 0..partitions {
                let (streamlet, lane) = place_of(partition, streamlets);
                assert!(lane.0 < lanes_of(streamlet, streamlets, partitions));
                assert_eq!(
                    partition_of(streamlet, lane, streamlets),
                    u64::from(partition)
                );
            }
            for number in 0..200_u32 {
                let key = number.to_string();
                let place = lane_among(key.as_bytes(), streamlets, partitions);
                let kafka = (murmur2(key.as_bytes()) & 0x7fff_ffff) % partitions;
                assert_eq!(partition_of(place.0, place.1, streamlets), u64::from(kafka));
                // Lanes of equal number are the special case of it.
                if partitions.is_multiple_of(streamlets) {
                    let lanes = partitions / streamlets;
                    assert_eq!(place, lane_of(key.as_bytes(), streamlets, lanes));
                }
            }
        }
    }

    #[test]
    fn more_lanes_never_move_a_key_to_another_streamlet() {
        for number in 0..500_u32 {
            let key = number.to_le_bytes();
            let (streamlet, _) = lane_of(&key, 5, 1);
            for lanes in 2..9 {
                assert_eq!(lane_of(&key, 5, lanes).0, streamlet);
            }
        }
    }
}
