//! As [`crate::unproven`], of the files that an owner writes itself.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use kera_log_segments::io::fault::{CrashPlan, Fault, FaultIo};
use kera_log_segments::io::{Io, OpenHow};
use kera_log_segments::layout::DurableMark;
use kera_log_segments::scan::read_mark;
use kera_protocol::ids::Epoch;
use kera_replication::ids::{CopyId, Incarnation};
use kera_replication::own::OwnFiles;
use kera_replication::transport::{CopyAnswer, Refusal, Reply, Request};

use crate::content::{Content, SEGMENT, SEGMENTS, copy, segment};
use crate::stage::whole;

const GROUP: u64 = SEGMENT as u64 * SEGMENTS as u64;

fn life(boot: u8) -> Incarnation {
    Incarnation {
        store_id: [3; 16],
        boot_id: [boot; 16],
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
    let seal = Request::Seal {
        streamlet: copy.streamlet,
        epoch: Epoch(9),
        copies: vec![(*copy, life(boot))],
    };
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
