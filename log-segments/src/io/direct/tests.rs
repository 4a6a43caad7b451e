use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::PathBuf;

use proptest::prelude::*;

use super::layout::MAX_STAGE;
use super::*;
use crate::io::fault::{CrashPlan, Fault, FaultIo};
use crate::io::tests::Bench;
use crate::io::{Directness, Op};

const LIMIT: u64 = 8 * 1024 * 1024;

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len)
        .map(|at| ((at * 31 + salt * 7 + at / 251) % 251) as u8 + 1)
        .collect()
}

fn range(file: &FileRef, offset: u64, bytes: &[u8]) -> DirectRange {
    // In uneven buffers, as batches are.
    let mut bytes = Bytes::copy_from_slice(bytes);
    let mut bufs = Vec::new();
    while bytes.len() > 61 {
        let some = 61 + bytes.len() / 3;
        bufs.push(bytes.split_to(some.min(bytes.len())));
    }
    bufs.push(bytes);
    DirectRange::new(file.clone(), offset, bufs)
}

fn all_good(results: Vec<io::Result<()>>) {
    for result in results {
        result.unwrap();
    }
}

fn read(file: &FileRef, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    let read = file.read_at(&mut bytes, offset).unwrap();
    bytes.truncate(read);
    bytes
}

fn fault(seed: u64) -> (FaultIo, DirectWriter, PathBuf) {
    let io = FaultIo::new(seed);
    let dir = PathBuf::from("/d");
    io.create_dir_all(&dir).unwrap();
    io.sync_dir(&PathBuf::from("/")).unwrap();
    let writer = DirectWriter::new(Arc::new(io.clone()));
    (io, writer, dir)
}

fn open(writer: &DirectWriter, dir: &Path, name: &str) -> FileRef {
    writer
        .open(&dir.join(name), OpenHow::CreateNew, LIMIT)
        .unwrap()
}

/// Appends in odd lengths, a jump to the next segment, fixed places beyond the limit.
fn appends_and_fixed_places(bench: &Bench) {
    let writer = DirectWriter::new(bench.io.clone());
    let files: Vec<FileRef> = (0..5)
        .map(|at| open(&writer, &bench.dir, &format!("f{at}")))
        .collect();
    let mut expected: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
    let mut ends = [0usize; 5];
    for round in 0..30usize {
        let mut ranges = Vec::new();
        for (at, file) in files.iter().enumerate() {
            if (round + at) % 4 == 0 {
                continue;
            }
            if round == 15 {
                ends[at] = 2 * 1024 * 1024;
            }
            let image = expected.entry(at).or_default();
            let bytes = pattern(1 + (round * 977 + at * 3_001) % 20_000, round + at);
            ranges.push(range(file, ends[at] as u64, &bytes));
            image.resize(image.len().max(ends[at] + bytes.len()), 0);
            image[ends[at]..ends[at] + bytes.len()].copy_from_slice(&bytes);
            ends[at] += bytes.len();
            if round % 7 == 0 {
                let place = LIMIT as usize + 4096 * (1 + round % 2);
                let mark = pattern(96, round * 5 + at);
                ranges.push(range(file, place as u64, &mark));
                image.resize(image.len().max(place + 96), 0);
                image[place..place + 96].copy_from_slice(&mark);
            }
        }
        all_good(writer.write_and_sync(ranges));
    }
    for (at, file) in files.iter().enumerate() {
        let image = &expected[&at];
        let found = read(file, 0, image.len());
        assert!(
            found == *image,
            "file {at} differs at {:?}",
            found.iter().zip(image).position(|(a, b)| a != b)
        );
        // Parts at odd places, too.
        for offset in [1, 4_095, 4_097, 70_001] {
            assert!(read(file, offset, 5_000) == image[offset as usize..offset as usize + 5_000]);
        }
        // What the disk holds, seen without what the file remembers.
        let other = bench
            .io
            .open(&bench.dir.join(format!("f{at}")), OpenHow::ReadOnly, false)
            .unwrap();
        assert!(read(&other, 0, image.len()) == *image);
    }
}

