//! What must hold for any bytes that are found in a group's file.

use std::path::Path;

use kera_log_segments::io::fault::FaultIo;
use kera_log_segments::io::{FileRef, Io, OpenHow};
use kera_log_segments::layout::{
    DurableMark, MARK_BYTES, MARK_SLOT_STRIDE, SEGMENT_HEADER_BYTES, SegmentHeader,
};
use kera_log_segments::scan::{ScanSpec, Scanned, Stop, scan};
use kera_protocol::batch::{BatchHeader, ProducerStamp, crc32c, verify, write_stamp};

/// Scans `data` as a file; then once more with the checksums of headers, batches and marks made to
/// fit, so that the bytes reach the parts behind them.
///
/// # Panics
/// If a rule is broken.
pub fn check(data: &[u8]) {
    file_is_read_right(data);
    let mut forged = data.to_vec();
    if forge(&mut forged).is_some() {
        file_is_read_right(&forged);
    }
}

/// Makes checksums fit. `None` if there is no header to begin with.
fn forge(data: &mut [u8]) -> Option<()> {
    const SIZE_AT: usize = 60;
    const SNAPSHOT_AT: usize = 76;
    let number = |data: &[u8], at: usize| {
        data.get(at..at + 4)?
            .first_chunk::<4>()
            .map(|bytes| u32::from_le_bytes(*bytes) as usize)
    };
    let size = number(data, SIZE_AT)?;
    let snapshot = number(data, SNAPSHOT_AT)?;
    let data_start = SEGMENT_HEADER_BYTES.checked_add(snapshot)?;
    if let Some(bytes) = data.get(SEGMENT_HEADER_BYTES..data_start) {
        let crc = crc32c(bytes).to_le_bytes();
        data[SNAPSHOT_AT + 4..SNAPSHOT_AT + 8].copy_from_slice(&crc);
    }
    let mut segments = 0;
    for start in (0..data.len()).step_by(size.max(SEGMENT_HEADER_BYTES)) {
        seal(data.get_mut(start..start + SEGMENT_HEADER_BYTES)?, 12, 16);
        let mut at = if start == 0 {
            data_start
        } else {
            start + SEGMENT_HEADER_BYTES
        };
        // The batches behind it, as far as they walk.
        while let Some(Ok(header)) = data.get(at..).map(BatchHeader::peek) {
            let stamp = ProducerStamp {
                producer_id: header.producer_id,
                producer_epoch: header.producer_epoch,
                base_sequence: header.base_sequence,
            };
            let Some(batch) = data.get_mut(at..at + header.total_bytes) else {
                break;
            };
            write_stamp(batch, stamp);
            at += header.total_bytes;
        }
        segments += 1;
        if segments == 8 {
            break;
        }
    }
    let header = SegmentHeader::decode(data).ok()?;
    let marks = u64::from(header.segment_size) * u64::from(header.segments);
    for slot in 0..2 {
        let at = usize::try_from(marks + slot * MARK_SLOT_STRIDE).ok()?;
        if let Some(mark) = data.get_mut(at..at.checked_add(MARK_BYTES)?) {
            seal(mark, 8, 16);
        }
    }
    Some(())
}

