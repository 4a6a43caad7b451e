//! Where a write was cut short, recovery ends exactly before it; what is damaged is told from what
//! is torn, and neither is ever served.

mod support;

use kera_log_segments::group::AckPolicy;
use kera_log_segments::io::fault::{CrashPlan, FaultIo, Flip};
use kera_log_segments::read::ReadError;
use kera_protocol::batch::{HEADER_BYTES, patch};
use kera_protocol::ids::Epoch;
use kera_streamlet::{LaneReadError, Recovery};
use support::batches::{plain, stamped};
use support::{LANE, Machine, settings};

/// Bytes of a batch before those that its checksum covers, the checksum itself not counted.
const UNCOVERED: usize = 17;

/// A machine that was killed after five batches, and where the last of them stands.
struct Scene {
    machine: Machine,
    group: u64,
    at: u64,
    len: usize,
    /// Records before the last batch.
    before: usize,
}

/// Writes batches of `make(index)`; the last is the one to be torn.
fn scene(make: &dyn Fn(usize) -> Vec<u8>) -> Scene {
    let mut machine = Machine::fault(1);
    let mut roomy = settings(AckPolicy::Written);
    roomy.segment_size = 256 * 1024;
    let node = machine.create(roomy);
    let mut place = (0, 0);
    for index in 0..5 {
        let mut batch = make(index);
        let at = node.streamlet.describe()[0]
            .groups
            .last()
            .map_or(0, |g| g.bytes);
        let appended = node.append(0, &mut batch);
        place = (at, batch.len());
        assert_eq!(appended.group.id().0, 1);
    }
    let before = node.read_all(LANE).len() - 3;
    machine.kill(node, 0);
    Scene {
        machine,
        group: 1,
        at: place.0,
        len: place.1,
        before,
    }
}

impl Scene {
    /// Recovers with the last batch cut to `cut` bytes over `below` (zeros if `None`).
    fn recover(&self, cut: usize, below: Option<&[u8]>) -> (Machine, support::Node, Recovery) {
        let mut machine = Machine::fault(2);
        machine.store = std::sync::Arc::new(support::store::Store::default());
        let (copy, _) = self.fault().crash(&CrashPlan::kill());
        machine.store.copy_from(&self.machine.store);
        machine.io = std::sync::Arc::new(copy.clone());
        let file = machine.file(self.group);
        let rest = match below {
            Some(stale) => stale[cut..].to_vec(),
            None => vec![0; self.len - cut],
        };
        copy.plant(&file, self.at + cut as u64, &rest)
            .expect("the file");
        machine.fault = Some(copy);
        machine.skip_epochs(1);
        let mut roomy = settings(AckPolicy::Written);
        roomy.segment_size = 256 * 1024;
        let (node, recovery) = machine.recover(roomy);
        (machine, node, recovery)
    }

    fn fault(&self) -> &FaultIo {
        self.machine.fault.as_ref().expect("a fault engine")
    }

    fn expect_exactly_before(&self, cut: usize, below: Option<&[u8]>) {
        let (_, node, recovery) = self.recover(cut, below);
        let found = node.read_all(LANE);
        let expected: Vec<_> = (0..self.before as u64).map(|n| (n, n)).collect();
        assert_eq!(found, expected, "cut at byte {cut} of {}", self.len);
        assert_eq!(node.head(LANE), self.before as u64, "cut at byte {cut}");
        assert!(
            recovery.gaps.is_empty() && recovery.reports.is_empty(),
            "torn, not damaged: {recovery:?}"
        );
        // The lane goes on right there, in a new group.
        let appended = node.append(0, &mut plain(77..78, 10));
        assert_eq!(appended.base_ordinal, self.before as u64);
    }
}

#[test]
fn a_tear_at_every_byte_over_zeros() {
    let scene = scene(&|index| plain(index as u64 * 3..index as u64 * 3 + 3, 40));
    for cut in 0..scene.len {
        scene.expect_exactly_before(cut, None);
    }
    let (_, node, _) = scene.recover(scene.len, None);
    assert_eq!(
        node.read_all(LANE).len(),
        scene.before + 3,
        "uncut, it counts"
    );
}

