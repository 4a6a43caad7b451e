//! Records as Python sees them, and where they are.

use kera_consumer::OwnedRecord;
use kera_producer::RecordPlace as Place;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A record that was read.
#[pyclass(frozen, module = "kera")]
pub(crate) struct Record {
    pub(crate) record: OwnedRecord,
}

#[pymethods]
impl Record {
    /// Its streamlet.
    #[getter]
    fn streamlet(&self) -> u32 {
        self.record.lane.streamlet.0
    }

    /// Its lane of that streamlet.
    #[getter]
    fn lane(&self) -> u32 {
        self.record.lane.lane.0
    }

    /// Its number in the lane.
    #[getter]
    fn ordinal(&self) -> u64 {
        self.record.ordinal
    }

    /// Milliseconds since 1970.
    #[getter]
    fn timestamp(&self) -> i64 {
        self.record.timestamp
    }

    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        bytes(py, self.record.key.as_deref())
    }

    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        bytes(py, self.record.value.as_deref())
    }

    /// Names and values, in the order given.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> Vec<(&str, Option<Bound<'py, PyBytes>>)> {
        let headers = self.record.headers.iter();
        headers
            .map(|(name, value)| (name.as_str(), bytes(py, value.as_deref())))
            .collect()
    }

    fn __repr__(&self) -> String {
        format!(
            "Record(streamlet={}, lane={}, ordinal={}, timestamp={})",
            self.streamlet(),
            self.lane(),
            self.ordinal(),
            self.timestamp()
        )
    }
}

fn bytes<'py>(py: Python<'py>, bytes: Option<&[u8]>) -> Option<Bound<'py, PyBytes>> {
    bytes.map(|bytes| PyBytes::new(py, bytes))
}

/// Where an acknowledged record is.
#[pyclass(frozen, get_all, eq, hash, module = "kera")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct RecordPlace {
    streamlet: u32,
    lane: u32,
    ordinal: u64,
    timestamp: i64,
}

impl From<Place> for RecordPlace {
    fn from(place: Place) -> Self {
        Self {
            streamlet: place.streamlet.0,
            lane: place.lane.0,
            ordinal: place.ordinal,
            timestamp: place.timestamp,
        }
    }
}

#[pymethods]
impl RecordPlace {
    fn __repr__(&self) -> String {
        format!(
            "RecordPlace(streamlet={}, lane={}, ordinal={}, timestamp={})",
            self.streamlet, self.lane, self.ordinal, self.timestamp
        )
    }
}
