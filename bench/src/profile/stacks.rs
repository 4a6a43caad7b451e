//! Stacks of functions, as often as they were seen.

use std::collections::BTreeMap;

/// Where a frame's code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// Kera's own crates.
    Own,
    /// The runtime, libraries, the C library.
    Library,
    Kernel,
}

/// A function on a stack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Frame {
    pub name: String,
    pub origin: Origin,
}

/// Samples with equal stacks, counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Stacks {
    /// From the outermost frame to the innermost, and how often.
    pub counts: BTreeMap<Vec<Frame>, u64>,
}

impl Stacks {
    /// Reads what `perf script --fields ip,sym` writes: a line for each frame, the innermost first,
    /// and an empty line after each sample.
    pub(super) fn parse(text: &str) -> Self {
        let mut stacks = Self::default();
        let mut frames = Vec::new();
        for line in text.lines().chain([""]) {
            match frame(line) {
                Some(frame) => frames.push(frame),
                None if frames.is_empty() => {}
                None => {
                    frames.reverse();
                    *stacks
                        .counts
                        .entry(std::mem::take(&mut frames))
                        .or_default() += 1;
                }
            }
        }
        stacks
    }

    /// Samples in all.
    pub(super) fn total(&self) -> u64 {
        self.counts.values().sum()
    }
}

fn frame(line: &str) -> Option<Frame> {
    let (address, symbol) = line.trim().split_once(' ')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let name = readable(symbol.trim());
    // The upper half of the addresses is the kernel's.
    let origin = if address >> 63 == 1 {
        Origin::Kernel
    } else if name.contains("kera_") {
        Origin::Own
    } else {
        Origin::Library
    };
    Some(Frame { name, origin })
}

/// A symbol without what the compiler adds to tell instances apart.
fn readable(symbol: &str) -> String {
    let mut name = symbol.split("+0x").next().unwrap_or(symbol);
    if let Some((before, _)) = name.split_once(".llvm.") {
        name = before;
    }
    if let Some((before, hash)) = name.rsplit_once("::h")
        && hash.len() == 16
        && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
    {
        name = before;
    }
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_counted_by_their_stack() {
        let text = "\
            \tffffffff81d33df7 vfs_write\n\
            \t          f82ad kera_log_segments::local_writer::x::h0123456789abcdef\n\
            \n\
            \tffffffff81d33df8 vfs_write\n\
            \t          f82ad kera_log_segments::local_writer::x::h0123456789abcdef\n\
            \n\
            \t          f82ae memcpy\n";
        let stacks = Stacks::parse(text);
        assert_eq!(stacks.total(), 3);
        let mut counts = stacks.counts.iter();
        let (stack, count) = counts.next().unwrap();
        assert_eq!((stack.len(), *count), (2, 2));
        assert_eq!(stack[0].name, "kera_log_segments::local_writer::x");
        assert_eq!(
            (stack[0].origin, stack[1].origin),
            (Origin::Own, Origin::Kernel)
        );
        let (stack, count) = counts.next().unwrap();
        assert_eq!((stack[0].origin, *count), (Origin::Library, 1));
    }

    #[test]
    fn names_lose_what_tells_instances_apart() {
        assert_eq!(readable("a::b::hfedcba9876543210.llvm.123"), "a::b");
        assert_eq!(readable("do_syscall_64+0x3f"), "do_syscall_64");
        assert_eq!(readable("a::hash"), "a::hash");
    }
}
