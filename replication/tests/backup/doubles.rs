//! Groups of which a broker has both: a short replica in its store, and a whole file of its own beside it.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use kera_log_segments::check::Progress;
use kera_log_segments::io::Io as _;
use kera_log_segments::io::fault::{Fault, FaultIo};
use kera_log_segments::window::Place;
use kera_protocol::ids::Epoch;
use kera_replication::backup::{Beside, ReplicaStore};
use kera_replication::ids::{CopyId, Incarnation, StreamletKey};
use kera_replication::own::OwnFiles;
use kera_replication::transport::{CopyInfo, Refusal, Reply, Request};
use uuid::Uuid;

use crate::content::{Content, SEGMENT, SEGMENTS, copy, segment};
use crate::stage::{Ask, PRIMARY, Stage, over_each_memory};

/// A broker's own files, on a disk that can fail.
#[derive(Debug)]
struct Files(Arc<OwnFiles>);

const LIFE: Incarnation = Incarnation {
    store_id: Uuid::from_u128(3),
    boot_id: Uuid::from_u128(1),
};

impl Beside for Files {
    fn incarnation(&self) -> Incarnation {
        LIFE
    }

    fn sealed(&self, _: StreamletKey, _: Epoch) {}

    fn has(&self, copy: &CopyId) -> bool {
        self.0.has(copy)
    }

    fn list(&self, _: Option<StreamletKey>) -> Vec<CopyInfo> {
        Vec::new()
    }

    fn handle(&self, request: Request) -> Result<Reply, Refusal> {
        self.0.handle(request)
    }
}

/// A store with the first two batches of a group, beside a file with all of `in_file`, and the disk of that file.
fn with_both(stage: &mut Stage, id: CopyId, in_file: &[u8]) -> (Arc<ReplicaStore>, FaultIo) {
    let all = segment(&id, 4, 500);
    let short = Content {
        bytes: all.bytes[..all.ends[1] as usize].to_vec(),
        ends: all.ends[..2].to_vec(),
        ..segment(&id, 4, 500)
    };
    stage.store().fill(&id, &short).expect("fills");
    stage.restart();
    let io = FaultIo::new(1);
    io.create_dir_all(Path::new("/streams")).expect("is made");
    io.sync_dir(Path::new("/")).expect("syncs");
    let files = OwnFiles::new(Arc::new(io.clone()), "/streams".into(), LIFE);
    let complete = Request::Complete {
        copy: id,
        epoch: Epoch(8),
        segment_size: SEGMENT,
        segments: SEGMENTS,
        address: 0,
        bytes: Bytes::copy_from_slice(in_file),
    };
    files.handle(complete).expect("takes it");
    let flush = Request::flush_closed(id, in_file.len() as u64);
    files.handle(flush).expect("is whole and has its name");
    let store = stage.store();
    store.set_beside(Arc::new(Files(files)));
    (store, io)
}

/// An owner could not free the replica that its file stands for, since its disk failed, and the streamlet has moved: the next
/// owner asks while the disk still fails. Who says then that it has lost the group has its good file removed.
#[test]
fn a_disk_that_fails_is_no_proof_that_a_group_is_lost() {
    over_each_memory(|stage| {
        let id = copy(1, 7);
        let all = segment(&id, 4, 500).bytes;
        let (store, io) = with_both(stage, id, &all);
        let flush = || store.handle(PRIMARY, Request::flush_closed(id, all.len() as u64));
        io.inject_on(".log", Fault::FailSync { nth: 1 });
        let failed = flush();
        assert!(matches!(failed, Err(Refusal::Failed(_))), "{failed:?}");
        assert!(store.holds(&id));
        let flushed = flush();
        assert!(matches!(flushed, Ok(Reply::Flushed { .. })), "{flushed:?}");
        assert!(!store.holds(&id), "the file stands for it");
    });
}

/// Until somebody has the group flushed it is read and compared at the broker as the file has it.
#[test]
fn a_short_replica_hides_no_whole_file() {
    over_each_memory(|stage| {
        // The other file is as short as the replica.
        for (id, is_whole) in [(copy(1, 7), true), (copy(2, 7), false)] {
            let all = segment(&id, 4, 500);
            let whole = &all.bytes;
            let length = whole.len();
            let in_file = if is_whole {
                length
            } else {
                all.ends[1] as usize
            };
            let (store, _) = with_both(stage, id, &whole[..in_file]);
            let read = Request::Read {
                copy: id,
                address: 100,
                len: length as u32 - 100,
            };
            let Ok(Reply::Bytes(bytes)) = store.handle(PRIMARY, read) else {
                panic!("it is read");
            };
            assert!(bytes[..in_file - 100] == whole[100..in_file]);
            assert!(bytes[in_file - 100..].iter().all(|byte| *byte == 0));
            let end = Place {
                address: length as u64,
                ordinal: all.next_ordinal,
            };
            let check = Request::Check {
                copy: id,
                from: Progress::default(),
                bytes: 1 << 20,
                end,
            };
            let Ok(Reply::Checked(checked)) = store.handle(PRIMARY, check) else {
                panic!("it is checked");
            };
            assert_eq!(checked.wrong.is_none(), is_whole, "{checked:?}");
            assert_eq!(checked.to.place == end, is_whole, "{checked:?}");
        }
    });
}
