//! What a store does with a network card: a pretended one, which writes down what it is told.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use kera_protocol::ids::Epoch;
use kera_replication::backup::{Registrar, Registration, ReplicaStore, ShmMemory, Window};
use kera_replication::faults::Faults;
use kera_replication::ids::{BrokerId, BufferKey};
use kera_replication::transport::{CopyAnswer, Refusal};
use tempfile::TempDir;

use crate::content::{SEGMENT, copy, segment};
use crate::stage::{Ask, PRIMARY, limits, options, shared_dir, whole};

/// What the card was told, in order.
#[derive(Debug, Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    keys: AtomicU64,
    /// So many registrations cannot be made, or ended.
    unable: AtomicU64,
    stuck: AtomicU64,
}

impl Log {
    fn say(&self, line: String) {
        self.lines.lock().expect("no panic").push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock().expect("no panic"))
    }
}

fn spend(count: &AtomicU64) -> bool {
    let less = |left: u64| left.checked_sub(1);
    count
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
        .is_ok()
}

#[derive(Debug)]
struct Card(Arc<Log>);

impl Registrar for Card {
    fn register(
        &self,
        primary: BrokerId,
        window: Window,
    ) -> io::Result<(BufferKey, Box<dyn Registration>)> {
        if spend(&self.0.unable) {
            return Err(io::Error::other("set LimitMEMLOCK"));
        }
        let key = self.0.keys.fetch_add(1, Ordering::Relaxed);
        self.0
            .say(format!("+{key} of {} for {}", window.len(), primary.0));
        let registered = Registered {
            log: self.0.clone(),
            key: Some(key),
            _window: window,
        };
        Ok((BufferKey(key), Box::new(registered)))
    }

    fn disconnect(&self, primaries: &[BrokerId], then: &mut dyn FnMut()) {
        for primary in primaries {
            self.0.say(format!("end {}", primary.0));
        }
        then();
        self.0.say("open".into());
    }
}

#[derive(Debug)]
struct Registered {
    log: Arc<Log>,
    key: Option<u64>,
    _window: Window,
}

