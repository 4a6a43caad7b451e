//! Which step of the data path a stack belongs to: a table of names of functions, in this file only.
//!
//! A stack is walked from its innermost frame outwards; the first frame that a rule knows decides. So
//! the table names what is particular (a system call, a checksum) and, after it, the modules of
//! Kera's own code for all that they do themselves.

use std::collections::BTreeMap;

use super::stacks::{Frame, Origin, Stacks};

/// A step of the data path, in the order of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    Receive,
    Check,
    Sequence,
    Copy,
    Write,
    Flush,
    Lookup,
    Load,
    Send,
    PageFaults,
    Scheduling,
    Background,
    Other,
}

impl Step {
    pub(super) const ALL: [Self; 13] = [
        Self::Receive,
        Self::Check,
        Self::Sequence,
        Self::Copy,
        Self::Write,
        Self::Flush,
        Self::Lookup,
        Self::Load,
        Self::Send,
        Self::PageFaults,
        Self::Scheduling,
        Self::Background,
        Self::Other,
    ];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Receive => "receive: read the socket",
            Self::Check => "decode frame and batch, check the CRC",
            Self::Sequence => "streamlet and group locks, sequence",
            Self::Copy => "copy into the segment",
            Self::Write => "pump: write the file",
            Self::Flush => "flush to the disk, at a group's end and at intervals",
            Self::Lookup => "find what to read",
            Self::Load => "read the file, page cache",
            Self::Send => "acknowledge or send: write the socket",
            Self::PageFaults => "page faults: first touch of memory",
            Self::Scheduling => "runtime, epoll, wake-ups",
            Self::Background => "jobs, metadata, statistics",
            Self::Other => "other",
        }
    }
}

