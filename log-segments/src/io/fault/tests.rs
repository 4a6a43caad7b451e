use std::io::{ErrorKind, IoSlice};
use std::path::Path;

use super::*;

fn machine(seed: u64) -> FaultIo {
    let io = FaultIo::new(seed);
    io.create_dir_all(Path::new("/d")).unwrap();
    io.sync_dir(Path::new("/")).unwrap();
    io
}

fn create(io: &FaultIo, path: &str) -> FileRef {
    io.open(Path::new(path), OpenHow::CreateNew, false).unwrap()
}

fn put(file: &FileRef, offset: u64, bytes: &[u8]) -> io::Result<()> {
    file.write_vectored_at(&[IoSlice::new(bytes)], offset)
}

fn contents(io: &FaultIo, path: &str) -> Option<Vec<u8>> {
    io.contents(Path::new(path))
}

/// A bit of everything, with failures, and a crash at the end.
fn scenario(seed: u64) -> (u64, u64, Vec<Flip>) {
    let io = machine(seed);
    io.inject(Fault::FailSync { nth: 3 });
    io.inject_on("f1", Fault::ShortWrite { nth: 2, bytes: 700 });
    io.inject(Fault::StopAfter { ops: 60 });
    let files: Vec<FileRef> = (0..3).map(|at| create(&io, &format!("/d/f{at}"))).collect();
    for round in 0..20u64 {
        for (at, file) in files.iter().enumerate() {
            let _ = put(file, round * 1_500, &vec![round as u8 + 1; 1_400 + at]);
        }
        let _ = files[round as usize % 3].sync_data();
    }
    let plan = CrashPlan {
        random_flips: 3,
        ..CrashPlan::power_loss(seed)
    };
    let (after, flips) = io.crash(&plan);
    (io.fingerprint(), after.fingerprint(), flips)
}

#[test]
fn the_same_seed_gives_the_same_machine() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let first = scenario(seed);
        assert_eq!(first, scenario(seed), "seed {seed}");
        seen.insert(first.1);
    }
    assert!(
        seen.len() > 10,
        "different seeds leave different bytes: {}",
        seen.len()
    );
}

#[test]
fn a_killed_process_loses_no_completed_write() {
    let io = machine(1);
    let file = create(&io, "/d/f");
    put(&file, 0, b"written").unwrap();
    let (after, _) = io.crash(&CrashPlan::kill());
    assert_eq!(contents(&after, "/d/f").unwrap(), b"written");
    // Still not on the disk: some later power loss takes it.
    let lost = (0..20).any(|seed| {
        let (later, _) = after.crash(&CrashPlan::power_loss(seed));
        contents(&later, "/d/f").is_none_or(|bytes| bytes != b"written")
    });
    assert!(lost);
}

#[test]
fn power_loss_keeps_what_was_synced_and_only_tears_the_rest() {
    let (mut lost, mut kept, mut torn) = (0, 0, 0);
    for seed in 0..200 {
        let io = machine(seed);
        let file = create(&io, "/d/f");
        put(&file, 0, &[1; 3_000]).unwrap();
        file.sync_data().unwrap();
        put(&file, 3_000, &[2; 5_000]).unwrap();
        put(&file, 8_000, &[3; 5_000]).unwrap();
        let (after, _) = io.crash(&CrashPlan::power_loss(seed));
        let bytes = contents(&after, "/d/f").unwrap();
        assert!(
            bytes.len() >= 3_000 && bytes[..3_000] == [1; 3_000],
            "seed {seed}"
        );
        let rest = &bytes[3_000..];
        assert!(rest.iter().all(|byte| [0, 2, 3].contains(byte)));
        match (rest.is_empty(), rest.len() == 10_000 && !rest.contains(&0)) {
            (true, _) => lost += 1,
            (_, true) => kept += 1,
            _ => torn += 1,
        }
    }
    assert!(
        lost > 20 && kept > 20 && torn > 20,
        "lost {lost}, kept {kept}, torn {torn}"
    );
}

#[test]
fn unsynced_writes_survive_out_of_order_and_in_sectors() {
    let (mut reordered, mut sectors) = (false, false);
    for seed in 0..200 {
        let io = machine(seed);
        let file = create(&io, "/d/f");
        put(&file, 0, &[9; 8_192]).unwrap();
        file.sync_data().unwrap();
        put(&file, 0, &[1; 4_096]).unwrap();
        put(&file, 4_096, &[2; 4_096]).unwrap();
        let bytes = contents(&io.crash(&CrashPlan::power_loss(seed)).0, "/d/f").unwrap();
        reordered |= bytes[..4_096].contains(&9) && bytes[4_096..].contains(&2);
        for sector in bytes.chunks(512) {
            assert!(
                sector.iter().all(|byte| *byte == sector[0]),
                "a sector is written whole or not at all"
            );
        }
        sectors |= bytes[..4_096].contains(&1) && bytes[..4_096].contains(&9);
    }
    assert!(reordered && sectors);
}

