//! A scan finds what a writer wrote, and says why it stops where it stops.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kera_log_segments::check::{CheckSpec, Checked, Progress, check};
use kera_log_segments::group::{AckPolicy, Group, GroupFull, GroupSpec};
use kera_log_segments::head::LaneHead;
use kera_log_segments::io::fault::{FaultIo, Flip};
use kera_log_segments::io::{File, Io, OpenHow, ReadAt};
use kera_log_segments::layout::{LayoutError, SEGMENT_HEADER_BYTES};
use kera_log_segments::local_writer::Turn;
use kera_log_segments::pool::ChunkPool;
use kera_log_segments::scan::{ScanError, ScanSpec, Scanned, Stop, scan};
use kera_protocol::batch::{
    BatchBuilder, BatchError, BatchHeader, Compression, HEADER_BYTES, NewRecord, ProducerStamp,
    patch,
};
use kera_protocol::ids::{Epoch, GroupId, Incarnation, LaneId, LaneKey, StreamId, StreamletId};
use uuid::Uuid;

const SEGMENT: u32 = 256 * 1024;
const HERE: Incarnation = Incarnation {
    store_id: Uuid::from_u128(1),
    boot_id: Uuid::from_u128(2),
};

struct Written {
    io: FaultIo,
    group: Arc<Group>,
    /// Address and length of each batch.
    batches: Vec<(u64, u64)>,
}

fn batch(size: usize, records: u32) -> Vec<u8> {
    let value = vec![0x5a; size];
    let mut builder = BatchBuilder::new();
    for record in 0..records {
        let record = NewRecord {
            value: Some(&value),
            timestamp: i64::from(record),
            ..NewRecord::default()
        };
        builder.push(&record).expect("room");
    }
    let batch = builder.finish(Compression::None, ProducerStamp::NONE);
    batch.expect("records").to_vec()
}

/// Fills a group of three segments.
fn written() -> Written {
    written_of(SEGMENT)
}

fn written_of(segment_size: u32) -> Written {
    let io = FaultIo::new(1);
    io.create_dir_all(Path::new("/lane")).expect("a directory");
    let lane = LaneKey {
        stream: StreamId::from_slice(&[6; 16]).expect("16 bytes"),
        streamlet: StreamletId(1),
        lane: LaneId(2),
    };
    let spec = GroupSpec {
        lane,
        group: GroupId(3),
        generation: 0,
        epoch: Epoch(4),
        segment_size,
        segments: 3,
        first_ordinal: 1000,
        created_ms: 5,
        path: "/lane/group".into(),
    };
    let head = Arc::new(LaneHead::new(1000));
    let pool = ChunkPool::new(8 << 20).expect("address space");
    let snapshot = vec![9; 300];
    let (group, mut writer) = Group::create(
        spec,
        AckPolicy::Written,
        head.clone(),
        Arc::new(io.clone()),
        pool,
        snapshot,
    );
    head.push_group(group.clone());
    group.set_recorded();
    let mut batches = Vec::new();
    for step in 0.. {
        let mut bytes = batch(step * 997 % 30_000, 1 + step as u32 % 5);
        patch(&mut bytes, writer.next_ordinal(), Epoch(4));
        let header = BatchHeader::peek(&bytes).expect("a batch");
        match writer.append(&bytes, &header, 5, 1) {
            Ok(place) => batches.push((place.address, bytes.len() as u64)),
            Err(GroupFull::Roll) => break,
            Err(GroupFull::NoMemory) => panic!("no memory"),
        }
        assert_eq!(group.write_out(), Turn::Written);
    }
    writer.freeze();
    assert_eq!(head.advance(), group.end().ordinal);
    Written { io, group, batches }
}

impl Written {
    fn scan(&self, spec: &ScanSpec) -> Result<Scanned, ScanError> {
        let path = &self.group.spec().path;
        let file = self
            .io
            .open(path, OpenHow::ReadOnly, false)
            .expect("a file");
        scan(&*file, spec, |_, _| {})
    }

    fn found(&self) -> Scanned {
        self.scan(&self.open()).expect("a header")
    }

    fn open(&self) -> ScanSpec {
        ScanSpec::open(self.group.spec(), HERE)
    }

    fn plant(&self, at: u64, bytes: &[u8]) {
        self.io
            .plant(&self.group.spec().path, at, bytes)
            .expect("the file");
    }
}