/// What a rule looks for in a frame's name.
#[derive(Clone, Copy, Debug)]
pub(super) enum Name {
    /// A path of Kera's: `crate::module` or `crate::module::function`; it must exist.
    Own(&'static str),
    /// A function of the kernel's, whole.
    Kernel(&'static str),
    /// Part of the name of a library's function.
    Library(&'static str),
    /// Copying in the C library, called from this path of Kera's; the caller itself is not always on
    /// the stack, since copying sets up no frame.
    CopyWithin(&'static str),
}

/// A rule of the table.
pub(super) type Rule = (Step, Name);

/// The table; within one frame the first rule that fits counts.
pub(super) const RULES: &[Rule] = {
    use Name::{CopyWithin, Kernel, Library, Own};
    use Step::{
        Background, Check, Copy, Flush, Load, Lookup, PageFaults, Receive, Scheduling, Send,
        Sequence, Write,
    };
    &[
        (PageFaults, Kernel("asm_exc_page_fault")),
        (PageFaults, Kernel("exc_page_fault")),
        // System calls, by the innermost function that all ways to it share.
        (Receive, Kernel("sock_recvmsg")),
        (Receive, Kernel("sock_read_iter")),
        (Receive, Kernel("tcp_recvmsg")),
        (Receive, Kernel("inet_recvmsg")),
        (Receive, Kernel("__sys_recvfrom")),
        (Receive, Kernel("__sys_recvmsg")),
        (Send, Kernel("sock_sendmsg")),
        (Send, Kernel("sock_write_iter")),
        (Send, Kernel("tcp_sendmsg")),
        (Send, Kernel("inet_sendmsg")),
        (Send, Kernel("__sys_sendto")),
        (Send, Kernel("__sys_sendmsg")),
        (Write, Kernel("ext4_file_write_iter")),
        (Write, Kernel("xfs_file_write_iter")),
        (Write, Kernel("btrfs_file_write_iter")),
        (Write, Kernel("generic_file_write_iter")),
        (Write, Kernel("do_pwritev")),
        (Write, Kernel("ksys_pwrite64")),
        (Write, Kernel("__x64_sys_pwrite64")),
        (Write, Kernel("__x64_sys_pwritev")),
        (Write, Kernel("__x64_sys_pwritev2")),
        (Write, Kernel("__x64_sys_io_uring_enter")),
        (Flush, Kernel("__x64_sys_fdatasync")),
        (Flush, Kernel("__x64_sys_syncfs")),
        (Flush, Kernel("__x64_sys_sync_file_range")),
        (Load, Kernel("ext4_file_read_iter")),
        (Load, Kernel("xfs_file_read_iter")),
        (Load, Kernel("generic_file_read_iter")),
        (Load, Kernel("do_preadv")),
        (Load, Kernel("__x64_sys_pread64")),
        (Load, Kernel("__x64_sys_preadv2")),
        (Scheduling, Kernel("do_epoll_wait")),
        (Scheduling, Kernel("do_epoll_ctl")),
        (Scheduling, Kernel("__x64_sys_epoll_wait")),
        (Scheduling, Kernel("do_futex")),
        (Scheduling, Kernel("__x64_sys_futex")),
        (Scheduling, Kernel("schedule")),
        (Scheduling, Kernel("__x64_sys_sched_yield")),
        (Scheduling, Kernel("ksys_write")),
        // Libraries that do one thing.
        (Check, Library("crc_fast::")),
        (Background, Library("redb::")),
        // Copies.
        (Copy, CopyWithin("kera_streamlet::append")),
        (Copy, CopyWithin("kera_log_segments::writer")),
        (Receive, CopyWithin("kera_broker::inbox")),
        (Receive, CopyWithin("kera_broker::connection")),
        (Receive, CopyWithin("kera_kafka_shim::connection")),
        // Own code: the innermost module of ours that is on the stack.
        (Check, Own("kera_protocol::batch")),
        (Check, Own("kera_protocol::frame")),
        (Check, Own("kera_kafka_shim::wire")),
        (Copy, Own("kera_log_segments::writer")),
        (Copy, Own("kera_log_segments::pool")),
        (Copy, Own("kera_log_segments::window")),
        (Write, Own("kera_log_segments::local_writer")),
        (Write, Own("kera_log_segments::io")),
        (Write, Own("kera_log_segments::head")),
        (Write, Own("kera_log_segments::waiters")),
        (Lookup, Own("kera_log_segments::read")),
        (Lookup, Own("kera_log_segments::footer")),
        (Lookup, Own("kera_streamlet::read")),
        (Lookup, Own("kera_broker::data::fetch")),
        (Lookup, Own("kera_kafka_shim::fetch")),
        (Sequence, Own("kera_streamlet::append")),
        (Sequence, Own("kera_streamlet::producers")),
        (Sequence, Own("kera_streamlet::roll")),
        (Check, Own("kera_broker::data::append")),
        (Check, Own("kera_kafka_shim::produce")),
        (Background, Own("kera_broker::maintenance")),
        (Background, Own("kera_broker::group_records")),
        (Background, Own("kera_streamlet::closing")),
        (Background, Own("kera_metadata")),
        (Background, Own("kera_coordinator")),
        (Send, Own("kera_broker::outbox")),
        (Receive, Own("kera_broker::inbox")),
        (Receive, Own("kera_broker::connection")),
        (Receive, Own("kera_kafka_shim::connection")),
        (Scheduling, Library("tokio::")),
        (Scheduling, Library("mio::")),
    ]
};

/// The step of a stack, outermost frame first.
pub(super) fn step_of(stack: &[Frame]) -> Step {
    for (at, frame) in stack.iter().enumerate().rev() {
        let known = RULES
            .iter()
            .find(|(_, name)| fits(*name, frame, &stack[..at]));
        if let Some((step, _)) = known {
            return *step;
        }
    }
    Step::Other
}

fn fits(name: Name, frame: &Frame, callers: &[Frame]) -> bool {
    match name {
        Name::Kernel(name) => frame.origin == Origin::Kernel && frame.name == name,
        Name::Library(part) => frame.origin != Origin::Kernel && frame.name.contains(part),
        Name::Own(path) => is_within(frame, path),
        Name::CopyWithin(path) => {
            frame.origin == Origin::Library
                && (frame.name.contains("memcpy") || frame.name.contains("memmove"))
                && callers
                    .iter()
                    .rev()
                    .find(|caller| caller.origin == Origin::Own)
                    .is_some_and(|caller| is_within(caller, path))
        }
    }
}

/// True if the frame's function lies in `path`: as a whole component, wherever it stands in the name
/// (`<impl kera_x::y::Z>::f`).
fn is_within(frame: &Frame, path: &str) -> bool {
    frame.origin != Origin::Kernel
        && frame.name.match_indices(path).any(|(at, _)| {
            let rest = &frame.name[at + path.len()..];
            !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_')
        })
}

/// Samples by step.
pub(super) fn by_step(stacks: &Stacks) -> BTreeMap<Step, u64> {
    let mut steps = BTreeMap::new();
    for (stack, count) in &stacks.counts {
        *steps.entry(step_of(stack)).or_default() += count;
    }
    steps
}

/// The innermost function of each sample that no rule knows, the most frequent first.
pub(super) fn unknown(stacks: &Stacks) -> Vec<(String, u64)> {
    let mut names: BTreeMap<&str, u64> = BTreeMap::new();
    for (stack, count) in &stacks.counts {
        if step_of(stack) == Step::Other {
            let inner = stack.last().map_or("", |frame| &frame.name);
            *names.entry(inner).or_default() += count;
        }
    }
    let mut names: Vec<_> = names
        .into_iter()
        .map(|(name, count)| (name.to_owned(), count))
        .collect();
    names.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    names
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    fn stack(names: &[(&str, Origin)]) -> Vec<Frame> {
        names
            .iter()
            .map(|(name, origin)| Frame {
                name: (*name).to_owned(),
                origin: *origin,
            })
            .collect()
    }

    #[test]
    fn the_innermost_frame_that_is_known_decides() {
        use Origin::{Kernel, Library, Own};
        let pump = (
            "kera_log_segments::local_writer::<impl x>::write_rounds",
            Own,
        );
        let append = ("kera_streamlet::append::<impl x>::append_to", Own);
        let main = ("tokio::runtime::task::harness::poll", Library);
        assert_eq!(step_of(&stack(&[main])), Step::Scheduling);
        assert_eq!(step_of(&stack(&[main, append])), Step::Sequence);
        assert_eq!(
            step_of(&stack(&[main, append, ("__memmove_avx", Library)])),
            Step::Copy
        );
        assert_eq!(step_of(&stack(&[main, append, pump])), Step::Write);
        let fault = ("asm_exc_page_fault", Kernel);
        assert_eq!(
            step_of(&stack(&[main, append, pump, fault, ("clear_page", Kernel)])),
            Step::PageFaults
        );
        let write = ("ksys_pwrite64", Kernel);
        assert_eq!(
            step_of(&stack(&[main, write, ("copy_from_user", Kernel)])),
            Step::Write
        );
        assert_eq!(
            step_of(&stack(&[("kera_log_segments::pumpkin", Own)])),
            Step::Other
        );
    }

    /// The file of a path of Kera's, and what of the path is left behind its module.
    fn file_of(path: &str) -> Option<(PathBuf, Vec<String>)> {
        let mut parts = path.split("::").map(str::to_owned);
        let folder = parts.next()?.strip_prefix("kera_")?.replace('_', "-");
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("..")
            .join(folder);
        let mut place = root.join("src");
        let mut file = place.join("lib.rs");
        let mut rest: Vec<_> = parts.collect();
        while let Some(part) = rest.first() {
            let (alone, within) = (
                place.join(format!("{part}.rs")),
                place.join(part).join("mod.rs"),
            );
            if alone.exists() {
                file = alone;
            } else if within.exists() {
                file = within;
            } else {
                break;
            }
            place = place.join(part);
            rest.remove(0);
        }
        file.exists().then_some((file, rest))
    }

    fn missing(path: &str) -> Option<String> {
        let Some((file, rest)) = file_of(path) else {
            return Some(format!("{path}: no such crate"));
        };
        let text = std::fs::read_to_string(&file).expect("a source file");
        match &rest[..] {
            [] => None,
            [function] if text.contains(&format!("fn {function}")) => None,
            _ => Some(format!(
                "{path}: {} has no {}",
                file.display(),
                rest.join("::")
            )),
        }
    }

    #[test]
    fn every_name_of_ours_in_the_table_is_in_the_code() {
        let paths = RULES.iter().filter_map(|(_, name)| match name {
            Name::Own(path) | Name::CopyWithin(path) => Some(*path),
            _ => None,
        });
        let missing: Vec<_> = paths.filter_map(missing).collect();
        assert!(missing.is_empty(), "{missing:#?}");
    }

    #[test]
    fn a_name_that_is_gone_is_seen() {
        assert!(missing("kera_streamlet::append::append_to").is_none());
        assert!(missing("kera_streamlet::append::gone").is_some());
        assert!(missing("kera_streamlet::gone").is_some());
        assert!(missing("kera_gone::append").is_some());
    }
}
