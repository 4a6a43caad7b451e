//! Sealing at every holder of an open group, and what each says of its copies.
//!
//! Any one sealed copy silences the former owner and holds all that was acknowledged, so nobody needs all
//! the answers. Once enough copies of each group have answered, the others have a moment more: whoever is
//! stopped, or reads slowly, holds up no lane. A copy that is left out is made anew later.

use std::collections::BTreeMap;

use kera_protocol::ids::Epoch;
use kera_records::GroupRecord;

use super::{RecoverError, Recovery};
use crate::ids::{BrokerId, CopyId, Incarnation, Replica, StreamletKey};
use crate::primary::{BRIEFLY, Primary};
use crate::runtime::{Local, until_enough};
use crate::transport::{CallError, CopyAnswer, Refusal, Reply, Request, Seal, SealedCopy};

/// Copies that a backup reads for one answer.
const COPIES_AT_ONCE: usize = 4;

/// What a backup said to a seal: of its copies, as far as it came, and what ended it.
struct Answered {
    backup: BrokerId,
    copies: Vec<(CopyId, Incarnation)>,
    answers: Vec<SealedCopy>,
    /// It is sealed, even if it did not answer for all copies.
    sealed: bool,
    error: Option<CallError>,
}

/// Seals at one backup. The seal itself is a small call; copies are read a few at a time, so that the
/// wait for an answer does not grow with their number.
async fn seal_at(
    primary: &Primary,
    (streamlet, epoch): (StreamletKey, Epoch),
    backup: BrokerId,
    copies: Vec<(CopyId, Incarnation)>,
) -> Answered {
    let (caller, silent) = (primary.caller(), &primary.silent);
    let was_silent = silent.is_silent(backup, primary.runtime.now());
    let mut out = Answered {
        backup,
        copies,
        answers: Vec::new(),
        sealed: false,
        error: None,
    };
    if was_silent && !caller.is_alive(backup) {
        let reason = "it did not answer a moment ago, and is not among the brokers that are alive";
        out.error = Some(CallError::Lost {
            backup,
            reason: reason.into(),
        });
        return out;
    }
    for some in std::iter::once(&[][..]).chain(out.copies.chunks(COPIES_AT_ONCE)) {
        let seal = Request::Seal(Seal {
            streamlet,
            epoch,
            copies: some.to_vec(),
        });
        // Who is not alive and answers all the same may take its time to read.
        let asked = match out.sealed {
            true if !caller.is_alive(backup) => caller.once(backup, seal),
            false if was_silent => caller.once(backup, seal),
            _ => caller.ask(backup, seal),
        };
        match asked.await {
            Ok(Reply::Sealed(answers)) => {
                if !out.sealed {
                    silent.answered(backup);
                }
                out.sealed = true;
                out.answers.extend(answers);
            }
            Ok(other) => {
                tracing::warn!(%backup, ?other, "not an answer to seal");
                break;
            }
            Err(error) => {
                if matches!(error, CallError::Lost { .. }) && !out.sealed {
                    silent.note(backup, primary.runtime.now());
                }
                out.error = Some(error);
                break;
            }
        }
    }
    out
}

impl Recovery<'_> {
    /// Seals at every holder of an open group, side by side, each within the bound of its calls, until
    /// enough have answered.
    pub(super) async fn seal(&mut self, groups: &[GroupRecord]) -> Result<(), RecoverError> {
        let mut at: BTreeMap<BrokerId, Vec<(CopyId, Incarnation)>> = BTreeMap::new();
        // How many more are to answer for a group.
        let mut wanted: BTreeMap<CopyId, (usize, &GroupRecord)> = BTreeMap::new();
        for record in groups {
            if record.is_closed() {
                continue;
            }
            for holder in &record.copies {
                let copies = at.entry(holder.broker).or_default();
                copies.push((CopyId::of(record), holder.incarnation));
            }
            let of = record.copies.len();
            let enough = match self.after_restore {
                // It may have been closed since, without any of them.
                true => of,
                false => of.min(self.spec.min_insync_replicas.max(1)),
            };
            wanted.insert(CopyId::of(record), (enough, record));
        }
        let sealing = (self.spec.streamlet, self.epoch);
        let brokers: Vec<_> = at.keys().copied().collect();
        let seals = at.into_iter().map(|(backup, copies)| -> Local<'_, _> {
            Box::pin(seal_at(self.primary, sealing, backup, copies))
        });
        let enough = |answered: &Answered| {
            for answer in &answered.answers {
                if let Some((more, record)) = wanted.get_mut(&answer.copy)
                    && (self.after_restore || self.counts(answered.backup, record, &answer.answer))
                {
                    *more = more.saturating_sub(1);
                }
            }
            wanted.values().all(|(more, _)| *more == 0)
        };
        let runtime = &*self.primary.runtime;
        let all = until_enough(runtime, BRIEFLY, seals.collect(), enough).await;
        for (backup, answered) in brokers.into_iter().zip(all) {
            let Some(answered) = answered else {
                tracing::info!(%backup, "not waited for: enough others are sealed and have answered");
                continue;
            };
            if let Some(error) = answered.error {
                if let Some(Refusal::Sealed { by }) = error.refusal() {
                    return Err(RecoverError::Overtaken { backup, by: *by });
                }
                tracing::info!(%backup, %error, "not sealed, or not read; what it did not answer for does not count");
            }
            if answered.sealed {
                self.sealed.insert(backup);
            }
            for answer in answered.answers {
                let mut copies = answered.copies.iter();
                let asked = copies.find(|(copy, _)| *copy == answer.copy);
                if let Some((copy, incarnation)) = asked {
                    let holder = Replica {
                        broker: backup,
                        incarnation: *incarnation,
                    };
                    let known = self.answers.entry(*copy).or_default();
                    known.push((holder, answer.answer));
                }
            }
        }
        Ok(())
    }

    /// True if what `backup`, one of its holders, said of an open group tells how far it was acknowledged.
    pub(super) fn counts(
        &self,
        backup: BrokerId,
        record: &GroupRecord,
        answer: &CopyAnswer,
    ) -> bool {
        match answer {
            CopyAnswer::Unknown | CopyAnswer::Gone { .. } | CopyAnswer::Damaged { .. } => false,
            // A backup remembers what it freed. A file that was made before the record was removed since. Before
            // that was told, one that is not there proved nothing, unless there was no other replica.
            CopyAnswer::Absent => {
                !self.is_file(backup, record) || (!record.file_made && record.copies.len() <= 1)
            }
            CopyAnswer::Scanned { .. } => true,
        }
    }
    /// True if what a record names at `backup` is a file of this broker's own.
    pub(super) fn is_file(&self, backup: BrokerId, record: &GroupRecord) -> bool {
        let mut holders = record.copies.iter();
        holders.any(|holder| holder.broker == backup && self.primary.is_own_file(holder))
    }
}
