//! Records as columns of Apache Arrow, one source for the Python client and for the tables of DataFusion. Each of them builds it with an
//! Arrow of its own: DataFusion follows new versions later.

use std::sync::{Arc, LazyLock};

use arrow_array::builder::{BinaryBuilder, StringBuilder};
use arrow_array::{
    ArrayRef, ListArray, StructArray, TimestampMillisecondArray, UInt32Array, UInt64Array,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{ArrowError, DataType, Field, Fields, TimeUnit};
use kera_consumer::Record;

/// Most bytes of all values, or of all keys, of an array: its offsets are 32-bit.
const MOST_BYTES: usize = i32::MAX as usize;

static HEADER: LazyLock<Fields> = LazyLock::new(|| {
    Fields::from(vec![
        Field::new("name", DataType::Utf8, false),
        Field::new("value", DataType::Binary, true),
    ])
});

/// What a record has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Streamlet,
    Lane,
    Ordinal,
    Timestamp,
    Key,
    Value,
    Headers,
}

impl Column {
    /// Its name, its type, and whether it may be null.
    pub(crate) fn field(self) -> Field {
        let time = || DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
        match self {
            Self::Streamlet => Field::new("streamlet", DataType::UInt32, false),
            Self::Lane => Field::new("lane", DataType::UInt32, false),
            Self::Ordinal => Field::new("ordinal", DataType::UInt64, false),
            Self::Timestamp => Field::new("timestamp", time(), false),
            Self::Key => Field::new("key", DataType::Binary, true),
            Self::Value => Field::new("value", DataType::Binary, true),
            Self::Headers => Field::new("headers", DataType::List(header()), false),
        }
    }
}

/// The type of one header.
fn header() -> Arc<Field> {
    let kind = DataType::Struct(HEADER.clone());
    Arc::new(Field::new("item", kind, false))
}

/// The records take more bytes than an array of Arrow can have.
#[derive(Debug)]
pub(crate) struct TooLarge;

/// Binary values that are counted, since a builder that overflows panics.
struct Values {
    builder: BinaryBuilder,
    bytes: usize,
}

impl Values {
    fn new(count: usize) -> Self {
        Self {
            builder: BinaryBuilder::with_capacity(count, 0),
            bytes: 0,
        }
    }

    fn push(&mut self, value: Option<&[u8]>) -> Result<(), TooLarge> {
        self.bytes += value.map_or(0, <[u8]>::len);
        if self.bytes > MOST_BYTES {
            return Err(TooLarge);
        }
        self.builder.append_option(value);
        Ok(())
    }

    fn finish(mut self) -> ArrayRef {
        Arc::new(self.builder.finish())
    }
}

struct Headers {
    names: StringBuilder,
    name_bytes: usize,
    values: Values,
    /// Headers of each record.
    counts: Vec<usize>,
    count: usize,
}

impl Headers {
    fn new(records: usize) -> Self {
        Self {
            names: StringBuilder::new(),
            name_bytes: 0,
            values: Values::new(0),
            counts: Vec::with_capacity(records),
            count: 0,
        }
    }

    fn push(&mut self, record: &Record<'_>) -> Result<(), TooLarge> {
        let before = self.count;
        for header in record.headers() {
            self.name_bytes += header.key.len();
            self.count += 1;
            if self.name_bytes > MOST_BYTES || self.count > MOST_BYTES {
                return Err(TooLarge);
            }
            self.names.append_value(header.key);
            self.values.push(header.value)?;
        }
        self.counts.push(self.count - before);
        Ok(())
    }

    fn finish(mut self) -> Result<ArrayRef, ArrowError> {
        let names: ArrayRef = Arc::new(self.names.finish());
        let all = vec![names, self.values.finish()];
        let headers = StructArray::try_new(HEADER.clone(), all, None)?;
        let offsets = OffsetBuffer::from_lengths(self.counts);
        let lists = ListArray::try_new(header(), offsets, Arc::new(headers), None)?;
        Ok(Arc::new(lists))
    }
}

/// Columns of records of one lane, as they grow. Those that are not wanted are not made.
pub(crate) struct Columns {
    wanted: Vec<Column>,
    count: usize,
    ordinals: Option<Vec<u64>>,
    times: Option<Vec<i64>>,
    keys: Option<Values>,
    values: Option<Values>,
    headers: Option<Headers>,
}

impl Columns {
    /// For about `count` records.
    pub(crate) fn new(wanted: &[Column], count: usize) -> Self {
        let is = |column| wanted.contains(&column);
        Self {
            wanted: wanted.to_vec(),
            count: 0,
            ordinals: is(Column::Ordinal).then(|| Vec::with_capacity(count)),
            times: is(Column::Timestamp).then(|| Vec::with_capacity(count)),
            keys: is(Column::Key).then(|| Values::new(count)),
            values: is(Column::Value).then(|| Values::new(count)),
            headers: is(Column::Headers).then(|| Headers::new(count)),
        }
    }

    /// After an error the columns are of no use.
    pub(crate) fn push(&mut self, record: &Record<'_>) -> Result<(), TooLarge> {
        self.count += 1;
        if let Some(ordinals) = &mut self.ordinals {
            ordinals.push(record.ordinal);
        }
        if let Some(times) = &mut self.times {
            times.push(record.timestamp);
        }
        if let Some(keys) = &mut self.keys {
            keys.push(record.key)?;
        }
        if let Some(values) = &mut self.values {
            values.push(record.value)?;
        }
        if let Some(headers) = &mut self.headers {
            headers.push(record)?;
        }
        Ok(())
    }

    /// The columns in the order in which they were wanted.
    pub(crate) fn finish(mut self, streamlet: u32, lane: u32) -> Result<Vec<ArrayRef>, ArrowError> {
        let count = self.count;
        let mut made = Vec::with_capacity(self.wanted.len());
        for column in std::mem::take(&mut self.wanted) {
            let array: ArrayRef = match column {
                Column::Streamlet => Arc::new(UInt32Array::from_value(streamlet, count)),
                Column::Lane => Arc::new(UInt32Array::from_value(lane, count)),
                Column::Ordinal => {
                    Arc::new(UInt64Array::from(self.ordinals.take().unwrap_or_default()))
                }
                Column::Timestamp => {
                    let times = self.times.take().unwrap_or_default();
                    Arc::new(TimestampMillisecondArray::from(times).with_timezone("UTC"))
                }
                Column::Key => self.keys.take().unwrap_or_else(|| Values::new(0)).finish(),
                Column::Value => self
                    .values
                    .take()
                    .unwrap_or_else(|| Values::new(0))
                    .finish(),
                Column::Headers => {
                    let headers = self.headers.take();
                    headers.unwrap_or_else(|| Headers::new(0)).finish()?
                }
            };
            made.push(array);
        }
        Ok(made)
    }
}