/// What may lie below a torn batch where a file system shows stale bytes: a batch of equal size
/// with its own valid checksum.
fn stale(mut batch: Vec<u8>, ordinal: u64, epoch: u32, scene: &Scene) -> Vec<u8> {
    assert_eq!(batch.len(), scene.len, "of equal size");
    patch(&mut batch, ordinal, Epoch(epoch));
    batch
}

#[test]
fn a_tear_at_every_byte_over_stale_bytes() {
    // The default: idempotent producers. The stale batch is one the same producer sent before.
    let make = |index: usize| {
        stamped(
            5,
            0,
            index as i32 * 3,
            index as u64 * 3..index as u64 * 3 + 3,
            40,
        )
    };
    let scene = scene(&make);
    for (name, ordinal, epoch) in [
        (
            "of an older epoch, where it should stand",
            scene.before as u64,
            0,
        ),
        ("of an older epoch, elsewhere", 3, 0),
        ("of the same epoch with a lower ordinal", 3, 1),
        ("of the same epoch with a higher ordinal", 300, 1),
    ] {
        let below = stale(make(1), ordinal, epoch, &scene);
        for cut in 0..scene.len {
            println!("stale {name}, cut at {cut}");
            scene.expect_exactly_before(cut, Some(&below));
        }
    }
}

#[test]
fn a_tear_at_every_byte_over_stale_bytes_without_a_producer() {
    // Without a producer's sequence nothing in the bytes tells a batch's first bytes over another's
    // whole rest from a batch: the checksum does not cover them. It takes a cut within these few
    // bytes and stale bytes in a file that was never anything else; every other cut is found.
    let scene = scene(&|index| plain(index as u64 * 3..index as u64 * 3 + 3, 40));
    let whole = scene
        .fault()
        .contents(&scene.machine.file(1))
        .expect("the file");
    let new = &whole[scene.at as usize..scene.at as usize + scene.len];
    for (ordinal, epoch) in [(scene.before as u64, 0), (3, 0), (3, 1)] {
        let below = stale(plain(3..6, 40), ordinal, epoch, &scene);
        for cut in 0..scene.len {
            let found = [&new[..cut], &below[cut..]].concat();
            if found[..UNCOVERED] == new[..UNCOVERED] && found[UNCOVERED..] == below[UNCOVERED..] {
                assert!(cut <= UNCOVERED + 2, "cut at {cut}: only by chance equal");
                let (_, node, _) = scene.recover(cut, Some(&below));
                assert_eq!(
                    node.read_all(LANE).len(),
                    scene.before + 3,
                    "a whole batch by every rule"
                );
            } else {
                scene.expect_exactly_before(cut, Some(&below));
            }
        }
    }
}

#[test]
fn a_tear_in_the_first_bytes_of_a_segment_or_group() {
    // The second segment begins with the last batch; cut anywhere in its header.
    let mut machine = Machine::fault(3);
    let node = machine.create(settings(AckPolicy::Written));
    let mut id = 0;
    while node.streamlet.describe()[0]
        .groups
        .first()
        .is_none_or(|g| g.bytes <= 64 * 1024)
    {
        node.append(0, &mut plain(id..id + 1, 3000));
        id += 1;
    }
    let end = node.streamlet.describe()[0].groups[0].bytes;
    machine.kill(node, 0);
    let fault = machine.fault.clone().expect("a fault engine");
    for start in [64 * 1024, 0] {
        for cut in (start..start + 96).chain([start + 97, end - 1]) {
            let (copy, _) = fault.crash(&CrashPlan::kill());
            copy.plant(&machine.file(1), cut, &vec![0; (end - cut) as usize])
                .expect("the file");
            let mut other = Machine::fault(4);
            other.store.copy_from(&machine.store);
            other.io = std::sync::Arc::new(copy.clone());
            other.fault = Some(copy);
            other.skip_epochs(1);
            let (node, recovery) = other.recover(settings(AckPolicy::Written));
            let expected = if cut == end - 1 || start > 0 {
                id - 1
            } else {
                0
            };
            assert_eq!(
                node.read_all(LANE).len() as u64,
                expected,
                "cut at byte {cut}"
            );
            assert!(
                recovery.gaps.is_empty() && recovery.reports.is_empty(),
                "{recovery:?}"
            );
            assert_eq!(node.append(0, &mut plain(0..1, 10)).base_ordinal, expected);
        }
    }
}

