//! As [`crate::unproven`], of the files that an owner writes itself.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use kera_log_segments::check::Progress;
use kera_log_segments::io::fault::{CrashPlan, Fault, FaultIo};
use kera_log_segments::io::{Io, OpenHow};
use kera_log_segments::layout::DurableMark;
use kera_log_segments::scan::read_mark;
use kera_log_segments::window::Place;
use kera_protocol::ids::Epoch;
use kera_replication::aside;
use kera_replication::ids::{CopyId, Incarnation};
use kera_replication::own::OwnFiles;
use kera_replication::transport::{CopyAnswer, Refusal, Reply, Request, Seal};
use uuid::Uuid;

use crate::content::{Content, SEGMENT, SEGMENTS, copy, segment};
use crate::stage::whole;

const GROUP: u64 = SEGMENT as u64 * SEGMENTS as u64;

fn life(boot: u8) -> Incarnation {
    Incarnation {
        store_id: Uuid::from_u128(3),
        boot_id: Uuid::from_u128(boot.into()),
    }
}

fn own(io: &FaultIo, boot: u8) -> Arc<OwnFiles> {
    OwnFiles::new(Arc::new(io.clone()), "/streams".into(), life(boot))
}

fn machine(seed: u64) -> FaultIo {
    let io = FaultIo::new(seed);
    io.create_dir_all(Path::new("/streams")).expect("is made");
    io.sync_dir(Path::new("/")).expect("syncs");
    io
}

fn complete(own: &OwnFiles, copy: &CopyId, address: u64, bytes: &[u8]) -> Result<Reply, Refusal> {
    own.handle(Request::Complete {
        copy: *copy,
        epoch: Epoch(8),
        segment_size: SEGMENT,
        segments: SEGMENTS,
        address,
        bytes: Bytes::copy_from_slice(bytes),
    })
}

fn flush(own: &OwnFiles, copy: &CopyId, length: u64) -> Result<Reply, Refusal> {
    own.handle(Request::Flush {
        copy: *copy,
        length,
        closed: true,
    })
}

fn answer(own: &OwnFiles, copy: &CopyId, boot: u8) -> CopyAnswer {
    let seal = Request::Seal(Seal {
        streamlet: copy.streamlet,
        epoch: Epoch(9),
        copies: vec![(*copy, life(boot))],
    });
    match own.handle(seal) {
        Ok(Reply::Sealed(mut sealed)) => sealed.remove(0).answer,
        other => panic!("{other:?}"),
    }
}

fn mark(io: &FaultIo, own: &OwnFiles, copy: &CopyId) -> Option<DurableMark> {
    let file = io.open(&own.path(copy), OpenHow::ReadOnly, false);
    read_mark(&*file.expect("is there"), GROUP).expect("reads")
}

/// After a loss of power all of it is there.
fn survives(io: &FaultIo, seed: u64, id: &CopyId, content: &Content) {
    let (after, _) = io.crash(&CrashPlan::power_loss(seed));
    let own = own(&after, 1);
    assert_eq!(answer(&own, id, 1), whole(content), "with seed {seed}");
    let bytes = after.contents(&own.path(id)).expect("is there");
    assert!(bytes[..content.bytes.len()] == content.bytes);
}

#[test]
fn what_a_failed_sync_of_an_own_file_has_lost_is_written_before_the_next() {
    // A restart between the two knows of no failure.
    for (seed, restarts) in (0..24).map(|seed| (seed, seed % 2 == 1)) {
        let (mut io, id) = (machine(seed), copy(1, 7));
        let content = segment(&id, 30, 700);
        let (first, length) = (content.ends[9], content.bytes.len() as u64);
        let files = own(&io, 1);
        let begin = &content.bytes[..first as usize];
        complete(&files, &id, 0, begin).expect("takes it");
        flush(&files, &id, first).expect("is well");
        let rest = &content.bytes[first as usize..];
        complete(&files, &id, first, rest).expect("takes it");
        io.inject_on(".log", Fault::FailSync { nth: 1 });
        let failed = flush(&files, &id, length);
        assert!(matches!(failed, Err(Refusal::Failed(_))), "{failed:?}");
        assert_eq!(mark(&io, &files, &id).map(|mark| mark.synced), Some(first));
        if restarts {
            (io, _) = io.crash(&CrashPlan::kill());
        }
        flush(&own(&io, 1), &id, length).expect("asked again");
        survives(&io, seed, &id, &content);
    }
}

