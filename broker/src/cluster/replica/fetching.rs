//! A closed group's own file made from other replicas: from one that is whole, byte for byte; else batch by batch, each
//! from any replica that has it whole, this broker's own file among them.
//!
//! A batch that is whole nowhere is lost as long as no other replica comes back. Then the file is made without it only
//! if its records are recorded as given up already, or an operator accepts that they are lost.

use std::fmt;
use std::io;
use std::ops::Range;

use bytes::Bytes;
use kera_log_segments::assemble::{AssembleError, Assembled, Hole, assemble};
use kera_log_segments::check::CheckSpec;
use kera_log_segments::io::{OpenHow, ReadAt};
use kera_metadata::{GroupRecord, LostRecords};
use kera_protocol::ids::Ordinal;
use kera_replication::ids::{BrokerId, CopyId};
use kera_replication::piece_end;
use kera_replication::primary::Primary;
use kera_replication::transport::{CallError, MAX_TRANSFER_BYTES, Refusal, Reply, Request};
use tokio::sync::{mpsc, oneshot};

use super::own_files::OwnFile;

/// A message lists at most this many holes.
const MOST_TOLD: usize = 8;

/// What a file that was fetched holds.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) max_timestamp_ms: i64,
    /// Records that are whole on no replica; their batches are damaged in the file.
    pub(crate) holes: Vec<Hole>,
}

/// What a fetched file may lack of its group.
#[derive(Clone, Debug)]
pub(crate) enum MayLack {
    /// Records that are recorded as lost.
    Recorded,
    /// Those, if they are less than so many bytes, which this broker's own file lacks.
    LessThan(u64),
    /// Those, and these, as the operator accepts.
    Accepted(LostRecords),
    /// Whatever is whole nowhere: there is no file of the group, so that nothing of it is served. What is missing may come
    /// back, and no record says that it is lost.
    ForNow,
}

impl MayLack {
    /// Whether the operator accepts that nothing of the group is left.
    pub(crate) fn is_for_all_of(&self, record: &GroupRecord) -> bool {
        let all = record.start_ordinal()..record.end_ordinal;
        matches!(self, Self::Accepted(lost) if lost.covers(&all))
    }

    fn allows(&self, record: &GroupRecord, holes: &[Hole]) -> bool {
        match self {
            Self::Recorded => holes.iter().all(|hole| is_recorded(record, hole)),
            Self::ForNow => true,
            Self::LessThan(own) => {
                bytes(holes) < *own && holes.iter().all(|hole| is_recorded(record, hole))
            }
            Self::Accepted(accepted) => {
                let mut lost = accepted.clone();
                lost.extend(given_up(record));
                let mut holes = holes.iter();
                holes.all(|hole| is_recorded(record, hole) || lost.covers(&ordinals(hole)))
            }
        }
    }
}

/// Why a group was not fetched, for people.
#[derive(Debug)]
pub(crate) enum NotFetched {
    /// Each broker that is recorded answers that it lacks it or has nothing whole of it, or is not alive.
    Nowhere(String),
    /// This broker could not store it, or a living one that may have it did not tell: that is no answer, and not a no.
    Untold(String),
    /// What has the file's name on this broker's disk can be neither read nor replaced.
    Blocked(String),
    /// The replicas that answer have all of it but for these records, which nobody has accepted to lose.
    Holes(String, Vec<Hole>),
}

impl From<NotFetched> for String {
    fn from(error: NotFetched) -> Self {
        match error {
            NotFetched::Nowhere(reason)
            | NotFetched::Untold(reason)
            | NotFetched::Blocked(reason)
            | NotFetched::Holes(reason, _) => reason,
        }
    }
}

/// Fetches a group from the first holder whose copy is whole, or from all of them, and only then puts it in the place of
/// what is there.
pub(crate) async fn fetch(
    primary: &Primary,
    file: &OwnFile,
    record: &GroupRecord,
    may_lack: &MayLack,
) -> Result<Fetched, NotFetched> {
    let fetched = fetch_from_any(primary, file, record, may_lack).await;
    if fetched.is_err() {
        // The next fetch begins anew, and the next start removes the unfinished file.
        let _ = file.give_up().await;
    }
    match fetched {
        Err(NotFetched::Untold(reason)) if file.is_blocked().await => {
            let me = primary.me().0;
            Err(NotFetched::Blocked(format!(
                "{reason}. What has the name {} on this broker's disk can be neither read nor replaced: let others serve with `kera broker drain {me}`, then stop broker {me}, check its file system and start it",
                file.spec.path.display()
            )))
        }
        fetched => fetched,
    }
}

