//! Files beside a store, which stand for copies that it does not hold.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use kera_protocol::ids::Epoch;
use kera_replication::backup::Beside;
use kera_replication::ids::{CopyId, Incarnation, StreamletKey};
use kera_replication::transport::{
    CopyAnswer, CopyInfo, CopyVersion, Refusal, Reply, Request, Seal, SealedCopy,
};

use crate::content::{Content, copy, segment};
use crate::stage::{Ask, PRIMARY, over_each_memory};

/// Has every copy, and remembers what it was asked. None of its files was ever listed.
#[derive(Debug, Default)]
struct Files {
    asked: Mutex<Vec<&'static str>>,
    /// No file is longer.
    end: u64,
    /// There are none any more.
    are_gone: AtomicBool,
}

impl Beside for Files {
    fn incarnation(&self) -> Incarnation {
        Incarnation::default()
    }

    fn sealed(&self, _: StreamletKey, _: Epoch) {}

    fn has(&self, _: &CopyId) -> bool {
        !self.are_gone.load(Ordering::Relaxed)
    }

    fn list(&self, _: Option<StreamletKey>) -> Vec<CopyInfo> {
        Vec::new()
    }

    fn handle(&self, request: Request) -> Result<Reply, Refusal> {
        if let Request::Free {
            version: Some(_), ..
        } = request
        {
            return Err(Refusal::Invalid("it is another file".into()));
        }
        self.asked.lock().unwrap().push(request.name());
        match request {
            Request::Flush { length, .. } if length > self.end => {
                Err(Refusal::Short { length: self.end })
            }
            Request::Flush { length, .. } => Ok(Reply::Flushed {
                length,
                end_ordinal: 0,
            }),
            Request::Seal(Seal { copies, .. }) => {
                let gone = copies.into_iter().map(|(copy, _)| SealedCopy {
                    copy,
                    answer: CopyAnswer::Absent,
                });
                Ok(Reply::Sealed(gone.collect()))
            }
            _ => Ok(Reply::Done),
        }
    }
}

/// Whoever frees a copy of the store names its version, and asks again when there was no answer.
#[test]
fn a_file_is_not_removed_for_a_copy_of_the_store() {
    over_each_memory(|stage| {
        let store = stage.store();
        let files = Arc::new(Files::default());
        store.set_beside(files.clone());
        let id = copy(1, 7);
        store.fill(&id, &segment(&id, 2, 500)).expect("fills");
        let listed = store.handle(PRIMARY, Request::List { streamlet: None });
        let Ok(Reply::Copies(listed)) = listed else {
            panic!("{listed:?}");
        };
        let free = |version: Option<CopyVersion>| {
            let free = Request::Free {
                copy: id,
                epoch: id.epoch,
                version,
            };
            store.handle(PRIMARY, free)
        };
        free(Some(listed[0].version)).expect("is freed");
        assert!(!store.holds(&id));
        let again = free(Some(listed[0].version));
        assert!(matches!(again, Err(Refusal::Invalid(_))), "{again:?}");
        assert!(
            files.asked.lock().unwrap().is_empty(),
            "it was freed already"
        );
        // The group is gone, wherever it is.
        free(None).expect("is freed");
        assert_eq!(files.asked.lock().unwrap().len(), 1);
    });
}

/// Its owner has made the replica its own file, and removes that like the replica.
#[test]
fn a_file_in_the_place_of_a_replica_goes_as_the_replica_would() {
    over_each_memory(|stage| {
        let store = stage.store();
        let files = Arc::new(Files::default());
        store.set_beside(files.clone());
        let (removed, damaged) = (copy(1, 7), copy(2, 7));
        let free = |copy: CopyId| {
            let free = Request::Free {
                copy,
                epoch: copy.epoch,
                version: None,
            };
            store.handle(PRIMARY, free).expect("is freed");
        };
        for id in [removed, damaged] {
            store.fill(&id, &segment(&id, 2, 500)).expect("fills");
        }
        for id in [removed, damaged, removed] {
            free(id);
        }
        files.are_gone.store(true, Ordering::Relaxed);
        let here = store.incarnation();
        let gone = CopyAnswer::Gone { is_file: false };
        assert_eq!(store.seal(&removed, 9, here), Ok(gone));
        // The other one's file was set aside.
        assert_eq!(store.seal(&damaged, 9, here), Ok(CopyAnswer::Unknown));
    });
}

