//! Bringing copies to one length: read from those that have it, side by side, written to the others.

use bytes::{Bytes, BytesMut};
use kera_log_segments::window::Place;

use super::{RecoverError, Recovery};
use crate::build_replica::{Build, GroupBytes, Replicas, piece_end};
use crate::certificate::{Certificate, FetchedFile, scan_copy};
use crate::ids::{AckPolicy, BrokerId, CopyId, Replica, asked_of};
use crate::transport::Request;

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
        let ask = |broker, request| self.ask(broker, request);
        let at = [backup];
        let source = Replicas::of(copy, &at, &ask).await;
        let shape = source.shape?;
        let all = (u64::from(shape.segment_size) * u64::from(shape.segments)).min(SALVAGE_BYTES);
        let mut out = BytesMut::new();
        while (out.len() as u64) < all {
            let address = out.len() as u64;
            let len = piece_end(address, all, shape.segment_size) - address;
            let Some(bytes) = source.read(0, address, len).await else {
                break;
            };
            out.extend_from_slice(&bytes);
        }
        Some(out.freeze())
    }
}