#[test]
fn a_mark_whose_sync_fails_costs_no_byte() {
    for seed in 0..8 {
        let (io, id) = (machine(seed), copy(1, 7));
        let content = segment(&id, 30, 700);
        let length = content.bytes.len() as u64;
        let files = own(&io, 1);
        complete(&files, &id, 0, &content.bytes).expect("takes it");
        // The first is that of the bytes.
        io.inject_on(".log", Fault::FailSync { nth: 2 });
        flush(&files, &id, length).expect_err("the mark is not stored");
        flush(&files, &id, length).expect("asked again");
        survives(&io, seed, &id, &content);
    }
}

#[test]
fn what_replaces_durable_bytes_takes_their_mark_back_first() {
    for seed in 0..8 {
        let (io, id) = (machine(seed), copy(1, 7));
        let content = segment(&id, 30, 700);
        let (from, length) = (content.ends[9], content.bytes.len() as u64);
        let files = own(&io, 1);
        complete(&files, &id, 0, &content.bytes).expect("takes it");
        flush(&files, &id, length).expect("is well");
        let rest = &content.bytes[from as usize..];
        io.inject_on(".log", Fault::FailSync { nth: 1 });
        complete(&files, &id, from, rest).expect_err("the mark is not lowered");
        complete(&files, &id, from, rest).expect("the mark is lowered");
        let (after, _) = io.crash(&CrashPlan::power_loss(seed));
        let lowered = mark(&after, &own(&after, 1), &id).expect("is there");
        assert_eq!(lowered.synced, 0, "it vouches for bytes that were replaced");
        assert_eq!(lowered.written, length, "half of it counts as damaged");
        io.inject_on(".log", Fault::FailSync { nth: 1 });
        flush(&files, &id, length).expect_err("the bytes are lost");
        flush(&files, &id, length).expect("asked again");
        survives(&io, seed, &id, &content);
    }
}

/// What counts of a file before it is replaced, and what replaces it: both whole, and told apart by their records.
fn replaced(seed: u64) -> (FaultIo, Arc<OwnFiles>, CopyId, Content, Content) {
    let (io, id) = (machine(seed), copy(1, 7));
    let (old, new) = (segment(&id, 30, 700), segment(&id, 30, 600));
    let files = own(&io, 1);
    complete(&files, &id, 0, &old.bytes).expect("takes it");
    flush(&files, &id, old.bytes.len() as u64).expect("is well");
    (io, files, id, old, new)
}

#[test]
fn a_file_keeps_its_bytes_until_the_one_made_in_its_place_is_whole_and_durable() {
    // The source ends in the middle, or is damaged there.
    for damaged in [false, true] {
        let (io, files, id, old, new) = replaced(1);
        let (half, length) = (new.ends[14] as usize, new.bytes.len() as u64);
        complete(&files, &id, 0, &new.bytes[..half]).expect("takes it");
        let whole_before = whole(&old);
        assert_eq!(answer(&own(&io, 1), &id, 1), whole_before);
        if damaged {
            let mut rest = new.bytes[half..].to_vec();
            rest[300] ^= 1;
            complete(&files, &id, half as u64, &rest).expect("takes it");
        }
        let more = old.bytes.len().max(length as usize) as u64;
        flush(&files, &id, more + 1).expect_err("it is not whole");
        assert_eq!(
            io.contents(&files.path(&id)).expect("is there")[..old.bytes.len()],
            old.bytes
        );
        survives(&io, 1, &id, &old);
        // Begun anew it is made.
        complete(&files, &id, 0, &new.bytes).expect("takes it");
        flush(&files, &id, length).expect("is whole");
        survives(&io, 2, &id, &new);
        assert!(!io.exists(&aside::path(&files.path(&id))));
    }
}

