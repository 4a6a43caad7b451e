//! A batch whose records are handed out one by one.

use std::vec::IntoIter;

use kera_protocol::batch::BatchError;
use kera_protocol::v1::Cursor;

use crate::batch::{Batch, OwnedRecord};

/// A batch of which single records are handed out.
#[derive(Debug)]
pub(crate) struct OpenedBatch {
    pub(crate) batch: Batch,
    waiting: IntoIter<OwnedRecord>,
}

impl OpenedBatch {
    pub(crate) fn new(batch: Batch) -> Result<Self, BatchError> {
        let waiting = batch.owned_records()?.into_iter();
        Ok(Self { batch, waiting })
    }

    /// The next record, and where its consumer stands after it.
    pub(crate) fn next(&mut self) -> Option<(OwnedRecord, Cursor)> {
        let record = self.waiting.next()?;
        let next = match self.waiting.len() {
            0 => self.batch.position().next,
            // The place of a record within a batch is known by its ordinal only.
            _ => Cursor {
                ordinal: record.ordinal + 1,
                ..Cursor::default()
            },
        };
        Some((record, next))
    }

    /// What was not handed out, as a batch.
    pub(crate) fn rest(self) -> Option<Batch> {
        let first = self.waiting.as_slice().first()?.ordinal;
        Some(self.batch.starting_at(first))
    }
}