/// Writes the checksum of `bytes[from..]` at `at`.
fn seal(bytes: &mut [u8], at: usize, from: usize) {
    let crc = crc32c(&bytes[from..]);
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

fn file_of(data: &[u8]) -> FileRef {
    let io = FaultIo::new(1);
    let path = Path::new("/group.log");
    let file = io
        .open(path, OpenHow::CreateNew, false)
        .expect("an empty disk takes a file");
    io.plant(path, 0, data).expect("the file is there");
    file
}

type Seen = Vec<(u64, BatchHeader)>;

fn scanned(file: &FileRef, spec: &ScanSpec) -> Option<(Scanned, Seen)> {
    let mut seen = Vec::new();
    let found = scan(file.as_ref(), spec, |header, at| seen.push((at, *header))).ok()?;
    Some((found, seen))
}

fn every_byte() -> ScanSpec {
    ScanSpec {
        verify_all: true,
        ..ScanSpec::default()
    }
}

fn up_to(limit: u64) -> ScanSpec {
    ScanSpec {
        limit: Some(limit),
        ..ScanSpec::default()
    }
}

fn file_is_read_right(data: &[u8]) {
    let file = file_of(data);
    // A length recorded for another file must do no harm either.
    let _ = scanned(&file, &up_to(data.len() as u64));
    let Some((found, seen)) = scanned(&file, &every_byte()) else {
        return;
    };
    what_was_seen_follows(data, &found, &seen);
    a_recorded_length_gives_the_same(&file, &found, &seen);
    a_cut_behind_the_end_changes_nothing(data, &found, &seen);
    a_mark_is_believed_only_in_its_incarnation(&file, &found);
}

/// The batches lie one after the other, whole, undamaged, of the group's epoch, without a gap.
fn what_was_seen_follows(data: &[u8], found: &Scanned, seen: &Seen) {
    let size = u64::from(found.header.segment_size);
    assert_eq!(found.batches, seen.len() as u64);
    let (mut address, mut ordinal) = (found.data_start, found.header.first_ordinal);
    for (at, header) in seen {
        assert!(*at >= address, "batches overlap at {at}");
        assert_eq!(
            header.base_ordinal, ordinal,
            "a gap before the batch at {at}"
        );
        assert_eq!(header.epoch, found.header.epoch);
        let end = at + header.total_bytes as u64;
        assert_eq!(
            at / size,
            (end - 1) / size,
            "the batch at {at} spans segments"
        );
        let bytes = &data[*at as usize..end as usize];
        verify(bytes).expect("a batch was taken whose checksum does not fit");
        (address, ordinal) = (end, header.next_ordinal());
    }
    assert!(found.end.address >= address);
    assert_eq!(found.end.ordinal, ordinal);
    let sorted = found
        .index
        .entries()
        .windows(2)
        .all(|pair| pair[0].ordinal < pair[1].ordinal && pair[0].address < pair[1].address);
    assert!(sorted, "the index is out of order");
}

fn a_recorded_length_gives_the_same(file: &FileRef, found: &Scanned, seen: &Seen) {
    let limited = up_to(found.end.address);
    let (again, seen_again) = scanned(file, &limited).expect("it was scanned before");
    assert_eq!(again.end, found.end);
    assert_eq!(&seen_again, seen);
    assert!(
        again.stop == Stop::Limit,
        "stopped before the recorded length: {}",
        again.stop
    );
}

/// Bytes above the end are not part of the group, whatever they are.
fn a_cut_behind_the_end_changes_nothing(data: &[u8], found: &Scanned, seen: &Seen) {
    let length = usize::try_from(found.end.address).map_or(data.len(), |end| end.min(data.len()));
    let cut = file_of(&data[..length]);
    let (again, seen_again) = scanned(&cut, &every_byte()).expect("it was scanned before");
    assert_eq!(again.end, found.end);
    assert_eq!(&seen_again, seen);
}

fn a_mark_is_believed_only_in_its_incarnation(file: &FileRef, found: &Scanned) {
    let Some(DurableMark {
        incarnation,
        written,
        synced,
        ..
    }) = found.mark
    else {
        return;
    };
    let own = ScanSpec {
        incarnation,
        ..ScanSpec::default()
    };
    let (trusting, _) = scanned(file, &own).expect("it was scanned before");
    assert!(
        trusting.end.address >= found.end.address,
        "trusting a mark ended sooner than checking every byte"
    );
    let group = u64::from(found.header.segment_size) * u64::from(found.header.segments);
    assert_eq!(
        trusting.damaged,
        trusting.end.address < written.max(synced).min(group)
    );
}
