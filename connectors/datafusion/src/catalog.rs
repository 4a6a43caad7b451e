//! How sessions come by tables: `CREATE EXTERNAL TABLE`, and all streams as a schema.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

use arrow_schema::Schema;
use async_trait::async_trait;
use datafusion::catalog::{SchemaProvider, Session, TableProvider, TableProviderFactory};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::CreateExternalTable;
use datafusion::prelude::SessionContext;
use kera_protocol::error::ErrorCode;
use kera_protocol::v1;
use kera_rpc::Client;

use crate::connection::Connection;
use crate::error::KeraError;
use crate::location::Location;
use crate::options::Options;
use crate::table::KeraTable;

/// Streams of one answer.
const PAGE: u32 = 1_000;

/// Teaches a session `CREATE EXTERNAL TABLE ... STORED AS KERA`.
pub fn register(context: &SessionContext) {
    let state = context.state_ref();
    let mut state = state.write();
    let factories = state.table_factories_mut();
    factories.insert("KERA".to_owned(), Arc::new(KeraTableFactory));
}

/// Makes tables of `CREATE EXTERNAL TABLE ... STORED AS KERA LOCATION 'kera://HOST:PORT/STREAM'`.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeraTableFactory;

impl KeraTableFactory {
    async fn make(command: &CreateExternalTable) -> Result<KeraTable, KeraError> {
        let refused = |clause: &str, reason: &str| Err(KeraError::option(clause, reason));
        let [location] = &command.locations[..] else {
            return refused("LOCATION", "a table is one stream: name one location");
        };
        if !command.table_partition_cols.is_empty() {
            return refused("PARTITIONED BY", "lanes are partitions: leave it out");
        }
        if !command.order_exprs.is_empty() {
            return refused(
                "WITH ORDER",
                "a stream keeps order within lanes only: leave it out",
            );
        }
        if command.constraints.iter().next().is_some() {
            return refused("PRIMARY KEY", "a stream has no constraints: leave them out");
        }
        if !command.column_defaults.is_empty() {
            return refused("DEFAULT", "columns have no defaults: leave them out");
        }
        let location = Location::parse(location)?;
        let mut options = Options::new(&command.options);
        let connection = options.connection(location.bootstrap)?;
        let mut table = KeraTable::builder(&location.stream).connection(connection);
        let columns: &Schema = command.schema.as_arrow();
        match options.is_json()? {
            true => table = table.json(Arc::new(columns.clone())),
            false if columns.fields().is_empty() => {}
            false => {
                return refused(
                    "value.format",
                    "columns are declared for the fields of values in JSON: set it to 'json', or leave the columns out",
                );
            }
        }
        options.apply(table, command.unbounded)?.build().await
    }
}

#[async_trait]
impl TableProviderFactory for KeraTableFactory {
    async fn create(
        &self,
        _state: &dyn Session,
        command: &CreateExternalTable,
    ) -> Result<Arc<dyn TableProvider>> {
        Ok(Arc::new(Self::make(command).await?))
    }
}

/// All streams that the user may see, as tables of their names: raw, and read up to where they end when a query begins.
#[derive(Debug)]
pub struct KeraSchema {
    connection: Connection,
    client: Client,
    /// As they were when last listed.
    names: RwLock<BTreeSet<String>>,
}

impl KeraSchema {
    /// Lists the streams.
    ///
    /// # Errors
    /// [`KeraError::List`] if no broker was reached.
    pub async fn open(connection: Connection) -> Result<Self, KeraError> {
        let client = connection
            .client()
            .map_err(|error| KeraError::List(Box::new(error)))?;
        let schema = Self {
            connection,
            client,
            names: RwLock::default(),
        };
        schema.refresh().await?;
        Ok(schema)
    }

    /// Lists the streams anew, for `SHOW TABLES`. Queries find streams that were created since then without it.
    ///
    /// # Errors
    /// [`KeraError::List`] if no broker was reached.
    pub async fn refresh(&self) -> Result<(), KeraError> {
        let mut names = BTreeSet::new();
        let mut after = String::new();
        loop {
            let request = v1::ListStreamsRequest {
                include_internal: false,
                after,
                max_streams: PAGE,
            };
            let listed = self
                .client
                .call(request)
                .await
                .map_err(|error| KeraError::List(Box::new(error)))?;
            names.extend(listed.streams.into_iter().map(|stream| stream.name));
            match names.last() {
                Some(last) if listed.more => after = last.clone(),
                _ => break,
            }
        }
        *self.names.write().unwrap_or_else(PoisonError::into_inner) = names;
        Ok(())
    }

    fn change<T>(&self, change: impl FnOnce(&mut BTreeSet<String>) -> T) -> T {
        change(&mut self.names.write().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl SchemaProvider for KeraSchema {
    fn table_names(&self) -> Vec<String> {
        self.change(|names| names.iter().cloned().collect())
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>, DataFusionError> {
        let table = KeraTable::builder(name)
            .connection(self.connection.clone())
            .client(self.client.clone());
        match table.build().await {
            Ok(table) => {
                self.change(|names| names.insert(name.to_owned()));
                Ok(Some(Arc::new(table)))
            }
            Err(KeraError::Rpc { error, .. }) if error.code() == Some(ErrorCode::UnknownStream) => {
                self.change(|names| names.remove(name));
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn table_exist(&self, name: &str) -> bool {
        self.change(|names| names.contains(name))
    }
}
