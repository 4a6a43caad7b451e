//! Batches as Apache Arrow has them, over its PyCapsule interface: any library that knows that takes them, and none is
//! needed.

use std::sync::LazyLock;

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow_array::{Array, StructArray};
use arrow_schema::{ArrowError, DataType, Fields};
use kera_consumer::Batch;
use kera_protocol::batch::BatchError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::columns::{Column, Columns, TooLarge};
use crate::errors::{Problem, of_consume};

const ALL: [Column; 7] = [
    Column::Streamlet,
    Column::Lane,
    Column::Ordinal,
    Column::Timestamp,
    Column::Key,
    Column::Value,
    Column::Headers,
];

static COLUMNS: LazyLock<Fields> =
    LazyLock::new(|| ALL.iter().map(|column| column.field()).collect());

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

fn columns(batch: &Batch) -> Result<StructArray, Failure> {
    let mut columns = Columns::new(&ALL, batch.len());
    for record in batch.records() {
        let record = record.map_err(Failure::Batch)?;
        let pushed = columns.push(&record);
        pushed.map_err(|TooLarge| Failure::TooLarge)?;
    }
    let lane = batch.lane();
    let columns = columns.finish(lane.streamlet.0, lane.lane.0)?;
    Ok(StructArray::try_new(COLUMNS.clone(), columns, None)?)
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
