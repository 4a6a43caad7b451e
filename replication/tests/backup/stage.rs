//! Stores over each kind of memory, and the requests that tests make of them.

use std::path::Path;
use std::sync::Arc;

use kera_protocol::ids::Epoch;
use kera_replication::backup::{Limits, Memory, ReplicaStore, ShmMemory, ShmOptions, SimMemory};
use kera_replication::faults::Faults;
use kera_replication::ids::{BrokerId, CopyId, Incarnation};
use kera_replication::transport::{CopyAnswer, CopyState, Opened, Refusal, Reply, Request, Seal};
use tempfile::TempDir;

use crate::content::{Content, SEGMENT, SEGMENTS};

pub const PRIMARY: BrokerId = BrokerId(1);
/// What tests may reserve: three segments and a bit.
pub const QUOTA: u64 = 3 * SEGMENT as u64 + 4096;
/// What seals and the records of a few copies take beside that.
pub const BESIDES: u64 = 48 << 10;

/// A store that can be started anew on the memory it left.
pub struct Stage {
    make: Box<dyn Fn() -> Arc<dyn Memory>>,
    store: Option<Arc<ReplicaStore>>,
    /// Where files are, if any.
    pub dir: Option<TempDir>,
}

pub fn options(dir: &Path, disk: bool) -> ShmOptions {
    ShmOptions {
        dir: dir.join("shared"),
        disk: disk.then(|| dir.join("disk")),
        quota: QUOTA + BESIDES,
    }
}

pub fn limits() -> Limits {
    Limits {
        memory_bytes: QUOTA + BESIDES,
        copies_in_memory: 8,
        copies: 12,
        streamlets: 4,
    }
}

/// A directory on shared memory where there is one.
pub fn shared_dir() -> TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a directory")
}

/// Runs `test` over files and over simulated memory, with a disk to flush to.
pub fn over_each_memory(test: impl Fn(&mut Stage)) {
    let dir = shared_dir();
    let options = options(dir.path(), true);
    let mut files = Stage {
        make: Box::new(move || ShmMemory::new(options.clone())),
        store: None,
        dir: Some(dir),
    };
    files.restart();
    test(&mut files);

    let memory = SimMemory::new(5);
    let mut simulated = Stage {
        make: Box::new(move || memory.clone()),
        store: None,
        dir: None,
    };
    simulated.restart();
    test(&mut simulated);
}

impl Stage {
    pub fn store(&self) -> Arc<ReplicaStore> {
        self.store.clone().expect("a store")
    }

    /// Ends the process, as it were, and starts another.
    pub fn restart(&mut self) {
        self.store = None;
        let store = ReplicaStore::start((self.make)(), limits(), Faults::default());
        self.store = Some(store.expect("the store starts"));
    }
}

/// The requests, in few words.
pub trait Ask {
    fn opening(
        &self,
        copy: &CopyId,
        incarnation: Incarnation,
        address: u64,
        bytes: u32,
    ) -> Result<Opened, Refusal>;
    fn open_first(&self, copy: &CopyId) -> Result<Opened, Refusal>;
    fn fill(&self, copy: &CopyId, content: &Content) -> Result<(), Refusal>;
    fn seal(&self, copy: &CopyId, epoch: u32, recorded: Incarnation)
    -> Result<CopyAnswer, Refusal>;
    fn complete(
        &self,
        copy: &CopyId,
        epoch: u32,
        address: u64,
        bytes: &[u8],
    ) -> Result<(), Refusal>;
    fn bytes(&self, copy: &CopyId, len: usize) -> Vec<u8>;
    fn free(&self, copy: &CopyId, epoch: u32) -> Result<(), Refusal>;
    fn flush(&self, copy: &CopyId, length: u64, closed: bool) -> Result<(), Refusal>;
    fn state(&self, copy: &CopyId) -> Option<CopyState>;
    /// Bytes that buffers may take, or 0 if nothing may.
    fn free_bytes(&self) -> u64;
}

