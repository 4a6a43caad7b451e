//! Groups that have copies elsewhere: their own file is put in order after their close, and what is
//! damaged in it is fetched from another copy, whoever meets it.

mod support;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use kera_log_segments::group::{AckPolicy, Group};
use kera_log_segments::io::fault::{CrashPlan, Fault, Flip};
use kera_log_segments::io::{Io, OpenHow};
use kera_log_segments::layout::SegmentHeader;
use kera_log_segments::pool::CHUNK_BYTES;
use kera_log_segments::read::ReadError;
use kera_log_segments::replicas::Mending;
use kera_log_segments::scan::read_mark;
use kera_log_segments::ship::Shipping;
use kera_log_segments::window::Place;
use kera_protocol::batch::mark_transactional;
use kera_protocol::ids::{Epoch, GroupId, LaneId};
use kera_streamlet::transactions::Ended;
use kera_streamlet::{
    AppendError, Appended, Copies, GroupOwner, LaneReadError, LaneReadSpec, Located, Outcome,
};
use support::batches::stamped;
use support::transactions::{end_of, grant};
use support::{LANE, Machine, Node, settings};

/// Elsewhere: groups as they were when their file was kept, and how often one was asked for.
struct Elsewhere {
    io: Arc<dyn Io>,
    next: AtomicU64,
    begun: Mutex<Vec<Arc<Group>>>,
    kept: Mutex<Vec<(GroupId, Vec<u8>)>>,
    asked: AtomicU64,
    /// Who may have what is not kept does not answer.
    is_away: AtomicBool,
    shipping: Arc<dyn Shipping>,
}

/// Ships nothing: tests say how far the copies are.
struct Still;

impl Shipping for Still {
    fn grew(&self) {}
    fn wrote(&self) {}
    fn froze(&self) {}
}

impl Elsewhere {
    fn new(io: &Arc<dyn Io>) -> Arc<Self> {
        Arc::new(Self {
            io: io.clone(),
            next: AtomicU64::new(1),
            begun: Mutex::default(),
            kept: Mutex::default(),
            asked: AtomicU64::new(0),
            is_away: AtomicBool::new(false),
            shipping: Arc::new(Still),
        })
    }

    fn group(&self) -> Arc<Group> {
        let begun = self.begun.lock().expect("groups");
        begun.last().expect("a group").clone()
    }

