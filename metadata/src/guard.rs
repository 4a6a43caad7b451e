//! What a transaction must have compared before it may write.

use std::collections::{HashMap, HashSet};

use kera_protocol::ids::{Epoch, StreamId, StreamletKey};

use crate::error::{Conflict, MetadataError};
use kera_records::Counter;
use kera_records::Write;
use kera_records::key::Key;

/// What the transaction compared, and so may write.
#[derive(Default)]
pub(crate) struct Guards {
    pub(crate) names: HashSet<String>,
    pub(crate) revisions: HashMap<Key, u64>,
    pub(crate) epochs: HashMap<StreamletKey, Epoch>,
    pub(crate) counters: HashMap<Counter, u64>,
}

impl Guards {
    pub(crate) fn require_epoch(
        &self,
        streamlet: StreamletKey,
        write: &Write,
    ) -> Result<(), MetadataError> {
        if self.epochs.contains_key(&streamlet) {
            return Ok(());
        }
        Err(unguarded(write, "the streamlet's epoch"))
    }

    pub(crate) fn require_revision(&self, write: &Write) -> Result<u64, MetadataError> {
        self.revisions
            .get(&write.key())
            .copied()
            .ok_or_else(|| unguarded(write, "the record's revision"))
    }

    pub(crate) fn require_existing(&self, write: &Write) -> Result<(), MetadataError> {
        match self.require_revision(write)? {
            0 => Err(MetadataError::invalid(format!(
                "{} is deleted where it is compared to be absent",
                write.key()
            ))),
            _ => Ok(()),
        }
    }
}

pub(crate) fn unguarded(write: &Write, what: &str) -> MetadataError {
    MetadataError::invalid(format!(
        "{} is written without comparing {what}; add the comparison",
        write.key()
    ))
}

pub(crate) fn not_back(write: &Write, current: u64, written: u64) -> Result<(), MetadataError> {
    if written < current {
        return Err(Conflict::MovesBack {
            key: write.key(),
            current,
            written,
        }
        .into());
    }
    Ok(())
}

/// Refuses two writes of one record, and writes to a stream that is deleted.
pub(crate) fn distinct(writes: &[Write]) -> Result<(), MetadataError> {
    let mut seen = HashSet::with_capacity(writes.len());
    for write in writes {
        if !seen.insert(write.key()) {
            return Err(MetadataError::invalid(format!(
                "{} is written twice in one transaction",
                write.key()
            )));
        }
    }
    let deleted: HashSet<StreamId> = writes
        .iter()
        .filter_map(|w| match w {
            Write::DeleteStream(id) => Some(*id),
            _ => None,
        })
        .collect();
    if deleted.is_empty() {
        return Ok(());
    }
    for write in writes {
        let streamlet = write.key().streamlet_of();
        if streamlet.is_some_and(|streamlet| deleted.contains(&streamlet.stream)) {
            return Err(MetadataError::invalid(format!(
                "{} is written in the transaction that deletes its stream",
                write.key()
            )));
        }
    }
    Ok(())
}
