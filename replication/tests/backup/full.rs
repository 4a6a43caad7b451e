//! Shared memory that is full is refused, and ends no process; and a store without room, in memory or on
//! its disk, still seals, frees, and gives memory back: on small file systems of the test's own, where the
//! machine lets it make some.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use kera_log_segments::layout::DurableMark;
use kera_protocol::ids::StreamletId;
use kera_replication::backup::{CopySpec, Limits, Memory, ReplicaStore, ShmMemory, ShmOptions};
use kera_replication::faults::Faults;
use kera_replication::transport::{CopyAnswer, Refusal};

use crate::content::{SEGMENT, SEGMENTS, copy, segment};
use crate::stage::{Ask, options, shared_dir};

const DIR: &str = "KERA_TEST_SMALL_DIR";
/// As small as shared memory gets, and a quota that fits it if nobody else takes any.
const SIZE: u64 = 1 << 20;
/// What the store with a disk has for memory, and may take of it.
const MEMORY: u64 = 2 << 20;

/// Runs in a mount namespace of its own, with `SIZE` bytes of shared memory at `DIR`.
#[test]
fn within_a_small_file_system() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let dir = Path::new(&dir);
    let options = ShmOptions {
        dir: dir.join("shared"),
        disk: None,
        quota: SIZE,
    };
    let limits = Limits {
        memory_bytes: SIZE,
        copies_in_memory: 100,
        ..Limits::default()
    };
    let store = ReplicaStore::start(ShmMemory::new(options), limits, Faults::default());
    let store = store.expect("starts");
    // A freed copy's memory stays warm; whoever needs room gets it.
    let spare = copy(1, 7);
    store.fill(&spare, &segment(&spare, 2, 500)).expect("fills");
    store.free(&spare, 7).expect("is freed");

    // Somebody else takes most of the machine's memory.
    let mut other = File::create(dir.join("other")).expect("a file");
    other
        .write_all(&vec![1; (SIZE / 2) as usize])
        .expect("there is room");
    let content = |group| segment(&copy(group, 7), 3, 5000);
    let mut filled = 0;
    let refused = loop {
        let group = filled + 2;
        match store.fill(&copy(group, 7), &content(group)) {
            Ok(()) => filled += 1,
            Err(refusal) => break refusal,
        }
    };
    assert!(matches!(refused, Refusal::NoRoom { .. }), "{refused:?}");
    let expected = SIZE / 2 / u64::from(SEGMENT);
    assert!(
        (expected - 3..=expected).contains(&filled),
        "{filled} of {expected}"
    );
    for group in 2..filled + 2 {
        let content = content(group);
        let bytes = store.bytes(&copy(group, 7), content.bytes.len());
        assert!(bytes == content.bytes, "group {group}");
    }
    // What was refused left nothing behind, and room is found again when there is some.
    drop(other);
    std::fs::remove_file(dir.join("other")).expect("is removed");
    let again = copy(filled + 2, 7);
    store
        .fill(&again, &content(filled + 2))
        .expect("there is room");
    println!("\nfull memory was refused");
}

#[test]
fn full_shared_memory_is_refused_and_ends_no_process() {
    on_small_file_systems(
        "full::within_a_small_file_system",
        "full memory was refused",
    );
}

/// Takes all that is left of a file system.
fn fill_up(dir: &Path) {
    let mut other = File::create(dir.join("other")).expect("a file");
    for size in [64 << 10, 4096, 1] {
        while other.write_all(&vec![1; size]).is_ok() {}
    }
}

fn store_with_disk(dir: &Path, memory_bytes: u64) -> Arc<ReplicaStore> {
    let options = ShmOptions {
        dir: dir.join("memory/shared"),
        disk: Some(dir.join("disk/copies")),
        quota: memory_bytes,
    };
    let limits = Limits {
        memory_bytes,
        ..Limits::default()
    };
    ReplicaStore::start(ShmMemory::new(options), limits, Faults::default()).expect("starts")
}

