//! `INSERT INTO`: rows become records.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::TimestampMillisecondType;
use arrow_array::{Array, ArrayRef, BinaryArray, ListArray, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::arrow::compute::{can_cast_types, cast};
use datafusion::datasource::sink::DataSink;
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType};
use futures::StreamExt;
use kera_producer::{AppendError, Header, Producer, Record};
use tokio::time::Instant;

use crate::builder::Settings;
use crate::columns::Column;
use crate::error::KeraError;
use crate::json;
use crate::layout::Slot;
use crate::table::KeraTable;

/// How often is looked whether records were given up, where an `INSERT` goes on for long.
const FLUSH_EVERY: Duration = Duration::from_secs(5);

/// What a column of the rows is, and the type that it is brought to.
#[derive(Clone, Debug)]
struct Source {
    slot: Slot,
    kind: DataType,
    name: String,
}

/// Appends rows to a stream.
pub(crate) struct StreamSink {
    settings: Arc<Settings>,
    /// That of the rows. Any column may be null: brokers give what is.
    schema: SchemaRef,
    sources: Vec<Source>,
    /// The fields of the rows that values are made of, in their order.
    json: Option<SchemaRef>,
}

impl fmt::Debug for StreamSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamSink")
            .field("stream", &self.settings.stream)
            .finish_non_exhaustive()
    }
}

impl DisplayAs for StreamSink {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "StreamSink(stream={})", self.settings.stream)
    }
}

impl StreamSink {
    /// For rows with columns that have the table's names, in any order.
    pub(crate) fn new(table: &KeraTable, rows: &SchemaRef) -> Result<Self, KeraError> {
        let refused = |column: &Field, reason: String| KeraError::Column {
            stream: table.settings.stream.to_string(),
            column: column.name().clone(),
            reason,
        };
        let mut sources = Vec::new();
        let mut fields = Vec::new();
        for column in rows.fields() {
            let Some((slot, field)) = table.layout.named(column.name()) else {
                let names = table.layout.schema().fields().iter();
                let names: Vec<_> = names.map(|field| field.name().as_str()).collect();
                let reason = format!("the table has no such column, but {}", names.join(", "));
                return Err(refused(column, reason));
            };
            if !can_cast_types(column.data_type(), field.data_type()) {
                let (given, wanted) = (column.data_type(), field.data_type());
                return Err(refused(column, format!("it is {given} and not {wanted}")));
            }
            if let Slot::Json(_) = slot {
                fields.push(field.clone());
            }
            sources.push(Source {
                slot,
                kind: field.data_type().clone(),
                name: column.name().clone(),
            });
        }
        let nullable = rows
            .fields()
            .iter()
            .map(|column| column.as_ref().clone().with_nullable(true));
        Ok(Self {
            settings: table.settings.clone(),
            schema: Arc::new(Schema::new(nullable.collect::<Vec<_>>())),
            sources,
            json: (!fields.is_empty()).then(|| Arc::new(Schema::new(fields))),
        })
    }

    async fn producer(&self) -> Result<Producer, KeraError> {
        let settings = &self.settings;
        let client = settings.connection.producing_client();
        let client = client.map_err(|error| KeraError::Rpc {
            stream: settings.stream.to_string(),
            error: Box::new(error),
        })?;
        let timeout = settings.connection.timeout();
        let built = Producer::builder()
            .retry(client.options().retry)
            .client(client)
            .stream(&*settings.stream)
            .compression(settings.compression)
            .linger(settings.linger)
            .deadline(timeout)
            .build()
            .await;
        built.map_err(|error| KeraError::Build {
            stream: settings.stream.to_string(),
            error: Box::new(error),
        })
    }

    /// The columns of rows by what they are.
    fn rows(&self, batch: &RecordBatch) -> DataFusionResult<Rows> {
        let mut rows = Rows::default();
        let mut fields: Vec<ArrayRef> = Vec::new();
        for (source, array) in self.sources.iter().zip(batch.columns()) {
            let column = match source.slot {
                Slot::Own(column) => column,
                Slot::Json(_) => {
                    fields.push(cast(array, &source.kind)?);
                    continue;
                }
            };
            if matches!(column, Column::Streamlet | Column::Lane | Column::Ordinal) {
                if array.null_count() < array.len() {
                    let error = KeraError::Column {
                        stream: self.settings.stream.to_string(),
                        column: source.name.clone(),
                        reason: "the broker sets it: leave it out of the INSERT".to_owned(),
                    };
                    return Err(error.into());
                }
                continue;
            }
            let array = cast(array, &source.kind)?;
            match column {
                Column::Key => rows.keys = Some(array.as_binary().clone()),
                Column::Value => rows.values = Some(array.as_binary().clone()),
                Column::Timestamp => rows.times = Some(array),
                _ => {
                    let headers = Headers::of(array.as_list());
                    let headers = headers.ok_or_else(|| KeraError::Column {
                        stream: self.settings.stream.to_string(),
                        column: source.name.clone(),
                        reason: "a header has no name: give each one".to_owned(),
                    })?;
                    rows.headers = Some(headers);
                }
            }
        }
        if let Some(schema) = &self.json {
            let fields = RecordBatch::try_new(schema.clone(), fields)?;
            let (text, ends) = json::encode(&fields)?;
            let mut begin = 0;
            let each = ends.iter().map(|&end| {
                let object = &text[begin..end];
                begin = end + 1;
                Some(object)
            });
            rows.values = Some(each.collect());
        }
        Ok(rows)
    }

