//! From byte ranges to whole blocks: what an `O_DIRECT` write has to carry.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use super::extents::Extents;
use crate::io::aligned::{AlignedBuf, BLOCK_BYTES};
use crate::io::{FileRef, Io, Op};

pub(super) const BLOCK: u64 = BLOCK_BYTES as u64;

/// Bytes of one write operation at most; a long range becomes several that fly together.
const OP_BYTES: usize = 64 * 1024;
/// Zeros written ahead at first, and at most.
const FIRST_STAGE: u64 = 64 * 1024;
pub(super) const MAX_STAGE: u64 = 1024 * 1024;
/// Partly filled blocks remembered per file: the tail, and a few fixed places.
const TAILS: usize = 3;

/// Bytes for a place in a file.
pub(super) type Piece<'a> = (u64, Vec<&'a [u8]>);

type Block = Box<[u8; BLOCK_BYTES]>;

/// What is known of a file's blocks; all extents are in whole blocks.
pub(super) struct Blocks {
    /// Blocks that may hold something else than zeros.
    data: Extents,
    /// Blocks written through this handle, be it with zeros ahead of their use: they have their
    /// place on the disk. Of a file found there nothing is known, it may have holes.
    allocated: Extents,
    /// Copies of partly filled blocks, the latest last.
    tails: VecDeque<(u64, Block)>,
    /// Zeros are staged below this address only.
    stage_limit: u64,
    next_stage: u64,
    /// Spreads the files' stage ends, so that they do not all come due in the same round.
    spread: u64,
}

/// The operations for one file of a round.
pub(super) struct Layout {
    pub(super) ops: Vec<Op>,
    /// Some of the blocks are allocated by these operations: the file needs a sync of its own.
    pub(super) allocates: bool,
}

impl Blocks {
    /// `len`: what the file holds already, of unknown content.
    pub(super) fn new(len: u64, stage_limit: u64, spread: u64) -> Self {
        let mut data = Extents::default();
        data.insert(0..len.next_multiple_of(BLOCK));
        Self {
            data,
            allocated: Extents::default(),
            tails: VecDeque::new(),
            stage_limit,
            next_stage: FIRST_STAGE,
            spread,
        }
    }

    /// Forgets everything beyond a new end.
    pub(super) fn cut(&mut self, len: u64) {
        let end = len.next_multiple_of(BLOCK);
        self.data.remove(end..u64::MAX);
        self.allocated.remove(end..u64::MAX);
        self.tails.clear();
    }

    /// Lays `pieces` out in whole blocks and plans zeros ahead of them. `pieces` are in ascending
    /// order; where they overlap they agree.
    ///
    /// # Errors
    /// When a block that is partly overwritten had to be read, and could not be; or when a piece
    /// lies beyond what a file can hold.
    pub(super) fn lay_out(
        &mut self,
        io: &dyn Io,
        file: &FileRef,
        pieces: &[Piece<'_>],
    ) -> io::Result<Layout> {
        let runs = runs(pieces)?;
        let mut layout = Layout {
            ops: Vec::new(),
            allocates: false,
        };
        for (run, pieces) in &runs {
            self.fill(io, file, run.clone(), pieces, &mut layout.ops)?;
        }
        let fresh: Vec<bool> = runs
            .iter()
            .map(|(run, _)| !self.is_allocated(run))
            .collect();
        for (run, _) in &runs {
            self.data.insert(run.clone());
            self.allocated.insert(run.clone());
        }
        // Only now, with all of the round's data known: zeros must never meet it.
        for ((run, _), fresh) in runs.iter().zip(fresh) {
            if fresh {
                layout.allocates = true;
                self.stage(run.end, file, &mut layout.ops);
            }
        }
        Ok(layout)
    }

    fn is_allocated(&self, run: &Range<u64>) -> bool {
        self.allocated
            .end_of(run.start)
            .is_some_and(|end| end >= run.end)
    }

    /// Plans zeros from `from` on, up to the next bytes in use.
    fn stage(&mut self, from: u64, file: &FileRef, ops: &mut Vec<Op>) {
        let shorten = (self.spread % (self.next_stage / 2)) / BLOCK * BLOCK;
        self.spread = self
            .spread
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f)
            >> 1;
        let mut end = from
            .saturating_add(self.next_stage - shorten)
            .min(self.stage_limit / BLOCK * BLOCK);
        for used in [&self.data, &self.allocated] {
            end = end.min(used.next_from(from).unwrap_or(u64::MAX));
        }
        if end <= from {
            return;
        }
        self.next_stage = (self.next_stage * 2).min(MAX_STAGE);
        self.allocated.insert(from..end);
        ops.push(Op::WriteZeros {
            file: file.clone(),
            offset: from,
            len: (end - from) as usize,
        });
    }

