use std::fmt;
use std::io;
use std::ops::Range;

use kera_protocol::batch::{BatchBuilder, Compression, NewRecord, ProducerStamp, patch};
use kera_protocol::ids::{GroupId, LaneId, StreamId, StreamletId};

use super::*;
use crate::check::{Progress, check};
use crate::group::AckPolicy;
use crate::scan::scan;

const SEGMENT: u32 = 64 << 10;
const BATCHES: u64 = 90;

/// A replica in memory, of which some bytes cannot be read.
#[derive(Clone)]
struct Replica {
    bytes: Vec<u8>,
    bad: Range<u64>,
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, bad {:?}", self.bytes.len(), self.bad)
    }
}

impl ReadAt for Replica {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = self.bytes.len().min(offset as usize);
        let to = self.bytes.len().min(from + buf.len());
        if (from as u64) < self.bad.end && self.bad.start < to as u64 {
            return Err(io::Error::from_raw_os_error(5));
        }
        buf[..to - from].copy_from_slice(&self.bytes[from..to]);
        Ok(to - from)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }
}

/// A whole group of two segments, its end, and where its batches lie.
struct Content {
    replica: Replica,
    spec: CheckSpec,
    batches: Vec<Place>,
}

impl Content {
    fn new() -> Self {
        let header = SegmentHeader {
            stream: StreamId::from_slice(&[7; 16]).expect("16 bytes"),
            streamlet: StreamletId(1),
            lane: LaneId(0),
            group: GroupId(5),
            generation: 0,
            segment: 0,
            epoch: Epoch(3),
            segment_size: SEGMENT,
            segments: 3,
            first_ordinal: 100,
            snapshot_bytes: 0,
            snapshot_crc: 0,
            created_ms: 1,
            ack: AckPolicy::Written,
            marked: true,
            in_order: true,
        };
        let mut bytes = header.encode().to_vec();
        let (mut ordinal, mut batches) = (100, Vec::new());
        for number in 0..BATCHES {
            let batch = batch(number, ordinal);
            if bytes.len() / SEGMENT as usize == 0 && bytes.len() + batch.len() >= SEGMENT as usize
            {
                bytes.resize(SEGMENT as usize, 0);
                let next = SegmentHeader {
                    segment: 1,
                    first_ordinal: ordinal,
                    ..header.clone()
                };
                bytes.extend_from_slice(&next.encode());
            }
            batches.push(Place {
                address: bytes.len() as u64,
                ordinal,
            });
            bytes.extend_from_slice(&batch);
            ordinal += 2;
        }
        let end = Place {
            address: bytes.len() as u64,
            ordinal,
        };
        let spec = CheckSpec {
            stream: header.stream,
            streamlet: header.streamlet,
            group: header.group,
            epoch: header.epoch,
            generation: 0,
            end,
        };
        Self {
            replica: Replica { bytes, bad: 0..0 },
            spec,
            batches,
        }
    }

    /// Where batch `index` ends, by the next one.
    fn end_of(&self, index: usize) -> Place {
        self.batches
            .get(index + 1)
            .copied()
            .unwrap_or(self.spec.end)
    }

    /// The first batch of the second segment.
    fn second(&self) -> usize {
        let second = |place: &Place| place.address > u64::from(SEGMENT);
        self.batches.iter().position(second).expect("two segments")
    }