/// Five batches, marked durable; returns where each of them begins and the end.
fn marked(machine: &mut Machine) -> (support::Node, Vec<u64>) {
    let node = machine.create(settings(AckPolicy::Written));
    let mut places = Vec::new();
    for index in 0..5u64 {
        let at = node.streamlet.describe()[0]
            .groups
            .last()
            .map_or(0, |g| g.bytes);
        places.push(if index == 0 { 0 } else { at });
        node.append(0, &mut plain(index * 3..index * 3 + 3, 40));
    }
    places.push(node.streamlet.describe()[0].groups[0].bytes);
    node.streamlet.write_out();
    node.streamlet.mark();
    (node, places)
}

#[test]
fn damage_below_the_durable_mark_is_told_from_a_torn_tail() {
    let mut machine = Machine::fault(5);
    let (node, places) = marked(&mut machine);
    machine.kill(node, 0);
    let fault = machine.fault.clone().expect("a fault engine");
    // The third batch's header is gone: below the mark, so it was there.
    fault
        .plant(&machine.file(1), places[2], &[0; HEADER_BYTES])
        .expect("the file");
    let (node, recovery) = machine.recover(settings(AckPolicy::Written));
    assert_eq!(
        node.read_all(LANE),
        (0..6).map(|n| (n, n)).collect::<Vec<_>>(),
        "nothing damaged is served"
    );
    let report = recovery.reports.join("\n");
    for part in [
        "damaged",
        &machine.file(1).display().to_string(),
        &format!("byte {}", places[2]),
        "ordinal 6",
    ] {
        assert!(report.contains(part), "{part} is not in {report:?}");
    }
    assert_eq!(
        recovery.gaps,
        [(LANE, 6, 6 + (1 << 32))],
        "what was shown is not numbered again"
    );
    let appended = node.append(0, &mut plain(100..101, 10));
    assert_eq!(appended.base_ordinal, 6 + (1 << 32));
    // A reader comes over the gap, now and after the next start.
    let expected: Vec<_> = (0..6)
        .map(|n| (n, n))
        .chain([(6 + (1 << 32), 100)])
        .collect();
    assert_eq!(node.read_all(LANE), expected);
    machine.kill(node, 0);
    let (node, recovery) = machine.recover(settings(AckPolicy::Written));
    assert!(recovery.gaps.is_empty(), "{recovery:?}");
    assert_eq!(node.read_all(LANE), expected);
    assert_eq!(
        node.append(0, &mut plain(101..102, 10)).base_ordinal,
        7 + (1 << 32)
    );
}

#[test]
fn a_mark_of_another_boot_does_not_bind_what_was_only_written() {
    let mut machine = Machine::fault(6);
    let (node, places) = marked(&mut machine);
    let mut plan = CrashPlan::kill();
    plan.plants.clear();
    let file = machine.file(1);
    drop(node);
    let (after, _) = machine.fault.as_ref().expect("a fault engine").crash(&plan);
    after.plant(&file, places[4], &[0; 100]).expect("the file");
    machine.io = std::sync::Arc::new(after.clone());
    machine.fault = Some(after);
    support::next_boot(&mut machine.incarnation);
    let (node, recovery) = machine.recover(settings(AckPolicy::Written));
    assert_eq!(node.read_all(LANE).len(), 12);
    assert!(
        !recovery.reports.join("\n").contains("damaged"),
        "{recovery:?}"
    );
    assert_eq!(
        recovery.gaps,
        [(LANE, 12, 12 + (1 << 32))],
        "but what was shown may be lost"
    );
}

