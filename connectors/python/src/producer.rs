//! The producer.

use std::borrow::Cow;
use std::sync::Arc;

use kera_producer::{AppendError, BuildError, Header, ProduceError, ProducerBuilder, Record};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyDict;

use crate::awaited::_Pending;
use crate::errors::{Problem, of_append, of_build, of_produce};
use crate::record::RecordPlace;
use crate::runtime::{Home, Kept, limit};
use crate::settings::{Way, compression, get, time, unknown};
use crate::told;
use crate::transaction::{Transaction, Turn};

/// Its settings beside those of [`Way`].
const SETTINGS: [&str; 9] = [
    "batch_size",
    "linger",
    "memory_limit",
    "max_in_flight_batches",
    "compression",
    "deadline",
    "idempotent",
    "transactional_id",
    "transaction_timeout",
];

type Headers = Vec<(String, Option<PyBackedBytes>)>;

/// Appends records to one stream. Threads may share it.
#[pyclass(frozen, weakref, module = "kera")]
pub(crate) struct Producer {
    producer: Kept<kera_producer::Producer>,
    transactions: Arc<Turn>,
    number: u64,
}

fn builder(stream: String, settings: Option<&Bound<'_, PyDict>>) -> PyResult<ProducerBuilder> {
    let (way, others) = Way::of(settings)?;
    let client = way.unbounded_client()?;
    let mut builder = kera_producer::Producer::builder()
        .retry(client.options().retry)
        .client(client)
        .stream(stream);
    for (name, value) in &others {
        builder = match name.as_str() {
            "batch_size" => builder.batch_size(get(name, value)?),
            "linger" => builder.linger(time(name, value)?),
            "memory_limit" => builder.memory_limit(get(name, value)?),
            "max_in_flight_batches" => builder.max_in_flight_batches(get(name, value)?),
            "compression" => builder.compression(compression(&get::<String>(name, value)?)?),
            "deadline" => builder.deadline(time(name, value)?),
            "idempotent" => builder.idempotent(get(name, value)?),
            "transactional_id" => match get::<Option<String>>(name, value)? {
                Some(id) => builder.transactional_id(id),
                None => builder,
            },
            "transaction_timeout" => builder.transaction_timeout(time(name, value)?),
            _ => return Err(unknown("Producer", name, &SETTINGS)),
        };
    }
    Ok(builder)
}

#[pymethods]
impl Producer {
    #[new]
    #[pyo3(signature = (stream, **settings))]
    fn new(py: Python<'_>, stream: String, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let builder = builder(stream, settings)?;
        let home = Home::here()?;
        Self::opened(home, home.finish(py, builder.build())?)
    }

    #[staticmethod]
    #[pyo3(signature = (stream, **settings))]
    fn _open(stream: String, settings: Option<&Bound<'_, PyDict>>) -> PyResult<_Pending> {
        let builder = builder(stream, settings)?;
        let home = Home::here()?;
        _Pending::new(home, builder.build(), move |_, built| {
            Self::opened(home, built)
        })
    }

    /// Takes a record and returns at once; waits only while memory is used up.
    #[pyo3(signature = (value, key = None, *, headers = None, timestamp = None))]
    fn append(
        &self,
        py: Python<'_>,
        value: Option<Cow<'_, [u8]>>,
        key: Option<Cow<'_, [u8]>>,
        headers: Option<Headers>,
        timestamp: Option<i64>,
    ) -> PyResult<Delivery> {
        let headers = borrowed(headers.as_ref());
        let record = Record {
            key: key.as_deref(),
            value: value.as_deref(),
            headers: &headers,
            timestamp,
        };
        told::pass_on(py)?;
        let home = self.producer.home();
        let taken = match home.within(|| self.producer.append(&record))? {
            Err(AppendError::Full) => home.finish(py, self.producer.append_wait(&record))?,
            taken => taken,
        };
        taken_by(home, taken)
    }

