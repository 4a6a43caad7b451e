//! Bringing copies to one length: read from those that have it, side by side, written to the others.

use bytes::{Bytes, BytesMut};
use kera_log_segments::layout::{SEGMENT_HEADER_BYTES, SegmentHeader};

use super::{RecoverError, Recovery};
use crate::certificate::{Certificate, FetchedFile, scan_copy};
use crate::ids::{BackupId, CopyId, Holder};
use crate::records::read;
use crate::runtime::all;
use crate::transport::{CallError, Pending, Refusal, Reply, Request};

/// Bytes of one read and one write.
const PIECE_BYTES: u64 = 1 << 20;
/// Reads under way at once; they bound the memory of a recovery.
const READS: usize = 8;
/// Most bytes that are read to salvage a copy.
const SALVAGE_BYTES: u64 = 1 << 30;

/// A copy, and the length up to which it is whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    pub(super) holder: Holder,
    pub(super) length: u64,
}

impl Recovery<'_> {
    /// Brings the copies in `whole` to `length`, and builds more elsewhere while there are fewer than
    /// `min_copies`. Returns who then holds all of it on disk.
    pub(super) async fn complete(
        &self,
        copy: CopyId,
        length: u64,
        whole: Vec<Whole>,
    ) -> Result<Vec<Holder>, RecoverError> {
        let sources: Vec<BackupId> = whole
            .iter()
            .filter(|w| w.length >= length)
            .map(|w| w.holder.broker)
            .collect();
        let shape = self.shape(copy, &sources).await;
        let mut holders = Vec::new();
        for target in &whole {
            if self.fill(copy, target, length, &sources, shape).await? {
                holders.push(target.holder);
            }
        }
        let mut tried: Vec<BackupId> = whole.iter().map(|w| w.holder.broker).collect();
        while holders.len() < self.spec.min_copies {
            let chosen = self.primary.choose(1, &tried).await;
            let Some(holder) = chosen.first().copied() else {
                break;
            };
            tried.push(holder.broker);
            let seal = Request::Seal {
                streamlet: self.spec.streamlet,
                epoch: self.epoch,
                copies: Vec::new(),
            };
            if let Err(error) = self.ask(holder.broker, seal).await {
                self.check(holder.broker, &error)?;
                continue;
            }
            let target = Whole { holder, length: 0 };
            if self.fill(copy, &target, length, &sources, shape).await? {
                holders.push(holder);
            }
        }
        Ok(holders)
    }

    /// An answer that ends this recovery is an error, any other only a copy less.
    fn check(&self, backup: BackupId, error: &CallError) -> Result<(), RecoverError> {
        match error.refusal() {
            Some(Refusal::Sealed { by }) if *by > self.epoch => {
                Err(RecoverError::Overtaken { backup, by: *by })
            }
            _ => {
                tracing::info!(%backup, %error, "a copy less");
                Ok(())
            }
        }
    }

    /// Segment size and segments, from the group's own header.
    async fn shape(&self, copy: CopyId, sources: &[BackupId]) -> Option<(u32, u32)> {
        let head = self
            .read(copy, sources, 0, 0, SEGMENT_HEADER_BYTES as u64)
            .await?;
        let header = SegmentHeader::decode(&head).ok()?;
        Some((header.segment_size, header.segments))
    }

    /// Brings one copy to `length` and to its disk; false if that failed.
    async fn fill(
        &self,
        copy: CopyId,
        target: &Whole,
        length: u64,
        sources: &[BackupId],
        shape: Option<(u32, u32)>,
    ) -> Result<bool, RecoverError> {
        let backup = target.holder.broker;
        let mut from = target.length;
        while from < length {
            let Some((segment_size, segments)) = shape else {
                return Ok(false);
            };
            let mut reads: Vec<Pending<_>> = Vec::new();
            while from < length && reads.len() < READS {
                let size = u64::from(segment_size);
                let to = length.min(from + PIECE_BYTES).min((from / size + 1) * size);
                let turn = reads.len();
                let read = self.read(copy, sources, turn, from, to - from);
                reads.push(Box::pin(async move { (from, read.await) }));
                from = to;
            }
            for (address, bytes) in all(reads).await {
                let Some(bytes) = bytes else {
                    return Ok(false);
                };
                let complete = Request::Complete {
                    copy,
                    epoch: self.epoch,
                    segment_size,
                    segments,
                    address,
                    bytes,
                };
                if let Err(error) = self.ask(backup, complete).await {
                    self.check(backup, &error)?;
                    return Ok(false);
                }
            }
        }
        let flush = Request::Flush {
            copy,
            length,
            closed: true,
        };
        match self.ask(backup, flush).await {
            Ok(_) => Ok(true),
            Err(error) => {
                self.check(backup, &error)?;
                Ok(false)
            }
        }
    }

    /// Reads a range from one of `sources`, beginning with number `turn`, so that many reads are
    /// spread over all; the others are asked when it fails.
    fn read(
        &self,
        copy: CopyId,
        sources: &[BackupId],
        turn: usize,
        address: u64,
        len: u64,
    ) -> Pending<Option<Bytes>> {
        let mut order = sources.to_vec();
        if !order.is_empty() {
            let by = turn % order.len();
            order.rotate_left(by);
        }
        let asks: Vec<_> = order
            .into_iter()
            .map(|backup| {
                let request = Request::Read {
                    copy,
                    address,
                    len: len as u32,
                };
                self.ask(backup, request)
            })
            .collect();
        Box::pin(async move {
            for ask in asks {
                if let Ok(Reply::Bytes(bytes)) = ask.await
                    && bytes.len() as u64 == len
                {
                    return Some(bytes);
                }
            }
            None
        })
    }

    /// Frees what sealed brokers hold of former owners' groups and no record names: copies that were
    /// lost or discarded. Nobody waits for an answer.
    pub(super) async fn free_unrecorded(&self) {
        let (records, runtime) = (&self.primary.records, &*self.primary.runtime);
        let Ok(found) = read(records, runtime, self.spec.streamlet).await else {
            return;
        };
        let recorded = |backup: BackupId, copy: &CopyId| {
            let mut records = found.groups.iter().filter(|r| r.copy == *copy);
            records.any(|r| r.holders().iter().any(|h| h.broker == backup))
        };
        let lists: Vec<Pending<_>> = self
            .sealed
            .iter()
            .map(|backup| {
                let backup = *backup;
                let list = self.ask(
                    backup,
                    Request::List {
                        streamlet: Some(self.spec.streamlet),
                    },
                );
                Box::pin(async move { (backup, list.await) }) as Pending<_>
            })
            .collect();
        for (backup, list) in all(lists).await {
            let Ok(Reply::Copies(copies)) = list else {
                continue;
            };
            for held in copies {
                if held.copy.epoch >= self.epoch || recorded(backup, &held.copy) {
                    continue;
                }
                let free = Request::Free {
                    copy: held.copy,
                    epoch: self.epoch,
                };
                // A copy that stays costs memory until the next recovery, nothing else.
                let freed = self.ask(backup, free);
                self.primary.runtime.spawn(Box::pin(async move {
                    if let Err(error) = freed.await {
                        tracing::info!(%error, "a copy that nothing names was not freed");
                    }
                }));
            }
        }
    }

    /// The longest whole copy at any of `brokers`, whatever incarnation it is of. Who did not answer
    /// before may do so now, and is sealed before anything is read.
    pub(super) async fn salvage(
        &self,
        copy: CopyId,
        brokers: &[BackupId],
    ) -> Option<(Certificate, Vec<Whole>)> {
        let mut best: Option<Certificate> = None;
        let mut whole = Vec::new();
        for backup in brokers {
            let Some(holder) = self.primary.holder(*backup).await else {
                continue;
            };
            let seal = Request::Seal {
                streamlet: self.spec.streamlet,
                epoch: self.epoch,
                copies: Vec::new(),
            };
            if let Err(error) = self.ask(*backup, seal).await {
                tracing::info!(%backup, %error, "not sealed; its copy is not read");
                continue;
            }
            let Some(bytes) = self.fetch(copy, *backup).await else {
                continue;
            };
            let scanned = scan_copy(&FetchedFile(bytes), copy, self.primary.faults);
            if let Ok(Some(certificate)) = scanned {
                let length = certificate.length;
                whole.push(Whole { holder, length });
                if best.is_none_or(|b| b.length < length) {
                    best = Some(certificate);
                }
            }
        }
        best.map(|certificate| (certificate, whole))
    }

    async fn fetch(&self, copy: CopyId, backup: BackupId) -> Option<Bytes> {
        let (size, segments) = self.shape(copy, &[backup]).await?;
        let all = (u64::from(size) * u64::from(segments)).min(SALVAGE_BYTES);
        let mut out = BytesMut::new();
        while (out.len() as u64) < all {
            let address = out.len() as u64;
            let len = PIECE_BYTES.min(all - address);
            let len = len.min(u64::from(size) - address % u64::from(size));
            let Some(bytes) = self.read(copy, &[backup], 0, address, len).await else {
                break;
            };
            out.extend_from_slice(&bytes);
        }
        Some(out.freeze())
    }
}