#[test]
fn a_disk_that_fails_is_no_proof_that_what_a_new_file_was_to_replace_is_short() {
    let (io, files, id, old, new) = replaced(1);
    let (half, length) = (new.ends[14] as usize, old.bytes.len() as u64);
    complete(&files, &id, 0, &new.bytes[..half]).expect("takes it");
    let name = files.path(&id);
    let name = name.file_name().and_then(|name| name.to_str());
    io.inject_on(name.expect("has a name"), Fault::FailSync { nth: 1 });
    let failed = flush(&files, &id, length);
    assert!(matches!(failed, Err(Refusal::Failed(_))), "{failed:?}");
    flush(&files, &id, length).expect("the old file is whole");
    survives(&io, 1, &id, &old);
}

#[test]
fn a_crash_at_any_step_of_making_a_file_anew_leaves_the_old_bytes_or_the_new() {
    let steps = |files: &OwnFiles, id: &CopyId, new: &Content| {
        complete(files, id, 0, &new.bytes[..new.ends[14] as usize])?;
        let rest = &new.bytes[new.ends[14] as usize..];
        complete(files, id, new.ends[14], rest)?;
        flush(files, id, new.bytes.len() as u64)
    };
    let (mut kept_old, mut kept_new, mut swept) = (0, 0, 0);
    for stop in 0.. {
        let mut is_done = false;
        for seed in 0..6 {
            let (io, files, id, old, new) = replaced(seed);
            io.inject(Fault::StopAfter { ops: stop });
            is_done = steps(&files, &id, &new).is_ok();
            for plan in [CrashPlan::kill(), CrashPlan::power_loss(seed)] {
                let (after, _) = io.crash(&plan);
                let files = own(&after, 1);
                swept += files.sweep_unfinished().expect("sweeps");
                let path = files.path(&id);
                assert!(!after.exists(&aside::path(&path)), "step {stop}");
                let bytes = after.contents(&path).expect("one of them is there");
                let is = |content: &Content| bytes[..content.bytes.len()] == content.bytes;
                assert!(is(&old) || is(&new), "step {stop}, seed {seed}, {plan:?}");
                let right = if is(&new) { &new } else { &old };
                assert_eq!(answer(&files, &id, 1), whole(right), "step {stop}");
                kept_old += usize::from(is(&old));
                kept_new += usize::from(is(&new));
                assert!(is(&new) || !is_done, "it was said to be durable");
            }
        }
        if is_done {
            break;
        }
    }
    assert!(
        kept_old > 50 && kept_new > 6 && swept > 50,
        "{kept_old}, {kept_new}, {swept}"
    );
}

#[test]
fn a_later_owner_ends_what_an_earlier_one_was_making() {
    let (io, files, id, old, new) = replaced(3);
    complete(&files, &id, 0, &new.bytes[..900]).expect("takes it");
    let made = aside::path(&files.path(&id));
    assert!(io.exists(&made));
    // As every recovery begins.
    assert_eq!(answer(&files, &id, 1), whole(&old));
    assert!(!io.exists(&made), "nobody ends it");
    flush(&files, &id, old.bytes.len() as u64).expect("what is there is whole");
    survives(&io, 3, &id, &old);
}

#[test]
fn a_file_that_is_freed_takes_along_what_was_made_in_its_place() {
    let (io, files, id, _, new) = replaced(4);
    complete(&files, &id, 0, &new.bytes[..900]).expect("takes it");
    let free = Request::Free {
        copy: id,
        epoch: Epoch(8),
        version: None,
    };
    files.handle(free).expect("it goes");
    assert!(!files.has(&id));
    let left = io.paths();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_look_at_its_end_shows_that_a_file_was_cut_short() {
    let (io, files, id, old, _) = replaced(5);
    let length = old.bytes.len() as u64;
    let end = Place {
        address: length,
        ordinal: 30,
    };
    let look = || {
        let from = Progress {
            place: end,
            digest: 0,
        };
        let bytes = 1;
        let check = Request::Check {
            copy: id,
            from,
            bytes,
            end,
        };
        match files.handle(check) {
            Ok(Reply::Checked(checked)) => checked.wrong,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(look(), None);
    let file = io.open(&files.path(&id), OpenHow::ReadWrite, false);
    file.expect("is there").set_len(length - 1).expect("is cut");
    let wrong = look().expect("it is short");
    assert!(wrong.contains("cut short"), "{wrong}");
}