    /// As `append` without a handle.
    #[pyo3(signature = (value, key = None, *, headers = None, timestamp = None))]
    fn send(
        &self,
        py: Python<'_>,
        value: Option<Cow<'_, [u8]>>,
        key: Option<Cow<'_, [u8]>>,
        headers: Option<Headers>,
        timestamp: Option<i64>,
    ) -> PyResult<()> {
        let headers = borrowed(headers.as_ref());
        let record = Record {
            key: key.as_deref(),
            value: value.as_deref(),
            headers: &headers,
            timestamp,
        };
        told::pass_on(py)?;
        let home = self.producer.home();
        let sent = match home.within(|| self.producer.send(&record))? {
            Err(AppendError::Full) => {
                let waited = home.finish(py, self.producer.append_wait(&record))?;
                waited.map(drop)
            }
            sent => sent,
        };
        sent.map_err(|error| of_append(&error))
    }

    /// A handle of the record; while memory is used up, what waits for one.
    #[pyo3(signature = (value, key = None, *, headers = None, timestamp = None))]
    fn _append(
        &self,
        py: Python<'_>,
        value: Option<Cow<'_, [u8]>>,
        key: Option<Cow<'_, [u8]>>,
        headers: Option<Headers>,
        timestamp: Option<i64>,
    ) -> PyResult<Py<PyAny>> {
        let borrowed_headers = borrowed(headers.as_ref());
        let record = Record {
            key: key.as_deref(),
            value: value.as_deref(),
            headers: &borrowed_headers,
            timestamp,
        };
        told::pass_on(py)?;
        let home = self.producer.home();
        match home.within(|| self.producer.append(&record))? {
            Err(AppendError::Full) => {}
            taken => return taken_by(home, taken)?.into_py_any(py),
        }
        let producer = kera_producer::Producer::clone(&self.producer);
        let (value, key) = (value.map(Cow::into_owned), key.map(Cow::into_owned));
        let headers = headers.unwrap_or_default();
        let work = async move {
            let headers = borrowed(Some(&headers));
            let record = Record {
                key: key.as_deref(),
                value: value.as_deref(),
                headers: &headers,
                timestamp,
            };
            producer.append_wait(&record).await
        };
        _Pending::new(home, work, move |_, taken| taken_by(home, taken))?.into_py_any(py)
    }

    /// Waits until all that was appended is acknowledged.
    #[pyo3(signature = (timeout = None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.finish(py, timeout, self.producer.flush())
    }

    fn _flush(&self) -> PyResult<_Pending> {
        self.producer.home().check()?;
        let producer = kera_producer::Producer::clone(&self.producer);
        let work = async move { producer.flush().await };
        _Pending::new(self.producer.home(), work, |_, flushed| {
            flushed.map_err(|error| of_produce(&error))
        })
    }

    fn _close(&self) -> PyResult<_Pending> {
        let (home, number) = (self.producer.home(), self.number);
        home.check()?;
        let producer = kera_producer::Producer::clone(&self.producer);
        let work = async move {
            let closed = producer.close().await;
            home.finished(number);
            closed
        };
        _Pending::of_task(home, work, |_, closed| {
            closed.map_err(|error| of_produce(&error))
        })
    }

    fn _transaction(&self) -> PyResult<_Pending> {
        let (home, turn) = (self.producer.home(), Arc::clone(&self.transactions));
        home.check()?;
        let producer = kera_producer::Producer::clone(&self.producer);
        Transaction::pending(home, producer, turn)
    }

    /// Takes no more records, and waits for those that were taken.
    #[pyo3(signature = (timeout = None))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let (home, number) = (self.producer.home(), self.number);
        self.finish(py, timeout, async {
            let closed = self.producer.close().await;
            home.finished(number);
            closed
        })
    }

    /// Begins a transaction.
    fn transaction(&self, py: Python<'_>) -> PyResult<Transaction> {
        let (home, turn) = (self.producer.home(), Arc::clone(&self.transactions));
        Transaction::begin(py, home, self.producer.clone(), turn)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py, None)
    }

    /// Counts since it was made.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = self.producer.home().within(|| self.producer.metrics())?;
        let counts = PyDict::new(py);
        for (name, value) in [
            ("records_batched", all.records_batched),
            ("records_acknowledged", all.records_acknowledged),
            ("records_failed", all.records_failed),
            ("batches", all.batches),
            ("batches_resent", all.batches_resent),
            ("duplicates", all.duplicates),
            ("bytes_sent", all.bytes_sent),
            ("connections", all.connections),
            ("resplits", all.resplits),
            ("memory_used_bytes", all.memory_used_bytes),
            ("batches_in_flight", all.batches_in_flight),
        ] {
            counts.set_item(name, value)?;
        }
        Ok(counts)
    }
}