/// Fills and closes groups from `first` on, until the disk takes no more; how many.
fn fill_disk(store: &ReplicaStore, first: u64) -> u64 {
    let mut closed = 0;
    loop {
        let id = copy(first + closed, 7);
        let content = segment(&id, 5, 5000);
        store.fill(&id, &content).expect("there is memory");
        match store.flush(&id, content.bytes.len() as u64, true) {
            Ok(()) => closed += 1,
            Err(refusal) => {
                assert!(matches!(refusal, Refusal::Failed(_)), "{refusal:?}");
                return closed;
            }
        }
    }
}

#[test]
fn within_a_full_disk() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let dir = Path::new(&dir);
    let store = store_with_disk(dir, 2 << 20);
    let closed = fill_disk(&store, 1);
    assert!(closed > 3, "{closed} fitted");
    fill_up(&dir.join("disk"));
    // Nobody has more room than before, and a new owner comes.
    let here = store.incarnation();
    let first = copy(1, 7);
    store.seal(&first, 8, here).expect("seals");
    store.free(&first, 8).expect("is freed");
    // The room that was kept for seals is gone as well.
    std::fs::remove_file(dir.join("disk/copies/SEALS.new")).expect("is there");
    fill_up(&dir.join("disk"));
    store.free(&copy(2, 7), 8).expect("its own bytes make room");
    let waits = copy(closed + 1, 7);
    let length = segment(&waits, 5, 5000).bytes.len() as u64;
    store.flush(&waits, length, true).expect("there is room");
    drop(store);
    fill_up(&dir.join("disk"));
    let store = store_with_disk(dir, 2 << 20);
    for group in [1, 2] {
        let freed = store.seal(&copy(group, 7), 9, here);
        let gone = CopyAnswer::Gone { is_file: false };
        assert_eq!(freed, Ok(gone), "group {group} was here");
    }
    for group in 3..=closed + 1 {
        let id = copy(group, 7);
        let content = segment(&id, 5, 5000);
        assert!(store.bytes(&id, content.bytes.len()) == content.bytes);
        store.free(&id, 9).expect("is freed");
    }
    assert_eq!(store.stats().copies(), 0);
    println!("\na full disk was emptied");
}

#[test]
fn a_full_disk_is_emptied() {
    on_small_file_systems("full::within_a_full_disk", "a full disk was emptied");
}

/// The file system is as large as the quota, and then somebody else takes the rest of it.
#[test]
fn within_full_memory() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let dir = Path::new(&dir);
    let store = store_with_disk(dir, MEMORY);
    let here = store.incarnation();
    let mut filled = Vec::new();
    let refused = loop {
        let id = copy(100 + filled.len() as u64, 7);
        let content = segment(&id, 5, 5000);
        match store.fill(&id, &content) {
            Ok(()) => filled.push((id, content)),
            Err(refusal) => break refusal,
        }
    };
    assert!(matches!(refused, Refusal::NoRoom { .. }), "{refused:?}");
    let stats = store.stats();
    assert!(stats.memory_used_bytes <= MEMORY, "{stats:?}");
    let room = rustix::fs::statvfs(dir.join("memory")).expect("is there");
    let taken = (room.f_blocks - room.f_bfree) * room.f_frsize;
    assert!(
        stats.memory_used_bytes >= taken,
        "{taken} are taken: {stats:?}"
    );
    fill_up(&dir.join("memory"));
    // Streamlets that nobody heard of are sealed, and a new owner frees.
    for streamlet in 10..200 {
        let mut other = copy(1, 7);
        other.streamlet.streamlet = StreamletId(streamlet);
        store.seal(&other, 8, here).expect("seals");
    }
    // Memory is given back, though the store can write nothing new there.
    for (id, content) in &filled[..3] {
        let length = content.bytes.len() as u64;
        store.flush(id, length, false).expect("goes to disk");
        store.flush(id, length, true).expect("is closed");
    }
    for group in [500, 501] {
        let id = copy(group, 7);
        store
            .fill(&id, &segment(&id, 5, 5000))
            .expect("there is room");
    }
    store.free(&copy(500, 7), 7).expect("is freed");
    drop(store);
    fill_up(&dir.join("memory"));
    let store = store_with_disk(dir, MEMORY);
    assert_eq!(store.flush_open(), [], "all that was sealed goes to disk");
    for (id, content) in &filled {
        assert!(
            store.bytes(id, content.bytes.len()) == content.bytes,
            "{id}"
        );
    }
    println!("\nfull memory was given back");
}

