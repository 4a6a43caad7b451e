//! A file on shared memory that somebody else cuts short costs its copy, and nobody's process.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use kera_replication::backup::{ReplicaStore, ShmMemory};
use kera_replication::faults::Faults;
use kera_replication::ids::CopyId;
use kera_replication::transport::{CopyAnswer, CopyState, Refusal};

use crate::content::{copy, segment};
use crate::stage::{Ask, PRIMARY, limits, options, shared_dir, whole};

fn files(dir: &Path) -> Arc<ReplicaStore> {
    let memory = ShmMemory::new(options(dir, true));
    ReplicaStore::start(memory, limits(), Faults::default()).expect("starts")
}

fn cut(dir: &Path, root: &str, id: &CopyId) {
    let log = dir.join(format!(
        "{root}/{}/{}/{}.0.log",
        id.streamlet.stream, id.streamlet.streamlet, id.group
    ));
    let file = File::options().write(true).open(log).expect("is there");
    file.set_len(0).expect("is cut");
}

#[test]
fn small_writes_to_a_file_that_was_cut_short_are_refused() {
    let dir = shared_dir();
    let store = files(dir.path());
    let (id, other) = (copy(1, 7), copy(2, 7));
    let (content, others) = (segment(&id, 5, 700), segment(&other, 5, 700));
    let begun = content.ends[1] as usize;
    let opened = store.open_first(&id).expect("opens");
    let region = store.region(PRIMARY, opened.buffers[0].key);
    let region = region.expect("is registered");
    region.place(0, &content.bytes[..begun]).expect("fits");
    cut(dir.path(), "shared", &id);
    for _ in 0..3 {
        let refused = region.place(begun as u64, &content.bytes[begun..]);
        assert!(matches!(refused, Err(Refusal::Failed(_))), "{refused:?}");
    }
    // Nobody else's harm.
    store.fill(&other, &others).expect("fills");
    assert!(store.bytes(&other, others.bytes.len()) == others.bytes);
    assert_eq!(
        store.flush(&id, content.ends[0], false),
        Err(Refusal::Short { length: 0 })
    );
    let here = store.incarnation();
    let answered = store.seal(&id, 8, here).expect("answers");
    assert!(
        matches!(answered, CopyAnswer::Damaged { .. }),
        "{answered:?}"
    );
    assert_eq!(store.seal(&other, 8, here), Ok(whole(&others)));
    store.free(&id, 8).expect("is freed");
    assert_eq!(store.state(&id), None);
}

#[test]
fn large_writes_to_a_file_that_was_cut_short_are_refused() {
    let dir = shared_dir();
    let store = files(dir.path());
    let id = copy(1, 7);
    let opened = store.open_first(&id).expect("opens");
    let region = store.region(PRIMARY, opened.buffers[0].key);
    let region = region.expect("is registered");
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
    ours.write_all(&[7; 20_000]).expect("is sent");
    let read = region.receive(theirs.as_fd(), 0, 10_000, &mut [0; 10]);
    assert!(matches!(read, Ok(Ok(10_010))), "{read:?}");
    cut(dir.path(), "shared", &id);
    let refused = region.receive(theirs.as_fd(), 10_000, 5_000, &mut [0; 10]);
    assert!(matches!(refused, Err(Refusal::Failed(_))), "{refused:?}");
    let refused = region.place(10_000, &[1; 100]);
    assert!(matches!(refused, Err(Refusal::Failed(_))), "{refused:?}");
}

#[test]
fn a_copy_that_a_start_found_and_was_cut_short_is_damaged_and_not_empty() {
    let dir = shared_dir();
    let store = files(dir.path());
    let (id, gone, flushed) = (copy(1, 7), copy(2, 7), copy(3, 7));
    for id in [&id, &gone, &flushed] {
        store.fill(id, &segment(id, 5, 700)).expect("fills");
    }
    let length = segment(&flushed, 5, 700).bytes.len() as u64;
    store.flush(&flushed, length, true).expect("is closed");
    drop(store);
    let store = files(dir.path());
    let here = store.incarnation();
    cut(dir.path(), "shared", &id);
    cut(dir.path(), "disk", &flushed);
    let log = format!(
        "shared/{}/{}/{}.0.log",
        gone.streamlet.stream, gone.streamlet.streamlet, gone.group
    );
    fs::remove_file(dir.path().join(log)).expect("is removed");
    for id in [&id, &gone, &flushed] {
        let answered = store.seal(id, 8, here).expect("answers");
        let damaged = matches!(answered, CopyAnswer::Damaged { .. });
        assert!(damaged, "{id}: {answered:?}");
    }
    let failures = store.flush_open();
    assert!(!failures.is_empty(), "they cannot be brought to the disk");
    assert_eq!(store.state(&id), Some(CopyState::Sealed));
}

#[test]
fn memory_of_a_file_that_was_cut_short_is_no_other_copys() {
    let dir = shared_dir();
    let store = files(dir.path());
    let (first, second, third) = (copy(1, 7), copy(2, 7), copy(3, 7));
    store.fill(&first, &segment(&first, 5, 700)).expect("fills");
    cut(dir.path(), "shared", &first);
    store.free(&first, 7).expect("is freed");
    store
        .fill(&second, &segment(&second, 5, 700))
        .expect("fills");
    store.free(&second, 7).expect("is freed");
    let spare = fs::read_dir(dir.path().join("shared/spare")).expect("is there");
    for spare in spare {
        let path = spare.expect("an entry").path();
        let file = File::options().write(true).open(path).expect("a file");
        file.set_len(0).expect("is cut");
    }
    let content = segment(&third, 5, 700);
    store.fill(&third, &content).expect("fills");
    assert!(store.bytes(&third, content.bytes.len()) == content.bytes);
}