impl Registration for Registered {
    fn end(&mut self) -> io::Result<()> {
        let Some(key) = self.key.take() else {
            return Ok(());
        };
        if spend(&self.log.stuck) {
            self.key = Some(key);
            return Err(io::Error::other("the card is stuck"));
        }
        self.log.say(format!("-{key}"));
        Ok(())
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

struct Stage {
    store: Arc<ReplicaStore>,
    log: Arc<Log>,
    dir: TempDir,
}

fn stage(disk: bool) -> Stage {
    let dir = shared_dir();
    let memory = ShmMemory::new(options(dir.path(), disk));
    let store = ReplicaStore::start(memory, limits(), Faults::default()).expect("starts");
    let log = Arc::new(Log::default());
    store.register_with(Arc::new(Card(log.clone())));
    Stage { store, log, dir }
}

#[test]
fn a_buffer_is_registered_once_and_named_as_the_card_names_it() {
    let stage = stage(false);
    let id = copy(1, 7);
    let here = stage.store.incarnation();
    let opened = stage.store.opening(&id, here, 0, 4096).expect("opens");
    assert_eq!(opened.buffers[0].key, BufferKey(0));
    assert_eq!(stage.log.take(), ["+0 of 4096 for 1"]);
    // Asked again: the same. More: only what is new.
    let again = stage.store.opening(&id, here, 0, 4096).expect("opens");
    assert_eq!(again, opened);
    assert_eq!(stage.log.take(), [""; 0]);
    let more = stage.store.opening(&id, here, 0, 8192).expect("opens");
    assert_eq!(more.buffers.len(), 2);
    assert_eq!(stage.log.take(), ["+1 of 4096 for 1"]);
    assert!(stage.store.region(PRIMARY, BufferKey(1)).is_ok());
}

#[test]
fn a_seal_ends_connections_and_registrations_before_it_reads_a_length() {
    let stage = stage(false);
    let (sealed, other) = (copy(1, 7), copy(2, 9));
    let content = segment(&sealed, 3, 500);
    stage.store.fill(&sealed, &content).expect("fills");
    stage.store.open_first(&other).expect("opens");
    stage.log.take();
    let here = stage.store.incarnation();
    let answer = stage.store.seal(&sealed, 8, here);
    assert_eq!(answer, Ok(whole(&content)));
    assert_eq!(
        stage.log.take(),
        ["end 1", "-0", "open"],
        "the newer epoch's copy stays"
    );
    assert!(stage.store.region(PRIMARY, BufferKey(1)).is_ok());
    // Nothing is left to end.
    assert_eq!(stage.store.seal(&sealed, 8, here), Ok(whole(&content)));
    assert_eq!(stage.log.take(), [""; 0]);
}

#[test]
fn a_card_that_is_stuck_leaves_a_seal_without_an_answer() {
    let stage = stage(false);
    let id = copy(1, 7);
    let content = segment(&id, 3, 500);
    stage.store.fill(&id, &content).expect("fills");
    stage.log.stuck.store(1, Ordering::Relaxed);
    let here = stage.store.incarnation();
    let answer = stage.store.seal(&id, 8, here);
    assert!(matches!(answer, Err(Refusal::Failed(_))), "{answer:?}");
    // The seal holds all the same, and asked again it is tried again.
    let opened = stage.store.open_first(&id);
    assert_eq!(opened, Err(Refusal::Sealed { by: Epoch(8) }));
    assert_eq!(stage.store.seal(&id, 8, here), Ok(whole(&content)));
}

#[test]
fn memory_is_taken_from_the_card_before_it_is_given_back() {
    let stage = stage(true);
    let (closed, freed, filled) = (copy(1, 7), copy(2, 7), copy(3, 7));
    let content = segment(&closed, 3, 500);
    stage.store.fill(&closed, &content).expect("fills");
    stage.store.open_first(&freed).expect("opens");
    stage.store.open_first(&filled).expect("opens");
    stage.log.take();
    // Its primary has seen all of it complete: nobody else's writes are disturbed.
    let length = content.bytes.len() as u64;
    stage.store.flush(&closed, length, true).expect("flushes");
    assert_eq!(stage.log.take(), ["-0"]);
    stage.store.free(&freed, 7).expect("frees");
    assert_eq!(stage.log.take(), ["end 1", "-1", "open"]);
    // Filled by its own epoch, it is written by nobody else.
    let here = stage.store.incarnation();
    stage.store.seal(&filled, 7, here).expect("seals");
    assert_eq!(stage.log.take(), [""; 0]);
    let other = segment(&filled, 2, 100);
    stage
        .store
        .complete(&filled, 7, 0, &other.bytes)
        .expect("completes");
    assert_eq!(stage.log.take(), ["end 1", "-2", "open"]);
    assert_eq!(stage.store.seal(&filled, 8, here), Ok(whole(&other)));
}

#[test]
fn what_a_card_may_have_written_is_flushed_at_the_interval() {
    let stage = stage(true);
    let id = copy(1, 7);
    let content = segment(&id, 4, 300);
    let key = stage.store.open_first(&id).expect("opens").buffers[0].key;
    let region = stage.store.region(PRIMARY, key).expect("is known");
    assert_eq!(region.len(), SEGMENT);
    // As a card does it: the store sees nothing of it.
    let stream = id.streamlet.stream.to_string();
    let shared = stage.dir.path().join("shared").join(&stream);
    let file = std::fs::File::options()
        .write(true)
        .open(shared.join("1/1.0.log"))
        .expect("the copy's file");
    std::os::unix::fs::FileExt::write_all_at(&file, &content.bytes, 0).expect("writes");
    assert_eq!(stage.store.flush_open(), []);
    let disk = stage.dir.path().join("disk").join(&stream);
    let flushed = std::fs::read(disk.join("1/1.0.log")).expect("is on disk");
    assert_eq!(flushed[..content.bytes.len()], content.bytes);
}

#[test]
fn what_cannot_be_registered_is_not_opened() {
    let stage = stage(false);
    let id = copy(1, 7);
    stage.log.unable.store(1, Ordering::Relaxed);
    let refused = stage.store.open_first(&id).expect_err("no memory");
    assert!(refused.to_string().contains("LimitMEMLOCK"), "{refused}");
    assert_eq!(stage.store.state(&id), None, "nothing is left of it");
    // It was never opened, so a later one says that nothing was in it.
    stage.store.open_first(&id).expect("opens now");
    let here = stage.store.incarnation();
    let answer = stage.store.seal(&id, 8, here);
    assert!(
        matches!(answer, Ok(CopyAnswer::Scanned { length: 0, .. })),
        "{answer:?}"
    );
}

#[test]
fn a_store_that_ends_leaves_nothing_registered() {
    let stage = stage(false);
    stage.store.open_first(&copy(1, 7)).expect("opens");
    stage.log.take();
    let log = stage.log.clone();
    drop(stage);
    assert_eq!(log.take(), ["-0"]);
}
