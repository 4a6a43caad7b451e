//! `kera pin`.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use kera_protocol::v1::find_ordinals_request::At;
use kera_rpc::Admin;
use kera_rpc::admin::{
    CreatePinRequest, LanePosition, ListPinsResponse, PinInfo, PinLoss, PinLossCause,
    PinPolicy as WirePolicy,
};
use serde::Serialize;

use crate::connect::{ConnectArgs, failed, not_changed};
use crate::failure::{Failure, Outcome};
use crate::output::{
    Out, OutputArgs, Table, count, fact, plural, print_json, print_line, rounded_bytes, say,
    short_time,
};
use crate::parse;
use crate::stream::confirm;

/// Clocks of brokers that are set well are less apart.
const CLOCKS_APART_MS: u64 = 3_600_000;

/// `kera pin ...`
#[derive(Debug, Subcommand)]
pub(crate) enum PinCommand {
    /// Pin positions of a stream under a name, or move the pin of that name.
    Create(CreateArgs),
    /// List pins: whose they are, how old, and how many bytes they hold back.
    List(ListArgs),
    /// Show a pin with its positions.
    Describe(NamedArgs),
    /// Delete a pin.
    Delete(DeleteArgs),
}

/// Where a pin is set.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Place {
    /// Where the lanes begin now.
    Beginning,
    /// Where the lanes end now.
    End,
}

/// What retention does about a pin.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Policy {
    /// Delete what the pin needs, and tell.
    Warn,
    /// Keep what the pin needs, within its bounds.
    Wait,
}

/// Arguments of `kera pin create`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera pin create clicks before-migration --policy wait --max-age 3d
  kera pin create clicks savepoint-7 --from-group billing --job billing --policy wait
  kera pin create clicks now --at end