#[test]
fn appends_and_fixed_places_blocking() {
    appends_and_fixed_places(&Bench::blocking());
}

#[test]
fn appends_and_fixed_places_uring() {
    if let Some(bench) = Bench::uring() {
        appends_and_fixed_places(&bench);
    }
}

#[test]
fn appends_and_fixed_places_fault() {
    appends_and_fixed_places(&Bench::fault());
}

#[test]
fn appends_and_fixed_places_without_direct_io() {
    let (io, _, dir) = fault(5);
    io.refuse_direct(true);
    let bench = Bench::over(Arc::new(io), dir);
    appends_and_fixed_places(&bench);
}

#[test]
fn a_steady_round_needs_one_sync_for_all_files() {
    let (io, writer, dir) = fault(1);
    let files: Vec<FileRef> = (0..50)
        .map(|at| open(&writer, &dir, &format!("f{at}")))
        .collect();
    let mut syncs = Vec::new();
    for round in 0..40u64 {
        let before = io.counts().syncs;
        let ranges = files
            .iter()
            .map(|file| range(file, round * 1_000, &[7; 1_000]))
            .collect();
        all_good(writer.write_and_sync(ranges));
        syncs.push(io.counts().syncs - before);
    }
    assert_eq!(
        syncs[0], 50,
        "the first round allocates blocks in every file"
    );
    assert!(
        syncs[1..].iter().filter(|count| **count == 1).count() >= 20,
        "{syncs:?}"
    );
    assert!(
        syncs.iter().all(|count| *count >= 1),
        "every round flushes: {syncs:?}"
    );
}

#[test]
fn zeros_stay_within_bounds_and_never_meet_data() {
    let (_, writer, dir) = fault(1);
    let file = open(&writer, &dir, "f");
    // The second range lies where zeros would be staged for the first.
    all_good(writer.write_and_sync(vec![
        range(&file, 0, &[1; 100]),
        range(&file, 20_000, &[2; 100]),
    ]));
    assert_eq!(read(&file, 20_000, 100), [2; 100]);
    // Later ones, too: an older place in front of data known already.
    all_good(writer.write_and_sync(vec![range(&file, 6_000_000, &[3; 100])]));
    all_good(writer.write_and_sync(vec![range(&file, 5_980_000, &[4; 10_000])]));
    assert_eq!(read(&file, 6_000_000, 100), [3; 100]);
    let mut end = 30_000;
    while end < LIMIT - 600_000 {
        all_good(writer.write_and_sync(vec![range(&file, end, &pattern(70_000, 1))]));
        end += 70_000;
        let staged_to = file.len().unwrap();
        assert!(
            staged_to <= end.next_multiple_of(4_096).max(6_004_096) + MAX_STAGE
                && staged_to <= LIMIT
        );
    }
}

#[test]
fn files_are_plain_where_one_flush_is_not_shown_to_do() {
    let (io, writer, dir) = fault(1);
    assert_eq!(
        open(&writer, &dir, "ext4").directness(),
        Directness::Confirmed
    );
    io.set_file_system(0x5846_5342, true);
    assert_eq!(open(&writer, &dir, "xfs").directness(), Directness::Cached);
    io.set_file_system(0xEF53, true);
    io.refuse_direct(true);
    assert_eq!(
        open(&writer, &dir, "refused").directness(),
        Directness::Cached
    );
    let files: Vec<FileRef> = ["xfs", "refused"]
        .iter()
        .map(|name| writer.open(&dir.join(name), OpenHow::ReadWrite, 0).unwrap())
        .collect();
    let before = io.counts().syncs;
    all_good(writer.write_and_sync(files.iter().map(|file| range(file, 3, b"abc")).collect()));
    assert_eq!(io.counts().syncs - before, 2, "each by itself");
}

