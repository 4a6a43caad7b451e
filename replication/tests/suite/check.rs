//! What must be true of what was recovered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use kera_log_segments::scan::{ScanSpec, scan};
use kera_protocol::ids::{LaneId, Ordinal};
use kera_records::GroupRecord;
use kera_replication::certificate::FetchedFile;
use kera_replication::ids::{BrokerId, CopyId};
use kera_replication::own::OwnReplicas;
use kera_replication::recovery::Recovered;
use kera_replication::transport::{Reply, Request};

use super::StageRef;
use super::test_group::SHAPE;

/// The batches that some client was told of.
pub type Acked = Arc<Mutex<BTreeSet<u64>>>;

/// Everything that was ever appended, by whichever owner.
#[derive(Clone, Default)]
pub struct Model(Arc<Mutex<BTreeMap<CopyId, Written>>>);

/// A group as its owner wrote it.
struct Written {
    lane: LaneId,
    batches: Vec<Batch>,
}

/// A batch as it was appended.
#[derive(Clone)]
struct Batch {
    /// Unique among all batches of a run.
    id: u64,
    /// With ordinal and epoch in place.
    bytes: Bytes,
}

impl Model {
    pub fn opened(&self, copy: CopyId, lane: LaneId) {
        let batches = Vec::new();
        let written = Written { lane, batches };
        self.0.lock().unwrap().insert(copy, written);
    }

    pub fn appended(&self, copy: CopyId, id: u64, bytes: Bytes) {
        let mut groups = self.0.lock().unwrap();
        let written = groups.get_mut(&copy).expect("it was opened");
        written.batches.push(Batch { id, bytes });
    }

    pub fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Where a batch was appended, for people.
    pub fn place(&self, id: u64) -> String {
        let groups = self.0.lock().unwrap();
        let found = groups.iter().find_map(|(copy, written)| {
            let at = written.batches.iter().position(|b| b.id == id)?;
            Some(format!(
                "number {at} of {} in {copy}",
                written.batches.len()
            ))
        });
        found.unwrap_or_default()
    }

    fn batches(&self, copy: &CopyId) -> Option<Vec<Batch>> {
        let groups = self.0.lock().unwrap();
        groups.get(copy).map(|written| written.batches.clone())
    }

    /// Groups of the same lane and epoch that came before `copy`, with their numbers of batches.
    fn before(&self, copy: CopyId, lane: LaneId) -> Vec<(CopyId, usize)> {
        let groups = self.0.lock().unwrap();
        let before = groups.iter().filter(|(other, written)| {
            other.epoch == copy.epoch && written.lane == lane && other.group < copy.group
        });
        before
            .map(|(other, written)| (*other, written.batches.len()))
            .collect()
    }
}

/// Reads every recovered group at every holder that has it, and returns the batches' ids.
///
/// # Errors
/// If bytes differ from what was appended, are not a prefix, or leave a gap.
pub async fn check(
    stage: &StageRef,
    from: BrokerId,
    recovered: &Recovered,
    model: &Model,
    vanished: &BTreeSet<BrokerId>,
) -> Result<BTreeSet<u64>, String> {
    let mut content = BTreeSet::new();
    for lane in &recovered.lanes {
        let mut next: Ordinal = 0;
        let mut kept: BTreeMap<CopyId, usize> = BTreeMap::new();
        for record in &lane.groups {
            let copy = &CopyId::of(record);
            if record.start_ordinal() != next {
                return Err(format!(
                    "{copy} begins at {}, the lane goes on at {next}",
                    record.start_ordinal()
                ));
            }
            next = record.next_ordinal;
            let batches = model.batches(copy);
            let batches = batches.ok_or(format!("{copy} was never opened"))?;
            let found = group(stage, from, *copy, record, vanished).await?;
            for (at, bytes) in found.iter().enumerate() {
                let appended = batches.get(at);
                let appended = appended.ok_or(format!("{copy}: batch {at} was never appended"))?;
                if appended.bytes != *bytes {
                    return Err(format!("{copy}: batch {at} is not what was appended"));
                }
                if !content.insert(appended.id) {
                    return Err(format!("batch {} is there twice", appended.id));
                }
            }
            if record.end_ordinal != record.start_ordinal() + found.len() as u64 {
                return Err(format!("{copy}: its end ordinal is not its last batch's"));
            }
            // A prefix: whatever came before in the same reign is there whole.
            for (before, all) in model.before(*copy, lane.lane) {
                let have = kept.get(&before).copied().unwrap_or(0);
                if have < all {
                    return Err(format!(
                        "{copy} is kept, and only {have} of {all} batches of {before} before it"
                    ));
                }
            }
            kept.insert(*copy, found.len());
        }
        if next != lane.next_ordinal {
            return Err(format!("lane {} goes on at the wrong ordinal", lane.lane));
        }
    }
    Ok(content)
}