/// A broker has a lease, and is asked, before it has looked at its files.
#[test]
fn a_store_that_expects_files_denies_nothing_until_they_are_known() {
    over_each_memory(|stage| {
        let store = stage.store();
        store.expect_beside();
        let (id, kept) = (copy(1, 7), copy(1, 8));
        store
            .fill(&kept, &segment(&kept, 2, 500))
            .expect("takes copies");
        let read = |copy| {
            store.handle(
                PRIMARY,
                Request::Read {
                    copy,
                    address: 0,
                    len: 96,
                },
            )
        };
        assert!(read(kept).is_ok(), "it is in the store");
        assert_eq!(read(id), Err(Refusal::Starting));
        let list = || store.handle(PRIMARY, Request::List { streamlet: None });
        assert_eq!(list(), Err(Refusal::Starting));
        let free = Request::Free {
            copy: id,
            epoch: id.epoch,
            version: None,
        };
        assert_eq!(store.handle(PRIMARY, free), Err(Refusal::Starting));
        store.set_beside(Arc::new(Files::default()));
        assert_eq!(read(id), Ok(Reply::Done), "its files answer");
        assert!(list().is_ok());
    });
}

/// A broker was killed after it had made its own file whole, as an owner, and before the replica in its store went.
#[test]
fn of_a_short_replica_and_a_whole_file_the_file_stays() {
    over_each_memory(|stage| {
        let (id, both_short) = (copy(1, 7), copy(2, 7));
        let content = |id| segment(id, 4, 500);
        let length = content(&id).bytes.len() as u64;
        let there = content(&id).ends[1];
        let store = stage.store();
        for id in [&id, &both_short] {
            let mut content = content(id);
            content.bytes.truncate(there as usize);
            let first = Content {
                ends: content.ends[..2].to_vec(),
                ..content
            };
            store.fill(id, &first).expect("fills");
        }
        drop(store);
        stage.restart();
        let store = stage.store();
        let files = Arc::new(Files {
            end: length,
            ..Files::default()
        });
        store.set_beside(files.clone());
        let flush = |copy, length| {
            let flush = Request::Flush {
                copy,
                length,
                closed: true,
            };
            store.handle(PRIMARY, flush)
        };
        // Neither is what the record says.
        let short = Err(Refusal::Short { length: there });
        assert_eq!(flush(both_short, length + 1), short);
        assert!(store.holds(&both_short), "the first to be read");
        let answered = flush(id, length);
        assert!(
            matches!(answered, Ok(Reply::Flushed { .. })),
            "the file is whole: {answered:?}"
        );
        assert!(!store.holds(&id), "the file stands for it");
        // What was in the store is not taken for one that never was, after another start either.
        drop(store);
        stage.restart();
        let store = stage.store();
        assert!(!store.holds(&id) && store.holds(&both_short));
        let answered = store.seal(&id, 9, store.incarnation());
        assert_eq!(answered, Ok(CopyAnswer::Unknown));
    });
}

/// An owner's file that is not there may have been removed, whoever takes over and asks for it.
#[test]
fn a_file_that_is_gone_is_no_answer() {
    over_each_memory(|stage| {
        let store = stage.store();
        let files = Arc::new(Files::default());
        store.set_beside(files.clone());
        let (id, recorded) = (copy(1, 7), files.incarnation());
        let gone = CopyAnswer::Gone { is_file: true };
        assert_eq!(store.seal(&id, 9, recorded), Ok(gone));
        // What was to be in the store, and never came to it, is known.
        let answered = store.seal(&id, 9, store.incarnation());
        assert_eq!(answered, Ok(CopyAnswer::Absent));
    });
}
