//! Iterators over what consumers and readers bring.

use std::vec::IntoIter;

use kera_consumer::OwnedRecord;
use pyo3::prelude::*;

use crate::batch::Batch;
use crate::consumer::Consumer;
use crate::reader::Reader;
use crate::record::Record;

/// What brings them.
pub(crate) enum Source {
    Consumer(Py<Consumer>),
    Reader(Py<Reader>),
}

macro_rules! iterator {
    ($(#[$doc:meta])+ $name:ident, $method:ident, $item:ident) => {
        $(#[$doc])+
        #[pyclass(frozen, module = "kera")]
        pub(crate) struct $name {
            of: Source,
            timeout: Option<f64>,
        }

        impl $name {
            pub(crate) fn new(of: Source, timeout: Option<f64>) -> Self {
                Self { of, timeout }
            }
        }

        #[pymethods]
        impl $name {
            fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
                slf
            }

            /// `None` ends the iteration.
            fn __next__(&self, py: Python<'_>) -> PyResult<Option<$item>> {
                match &self.of {
                    Source::Consumer(consumer) => consumer.get().$method(py, self.timeout),
                    Source::Reader(reader) => reader.get().$method(py, self.timeout),
                }
            }
        }
    };
}

iterator!(
    /// Iterates over batches.
    Batches,
    next_batch,
    Batch
);
iterator!(
    /// Iterates over records.
    Records,
    next_record,
    Record
);

/// Iterates over the records of a batch.
#[pyclass(module = "kera")]
pub(crate) struct BatchRecords {
    records: IntoIter<OwnedRecord>,
}

impl BatchRecords {
    pub(crate) fn new(records: Vec<OwnedRecord>) -> Self {
        Self {
            records: records.into_iter(),
        }
    }
}

#[pymethods]
impl BatchRecords {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&mut self) -> Option<Record> {
        self.records.next().map(|record| Record { record })
    }

    fn __length_hint__(&self) -> usize {
        self.records.len()
    }
}
