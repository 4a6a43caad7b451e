//! Bringing copies to one length: read from those that have it, side by side, written to the others.

use bytes::{Bytes, BytesMut};
use kera_log_segments::layout::{SEGMENT_HEADER_BYTES, SegmentHeader};
use kera_log_segments::window::Place;

use super::{RecoverError, Recovery};
use crate::build_replica::{Build, GroupBytes, Replicas, piece_end};
use crate::certificate::{Certificate, FetchedFile, scan_copy};
use crate::ids::{AckPolicy, BrokerId, CopyId, Replica, asked_of};
use crate::transport::{CallError, Refusal, Reply, Request};

/// Most bytes that are read to salvage a copy.
const SALVAGE_BYTES: u64 = 1 << 30;

/// A copy, and the length up to which it is whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    pub(super) holder: Replica,
    pub(super) length: u64,
}

impl Recovery<'_> {
    /// Brings the copies in `whole` to `end`, and this broker's own files, and builds more elsewhere
    /// while there are fewer than `min_insync_replicas`. Returns who then holds all of it, as durably as the
    /// holder keeps copies: on disk, where it has one.
    pub(super) async fn complete(
        &self,
        copy: CopyId,
        end: Place,
        whole: Vec<Whole>,
        ack: AckPolicy,
    ) -> Result<Vec<Replica>, RecoverError> {
        let have = whole.iter().filter(|w| w.length >= end.address);
        let sources: Vec<BrokerId> = have.map(|w| w.holder.broker).collect();
        let ask = |broker, request| self.ask(broker, request);
        let sources = Replicas::of(copy, &sources, &ask).await;
        let mut holders = Vec::new();
        let mut tried: Vec<BrokerId> = whole.iter().map(|w| w.holder.broker).collect();
        for target in whole {
            self.fill(target, end, sources, &mut holders).await?;
        }
        let me = self.primary.me;
        if self.primary.is_own(me) && !tried.contains(&me) && !sources.at.is_empty() {
            // What the own file held does not count; it is made anew.
            tried.push(me);
            if let Some(holder) = self.primary.holder(me, ack).await {
                let target = Whole { holder, length: 0 };
                self.fill(target, end, sources, &mut holders).await?;
            }
        }
        while holders.len() < self.spec.min_insync_replicas {
            let chosen = self.primary.choose(1, 1, (&tried, &[]), ack).await;
            let Some(holder) = chosen.first().copied() else {
                break;
            };
            tried.push(holder.broker);
            let target = Whole { holder, length: 0 };
            self.fill(target, end, sources, &mut holders).await?;
        }
        Ok(holders)
    }

    /// Brings one copy to `end` and to its disk, and adds it to `holders`; nothing if that failed. An answer that ends
    /// this recovery is an error.
    async fn fill(
        &self,
        target: Whole,
        end: Place,
        sources: Replicas<'_>,
        holders: &mut Vec<Replica>,
    ) -> Result<(), RecoverError> {
        let backup = target.holder.broker;
        let build = Build {
            primary: self.primary,
            copy: sources.copy,
            epoch: self.epoch,
            at: backup,
            from: target.length,
            end,
            bytes: GroupBytes::Replicas(sources),
            ask: &|broker, request| self.ask(broker, request),
            pace: None,
        };
        let built = match self.sealed.contains(&backup) {
            true => build.run().await,
            false => build.seal_and_run().await,
        };
        match built {
            Ok(()) => holders.push(target.holder),
            Err(error) => match error.sealed_by() {
                Some(by) if by > self.epoch => return Err(RecoverError::Overtaken { backup, by }),
                _ => {
                    tracing::info!(%backup, %error, "recovery goes on without this broker's replica");
                }
            },
        }
        Ok(())
    }

    /// The longest whole copy at any of the recorded brokers, whatever incarnation it is of. Who did not answer
    /// before may do so now, and is sealed before anything is read.
    ///
    /// # Errors
    /// Why a copy could not be read now, for people, unless the operator has decided to go on without it.
    pub(super) async fn salvage(
        &self,
        copy: CopyId,
        recorded: &[Replica],
    ) -> Result<Option<(Certificate, Vec<Whole>)>, String> {
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
                self.goes_without(copy, &error)?;
                continue;
            }
            let Some(bytes) = self.fetch(copy, *backup).await? else {
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
        Ok(best.map(|certificate| (certificate, whole)))
    }

    /// What can be read of a copy; `None` if nothing says how its group is cut.
    async fn fetch(&self, copy: CopyId, backup: BrokerId) -> Result<Option<Bytes>, String> {
        let head = self.read(copy, backup, 0, SEGMENT_HEADER_BYTES as u64);
        let header = head.await?.map(|head| SegmentHeader::decode(&head));
        let Some(Ok(header)) = header else {
            return Ok(None);
        };
        let all = u64::from(header.segment_size) * u64::from(header.segments);
        let all = all.min(SALVAGE_BYTES);
        let mut out = BytesMut::new();
        while (out.len() as u64) < all {
            let address = out.len() as u64;
            let len = piece_end(address, all, header.segment_size) - address;
            let Some(bytes) = self.read(copy, backup, address, len).await? else {
                break;
            };
            // A scan goes on to a segment by its header alone, and most groups have few of those that they may have.
            let begins = address.is_multiple_of(u64::from(header.segment_size));
            if begins && SegmentHeader::decode(&bytes).is_err() {
                break;
            }
            out.extend_from_slice(&bytes);
        }
        Ok(Some(out.freeze()))
    }

    /// Reads a range of a copy; `None` if that is not there.
    async fn read(
        &self,
        copy: CopyId,
        backup: BrokerId,
        address: u64,
        len: u64,
    ) -> Result<Option<Bytes>, String> {
        let read = Request::Read {
            copy,
            address,
            len: len as u32,
        };
        match self.ask(backup, read).await {
            Ok(Reply::Bytes(bytes)) => Ok((bytes.len() as u64 == len).then_some(bytes)),
            Err(error) if !matches!(error.refusal(), Some(Refusal::Unknown)) => {
                self.goes_without(copy, &error).map(|()| None)
            }
            _ => Ok(None),
        }
    }

    /// A copy could not be read, and may be whole: without a decision of the operator nobody goes on without it.
    fn goes_without(&self, copy: CopyId, error: &CallError) -> Result<(), String> {
        if !self.spec.unclean.accepts(copy.group) {
            return Err(error.to_string());
        }
        tracing::warn!(%copy, %error, "a replica cannot be read; recovery goes on without it, since its loss was accepted");
        Ok(())
    }
}
