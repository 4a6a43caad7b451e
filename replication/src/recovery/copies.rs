//! Bringing copies to one length: read from those that have it, side by side, written to the others.

use bytes::{Bytes, BytesMut};
use kera_log_segments::layout::{SEGMENT_HEADER_BYTES, SegmentHeader};

use super::{RecoverError, Recovery};
use crate::certificate::{Certificate, FetchedFile, scan_copy};
use crate::ids::{AckPolicy, BrokerId, CopyId, Replica, asked_of};
use crate::runtime::all;
use crate::transport::{CallError, Pending, Refusal, Reply, Request};

/// Bytes of one read and one write.
const PIECE_BYTES: u64 = 1 << 20;
/// Reads of one copy under way at once.
const READS: usize = 8;
/// Pieces in the memory of all recoveries of a broker at once.
pub(crate) const PIECES: usize = 128;
/// Most bytes that are read to salvage a copy.
const SALVAGE_BYTES: u64 = 1 << 30;

/// A copy, and the length up to which it is whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    pub(super) holder: Replica,
    pub(super) length: u64,
}

impl Recovery<'_> {
    /// Brings the copies in `whole` to `length`, and this broker's own files, and builds more elsewhere
    /// while there are fewer than `min_insync_replicas`. Returns who then holds all of it, as durably as the
    /// holder keeps copies: on disk, where it has one.
    pub(super) async fn complete(
        &self,
        copy: CopyId,
        length: u64,
        whole: Vec<Whole>,
        ack: AckPolicy,
    ) -> Result<Vec<Replica>, RecoverError> {
        let sources: Vec<BrokerId> = whole
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
        let mut tried: Vec<BrokerId> = whole.iter().map(|w| w.holder.broker).collect();
        let me = self.primary.me;
        if self.primary.is_own(me) && !tried.contains(&me) && !sources.is_empty() {
            // What the own file held does not count; it is made anew.
            tried.push(me);
            if let Some(holder) = self.primary.holder(me, ack).await {
                let target = Whole { holder, length: 0 };
                if self.fill(copy, &target, length, &sources, shape).await? {
                    holders.push(holder);
                }
            }
        }
        while holders.len() < self.spec.min_insync_replicas {
            let chosen = self.primary.choose(1, 1, (&tried, &[]), ack).await;
            let Some(holder) = chosen.first().copied() else {
                break;
            };
            tried.push(holder.broker);
            let seal = Request::seal(self.spec.streamlet, self.epoch);
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
    fn check(&self, backup: BrokerId, error: &CallError) -> Result<(), RecoverError> {
        match error.refusal() {
            Some(Refusal::Sealed { by }) if *by > self.epoch => {
                Err(RecoverError::Overtaken { backup, by: *by })
            }
            _ => {
                tracing::info!(%backup, %error, "recovery goes on without this broker's replica");
                Ok(())
            }
        }
    }

    /// Segment size and segments, from the group's own header.
    async fn shape(&self, copy: CopyId, sources: &[BrokerId]) -> Option<(u32, u32)> {
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
        sources: &[BrokerId],
        shape: Option<(u32, u32)>,
    ) -> Result<bool, RecoverError> {
        let backup = target.holder.broker;
        let mut from = target.length;
        while from < length {
            let Some((segment_size, segments)) = shape else {
                return Ok(false);
            };
            // All of them at once, so that nobody waits with some in hand.
            let room = self.primary.pieces.acquire_many(READS as u32).await;
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
            drop(room);
        }
        let flush = Request::flush_closed(copy, length);
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
        sources: &[BrokerId],
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

    /// The longest whole copy at any of the recorded brokers, whatever incarnation it is of. Who did not answer
    /// before may do so now, and is sealed before anything is read.
    pub(super) async fn salvage(
        &self,
        copy: CopyId,
        recorded: &[Replica],
    ) -> Option<(Certificate, Vec<Whole>)> {
        let ack = asked_of(recorded);
        let mut best: Option<Certificate> = None;
        let mut whole = Vec::new();
        for backup in recorded.iter().map(|holder| &holder.broker) {
            let Some(described) = self.primary.describe(*backup).await else {
                continue;
            };
            // One without a disk by now may still have what it was given.
            let holder = described.replica(ack);
            let Ok(holder) = holder.or_else(|_| described.replica(AckPolicy::Written)) else {
                continue;
            };
            let seal = Request::seal(self.spec.streamlet, self.epoch);
            if let Err(error) = self.ask(*backup, seal).await {
                tracing::info!(%backup, %error, "not sealed; its replica is not read");
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

    async fn fetch(&self, copy: CopyId, backup: BrokerId) -> Option<Bytes> {
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
