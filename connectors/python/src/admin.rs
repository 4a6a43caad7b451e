//! Streams and groups: created, listed, described, deleted.

use kera_protocol::error::ErrorCode;
use kera_protocol::v1;
use kera_rpc::{RpcError, StreamMeta};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{of_change, of_rpc, setting};
use crate::runtime::{Home, Kept};
use crate::settings::{Others, Way, get, time};

/// What can be set of a stream.
const STREAM_SETTINGS: [&str; 10] = [
    "streamlets",
    "lanes",
    "replicas",
    "min_insync_replicas",
    "max_batch_bytes",
    "retention",
    "retention_bytes",
    "ack",
    "lane_by",
    "cleanup",
];

/// Administers streams and consumer groups.
#[pyclass(frozen, module = "kera")]
pub(crate) struct Admin {
    admin: Kept<kera_rpc::Admin>,
}

/// A stream, as it was when it was asked for.
#[pyclass(frozen, get_all, module = "kera")]
pub(crate) struct StreamInfo {
    name: String,
    id: String,
    streamlets: u32,
    lanes: u32,
    partitions: u32,
    lane_generation: u32,
    /// HOST:PORT of each streamlet's owner.
    owners: Vec<String>,
}

/// A lane of a stream: what is stored in it.
#[pyclass(frozen, get_all, module = "kera")]
pub(crate) struct LaneInfo {
    streamlet: u32,
    lane: u32,
    /// Ordinal of the first record stored, and of the one after the last durable one.
    start: u64,
    head: u64,
    bytes: u64,
}

/// A consumer group.
#[pyclass(frozen, get_all, module = "kera")]
pub(crate) struct GroupInfo {
    group: String,
    stream: String,
    members: u32,
    lag: u64,
}

macro_rules! repr {
    ($class:ident, $form:literal, $($field:ident),+) => {
        #[pymethods]
        impl $class {
            fn __repr__(&self) -> String {
                format!($form, $(self.$field),+)
            }
        }
    };
}
repr!(
    StreamInfo,
    "StreamInfo(name={:?}, streamlets={}, lanes={})",
    name,
    streamlets,
    lanes
);
repr!(
    LaneInfo,
    "LaneInfo(streamlet={}, lane={}, start={}, head={})",
    streamlet,
    lane,
    start,
    head
);
repr!(
    GroupInfo,
    "GroupInfo(group={:?}, stream={:?}, members={}, lag={})",
    group,
    stream,
    members,
    lag
);

fn one_of<T: Copy>(name: &str, value: &Bound<'_, PyAny>, all: &[(&str, T)]) -> PyResult<T> {
    let word: String = get(name, value)?;
    let found = all.iter().find(|(known, _)| *known == word);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        setting(
            name,
            format!("{word} is none; use one of {}", names.join(", ")),
        )
    })
}

fn config(others: &Others<'_>) -> PyResult<v1::StreamConfig> {
    let mut config = v1::StreamConfig::default();
    for (name, value) in others {
        match name.as_str() {
            "streamlets" => config.streamlets = Some(get(name, value)?),
            "lanes" => config.lanes = Some(get(name, value)?),
            "replicas" => config.replicas = Some(get(name, value)?),
            "min_insync_replicas" => config.min_insync_replicas = Some(get(name, value)?),
            "max_batch_bytes" => config.max_batch_bytes = Some(get(name, value)?),
            "retention_bytes" => config.retention_bytes = Some(get(name, value)?),
            "retention" => {
                let retention = time(name, value)?.as_millis();
                config.retention_ms = Some(u64::try_from(retention).unwrap_or(u64::MAX));
            }
            "ack" => {
                let all = [
                    ("written", v1::AckPolicy::Written),
                    ("memory", v1::AckPolicy::Memory),
                    ("synced", v1::AckPolicy::Synced),
                ];
                config.ack = Some(one_of(name, value, &all)?.into());
            }
            "lane_by" => {
                let all = [("key", v1::LaneBy::Key), ("producer", v1::LaneBy::Producer)];
                config.lane_by = Some(one_of(name, value, &all)?.into());
            }
            "cleanup" => {
                let all = [
                    ("delete", v1::Cleanup::Delete),
                    ("compact", v1::Cleanup::Compact),
                    ("compact,delete", v1::Cleanup::CompactDelete),
                ];
                config.cleanup = Some(one_of(name, value, &all)?.into());
            }
            _ => return Err(unknown_of_stream(name)),
        }
    }
    Ok(config)
}