#[test]
fn stale_bytes_show_where_a_file_grew() {
    let shown = (0..50).any(|seed| {
        let io = machine(seed);
        let file = create(&io, "/d/f");
        file.sync_data().unwrap();
        put(&file, 0, &[1; 8_192]).unwrap();
        let plan = CrashPlan {
            stale: b"stale!".to_vec(),
            ..CrashPlan::power_loss(seed)
        };
        let bytes = contents(&io.crash(&plan).0, "/d/f").unwrap();
        bytes.windows(6).any(|window| window == b"stale!")
    });
    assert!(shown);
}

#[test]
fn names_are_durable_after_a_sync_of_file_or_directory() {
    let survives = |prepare: &dyn Fn(&FaultIo), path: &str| {
        (0..30)
            .filter(|seed| {
                let io = machine(*seed);
                prepare(&io);
                io.crash(&CrashPlan::power_loss(*seed))
                    .0
                    .exists(Path::new(path))
            })
            .count()
    };
    let unsynced = survives(&|io| drop(create(io, "/d/f")), "/d/f");
    assert!(unsynced > 0 && unsynced < 30, "{unsynced}");
    let file_synced = survives(&|io| create(io, "/d/f").sync_data().unwrap(), "/d/f");
    assert_eq!(file_synced, 30);
    let dir_synced = |io: &FaultIo| {
        create(io, "/d/f");
        io.sync_dir(Path::new("/d")).unwrap();
    };
    assert_eq!(survives(&dir_synced, "/d/f"), 30);
    // A file's sync does not vouch for the directory it is in.
    let in_new_dir = |io: &FaultIo| {
        io.create_dir_all(Path::new("/d/new")).unwrap();
        create(io, "/d/new/f").sync_data().unwrap();
    };
    let survived = survives(&in_new_dir, "/d/new/f");
    assert!(survived > 0 && survived < 30, "{survived}");
    let removed = |io: &FaultIo| {
        dir_synced(io);
        io.remove_file(Path::new("/d/f")).unwrap();
    };
    let survived = survives(&removed, "/d/f");
    assert!(survived > 0 && survived < 30, "{survived}");
    let removed_for_good = |io: &FaultIo| {
        removed(io);
        io.sync_dir(Path::new("/d")).unwrap();
    };
    assert_eq!(survives(&removed_for_good, "/d/f"), 0);
    let dir_removed = |io: &FaultIo| {
        dir_synced(io);
        io.remove_dir_all(Path::new("/d")).unwrap();
        io.sync_dir(Path::new("/")).unwrap();
    };
    assert_eq!(survives(&dir_removed, "/d/f"), 0);
}

#[test]
fn a_full_disk_takes_what_fits_and_recovers() {
    let io = machine(1);
    let file = create(&io, "/d/f");
    io.inject(Fault::NoSpaceAfter { bytes: 150 });
    put(&file, 0, &[1; 100]).unwrap();
    let error = put(&file, 100, &[2; 100]).unwrap_err();
    assert_eq!(
        (error.kind(), error.raw_os_error()),
        (ErrorKind::StorageFull, Some(libc::ENOSPC))
    );
    assert_eq!(file.len().unwrap(), 150);
    assert_eq!(
        put(&file, 150, &[3]).unwrap_err().kind(),
        ErrorKind::StorageFull
    );
    assert_eq!(file.read_at(&mut [0; 10], 0).unwrap(), 10, "readers go on");
    io.heal();
    put(&file, 150, &[3; 100]).unwrap();
    file.sync_data().unwrap();
}

#[test]
fn the_nth_operation_fails_once() {
    let io = machine(1);
    let (file, other) = (create(&io, "/d/f"), create(&io, "/d/g"));
    io.inject_on("/d/f", Fault::FailWrite { nth: 2 });
    io.inject(Fault::FailRead { nth: 2 });
    io.inject_on("/d/g", Fault::ShortWrite { nth: 1, bytes: 3 });
    put(&file, 0, b"1").unwrap();
    assert_eq!(
        put(&other, 0, b"12345").unwrap_err().raw_os_error(),
        Some(libc::EIO)
    );
    assert_eq!(other.len().unwrap(), 3);
    assert_eq!(
        put(&file, 1, b"2").unwrap_err().raw_os_error(),
        Some(libc::EIO)
    );
    assert_eq!(file.len().unwrap(), 1);
    put(&file, 1, b"3").unwrap();
    let mut buf = [0; 2];
    file.read_at(&mut buf, 0).unwrap();
    assert!(file.read_at(&mut buf, 0).is_err());
    assert_eq!((file.read_at(&mut buf, 0).unwrap(), &buf), (2, b"13"));
}

