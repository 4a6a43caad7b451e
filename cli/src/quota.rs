//! `kera quota`.

use std::collections::{BTreeMap, HashMap};
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use kera_metadata::access::ANY;
use kera_metadata::quota::QuotaKind;
use kera_protocol::v1;
use serde::Serialize;

use crate::connect::{ConnectArgs, not_made, refused};
use crate::failure::{Failure, Outcome};
use crate::output::{OutputArgs, Table, print_json, print_line};
use crate::parse;
use crate::stream::confirm;

/// `kera quota ...`
#[derive(Debug, Subcommand)]
pub(crate) enum QuotaCommand {
    /// Set limits of users or client ids.
    Set(SetArgs),
    /// List the quotas.
    List(ListArgs),
    /// Take limits away.
    Delete(DeleteArgs),
}

/// Whom a quota is about.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("whom").required(true).multiple(true).args(["principal", "client_id", "address"]))]
struct WhomArgs {
    /// The user, such as User:ann; `User:*` for each user that has no quota of its own
    #[arg(long, value_name = "PRINCIPAL", value_parser = principal)]
    principal: Option<String>,
    /// The client id of Kafka's clients, of the user if one is named; `*` for each that has no quota of its own
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// The IP address that connections are opened from; `*` for each that has no quota of its own
    #[arg(long, value_name = "IP", conflicts_with_all = ["principal", "client_id"])]
    address: Option<String>,
}

impl WhomArgs {
    fn entity(&self) -> v1::QuotaEntity {
        let whom = |name: &String| v1::Whom {
            name: (name != ANY).then(|| name.clone()),
        };
        v1::QuotaEntity {
            user: self.principal.as_ref().map(whom),
            client_id: self.client_id.as_ref().map(whom),
            address: self.address.as_ref().map(whom),
        }
    }

    fn shown(&self) -> String {
        let user = self.principal.as_ref().map(|name| format!("User:{name}"));
        let client = self.client_id.as_ref();
        let client = client.map(|id| format!("client id {id}"));
        let address = self.address.as_ref();
        let address = address.map(|address| format!("address {address}"));
        let parts: Vec<_> = user.into_iter().chain(client).chain(address).collect();
        parts.join(", ")
    }
}

fn principal(text: &str) -> Result<String, String> {
    let name = text.strip_prefix("User:").filter(|name| !name.is_empty());
    name.map(str::to_owned)
        .ok_or_else(|| "a principal is of the form `User:NAME`; all users are `User:*`".to_owned())
}

/// Arguments of `kera quota set`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("limits").required(true).multiple(true).args([
        "producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate",
        "connection_creation_rate", "objective_latency", "objective_request_rate", "objective_byte_rate",
    ]),
    override_usage = "kera quota set [OPTIONS] <--principal <PRINCIPAL>|--client-id <ID>|--address <IP>> <LIMIT>...",
    after_help = "Examples:
  kera quota set --principal User:ann --producer-byte-rate 10MiB --consumer-byte-rate 20MiB
  kera quota set --principal 'User:*' --producer-byte-rate 1MiB
  kera quota set --principal User:ann --client-id batch --consumer-byte-rate 512KiB
  kera quota set --principal 'User:*' --request-percentage 25 --controller-mutation-rate 10
  kera quota set --address '*' --connection-creation-rate 50
  kera quota set --principal User:ann --objective-latency 5ms --objective-request-rate 500 --objective-byte-rate 1MiB

Of several quotas that fit a client one counts, for each limit: that of its user and client id, of its user, of all \
users and its client id, of all users, of its client id, of all client ids. All connections that share a quota share \
what it allows at each broker.

An objective is a promise to a user, at each broker: up to so many requests and bytes a second, 99 of 100 answers take \
no longer than the latency, whatever others do. It has all three parts. It is refused where the broker cannot keep it \
beside the others; `kera calibrate` measures what a broker can do."
)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    whom: WhomArgs,
    /// Bytes of records that are produced, a second and at each broker
    #[arg(long, value_name = "SIZE", value_parser = parse::size)]
    producer_byte_rate: Option<u64>,
    /// Bytes of records that are read, a second and at each broker
    #[arg(long, value_name = "SIZE", value_parser = parse::size)]
    consumer_byte_rate: Option<u64>,
    /// Time of a broker's cores that requests take, in hundredths of one core and at each broker
    #[arg(long, value_name = "N")]
    request_percentage: Option<f64>,
    /// Lanes (Kafka: partitions) that are created and deleted, a second and at each broker
    #[arg(long, value_name = "N", value_parser = parse::rate)]
    controller_mutation_rate: Option<f64>,
    /// Connections that are opened from an address, a second and at each broker
    #[arg(long, value_name = "N")]
    connection_creation_rate: Option<u32>,
    /// Objective of a user: the time from request to answer that at most one answer in a hundred exceeds
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    objective_latency: Option<Duration>,
    /// Objective of a user: requests a second that are guaranteed, at each broker
    #[arg(long, value_name = "N/s", value_parser = parse::rate)]
    objective_request_rate: Option<f64>,
    /// Objective of a user: bytes a second that are guaranteed, appended and read together, at each broker
    #[arg(long, value_name = "SIZE", value_parser = parse::size)]
    objective_byte_rate: Option<u64>,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl SetArgs {
    fn limits(&self) -> HashMap<String, f64> {
        let all = [
            (
                QuotaKind::ProducerByteRate,
                self.producer_byte_rate.map(|bytes| bytes as f64),
            ),
            (
                QuotaKind::ConsumerByteRate,
                self.consumer_byte_rate.map(|bytes| bytes as f64),
            ),
            (QuotaKind::RequestPercentage, self.request_percentage),
            (
                QuotaKind::ControllerMutationRate,
                self.controller_mutation_rate,
            ),
            (
                QuotaKind::ConnectionCreationRate,
                self.connection_creation_rate.map(f64::from),
            ),
            (
                QuotaKind::ObjectiveLatency,
                self.objective_latency.map(|time| time.as_secs_f64() * 1e3),
            ),
            (QuotaKind::ObjectiveRequestRate, self.objective_request_rate),
            (
                QuotaKind::ObjectiveByteRate,
                self.objective_byte_rate.map(|bytes| bytes as f64),
            ),
        ];
        let set = all
            .into_iter()
            .filter_map(|(kind, value)| Some((kind.name().to_owned(), value?)));
        set.collect()
    }
}

