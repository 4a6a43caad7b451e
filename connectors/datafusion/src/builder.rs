//! Settings of a table.

use std::sync::Arc;
use std::time::Duration;

use arrow_schema::SchemaRef;
use kera_producer::Compression;
use kera_rpc::Client;

use crate::connection::Connection;
use crate::error::KeraError;
use crate::json::{self, OnBadJson};
use crate::layout::Layout;
use crate::place::Place;
use crate::table::KeraTable;

/// Smallest memory limit of a partition.
const LEAST_MEMORY: usize = 64 << 10;

/// How a table reads and writes its stream.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) connection: Connection,
    pub(crate) stream: Arc<str>,
    pub(crate) from: Place,
    /// `None`: it is unbounded.
    pub(crate) to: Option<Place>,
    pub(crate) json: Option<SchemaRef>,
    pub(crate) prefix: String,
    pub(crate) on_bad_json: OnBadJson,
    pub(crate) skip_lost: bool,
    pub(crate) skip_damaged: bool,
    pub(crate) partitions: usize,
    pub(crate) memory_limit: usize,
    pub(crate) rack: String,
    pub(crate) compression: Compression,
    pub(crate) linger: Duration,
    /// One that other tables use too.
    pub(crate) client: Option<Client>,
}

/// Makes a table; see [`KeraTable::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct KeraTableBuilder {
    pub(crate) settings: Settings,
}

impl KeraTableBuilder {
    pub(crate) fn new(stream: &str) -> Self {
        Self {
            settings: Settings {
                connection: Connection::default(),
                stream: stream.into(),
                from: Place::Earliest,
                to: Some(Place::Latest),
                json: None,
                prefix: String::new(),
                on_bad_json: OnBadJson::default(),
                skip_lost: false,
                skip_damaged: false,
                partitions: 64,
                memory_limit: 8 << 20,
                rack: String::new(),
                compression: Compression::None,
                linger: Duration::from_millis(5),
                client: None,
            },
        }
    }

    /// How brokers are reached. Default: one at 127.0.0.1:7600.
    pub fn connection(mut self, connection: Connection) -> Self {
        self.settings.connection = connection;
        self
    }

    pub(crate) fn client(mut self, client: Client) -> Self {
        self.settings.client = Some(client);
        self
    }

    /// Where a query begins to read. Default [`Place::Earliest`].
    pub fn from(mut self, place: Place) -> Self {
        self.settings.from = place;
        self
    }

    /// Where a query ends, as it is when the query is planned. Default [`Place::Latest`].
    pub fn to(mut self, place: Place) -> Self {
        self.settings.to = Some(place);
        self
    }

    /// A query has no end: it waits for more records, and reads lanes that are added too.
    pub fn unbounded(mut self) -> Self {
        self.settings.to = None;
        self
    }

    /// Values are JSON objects: their fields are columns, in place of the column `value`.
    pub fn json(mut self, schema: SchemaRef) -> Self {
        self.settings.json = Some(schema);
        self
    }

    /// What a value that is no JSON object of the schema comes to. Default [`OnBadJson::Fail`].
    pub fn on_bad_json(mut self, on_bad: OnBadJson) -> Self {
        self.settings.on_bad_json = on_bad;
        self
    }

    /// What goes before the names of the records' own columns: `kera_` makes `key` to `kera_key`. Default nothing.
    pub fn metadata_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.prefix = prefix.into();
        self
    }

    /// Whether a query goes on without records that are deleted before it has read them. Default false: it fails.
    pub fn skip_lost(mut self, skip: bool) -> Self {
        self.settings.skip_lost = skip;
        self
    }

    /// Whether a query goes on without batches that cannot be read although they are as they were stored; each is told in the log. Default
    /// false: it fails.
    pub fn skip_damaged(mut self, skip: bool) -> Self {
        self.settings.skip_damaged = skip;
        self
    }

    /// Most partitions of a plan: a lane is one, and of more lanes several share one. Default 64.
    pub fn partitions(mut self, most: usize) -> Self {
        self.settings.partitions = most;
        self
    }

    /// Bytes that each partition fetches ahead. Default 8 MiB, at least 64 KiB. A batch that takes more than this when it is decompressed is
    /// not read.
    pub fn memory_limit(mut self, bytes: usize) -> Self {
        self.settings.memory_limit = bytes;
        self
    }

    /// The rack that queries run in: closed groups are read from replicas there. Default none.
    pub fn rack(mut self, rack: impl Into<String>) -> Self {
        self.settings.rack = rack.into();
        self
    }

    /// How an `INSERT` compresses batches. Default none.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.settings.compression = compression;
        self
    }

    /// How long a batch of an `INSERT` waits for more records. Default 5 ms.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.settings.linger = linger;
        self
    }

    /// Looks the stream up.
    ///
    /// # Errors
    /// [`KeraError::Option`] and [`KeraError::Collision`] for settings that make no sense; [`KeraError::Rpc`] if there is no such stream, or no
    /// broker was reached.
    pub async fn build(self) -> Result<KeraTable, KeraError> {
        let settings = self.settings;
        if settings.partitions == 0 {
            return Err(KeraError::option(
                "scan.partitions",
                "it must be at least 1",
            ));
        }
        if settings.memory_limit < LEAST_MEMORY {
            let reason = "it is below 64 KiB: raise it";
            return Err(KeraError::option("scan.memory-limit", reason));
        }
        if settings.connection.timeout() <= settings.linger {
            let reason = "it must be longer than sink.linger";
            return Err(KeraError::option("timeout", reason));
        }
        if let Some(schema) = &settings.json {
            if schema.fields().is_empty() {
                let reason = "values in JSON need columns: declare at least one";
                return Err(KeraError::option("value.format", reason));
            }
            json::check(schema)
                .map_err(|error| KeraError::option("value.format", error.to_string()))?;
        }
        let layout = Layout::new(settings.json.clone(), &settings.prefix)?;
        KeraTable::open(settings, layout).await
    }
}
