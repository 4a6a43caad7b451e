//! The backup's side: a passive store of other brokers' copies.
//!
//! A [`ReplicaStore`] answers control requests ([`crate::transport::Request`]) and hands out
//! [`Region`]s, into which a transport places bytes without asking anybody. It keeps what it holds in
//! a [`Memory`]: [`ShmMemory`] is files on shared memory, which outlive the process; `SimMemory` (feature `testing`) is
//! the same rules without a machine, for deterministic tests.
//!
//! | module | what it is |
//! |---|---|
//! | `store` | the requests, one function each |
//! | `owner_files` | copies outside of the store: the broker's own group files |
//! | `copy` | one copy: who may write it, and its buffers |
//! | `seals` | which epochs have lost their right to write, as stored |
//! | `memory` | what a store needs of the memory below it |
//! | `shm` | files on shared memory, and their flush to disk |
//! | `mapping` | the one place with unsafe code: a file's bytes as a target of `readv` and of network cards |
//! | `registrar` | how a network card is let at buffers, and kept away again |
//! | `simulated` | memory that crashes as it is told |
//!
//! # What holds
//! * A copy is written only by the process that opened it, at the primary, into the process that
//!   gave it room, at the backup: a store that starts seals every copy it finds.
//! * A seal is stored before it is answered, and holds for copies that were never here.
//! * Sealing takes each copy's lock, under which bytes are placed: once it is done, nobody is in
//!   the middle of writing, and only then is a copy's length read.
//! * A buffer that a network card may write is taken from the card before the store relies on nobody
//!   writing there.
//! * Memory is reserved before it is promised, so that a full machine refuses and never faults. What it
//!   takes to seal, to free and to give memory back needs no more of it, and no more of a disk.
//! * No lock under which others wait is held while a disk is at work: a copy's turn is, and is taken
//!   before any other lock.
//! * What a sync that failed was to bring to the disk is written once more, from memory or as it was
//!   checked, before another sync counts.

mod copy;
mod error;
mod mapping;
mod memory;
mod owner_files;
mod registrar;
mod seals;
mod shm;
#[cfg(any(test, feature = "testing"))]
mod simulated;
mod store;

pub use copy::Region;
pub use error::StartError;
pub use mapping::Window;
pub use memory::{CopyMemory, CopySpec, Found, Hidden, Memory, TakenOver};
pub use owner_files::Beside;
pub use registrar::{Registrar, Registration};
pub use seals::SealTable;
pub use shm::{ShmMemory, ShmOptions, Took};
#[cfg(any(test, feature = "testing"))]
pub use simulated::SimMemory;
pub use store::{Limits, ReplicaStore, StoreStats};
