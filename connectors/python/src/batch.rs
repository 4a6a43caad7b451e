//! Batches as they were stored, and positions in lanes.

use std::sync::OnceLock;

use kera_consumer::{Batch as Stored, Cursor, Position as Stands};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::arrow;
use crate::errors::{of_consume, setting};
use crate::iterate::BatchRecords;

/// Records of one lane, in order.
#[pyclass(frozen, module = "kera")]
pub(crate) struct Batch {
    pub(crate) batch: Stored,
    /// Records in it, which are counted where some were compacted away.
    count: OnceLock<usize>,
}

impl Batch {
    pub(crate) fn new(batch: Stored) -> Self {
        Self {
            batch,
            count: OnceLock::new(),
        }
    }
}

#[pymethods]
impl Batch {
    /// Its streamlet.
    #[getter]
    fn streamlet(&self) -> u32 {
        self.batch.lane().streamlet.0
    }

    /// Its lane of that streamlet.
    #[getter]
    fn lane(&self) -> u32 {
        self.batch.lane().lane.0
    }

    /// Ordinal of the first record.
    #[getter]
    fn first_ordinal(&self) -> u64 {
        self.batch.first_ordinal()
    }

    /// Ordinal after the last record.
    #[getter]
    fn next_ordinal(&self) -> u64 {
        self.batch.next_ordinal()
    }

    /// The lane's durable head when the batch was read.
    #[getter]
    fn head_ordinal(&self) -> u64 {
        self.batch.head_ordinal()
    }

    /// The lease it was read under.
    #[getter]
    fn lease(&self) -> Option<u64> {
        self.batch.lease()
    }

    /// The same batch cut before an ordinal, to commit part of it.
    fn until(&self, next: u64) -> Self {
        Self::new(self.batch.until(next))
    }

    /// Arrow's PyCapsule interface.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        arrow::schema(py)
    }

    /// Arrow's PyCapsule interface: a struct array. Whoever asks for another form gets this one, as the interface allows.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        let _ = requested_schema;
        Ok((arrow::schema(py)?, arrow::array(py, &self.batch)?))
    }

    fn __len__(&self) -> usize {
        *self.count.get_or_init(|| self.batch.records().count())
    }

    fn __iter__(&self) -> PyResult<BatchRecords> {
        let records = self.batch.owned_records();
        let records = records.map_err(|error| of_consume(&self.batch.undecodable(error)))?;
        Ok(BatchRecords::new(records))
    }

    fn __repr__(&self) -> String {
        format!(
            "Batch(streamlet={}, lane={}, first_ordinal={}, next_ordinal={})",
            self.streamlet(),
            self.lane(),
            self.first_ordinal(),
            self.next_ordinal()
        )
    }
}

/// Where a reader stands in a lane.
#[pyclass(frozen, get_all, eq, hash, module = "kera")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Position {
    pub(crate) streamlet: u32,
    pub(crate) lane: u32,
    pub(crate) ordinal: u64,
}

impl Position {
    /// Where to go on in that lane, which it is about.
    pub(crate) fn of_lane(&self, streamlet: u32, lane: u32) -> PyResult<Cursor> {
        if (self.streamlet, self.lane) != (streamlet, lane) {
            let own = format!("{}/{}", self.streamlet, self.lane);
            return Err(setting(
                "to",
                format!("the position is one of lane {own}, and not of lane {streamlet}/{lane}"),
            ));
        }
        Ok(Cursor {
            ordinal: self.ordinal,
            ..Cursor::default()
        })
    }
}

impl From<Stands> for Position {
    fn from(stands: Stands) -> Self {
        Self {
            streamlet: stands.lane.streamlet.0,
            lane: stands.lane.lane.0,
            ordinal: stands.next.ordinal,
        }
    }
}

#[pymethods]
impl Position {
    #[new]
    fn new(streamlet: u32, lane: u32, ordinal: u64) -> Self {
        Self {
            streamlet,
            lane,
            ordinal,
        }
    }

    /// For pickle.
    fn __getnewargs__(&self) -> (u32, u32, u64) {
        (self.streamlet, self.lane, self.ordinal)
    }

    fn __repr__(&self) -> String {
        format!(
            "Position(streamlet={}, lane={}, ordinal={})",
            self.streamlet, self.lane, self.ordinal
        )
    }
}
