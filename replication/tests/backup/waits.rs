//! A disk that takes its time holds up the copy that it is at work for, and nobody else; and what cannot
//! be given back is not tried again for every copy that finds no room.

use std::io;
use std::os::fd::BorrowedFd;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use kera_grpc::v1::backups_server::Backups;
use kera_log_segments::layout::DurableMark;
use kera_protocol::ids::StreamletId;
use kera_protocol::v1;
use kera_replication::backup::{
    CopyMemory, CopySpec, Limits, Memory, ReplicaStore, SealTable, ShmMemory, SimMemory,
    StartError, TakenOver, Window,
};
use kera_replication::faults::Faults;
use kera_replication::ids::CopyId;
use kera_replication::transport::tcp::BackupService;
use kera_replication::transport::{CopyState, Refusal};

use crate::content::{SEGMENT, copy, segment};
use crate::stage::{Ask, BESIDES, limits, options, shared_dir};

/// Far more than anything here takes that is not held up.
const NEVER: Duration = Duration::from_secs(30);

/// Where the disk stands still.
#[derive(Debug, Default)]
struct Gate {
    /// The step that waits, and of which copy.
    shut: Mutex<Option<(&'static str, CopyId)>>,
    opened: Condvar,
    waiting: Mutex<Option<mpsc::SyncSender<()>>>,
    /// Memory is not given back, and how often it was tried.
    keeps: Mutex<bool>,
    tried: AtomicUsize,
}

impl Gate {
    /// Whoever comes to `step` of `copy` waits from now on; answers when somebody does.
    fn shut(&self, step: &'static str, copy: CopyId) -> mpsc::Receiver<()> {
        let (tell, told) = mpsc::sync_channel(1);
        *self.shut.lock().expect("sound") = Some((step, copy));
        *self.waiting.lock().expect("sound") = Some(tell);
        told
    }

    fn open(&self) {
        *self.shut.lock().expect("sound") = None;
        self.opened.notify_all();
    }

    fn pass(&self, step: &'static str, copy: &CopyId) {
        let mut shut = self.shut.lock().expect("sound");
        while *shut == Some((step, *copy)) {
            if let Some(tell) = self.waiting.lock().expect("sound").take() {
                let _ = tell.send(());
            }
            shut = self.opened.wait(shut).expect("sound");
        }
    }
}

#[derive(Debug)]
struct GatedMemory {
    inner: Arc<SimMemory>,
    gate: Arc<Gate>,
}

impl GatedMemory {
    fn gated(&self, spec: &CopySpec, inner: Arc<dyn CopyMemory>) -> Arc<dyn CopyMemory> {
        let (gate, copy) = (self.gate.clone(), spec.copy);
        Arc::new(GatedCopy { inner, gate, copy })
    }
}

impl Memory for GatedMemory {
    fn take_over(&self, faults: &Faults) -> Result<TakenOver, StartError> {
        let mut found = self.inner.take_over(faults)?;
        for each in &mut found.copies {
            each.memory = self.gated(&each.spec, each.memory.clone());
            // As from files: it is read when somebody asks.
            each.mark = None;
        }
        Ok(found)
    }

    fn create(&self, spec: &CopySpec) -> io::Result<Arc<dyn CopyMemory>> {
        Ok(self.gated(spec, self.inner.create(spec)?))
    }

    fn store_seals(&self, seals: &SealTable) -> io::Result<()> {
        self.inner.store_seals(seals)
    }

    fn sync_disk(&self) -> io::Result<()> {
        self.inner.sync_disk()
    }
}

#[derive(Debug)]
struct GatedCopy {
    inner: Arc<dyn CopyMemory>,
    gate: Arc<Gate>,
    copy: CopyId,
}

impl CopyMemory for GatedCopy {
    fn reserve(&self, address: u64, len: u64) -> io::Result<u64> {
        self.inner.reserve(address, len)
    }

    fn lacking(&self, address: u64, len: u64) -> u64 {
        self.inner.lacking(address, len)
    }

    fn window(&self, address: u64, len: u64) -> io::Result<Window> {
        self.inner.window(address, len)
    }

    fn place(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.place(address, bytes)
    }

    fn write_to_disk(&self, from: u64, to: u64) -> io::Result<()> {
        self.inner.write_to_disk(from, to)
    }

    fn sync_to_disk(&self) -> io::Result<()> {
        self.inner.sync_to_disk()
    }

    fn name_on_disk(&self) -> io::Result<()> {
        self.inner.name_on_disk()
    }

    fn complete(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.gate.pass("complete", &self.copy);
        self.inner.complete(address, bytes)
    }

