//! Files beside a store, which stand for copies that it does not hold.

use std::sync::{Arc, Mutex};

use kera_protocol::ids::Epoch;
use kera_replication::backup::Beside;
use kera_replication::ids::{CopyId, Incarnation, StreamletKey};
use kera_replication::transport::{CopyVersion, Refusal, Reply, Request};

use crate::content::{copy, segment};
use crate::stage::{Ask, PRIMARY, over_each_memory};

/// Has every copy, and remembers what it was asked.
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

    fn handle(&self, request: Request) -> Result<Reply, Refusal> {
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
            store.handle(PRIMARY, free).expect("is freed");
        };
        free(Some(listed[0].version));
        assert!(!store.holds(&id));
        free(Some(listed[0].version));
        assert!(files.0.lock().unwrap().is_empty(), "it was freed already");
        // The group is gone, wherever it is.
        free(None);
        assert_eq!(files.0.lock().unwrap().len(), 1);
    });
}