#[test]
fn a_scan_finds_what_the_writer_wrote() {
    let w = written();
    let mut seen = Vec::new();
    let file = w.group.file().expect("a file");
    let found = scan(&*file, &w.open(), |header, at| {
        seen.push((at, header.total_bytes as u64));
    })
    .expect("a header");
    assert_eq!(seen, w.batches);
    assert_eq!(
        (found.end, found.batches),
        (w.group.end(), w.batches.len() as u64)
    );
    assert_eq!(
        (found.stop.clone(), found.damaged),
        (Stop::EndOfData, false)
    );
    assert_eq!(found.data_start, SEGMENT_HEADER_BYTES as u64 + 300);
    assert_eq!(
        (found.header.ack, found.snapshot.len()),
        (AckPolicy::Written, 300)
    );
    assert_eq!(found.max_timestamp, w.group.max_timestamp());
    // Index and segment ends are those that the writer kept.
    w.group.write_footer(vec![1, 2]).expect("a footer");
    let footer = w.group.read_footer().expect("a file");
    let footer = footer.expect("a footer");
    assert_eq!(
        (footer.index, footer.segment_ends),
        (found.index, found.segment_ends)
    );
    // Headers alone tell the same.
    w.group.write_mark(&HERE).expect("a mark");
    let marked = w.found();
    assert_eq!(marked.mark.map(|m| m.written), Some(w.group.end().address));
    assert_eq!((marked.end, marked.batches), (found.end, found.batches));
}

#[test]
fn a_scan_says_why_it_stops() {
    let (at, _) = written().batches[7];
    let stop_after = |change: &dyn Fn(&Written)| {
        let w = written();
        change(&w);
        let found = w.found();
        let expected = w
            .batches
            .iter()
            .filter(|(address, _)| *address < found.end.address);
        assert_eq!(found.batches, expected.count() as u64);
        (found.end.address, found.stop)
    };
    let mut foreign = batch(10, 1);
    patch(&mut foreign, 1234, Epoch(4));
    for (change, expected) in [
        // Zeros: the segment ends, but the next one does not follow.
        (vec![0; HEADER_BYTES], "segment 1"),
        (foreign[..8].to_vec(), "should follow"),
        ([&[0; 16], &[7][..]].concat(), "magic"),
    ] {
        let (end, stop) = stop_after(&|w| w.plant(at, &change));
        let text = stop.to_string();
        assert_eq!(end, at, "{text}");
        assert!(text.contains(expected), "{text}");
    }
    let (_, stop) = stop_after(&|w| w.plant(at + 12, &[0, 0, 0, 3]));
    let epochs = Stop::Epoch {
        expected: Epoch(4),
        found: Epoch(3),
    };
    assert_eq!(stop, epochs);
    let (_, stop) = stop_after(&|w| w.plant(at + 70, &[0xff]));
    assert!(
        matches!(stop, Stop::Batch(BatchError::BadCrc { .. })),
        "{stop}"
    );
    let (_, stop) = stop_after(&|w| w.plant(at + 8, &[0, 3, 0xff, 0xff]));
    assert!(
        matches!(stop, Stop::Batch(BatchError::Truncated { .. })),
        "{stop}"
    );
    // The header of the second segment: its ordinal belongs elsewhere, or a bit of it has flipped.
    let second = u64::from(SEGMENT);
    let (end, stop) = stop_after(&|w| {
        let path = w.group.spec().path.clone();
        let flip = Flip {
            path,
            offset: second + 64,
            bit: 1,
        };
        w.io.flip(&flip).expect("the file");
    });
    assert!(
        end < second && matches!(stop, Stop::Segment { segment: 1, .. }),
        "{end} {stop}"
    );
}

#[test]
fn a_mark_makes_a_short_scan_damage() {
    let w = written();
    w.group.write_mark(&HERE).expect("a mark");
    let (at, _) = w.batches[7];
    w.plant(at, &[0; HEADER_BYTES]);
    assert!(w.found().damaged, "within the incarnation");
    let elsewhere = ScanSpec {
        incarnation: Incarnation::default(),
        ..w.open()
    };
    assert!(
        !w.scan(&elsewhere).expect("a header").damaged,
        "elsewhere only what was synced binds"
    );
    let w = written();
    w.group.sync().expect("a sync");
    w.group.write_mark(&HERE).expect("a mark");
    w.plant(at, &[0; HEADER_BYTES]);
    assert!(
        w.scan(&elsewhere).expect("a header").damaged,
        "synced bytes bind everywhere"
    );
}