/// Whether the records of `hole` are recorded as lost.
pub(super) fn is_recorded(record: &GroupRecord, hole: &Hole) -> bool {
    let damaged = record.damaged.as_ref();
    damaged.is_some_and(|damaged| damaged.covers(hole.from.address, &ordinals(hole)))
}

/// The records that are named as given up.
fn given_up(record: &GroupRecord) -> impl Iterator<Item = Range<Ordinal>> + '_ {
    let damaged = record.damaged.iter();
    damaged.flat_map(|damaged| damaged.lost.stretches().iter().cloned())
}

/// What is not recorded as lost yet of what was found to be.
pub(crate) fn not_recorded(record: &GroupRecord, holes: &[Hole]) -> LostRecords {
    let holes = holes.iter().filter(|hole| !is_recorded(record, hole));
    holes.map(ordinals).collect()
}

pub(super) fn ordinals(hole: &Hole) -> Range<Ordinal> {
    hole.from.ordinal..hole.to.ordinal
}

fn bytes(holes: &[Hole]) -> u64 {
    let each = holes.iter();
    each.map(|hole| hole.to.address - hole.from.address).sum()
}

/// How many bytes of a group this broker's own file lacks; all of them, if it cannot be followed.
pub(super) async fn lacked_by(file: &OwnFile, record: &GroupRecord) -> u64 {
    let (spec, all) = (check_spec(file, record), record.length);
    let found = file.off_runtime(move |file| {
        let own = file.io.open(&file.spec.path, OpenHow::ReadOnly, false)?;
        assemble(&[&*own as &dyn ReadAt], &spec, &mut |_, _| Ok(())).map_err(io::Error::other)
    });
    found.await.map_or(all, |found| bytes(&found.holes))
}

fn check_spec(file: &OwnFile, record: &GroupRecord) -> CheckSpec {
    let copy = CopyId::of(record);
    CheckSpec {
        stream: copy.streamlet.stream,
        streamlet: copy.streamlet.streamlet,
        group: copy.group,
        epoch: copy.epoch,
        generation: copy.generation,
        end: file.end,
    }
}

/// Records for people.
pub(super) struct Told<'a>(pub(super) &'a [Hole]);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, hole) in self.0.iter().take(MOST_TOLD).enumerate() {
            let comma = if index == 0 { "records " } else { ", " };
            let (from, to) = (hole.from.ordinal, hole.to.ordinal - 1);
            write!(f, "{comma}{from} to {to} (byte {})", hole.from.address)?;
        }
        match self.0.len().checked_sub(MOST_TOLD) {
            Some(more @ 1..) => write!(f, " and those of {more} more places"),
            _ => Ok(()),
        }
    }
}

/// What holders said of a group that was not fetched from one of them.
#[derive(Default)]
struct Answers {
    reasons: Vec<String>,
    /// One that may have all of it said nothing.
    is_untold: bool,
    /// Those that have some of it.
    have_parts: Vec<BrokerId>,
    /// One of them could not read its disk.
    has_failed: bool,
}

impl Answers {
    fn note(&mut self, holder: BrokerId, answer: Answer) {
        match answer {
            Answer::No(reason) => self.reasons.push(format!("{holder}: {reason}")),
            Answer::Untold(reason) => {
                self.is_untold = true;
                self.reasons.push(format!("{holder}: {reason}"));
            }
            Answer::Part(reason) => {
                self.have_parts.push(holder);
                self.reasons.push(reason);
            }
            Answer::Failed(reason) => {
                self.has_failed = true;
                self.have_parts.push(holder);
                self.reasons.push(format!("{holder}: {reason}"));
            }
        }
    }
}

/// Why a group was not fetched from one holder.
enum Answer {
    /// It does not have it.
    No(String),
    /// It may have it.
    Untold(String),
    /// It has it, and not all of it is whole.
    Part(String),
    /// It has it, and cannot read all of it.
    Failed(String),
}