#[test]
fn a_failed_sync_loses_what_it_marks_clean() {
    let lost = (0..40).any(|seed| {
        let io = machine(seed);
        let file = create(&io, "/d/f");
        file.sync_data().unwrap();
        put(&file, 0, b"unlucky").unwrap();
        io.inject(Fault::FailSync { nth: 1 });
        assert!(file.sync_data().is_err());
        file.sync_data().unwrap();
        let mut buf = [0; 7];
        file.read_at(&mut buf, 0).unwrap();
        assert_eq!(&buf, b"unlucky", "it is still in memory");
        contents(&io.crash(&CrashPlan::power_loss(seed)).0, "/d/f").unwrap() != b"unlucky"
    });
    assert!(lost, "a later success must not vouch for it");
}

#[test]
fn a_stopped_machine_does_nothing_more() {
    let io = machine(3);
    let file = create(&io, "/d/f");
    io.inject(Fault::StopAfter { ops: 1 });
    put(&file, 0, b"last").unwrap();
    assert!(put(&file, 4, b"half?").is_err());
    assert!(io.stopped());
    assert!(file.sync_data().is_err());
    assert!(
        io.open(Path::new("/d/g"), OpenHow::CreateNew, false)
            .is_err()
    );
    let (after, _) = io.crash(&CrashPlan::kill());
    let bytes = contents(&after, "/d/f").unwrap();
    assert!(bytes.starts_with(b"last") && b"lasthalf?".starts_with(&bytes[..]));
    let reopened = after
        .open(Path::new("/d/f"), OpenHow::ReadWrite, false)
        .unwrap();
    put(&reopened, 0, b"on").unwrap();
}

#[test]
fn flips_and_plants_hit_what_they_name() {
    let io = machine(1);
    let file = create(&io, "/d/f");
    put(&file, 0, &[0; 10_000]).unwrap();
    file.sync_data().unwrap();
    let path = PathBuf::from("/d/f");
    let flip = Flip {
        path: path.clone(),
        offset: 77,
        bit: 3,
    };
    let plan = CrashPlan {
        flips: vec![flip.clone()],
        plants: vec![Plant {
            path: path.clone(),
            offset: 9_998,
            bytes: b"abc".to_vec(),
        }],
        random_flips: 5,
        ..CrashPlan::power_loss(9)
    };
    let (after, random) = io.crash(&plan);
    let bytes = contents(&after, "/d/f").unwrap();
    assert_eq!(random.len(), 5);
    assert_eq!(bytes.len(), 10_001);
    let mut expected = vec![0; 10_001];
    expected[9_998..].copy_from_slice(b"abc");
    for flip in random.iter().chain([&flip]) {
        expected[flip.offset as usize] ^= 1 << flip.bit;
    }
    assert_eq!(bytes, expected);
    assert!(
        io.flip(&Flip {
            path,
            offset: 10_000,
            bit: 0
        })
        .is_err()
    );
    assert!(io.plant(Path::new("/d/none"), 0, b"x").is_err());
}

#[test]
fn mixing_page_cache_and_direct_writes_is_an_error() {
    let io = machine(1);
    let cached = create(&io, "/d/f");
    put(&cached, 0, b"cached").unwrap();
    let direct = io
        .open(Path::new("/d/f"), OpenHow::ReadWrite, true)
        .unwrap();
    let mut buf = io.buffer(4_096);
    assert!(
        direct
            .write_vectored_at(&[IoSlice::new(&buf)], 4_096)
            .is_err()
    );
    assert_eq!(direct.read_at(&mut buf, 0).unwrap(), 6);
    assert_eq!(
        direct.read_at(&mut buf, 6).unwrap_err().kind(),
        ErrorKind::InvalidInput,
        "not aligned"
    );
}

/// The rule that lets one flush serve many files, and where it ends.
#[test]
fn a_flush_covers_only_direct_overwrites_of_durable_blocks() {
    let block = crate::io::AlignedBuf::zeroed(4_096);
    let mut ones = crate::io::AlignedBuf::zeroed(4_096);
    ones.fill(1);
    // (file system where one flush is enough, allocated before, direct) -> always kept
    for (one_flush, allocated, direct, kept) in [
        (true, true, true, true),
        (false, true, true, false),
        (true, false, true, false),
        (true, true, false, false),
    ] {
        let survived = (0..30)
            .filter(|seed| {
                let io = machine(*seed);
                io.set_file_system(0xEF53, one_flush);
                let file = io
                    .open(Path::new("/d/f"), OpenHow::CreateNew, direct)
                    .unwrap();
                let other = create(&io, "/d/other");
                if allocated {
                    file.write_vectored_at(&[IoSlice::new(&block)], 0).unwrap();
                }
                file.sync_data().unwrap();
                file.write_vectored_at(&[IoSlice::new(&ones)], 0).unwrap();
                other.sync_data().unwrap();
                contents(&io.crash(&CrashPlan::power_loss(*seed)).0, "/d/f").unwrap() == ones[..]
            })
            .count();
        assert_eq!(
            survived == 30,
            kept,
            "{one_flush} {allocated} {direct}: {survived} of 30"
        );
    }
}
