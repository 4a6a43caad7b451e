//! Tables over brokers of this tree's program, which `KERA_BIN` names: `scripts/datafusion.sh`.
#![forbid(unsafe_code)]

mod bounds;
mod creating;
mod faults;
mod filters;
mod following;
mod inserting;
mod json;
mod readme;

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::DataFusionError;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use kera_testkit::Broker;

/// A session that knows tables of Kera.
fn session() -> SessionContext {
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(4));
    kera_datafusion::register(&context);
    context
}

/// A broker, and a session with it.
struct House {
    broker: Broker,
    context: SessionContext,
}

impl House {
    fn new() -> Self {
        Self {
            broker: Broker::start(),
            context: session(),
        }
    }

    fn create_stream(&self, words: &[&str]) {
        let words = [&["stream", "create"], words].concat();
        self.broker.run(&words);
    }

    /// `CREATE [kind] EXTERNAL TABLE name [columns] STORED AS KERA` of a stream, with further words.
    async fn try_table(
        &self,
        begin: &str,
        stream: &str,
        options: &str,
    ) -> Result<(), DataFusionError> {
        let address = self.broker.address();
        let options = match options {
            "" => String::new(),
            options => format!(" OPTIONS ({options})"),
        };
        let text = format!("{begin} STORED AS KERA LOCATION 'kera://{address}/{stream}'{options}");
        self.context.sql(&text).await.map(drop)
    }

    async fn table(&self, begin: &str, stream: &str, options: &str) {
        self.try_table(begin, stream, options).await.unwrap();
    }

    /// A table of a stream's name.
    async fn plain(&self, stream: &str, options: &str) {
        self.table(&format!("CREATE EXTERNAL TABLE {stream}"), stream, options)
            .await;
    }

    async fn try_rows(&self, text: &str) -> Result<Vec<String>, DataFusionError> {
        let batches = self.context.sql(text).await?.collect().await?;
        Ok(rows(&batches))
    }

    /// The rows of a query, their columns separated by commas.
    async fn rows(&self, text: &str) -> Vec<String> {
        let found = self.try_rows(text).await;
        found.unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    async fn refused(&self, text: &str) -> String {
        self.try_rows(text).await.unwrap_err().to_string()
    }

    async fn plan(&self, text: &str) -> Arc<dyn ExecutionPlan> {
        let frame = self.context.sql(text).await.unwrap();
        frame.create_physical_plan().await.unwrap()
    }

    async fn explain(&self, text: &str) -> String {
        let plan = self.plan(text).await;
        displayable(plan.as_ref()).indent(false).to_string()
    }

    async fn try_run(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Vec<String>, DataFusionError> {
        let batches = collect(plan, self.context.task_ctx()).await?;
        Ok(rows(&batches))
    }

    async fn run(&self, plan: Arc<dyn ExecutionPlan>) -> Vec<String> {
        self.try_run(plan).await.unwrap()
    }
}

fn rows(batches: &[RecordBatch]) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let mut found = Vec::new();
    for batch in batches {
        let columns = batch.columns().iter();
        let columns: Vec<_> = columns
            .map(|column| ArrayFormatter::try_new(column, &options).unwrap())
            .collect();
        for row in 0..batch.num_rows() {
            let row: Vec<String> = columns.iter().map(|c| c.value(row).to_string()).collect();
            found.push(row.join(","));
        }
    }
    found
}