    /// As [`assemble`] puts it together, in a file that is as long.
    fn assembled(&self, replicas: &[Replica]) -> Result<(Replica, Assembled), AssembleError> {
        let replicas: Vec<_> = replicas.iter().map(|one| one as &dyn ReadAt).collect();
        let mut made = self.replica.clone();
        made.bytes.fill(0);
        let mut written = 0;
        let found = assemble(&replicas, &self.spec, &mut |at, bytes| {
            assert!(at >= written, "in order");
            written = at + bytes.len() as u64;
            made.bytes[at as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        })?;
        Ok((made, found))
    }

    /// That readers come to the end of what was made, and which of its batches are damaged.
    fn damaged(&self, made: &Replica) -> Vec<Place> {
        let spec = ScanSpec {
            limit: Some(self.spec.end.address),
            ..ScanSpec::default()
        };
        let mut damaged = Vec::new();
        let found = scan(made, &spec, |header, at| {
            let bytes = &made.bytes[at as usize..][..header.total_bytes];
            if batch::verify(bytes).is_err() {
                damaged.push(Place {
                    address: at,
                    ordinal: header.base_ordinal,
                });
            }
        });
        let found = found.expect("it has a header");
        assert_eq!(found.end, self.spec.end, "{}", found.stop);
        damaged
    }
}

fn batch(number: u64, ordinal: u64) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    for half in 0..2 {
        let value = vec![number as u8; 300 + (number * 37 % 400) as usize];
        let record = NewRecord {
            value: Some(&value),
            timestamp: (number * 2 + half) as i64,
            ..NewRecord::default()
        };
        builder.push(&record).expect("room");
    }
    let batch = builder.finish(Compression::None, ProducerStamp::NONE);
    let mut batch = batch.expect("records").to_vec();
    patch(&mut batch, ordinal, Epoch(3));
    batch
}

#[test]
fn every_batch_is_taken_from_a_replica_that_has_it_whole() {
    let content = Content::new();
    let mut replicas = vec![content.replica.clone(); 3];
    for (index, place) in content.batches.iter().enumerate() {
        // In turns in the body, in the length, and in the ordinal, which no checksum covers.
        let at = place.address as usize + [200, 10, 7][index % 3];
        replicas[index % 3].bytes[at] ^= 0x15;
    }
    replicas[0].bytes[..64].fill(0);
    replicas[1].bytes[SEGMENT as usize..][..64].fill(0);
    let (made, found) = content.assembled(&replicas).expect("it is whole");
    assert_eq!(found.holes, []);
    assert_eq!(found.max_timestamp, BATCHES as i64 * 2 - 1);
    assert!(made.bytes == content.replica.bytes);
    let checked = check(&made, &content.spec, Progress::default(), u64::MAX / 2);
    assert_eq!(checked.expect("it is read").wrong, None);
}

#[test]
fn sectors_that_cannot_be_read_cost_only_what_no_other_replica_has() {
    let content = Content::new();
    let mut replicas = vec![content.replica.clone(); 2];
    replicas[0].bad = 0..30_000;
    replicas[1].bad = 40_000..u64::MAX;
    let (made, found) = content.assembled(&replicas).expect("it is whole");
    assert_eq!(found.holes, []);
    assert!(made.bytes == content.replica.bytes);
    // Both are bad in one sector.
    for replica in &mut replicas {
        replica.bad = 20_480..24_576;
    }
    let (made, found) = content.assembled(&replicas).expect("the rest is whole");
    let is_hit = |index: &usize| {
        let (from, to) = (content.batches[*index], content.end_of(*index));
        from.address < 24_576 && 20_480 < to.address
    };
    let hit: Vec<_> = (0..content.batches.len()).filter(is_hit).collect();
    let [Hole { from, to }] = found.holes[..] else {
        panic!("one hole: {found:?}");
    };
    assert_eq!(from, content.batches[hit[0]]);
    assert_eq!(to, content.end_of(hit[hit.len() - 1]));
    assert_eq!(content.damaged(&made).first(), Some(&from));
}