A pin needs every record at and above its positions. With --policy wait retention keeps those until the pin is deleted, \
is older than --max-age, or would hold back more than --max-bytes; then it deletes them, and the pin is lost. With \
--policy warn it deletes them when they are due. A trim never waits. A lost pin holds nothing back and is moved to other \
positions by making it again.")]
pub(crate) struct CreateArgs {
    /// The stream
    stream: String,
    /// The pin's name
    name: String,
    /// Where to pin every lane
    #[arg(long, value_enum, default_value_t = Place::Beginning, conflicts_with = "from_group")]
    at: Place,
    /// Pin what this group has committed; lanes of which it has committed nothing where they begin
    #[arg(long, value_name = "GROUP")]
    from_group: Option<String>,
    /// What the pin is for, such as the name of a job
    #[arg(long, value_name = "TEXT", default_value = "")]
    job: String,
    /// What retention does about it; wait needs the operation alter-configs on the stream
    #[arg(long, value_enum, default_value_t = Policy::Warn)]
    policy: Policy,
    /// It holds nothing back once it is this old [default: 7d]
    #[arg(long, value_name = "TIME", value_parser = parse::millis)]
    max_age: Option<u64>,
    /// It holds nothing back once that would be more bytes of the stream than this, on all brokers [default: 10GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse::size)]
    max_bytes: Option<u64>,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera pin list`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera pin list
  kera pin list --stream clicks --json

A pin is `kept` while all records are there that it needs, `held` while retention would have deleted some of them, `expired` \
once it waits no longer, as it is older than its bound, and nothing of it was due yet, `ahead` if the clock that it was made by \
was ahead by more than an hour, so that its age begins later, and `lost` once some records are gone.")]
pub(crate) struct ListArgs {
    /// Only pins of this stream
    #[arg(long, value_name = "NAME")]
    stream: Option<String>,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera pin describe`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  kera pin describe clicks savepoint-7")]
pub(crate) struct NamedArgs {
    /// The stream
    stream: String,
    /// The pin's name
    name: String,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera pin delete`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  kera pin delete clicks savepoint-7 --yes

What the pin has held back is deleted as soon as retention looks again.")]
pub(crate) struct DeleteArgs {
    /// The stream
    stream: String,
    /// The pin's name
    name: String,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `kera pin`.
pub(crate) async fn run(command: PinCommand) -> Outcome {
    match command {
        PinCommand::Create(args) => create(args).await,
        PinCommand::List(args) => list(args).await,
        PinCommand::Describe(args) => describe(args).await,
        PinCommand::Delete(args) => delete(args).await,
    }
}

#[derive(Serialize)]
struct Position {
    streamlet: u32,
    lane: u32,
    ordinal: u64,
}

#[derive(Serialize)]
struct Loss {
    streamlet: u32,
    lane: u32,
    ordinal: u64,
    cause: &'static str,
    at_ms: u64,
}

#[derive(Serialize)]
struct PinView {
    stream: String,
    name: String,
    job: String,
    owner: String,
    policy: &'static str,
    state: &'static str,
    created_ms: u64,
    age_ms: u64,
    held_bytes: u64,
    max_age_ms: u64,
    max_bytes: u64,
    lost: Option<Loss>,
    positions: Vec<Position>,
}

impl PinView {
    fn new(pin: PinInfo, now_ms: u64) -> Self {
        let age_ms = now_ms.saturating_sub(pin.created_ms);
        let state = match &pin.lost {
            Some(_) => "lost",
            None if pin.created_ms > now_ms.saturating_add(CLOCKS_APART_MS) => "ahead",
            None if pin.held_bytes > 0 => "held",
            None if age_ms > pin.max_age_ms && pin.policy() == WirePolicy::Wait => "expired",
            None => "kept",
        };
        let policy = match pin.policy() {
            WirePolicy::Wait => "wait",
            WirePolicy::Warn | WirePolicy::Unspecified => "warn",
        };
        let positions = pin.positions.iter().map(|at| Position {
            streamlet: at.streamlet,
            lane: at.lane,
            ordinal: at.ordinal,
        });
        Self {
            policy,
            state,
            age_ms,
            positions: positions.collect(),
            lost: pin.lost.as_ref().map(loss),
            created_ms: pin.created_ms,
            held_bytes: pin.held_bytes,
            max_age_ms: pin.max_age_ms,
            max_bytes: pin.max_bytes,
            stream: pin.stream,
            name: pin.name,
            job: pin.job,
            owner: pin.owner,
        }
    }

    fn loss_text(&self) -> Option<String> {
        let lost = self.lost.as_ref()?;
        let (streamlet, lane, ordinal) = (lost.streamlet, lost.lane, lost.ordinal);
        let why = match lost.cause {
            "retention" => "retention was due",
            "age" => "retention was due and the pin too old",
            "bytes" => "it would have held back too many bytes",
            "trim" => "the lane was trimmed",
            _ => "for a reason that this program does not know",
        };
        Some(format!(
            "lost at lane {streamlet}/{lane} from ordinal {ordinal} on: {why}"
        ))
    }
}

fn loss(lost: &PinLoss) -> Loss {
    Loss {
        streamlet: lost.streamlet,
        lane: lost.lane,
        ordinal: lost.ordinal,
        at_ms: lost.at_ms,
        cause: match lost.cause() {
            PinLossCause::Retention => "retention",
            PinLossCause::Age => "age",
            PinLossCause::Bytes => "bytes",
            PinLossCause::Trim => "trim",
            PinLossCause::Unspecified => "unknown",
        },
    }
}

async fn create(args: CreateArgs) -> Outcome {
    let admin = args.connect.admin().await?;
    let stream = admin.client().refresh(&args.stream).await.map_err(failed)?;
    let at = match args.at {
        Place::End => At::Latest(true),
        Place::Beginning => At::Earliest(true),
    };
    let found = admin.client().find_ordinals(&stream, at).await;
    let committed = match &args.from_group {
        Some(group) => committed(&admin, group, &args.stream, stream.streamlets).await?,
        None => HashMap::new(),
    };
    let mut positions = Vec::new();
    for lane in found.map_err(failed)? {
        let begins = lane.cursor.map_or(0, |cursor| cursor.ordinal);
        let committed = committed.get(&(lane.streamlet, lane.lane));
        if let (Some(at), Some(group)) = (committed.filter(|at| **at < begins), &args.from_group) {
            say(&format!(
                "group {group} stands at ordinal {at} of lane {}/{}, which begins at {begins}: what lies between is gone, and the pin is set where the lane begins",
                lane.streamlet, lane.lane
            ));
        }
        positions.push(LanePosition {
            streamlet: lane.streamlet,
            lane: lane.lane,
            ordinal: committed.map_or(begins, |at| begins.max(*at)),
        });
    }
    let policy = match args.policy {
        Policy::Warn => WirePolicy::Warn,
        Policy::Wait => WirePolicy::Wait,
    };
    let request = CreatePinRequest {
        stream: args.stream,
        name: args.name,
        job: args.job,
        positions,
        max_age_ms: args.max_age,
        max_bytes: args.max_bytes,
        policy: policy.into(),
        stream_id: stream.id.as_bytes().to_vec().into(),
        replaces_created_ms: None,
    };
    let made = admin.create_pin(request).await.map_err(not_changed)?;
    let view = PinView::new(made.pin.unwrap_or_default(), made.now_ms);
    let is_lost = view.lost.is_some();
    if args.output.json {
        print_json(&view)?;
    } else {
        let verb = if made.moved { "moved" } else { "created" };
        let lanes = plural(view.positions.len() as u64, "lane");
        print_line(format_args!(
            "{verb}: pin {} of stream {}, {lanes}",
            view.name, view.stream
        ))?;
    }
    if let Some(text) = view.loss_text() {
        say(&format!("the pin is {text}"));
    }
    Ok(ExitCode::from(u8::from(is_lost)))
}

/// What a group has committed of a stream, by lane.
async fn committed(
    admin: &Admin,
    group: &str,
    stream: &str,
    streamlets: u32,
) -> Result<HashMap<(u32, u32), u64>, Failure> {
    let described = admin.describe_group(group).await.map_err(failed)?;
    let summary = described.summary.unwrap_or_default();
    let of_native = described.lanes.iter().filter(|_| summary.stream == stream);
    let of_native = of_native.map(|lane| ((lane.streamlet, lane.lane), lane.committed));
    let streamlets = streamlets.max(1);
    let of_kafka = described.partitions.iter().filter(|p| p.stream == stream);
    let of_kafka = of_kafka.filter_map(|p| {
        let lane = (p.partition % streamlets, p.partition / streamlets);
        Some((lane, p.committed?))
    });
    let committed: HashMap<_, _> = of_native.chain(of_kafka).collect();
    if committed.is_empty() {
        return Err(Failure::message(format!(
            "group {group} has committed nothing of stream {stream}; `kera group describe {group}` shows what it reads"
        )));
    }
    Ok(committed)
}

fn views(answer: ListPinsResponse) -> Vec<PinView> {
    let pins = answer.pins.into_iter();
    pins.map(|pin| PinView::new(pin, answer.now_ms)).collect()
}

/// The bytes lack those of brokers that did not answer.
fn say_silent(silent: &[u32]) {
    if !silent.is_empty() {
        let brokers: Vec<_> = silent.iter().map(u32::to_string).collect();
        say(&format!(
            "without what brokers hold back that did not answer: {}",
            brokers.join(", ")
        ));
    }
}

fn age(ms: u64) -> String {
    short_time(Duration::from_millis(ms))
}

async fn list(args: ListArgs) -> Outcome {
    let admin = args.connect.admin().await?;
    let listed = admin.pins(args.stream.as_deref(), args.output.json).await;
    let listed = listed.map_err(failed)?;
    say_silent(&listed.silent_brokers);
    let views = views(listed);
    if args.output.json {
        print_json(&views)?;
        return Ok(ExitCode::SUCCESS);
    }
    let headings = ["stream", "pin", "job", ">age", ">held", "policy", "state"];
    let mut table = Table::new(&headings);
    for view in views {
        table.row([
            view.stream,
            view.name,
            view.job,
            age(view.age_ms),
            rounded_bytes(view.held_bytes),
            view.policy.to_owned(),
            view.state.to_owned(),
        ]);
    }
    table.print("no pins; `kera pin create` makes one")?;
    Ok(ExitCode::SUCCESS)
}

async fn describe(args: NamedArgs) -> Outcome {
    let admin = args.connect.admin().await?;
    let found = admin.pin(&args.stream, &args.name).await.map_err(failed)?;
    say_silent(&found.silent_brokers);
    let view = views(found).pop().ok_or_else(|| {
        Failure::message(format!(
            "stream \"{0}\" has no pin \"{1}\"; `kera pin list --stream {0}` shows those that there are",
            args.stream, args.name
        ))
    })?;
    if args.output.json {
        print_json(&view)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = Out::stdout();
    let state = view.loss_text().unwrap_or_else(|| view.state.to_owned());
    let facts = [
        ("pin", format!("{} of stream {}", view.name, view.stream)),
        ("job", view.job.clone()),
        ("owner", view.owner.clone()),
        ("state", state),
        ("policy", view.policy.to_owned()),
        (
            "age",
            format!("{} of {}", age(view.age_ms), age(view.max_age_ms)),
        ),
        (
            "held",
            format!(
                "{} of {}",
                rounded_bytes(view.held_bytes),
                rounded_bytes(view.max_bytes)
            ),
        ),
    ];
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        out.line(fact(name, value))?;
    }
    out.line("")?;
    out.flush()?;
    let mut table = Table::new(&[">streamlet", ">lane", ">ordinal"]);
    for at in &view.positions {
        table.row([
            at.streamlet.to_string(),
            at.lane.to_string(),
            count(at.ordinal),
        ]);
    }
    table.print("no lanes")?;
    Ok(ExitCode::SUCCESS)
}

async fn delete(args: DeleteArgs) -> Outcome {
    confirm(&args.name, "pin", args.yes)?;
    let admin = args.connect.admin().await?;
    let deleted = admin.delete_pin(&args.stream, &args.name).await;
    let deleted = deleted.map_err(not_changed)?;
    let view = PinView::new(deleted.pin.unwrap_or_default(), deleted.now_ms);
    if args.output.json {
        print_json(&view)?;
        return Ok(ExitCode::SUCCESS);
    }
    print_line(format_args!(
        "deleted: pin {} of stream {}",
        view.name, view.stream
    ))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_ends_the_wait_of_a_pin_that_waits_and_says_nothing_of_one_that_warns() {
        let state = |policy: WirePolicy, created_ms, now_ms| {
            let pin = PinInfo {
                created_ms,
                max_age_ms: 10,
                policy: policy.into(),
                ..PinInfo::default()
            };
            PinView::new(pin, now_ms).state
        };
        assert_eq!(state(WirePolicy::Wait, 5, 15), "kept");
        assert_eq!(state(WirePolicy::Wait, 5, 16), "expired");
        assert_eq!(state(WirePolicy::Warn, 5, 16), "kept");
        assert_eq!(state(WirePolicy::Wait, 16 + CLOCKS_APART_MS, 16), "kept");
        assert_eq!(state(WirePolicy::Wait, 17 + CLOCKS_APART_MS, 16), "ahead");
    }
}
