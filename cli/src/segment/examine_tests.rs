use std::path::PathBuf;

use kera_log_segments::layout::FOOTER_OFFSET;
use kera_protocol::batch::{BatchBuilder, Compression, NewRecord, ProducerStamp, patch};
use kera_protocol::ids::{Epoch, GroupId, LaneId, StreamId, StreamletId};
use uuid::Uuid;

use super::*;

const SEGMENT: u32 = 64 << 10;

/// A group file of two segments with three batches of ten records in the first and one in the second.
struct Sample {
    _directory: tempfile::TempDir,
    path: PathBuf,
    bytes: Vec<u8>,
    /// Where each batch begins, and where the last one ends.
    batches: Vec<usize>,
}

fn header(segment: u32, first_ordinal: u64) -> SegmentHeader {
    SegmentHeader {
        stream: StreamId::from_slice(&[7; 16]).unwrap(),
        streamlet: StreamletId(1),
        lane: LaneId(2),
        group: GroupId(3),
        generation: 0,
        segment,
        epoch: Epoch(4),
        segment_size: SEGMENT,
        segments: 2,
        first_ordinal,
        snapshot_bytes: 0,
        snapshot_crc: 0,
        created_ms: 1_700_000_000_000,
        ack: kera_log_segments::group::AckPolicy::Written,
        marked: false,
        in_order: false,
    }
}

fn batch(base_ordinal: u64, compression: Compression) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    for _ in 0..10 {
        let record = NewRecord {
            value: Some(&[b'x'; 200]),
            timestamp: 1,
            ..NewRecord::default()
        };
        builder.push(&record).unwrap();
    }
    let mut bytes = builder
        .finish(compression, ProducerStamp::NONE)
        .unwrap()
        .to_vec();
    patch(&mut bytes, base_ordinal, Epoch(4));
    bytes
}

impl Sample {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = vec![0; 2 * SEGMENT as usize + FOOTER_OFFSET as usize];
        let mut batches = Vec::new();
        bytes[..SEGMENT_HEADER_BYTES].copy_from_slice(&header(0, 100).encode());
        let mut at = SEGMENT_HEADER_BYTES;
        for number in 0..3 {
            let codec = if number == 1 {
                Compression::Lz4
            } else {
                Compression::None
            };
            let batch = batch(100 + 10 * number, codec);
            bytes[at..at + batch.len()].copy_from_slice(&batch);
            batches.push(at);
            at += batch.len();
        }
        let second = SEGMENT as usize;
        bytes[second..second + SEGMENT_HEADER_BYTES].copy_from_slice(&header(1, 130).encode());
        at = second + SEGMENT_HEADER_BYTES;
        let last = batch(130, Compression::None);
        bytes[at..at + last.len()].copy_from_slice(&last);
        batches.extend([at, at + last.len()]);
        let path = directory.path().join("3.0.log");
        Self {
            _directory: directory,
            path,
            bytes,
            batches,
        }
    }

    fn examine(&self) -> Examination {
        std::fs::write(&self.path, &self.bytes).unwrap();
        match examine(&self.path, 2).unwrap() {
            Examined::Group(found) => *found,
            Examined::Ahead(found) => panic!("{found:?}"),
        }
    }

    fn mark(&mut self, mark: DurableMark) {
        let at = mark.slot_offset(2 * u64::from(SEGMENT)) as usize;
        let bytes = mark.encode();
        self.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
    }
}

#[test]
fn a_sound_file() {
    let found = Sample::new().examine();
    assert_eq!(found.state, State::Sound, "{:?}", found.fault);
    assert_eq!((found.batches, found.records), (4, 40));
    assert_eq!((found.first_ordinal, found.end_ordinal), (100, 140));
    assert_eq!(
        (found.streamlet, found.lane, found.group, found.epoch),
        (1, 2, 3, 4)
    );
    let segments: Vec<_> = found
        .segments
        .iter()
        .map(|s| (s.segment, s.batches, s.records))
        .collect();
    assert_eq!(segments, [(0, 3, 30), (1, 1, 10)]);
    assert_eq!(found.listed.len(), 2);
    assert_eq!(found.listed[1].compression, "lz4");
    assert_eq!(found.listed[1].base_ordinal, 110);
}

#[test]
fn a_flipped_bit_before_whole_batches_is_damage_and_named() {
    let mut sample = Sample::new();
    let at = sample.batches[1];
    sample.bytes[at + 70] ^= 1;
    let found = sample.examine();
    assert_eq!(found.state, State::Damaged);
    let fault = found.fault.unwrap();
    assert_eq!(
        (fault.offset, fault.segment, fault.batch, fault.ordinal),
        (at as u64, 0, 1, 110)
    );
    assert!(fault.reason.contains("checksum"), "{}", fault.reason);
    assert_eq!(found.records, 10);
}