#[test]
fn unsynced_writes_through_the_file_are_covered_by_the_next_round() {
    for seed in 0..30 {
        let (io, writer, dir) = fault(seed);
        let file = open(&writer, &dir, "f");
        let other = open(&writer, &dir, "g");
        file.write_vectored_at(&[IoSlice::new(b"first, "), IoSlice::new(b"unsynced, ")], 0)
            .unwrap();
        all_good(writer.write_and_sync(vec![
            range(&other, 0, b"x"),
            range(&file, 17, b"then synced"),
        ]));
        let (after, _) = io.crash(&CrashPlan::power_loss(seed));
        assert!(
            after
                .contents(&dir.join("f"))
                .unwrap()
                .starts_with(b"first, unsynced, then synced")
        );
    }
}

#[test]
fn bytes_written_again_change_nothing() {
    let (_, writer, dir) = fault(1);
    let file = open(&writer, &dir, "f");
    let bytes = pattern(30_000, 1);
    all_good(writer.write_and_sync(vec![range(&file, 0, &bytes[..20_000])]));
    // From an older place on, and twice in one round.
    all_good(writer.write_and_sync(vec![
        range(&file, 12_345, &bytes[12_345..25_000]),
        range(&file, 19_000, &bytes[19_000..30_000]),
        range(&file, 21_000, &bytes[21_000..21_500]),
    ]));
    assert!(read(&file, 0, 30_000) == bytes);
}

#[test]
fn a_reopened_file_keeps_what_shares_its_blocks() {
    let (io, writer, dir) = fault(1);
    let bytes = pattern(10_000, 1);
    all_good(writer.write_and_sync(vec![range(&open(&writer, &dir, "f"), 0, &bytes[..5_000])]));
    let writer = DirectWriter::new(Arc::new(io.clone()));
    let file = writer
        .open(&dir.join("f"), OpenHow::ReadWrite, LIMIT)
        .unwrap();
    all_good(writer.write_and_sync(vec![
        range(&file, 5_000, &bytes[5_000..]),
        range(&file, 2_000_001, b"far"),
    ]));
    assert!(read(&file, 0, 10_000) == bytes);
    assert_eq!(read(&file, 2_000_000, 5)[..4], *b"\0far");
    file.set_len(7_000).unwrap();
    all_good(writer.write_and_sync(vec![range(&file, 7_000, &bytes[7_000..8_000])]));
    assert!(read(&file, 0, 8_000) == bytes[..8_000]);
}

/// What lies below the end of a file found on the disk may be a hole: its blocks are allocated by
/// the write, which another file's flush does not make reachable.
#[test]
fn a_reopened_file_is_synced_by_itself_where_it_may_have_holes() {
    for seed in 0..30 {
        let (io, writer, dir) = fault(seed);
        let first = open(&writer, &dir, "f");
        all_good(writer.write_and_sync(vec![
            range(&first, 0, b"start"),
            range(&first, 2_000_000, b"far"),
        ]));
        drop(first);
        let file = writer
            .open(&dir.join("f"), OpenHow::ReadWrite, LIMIT)
            .unwrap();
        let other = open(&writer, &dir, "other");
        all_good(writer.write_and_sync(vec![
            range(&file, 900_000, b"in a hole"),
            range(&other, 0, b"x"),
        ]));
        let (after, _) = io.crash(&CrashPlan::power_loss(seed));
        let found = after.contents(&dir.join("f")).unwrap();
        assert_eq!(found[900_000..900_009], *b"in a hole", "seed {seed}");
    }
}

#[test]
fn a_failed_write_fails_its_file_alone_and_for_good() {
    let (io, writer, dir) = fault(1);
    let (bad, good) = (open(&writer, &dir, "bad"), open(&writer, &dir, "good"));
    io.inject_on("bad", Fault::ShortWrite { nth: 1, bytes: 100 });
    let round = |offset| {
        writer.write_and_sync(vec![
            range(&bad, offset, b"bad 1"),
            range(&good, offset, b"good"),
            range(&bad, offset + 9_000, b"bad 2"),
        ])
    };
    let ok: Vec<bool> = round(0).iter().map(Result::is_ok).collect();
    assert_eq!(ok, [false, true, false]);
    let again = round(50);
    assert_eq!(
        again[0].as_ref().unwrap_err().raw_os_error(),
        Some(libc::EIO)
    );
    assert!(again[1].is_ok());
    assert!(bad.sync_data().is_err() && bad.write_vectored_at(&[IoSlice::new(b"x")], 0).is_err());
    assert!(bad.read_at(&mut [0; 4], 0).is_ok(), "it can still be read");
}