/// There is no such setting of a stream.
fn unknown_of_stream(name: &str) -> PyErr {
    let known = STREAM_SETTINGS.join(", ");
    PyTypeError::new_err(format!("a stream has no setting {name}; it has {known}"))
}

fn without<'py>(settings: Option<&Bound<'py, PyDict>>) -> PyResult<Others<'py>> {
    let all = settings.into_iter().flat_map(|all| all.iter());
    all.map(|(name, value)| Ok((name.extract()?, value)))
        .collect()
}

#[pymethods]
impl Admin {
    #[new]
    #[pyo3(signature = (**settings))]
    fn new(settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let client = Way::alone("Admin", settings)?.client()?;
        Ok(Self {
            admin: Kept::new(Home::here()?, kera_rpc::Admin::new(client)),
        })
    }

    /// Creates a stream.
    #[pyo3(signature = (name, *, if_not_exists = false, **settings))]
    fn create_stream(
        &self,
        py: Python<'_>,
        name: &str,
        if_not_exists: bool,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<StreamInfo> {
        let config = config(&without(settings)?)?;
        let call = self.admin.create_stream(name, config);
        match self.admin.home().finish(py, call)? {
            Ok(info) => self.info(info),
            Err(change)
                if if_not_exists && change.error.code() == Some(ErrorCode::StreamExists) =>
            {
                self.stream(py, name)
            }
            Err(change) => Err(of_change(&change)),
        }
    }

    /// Changes settings of a stream; those that are not named stay.
    #[pyo3(signature = (name, **settings))]
    fn alter_stream(
        &self,
        py: Python<'_>,
        name: &str,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<StreamInfo> {
        let config = config(&without(settings)?)?;
        let call = self.admin.alter_stream(name, config);
        let changed = self.admin.home().finish(py, call)?;
        self.info(changed.map_err(|change| of_change(&change))?)
    }

    /// Deletes a stream with all of its records.
    fn delete_stream(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let call = self.admin.delete_stream(name);
        let deleted = self.admin.home().finish(py, call)?;
        deleted.map_err(|change| of_change(&change))
    }

    /// A stream.
    fn stream(&self, py: Python<'_>, name: &str) -> PyResult<StreamInfo> {
        let meta = self.finish(py, self.admin.client().refresh(name))?;
        Ok(StreamInfo::from(&*meta))
    }

    /// All streams, by name.
    fn streams(&self, py: Python<'_>) -> PyResult<Vec<StreamInfo>> {
        let all = self.finish(py, self.admin.streams(false))?.into_iter();
        all.map(|info| self.info(info)).collect()
    }

    /// A stream's lanes.
    fn lanes(&self, py: Python<'_>, name: &str) -> PyResult<Vec<LaneInfo>> {
        let described = self.finish(py, self.admin.describe_stream(name))?;
        let lanes = described.lanes.into_iter();
        let lanes = lanes.map(|lane| LaneInfo {
            streamlet: lane.streamlet,
            lane: lane.lane,
            start: lane.log_start,
            head: lane.head_ordinal,
            bytes: lane.bytes,
        });
        Ok(lanes.collect())
    }

    /// All consumer groups, by name.
    fn groups(&self, py: Python<'_>) -> PyResult<Vec<GroupInfo>> {
        let groups = self.finish(py, self.admin.groups())?.into_iter();
        let groups = groups.map(|group| GroupInfo {
            group: group.group,
            stream: group.stream,
            members: group.members,
            lag: group.lag,
        });
        Ok(groups.collect())
    }
}

impl Admin {
    fn finish<T: Send>(
        &self,
        py: Python<'_>,
        work: impl Future<Output = Result<T, RpcError>> + Send,
    ) -> PyResult<T> {
        let ended = self.admin.home().finish(py, work)?;
        ended.map_err(|error| of_rpc(&error))
    }

    fn info(&self, info: v1::StreamInfo) -> PyResult<StreamInfo> {
        let meta = StreamMeta::from_info(info, &self.admin.client().bootstrap());
        Ok(StreamInfo::from(&meta.map_err(|error| of_rpc(&error))?))
    }
}

impl From<&StreamMeta> for StreamInfo {
    fn from(meta: &StreamMeta) -> Self {
        Self {
            name: meta.name.clone(),
            id: meta.id.to_string(),
            streamlets: meta.streamlets,
            lanes: meta.lanes,
            partitions: meta.partitions,
            lane_generation: meta.lane_generation,
            owners: meta.owners().to_vec(),
        }
    }
}