#[test]
fn a_flipped_bit_in_the_last_batch_is_torn_unless_it_is_recorded_as_durable() {
    let mut sample = Sample::new();
    let last = sample.batches[3];
    sample.bytes[last + 100] ^= 1;
    let found = sample.examine();
    assert_eq!(found.state, State::Torn);
    let fault = found.fault.unwrap();
    assert_eq!(
        (fault.offset, fault.segment, fault.position),
        (last as u64, 1, 96)
    );

    let end = sample.batches[4] as u64;
    sample.mark(DurableMark {
        sequence: 1,
        written: end,
        incarnation: booted(Uuid::from_u128(9)),
        ..DurableMark::default()
    });
    assert_eq!(
        sample.examine().state,
        State::Torn,
        "written before another boot proves nothing"
    );
    sample.mark(DurableMark {
        sequence: 2,
        written: end,
        incarnation: booted(boot_id()),
        ..DurableMark::default()
    });
    assert_eq!(sample.examine().state, State::Damaged);
    sample.mark(DurableMark {
        sequence: 3,
        synced: end,
        incarnation: booted(Uuid::from_u128(9)),
        ..DurableMark::default()
    });
    assert_eq!(sample.examine().state, State::Damaged);
}

#[test]
fn missing_ends_are_found_by_the_footer() {
    let mut sample = Sample::new();
    let (last, end) = (sample.batches[3], sample.batches[4]);
    let footer = Footer {
        length: end as u64,
        end_ordinal: 140,
        max_timestamp: 1,
        segment_ends: vec![last as u32],
        index: kera_log_segments::footer::SparseIndex::default(),
        lane_state: Vec::new(),
    };
    let footer = footer.encode();
    sample.bytes.extend_from_slice(&footer);
    let found = sample.examine();
    assert_eq!(found.state, State::Sound, "{:?}", found.fault);
    assert_eq!(found.footer.unwrap().length, end as u64);

    sample.bytes[last..end].fill(0);
    let found = sample.examine();
    assert_eq!(found.state, State::Damaged);
    let reason = found.fault.unwrap().reason;
    assert!(reason.contains("the footer says"), "{reason}");
}

#[test]
fn a_bad_segment_header_is_named() {
    let mut sample = Sample::new();
    sample.bytes[SEGMENT as usize + 20] ^= 1;
    let fault = sample.examine().fault.unwrap();
    assert_eq!((fault.offset, fault.segment), (u64::from(SEGMENT), 1));
}

#[test]
fn records_that_lie_under_a_good_checksum_are_found() {
    let mut sample = Sample::new();
    let (at, end) = (
        sample.batches[2],
        sample.batches[2] + (sample.batches[1] - sample.batches[0]),
    );
    // The first record's length: one more than it is. The checksum is made to fit.
    sample.bytes[at + 61] = sample.bytes[at + 61].wrapping_add(2);
    let crc = kera_protocol::batch::crc32c(&sample.bytes[at + 21..end]);
    sample.bytes[at + 17..at + 21].copy_from_slice(&crc.to_be_bytes());
    let found = sample.examine();
    assert_eq!(found.state, State::Damaged);
    assert_eq!(found.fault.unwrap().offset, at as u64);
}

#[test]
fn a_file_made_ahead_of_its_use_is_sound_and_one_that_lost_its_header_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("4.0.log");
    let mark = DurableMark::default();
    let at = mark.slot_offset(2 * u64::from(SEGMENT)) as usize;
    let mut made = vec![0; at + MARK_BYTES];
    made[at..].copy_from_slice(&mark.encode());
    let look = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        examine(&path, 0)
    };
    let found = look(&made).unwrap();
    assert!(found.is_sound());
    assert!(crate::segment::show::verdict(&found).contains("4.0.log: ahead"));
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(
        (&json["state"], &json["file_bytes"]),
        (&"ahead".into(), &made.len().into())
    );
    // Room for the footer and the second slot, as where files are written past the page cache.
    let mut long = made.clone();
    long.resize(at + FOOTER_OFFSET as usize, 0);
    assert!(look(&long).unwrap().is_sound());

    // Its header was lost: a byte of a batch, a footer, a mark that says more, or no mark at all.
    for (what, place) in [("a batch", 500), ("a footer", long.len() - 1)] {
        let mut lost = long.clone();
        lost[place] = 1;
        assert!(look(&lost).is_err(), "{what}");
    }
    let later = DurableMark {
        sequence: 2,
        written: 96,
        ..DurableMark::default()
    };
    let mut lost = made.clone();
    lost[at..].copy_from_slice(&later.encode());
    assert!(look(&lost).is_err());
    assert!(look(&vec![0; made.len()]).is_err());
    assert!(look(b"").is_err());
}

#[test]
fn other_files_are_refused_with_their_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notes.txt");
    std::fs::write(&path, "not a log").unwrap();
    let said = format!("{:?}", examine(&path, 0).unwrap_err());
    assert!(said.contains("notes.txt"), "{said}");
    let said = format!(
        "{:?}",
        examine(&directory.path().join("none"), 0).unwrap_err()
    );
    assert!(said.contains("cannot open it"), "{said}");
    let said = format!("{:?}", examine(directory.path(), 0).unwrap_err());
    assert!(said.contains("it is a directory"), "{said}");
}

fn booted(boot_id: Uuid) -> Incarnation {
    Incarnation {
        boot_id,
        ..Incarnation::default()
    }
}
