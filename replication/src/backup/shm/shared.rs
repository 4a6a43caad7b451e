//! The part of a copy that lies on shared memory: which of its ranges have memory, and which may be written.

use std::fs::File;
use std::io;
use std::sync::Arc;

use super::super::mapping::{Mapping, cut_short};
use super::super::memory::CopySpec;
use super::Paths;

/// The part of a copy that lies on shared memory.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) file: Arc<File>,
    pub(super) mapping: Mapping,
    pub(super) paths: Paths,
    /// What lies below is on disk alone.
    pub(super) released: u64,
    /// Reserved ranges, sorted and apart from each other. Nothing is placed outside of them, so
    /// that a full machine refuses to reserve and never ends the process.
    pub(super) reserved: Vec<(u64, u64)>,
    /// Ranges that have memory from an earlier copy and are zeros until they are reserved.
    pub(super) warm: Vec<(u64, u64)>,
    /// All memory that the file has came by way of this process.
    pub(super) known: bool,
    /// Bytes of memory that count as this file's.
    pub(super) charged: u64,
    /// The file was found shorter than it was made: the copy is lost.
    pub(super) is_cut: bool,
}

impl Shared {
    pub(super) fn new(spec: &CopySpec, file: Arc<File>, paths: Paths) -> io::Result<Self> {
        let bytes = usize::try_from(spec.group_bytes()).map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(Self {
            mapping: Mapping::new(&file, bytes)?,
            file,
            paths,
            released: 0,
            reserved: Vec::new(),
            warm: Vec::new(),
            known: false,
            charged: 0,
            is_cut: false,
        })
    }

    /// The parts of `from..to` that are not reserved; what is on disk alone need not be.
    pub(super) fn missing(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        let mut at = from.max(self.released);
        for (start, end) in &self.reserved {
            if *end <= at {
                continue;
            }
            if *start >= to {
                break;
            }
            if *start > at {
                out.push((at, *start));
            }
            at = *end;
        }
        if at < to {
            out.push((at, to));
        }
        out
    }

    /// How many bytes those are.
    pub(super) fn lacking(&self, from: u64, to: u64) -> u64 {
        let missing = self.missing(from, to);
        missing.iter().map(|(from, to)| to - from).sum()
    }

    /// Takes `from..to` out of the warm ranges; what of it has no memory yet.
    pub(super) fn cool(&mut self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut cold = Vec::new();
        let mut warm = Vec::new();
        let mut at = from;
        for (start, end) in std::mem::take(&mut self.warm) {
            let (low, high) = (start.max(from), end.min(to));
            if low >= high {
                warm.push((start, end));
                continue;
            }
            if start < low {
                warm.push((start, low));
            }
            if high < end {
                warm.push((high, end));
            }
            if at < low {
                cold.push((at, low));
            }
            at = high;
        }
        if at < to {
            cold.push((at, to));
        }
        self.warm = warm;
        cold
    }

    /// Keeps in mind that the file was cut short, if that is what the error says.
    pub(super) fn noting<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        let is_eof = |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
        self.is_cut |= result.as_ref().err().is_some_and(is_eof);
        result
    }

    pub(super) fn within(&self, address: u64, len: usize) -> io::Result<()> {
        if self.is_cut {
            return Err(cut_short());
        }
        let end = address.saturating_add(len as u64);
        let at = self.reserved.partition_point(|(_, to)| *to < end);
        match self.reserved.get(at) {
            Some((from, _)) if *from <= address => Ok(()),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the bytes lie outside of what is reserved",
            )),
        }
    }

    /// Takes what lies below `to` out of the ranges; the bytes that were reserved there, and those
    /// that have memory.
    pub(super) fn leave_below(&mut self, to: u64) -> (u64, u64) {
        let cut = |ranges: &mut Vec<(u64, u64)>| {
            let mut taken = 0;
            ranges.retain_mut(|(from, end)| {
                taken += (*end).min(to).saturating_sub(*from);
                *from = (*from).max(to);
                from < end
            });
            taken
        };
        let reserved = cut(&mut self.reserved);
        (reserved, reserved + cut(&mut self.warm))
    }

    pub(super) fn add(&mut self, from: u64, to: u64) {
        let from = from.max(self.released);
        if from >= to {
            return;
        }
        let at = self.reserved.partition_point(|(start, _)| *start < from);
        self.reserved.insert(at, (from, to));
        self.reserved.dedup_by(|later, earlier| {
            let joined = later.0 <= earlier.1;
            if joined {
                earlier.1 = earlier.1.max(later.1);
            }
            joined
        });
    }
}