#[test]
fn a_full_disk_is_told_as_such() {
    let (io, writer, dir) = fault(1);
    let file = open(&writer, &dir, "f");
    io.inject(Fault::NoSpaceAfter { bytes: 10_000 });
    let results = writer.write_and_sync(vec![range(&file, 0, &[1; 30_000])]);
    assert_eq!(
        results[0].as_ref().unwrap_err().kind(),
        io::ErrorKind::StorageFull
    );
}

/// The device may drop what it holds of every file when a flush fails, and answers the next one.
#[test]
fn when_a_flush_fails_nothing_of_its_round_counts() {
    for seed in 0..30 {
        let (io, writer, dir) = fault(seed);
        let names = ["a", "b", "c"];
        let files = names.map(|name| open(&writer, &dir, name));
        let round = |offset, files: &[FileRef]| {
            let ranges = files.iter().map(|file| range(file, offset, &[5; 50]));
            writer.write_and_sync(ranges.collect())
        };
        all_good(round(0, &files));
        io.inject(Fault::FailSync { nth: 1 });
        let results = round(50, &files);
        let (after, _) = io.crash(&CrashPlan::power_loss(seed));
        for (name, result) in names.iter().zip(&results) {
            let found = after.contents(&dir.join(name)).unwrap();
            assert_eq!(found[..50], [5; 50], "seed {seed}: {name}");
            assert!(
                result.is_err() || found[50..100] == [5; 50],
                "seed {seed}: {name} was acknowledged and lost"
            );
        }
        assert!(results.iter().all(Result::is_err), "{results:?}");
        // None of them takes more; a file that was not written then does.
        assert!(round(100, &files).iter().all(Result::is_err));
        all_good(round(0, &[open(&writer, &dir, "d")]));
    }
}

#[test]
fn empty_rounds_and_ranges_do_nothing_wrong() {
    let (_, writer, dir) = fault(1);
    assert!(writer.write_and_sync(Vec::new()).is_empty());
    let file = open(&writer, &dir, "f");
    all_good(writer.write_and_sync(vec![
        DirectRange::new(file.clone(), 5, Vec::new()),
        range(&file, 10, b"ab"),
        DirectRange::new(file.clone(), 11, vec![Bytes::new()]),
    ]));
    assert_eq!(read(&file, 9, 4), b"\0ab\0");
    let beyond = DirectRange::new(file.clone(), u64::MAX - 1, vec![Bytes::from_static(b"abc")]);
    assert_eq!(
        writer.write_and_sync(vec![beyond])[0]
            .as_ref()
            .unwrap_err()
            .kind(),
        io::ErrorKind::InvalidInput
    );
}

#[test]
fn rounds_from_several_threads_over_the_same_files() {
    let Some(bench) = Bench::uring() else { return };
    let writer = DirectWriter::new(bench.io.clone());
    let files: Vec<FileRef> = (0..4)
        .map(|at| open(&writer, &bench.dir, &format!("f{at}")))
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (writer, files) = (&writer, &files);
            scope.spawn(move || {
                for round in 0..25usize {
                    // Neighbours within one block, written by different threads.
                    let offset = (round * 4 + thread) as u64 * 300;
                    let order: Vec<&FileRef> = if thread % 2 == 0 {
                        files.iter().collect()
                    } else {
                        files.iter().rev().collect()
                    };
                    let ranges = order
                        .iter()
                        .map(|file| range(file, offset, &pattern(300, round * 4 + thread)));
                    all_good(writer.write_and_sync(ranges.collect()));
                }
            });
        }
    });
    let expected: Vec<u8> = (0..100).flat_map(|part| pattern(300, part)).collect();
    for file in &files {
        assert!(read(file, 0, expected.len()) == expected);
    }
}