    fn unacknowledged(&self, rows: u64, error: kera_producer::ProduceError) -> KeraError {
        KeraError::Produce {
            stream: self.settings.stream.to_string(),
            rows,
            error: Box::new(error),
        }
    }

    async fn append(
        &self,
        producer: &Producer,
        batch: &RecordBatch,
        before: u64,
    ) -> DataFusionResult<()> {
        let rows = self.rows(batch)?;
        let mut headers = Vec::new();
        for row in 0..batch.num_rows() {
            headers.clear();
            if let Some(all) = &rows.headers {
                all.of_row(row, &mut headers);
            }
            let times = rows.times.as_ref();
            let record = Record {
                key: at(rows.keys.as_ref(), row),
                value: at(rows.values.as_ref(), row),
                headers: &headers,
                timestamp: times
                    .filter(|times| times.is_valid(row))
                    .map(|times| times.as_primitive::<TimestampMillisecondType>().value(row)),
            };
            let sent = match producer.send(&record) {
                Err(AppendError::Full) => producer.append_wait(&record).await.map(drop),
                sent => sent,
            };
            sent.map_err(|error| KeraError::Append {
                stream: self.settings.stream.to_string(),
                row: before + row as u64 + 1,
                error: Box::new(error),
            })?;
        }
        Ok(())
    }
}

/// Columns of rows; those that are missing are null.
#[derive(Default)]
struct Rows {
    keys: Option<BinaryArray>,
    values: Option<BinaryArray>,
    headers: Option<Headers>,
    times: Option<ArrayRef>,
}

fn at(array: Option<&BinaryArray>, row: usize) -> Option<&[u8]> {
    let array = array.filter(|array| array.is_valid(row))?;
    Some(array.value(row))
}

struct Headers {
    lists: ListArray,
    names: StringArray,
    values: BinaryArray,
}

impl Headers {
    /// `None` if one of them has no name.
    fn of(lists: &ListArray) -> Option<Self> {
        let headers = lists.values().as_struct();
        let all = Self {
            lists: lists.clone(),
            names: headers.column(0).as_string().clone(),
            values: headers.column(1).as_binary().clone(),
        };
        let offsets = lists.value_offsets();
        let is_named = |index| headers.is_valid(index) && all.names.is_valid(index);
        let mut rows = (0..lists.len()).filter(|&row| lists.is_valid(row));
        rows.all(|row| {
            let mut each = offsets[row] as usize..offsets[row + 1] as usize;
            each.all(is_named)
        })
        .then_some(all)
    }

    fn of_row<'a>(&'a self, row: usize, headers: &mut Vec<Header<'a>>) {
        if self.lists.is_null(row) {
            return;
        }
        let offsets = self.lists.value_offsets();
        for index in offsets[row] as usize..offsets[row + 1] as usize {
            headers.push(Header {
                key: self.names.value(index),
                value: at(Some(&self.values), index),
            });
        }
    }
}

#[async_trait]
impl DataSink for StreamSink {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The number of rows, all of which are acknowledged.
    async fn write_all(
        &self,
        mut data: SendableRecordBatchStream,
        _context: &Arc<TaskContext>,
    ) -> DataFusionResult<u64> {
        let producer = self.producer().await?;
        let mut rows = 0;
        let mut flushed = Instant::now();
        while let Some(batch) = data.next().await {
            let batch = batch?;
            self.append(&producer, &batch, rows).await?;
            rows += batch.num_rows() as u64;
            // What was given up is told by the next flush only.
            if flushed.elapsed() > FLUSH_EVERY {
                let done = producer.flush().await;
                done.map_err(|error| self.unacknowledged(rows, error))?;
                flushed = Instant::now();
            }
        }
        let done = producer.close().await;
        done.map_err(|error| self.unacknowledged(rows, error))?;
        Ok(rows)
    }
}