async fn fetch_from_any(
    primary: &Primary,
    file: &OwnFile,
    record: &GroupRecord,
    may_lack: &MayLack,
) -> Result<Fetched, NotFetched> {
    let me = primary.me();
    let (copy, path) = (CopyId::of(record), file.spec.path.display());
    let mut answers = Answers::default();
    let mut holders: Vec<_> = record.copies.iter().map(|c| c.broker).collect();
    // One in this broker's own store needs no network; who is not alive may not answer for long.
    let alive = primary.peers();
    holders.sort_by_key(|holder| (*holder != me, !alive.contains(holder)));
    for holder in holders {
        if holder == me {
            let kept = primary.kept_here(copy.streamlet).await;
            if !kept.iter().any(|kept| kept.copy == copy) {
                continue;
            }
        }
        match fetch_from(primary, file, record, holder, alive.contains(&holder)).await {
            Ok(max_timestamp_ms) => {
                tracing::info!(%copy, %holder, file = %path, "this broker's own file was fetched from another replica");
                return Ok(Fetched {
                    max_timestamp_ms,
                    holes: Vec::new(),
                });
            }
            Err(answer) => answers.note(holder, answer),
        }
    }
    if !answers.have_parts.contains(&me) && file.has_parts(record, me) {
        let told = "this broker's own file is not whole".to_owned();
        answers.note(me, Answer::Part(told));
    }
    let told = |answers: &Answers, more: &str| {
        let reasons = answers.reasons.join("; ");
        format!("{path} is missing or damaged, and group {copy} cannot be fetched: {reasons}{more}")
    };
    if answers.have_parts.is_empty() {
        let told = told(&answers, "");
        return Err(match answers.is_untold {
            true => NotFetched::Untold(told),
            false => NotFetched::Nowhere(told),
        });
    }
    let (assembled, lost) = put_together(primary, file, record, &answers.have_parts).await;
    answers.is_untold |= lost;
    let found = match assembled {
        Ok(found) => found,
        Err(error @ AssembleError::Write(_)) => {
            return Err(NotFetched::Untold(format!("{path}: {error}")));
        }
        Err(error) => {
            let told = told(&answers, &format!("; put together from these, {error}"));
            // A disk that cannot be read at all may be well again.
            return Err(match answers.is_untold || answers.has_failed {
                true => NotFetched::Untold(told),
                false => NotFetched::Nowhere(told),
            });
        }
    };
    let from = &answers.have_parts;
    if found.holes.is_empty() {
        let finished = file.finish().await.map_err(NotFetched::Untold)?;
        let Some(max_timestamp_ms) = finished else {
            let told = told(&answers, "; what was put together from these is not whole");
            return Err(NotFetched::Untold(told));
        };
        tracing::warn!(%copy, ?from, file = %path, "this broker's own file was put together from several replicas, of which none is whole: check their disks");
        return Ok(Fetched {
            max_timestamp_ms,
            holes: Vec::new(),
        });
    }
    let lost = Told(&found.holes).to_string();
    if answers.is_untold || !may_lack.allows(record, &found.holes) {
        let holes = found.holes.iter().copied();
        let new: Vec<_> = holes.filter(|hole| !is_recorded(record, hole)).collect();
        let lost = match new.len() == found.holes.len() || new.is_empty() {
            true => format!("; {lost} are whole on none of these, all others are"),
            false => format!(
                "; {} are whole on none of these, all others are but for what was given up before",
                Told(&new)
            ),
        };
        let told = told(&answers, &lost);
        return Err(match answers.is_untold {
            true => NotFetched::Untold(told),
            false => NotFetched::Holes(told, found.holes),
        });
    }
    let finished = file.off_runtime(OwnFile::finish_with_holes).await;
    finished.map_err(NotFetched::Untold)?;
    tracing::error!(%copy, ?from, file = %path, lost, "this broker's own file was put together without records that are whole on no replica; all others of the group are served");
    Ok(Fetched {
        max_timestamp_ms: found.max_timestamp,
        holes: found.holes,
    })
}

/// What it says of a replica that it was not read at a broker.
fn not_read(error: CallError, is_alive: bool) -> Answer {
    let told = error.to_string();
    match error {
        // The operator, who sees its number, may know that it never comes back.
        CallError::Lost { .. } if !is_alive => Answer::No(told),
        CallError::Refused { refusal, .. } => match refusal {
            Refusal::Unknown | Refusal::Short { length: 0 } => Answer::No(told),
            Refusal::Short { .. } => Answer::Part(told),
            Refusal::Failed(_) => Answer::Failed(told),
            _ => Answer::Untold(told),
        },
        CallError::Lost { .. } => Answer::Untold(told),
    }
}