    fn fill(
        &mut self,
        io: &dyn Io,
        file: &FileRef,
        run: Range<u64>,
        pieces: &[Piece<'_>],
        ops: &mut Vec<Op>,
    ) -> io::Result<()> {
        let mut image = Image {
            io,
            at: run.start,
            end: run.end,
            filled: 0,
            buf: None,
            file,
            ops,
        };
        for (offset, bufs) in pieces {
            if image.position() < *offset {
                self.put_old(io, file, image.position()..*offset, &mut image)?;
            }
            let mut at = *offset;
            for buf in bufs {
                // What an earlier piece has covered is the same bytes.
                let skip = (image.position() - at).min(buf.len() as u64);
                image.put(&buf[skip as usize..]);
                at += buf.len() as u64;
            }
        }
        let end = image.position();
        if end < run.end {
            self.put_old(io, file, end..run.end, &mut image)?;
        }
        let last = image.finish();
        // Older copies of these blocks are out of date now.
        self.tails.retain(|(block, _)| !run.contains(block));
        if let Some((block, bytes)) = last
            && end < run.end
        {
            self.remember(block, bytes);
        }
        Ok(())
    }

    /// Puts what the file holds in `range`, which lies in a block or two.
    fn put_old(
        &mut self,
        io: &dyn Io,
        file: &FileRef,
        range: Range<u64>,
        image: &mut Image<'_>,
    ) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let block = at / BLOCK * BLOCK;
            let to = range.end.min(block + BLOCK);
            let within = (at - block) as usize..(to - block) as usize;
            if let Some((_, bytes)) = self.tails.iter().find(|(known, _)| *known == block) {
                image.put(&bytes[within]);
            } else if self.data.touches(&(block..block + BLOCK)) {
                let mut buf = io.buffer(BLOCK_BYTES);
                let read = file.read_at(&mut buf[..BLOCK_BYTES], block)?;
                buf[read..BLOCK_BYTES].fill(0);
                image.put(&buf[within]);
            } else {
                image.put_zeros(within.len());
            }
            at = to;
        }
        Ok(())
    }

    fn remember(&mut self, block: u64, bytes: Block) {
        if self.tails.len() == TAILS {
            self.tails.pop_front();
        }
        self.tails.push_back((block, bytes));
    }
}

/// Groups pieces into runs of whole blocks, so that no two runs share one.
fn runs<'p, 'a>(pieces: &'p [Piece<'a>]) -> io::Result<Vec<(Range<u64>, &'p [Piece<'a>])>> {
    let mut runs: Vec<(Range<u64>, Range<usize>)> = Vec::new();
    for (at, (offset, bufs)) in pieces.iter().enumerate() {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let end = offset
            .checked_add(len as u64)
            .filter(|end| *end <= i64::MAX as u64 - BLOCK);
        let Some(end) = end else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{len} bytes at {offset} lie beyond what a file can hold"),
            ));
        };
        if len == 0 {
            // Keeps its place among the pieces of the run it falls into, or is dropped.
            if let Some((run, members)) = runs.last_mut()
                && *offset <= run.end
            {
                members.end = at + 1;
            }
            continue;
        }
        let blocks = offset / BLOCK * BLOCK..end.next_multiple_of(BLOCK);
        match runs.last_mut() {
            Some((run, members)) if blocks.start <= run.end => {
                run.end = run.end.max(blocks.end);
                members.end = at + 1;
            }
            _ => runs.push((blocks, at..at + 1)),
        }
    }
    Ok(runs
        .into_iter()
        .map(|(run, members)| (run, &pieces[members]))
        .collect())
}

/// A run being copied into buffers, front to back.
struct Image<'a> {
    io: &'a dyn Io,
    /// File offset of the buffer at hand.
    at: u64,
    end: u64,
    filled: usize,
    buf: Option<AlignedBuf>,
    file: &'a FileRef,
    ops: &'a mut Vec<Op>,
}

impl Image<'_> {
    fn position(&self) -> u64 {
        self.at + self.filled as u64
    }

    fn op_len(&self) -> usize {
        (self.end - self.at).min(OP_BYTES as u64) as usize
    }

    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let len = self.op_len();
            let some = bytes.len().min(len - self.filled);
            let (io, filled) = (self.io, self.filled);
            let buf = self.buf.get_or_insert_with(|| io.buffer(len));
            buf[filled..filled + some].copy_from_slice(&bytes[..some]);
            bytes = &bytes[some..];
            self.advance(some, len);
        }
    }

    fn put_zeros(&mut self, mut count: usize) {
        while count > 0 {
            let len = self.op_len();
            let some = count.min(len - self.filled);
            let (io, filled) = (self.io, self.filled);
            let buf = self.buf.get_or_insert_with(|| io.buffer(len));
            buf[filled..filled + some].fill(0);
            count -= some;
            self.advance(some, len);
        }
    }

    fn advance(&mut self, some: usize, len: usize) {
        self.filled += some;
        // The last buffer stays until `finish` has looked at it.
        if self.filled == len && self.at + (len as u64) < self.end {
            self.emit(len);
        }
    }

    fn emit(&mut self, len: usize) {
        if let Some(buf) = self.buf.take() {
            self.ops.push(Op::WriteDirect {
                file: self.file.clone(),
                offset: self.at,
                buf,
                len,
            });
        }
        self.at += len as u64;
        self.filled = 0;
    }

    /// Ends the run; returns a copy of its last block.
    fn finish(mut self) -> Option<(u64, Block)> {
        let len = self.filled;
        let last = self.buf.as_ref().map(|buf| {
            let mut block: Block = Box::new([0; BLOCK_BYTES]);
            block.copy_from_slice(&buf[len - BLOCK_BYTES..len]);
            (self.at + (len - BLOCK_BYTES) as u64, block)
        });
        self.emit(len);
        last
    }
}