/// Arguments of `kera quota list`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera quota list
  kera quota list --json")]
pub(crate) struct ListArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera quota delete`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera quota delete --principal User:ann --yes
  kera quota delete --principal User:ann --limit producer_byte_rate --yes")]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    whom: WhomArgs,
    /// Only this limit, as `kera quota list` names it
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    limit: Vec<String>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `kera quota`.
pub(crate) async fn run(command: QuotaCommand) -> Outcome {
    match command {
        QuotaCommand::Set(args) => set(args).await,
        QuotaCommand::List(args) => list(args).await,
        QuotaCommand::Delete(args) => delete(args).await,
    }
}

async fn set(args: SetArgs) -> Outcome {
    let mut control = args.connect.control().await?;
    let (entity, limits) = (args.whom.entity(), args.limits());
    let request = v1::AlterQuotaRequest {
        entity: Some(entity.clone()),
        set: limits.clone(),
        remove: Vec::new(),
    };
    let altered = control.quotas.alter_quota(request).await;
    altered.map_err(|s| not_made(&s, "kera quota list"))?;
    match args.output.json {
        true => print_json(&Set {
            set: QuotaView::of(entity, limits),
        })?,
        false => print_line(format_args!("set: quota of {}", args.whom.shown()))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What `kera quota set` has done.
#[derive(Serialize)]
struct Set {
    set: QuotaView,
}

/// What `kera quota delete` has done: the limits as they were.
#[derive(Serialize)]
struct Deleted {
    deleted: QuotaView,
}

#[derive(Serialize)]
struct QuotaView {
    /// `User:NAME`, or `User:*`.
    principal: Option<String>,
    client_id: Option<String>,
    address: Option<String>,
    limits: BTreeMap<String, f64>,
}

impl QuotaView {
    fn new(quota: v1::QuotaInfo) -> Self {
        Self::of(quota.entity.unwrap_or_default(), quota.limits)
    }

    fn of(entity: v1::QuotaEntity, limits: impl IntoIterator<Item = (String, f64)>) -> Self {
        let name = |whom: v1::Whom| whom.name.unwrap_or_else(|| ANY.to_owned());
        Self {
            principal: entity.user.map(|user| format!("User:{}", name(user))),
            client_id: entity.client_id.map(name),
            address: entity.address.map(name),
            limits: limits.into_iter().collect(),
        }
    }
}

async fn list(args: ListArgs) -> Outcome {
    let mut control = args.connect.control().await?;
    let listed = control.quotas.list_quotas(v1::ListQuotasRequest {}).await;
    let quotas = listed.map_err(|s| refused(&s))?.into_inner().quotas;
    let views: Vec<_> = quotas.into_iter().map(QuotaView::new).collect();
    if args.output.json {
        print_json(&views)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["principal", "client id", "address", "limit", ">value"]);
    for view in &views {
        let shown = |part: &Option<String>| part.clone().unwrap_or_default();
        for (limit, value) in &view.limits {
            table.row([
                shown(&view.principal),
                shown(&view.client_id),
                shown(&view.address),
                limit.clone(),
                value.to_string(),
            ]);
        }
    }
    table.print("no quotas; `kera quota set` makes one")?;
    Ok(ExitCode::SUCCESS)
}

async fn delete(args: DeleteArgs) -> Outcome {
    let mut control = args.connect.control().await?;
    let entity = args.whom.entity();
    let listed = control.quotas.list_quotas(v1::ListQuotasRequest {}).await;
    let quotas = listed.map_err(|s| refused(&s))?.into_inner().quotas;
    let mut quotas = quotas.into_iter();
    let found = quotas.find(|quota| quota.entity.as_ref() == Some(&entity));
    let known = found.map_or_else(HashMap::new, |quota| quota.limits);
    let wanted = |name: &String| args.limit.is_empty() || args.limit.contains(name);
    let removed: BTreeMap<String, f64> =
        known.into_iter().filter(|(name, _)| wanted(name)).collect();
    let remove: Vec<String> = removed.keys().cloned().collect();
    let shown = args.whom.shown();
    if remove.is_empty() || remove.len() < args.limit.len() {
        return Err(Failure::message(format!(
            "{shown} has no such quota; see `kera quota list`"
        )));
    }
    confirm(&shown, "quota", args.yes)?;
    let request = v1::AlterQuotaRequest {
        entity: Some(entity.clone()),
        set: HashMap::new(),
        remove,
    };
    let altered = control.quotas.alter_quota(request).await;
    altered.map_err(|s| not_made(&s, "kera quota list"))?;
    match args.output.json {
        true => print_json(&Deleted {
            deleted: QuotaView::of(entity, removed),
        })?,
        false => print_line(format_args!("deleted: quota of {shown}"))?,
    }
    Ok(ExitCode::SUCCESS)
}