#[test]
fn what_is_whole_nowhere_is_a_hole_and_all_else_is_there() {
    let content = Content::new();
    let second = content.second();
    let last = content.batches.len() - 1;
    for index in [0, 7, second - 1, second, last] {
        // Its body, its length, its ordinal, its magic, all of its header.
        for damage in [200..201, 9..10, 6..8, 16..17, 0..61] {
            let mut replica = content.replica.clone();
            let place = content.batches[index];
            for at in damage.clone() {
                replica.bytes[place.address as usize + at] ^= 0x2a;
            }
            let case = format!("batch {index}, {damage:?}");
            let (made, found) = content.assembled(&[replica]).expect(&case);
            let [Hole { from, to }] = found.holes[..] else {
                panic!("{case}: {found:?}");
            };
            assert_eq!(from, place, "{case}");
            assert_eq!(to.ordinal, content.end_of(index).ordinal, "{case}");
            assert_eq!(content.damaged(&made), [place], "{case}");
            let (begin, end) = (place.address as usize, to.address as usize);
            assert!(
                made.bytes[..begin] == content.replica.bytes[..begin],
                "{case}"
            );
            assert!(made.bytes[end..] == content.replica.bytes[end..], "{case}");
            assert!(
                made.bytes[begin + 61..end - 1] != vec![0; end - begin - 62],
                "{case}: kept"
            );
        }
    }
}

#[test]
fn a_segment_that_lost_its_header_and_its_first_batch_goes_on_behind_them() {
    let content = Content::new();
    let second = content.second();
    let mut replica = content.replica.clone();
    replica.bytes[SEGMENT as usize..][..64].fill(0);
    let (made, found) = content
        .assembled(&[replica.clone()])
        .expect("its batch tells");
    assert_eq!(found.holes, []);
    assert!(made.bytes == content.replica.bytes);
    // With the batch nothing tells where the segment before it ends.
    let place = content.batches[second];
    replica.bytes[place.address as usize] ^= 1;
    let error = content.assembled(&[replica]).expect_err("nothing follows");
    assert!(
        matches!(error, AssembleError::NoEnd(at) if at.ordinal == place.ordinal),
        "{error}"
    );
}

#[test]
fn without_a_beginning_there_is_nothing() {
    let content = Content::new();
    let mut replica = content.replica.clone();
    replica.bytes[20] ^= 1;
    let mut others = content.replica.clone();
    others.bytes[..SEGMENT_HEADER_BYTES].copy_from_slice(
        &SegmentHeader {
            epoch: Epoch(2),
            ..SegmentHeader::decode(&content.replica.bytes).expect("a header")
        }
        .encode(),
    );
    let replicas = [replica, others];
    assert!(matches!(
        content.assembled(&replicas),
        Err(AssembleError::NoHead)
    ));
    assert!(matches!(content.assembled(&[]), Err(AssembleError::NoHead)));
}

#[test]
fn with_damage_anywhere_exactly_what_is_whole_nowhere_is_missing() {
    let content = Content::new();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below as u64) as usize
    };
    for case in 0..300 {
        let count = 1 + next(3);
        let mut replicas = vec![content.replica.clone(); count];
        // Four neighbours are hit, often the same one at several replicas.
        let near = next(content.batches.len() - 4);
        for _ in 0..next(24) {
            let (at, index) = (next(count), near + next(4));
            let (from, to) = (
                content.batches[index].address,
                content.batches[index + 1].address,
            );
            // Not what lies between two segments.
            let bytes = (to - from).min(600) as usize;
            replicas[at].bytes[from as usize + next(bytes)] ^= 1 << next(8);
        }
        let (made, found) = content.assembled(&replicas).expect("it can be had");
        for (index, place) in content.batches.iter().enumerate() {
            let end = content.end_of(index);
            let in_hole =
                |hole: &Hole| hole.from.address <= place.address && end.ordinal <= hole.to.ordinal;
            let is_lost = found.holes.iter().any(in_hole);
            // Two flips of one bit are none.
            let range = place.address as usize..end.address as usize;
            let whole = &content.replica.bytes[range.clone()];
            let somewhere = replicas
                .iter()
                .any(|replica| &replica.bytes[range.clone()] == whole);
            assert_eq!(
                is_lost, !somewhere,
                "case {case}, batch {index}: {:?}",
                found.holes
            );
        }
        content.damaged(&made);
    }
}
