//! Reading lanes without a group.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::TryStreamExt;
use kera_consumer::{ConsumeError, Reader as Lanes, Seek};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::awaited::_Pending;
use crate::batch::{Batch, Position};
use crate::consumer::{counts, reading};
use crate::errors::of_consume;
use crate::iterate::{Batches, Records, Source};
use crate::record::Record;
use crate::runtime::{Home, limit};
use crate::settings::{Way, get, start, time, unknown};
use crate::turn::Turn;

/// Its settings beside those of [`Way`].
const SETTINGS: [&str; 8] = [
    "start",
    "memory_limit",
    "fetch_bytes",
    "poll_wait",
    "rack",
    "skip_damaged",
    "follow",
    "lanes",
];

/// Reads lanes of a stream on its own, and commits nothing.
#[pyclass(frozen, weakref, module = "kera")]
pub(crate) struct Reader {
    turn: Turn<Lanes>,
    finished: Arc<AtomicBool>,
}

fn builder(
    stream: String,
    settings: Option<&Bound<'_, PyDict>>,
) -> PyResult<kera_consumer::ReaderBuilder> {
    let (way, others) = Way::of(settings)?;
    let client = way.client()?;
    let mut builder = Lanes::builder()
        .retry(client.options().retry)
        .client(client)
        .stream(stream);
    for (name, value) in &others {
        builder = match name.as_str() {
            "follow" => builder.follow(get(name, value)?),
            "lanes" => match get::<Option<Vec<(u32, u32)>>>(name, value)? {
                Some(lanes) => builder.lanes(lanes),
                None => builder,
            },
            _ => reading!(builder, name, value, "Reader"),
        };
    }
    Ok(builder)
}

#[pymethods]
impl Reader {
    #[new]
    #[pyo3(signature = (stream, **settings))]
    fn new(py: Python<'_>, stream: String, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let builder = builder(stream, settings)?;
        let home = Home::here()?;
        Self::opened(home, home.finish(py, builder.open())?)
    }

    #[staticmethod]
    #[pyo3(signature = (stream, **settings))]
    fn _open(stream: String, settings: Option<&Bound<'_, PyDict>>) -> PyResult<_Pending> {
        let builder = builder(stream, settings)?;
        let home = Home::here()?;
        _Pending::new(home, builder.open(), move |_, lanes| {
            Self::opened(home, lanes)
        })
    }