/// The greatest timestamp of a group that was fetched from a holder and is whole.
async fn fetch_from(
    primary: &Primary,
    file: &OwnFile,
    record: &GroupRecord,
    holder: BrokerId,
    is_alive: bool,
) -> Result<i64, Answer> {
    let mut address = 0;
    while address < record.length {
        let to = piece_end(address, record.length, file.spec.segment_size);
        let bytes = read(primary, record, holder, (address, (to - address) as u32)).await;
        let bytes = bytes.map_err(|error| not_read(error, is_alive))?;
        file.write(address, bytes).await.map_err(Answer::Untold)?;
        address = to;
    }
    let finished = file.finish().await.map_err(Answer::Untold)?;
    finished.ok_or_else(|| Answer::Part(format!("the replica on {holder} is not whole")))
}

/// So many bytes of a replica.
async fn read(
    primary: &Primary,
    record: &GroupRecord,
    holder: BrokerId,
    (address, len): (u64, u32),
) -> Result<Bytes, CallError> {
    let copy = CopyId::of(record);
    match primary
        .ask(holder, Request::Read { copy, address, len })
        .await?
    {
        Reply::Bytes(bytes) if bytes.len() == len as usize => Ok(bytes),
        other => Err(CallError::Lost {
            backup: holder,
            reason: format!("it answered a read with {other:?}"),
        }),
    }
}

/// Puts a group together aside of what has its name, from what `holders` have; and whether one of them could not be asked
/// for all of it.
async fn put_together(
    primary: &Primary,
    file: &OwnFile,
    record: &GroupRecord,
    holders: &[BrokerId],
) -> (Result<Assembled, AssembleError>, bool) {
    let spec = check_spec(file, record);
    let (ask, mut asked) = mpsc::channel(1);
    let replicas = holders.iter().map(|holder| ReplicaAt {
        holder: *holder,
        length: record.length,
        ask: ask.clone(),
    });
    let replicas: Vec<_> = replicas.collect();
    drop(ask);
    let file = file.clone();
    let making = tokio::task::spawn_blocking(move || {
        let replicas: Vec<_> = replicas.iter().map(|one| one as &dyn ReadAt).collect();
        assemble(&replicas, &spec, &mut |address, bytes| {
            file.write_now(address, bytes)
        })
    });
    let mut is_untold = false;
    while let Some(Asked {
        holder,
        range,
        answer,
    }) = asked.recv().await
    {
        let read = read(primary, record, holder, range).await;
        let refused = read.as_ref().err().map(CallError::refusal);
        // One that has told that it has some of it and is gone now.
        is_untold |= matches!(refused, Some(None));
        // Who asked waits for it.
        let _ = answer.send(read.map_err(io::Error::other));
    }
    let made = making.await;
    let made = made.unwrap_or_else(|error| Err(AssembleError::Write(io::Error::other(error))));
    (made, is_untold)
}

/// Bytes that are asked for at a broker.
struct Asked {
    holder: BrokerId,
    range: (u64, u32),
    answer: oneshot::Sender<io::Result<Bytes>>,
}

/// A replica at a broker, read by a thread that may wait.
#[derive(Debug)]
struct ReplicaAt {
    holder: BrokerId,
    /// The group's.
    length: u64,
    ask: mpsc::Sender<Asked>,
}

impl ReadAt for ReplicaAt {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let there = usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = there.min(buf.len());
        let mut at = offset;
        for piece in buf[..len].chunks_mut(MAX_TRANSFER_BYTES as usize) {
            let (answer, answered) = oneshot::channel();
            let range = (at, piece.len() as u32);
            let holder = self.holder;
            let asked = self.ask.blocking_send(Asked {
                holder,
                range,
                answer,
            });
            asked.map_err(|_| io::Error::other("nobody asks any more"))?;
            let bytes = answered.blocking_recv().map_err(io::Error::other)??;
            piece.copy_from_slice(&bytes);
            at += piece.len() as u64;
        }
        Ok(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.length)
    }
}

#[cfg(test)]
#[path = "fetching_tests.rs"]
mod tests;