#[test]
fn full_memory_seals_and_is_given_back() {
    on_small_file_systems("full::within_full_memory", "full memory was given back");
}

/// Runs `test`, which says that it was `done`, in a mount namespace of its own.
fn on_small_file_systems(test: &str, done: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let script = r#"mount -t tmpfs -o size=1m none "$0" && mkdir "$0/memory" "$0/disk" &&
mount -t tmpfs -o size=2m none "$0/memory" && mount -t tmpfs -o size=1m none "$0/disk" || exit 77
[ "$1" = full::within_full_memory ] && { mount -t tmpfs -o size=16m none "$0/disk" || exit 77; }
shift; exec "$@""#;
    let run = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(dir.path())
        .arg(test)
        .arg(std::env::current_exe().expect("this binary"))
        .args(["--exact", test, "--nocapture"])
        .env(DIR, dir.path())
        .output();
    let run = match run {
        Ok(run) => run,
        Err(error) => return skip(&format!("{test}: unshare cannot be run: {error}")),
    };
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    let complained = String::from_utf8_lossy(&run.stderr).into_owned();
    if run.status.code() == Some(77) || complained.contains("unshare:") {
        return skip(&format!(
            "{test}: no file system can be mounted here: {complained}"
        ));
    }
    assert!(said.contains(done), "{said}{complained}");
}

/// Says loudly that the test did not run here; `make test` counts and lists it.
fn skip(reason: &str) {
    let line = format!("SKIPPED: full shared memory: {}", reason.trim());
    eprintln!("{line}");
    if let Some(path) = std::env::var_os("KERA_SKIP_FILE") {
        let file = File::options().create(true).append(true).open(path);
        let written = file.and_then(|mut file| writeln!(file, "{line}"));
        written.expect("the list for the summary can be written");
    }
}

/// The files below a directory that end like this.
fn files(dir: &Path, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, end));
        } else if path.to_string_lossy().ends_with(end) {
            found.push(path);
        }
    }
    found
}

/// A disk that is full may not even take the word that a replica is gone. The replica's memory stays known, and goes when
/// it is freed again.
#[test]
fn memory_is_given_back_though_the_disk_refused_at_first() {
    let dir = shared_dir();
    let memory = ShmMemory::new(options(dir.path(), true));
    let taken = memory.take_over(&Faults::default()).expect("it starts");
    let spec = CopySpec {
        copy: copy(1, 1),
        segment_size: SEGMENT,
        segments: SEGMENTS,
        incarnation: taken.incarnation,
        built: false,
    };
    let made = memory.create(&spec).expect("room");
    made.reserve(0, 4096).expect("room");
    made.place(0, &[7; 100]).expect("it is reserved");
    made.flush(0, 100, &DurableMark::default()).expect("room");
    let logs = files(&dir.path().join("shared"), ".0.log");
    assert_eq!(logs.len(), 1, "{logs:?}");
    let record = files(&dir.path().join("disk"), ".0.copy").remove(0);

    // Nothing can be written to it.
    fs::remove_file(&record).expect("it is there");
    fs::create_dir(&record).expect("its name is free");
    made.vacate().expect_err("the disk takes no word");
    fs::remove_dir(&record).expect("it is empty");
    made.remove().expect("the disk works again");
    assert!(!logs[0].exists(), "its memory has no name any more");
}
