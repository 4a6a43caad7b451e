//! One record at a time, as a convenience on top of batches.

use std::collections::VecDeque;

use futures::Stream;
use futures::stream;

use crate::batch::{Batch, OwnedRecord};
use crate::consumer::Consumer;
use crate::error::ConsumeError;
use crate::reader::Reader;

impl Consumer {
    /// Single records, each with a share of its batch's memory; costs several times what visiting
    /// [`Batch::records`] does. With automatic commits a batch counts as processed when the record
    /// after its last is asked for.
    pub fn records(
        &mut self,
    ) -> impl Stream<Item = Result<OwnedRecord, ConsumeError>> + Send + Unpin + '_ {
        let state = (self, VecDeque::new());
        Box::pin(stream::try_unfold(
            state,
            |(consumer, mut waiting): (&mut Consumer, VecDeque<OwnedRecord>)| async move {
                loop {
                    if let Some(record) = waiting.pop_front() {
                        return Ok(Some((record, (consumer, waiting))));
                    }
                    waiting = records_of(&consumer.next_batch().await?)?;
                }
            },
        ))
    }
}

impl Reader {
    /// Single records, each with a share of its batch's memory, until all lanes are read to their
    /// end; costs several times what visiting [`Batch::records`] does.
    pub fn records(
        &mut self,
    ) -> impl Stream<Item = Result<OwnedRecord, ConsumeError>> + Send + Unpin + '_ {
        let state = (self, VecDeque::new());
        Box::pin(stream::try_unfold(
            state,
            |(reader, mut waiting): (&mut Reader, VecDeque<OwnedRecord>)| async move {
                loop {
                    if let Some(record) = waiting.pop_front() {
                        return Ok(Some((record, (reader, waiting))));
                    }
                    match reader.next_batch().await? {
                        Some(batch) => waiting = records_of(&batch)?,
                        None => return Ok(None),
                    }
                }
            },
        ))
    }
}

fn records_of(batch: &Batch) -> Result<VecDeque<OwnedRecord>, ConsumeError> {
    match batch.owned_records() {
        Ok(records) => Ok(records.into()),
        Err(error) => Err(ConsumeError::Corrupt {
            lane: batch.lane(),
            ordinal: batch.first_ordinal(),
            error,
        }),
    }
}
