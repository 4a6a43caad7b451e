//! Members of consumer groups.

use std::collections::HashMap;

use futures::TryStreamExt;
use kera_consumer::{Batch as Stored, Committer, ConsumeError, Consumer as Member, Metrics};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::awaited::_Pending;
use crate::batch::{Batch, Position};
use crate::errors::of_consume;
use crate::iterate::{Batches, Records, Source};
use crate::record::Record;
use crate::runtime::{Home, Kept, limit};
use crate::settings::{Way, get, order, start, time, unknown};
use crate::turn::Turn;

/// Its settings beside those of [`Way`].
const SETTINGS: [&str; 13] = [
    "start",
    "memory_limit",
    "fetch_bytes",
    "poll_wait",
    "rack",
    "skip_damaged",
    "order",
    "session",
    "max_leases",
    "range_bytes",
    "client_name",
    "commit_interval",
    "resume_from",
];

/// Streamlet, lane, first ordinal and end of a lease.
type Held = (u32, u32, u64, Option<u64>);

/// A member of a consumer group.
#[pyclass(frozen, weakref, module = "kera")]
pub(crate) struct Consumer {
    turn: Turn<Member>,
    committer: Kept<Committer>,
}

/// The settings that a group's members and readers share; others come back.
macro_rules! reading {
    ($builder:ident, $name:ident, $value:ident, $of:literal) => {
        match $name.as_str() {
            "start" => $builder.start(start($value)?),
            "memory_limit" => $builder.memory_limit(get($name, $value)?),
            "fetch_bytes" => $builder.fetch_bytes(get($name, $value)?),
            "poll_wait" => $builder.poll_wait(time($name, $value)?),
            "rack" => match get::<Option<String>>($name, $value)? {
                Some(rack) => $builder.rack(rack),
                None => $builder,
            },
            "skip_damaged" => match get($name, $value)? {
                true => $builder.skip_damaged(|error| tracing::warn!("skipped: {error}")),
                false => $builder,
            },
            _ => return Err(unknown($of, $name, &SETTINGS)),
        }
    };
}
pub(crate) use reading;

fn builder(
    stream: String,
    group: String,
    settings: Option<&Bound<'_, PyDict>>,
) -> PyResult<kera_consumer::ConsumerBuilder> {
    let (way, others) = Way::of(settings)?;
    let client = way.client()?;
    let mut builder = Member::builder()
        .retry(client.options().retry)
        .client(client)
        .stream(stream)
        .group(group);
    for (name, value) in &others {
        builder = match name.as_str() {
            "order" => builder.order(order(&get::<String>(name, value)?)?),
            "session" => builder.session(time(name, value)?),
            "max_leases" => match get(name, value)? {
                Some(leases) => builder.max_leases(leases),
                None => builder,
            },
            "range_bytes" => builder.range_bytes(get(name, value)?),
            "client_name" => builder.client_name(get::<String>(name, value)?),
            "commit_interval" => match value.is_none() {
                true => builder.manual_commit(),
                false => builder.auto_commit(time(name, value)?),
            },
            "resume_from" => match get::<Option<Vec<Py<Position>>>>(name, value)? {
                Some(stored) => {
                    let stored = stored.iter().map(Py::get);
                    let stored: HashMap<_, _> = stored
                        .map(|one| ((one.streamlet, one.lane), one.ordinal))
                        .collect();
                    builder.resume_from(move |lane, _committed| {
                        stored.get(&(lane.streamlet.0, lane.lane.0)).copied()
                    })
                }
                None => builder,
            },
            _ => reading!(builder, name, value, "Consumer"),
        };
    }
    Ok(builder)
}

#[pymethods]
impl Consumer {
    #[new]
    #[pyo3(signature = (stream, group, **settings))]
    fn new(
        py: Python<'_>,
        stream: String,
        group: String,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let builder = builder(stream, group, settings)?;
        let home = Home::here()?;
        Self::opened(home, home.finish(py, builder.open())?)
    }