    fn receive(
        &self,
        socket: BorrowedFd<'_>,
        address: u64,
        len: usize,
        spare: &mut [u8],
    ) -> io::Result<usize> {
        self.inner.receive(socket, address, len, spare)
    }

    fn read_at(&self, buf: &mut [u8], address: u64) -> io::Result<usize> {
        self.inner.read_at(buf, address)
    }

    fn flush(&self, from: u64, to: u64, mark: &DurableMark) -> io::Result<()> {
        self.gate.pass("flush", &self.copy);
        self.inner.flush(from, to, mark)
    }

    fn renew(&self, from: u64, to: u64) -> io::Result<bool> {
        self.inner.renew(from, to)
    }

    fn lower_mark(&self, mark: &DurableMark) -> io::Result<()> {
        self.gate.pass("lower_mark", &self.copy);
        self.inner.lower_mark(mark)
    }

    fn mark(&self) -> io::Result<Option<DurableMark>> {
        self.gate.pass("mark", &self.copy);
        self.inner.mark()
    }

    fn release(&self, to: u64) -> io::Result<u64> {
        self.gate.pass("release", &self.copy);
        self.gate.tried.fetch_add(1, Ordering::Relaxed);
        if *self.gate.keeps.lock().expect("sound") {
            return Err(io::Error::other("the record cannot be written"));
        }
        self.inner.release(to)
    }

    fn give_back(&self, closed: bool) -> io::Result<bool> {
        self.gate.pass("give_back", &self.copy);
        self.inner.give_back(closed)
    }

    fn vacate(&self) -> io::Result<()> {
        self.inner.vacate()
    }

