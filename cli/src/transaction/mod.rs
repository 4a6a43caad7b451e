//! `kera transaction`.

mod abort;
mod end;
mod lost;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use kera_grpc::v1::transaction_tools_client::TransactionToolsClient;
use kera_protocol::v1;
use serde::Serialize;
use tonic::{Response, Status};

use crate::connect::{ConnectArgs, Control, changed, retried};
use crate::failure::{Failure, Outcome};
use crate::output::{Out, OutputArgs, Table, count, paragraph, plain, print_json, say, short_time};
use crate::waits::Watched;

pub(crate) use abort::AbortArgs;
pub(crate) use end::EndArgs;
use lost::LostView;

/// `kera transaction ...`
#[derive(Debug, Subcommand)]
pub(crate) enum TransactionCommand {
    /// List open transactions, and lost ones, which nothing but `kera transaction end` ends.
    List(ListArgs),
    /// Show a transaction: its producer, its partitions and groups, and how many records wait for it.
    Describe(DescribeArgs),
    /// Abort an open transaction whose producer is gone, or all whose ids begin so. A producer that is not is fenced.
    Abort(AbortArgs),
    /// Commit or abort by hand a transaction that is prepared, or that no coordinator knows.
    End(EndArgs),
}

/// Arguments of `kera transaction list`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera transaction list
  kera transaction list --all --json")]