#[test]
fn a_flipped_bit_is_found_on_read_and_never_served() {
    let mut machine = Machine::fault(7);
    let (node, places) = marked(&mut machine);
    machine.kill(node, 0);
    let fault = machine.fault.clone().expect("a fault engine");
    // In a record of the third batch: headers are walked below the mark, so only a read meets it.
    let flip = Flip {
        path: machine.file(1),
        offset: places[2] + 80,
        bit: 3,
    };
    fault.flip(&flip).expect("the file");
    let (node, recovery) = machine.recover(settings(AckPolicy::Written));
    assert!(
        recovery.gaps.is_empty() && recovery.reports.is_empty(),
        "{recovery:?}"
    );
    assert_eq!(node.head(LANE), 15);
    for max_bytes in [1, usize::MAX] {
        let error = node.read_from(LANE, 0, max_bytes).expect_err("damaged");
        let LaneReadError::Group(ReadError::Damaged {
            file,
            offset,
            ordinal,
            ..
        }) = &error
        else {
            panic!("{error}")
        };
        assert_eq!(
            (file.as_str(), *offset, *ordinal),
            (&*machine.file(1).display().to_string(), places[2], 6)
        );
        // What comes before and after it is served.
        let before = node
            .read_at(
                LANE,
                kera_streamlet::Located::default(),
                max_bytes,
                u64::MAX,
            )
            .expect("a read");
        assert!(before.batches > 0 && before.next.ordinal <= 6);
        assert_eq!(node.read_from(LANE, 9, max_bytes).expect("a read").len(), 6);
    }
    // Closed, unloaded and read again: still found.
    node.streamlet.write_out();
    assert!(node.work());
    node.streamlet.release_idle(node.now_ms + 60_000, 0);
    assert!(node.read_from(LANE, 0, 100).is_err());
}

#[test]
fn every_flipped_bit_above_the_mark_ends_the_group_there() {
    let scene = scene(&|index| plain(index as u64 * 3..index as u64 * 3 + 3, 40));
    let whole = scene
        .fault()
        .contents(&scene.machine.file(1))
        .expect("the file");
    let batch = &whole[scene.at as usize..scene.at as usize + scene.len];
    for at in 0..scene.len {
        let mut bad = batch.to_vec();
        bad[at] ^= 1 << (at % 8);
        scene.expect_exactly_before(0, Some(&bad));
    }
}

#[test]
fn a_file_of_a_newer_format_or_of_another_group_is_left_alone() {
    let mut machine = Machine::fault(8);
    let (node, _) = marked(&mut machine);
    machine.kill(node, 0);
    let fault = machine.fault.clone().expect("a fault engine");
    fault.plant(&machine.file(1), 8, &[99]).expect("the file");
    let error = machine
        .try_recover(settings(AckPolicy::Written))
        .err()
        .expect("refused");
    assert!(error.to_string().contains("newer"), "{error}");
    fault.plant(&machine.file(1), 8, &[1]).expect("the file");
    let (node, _) = machine.recover(settings(AckPolicy::Written));
    assert_eq!(
        node.read_all(LANE).len(),
        15,
        "nothing was removed meanwhile"
    );
}

#[test]
fn a_foreign_file_stays_and_an_unrecorded_group_goes() {
    let mut machine = Machine::fault(9);
    let (node, _) = marked(&mut machine);
    let dir = machine.dir();
    for name in ["notes.txt", "0000000000000009.0.log"] {
        machine
            .io
            .open(
                &dir.join(name),
                kera_log_segments::io::OpenHow::CreateNew,
                false,
            )
            .expect("a file");
    }
    machine.kill(node, 0);
    let (node, recovery) = machine.recover(settings(AckPolicy::Written));
    assert!(recovery.reports.join("\n").contains("notes.txt"));
    assert!(
        machine.io.exists(&dir.join("notes.txt"))
            && !machine.io.exists(&dir.join("0000000000000009.0.log"))
    );
    node.append(0, &mut plain(15..16, 10));
    assert!(
        machine.io.exists(&machine.file(10)),
        "its name is not used again"
    );
}

/// Two groups and a part of a third, none of them closed, and how many records each of them begins with.
fn three_open(ack: AckPolicy) -> (Machine, Vec<u64>) {
    let mut machine = Machine::fault(11);
    let node = machine.create(settings(ack));
    let mut firsts = vec![0];
    let mut id = 0;
    while firsts.len() < 3 || id < firsts[2] + 9 {
        let appended = node.append(0, &mut plain(id..id + 3, 5000));
        if appended.group.id().0 as usize > firsts.len() {
            firsts.push(id);
        }
        id += 3;
    }
    firsts.push(id);
    node.env.pump.drain();
    assert_eq!(node.head(LANE), id, "all of it is acknowledged");
    machine.kill(node, 0);
    (machine, firsts)
}

/// What is done to a file while its broker is away.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Remove,
    Truncate(u64),
    Blank(u64, usize),
    Flip(u64),
}

