//! One record at a time, as a convenience on top of batches.

use futures::Stream;
use futures::stream;

use crate::batch::OwnedRecord;
use crate::consumer::Consumer;
use crate::error::ConsumeError;
use crate::reader::Reader;

impl Consumer {
    /// Single records, each with a share of its batch's memory; costs several times what visiting
    /// [`Batch::records`](crate::Batch::records) does. With automatic commits a record counts as processed when the next one is
    /// asked for, or the consumer is closed.
    ///
    /// The stream may be dropped at any time, as in `select!`: records that it has not handed out stay with
    /// the consumer, for the next call of this or of [`next_batch`](Self::next_batch), and are not committed.
    pub fn records(
        &mut self,
    ) -> impl Stream<Item = Result<OwnedRecord, ConsumeError>> + Send + Unpin + '_ {
        Box::pin(stream::try_unfold(self, |consumer| async move {
            let record = consumer.next_record().await?;
            Ok(Some((record, consumer)))
        }))
    }
}

impl Reader {
    /// Single records, each with a share of its batch's memory, until all lanes are read to their
    /// end; costs several times what visiting [`Batch::records`](crate::Batch::records) does.
    ///
    /// The stream may be dropped at any time, as in `select!`: records that it has not handed out stay with
    /// the reader, for the next call of this or of [`next_batch`](Self::next_batch).
    pub fn records(
        &mut self,
    ) -> impl Stream<Item = Result<OwnedRecord, ConsumeError>> + Send + Unpin + '_ {
        Box::pin(stream::try_unfold(self, |reader| async move {
            let record = reader.next_record().await?;
            Ok(record.map(|record| (record, reader)))
        }))
    }
}
