//! An operation on its way through a ring: what to ask for next, and what an answer means.
//!
//! No unsafe code here: a [`Transfer`] only names addresses; the ring vouches for their lifetime.

use std::io;
use std::os::fd::RawFd;

use super::aligned::{BLOCK_BYTES, ZEROS};
use super::os::MAX_SLICES;
use super::perform::{checked, perform};
use super::{Directness, Done, Op};

/// Answers without progress in a row before an operation fails.
const MAX_STALLS: u32 = 100;
/// Bytes asked for at once; the kernel itself cuts at 2 GiB.
const MAX_TRANSFER: usize = 1 << 30;

/// One request to the kernel.
pub(super) enum Transfer {
    Gather {
        fd: RawFd,
        slices: *const libc::iovec,
        count: u32,
        offset: u64,
    },
    Write {
        fd: RawFd,
        start: *const u8,
        len: u32,
        offset: u64,
        fixed: bool,
    },
    Read {
        fd: RawFd,
        start: *mut u8,
        len: u32,
        offset: u64,
        fixed: bool,
    },
    SyncData {
        fd: RawFd,
    },
}

/// What an operation needs next.
pub(super) enum Step {
    /// Nothing: it has its result.
    Finished,
    /// This, and then its answer.
    Move(Transfer),
}

enum State {
    Flying(Op),
    Landed(Done),
    /// Only while one state is replaced by another, and after [`Flight::abandon`].
    Gone,
}

/// An operation with its progress.
pub(super) struct Flight {
    state: State,
    /// Its buffer is registered with the ring.
    fixed: bool,
    sync: bool,
    direct: bool,
    /// Bytes moved.
    done: usize,
    /// Bytes to move.
    goal: usize,
    stalls: u32,
    /// What the request under way gathers; the kernel reads it at submission.
    slices: Vec<libc::iovec>,
}

impl Flight {
    pub(super) fn new(op: Op, fixed: bool) -> Self {
        let direct = op.file().directness() != Directness::Cached;
        let goal = match &op {
            Op::Write { bufs, .. } => Ok(bufs.iter().map(|buf| buf.len()).sum()),
            Op::WriteDirect { buf, len, .. } | Op::Read { buf, len, .. } => {
                checked(buf.len(), *len)
            }
            Op::WriteZeros { len, .. } => Ok(*len),
            Op::SyncData { .. } | Op::SyncFileSystem { .. } => Ok(0),
        };
        let sync = op.is_sync();
        let mut this = Self {
            state: State::Flying(op),
            fixed,
            sync,
            direct,
            done: 0,
            goal: 0,
            stalls: 0,
            slices: Vec::new(),
        };
        match goal {
            Ok(0) if !sync => this.finish(Ok(0)),
            Ok(goal) => this.goal = goal,
            Err(error) => this.finish(Err(error)),
        }
        this
    }

    pub(super) fn is_sync(&self) -> bool {
        self.sync
    }

    fn finish(&mut self, result: io::Result<usize>) {
        self.state = match std::mem::replace(&mut self.state, State::Gone) {
            State::Flying(op) => State::Landed(Done::of(op, result)),
            other => other,
        };
    }

    /// What to ask the kernel for. What a ring cannot do is done here and now.
    pub(super) fn next(&mut self) -> Step {
        let State::Flying(op) = &mut self.state else {
            return Step::Finished;
        };
        let fd = match op {
            Op::SyncFileSystem { .. } => None,
            _ => op.file().raw_fd(),
        };
        let Some(fd) = fd else {
            if let State::Flying(op) = std::mem::replace(&mut self.state, State::Gone) {
                self.state = State::Landed(perform(op));
            }
            return Step::Finished;
        };
        let (done, fixed) = (self.done, self.fixed);
        let len = (self.goal - done).min(MAX_TRANSFER);
        Step::Move(match op {
            Op::Write { offset, bufs, .. } => {
                let offset = *offset + done as u64;
                gather(bufs.iter().map(|buf| &buf[..]), done, &mut self.slices);
                gathered(&self.slices, fd, offset)
            }
            Op::WriteZeros { offset, .. } => {
                let whole = ZEROS.0.len();
                let parts =
                    (0..len.div_ceil(whole)).map(|i| &ZEROS.0[..whole.min(len - i * whole)]);
                gather(parts, 0, &mut self.slices);
                gathered(&self.slices, fd, *offset + done as u64)
            }
            Op::WriteDirect { offset, buf, .. } => Transfer::Write {
                fd,
                start: buf[done..].as_ptr(),
                len: len as u32,
                offset: *offset + done as u64,
                fixed,
            },
            Op::Read { offset, buf, .. } => Transfer::Read {
                fd,
                start: buf[done..].as_mut_ptr(),
                len: len as u32,
                offset: *offset + done as u64,
                fixed,
            },
            Op::SyncData { .. } | Op::SyncFileSystem { .. } => Transfer::SyncData { fd },
        })
    }