impl Ask for ReplicaStore {
    fn opening(
        &self,
        copy: &CopyId,
        incarnation: Incarnation,
        address: u64,
        bytes: u32,
    ) -> Result<Opened, Refusal> {
        let request = Request::Open {
            copy: *copy,
            incarnation,
            primary: PRIMARY,
            segment_size: SEGMENT,
            segments: SEGMENTS,
            address,
            bytes,
        };
        match self.handle(PRIMARY, request)? {
            Reply::Opened(opened) => Ok(opened),
            other => panic!("{other:?}"),
        }
    }

    fn open_first(&self, copy: &CopyId) -> Result<Opened, Refusal> {
        self.opening(copy, self.incarnation(), 0, SEGMENT)
    }

    fn fill(&self, copy: &CopyId, content: &Content) -> Result<(), Refusal> {
        let opened = self.open_first(copy)?;
        let region = self.region(PRIMARY, opened.buffers[0].key)?;
        region.place(0, &content.bytes)
    }

    fn seal(
        &self,
        copy: &CopyId,
        epoch: u32,
        recorded: Incarnation,
    ) -> Result<CopyAnswer, Refusal> {
        let request = Request::Seal(Seal {
            streamlet: copy.streamlet,
            epoch: Epoch(epoch),
            copies: vec![(*copy, recorded)],
        });
        match self.handle(BrokerId(2), request)? {
            Reply::Sealed(mut sealed) => Ok(sealed.remove(0).answer),
            other => panic!("{other:?}"),
        }
    }

    fn complete(
        &self,
        copy: &CopyId,
        epoch: u32,
        address: u64,
        bytes: &[u8],
    ) -> Result<(), Refusal> {
        let request = Request::Complete {
            copy: *copy,
            epoch: Epoch(epoch),
            segment_size: SEGMENT,
            segments: SEGMENTS,
            address,
            bytes: bytes.to_vec().into(),
        };
        self.handle(BrokerId(2), request).map(|_| ())
    }

    fn bytes(&self, copy: &CopyId, len: usize) -> Vec<u8> {
        let request = Request::Read {
            copy: *copy,
            address: 0,
            len: len as u32,
        };
        match self.handle(BrokerId(2), request) {
            Ok(Reply::Bytes(bytes)) => bytes.to_vec(),
            other => panic!("{other:?}"),
        }
    }

    fn free(&self, copy: &CopyId, epoch: u32) -> Result<(), Refusal> {
        let request = Request::Free {
            copy: *copy,
            epoch: Epoch(epoch),
            version: None,
        };
        self.handle(PRIMARY, request).map(|_| ())
    }

    fn flush(&self, copy: &CopyId, length: u64, closed: bool) -> Result<(), Refusal> {
        let request = Request::Flush {
            copy: *copy,
            length,
            closed,
        };
        self.handle(PRIMARY, request).map(|_| ())
    }

    fn state(&self, copy: &CopyId) -> Option<CopyState> {
        let request = Request::List {
            streamlet: Some(copy.streamlet),
        };
        match self.handle(PRIMARY, request) {
            Ok(Reply::Copies(copies)) => copies
                .iter()
                .find(|info| info.copy == *copy)
                .map(|info| info.state),
            other => panic!("{other:?}"),
        }
    }

    fn free_bytes(&self) -> u64 {
        match self.handle(PRIMARY, Request::Describe) {
            Ok(Reply::Description(description)) if description.free_bytes == 0 => 0,
            Ok(Reply::Description(description)) => {
                description.free_bytes + self.stats().memory_overhead_bytes - BESIDES
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A valid scan of all of `content`.
pub fn whole(content: &Content) -> CopyAnswer {
    CopyAnswer::Scanned {
        length: content.bytes.len() as u64,
        first_ordinal: 100,
        end_ordinal: content.next_ordinal,
    }
}
