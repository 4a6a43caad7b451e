//! The verbs, made safe: the one part of this transport with unsafe code.
//!
//! | type | what it is | what it keeps alive |
//! |---|---|---|
//! | [`Device`] | a network card, as the connection manager has opened it | nothing: it stays open |
//! | [`EventChannel`] | where the connection manager tells what happens | |
//! | [`CmId`] | one end of a connection, or a listener; owns its queue pair | its channel, and the pair's parts |
//! | [`Pd`] | a protection domain: what is registered in one is nobody else's | |
//! | [`Mr`] | registered memory, remote or local | its domain and the memory |
//! | [`Qp`] | a queue pair's parts: domain, queues, and the memory it sends from | all of them |
//! | [`CompletionChannel`], [`Cq`] | where completions are announced, and where they lie | |
//!
//! Everything is destroyed in the order in which the library allows it, by the order of fields and
//! by what each keeps alive. The library itself is looked for when the program starts; where it is
//! missing every call answers `EOPNOTSUPP`.
#![allow(unsafe_code)]

mod address;
mod cm;
mod completion;
mod device;
mod memory;
mod queue_pair;

use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;

pub(super) use cm::{CmEvent, CmEventKind, CmId, EventChannel, IdName, Terms};
pub(super) use completion::{Completion, CompletionChannel, Outcome};
pub(super) use device::Device;
pub(super) use memory::{Access, Mr, Pd};
pub(super) use queue_pair::{Qp, WriteRequest};

/// For calls that answer -1 and leave the reason in `errno`.
fn done(answer: c_int) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// For calls that answer with the number of the error.
fn numbered(answer: c_int) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(number.saturating_abs())),
    }
}

/// Makes reads of a descriptor answer at once.
fn never_waits(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(())
}
