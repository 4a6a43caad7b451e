//! A stream as a table.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::error::Result;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use kera_rpc::Client;

use crate::builder::{KeraTableBuilder, Settings};
use crate::error::KeraError;
use crate::filter::Condition;
use crate::insert::StreamSink;
use crate::layout::Layout;
use crate::scan;

/// A stream of Kera as a table: `SELECT` reads its lanes in parallel, `INSERT` appends to it.
#[derive(Debug)]
pub struct KeraTable {
    pub(crate) settings: Arc<Settings>,
    pub(crate) layout: Layout,
    pub(crate) client: Client,
}

impl KeraTable {
    /// A table of a stream. All of it is read, up to where the stream ends when a query begins, unless the builder is told otherwise.
    pub fn builder(stream: &str) -> KeraTableBuilder {
        KeraTableBuilder::new(stream)
    }

    pub(crate) async fn open(settings: Settings, layout: Layout) -> Result<Self, KeraError> {
        let refused = |error| KeraError::Rpc {
            stream: settings.stream.to_string(),
            error: Box::new(error),
        };
        let client = match &settings.client {
            Some(client) => client.clone(),
            None => settings.connection.client().map_err(refused)?,
        };
        client.refresh(&settings.stream).await.map_err(refused)?;
        Ok(Self {
            settings: Arc::new(settings),
            layout,
            client,
        })
    }
}

#[async_trait]
impl TableProvider for KeraTable {
    fn schema(&self) -> SchemaRef {
        self.layout.schema().clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        let each = filters
            .iter()
            .map(|filter| match Condition::of(filter, &self.layout) {
                Some(_) => TableProviderFilterPushDown::Exact,
                None => TableProviderFilterPushDown::Unsupported,
            });
        Ok(each.collect())
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let conditions = filters
            .iter()
            .filter_map(|filter| Condition::of(filter, &self.layout));
        let condition = Condition::And(conditions.collect());
        scan::plan(self, projection, condition, limit).await
    }

    async fn insert_into(
        &self,
        _state: &dyn Session,
        input: Arc<dyn ExecutionPlan>,
        operation: InsertOp,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if operation != InsertOp::Append {
            let reason = "a stream is appended to, and nothing in it is replaced: use INSERT INTO";
            let error = KeraError::option(format!("{operation}"), reason);
            return Err(error.into());
        }
        let sink = StreamSink::new(self, &input.schema())?;
        Ok(Arc::new(DataSinkExec::new(input, Arc::new(sink), None)))
    }
}