    /// The next batch; `None` if there is none within the limit, or ever: then it is `finished`.
    #[pyo3(signature = (timeout = None))]
    pub(crate) fn next_batch(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Batch>> {
        let batch = self.turn.wait(py, limit(timeout)?, |lanes: &mut Lanes| {
            Box::pin(lanes.next_batch())
        });
        let batch = self.noted(batch?);
        Ok(batch.map(Batch::new))
    }

    fn _next_batch(&self) -> PyResult<_Pending> {
        let finished = self.finished.clone();
        self.turn.pending(
            |lanes: &mut Lanes| Box::pin(lanes.next_batch()),
            move |batch| {
                finished.fetch_or(batch.is_none(), Ordering::Relaxed);
                Ok(batch.map(Batch::new))
            },
        )
    }

    fn _next_record(&self) -> PyResult<_Pending> {
        let finished = self.finished.clone();
        self.turn.pending(
            |lanes: &mut Lanes| Box::pin(async move { lanes.records().try_next().await }),
            move |record| {
                finished.fetch_or(record.is_none(), Ordering::Relaxed);
                Ok(record.map(|record| Record { record }))
            },
        )
    }

    /// The next record, if it takes no wait.
    fn _record_at_hand(&self, py: Python<'_>) -> PyResult<Option<Record>> {
        let record = self.turn.at_hand(py, Lanes::record_at_hand)?;
        Ok(record.map(|record| Record { record }))
    }

    /// The next record; `None` as with `next_batch`.
    #[pyo3(signature = (timeout = None))]
    pub(crate) fn next_record(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Record>> {
        let timeout = limit(timeout)?;
        if let Some(record) = self.turn.at_hand(py, Lanes::record_at_hand)? {
            return Ok(Some(Record { record }));
        }
        let record = self.turn.wait_a_little(py, timeout, |lanes: &mut Lanes| {
            Box::pin(async move { lanes.records().try_next().await })
        });
        Ok(self.noted(record?).map(|record| Record { record }))
    }

    /// Whether all lanes are read to their ends, which they never are while it follows.
    #[getter]
    fn finished(&self) -> bool {
        self.finished.load(Ordering::Relaxed)
    }

    #[pyo3(signature = (timeout = None))]
    fn batches(slf: Bound<'_, Self>, timeout: Option<f64>) -> Batches {
        Batches::new(Source::Reader(slf.unbind()), timeout)
    }

    #[pyo3(signature = (timeout = None))]
    fn records(slf: Bound<'_, Self>, timeout: Option<f64>) -> Records {
        Records::new(Source::Reader(slf.unbind()), timeout)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Records {
        Self::records(slf, None)
    }

    /// Goes on elsewhere in one lane: at what `start` takes, or at a position.
    fn seek(
        &self,
        py: Python<'_>,
        streamlet: u32,
        lane: u32,
        to: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let to = seek(streamlet, lane, to)?;
        self.turn.change(py, move |lanes: &mut Lanes| {
            Box::pin(lanes.seek(streamlet, lane, to))
        })?;
        self.finished.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Goes on elsewhere in every lane.
    fn seek_all(&self, py: Python<'_>, to: &Bound<'_, PyAny>) -> PyResult<()> {
        let to = start(to)?;
        self.turn
            .change(py, move |lanes: &mut Lanes| Box::pin(lanes.seek_all(to)))?;
        self.finished.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn _seek(&self, streamlet: u32, lane: u32, to: &Bound<'_, PyAny>) -> PyResult<_Pending> {
        let to = seek(streamlet, lane, to)?;
        self.finished.store(false, Ordering::Relaxed);
        self.turn
            .pending_change(move |lanes: &mut Lanes| Box::pin(lanes.seek(streamlet, lane, to)))
    }

    fn _seek_all(&self, to: &Bound<'_, PyAny>) -> PyResult<_Pending> {
        let to = start(to)?;
        self.finished.store(false, Ordering::Relaxed);
        self.turn
            .pending_change(move |lanes: &mut Lanes| Box::pin(lanes.seek_all(to)))
    }

    /// Where it stands in each lane.
    fn positions(&self, py: Python<'_>) -> PyResult<Vec<Position>> {
        let positions = self.turn.look(py, |lanes| lanes.positions())?;
        Ok(positions.into_iter().map(Position::from).collect())
    }

    fn _positions(&self) -> PyResult<_Pending> {
        self.turn.pending_look(Lanes::positions, |_, positions| {
            Ok(positions
                .into_iter()
                .map(Position::from)
                .collect::<Vec<_>>())
        })
    }

    /// Counts and sizes.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        counts(py, self.turn.look(py, |lanes| lanes.metrics())?)
    }

    fn _metrics(&self) -> PyResult<_Pending> {
        self.turn
            .pending_look(Lanes::metrics, |py, all| counts(py, all).map(Bound::unbind))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let lanes = self.turn.close(py)?;
        self.turn.home().within(|| drop(lanes))
    }

    fn _close(&self) -> PyResult<_Pending> {
        self.turn.pending_close(|lanes| async move {
            drop(lanes);
            Ok(())
        })
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }
}

/// Where to go on in a lane.
fn seek(streamlet: u32, lane: u32, to: &Bound<'_, PyAny>) -> PyResult<Seek> {
    match to.cast::<Position>() {
        Ok(position) => Ok(Seek::Cursor(position.get().of_lane(streamlet, lane)?)),
        Err(_) => Ok(Seek::To(start(to)?)),
    }
}

impl Reader {
    fn opened(home: Home, lanes: Result<Lanes, ConsumeError>) -> PyResult<Self> {
        let lanes = lanes.map_err(|error| of_consume(&error))?;
        Ok(Self {
            turn: Turn::new(home, "reader", lanes),
            finished: Arc::default(),
        })
    }

    /// The outer `None` is the end of the limit, the inner that of all lanes.
    fn noted<T>(&self, read: Option<Option<T>>) -> Option<T> {
        if let Some(None) = read {
            self.finished.store(true, Ordering::Relaxed);
        }
        read.flatten()
    }
}