    #[staticmethod]
    #[pyo3(signature = (stream, group, **settings))]
    fn _open(
        stream: String,
        group: String,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<_Pending> {
        let builder = builder(stream, group, settings)?;
        let home = Home::here()?;
        _Pending::new(home, builder.open(), move |_, member| {
            Self::opened(home, member)
        })
    }

    /// The next batch; `None` if there is none within the limit. With commits at an interval, all batches before it
    /// count as processed.
    #[pyo3(signature = (timeout = None))]
    pub(crate) fn next_batch(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Batch>> {
        let batch = self.turn.wait(py, limit(timeout)?, |member: &mut Member| {
            Box::pin(async move { member.next_batch().await })
        });
        Ok(batch?.map(Batch::new))
    }

    fn _next_batch(&self) -> PyResult<_Pending> {
        self.turn.pending(
            |member: &mut Member| Box::pin(async move { member.next_batch().await }),
            |batch| Ok(Batch::new(batch)),
        )
    }

    fn _next_record(&self) -> PyResult<_Pending> {
        self.turn.pending(
            |member: &mut Member| Box::pin(async move { member.records().try_next().await }),
            |record| Ok(record.map(|record| Record { record })),
        )
    }

    /// The next record, if it takes no wait.
    fn _record_at_hand(&self, py: Python<'_>) -> PyResult<Option<Record>> {
        let record = self.turn.at_hand(py, Member::record_at_hand)?;
        Ok(record.map(|record| Record { record }))
    }

    /// The next record; `None` if there is none within the limit.
    #[pyo3(signature = (timeout = None))]
    pub(crate) fn next_record(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Record>> {
        let timeout = limit(timeout)?;
        if let Some(record) = self.turn.at_hand(py, Member::record_at_hand)? {
            return Ok(Some(Record { record }));
        }
        let record = self.turn.wait_a_little(py, timeout, |member: &mut Member| {
            Box::pin(async move { member.records().try_next().await })
        });
        Ok(record?.flatten().map(|record| Record { record }))
    }

    /// Iterates over batches, until none comes within the limit.
    #[pyo3(signature = (timeout = None))]
    fn batches(slf: Bound<'_, Self>, timeout: Option<f64>) -> Batches {
        Batches::new(Source::Consumer(slf.unbind()), timeout)
    }

    /// Iterates over records, until none comes within the limit.
    #[pyo3(signature = (timeout = None))]
    fn records(slf: Bound<'_, Self>, timeout: Option<f64>) -> Records {
        Records::new(Source::Consumer(slf.unbind()), timeout)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Records {
        Self::records(slf, None)
    }

    /// Commits all of the batch's lease up to and including it; it returns when that is durable.
    fn commit(&self, py: Python<'_>, batch: &Batch) -> PyResult<()> {
        self.turn.check_open()?;
        let stored: &Stored = &batch.batch;
        let committed = self.turn.home().finish(py, self.committer.commit(stored))?;
        committed.map_err(|error| of_consume(&error))
    }

    fn _commit(&self, batch: &Batch) -> PyResult<_Pending> {
        self.turn.check_open()?;
        let (committer, stored) = (Committer::clone(&self.committer), batch.batch.clone());
        let work = async move { committer.commit(&stored).await };
        _Pending::new(self.turn.home(), work, |_, committed| {
            committed.map_err(|error| of_consume(&error))
        })
    }

    /// Notes that all of the batch's lease up to and including it is processed.
    fn mark(&self, batch: &Batch) -> PyResult<()> {
        self.turn.check_open()?;
        let marked = self
            .turn
            .home()
            .within(|| self.committer.mark(&batch.batch))?;
        marked.map_err(|error| of_consume(&error))
    }

    /// Commits what was processed, gives the leases back and leaves the group.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(member) = self.turn.close(py)? else {
            return Ok(());
        };
        let closed = self.turn.home().finish_task(py, member.close())?;
        closed.map_err(|error| of_consume(&error))
    }

    /// Without commits if `gives_up`.
    fn _close(&self, gives_up: bool) -> PyResult<_Pending> {
        self.turn.pending_close(move |member| async move {
            match gives_up {
                true => {
                    drop(member);
                    Ok(())
                }
                false => member.close().await,
            }
        })
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// As `close`. After an exception nothing more is committed: the record at hand may not have been processed.
    #[pyo3(signature = (error, *_more))]
    fn __exit__(
        &self,
        py: Python<'_>,
        error: Option<&Bound<'_, PyAny>>,
        _more: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if error.is_none() {
            return self.close(py);
        }
        let member = self.turn.close(py)?;
        self.turn.home().within(|| drop(member))
    }

    /// The leases that are held.
    fn leases(&self, py: Python<'_>) -> PyResult<Vec<Held>> {
        self.turn.look(py, held)
    }

    fn _leases(&self) -> PyResult<_Pending> {
        self.turn.pending_look(held, |_, leases| Ok(leases))
    }

    /// Counts and sizes.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        counts(py, self.turn.look(py, |member| member.metrics())?)
    }

    fn _metrics(&self) -> PyResult<_Pending> {
        self.turn.pending_look(Member::metrics, |py, all| {
            counts(py, all).map(Bound::unbind)
        })
    }
}

impl Consumer {
    fn opened(home: Home, member: Result<Member, ConsumeError>) -> PyResult<Self> {
        let member = member.map_err(|error| of_consume(&error))?;
        Ok(Self {
            committer: Kept::new(home, member.committer()),
            turn: Turn::new(home, "consumer", member),
        })
    }
}

fn held(member: &Member) -> Vec<Held> {
    let leases = member.leases().into_iter();
    leases
        .map(|one| (one.lane.streamlet.0, one.lane.lane.0, one.start, one.end))
        .collect()
}

/// What consumers and readers count.
pub(crate) fn counts(py: Python<'_>, all: Metrics) -> PyResult<Bound<'_, PyDict>> {
    let counts = PyDict::new(py);
    for (name, value) in [
        ("batches", all.batches),
        ("records", all.records),
        ("bytes", all.bytes),
        ("lag", all.lag),
        ("leases", all.leases as u64),
        ("buffered_bytes", all.buffered_bytes as u64),
        ("commits", all.commits),
        ("skipped_records", all.skipped_records),
        ("skipped_batches", all.skipped_batches),
        ("corrupt_batches", all.corrupt_batches),
        ("connects", all.connects),
    ] {
        counts.set_item(name, value)?;
    }
    Ok(counts)
}