fn harm(machine: &Machine, group: u64, harm: Harm) {
    let fault = machine.fault.as_ref().expect("a fault engine");
    let path = machine.file(group);
    let open = || {
        machine
            .io
            .open(&path, kera_log_segments::io::OpenHow::ReadWrite, false)
    };
    match harm {
        Harm::Remove => machine.io.remove_file(&path),
        Harm::Truncate(len) => open().and_then(|file| file.set_len(len)),
        Harm::Blank(offset, len) => fault.plant(&path, offset, &vec![0; len]),
        Harm::Flip(offset) => fault.flip(&Flip {
            path,
            offset,
            bit: 2,
        }),
    }
    .expect("the file can be harmed");
}

#[test]
fn whatever_happens_to_an_open_file_is_told_and_no_ordinal_serves_twice() {
    for ack in [AckPolicy::Written, AckPolicy::Synced] {
        for group in 1..=3 {
            for harmed in [
                Harm::Remove,
                Harm::Truncate(0),
                Harm::Truncate(50),
                Harm::Truncate(9000),
                Harm::Truncate(3 * 64 * 1024 - 1),
                Harm::Blank(0, 4096),
                Harm::Blank(0, 3 * 64 * 1024 + 8192),
                Harm::Blank(16384, 4096),
                Harm::Flip(20),
                Harm::Flip(16400),
            ] {
                let (mut machine, firsts) = three_open(ack);
                harm(&machine, group, harmed);
                let (node, recovery) = machine.recover(settings(ack));
                let case = format!("{ack:?}, group {group}, {harmed:?}: {recovery:?}");
                let (from, to) = (firsts[group as usize - 1], firsts[group as usize]);
                let last = firsts[3];
                let found = node.read_all(LANE);
                assert!(found.iter().all(|(ordinal, id)| ordinal == id), "{case}");
                let lost: Vec<u64> = (0..last)
                    .filter(|id| !found.iter().any(|(_, found)| found == id))
                    .collect();
                assert!(
                    lost.iter().all(|id| (from..to).contains(id)),
                    "undamaged groups stay: {lost:?} {case}"
                );
                // What only its mark shows to be cut short may be whole.
                let whole = matches!(harmed, Harm::Truncate(len) if len > 9000);
                assert_eq!(lost.is_empty(), whole, "{case}");
                assert_eq!(recovery.damaged, 1, "{case}");
                let report = recovery.reports.join("\n");
                let name = machine.file(group).display().to_string();
                assert!(
                    report.contains(&name) && report.contains("damaged"),
                    "{case}"
                );
                assert_eq!(recovery.gaps.is_empty(), whole && group < 3, "{case}");
                assert!(
                    !recovery.remove.contains(&machine.file(group)),
                    "nothing is deleted: {case}"
                );
                let next = node.append(0, &mut plain(900..901, 10)).base_ordinal;
                assert!(next >= last, "{next}: {case}");
                if group == 3 {
                    assert!(next >= 1 << 32, "{next}: {case}");
                }
                // And it stays so.
                machine.kill(node, 0);
                let (node, recovery) = machine.recover(settings(ack));
                assert!(recovery.gaps.is_empty(), "{case} then {recovery:?}");
                assert_eq!(recovery.damaged, 0, "{case} then {recovery:?}");
                let again = node.append(0, &mut plain(901..902, 10)).base_ordinal;
                assert_eq!(again, next + 1, "{case}");
            }
        }
    }
}

#[test]
fn a_group_made_ahead_of_its_use_is_not_taken_for_a_lost_one() {
    for ack in [AckPolicy::Written, AckPolicy::Synced] {
        let mut machine = Machine::fault(12);
        machine.limits.prepare_at = 0.1;
        let node = machine.create(settings(ack));
        let mut id = 0;
        while id < 60 {
            node.append(0, &mut plain(id..id + 3, 5000));
            node.env.pump.drain();
            // Among other work the next group's file and record.
            node.work();
            id += 3;
        }
        assert!(machine.store.counts().0 > 2, "a group is recorded ahead");
        machine.kill(node, 0);
        let (node, recovery) = machine.recover(settings(ack));
        assert!(recovery.gaps.is_empty(), "{recovery:?}");
        assert!(recovery.reports.is_empty(), "{recovery:?}");
        assert_eq!(node.read_all(LANE).len(), 60);
        assert_eq!(node.append(0, &mut plain(60..61, 10)).base_ordinal, 60);
    }
}
