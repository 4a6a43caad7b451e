//! Files beside a store, which stand for copies that it does not hold.

use std::sync::{Arc, Mutex};

use kera_protocol::ids::Epoch;
use kera_replication::backup::Beside;
use kera_replication::ids::{CopyId, Incarnation, StreamletKey};
use kera_replication::transport::{CopyInfo, CopyVersion, Refusal, Reply, Request};

use crate::content::{copy, segment};
use crate::stage::{Ask, PRIMARY, over_each_memory};

/// Has every copy, and remembers what it was asked. None of its files was ever listed.
#[derive(Debug, Default)]
struct Files(Mutex<Vec<&'static str>>);

impl Beside for Files {
    fn incarnation(&self) -> Incarnation {
        Incarnation::default()
    }

    fn sealed(&self, _: StreamletKey, _: Epoch) {}

    fn has(&self, _: &CopyId) -> bool {
        true
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
        self.0.lock().unwrap().push(request.name());
        Ok(Reply::Done)
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
        assert!(files.0.lock().unwrap().is_empty(), "it was freed already");
        // The group is gone, wherever it is.
        free(None).expect("is freed");
        assert_eq!(files.0.lock().unwrap().len(), 1);
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