    /// Another copy has the group as its file is now.
    fn keep(&self, machine: &Machine, group: GroupId) {
        let bytes = file_bytes(machine, group);
        self.kept.lock().expect("copies").push((group, bytes));
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Copies for Elsewhere {
    fn next_group(&self, _: LaneId, _: AckPolicy) -> GroupId {
        GroupId(self.next.fetch_add(1, Ordering::SeqCst))
    }

    fn begin(&self, _: LaneId, group: &Arc<Group>) {
        let shipping: Weak<dyn Shipping> = Arc::downgrade(&self.shipping);
        group.ship_by(shipping);
        self.begun.lock().expect("groups").push(group.clone());
    }

    fn deleted(&self, _: &[(GroupId, Epoch, u32)]) {}

    fn mend(&self, group: GroupId) -> Mending {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let kept = self.kept.lock().expect("copies");
        let Some((_, bytes)) = kept.iter().find(|(kept, _)| *kept == group) else {
            return match self.is_away.load(Ordering::SeqCst) {
                true => Mending::NotYet,
                false => Mending::Nowhere,
            };
        };
        let begun = self.begun.lock().expect("groups");
        let known = begun.iter().find(|known| known.id() == group);
        let path = &known.expect("a known group").spec().path;
        let _may_be_gone = self.io.remove_file(path);
        let file = self.io.open(path, OpenHow::CreateNew, false);
        let file = file.expect("a new file");
        let written = file.write_vectored_at(&[std::io::IoSlice::new(bytes)], 0);
        written.expect("it is written");
        Mending::Done
    }

    fn abandon(&self) {}
}

fn file_bytes(machine: &Machine, group: GroupId) -> Vec<u8> {
    let file = machine
        .io
        .open(&machine.file(group.0), OpenHow::ReadOnly, false);
    let file = file.expect("a file");
    let mut bytes = vec![0; file.len().expect("a length") as usize];
    let read = file.read_at(&mut bytes, 0).expect("it is read");
    bytes.truncate(read);
    bytes
}

/// A streamlet whose copies are elsewhere, with nothing in it.
fn served(machine: &mut Machine) -> (Node, Arc<Elsewhere>) {
    let node = machine.create(settings(AckPolicy::Written));
    let elsewhere = Elsewhere::new(&machine.io);
    node.streamlet.serve(elsewhere.clone());
    (node, elsewhere)
}

/// Appends batches of three records, and says that all copies have them.
fn append(node: &Node, elsewhere: &Elsewhere, first: u64, batches: u64) {
    for batch in 0..batches {
        let from = first + batch * 3;
        let mut bytes = stamped(1, 0, from as i32, from..from + 3, 2000);
        let appended = node.place(0, &mut bytes).expect("it is taken");
        appended.group.pump(&node.env.pump);
    }
    let group = elsewhere.group();
    group.set_replicated(group.end());
}

/// The group ends, and its close is recorded.
fn close(node: &Node, elsewhere: &Elsewhere) -> GroupId {
    let group = elsewhere.group();
    node.streamlet.freeze_group(LANE, &group, node.now_ms);
    group.set_replicated(group.end());
    node.streamlet.group_ended(LANE, &group);
    group.id()
}

fn numbered(count: u64) -> Vec<(u64, u64)> {
    (0..count).map(|n| (n, n)).collect()
}

/// Nothing is left in memory.
fn forget(node: &Node) {
    node.streamlet.release_idle(u64::MAX, 0);
}

#[test]
fn an_own_file_that_could_not_be_written_is_written_again_after_the_close() {
    let mut machine = Machine::fault(1);
    let (node, elsewhere) = served(&mut machine);
    append(&node, &elsewhere, 0, 5);
    let fault = machine.fault.clone().expect("a fault engine");
    fault.inject(Fault::FailWrite { nth: 1 });
    append(&node, &elsewhere, 15, 1);
    let group = elsewhere.group();
    assert!(group.is_broken(), "its own file lacks what was appended");
    assert_eq!(node.read_all(LANE), numbered(18), "the copies have it");
    // The disk still refuses when it is closed.
    fault.inject(Fault::NoSpaceAfter { bytes: 0 });
    let id = close(&node, &elsewhere);
    node.work();
    forget(&node);
    assert!(group.is_broken());
    assert_eq!(node.read_all(LANE), numbered(18), "memory keeps it");
    fault.heal();
    node.streamlet.group_ended(LANE, &group);
    assert!(node.work());
    assert!(!group.is_broken());

    forget(&node);
    assert_eq!(node.read_all(LANE), numbered(18), "from the file");
    let whole = group.end().address as usize;
    let bytes = file_bytes(&machine, id);
    let expected = shipped(&group);
    assert_eq!(bytes[..whole], expected[..whole]);
    assert_eq!(elsewhere.asked(), 0, "nobody else was asked");
}

/// Files of `synced` streams are written around the page cache, by handles that take no more once a write has failed.
#[test]
fn an_own_file_of_a_synced_stream_is_written_again_after_the_close() {
    let mut machine = Machine::fault(1);
    let node = machine.create(settings(AckPolicy::Synced));
    let elsewhere = Elsewhere::new(&machine.io);
    node.streamlet.serve(elsewhere.clone());
    append(&node, &elsewhere, 0, 5);
    node.env.pump.drain();
    let fault = machine.fault.clone().expect("a fault engine");
    fault.inject(Fault::FailWrite { nth: 1 });
    append(&node, &elsewhere, 15, 1);
    node.env.pump.drain();
    let group = elsewhere.group();
    assert!(group.is_broken(), "its own file lacks what was appended");
    // The disk still refuses when it is closed.
    fault.inject(Fault::NoSpaceAfter { bytes: 0 });
    let id = close(&node, &elsewhere);
    node.work();
    assert!(group.is_broken());
    fault.heal();
    node.streamlet.group_ended(LANE, &group);
    assert!(node.work());
    assert!(!group.is_broken());

    forget(&node);
    assert_eq!(node.read_all(LANE), numbered(18), "from the file");
    let whole = group.end().address as usize;
    assert_eq!(file_bytes(&machine, id)[..whole], shipped(&group)[..whole]);
    assert_eq!(elsewhere.asked(), 0, "nobody else was asked");
}

#[test]
fn what_every_replica_has_counts_once_the_groups_before_it_do() {
    let mut machine = Machine::fault(23);
    let (node, elsewhere) = served(&mut machine);
    let head = node.streamlet.head(LANE).expect("a lane");
    let mut next = 0;
    let mut append = || {
        let mut bytes = stamped(1, 0, next as i32, next..next + 3, 2000);
        next += 3;
        let appended = node.place(0, &mut bytes).expect("it is taken");
        appended.group.pump(&node.env.pump);
        (elsewhere.group(), appended)
    };
    let (first, of_first) = append();
    node.streamlet.freeze_group(LANE, &first, node.now_ms);
    let (second, of_second) = append();
    second.set_replicated(second.end());
    assert_eq!(head.ordinal(), 0, "a replica lacks the group before it");
    assert_eq!(of_second.outcome(), Outcome::Pending);
    // Told late, and of less than was told before.
    first.set_replicated(first.end());
    first.set_replicated(Place {
        address: 1,
        ordinal: 1,
    });
    assert_eq!(of_first.outcome(), Outcome::Durable);
    assert_eq!(of_second.outcome(), Outcome::Durable);
    assert_eq!(head.ordinal(), 6);
}

/// A group may be closed before slow disks have it.
#[test]
fn what_is_closed_is_settled_once_enough_replicas_are_on_disk() {
    let mut machine = Machine::fault(29);
    let (node, elsewhere) = served(&mut machine);
    append(&node, &elsewhere, 0, 5);
    let streamlet = &node.streamlet;
    assert_eq!(streamlet.settled(LANE), Some(0));
    let first = close(&node, &elsewhere);
    assert_eq!(streamlet.settled(LANE), Some(0), "it is closed, no more");
    streamlet.group_flushed(LANE, (first, 1), false);
    assert_eq!(streamlet.settled(LANE), Some(0), "another file of it");
    streamlet.group_flushed(LANE, (first, 0), true);
    assert_eq!(streamlet.settled(LANE), Some(0), "its own file is one");
    assert!(node.work());
    assert_eq!(streamlet.settled(LANE), Some(15));
    assert!(streamlet.unflushed_closed().is_empty());

    append(&node, &elsewhere, 15, 1);
    let second = close(&node, &elsewhere);
    assert!(node.work());
    assert_eq!(streamlet.settled(LANE), Some(15));
    assert_eq!(streamlet.unflushed_closed(), [(second, 0)]);
    streamlet.group_flushed(LANE, (second, 0), false);
    assert_eq!(streamlet.settled(LANE), Some(18));
    assert!(streamlet.unflushed_closed().is_empty());
}

/// A turn of the pump may come when its group is given up, whose file nobody would find any more.
#[test]
fn a_group_that_was_given_up_gets_no_file_afterwards() {
    let mut machine = Machine::fault(2);
    let (node, elsewhere) = served(&mut machine);
    append(&node, &elsewhere, 0, 2);
    close(&node, &elsewhere);
    node.work();
    // The lane's next group begins, and takes nothing.
    let mut early = stamped(1, 0, 99, 99..102, 2000);
    let refused = node.place(0, &mut early);
    assert!(matches!(refused, Err(AppendError::Sequence(_))));
    let empty = elsewhere.group();
    let id = close(&node, &elsewhere);
    assert_eq!(id, GroupId(2));
    node.work();
    let is_there = || {
        let file = machine.io.open(&machine.file(2), OpenHow::ReadOnly, false);
        file.is_ok()
    };
    assert!(!is_there());
    let late = empty.file().map(drop).expect_err("it is over");
    assert_eq!(late.kind(), std::io::ErrorKind::NotFound);
    assert!(!is_there());
    assert!(node.streamlet.strays().expect("it is listed").is_empty());
}

/// Of a group that is recorded ahead there is a file before that. It becomes the group's, or goes.
#[test]
fn a_file_made_ahead_is_its_groups_or_goes() {
    for ack in [AckPolicy::Written, AckPolicy::Synced] {
        let mut machine = Machine::fault(6);
        let node = machine.create(settings(ack));
        let elsewhere = Elsewhere::new(&machine.io);
        node.streamlet.serve(elsewhere.clone());
        let io = machine.io.clone();
        let is_there = |group: u64| {
            io.open(&machine.file(group), OpenHow::ReadOnly, false)
                .is_ok()
        };
        let ahead = |group| node.streamlet.make_ahead(LANE, GroupId(group), ack);
        assert!((1..=4).all(ahead) && (1..=4).all(is_there));
        let strays = || node.streamlet.strays().expect("it is listed");
        assert!(strays().is_empty(), "their records may be on their way");

        append(&node, &elsewhere, 0, 5);
        close(&node, &elsewhere);
        node.work();
        forget(&node);
        assert_eq!(
            node.read_all(LANE),
            numbered(15),
            "from the file made ahead"
        );
        // One that begins and takes nothing leaves nothing.
        let mut early = stamped(1, 0, 99, 99..102, 2000);
        let refused = node.place(0, &mut early);
        assert!(matches!(refused, Err(AppendError::Sequence(_))));
        assert_eq!(close(&node, &elsewhere), GroupId(2));
        node.work();
        assert!(!is_there(2));

        node.streamlet.drop_ahead(GroupId(3), true);
        assert!(!is_there(3) && strays().is_empty());
        node.streamlet.drop_ahead(GroupId(4), false);
        assert!(is_there(4), "a record may name it");
        let found = strays();
        let recorded = [(GroupId(4), 0)].into();
        assert_eq!(node.streamlet.remove_strays(&found, &recorded), 0);
        assert_eq!(node.streamlet.remove_strays(&found, &[].into()), 1);
        assert!(!is_there(4));
    }
}

/// Its owner says whether anything was acknowledged in such a group by its file, so there is one.
#[test]
fn a_loss_of_power_leaves_the_files_of_synced_groups_that_are_recorded() {
    for (seed, is_ahead) in (0..32).map(|number| (number / 2, number % 2 == 0)) {
        let mut machine = Machine::fault(seed);
        let node = machine.create(settings(AckPolicy::Synced));
        let elsewhere = Elsewhere::new(&machine.io);
        node.streamlet.serve(elsewhere.clone());
        if is_ahead {
            let ack = AckPolicy::Synced;
            assert!(node.streamlet.make_ahead(LANE, GroupId(1), ack));
        } else {
            let mut bytes = stamped(1, 0, 0, 0..3, 2000);
            let appended = node.place(0, &mut bytes).expect("it is taken");
            let made = appended.group.make_file_to_record();
            made.expect("it is made");
            assert_eq!(appended.group.id(), GroupId(1));
        }
        drop(elsewhere);
        machine.power_loss(node, usize::MAX, &CrashPlan::power_loss(seed));
        let found = machine.io.open(&machine.file(1), OpenHow::ReadOnly, false);
        assert!(found.is_ok(), "seed {seed}, ahead: {is_ahead}");
    }
}

/// One that cannot be kept is not recorded.
#[test]
fn a_file_whose_name_cannot_be_made_durable_is_not_made_ahead() {
    let mut machine = Machine::fault(8);
    let node = machine.create(settings(AckPolicy::Synced));
    node.streamlet.serve(Elsewhere::new(&machine.io));
    let fault = machine.fault.clone().expect("a fault engine");
    let ahead = |ack| node.streamlet.make_ahead(LANE, GroupId(1), ack);
    fault.inject(Fault::FailSync { nth: 1 });
    assert!(!ahead(AckPolicy::Synced));
    assert!(!machine.io.exists(&machine.file(1)));
    assert!(ahead(AckPolicy::Synced));
    fault.heal();
}

/// A process answers for what it remembers, and no file; and a disk that is full takes none.
#[test]
fn no_file_is_made_ahead_of_a_group_that_is_remembered_or_of_a_full_disk() {
    let mut machine = Machine::fault(7);
    let (node, _) = served(&mut machine);
    let is_there = || {
        machine
            .io
            .open(&machine.file(1), OpenHow::ReadOnly, false)
            .is_ok()
    };
    let ahead = |ack| node.streamlet.make_ahead(LANE, GroupId(1), ack);
    assert!(ahead(AckPolicy::Memory) && !is_there());
    let fault = machine.fault.clone().expect("a fault engine");
    fault.inject(Fault::NoSpaceAfter { bytes: 0 });
    assert!(!ahead(AckPolicy::Written) && !is_there());
    fault.heal();
    assert!(ahead(AckPolicy::Written) && is_there());
}

#[test]
fn what_is_not_whole_after_it_was_written_again_does_not_count_as_synced() {
    let mut machine = Machine::fault(5);
    let (node, elsewhere) = served(&mut machine);
    append(&node, &elsewhere, 0, 5);
    let fault = machine.fault.clone().expect("a fault engine");
    fault.inject(Fault::FailWrite { nth: 1 });
    append(&node, &elsewhere, 15, 1);
    let group = elsewhere.group();
    let before = group.synced();
    fault.inject(Fault::GarbleWrite { nth: 1 });
    let id = close(&node, &elsewhere);
    node.work();
    assert!(group.is_broken(), "its own file holds another byte");
    assert_eq!(group.synced(), before, "a mark speaks of what was checked");
    group.write_mark(&machine.incarnation).expect("a mark");
    let file = machine
        .io
        .open(&machine.file(id.0), OpenHow::ReadOnly, false);
    let mark = read_mark(&*file.expect("a file"), group.spec().group_bytes());
    let mark = mark.expect("it is read").expect("a mark");
    assert_eq!(mark.synced, before.address);
}

#[test]
fn a_disk_that_takes_nothing_costs_a_few_groups_and_then_appends_are_refused() {
    let mut machine = Machine::fault(3);
    let (node, elsewhere) = served(&mut machine);
    let fault = machine.fault.clone().expect("a fault engine");
    let begun = || elsewhere.begun.lock().expect("groups").len();
    let next = Cell::new(0);
    // The own file takes none of it; the copies do.
    let failing = || {
        fault.heal();
        fault.inject(Fault::FailWrite { nth: 1 });
        let from = next.get();
        let mut bytes = stamped(1, 0, from as i32, from..from + 3, 2000);
        let appended = node.place(0, &mut bytes)?;
        appended.group.pump(&node.env.pump);
        assert!(appended.group.is_broken());
        appended.group.set_replicated(appended.group.end());
        next.set(from + 3);
        Ok(())
    };
    for few in 1..=3 {
        assert_eq!(failing(), Ok(()));
        assert_eq!(begun(), few, "each ends a group");
    }
    for _ in 0..20 {
        assert_eq!(failing(), Err(AppendError::DiskFailing));
        assert_eq!(begun(), 4);
    }
    assert!(node.streamlet.refuses_to_write());
    assert_eq!(node.read_all(LANE), numbered(9), "reads go on");
    // Files can be written, it was said; and the next group fails all the same.
    node.streamlet.take_appends_again();
    assert_eq!(failing(), Ok(()));
    assert_eq!(failing(), Err(AppendError::DiskFailing));
    assert_eq!(begun(), 5);

    fault.heal();
    node.streamlet.take_appends_again();
    append(&node, &elsewhere, next.get(), 1);
    let id = close(&node, &elsewhere);
    assert!(node.work());
    assert!(
        elsewhere
            .begun
            .lock()
            .expect("groups")
            .iter()
            .any(|g| g.id() == id && !g.is_broken())
    );
    next.set(next.get() + 3);
    // It is whole: what was before does not count any more.
    assert_eq!(failing(), Ok(()));
    assert_eq!(failing(), Ok(()));
    assert!(!node.streamlet.refuses_to_write());
}

/// All that the group ships, as one.
fn shipped(group: &Group) -> Vec<u8> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < group.end().address {
        let shipped = group.ship(bytes.len() as u64, usize::MAX);
        let read = shipped.on_disk.map(|range| group.read_back(range));
        let read = read.map(|read| read.expect("it can be read"));
        for run in shipped.runs.into_iter().chain(read) {
            assert_eq!(run.address, bytes.len() as u64, "one segment");
            run.parts.iter().for_each(|p| bytes.extend_from_slice(p));
        }
    }
    bytes
}

#[test]
fn what_copies_have_not_taken_stays_in_memory_as_long_as_there_is_plenty() {
    const POOL: usize = 64;
    let mut machine = Machine::fault(21);
    machine.pool_bytes = POOL * CHUNK_BYTES;
    machine.limits.keep_chunks = 1;
    let mut wide = settings(AckPolicy::Written);
    wide.segment_size = 2 * POOL as u32 * CHUNK_BYTES as u32;
    let node = machine.create(wide);
    let elsewhere = Elsewhere::new(&machine.io);
    node.streamlet.serve(elsewhere.clone());
    let fault = machine.fault.clone().expect("a fault engine");
    let mut next = 0;
    let mut append = |chunks: usize| {
        for _ in 0..2 * chunks {
            let mut bytes = stamped(1, 0, next, next as u64..next as u64 + 1, CHUNK_BYTES / 2);
            let appended = node.place(0, &mut bytes).expect("there is memory");
            appended.group.pump(&node.env.pump);
            next += 1;
        }
    };

    append(POOL / 4);
    let group = elsewhere.group();
    assert_eq!(group.written(), group.end());
    let before = fault.counts().reads;
    let from_memory = shipped(&group);
    assert_eq!(fault.counts().reads, before, "nothing is read back");
    assert_eq!(
        from_memory,
        file_bytes(&machine, group.id())[..from_memory.len()]
    );

    group.set_replicated(group.end());
    append(1);
    assert!(
        group.memory_bytes() <= 4 * CHUNK_BYTES,
        "{}",
        group.memory_bytes()
    );

    // A copy that does not get on costs no more than half of the pool, and nobody an append.
    append(POOL);
    assert!(group.memory_bytes() <= (POOL / 2 + 1) * CHUNK_BYTES);
    let before = fault.counts().reads;
    let all = shipped(&group);
    assert!(
        fault.counts().reads > before,
        "the rest comes from the file"
    );
    assert_eq!(all, file_bytes(&machine, group.id())[..all.len()]);
}

/// A closed group whose file is gone, of which another copy is kept if `kept`.
fn robbed(machine: &mut Machine, kept: bool) -> (Node, Arc<Elsewhere>) {
    let (node, elsewhere) = served(machine);
    append(&node, &elsewhere, 0, 5);
    let id = close(&node, &elsewhere);
    assert!(node.work());
    if kept {
        elsewhere.keep(machine, id);
    }
    forget(&node);
    // A start knows its groups by their records, and has none of their files open.
    let group = elsewhere.group();
    machine.io.remove_file(&group.spec().path).expect("it goes");
    (node, elsewhere)
}

#[test]
fn a_time_is_found_though_the_own_file_is_gone() {
    let mut machine = Machine::fault(2);
    let (node, elsewhere) = robbed(&mut machine, true);
    let here = node.streamlet.find_time_here(LANE, 0);
    assert!(matches!(here, Err(LaneReadError::Group(_))), "{here:?}");
    assert_eq!(elsewhere.asked(), 0, "who must not wait does not ask");
    let found = node.streamlet.find_time(LANE, 0).expect("it is fetched");
    assert_eq!(found.ordinal, 0);
    assert_eq!(elsewhere.asked(), 1);
    let again = node.streamlet.find_time_here(LANE, 0);
    assert_eq!(again.expect("it is there").ordinal, 0);
    assert_eq!(node.read_all(LANE), numbered(15));
    assert_eq!(elsewhere.asked(), 1);
}

#[test]
fn a_range_is_cut_though_the_own_file_is_gone() {
    let mut machine = Machine::fault(3);
    let (node, elsewhere) = robbed(&mut machine, true);
    let here = node.streamlet.batch_boundary_here(LANE, 4, 1, 6);
    assert!(matches!(here, Err(LaneReadError::Group(_))), "{here:?}");
    let cut = node.streamlet.batch_boundary(LANE, 4, 1, 6);
    let (start, end) = cut.expect("it is fetched").expect("a range");
    assert_eq!((start.ordinal, end), (4, 6));
    assert_eq!(elsewhere.asked(), 1);
}

/// An owner died between the file of a group and its record, and the next one gave the id to another group.
#[test]
fn a_file_of_another_epoch_is_not_the_groups() {
    for is_kept in [true, false] {
        let mut machine = Machine::fault(5);
        let (node, elsewhere) = served(&mut machine);
        append(&node, &elsewhere, 0, 5);
        let id = close(&node, &elsewhere);
        assert!(node.work());
        elsewhere.keep(&machine, id);
        // As a take-over knows the group: by its record.
        assert!(node.streamlet.fetch_again(LANE, id));
        if !is_kept {
            elsewhere.kept.lock().expect("copies").clear();
        }
        let mut bytes = file_bytes(&machine, id);
        let mut header = SegmentHeader::decode(&bytes).expect("a header");
        header.epoch = Epoch(header.epoch.0 + 7);
        let encoded = header.encode();
        bytes[..encoded.len()].copy_from_slice(&encoded);
        let path = machine.file(id.0);
        machine.io.remove_file(&path).expect("it goes");
        let file = machine.io.open(&path, OpenHow::CreateNew, false);
        let written = file
            .expect("a new file")
            .write_vectored_at(&[std::io::IoSlice::new(&bytes)], 0);
        written.expect("it is written");
        if is_kept {
            assert_eq!(node.read_all(LANE), numbered(15), "it is fetched");
        } else {
            let read = node.streamlet.find_time(LANE, 0);
            let Err(LaneReadError::Group(ReadError::Io { error, .. })) = read else {
                panic!("its replicas may answer later: {read:?}");
            };
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
            assert!(error.to_string().contains("belongs to"), "{error}");
        }
        assert_eq!(elsewhere.asked(), 2);
    }
}

/// A transaction of producer 7 with one batch, which only this broker has.
fn begin_transaction(node: &Node) -> Appended {
    assert!(grant(node, 7, 1));
    let mut batch = stamped(7, 0, 0, 90..93, 2000);
    mark_transactional(&mut batch);
    let appended = node.place(0, &mut batch).expect("it is taken");
    appended.group.pump(&node.env.pump);
    appended
}

fn abort_transaction(node: &Node) {
    let end = end_of(7, 1, false);
    let ended = node.streamlet.end_transaction(LANE, &end, node.now_ms);
    let Ok(Ended::Marked(marker)) = ended else {
        panic!("{ended:?}");
    };
    marker.group.pump(&node.env.pump);
}

/// Producers of aborted transactions, and where those began, as a reader from the start is told.
fn aborted(node: &Node) -> Vec<(i64, u64)> {
    let read = node.streamlet.read_committed(LaneReadSpec {
        lane: LANE,
        from: Located::default(),
        end_ordinal: u64::MAX,
        max_bytes: 1 << 20,
        cached_only: false,
    });
    let aborted = read.expect("it is fetched").aborted;
    let aborted = aborted.iter().map(|end| (end.producer, end.first));
    aborted.collect()
}

/// Whether what was read was aborted stands in the next group.
#[test]
fn a_marker_is_found_though_the_own_file_of_its_group_is_gone() {
    let mut machine = Machine::fault(8);
    machine.limits.max_known_ends = 0;
    let (node, elsewhere) = served(&mut machine);
    append(&node, &elsewhere, 0, 1);
    begin_transaction(&node);
    let first = close(&node, &elsewhere);
    append(&node, &elsewhere, 3, 1);
    abort_transaction(&node);
    let second = close(&node, &elsewhere);
    append(&node, &elsewhere, 6, 1);
    assert!(node.work() && first < second);
    elsewhere.keep(&machine, second);
    forget(&node);
    machine
        .io
        .remove_file(&machine.file(second.0))
        .expect("it goes");
    assert_eq!(aborted(&node), [(7, 3)]);
    assert_eq!(elsewhere.asked(), 1);
}

/// The bits of a batch that say whether it is of a transaction, and whether it is a marker, are covered by its checksum
/// alone. What was aborted is known again once its marker is whole again.
#[test]
fn a_marker_that_does_not_look_like_one_any_more_is_fetched() {
    for bit in [4, 5] {
        let mut machine = Machine::fault(8);
        let (node, elsewhere) = served(&mut machine);
        append(&node, &elsewhere, 0, 1);
        let appended = begin_transaction(&node);
        // Of its marker.
        let address = appended.group.end().address;
        abort_transaction(&node);
        let group = close(&node, &elsewhere);
        append(&node, &elsewhere, 3, 1);
        assert!(node.work());
        elsewhere.keep(&machine, group);
        let flip = Flip {
            path: machine.file(group.0),
            offset: address + 22,
            bit,
        };
        let fault = machine.fault.as_ref().expect("the double");
        fault.flip(&flip).expect("the file");
        forget(&node);
        for _ in 0..2 {
            assert_eq!(aborted(&node), [(7, 3)], "bit {bit}");
        }
        assert_eq!(elsewhere.asked(), 1);
    }
}

#[test]
fn what_nobody_else_has_is_told_as_damaged() {
    let mut machine = Machine::fault(4);
    let (node, elsewhere) = robbed(&mut machine, false);
    assert!(node.streamlet.find_time(LANE, 0).is_err());
    assert!(node.streamlet.batch_boundary(LANE, 0, 1, 6).is_err());
    assert_eq!(elsewhere.asked(), 2, "each time anew");
}

/// What is missing may be whole at a broker that is away: nobody is told that it is damaged before that is known.
#[test]
fn what_a_broker_may_have_that_does_not_answer_is_waited_for() {
    let mut machine = Machine::fault(4);
    let (node, elsewhere) = robbed(&mut machine, false);
    elsewhere.is_away.store(true, Ordering::SeqCst);
    let from = Located {
        ordinal: 0,
        at: None,
    };
    let is_awaited = |error| matches!(error, LaneReadError::Awaited { .. });
    assert!(node.streamlet.find_time(LANE, 0).is_err_and(is_awaited));
    let boundary = node.streamlet.batch_boundary(LANE, 0, 1, 6);
    assert!(boundary.is_err_and(is_awaited));
    let read = node.read_at(LANE, from, 1 << 20, u64::MAX);
    assert!(read.is_err_and(is_awaited));
    elsewhere.is_away.store(false, Ordering::SeqCst);
    let read = node.read_at(LANE, from, 1 << 20, u64::MAX);
    assert!(
        read.is_err_and(|error| !is_awaited(error)),
        "it is known now"
    );
}
