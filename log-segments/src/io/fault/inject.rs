//! Failures to order.

use std::io;

/// A failure to inject. Numbers count from 1 and from the moment of injection, over the operations
/// that the failure is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The disk is full once this many more bytes have been written: the write that would pass the
    /// limit writes up to it and fails with `ENOSPC`, as does every later one, until
    /// [`super::FaultIo::heal`].
    NoSpaceAfter {
        /// Bytes that still fit.
        bytes: u64,
    },
    /// One file is not opened, with `EMFILE`.
    FailOpen {
        /// Which.
        nth: u64,
    },
    /// One read fails with `EIO`.
    FailRead {
        /// Which.
        nth: u64,
    },
    /// Each read that is asked for this byte of a file, or one behind it, fails with `EIO`: sectors have gone bad.
    FailReadsFrom {
        /// The first of the bytes.
        offset: u64,
    },
    /// One write fails with `EIO` and writes nothing.
    FailWrite {
        /// Which.
        nth: u64,
    },
    /// One write writes some of its bytes, then fails with `EIO`.
    ShortWrite {
        /// Which.
        nth: u64,
        /// Bytes written before it fails.
        bytes: usize,
    },
    /// One write stores another byte than it was given, and answers that all is well.
    GarbleWrite {
        /// Which.
        nth: u64,
    },
    /// One sync of a file fails with `EIO`. As on Linux, what was unsynced is marked clean: some of
    /// it, by seed, has reached the disk, the rest never will, and the next sync succeeds. So does what was written
    /// around the page cache to other files and lay in the cache of the device.
    FailSync {
        /// Which.
        nth: u64,
    },
    /// Everything fails after this many more operations of any kind; the one after the last may
    /// have been half done. What is left is for [`super::FaultIo::crash`].
    StopAfter {
        /// Operations that still succeed.
        ops: u64,
    },
}

/// What an operation is, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Open,
    /// Of bytes below this one.
    Read(u64),
    Write(usize),
    Sync,
    Other,
}

/// What is to happen to an operation.
#[derive(Debug)]
pub(super) enum Verdict {
    Go,
    Fail(io::Error),
    /// Only this many bytes are written, then it fails.
    Short(usize, io::Error),
    /// It is done, with a wrong byte.
    Garble,
    /// A sync fails and loses.
    LoseSync(io::Error),
}

impl Verdict {
    /// Of an operation that either happens or does not.
    pub(super) fn plain(self) -> io::Result<()> {
        match self {
            Self::Go | Self::Garble => Ok(()),
            Self::Fail(error) | Self::Short(_, error) | Self::LoseSync(error) => Err(error),
        }
    }
}

#[derive(Clone, Debug)]
struct Rule {
    fault: Fault,
    only: Option<String>,
    seen: u64,
}

/// The failures in force.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    rules: Vec<Rule>,
    stopped: bool,
}

fn broken() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

impl Rules {
    pub(super) fn add(&mut self, fault: Fault, only: Option<String>) {
        self.rules.push(Rule {
            fault,
            only,
            seen: 0,
        });
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
        self.stopped = false;
    }

    pub(super) fn stopped(&self) -> bool {
        self.stopped
    }

    pub(super) fn judge(&mut self, path: &str, kind: Kind) -> Verdict {
        if self.stopped {
            return Verdict::Fail(broken());
        }
        for rule in &mut self.rules {
            if rule
                .only
                .as_ref()
                .is_some_and(|only| !path.contains(only.as_str()))
            {
                continue;
            }
            let mut nth_is = |nth: u64| {
                rule.seen += 1;
                rule.seen == nth
            };
            match (&rule.fault, kind) {
                (Fault::NoSpaceAfter { bytes }, Kind::Write(len)) => {
                    let room = bytes.saturating_sub(rule.seen);
                    rule.seen += room.min(len as u64);
                    if room < len as u64 {
                        return Verdict::Short(
                            room as usize,
                            io::Error::from_raw_os_error(libc::ENOSPC),
                        );
                    }
                }
                (Fault::FailOpen { nth }, Kind::Open) if nth_is(*nth) => {
                    return Verdict::Fail(io::Error::from_raw_os_error(libc::EMFILE));
                }
                (Fault::FailReadsFrom { offset }, Kind::Read(end)) if end > *offset => {
                    return Verdict::Fail(broken());
                }
                (Fault::FailRead { nth }, Kind::Read(_)) if nth_is(*nth) => {
                    return Verdict::Fail(broken());
                }
                (Fault::FailWrite { nth }, Kind::Write(_)) if nth_is(*nth) => {
                    return Verdict::Fail(broken());
                }
                (Fault::ShortWrite { nth, bytes }, Kind::Write(len)) if nth_is(*nth) => {
                    return Verdict::Short((*bytes).min(len), broken());
                }
                (Fault::GarbleWrite { nth }, Kind::Write(_)) if nth_is(*nth) => {
                    return Verdict::Garble;
                }
                (Fault::FailSync { nth }, Kind::Sync) if nth_is(*nth) => {
                    return Verdict::LoseSync(broken());
                }
                (Fault::StopAfter { ops }, kind) => {
                    rule.seen += 1;
                    if rule.seen > *ops {
                        self.stopped = true;
                        return match kind {
                            Kind::Write(len) => Verdict::Short(len, broken()),
                            _ => Verdict::Fail(broken()),
                        };
                    }
                }
                _ => {}
            }
        }
        Verdict::Go
    }
}