#[test]
fn another_groups_file_is_refused() {
    let w = written();
    let other = ScanSpec {
        group: Some(GroupId(8)),
        ..w.open()
    };
    assert!(matches!(w.scan(&other), Err(ScanError::Foreign { .. })));
    w.plant(SEGMENT_HEADER_BYTES as u64 + 5, &[1]);
    assert!(matches!(w.scan(&w.open()), Err(ScanError::BadSnapshot)));
    w.plant(20, &[1, 2, 3]);
    let error = w.scan(&w.open());
    assert!(matches!(
        error,
        Err(ScanError::NoHeader(LayoutError::BadChecksum(_)))
    ));
}

impl Written {
    /// Checked in stretches of `bytes` bytes; where it came to and what is wrong there.
    fn checked(&self, bytes: u64) -> Checked {
        let spec = self.group.spec();
        let check_spec = CheckSpec {
            stream: spec.lane.stream,
            streamlet: spec.lane.streamlet,
            group: spec.group,
            epoch: spec.epoch,
            end: self.group.end(),
            generation: spec.generation,
        };
        let file = self.io.open(&spec.path, OpenHow::ReadOnly, false);
        let file = file.expect("a file");
        let mut from = Progress::default();
        loop {
            let checked = check(&*file, &check_spec, from, bytes).expect("it is read");
            if checked.wrong.is_some() || checked.to.place == self.group.end() {
                return checked;
            }
            assert!(checked.to.place.address > from.place.address);
            from = checked.to;
        }
    }
}

#[test]
fn the_digest_does_not_depend_on_where_stretches_end() {
    let w = written();
    let whole = w.checked(u64::MAX);
    assert_eq!(whole.wrong, None);
    for bytes in [1, 1000, 70_000, 256 << 10] {
        assert_eq!(w.checked(bytes), whole, "{bytes}");
    }
}

#[test]
fn a_check_finds_any_flipped_bit_that_counts_and_says_where() {
    let w = written();
    let whole = w.checked(u64::MAX);
    let at_batch = |n: usize, within: u64| w.batches[n].0 + within;
    let places = [
        (40, 0),
        (SEGMENT_HEADER_BYTES as u64 + 17, 0),
        (at_batch(0, 3), at_batch(0, 0)),
        (at_batch(5, 14), at_batch(5, 0)),
        (at_batch(7, 100), at_batch(7, 0)),
        (
            at_batch(w.batches.len() - 1, 70),
            at_batch(w.batches.len() - 1, 0),
        ),
    ];
    for (at, said) in places {
        let mut byte = [0];
        let file = w.group.file().expect("a file");
        file.read_at(&mut byte, at).expect("it is read");
        w.plant(at, &[byte[0] ^ 0x10]);
        let found = w.checked(50_000);
        assert!(found.wrong.is_some(), "{at}");
        assert_eq!(found.to.place.address, said, "{at}");
        w.plant(at, &byte);
        assert_eq!(w.checked(50_000), whole);
    }
    // Far behind the last batch of a segment nothing counts.
    let last = w.batches.iter().rfind(|(at, _)| *at < u64::from(SEGMENT));
    let (at, len) = last.expect("a first segment");
    let gap = at + len + HEADER_BYTES as u64;
    assert!(gap < u64::from(SEGMENT), "there is a gap");
    w.plant(gap, &[7]);
    assert_eq!(w.checked(50_000), whole);
}

/// Counts the bytes that are read.
#[derive(Debug)]
struct Counted<'a> {
    file: &'a dyn File,
    read: AtomicU64,
}

impl ReadAt for Counted<'_> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let read = self.file.read_at(buf, offset)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}

/// Also where batches are about as long as what is read at once, of which one ends in every block.
#[test]
fn a_scan_reads_each_byte_once() {
    let w = written_of(5 * SEGMENT);
    let longest = w.batches.iter().map(|(_, len)| *len).max();
    assert!(longest > Some(90_000), "{longest:?}");
    let file = w.group.file().expect("a file");
    let counted = Counted {
        file: &*file,
        read: AtomicU64::new(0),
    };
    let found = scan(&counted, &w.open(), |_, _| {}).expect("a header");
    assert_eq!(found.end, w.group.end());
    let read = counted.read.into_inner();
    let whole = file.len().expect("a length");
    assert!(read <= whole + 1024, "{read} bytes of {whole}");
}

#[test]
fn a_check_misses_a_batch_that_the_close_counted() {
    let w = written();
    let (at, len) = w.batches[w.batches.len() - 1];
    w.plant(at, &vec![0; len as usize]);
    let found = w.checked(u64::MAX);
    assert_eq!(found.to.place.address, at);
    assert!(found.wrong.is_some());
}