/// The batches of a closed group, the same at all holders. Only who has lost its memory since may be
/// without them.
async fn group(
    stage: &StageRef,
    from: BrokerId,
    copy: CopyId,
    record: &GroupRecord,
    vanished: &BTreeSet<BrokerId>,
) -> Result<Vec<Bytes>, String> {
    if record.length == 0 {
        // Nobody need have anything of it.
        return Ok(Vec::new());
    }
    let mut found: Option<Vec<Bytes>> = None;
    let mut said = Vec::new();
    for holder in &record.copies {
        let read = Request::Read {
            copy,
            address: 0,
            len: SHAPE.segment_size * SHAPE.segments,
        };
        let bytes = match ask(stage, from, holder.broker, read).await {
            Ok(Reply::Bytes(bytes)) => bytes,
            Ok(other) => return Err(format!("{other:?} is no answer to read")),
            Err(error) if vanished.contains(&holder.broker) => {
                said.push(error);
                continue;
            }
            Err(error) => return Err(format!("{copy} at {}: {error}", holder.broker)),
        };
        let batches = match whole_batches(&bytes, copy, record.length) {
            Ok(batches) => batches,
            Err(error) if vanished.contains(&holder.broker) => {
                said.push(error);
                continue;
            }
            Err(error) => return Err(format!("{copy} at {}: {error}", holder.broker)),
        };
        match &found {
            Some(before) if *before != batches => {
                return Err(format!("{copy} differs between its holders"));
            }
            Some(_) => {}
            None => found = Some(batches),
        }
    }
    found.ok_or(format!("{copy}: no holder has it: {said:?}, {record:?}"))
}

async fn ask(
    stage: &StageRef,
    from: BrokerId,
    holder: BrokerId,
    request: Request,
) -> Result<Reply, String> {
    if let Some(own) = stage.own(holder).filter(|_| holder == from) {
        return own
            .ask(request)
            .await
            .map_err(|refusal| refusal.to_string());
    }
    let transport = stage.transport(from);
    let mut lost = String::new();
    for _ in 0..5 {
        match transport.call(holder, request.clone()).await {
            Err(error) if error.refusal().is_none() => lost = error.to_string(),
            other => return other.map_err(|error| error.to_string()),
        }
    }
    Err(lost)
}

/// The batches of a group's bytes, of which `length` must be whole.
///
/// # Errors
/// Says where they are not.
pub fn whole_batches(bytes: &Bytes, copy: CopyId, length: u64) -> Result<Vec<Bytes>, String> {
    let spec = ScanSpec {
        group: Some(copy.group),
        epoch: Some(copy.epoch),
        verify_all: true,
        ..ScanSpec::default()
    };
    let mut out = Vec::new();
    let scanned = scan(&FetchedFile(bytes.clone()), &spec, |batch, at| {
        if at < length {
            out.push(bytes.slice(at as usize..at as usize + batch.total_bytes));
        }
    });
    let scanned = scanned.map_err(|error| error.to_string())?;
    if scanned.end.address < length {
        return Err(format!(
            "whole up to {} only, {length} are recorded: {}",
            scanned.end.address, scanned.stop
        ));
    }
    Ok(out)
}