    fn remove(&self) -> io::Result<()> {
        self.gate.pass("remove", &self.copy);
        self.inner.remove()
    }
}

fn gated(memory: &Arc<SimMemory>, limits: Limits) -> (Arc<ReplicaStore>, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let memory = GatedMemory {
        inner: memory.clone(),
        gate: gate.clone(),
    };
    let store = ReplicaStore::start(Arc::new(memory), limits, Faults::default());
    (store.expect("starts"), gate)
}

fn roomy() -> Limits {
    Limits {
        memory_bytes: 64 * u64::from(SEGMENT),
        copies_in_memory: 1000,
        copies: 1000,
        streamlets: 100,
    }
}

/// A copy of another streamlet.
fn elsewhere(group: u64) -> CopyId {
    let mut copy = copy(group, 7);
    copy.streamlet.streamlet = StreamletId(2);
    copy
}

/// What others want of a store meanwhile.
fn others_go_on(store: &ReplicaStore, held_up: &CopyId) {
    let (same, other) = (copy(50, 7), elsewhere(51));
    let here = store.incarnation();
    // Of the same streamlet and primary, and others.
    for id in [&same, &other] {
        store.fill(id, &segment(id, 3, 700)).expect("fills");
    }
    let _ = store.opening(held_up, here, 2 * u64::from(SEGMENT), 4096);
    assert!(store.free_bytes() > 0 && store.state(held_up).is_some());
    store.seal(&other, 8, here).expect("seals");
    let flushed = store.flush(&other, segment(&other, 3, 700).bytes.len() as u64, true);
    flushed.expect("its disk is well");
    store.free(&other, 8).expect("is freed");
}

/// Has `step` of a copy wait, and sees that nobody else does.
fn held_up_by(
    store: &Arc<ReplicaStore>,
    gate: &Gate,
    step: &'static str,
    id: CopyId,
    act: impl FnOnce(&ReplicaStore) + Send,
) {
    let waits = gate.shut(step, id);
    thread::scope(|scope| {
        scope.spawn(|| act(store));
        waits.recv_timeout(NEVER).unwrap_or_else(|_| {
            gate.open();
            panic!("nobody came to {step}");
        });
        let (tell, told) = mpsc::sync_channel(1);
        scope.spawn(move || {
            others_go_on(store, &id);
            let _ = tell.send(());
        });
        let went_on = told.recv_timeout(NEVER);
        gate.open();
        assert_eq!(went_on, Ok(()), "others waited for {step}");
    });
}

#[test]
fn while_a_disk_is_at_work_for_one_copy_others_are_opened_and_sealed() {
    let id = copy(1, 7);
    let content = segment(&id, 8, 700);
    let length = content.bytes.len() as u64;
    for step in ["flush", "give_back"] {
        let (store, gate) = gated(&SimMemory::new(3), roomy());
        store.fill(&id, &content).expect("fills");
        held_up_by(&store, &gate, step, id, |store| {
            store.flush(&id, length, true).expect("at last");
        });
    }
    for step in ["lower_mark", "complete"] {
        let (store, gate) = gated(&SimMemory::new(3), roomy());
        store.fill(&id, &content).expect("fills");
        store.flush(&id, length, true).expect("is closed");
        // In the others' streamlet, whose seal is that of the copy's.
        store.seal(&id, 7, store.incarnation()).expect("seals");
        held_up_by(&store, &gate, step, id, |store| {
            let completed = store.complete(&id, 7, 0, &content.bytes);
            completed.expect("at last");
        });
    }
    let (store, gate) = gated(&SimMemory::new(3), roomy());
    store.fill(&id, &content).expect("fills");
    held_up_by(&store, &gate, "remove", id, |store| {
        store.free(&id, 7).expect("at last");
    });
}

/// A caller that gives up and asks again leaves its thread at the disk.
#[test]
fn flushes_that_nobody_waits_for_leave_threads_for_others() {
    let id = copy(1, 7);
    let content = segment(&id, 8, 700);
    let (store, gate) = gated(&SimMemory::new(3), roomy());
    store.fill(&id, &content).expect("fills");
    let waits = gate.shut("flush", id);
    let flush = || v1::FlushCopyRequest {
        copy: Some(v1::CopyName {
            stream: id.streamlet.stream.as_bytes().to_vec().into(),
            streamlet: id.streamlet.streamlet.0,
            group: id.group.0,
            epoch: id.epoch.0,
            ..Default::default()
        }),
        length: content.bytes.len() as u64,
        closed: true,
    };
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.max_blocking_threads(80).enable_time().build();
    let runtime = runtime.expect("a runtime");
    let service = BackupService::new(store);
    let described = runtime.block_on(async {
        for _ in 0..200 {
            let asked = service.flush(tonic::Request::new(flush()));
            // It is begun, and given up.
            let answer = tokio::time::timeout(Duration::ZERO, asked).await;
            assert!(answer.is_err(), "{answer:?}");
        }
        let describe = tonic::Request::new(v1::DescribeBackupRequest {});
        tokio::time::timeout(NEVER, service.describe(describe)).await
    });
    let came = waits.recv_timeout(NEVER);
    gate.open();
    came.expect("one is at its disk");
    described.expect("a thread is left").expect("it answers");
}

#[test]
fn a_copy_counts_as_flushed_only_when_its_disk_has_it() {
    let id = copy(1, 7);
    let content = segment(&id, 8, 700);
    let length = content.bytes.len() as u64;
    for step in ["flush", "give_back"] {
        let (store, gate) = gated(&SimMemory::new(7), roomy());
        store.fill(&id, &content).expect("fills");
        let waits = gate.shut(step, id);
        let early = thread::scope(|scope| {
            scope.spawn(|| store.flush(&id, length, true).expect("at last"));
            let came = waits.recv_timeout(NEVER);
            let early = store.state(&id);
            gate.open();
            came.unwrap_or_else(|_| panic!("nobody came to {step}"));
            early
        });
        assert_eq!(early, Some(CopyState::Sealed), "told before {step}");
        assert_eq!(store.state(&id), Some(CopyState::Flushed));
    }
}

#[test]
fn while_the_mark_of_one_copy_is_read_others_are_opened_and_sealed() {
    let (memory, id) = (SimMemory::new(4), copy(1, 7));
    let content = segment(&id, 8, 700);
    let (store, _) = gated(&memory, roomy());
    let here = store.incarnation();
    store.fill(&id, &content).expect("fills");
    drop(store);
    let (store, gate) = gated(&memory, roomy());
    held_up_by(&store, &gate, "mark", id, |store| {
        store.seal(&id, 7, here).expect("at last");
    });
}

#[test]
fn a_higher_epoch_waits_for_a_lower_one_that_is_completing() {
    let id = copy(1, 7);
    let content = segment(&id, 8, 700);
    let (store, gate) = gated(&SimMemory::new(5), roomy());
    let here = store.incarnation();
    store.fill(&id, &content).expect("fills");
    store.seal(&id, 8, here).expect("seals");
    let waits = gate.shut("complete", id);
    thread::scope(|scope| {
        scope.spawn(|| store.complete(&id, 8, 0, &content.bytes));
        waits.recv_timeout(NEVER).expect("it completes");
        let (tell, told) = mpsc::sync_channel(1);
        let sealing = store.clone();
        scope.spawn(move || {
            let sealed = sealing.seal(&id, 9, here);
            let _ = tell.send(sealed.is_ok());
        });
        let early = told.recv_timeout(Duration::from_millis(100));
        gate.open();
        assert!(early.is_err(), "its length was read while it was written");
        assert_eq!(told.recv_timeout(NEVER), Ok(true));
    });
    let late = store.complete(&id, 8, 0, &content.bytes);
    assert!(matches!(late, Err(Refusal::Sealed { .. })), "{late:?}");
}

#[test]
fn memory_that_cannot_be_given_back_is_tried_once_for_each_flush() {
    let limits = Limits {
        memory_bytes: 20 * u64::from(SEGMENT) + BESIDES + (80 << 10),
        ..roomy()
    };
    let (store, gate) = gated(&SimMemory::new(6), limits);
    *gate.keeps.lock().expect("sound") = true;
    let mut filled = Vec::new();
    for group in 1..=20 {
        let id = copy(group, 7);
        let content = segment(&id, 8, 700);
        let length = content.bytes.len() as u64;
        for (index, bytes) in content.bytes.chunks(4096).enumerate() {
            let address = index as u64 * 4096;
            let opened = store.opening(&id, store.incarnation(), address, 4096);
            let key = opened.expect("opens").buffers[0].key;
            let region = store.region(crate::stage::PRIMARY, key);
            let region = region.expect("is registered");
            region.place(0, bytes).expect("fits");
        }
        store.flush(&id, length, false).expect("flushes");
        filled.push((id, length));
    }
    let mut refused = 0;
    for group in 100..400 {
        let id = copy(group, 7);
        refused += usize::from(store.fill(&id, &segment(&id, 2, 500)).is_err());
    }
    assert!(refused > 200, "{refused} found no room");
    let tried = gate.tried.load(Ordering::Relaxed);
    assert!(
        tried <= 20,
        "{tried} times for {refused} that found no room"
    );
    // What is flushed again is tried again, and once it can be, it is.
    *gate.keeps.lock().expect("sound") = false;
    let (id, length) = filled[0];
    store.flush(&id, length, false).expect("flushes");
    let another = copy(500, 7);
    store
        .opening(&another, store.incarnation(), 0, 4096)
        .expect("there is room again");
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "nobody tells when a replica has come to its record"
)]
fn a_record_that_is_being_written_holds_up_nobody() {
    let dir = shared_dir();
    let limits = Limits {
        memory_bytes: 3 * u64::from(SEGMENT) + BESIDES,
        ..limits()
    };
    let memory = ShmMemory::new(options(dir.path(), true));
    let store = ReplicaStore::start(memory, limits, Faults::default()).expect("starts");
    let id = copy(1, 7);
    let content = segment(&id, 30, 700);
    let length = content.bytes.len() as u64;
    for (index, bytes) in content.bytes.chunks(SEGMENT as usize / 4).enumerate() {
        let address = index as u64 * u64::from(SEGMENT) / 4;
        let opened = store.opening(&id, store.incarnation(), address, SEGMENT / 4);
        let key = opened.expect("opens").buffers[0].key;
        let region = store.region(crate::stage::PRIMARY, key);
        region.expect("registered").place(0, bytes).expect("fits");
    }
    let other = copy(2, 7);
    store.fill(&other, &segment(&other, 2, 500)).expect("fills");
    // A pipe in the record's place: whoever writes it waits until somebody reads.
    let streamlet = format!("{}/{}", id.streamlet.stream, id.streamlet.streamlet);
    let record = dir.path().join("shared").join(streamlet).join("1.0.copy");
    let aside = record.with_extension("copy.new");
    std::fs::remove_file(&record).expect("is there");
    for pipe in [&record, &aside] {
        let made = Command::new("mkfifo").arg(pipe).status();
        assert!(made.expect("mkfifo can be run").success());
    }
    thread::scope(|scope| {
        let releasing = scope.spawn(|| store.flush(&id, length, false));
        let (tell, told) = mpsc::sync_channel(1);
        let asking = store.clone();
        scope.spawn(move || {
            // It may not have come to the record at the first.
            for _ in 0..50 {
                let next = 3 * u64::from(SEGMENT) / 4;
                let _ = asking.opening(&id, asking.incarnation(), next, 4096);
                let third = copy(3, 7);
                let opened = asking.opening(&third, asking.incarnation(), 0, 4096);
                opened.expect("there is room");
                asking
                    .seal(&elsewhere(9), 8, asking.incarnation())
                    .expect("seals");
                thread::sleep(Duration::from_millis(2));
            }
            let _ = tell.send(());
        });
        let went_on = told.recv_timeout(NEVER);
        for pipe in [&record, &aside] {
            // Whoever waits goes on.
            let opened = std::fs::File::options().read(true).write(true).open(pipe);
            std::mem::forget(opened.expect("a pipe"));
        }
        let _ = releasing.join();
        assert_eq!(went_on, Ok(()), "others waited for a record");
    });
}