    /// Takes the kernel's answer; true when the operation has its result, false when it goes on.
    pub(super) fn land(&mut self, answer: i32) -> bool {
        let before = self.done;
        if answer < 0 {
            match -answer {
                libc::EINTR | libc::EAGAIN => {}
                code => {
                    self.finish(Err(io::Error::from_raw_os_error(code)));
                    return true;
                }
            }
        } else if self.sync {
            self.finish(Ok(0));
            return true;
        } else {
            let reads = matches!(self.state, State::Flying(Op::Read { .. }));
            self.done = (self.done + answer as usize).min(self.goal);
            let odd = self.direct && !self.done.is_multiple_of(BLOCK_BYTES);
            if self.done == self.goal || (reads && (answer == 0 || odd)) {
                self.finish(Ok(self.done));
                return true;
            }
            if odd {
                // Direct I/O goes on at a block; writing the same bytes again changes nothing.
                self.done -= self.done % BLOCK_BYTES;
            }
        }
        if self.done > before {
            self.stalls = 0;
            return false;
        }
        self.stalls += 1;
        if self.stalls <= MAX_STALLS {
            return false;
        }
        let kind = if answer < 0 {
            io::ErrorKind::Interrupted
        } else {
            io::ErrorKind::WriteZero
        };
        self.finish(Err(kind.into()));
        true
    }

    /// The result, with the buffers.
    pub(super) fn into_done(self) -> Done {
        match self.state {
            State::Landed(done) => done,
            State::Flying(op) => Done::of(op, Err(lost())),
            State::Gone => Done {
                result: Err(lost()),
                buf: None,
                bufs: Vec::new(),
            },
        }
    }

    /// The result after the ring failed: what has landed stands, all else fails, and its buffers
    /// are leaked, because the kernel may still be at them.
    pub(super) fn abandon(&mut self, error: &io::Error) -> Done {
        match std::mem::replace(&mut self.state, State::Gone) {
            State::Landed(done) => done,
            flying => {
                std::mem::forget(flying);
                let result = Err(match error.raw_os_error() {
                    Some(code) => io::Error::from_raw_os_error(code),
                    None => error.kind().into(),
                });
                Done {
                    result,
                    buf: None,
                    bufs: Vec::new(),
                }
            }
        }
    }
}

fn lost() -> io::Error {
    io::Error::other("the operation was not completed")
}

fn gathered(slices: &[libc::iovec], fd: RawFd, offset: u64) -> Transfer {
    Transfer::Gather {
        fd,
        slices: slices.as_ptr(),
        count: slices.len() as u32,
        offset,
    }
}

/// Fills `slices` with what is left of `parts` after `skip` bytes, as much as one request takes.
fn gather<'a>(
    parts: impl Iterator<Item = &'a [u8]>,
    mut skip: usize,
    slices: &mut Vec<libc::iovec>,
) {
    slices.clear();
    for part in parts {
        if skip >= part.len() {
            skip -= part.len();
            continue;
        }
        let rest = &part[skip..];
        skip = 0;
        slices.push(libc::iovec {
            iov_base: rest.as_ptr().cast_mut().cast(),
            iov_len: rest.len(),
        });
        if slices.len() == MAX_SLICES {
            break;
        }
    }
}
