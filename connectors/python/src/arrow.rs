//! Batches as Apache Arrow has them, over its PyCapsule interface: any library that knows that takes them, and none is
//! needed.

use std::sync::{Arc, LazyLock};

use arrow_array::builder::{BinaryBuilder, StringBuilder};
use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow_array::{
    Array, ArrayRef, ListArray, StructArray, TimestampMillisecondArray, UInt32Array, UInt64Array,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{ArrowError, DataType, Field, Fields, TimeUnit};
use kera_consumer::Batch;
use kera_protocol::batch::BatchError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::errors::{Problem, of_consume};

/// Most bytes of all values, or of all keys, of an array: its offsets are 32-bit.
const MOST_BYTES: usize = i32::MAX as usize;

static HEADER: LazyLock<Fields> = LazyLock::new(|| {
    Fields::from(vec![
        Field::new("name", DataType::Utf8, false),
        Field::new("value", DataType::Binary, true),
    ])
});

static COLUMNS: LazyLock<Fields> = LazyLock::new(|| {
    let header = Field::new("item", DataType::Struct(HEADER.clone()), false);
    let time = DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
    Fields::from(vec![
        Field::new("streamlet", DataType::UInt32, false),
        Field::new("lane", DataType::UInt32, false),
        Field::new("ordinal", DataType::UInt64, false),
        Field::new("timestamp", time, false),
        Field::new("key", DataType::Binary, true),
        Field::new("value", DataType::Binary, true),
        Field::new("headers", DataType::List(Arc::new(header)), false),
    ])
});

enum Failure {
    Batch(BatchError),
    TooLarge,
    Arrow(ArrowError),
}

impl From<ArrowError> for Failure {
    fn from(error: ArrowError) -> Self {
        Self::Arrow(error)
    }
}

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

    fn push(&mut self, value: Option<&[u8]>) -> Result<(), Failure> {
        self.bytes += value.map_or(0, <[u8]>::len);
        if self.bytes > MOST_BYTES {
            return Err(Failure::TooLarge);
        }
        self.builder.append_option(value);
        Ok(())
    }

    fn finish(mut self) -> ArrayRef {
        Arc::new(self.builder.finish())
    }
}

fn columns(batch: &Batch) -> Result<StructArray, Failure> {
    let count = batch.len();
    let (mut ordinals, mut times) = (Vec::with_capacity(count), Vec::with_capacity(count));
    let (mut keys, mut values) = (Values::new(count), Values::new(count));
    let mut header_names = StringBuilder::new();
    let mut header_values = Values::new(0);
    let mut header_ends = Vec::with_capacity(count);
    let (mut headers, mut name_bytes) = (0, 0);
    for record in batch.records() {
        let record = record.map_err(Failure::Batch)?;
        ordinals.push(record.ordinal);
        times.push(record.timestamp);
        keys.push(record.key)?;
        values.push(record.value)?;
        for header in record.headers() {
            name_bytes += header.key.len();
            headers += 1;
            if name_bytes > MOST_BYTES || headers > MOST_BYTES {
                return Err(Failure::TooLarge);
            }
            header_names.append_value(header.key);
            header_values.push(header.value)?;
        }
        header_ends.push(headers);
    }
    let count = ordinals.len();
    let lengths = header_ends.iter().scan(0, |last, end| {
        let length = end - *last;
        *last = *end;
        Some(length)
    });
    let offsets = OffsetBuffer::from_lengths(lengths);
    let names: ArrayRef = Arc::new(header_names.finish());
    let header = StructArray::try_new(HEADER.clone(), vec![names, header_values.finish()], None)?;
    let item = Field::new("item", DataType::Struct(HEADER.clone()), false);
    let headers = ListArray::try_new(Arc::new(item), offsets, Arc::new(header), None)?;
    let lane = batch.lane();
    let all: Vec<ArrayRef> = vec![
        Arc::new(UInt32Array::from_value(lane.streamlet.0, count)),
        Arc::new(UInt32Array::from_value(lane.lane.0, count)),
        Arc::new(UInt64Array::from(ordinals)),
        Arc::new(TimestampMillisecondArray::from(times).with_timezone("UTC")),
        keys.finish(),
        values.finish(),
        Arc::new(headers),
    ];
    Ok(StructArray::try_new(COLUMNS.clone(), all, None)?)
}

fn of_arrow(error: &ArrowError) -> PyErr {
    Problem::new(
        "ConsumeError",
        format!("batch does not go into Arrow's form: {error}"),
    )
    .into()
}

pub(crate) fn schema(py: Python<'_>) -> PyResult<Bound<'_, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(DataType::Struct(COLUMNS.clone()));
    let schema = schema.map_err(|error| of_arrow(&error))?;
    PyCapsule::new_with_value(py, schema, c"arrow_schema")
}

pub(crate) fn array<'py>(py: Python<'py>, batch: &Batch) -> PyResult<Bound<'py, PyCapsule>> {
    let array = py.detach(|| columns(batch)).map_err(|failure| match failure {
        Failure::Batch(error) => of_consume(&batch.undecodable(error)),
        Failure::Arrow(error) => of_arrow(&error),
        Failure::TooLarge => Problem::new(
            "ConsumeError",
            "batch has more than 2 GiB of keys or values, which an Arrow array cannot hold; iterate over its records",
        )
        .into(),
    })?;
    PyCapsule::new_with_value(py, FFI_ArrowArray::new(&array.to_data()), c"arrow_array")
}