/// What a round acknowledged survives power loss, whatever came after it.
fn acknowledged_survives(
    seed: u64,
    steps: &[(usize, usize, bool)],
    one_flush: bool,
    magic: u64,
) -> Result<(), String> {
    let (io, writer, dir) = fault(seed);
    io.set_file_system(magic, one_flush);
    let files: Vec<FileRef> = (0..4)
        .map(|at| open(&writer, &dir, &format!("f{at}")))
        .collect();
    let mut appended: Vec<Vec<u8>> = vec![Vec::new(); files.len()];
    let mut acknowledged = [0usize; 4];
    // A file takes no more after a failure; where it is written through the page cache its group sees to that.
    let mut failed = [false; 4];
    io.inject(Fault::FailSync { nth: 1 + seed % 31 });
    io.inject(Fault::StopAfter {
        ops: 20 + seed % 200,
    });
    for (at, len, second) in steps {
        let mut ranges = Vec::new();
        for at in [Some(*at % 4), second.then_some((*at + 1) % 4)]
            .into_iter()
            .flatten()
            .filter(|at| !failed[*at])
        {
            let bytes = pattern(*len, appended[at].len());
            ranges.push((at, range(&files[at], appended[at].len() as u64, &bytes)));
            appended[at].extend(bytes);
        }
        let (owners, ranges): (Vec<usize>, Vec<DirectRange>) = ranges.into_iter().unzip();
        for (at, result) in owners.into_iter().zip(writer.write_and_sync(ranges)) {
            match result {
                Ok(()) => acknowledged[at] = appended[at].len(),
                Err(_) => failed[at] = true,
            }
        }
    }
    for crash in 0..4 {
        let (after, _) = io.crash(&CrashPlan::power_loss(seed.wrapping_add(crash)));
        for at in 0..files.len() {
            let found = after
                .contents(&dir.join(format!("f{at}")))
                .unwrap_or_default();
            if found.get(..acknowledged[at]) != Some(&appended[at][..acknowledged[at]]) {
                return Err(format!(
                    "file {at} lost some of {} acknowledged bytes",
                    acknowledged[at]
                ));
            }
        }
    }
    Ok(())
}

fn steps() -> impl Strategy<Value = Vec<(usize, usize, bool)>> {
    prop::collection::vec((0usize..4, 1usize..9_000, any::<bool>()), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn acknowledged_ranges_survive_power_loss(seed in any::<u64>(), steps in steps()) {
        prop_assert_eq!(acknowledged_survives(seed, &steps, true, EXT4_MAGIC), Ok(()));
    }

    #[test]
    fn acknowledged_ranges_survive_where_flushes_cover_one_file(seed in any::<u64>(), steps in steps()) {
        prop_assert_eq!(acknowledged_survives(seed, &steps, false, 0x9123_683e), Ok(()));
    }
}

/// The check above can fail: a file system that breaks the assumption is caught.
#[test]
fn a_file_system_that_breaks_the_promise_is_caught() {
    let steps: Vec<_> = (0..40).map(|at| (at, 700, true)).collect();
    let caught = (0..20)
        .filter(|seed| acknowledged_survives(seed + 180, &steps, false, EXT4_MAGIC).is_err())
        .count();
    assert!(caught > 5, "caught {caught} of 20");
}

#[test]
fn a_direct_file_serves_engines_that_know_nothing_of_it() {
    let (io, writer, dir) = fault(1);
    let file = open(&writer, &dir, "f");
    let done = io.run(vec![
        Op::Write {
            file: file.clone(),
            offset: 10,
            bufs: vec![Bytes::from_static(b"odd place")],
        },
        Op::SyncData { file: file.clone() },
        Op::Read {
            file: file.clone(),
            offset: 12,
            buf: io.buffer(100),
            len: 7,
        },
    ]);
    assert_eq!(&done[2].buf.as_ref().unwrap()[..7], b"d place");
}