fn taken_by(home: Home, taken: Result<kera_producer::Delivery, AppendError>) -> PyResult<Delivery> {
    let delivery = taken.map_err(|error| of_append(&error))?;
    Ok(Delivery { home, delivery })
}

impl Producer {
    fn opened(home: Home, built: Result<kera_producer::Producer, BuildError>) -> PyResult<Self> {
        let producer = built.map_err(|error| of_build(&error))?;
        Ok(Self {
            number: home.opened(producer.clone()),
            producer: Kept::new(home, producer),
            transactions: Arc::default(),
        })
    }

    fn finish(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        work: impl Future<Output = Result<(), ProduceError>> + Send,
    ) -> PyResult<()> {
        match self.producer.home().wait(py, limit(timeout)?, work)? {
            Some(finished) => finished.map_err(|error| of_produce(&error)),
            None => Err(late(
                "records are still under way; wait again, or close the producer",
            )),
        }
    }
}

/// Nothing came within the limit.
fn late(text: &str) -> PyErr {
    Problem::new("WaitTimeout", text).into()
}

fn borrowed<'a>(headers: Option<&'a Headers>) -> Vec<Header<'a>> {
    let headers = headers.into_iter().flatten();
    headers
        .map(|(key, value)| Header {
            key,
            value: value.as_deref(),
        })
        .collect()
}

impl Drop for Producer {
    /// What was appended to it goes out all the same.
    fn drop(&mut self) {
        let (home, number) = (self.producer.home(), self.number);
        if !home.is_here() {
            return;
        }
        let producer = self.producer.clone();
        home.runtime.spawn(async move {
            if let Err(error) = producer.close().await {
                tracing::warn!(%error, "records of a producer that was not closed were given up");
            }
            home.finished(number);
        });
    }
}

/// Waits for the records of all producers that were not closed. Called before the interpreter ends.
#[pyfunction]
pub(crate) fn _finish_all(py: Python<'_>) -> PyResult<()> {
    let Some(home) = Home::known() else {
        return Ok(());
    };
    let mut result = Ok(());
    for (number, producer) in home.unfinished() {
        let closed = home.finish(py, producer.close());
        home.finished(number);
        let closed = closed.and_then(|closed| closed.map_err(|error| of_produce(&error)));
        result = result.and(closed);
    }
    // Also of producers that were let go without being closed: nobody comes by any more.
    result.and(told::pass_on(py))
}

/// The fate of one record.
#[pyclass(frozen, module = "kera")]
pub(crate) struct Delivery {
    home: Home,
    delivery: kera_producer::Delivery,
}

#[pymethods]
impl Delivery {
    /// Whether it is acknowledged or given up.
    #[getter]
    fn done(&self) -> PyResult<bool> {
        self.home.within(|| self.delivery.result().is_some())
    }

    fn _pending(&self) -> PyResult<_Pending> {
        self.home.check()?;
        _Pending::new(self.home, self.delivery.clone(), |_, known| {
            known
                .map(RecordPlace::from)
                .map_err(|error| of_produce(&error))
        })
    }

    /// For coroutines of `kera.aio`.
    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let aio = slf.py().import("kera.aio")?;
        aio.call_method1("_of_delivery", (slf,))?
            .call_method0("__await__")
    }

    /// Waits until it is known where the record is.
    #[pyo3(signature = (timeout = None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<RecordPlace> {
        let timeout = limit(timeout)?;
        let known = match self.home.within(|| self.delivery.result())? {
            Some(known) => Some(known),
            None => self.home.wait(py, timeout, self.delivery.clone())?,
        };
        match known {
            Some(Ok(place)) => Ok(place.into()),
            Some(Err(error)) => Err(of_produce(&error)),
            None => Err(late("the record is not acknowledged yet; wait again")),
        }
    }
}