pub(crate) struct ListArgs {
    /// Also transactional ids that have no open transaction
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera transaction describe`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera transaction describe payments
  kera transaction describe payments --json")]
pub(crate) struct DescribeArgs {
    /// The transactional id
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `kera transaction`.
pub(crate) async fn run(command: TransactionCommand) -> Outcome {
    match command {
        TransactionCommand::List(args) => list(args).await,
        TransactionCommand::Describe(args) => describe(args).await,
        TransactionCommand::Abort(args) => abort::run(args).await,
        TransactionCommand::End(args) => end::run(args).await,
    }
}

#[derive(Serialize)]
struct SummaryView {
    transactional_id: String,
    state: String,
    producer_id: i64,
    /// For how long the transaction has been open; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    open_ms: Option<u64>,
    coordinator: u32,
}

impl SummaryView {
    fn new(summary: &v1::TransactionSummary) -> Self {
        Self {
            transactional_id: summary.transactional_id.clone(),
            state: summary.state.clone(),
            producer_id: summary.producer,
            open_ms: summary.open_ms,
            coordinator: summary.coordinator,
        }
    }

    fn open_for(&self) -> String {
        let time = |ms| short_time(Duration::from_millis(ms));
        self.open_ms.map_or_else(|| "-".to_owned(), time)
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum ListedView {
    Known(SummaryView),
    Lost(LostView),
}

#[derive(Serialize)]
struct DescriptionView {
    #[serde(flatten)]
    summary: SummaryView,
    epoch: i32,
    timeout_ms: u32,
    /// Of a transaction that is ending, those that lack their marker.
    partitions: Vec<PartitionView>,
    groups: Vec<String>,
    /// For how long it has been prepared, and by whom; absent if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    prepared_ms: Option<u64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    prepared_by: String,
}

#[derive(Serialize)]
struct PartitionView {
    stream: String,
    partition: u32,
    streamlet: u32,
    lane: u32,
    owner: u32,
    /// Records that readers of what is committed do not get before the lane's oldest open transaction ends; absent
    /// while that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_records: Option<u64>,
}

/// How many records wait in lanes of some streams: by stream, streamlet and lane.
type Waiting = BTreeMap<(String, u32, u32), u64>;

impl DescriptionView {
    fn new(told: &v1::DescribeTransactionResponse, waiting: &Waiting) -> Self {
        let partitions = told.partitions.iter().map(|one| PartitionView {
            stream: one.stream.clone(),
            partition: one.partition,
            streamlet: one.streamlet,
            lane: one.lane,
            owner: one.owner,
            waiting_records: waiting
                .get(&(one.stream.clone(), one.streamlet, one.lane))
                .copied(),
        });
        Self {
            summary: SummaryView::new(&told.summary.clone().unwrap_or_default()),
            epoch: told.epoch,
            timeout_ms: told.timeout_ms,
            partitions: partitions.collect(),
            groups: told.groups.clone(),
            prepared_ms: told.prepared_ms,
            prepared_by: told.prepared_by.clone(),
        }
    }

    fn headline(&self) -> String {
        let summary = &self.summary;
        let limit = short_time(Duration::from_millis(self.timeout_ms.into()));
        let is_open = summary.state == "Ongoing";
        let open = match (summary.open_ms, self.prepared_ms) {
            (Some(_), Some(_)) if is_open => format!(
                "open for {} without a timeout, by {} for two-phase commit",
                summary.open_for(),
                self.prepared_by
            ),
            (_, Some(ms)) => format!(
                "prepared by {} {} ago, so that it ends by its handle alone",
                self.prepared_by,
                short_time(Duration::from_millis(ms))
            ),
            (Some(_), None) => format!("open for {}, at most {limit}", summary.open_for()),
            (None, None) => format!("no open transaction; one may last {limit}"),
        };
        format!(
            "{}: {}, {open}, producer id {}, epoch {}, coordinated by broker {}",
            summary.transactional_id,
            summary.state,
            summary.producer_id,
            self.epoch,
            summary.coordinator
        )
    }

    fn table(&self) -> Table {
        let mut table = Table::new(&[
            "stream",
            ">partition",
            ">streamlet",
            ">lane",
            ">owner",
            ">waiting records",
        ])
        .keys(2);
        for one in &self.partitions {
            table.row([
                one.stream.clone(),
                one.partition.to_string(),
                one.streamlet.to_string(),
                one.lane.to_string(),
                one.owner.to_string(),
                one.waiting_records.map_or_else(|| "-".to_owned(), count),
            ]);
        }
        table
    }
}

fn table_of(views: &[SummaryView]) -> Table {
    let mut table = Table::new(&[
        "transactional id",
        "state",
        ">open for",
        ">producer id",
        ">coordinator",
    ]);
    for view in views {
        table.row([
            view.transactional_id.clone(),
            view.state.clone(),
            view.open_for(),
            view.producer_id.to_string(),
            view.coordinator.to_string(),
        ]);
    }
    table
}

/// Asks about transactions. A coordinator that reads its state answers later.
async fn ask<T, F>(
    control: &Control,
    mut call: impl FnMut(TransactionToolsClient<Watched>) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    retried(|| call(control.transactions.clone())).await
}

/// Changes a transaction, as [`ask`] asks.
async fn change<T, F>(
    control: &Control,
    mut call: impl FnMut(TransactionToolsClient<Watched>) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    changed(
        || call(control.transactions.clone()),
        "kera transaction list --all",
    )
    .await
}

async fn list(args: ListArgs) -> Outcome {
    let control = args.connect.control().await?;
    let request = v1::ListTransactionsRequest {
        all: args.all,
        ..v1::ListTransactionsRequest::default()
    };
    // It names all or is refused.
    let answer = ask(&control, |mut stub| {
        let request = request.clone();
        async move { stub.list_transactions(request).await }
    });
    let answer = answer.await?;
    let views: Vec<SummaryView> = answer.transactions.iter().map(SummaryView::new).collect();
    let lost = lost::views(&answer.lost);
    if !answer.lost_unknown.is_empty() {
        say(&format!(
            "whether partitions hold transactions open that no coordinator knows is not known: {}",
            answer.lost_unknown
        ));
    }
    if args.output.json {
        let known = views.into_iter().map(ListedView::Known);
        let all: Vec<ListedView> = known
            .chain(lost.into_iter().map(ListedView::Lost))
            .collect();
        print_json(&all)?;
        return Ok(ExitCode::SUCCESS);
    }
    if lost.is_empty() || !views.is_empty() {
        table_of(&views).print(match args.all {
            true => "no transactional ids",
            false => "no open transactions",
        })?;
    }
    if let Some(first) = lost.first() {
        let mut out = Out::stdout();
        if !views.is_empty() {
            out.line("")?;
        }
        out.line(paragraph(&format!(
            "No coordinator knows these, and they end by hand alone: `kera transaction end --producer {} --abort`",
            first.producer_id
        )))?;
        out.bytes(lost::table_of(&lost).render().as_bytes())?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn describe_id(
    control: &Control,
    id: &str,
) -> Result<v1::DescribeTransactionResponse, Failure> {
    let request = v1::DescribeTransactionRequest {
        transactional_id: id.to_owned(),
        local: false,
    };
    let told = ask(control, |mut stub| {
        let request = request.clone();
        async move { stub.describe_transaction(request).await }
    });
    told.await
}

async fn describe(args: DescribeArgs) -> Outcome {
    let mut control = args.connect.control().await?;
    let told = describe_id(&control, &args.id).await?;
    let waiting = waiting(&mut control, &told).await;
    let view = DescriptionView::new(&told, &waiting);
    if args.output.json {
        print_json(&view)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = Out::stdout();
    out.line(paragraph(&plain(&view.headline())))?;
    if !view.partitions.is_empty() {
        out.line("")?;
        out.bytes(view.table().render().as_bytes())?;
    }
    if !view.groups.is_empty() {
        let groups = view.groups.join(", ");
        out.line("")?;
        out.line(paragraph(&plain(&format!("offsets of groups: {groups}"))))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// What waits in the lanes of a transaction. Streams that may not be described are left out.
async fn waiting(control: &mut Control, told: &v1::DescribeTransactionResponse) -> Waiting {
    let streams: BTreeSet<&String> = told.partitions.iter().map(|one| &one.stream).collect();
    let mut waiting = Waiting::new();
    for name in streams {
        let request = v1::DescribeStreamRequest {
            name: name.clone(),
            ..v1::DescribeStreamRequest::default()
        };
        let Ok(described) = control.streams.describe_stream(request).await else {
            continue;
        };
        for lane in described.into_inner().lanes {
            if let Some(stable) = lane.stable_ordinal {
                let records = lane.head_ordinal.saturating_sub(stable);
                waiting.insert((name.clone(), lane.streamlet, lane.lane), records);
            }
        }
    }
    waiting
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> v1::DescribeTransactionResponse {
        let partition = |partition, lane| v1::TransactionPartition {
            stream: "orders".into(),
            partition,
            streamlet: 1,
            lane,
            owner: 3,
        };
        v1::DescribeTransactionResponse {
            summary: Some(v1::TransactionSummary {
                transactional_id: "payments".into(),
                state: "Ongoing".into(),
                producer: 4_000_000_000_001,
                open_ms: Some(200_000),
                coordinator: 2,
            }),
            epoch: 7,
            timeout_ms: 900_000,
            partitions: vec![partition(1, 0), partition(5, 1)],
            groups: vec!["billing".into()],
            ..v1::DescribeTransactionResponse::default()
        }
    }

    #[test]
    fn who_prepared_a_transaction_is_named() {
        let mut told = v1::DescribeTransactionResponse {
            prepared_ms: Some(200_000),
            prepared_by: "User:flink".into(),
            ..open()
        };
        told.summary.as_mut().expect("it has one").state = "Prepared".into();
        let headline = DescriptionView::new(&told, &Waiting::new()).headline();
        let prepared = "prepared by User:flink 3m 20s ago, so that it ends by its handle alone";
        assert!(headline.contains(prepared), "{headline}");
    }

    #[test]
    fn who_has_a_transaction_without_a_timeout_is_named() {
        let told = v1::DescribeTransactionResponse {
            prepared_ms: Some(200_000),
            prepared_by: "User:flink".into(),
            ..open()
        };
        let headline = DescriptionView::new(&told, &Waiting::new()).headline();
        let said = "Ongoing, open for 3m 20s without a timeout, by User:flink for two-phase commit";
        assert!(headline.contains(said), "{headline}");
    }

    #[test]
    fn a_transaction_tells_whose_it_is_and_what_waits_for_it() {
        let waiting = Waiting::from([(("orders".to_owned(), 1, 1), 12_345)]);
        let view = DescriptionView::new(&open(), &waiting);
        assert_eq!(
            view.headline(),
            "payments: Ongoing, open for 3m 20s, at most 15m 0s, producer id 4000000000001, epoch 7, coordinated by broker 2"
        );
        let table = view.table().render();
        let rows: Vec<Vec<&str>> = table
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            rows,
            [
                ["orders", "1", "1", "0", "3", "-"],
                ["orders", "5", "1", "1", "3", "12,345"]
            ]
        );
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!(json["transactional_id"], "payments");
        assert_eq!(json["partitions"][1]["waiting_records"], 12_345);
        assert!(json["partitions"][0].get("waiting_records").is_none());
        assert_eq!(json["groups"][0], "billing");
    }

    #[test]
    fn an_id_without_a_transaction_says_so() {
        let mut told = open();
        let summary = told.summary.as_mut().unwrap();
        (summary.state, summary.open_ms) = ("CompleteCommit".into(), None);
        let view = DescriptionView::new(&told, &Waiting::new());
        assert!(
            view.headline().starts_with(
                "payments: CompleteCommit, no open transaction; one may last 15m 0s, producer id"
            ),
            "{}",
            view.headline()
        );
        let row = table_of(&[view.summary]).render();
        let row: Vec<&str> = row.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(
            row,
            ["payments", "CompleteCommit", "-", "4000000000001", "2"]
        );
    }
}
