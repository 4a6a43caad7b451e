//! `kera acl`.

use std::process::ExitCode;

use clap::{ArgGroup, Args, Subcommand};
use kera_metadata::access::{ANY, CLUSTER_NAME, Kind, Operation, Pattern, Permission};
use kera_protocol::v1;
use serde::Serialize;

use crate::connect::{ConnectArgs, Control, not_made, refused};
use crate::failure::{Failure, Outcome};
use crate::output::{Out, OutputArgs, Table, plural, print_json, say};
use crate::stream::confirm;

/// What a producer needs of its stream, and a consumer of its stream and group; as Kafka's tools have it.
const OF_PRODUCER: [Operation; 3] = [Operation::Write, Operation::Describe, Operation::Create];
const OF_CONSUMER: [Operation; 2] = [Operation::Read, Operation::Describe];

/// `kera acl ...`
#[derive(Debug, Subcommand)]
pub(crate) enum AclCommand {
    /// Allow or deny users something.
    Add(AddArgs),
    /// List the rules.
    List(ListArgs),
    /// Remove rules.
    Remove(RemoveArgs),
}

/// What rules are about.
#[derive(Debug, Args)]
struct ThingArgs {
    /// A stream, which Kafka's clients call a topic; `*` for all
    #[arg(long, value_name = "NAME")]
    stream: Vec<String>,
    /// All streams whose names begin so
    #[arg(long, value_name = "PREFIX")]
    stream_prefix: Vec<String>,
    /// A consumer group; `*` for all
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// All consumer groups whose names begin so
    #[arg(long, value_name = "PREFIX")]
    group_prefix: Vec<String>,
    /// A transactional id; `*` for all
    #[arg(long, value_name = "ID")]
    transactional_id: Vec<String>,
    /// All transactional ids that begin so
    #[arg(long, value_name = "PREFIX")]
    transactional_id_prefix: Vec<String>,
    /// The cluster
    #[arg(long)]
    cluster: bool,
}

impl ThingArgs {
    fn things(&self) -> Vec<(Kind, Pattern, String)> {
        let cluster = self.cluster.then(|| CLUSTER_NAME.to_owned());
        let cluster: Vec<String> = cluster.into_iter().collect();
        let all = [
            (Kind::Stream, Pattern::Literal, &self.stream),
            (Kind::Stream, Pattern::Prefixed, &self.stream_prefix),
            (Kind::Group, Pattern::Literal, &self.group),
            (Kind::Group, Pattern::Prefixed, &self.group_prefix),
            (
                Kind::TransactionalId,
                Pattern::Literal,
                &self.transactional_id,
            ),
            (
                Kind::TransactionalId,
                Pattern::Prefixed,
                &self.transactional_id_prefix,
            ),
            (Kind::Cluster, Pattern::Literal, &cluster),
        ];
        let all = all.into_iter().flat_map(|(kind, pattern, names)| {
            let names = names.iter();
            names.map(move |name| (kind, pattern, name.clone()))
        });
        all.collect()
    }
}

/// Arguments of `kera acl add`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("who").required(true).multiple(true).args(["allow", "deny"]),
    group = ArgGroup::new("what").required(true).multiple(false).args(["operation", "producer", "consumer"]),
    after_help = "Examples:
  kera acl add --allow User:shop --producer --stream orders
  kera acl add --allow User:billing --consumer --stream orders --group billing
  kera acl add --allow User:ops --operation describe,alter --cluster
  kera acl add --allow User:engine --operation write,two-phase-commit --transactional-id-prefix job-7/
  kera acl add --allow Role:analysts --consumer --stream-prefix sales. --group-prefix sales.
  kera acl add --deny User:guest --operation write --stream-prefix pay.

A rule that denies comes before all that allow; what no rule allows is denied. A role has to be there (`kera role create`) \
before rules are about it. Rules decide where \
`acl.enabled` is set, and are kept elsewhere as well."
)]
pub(crate) struct AddArgs {
    /// Whom to allow it, such as User:ann; `User:*` for everybody, Role:NAME for the members of a role
    #[arg(long, value_name = "PRINCIPAL")]
    allow: Vec<String>,
    /// Whom to deny it
    #[arg(long, value_name = "PRINCIPAL")]
    deny: Vec<String>,
    /// What: read, write, create, delete, alter, describe, describe-configs, alter-configs,
    /// cluster-action, idempotent-write, two-phase-commit, all
    #[arg(long, value_name = "OPERATION", value_delimiter = ',', value_parser = operation)]
    operation: Vec<Operation>,
    /// All that a producer needs of a stream: write, describe, create
    #[arg(long)]
    producer: bool,
    /// All that a consumer needs: read and describe streams, read groups
    #[arg(long)]
    consumer: bool,
    #[command(flatten)]
    things: ThingArgs,
    /// Only from this IP address
    #[arg(long, value_name = "IP", default_value = ANY)]
    host: Vec<String>,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl AddArgs {
    fn rules(&self) -> Result<Vec<v1::AccessRule>, Failure> {
        let things = self.things.things();
        if things.is_empty() {
            let text = "say what the rule is about: --stream, --stream-prefix, --group, --group-prefix, --transactional-id, --transactional-id-prefix or --cluster";
            return Err(Failure::Usage(text.to_owned()));
        }
        let who = [
            (Permission::Allow, &self.allow),
            (Permission::Deny, &self.deny),
        ];
        let mut rules = Vec::new();
        for (kind, pattern, name) in &things {
            for operation in self.operations(*kind)? {
                for (permission, principals) in &who {
                    for principal in *principals {
                        rules.extend(self.host.iter().map(|host| v1::AccessRule {
                            kind: kind.number().into(),
                            name: name.clone(),
                            pattern: pattern.number().into(),
                            principal: principal.clone(),
                            host: host.clone(),
                            operation: operation.number().into(),
                            permission: permission.number().into(),
                        }));
                    }
                }
            }
        }
        Ok(rules)
    }

    fn operations(&self, kind: Kind) -> Result<Vec<Operation>, Failure> {
        match (self.producer, self.consumer, kind) {
            (false, false, _) => Ok(self.operation.clone()),
            (true, _, Kind::Stream) => Ok(OF_PRODUCER.to_vec()),
            (_, true, Kind::Stream) => Ok(OF_CONSUMER.to_vec()),
            (_, true, Kind::Group) => Ok(vec![Operation::Read]),
            (true, ..) => Err(Failure::Usage(
                "--producer goes with --stream and --stream-prefix".to_owned(),
            )),
            _ => Err(Failure::Usage(
                "--consumer goes with streams and groups".to_owned(),
            )),
        }
    }
}

/// Which rules are meant.
#[derive(Debug, Args)]
struct FilterArgs {
    #[command(flatten)]
    things: ThingArgs,
    /// Only rules for this principal
    #[arg(long, value_name = "PRINCIPAL")]
    principal: Option<String>,
    /// Only rules about this operation
    #[arg(long, value_name = "OPERATION", value_parser = operation)]
    operation: Option<Operation>,
}

impl FilterArgs {
    /// One for each thing, or one for all. `matching`: every rule about things of these names.
    fn filters(&self, matching: bool) -> Vec<v1::RuleFilter> {
        let all = v1::RuleFilter {
            principal: self.principal.clone(),
            operation: self.operation.map_or(0, |one| one.number().into()),
            ..v1::RuleFilter::default()
        };
        let things = self.things.things();
        if things.is_empty() {
            return vec![all];
        }
        let of = |(kind, pattern, name): (Kind, Pattern, String)| v1::RuleFilter {
            kind: kind.number().into(),
            name: Some(name),
            pattern: match (matching, pattern) {
                (true, Pattern::Literal) => 2,
                _ => pattern.number().into(),
            },
            ..all.clone()
        };
        things.into_iter().map(of).collect()
    }
}

/// Arguments of `kera acl list`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera acl list
  kera acl list --stream orders           every rule about the stream, those with a prefix or `*` too
  kera acl list --principal User:ann --json")]
pub(crate) struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera acl remove`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera acl remove --principal User:ann --stream orders --yes
  kera acl remove --principal User:ann --operation write --yes

Removes the rules with exactly these names, and tells which they were. Without any of the options above all rules go.")]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

fn operation(text: &str) -> Result<Operation, String> {
    Operation::of_text(text).ok_or_else(|| {
        let all: Vec<_> = Operation::ALL.iter().map(|one| one.text()).collect();
        format!("there is no such operation; there are {}", all.join(", "))
    })
}

/// Runs `kera acl`.
pub(crate) async fn run(command: AclCommand) -> Outcome {
    match command {
        AclCommand::Add(args) => add(args).await,
        AclCommand::List(args) => list(args).await,
        AclCommand::Remove(args) => remove(args).await,
    }
}

#[derive(Serialize)]
pub(crate) struct RuleView {
    permission: String,
    principal: String,
    operation: String,
    kind: String,
    name: String,
    pattern: String,
    host: String,
}

impl RuleView {
    /// What this build does not know is shown as its number.
    pub(crate) fn new(rule: v1::AccessRule) -> Self {
        fn word<T: std::fmt::Display>(number: u32, of: impl Fn(u32) -> Option<T>) -> String {
            of(number).map_or_else(|| number.to_string(), |known| known.to_string())
        }
        Self {
            permission: word(rule.permission, Permission::of_number),
            operation: word(rule.operation, Operation::of_number),
            kind: word(rule.kind, Kind::of_number),
            pattern: word(rule.pattern, Pattern::of_number),
            principal: rule.principal,
            name: rule.name,
            host: rule.host,
        }
    }
}

pub(crate) fn table(views: &[RuleView]) -> Table {
    let headings = [
        "permission",
        "principal",
        "operation",
        "of",
        "name",
        "pattern",
        "from",
    ];
    let mut table = Table::new(&headings);
    for view in views {
        table.row([
            view.permission.clone(),
            view.principal.clone(),
            view.operation.clone(),
            view.kind.clone(),
            view.name.clone(),
            view.pattern.clone(),
            view.host.clone(),
        ]);
    }
    table
}

/// What `kera acl add` has done.
#[derive(Serialize)]
struct Added {
    /// How many rules were not there before.
    added: u64,
    already_there: u64,
    /// Whether the broker enforces rules; `None` for who may not see them.
    enforced: Option<bool>,
    rules: Vec<RuleView>,
}

async fn add(args: AddArgs) -> Outcome {
    let rules = args.rules()?;
    let views: Vec<_> = rules.iter().cloned().map(RuleView::new).collect();
    let mut control = args.connect.control().await?;
    let added = control
        .access
        .add_rules(v1::AddRulesRequest { rules })
        .await;
    let added = u64::from(
        added
            .map_err(|s| not_made(&s, "kera acl list"))?
            .into_inner()
            .added,
    );
    let already_there = (views.len() as u64).saturating_sub(added);
    let enforced = are_enforced(&mut control).await;
    // Rules that nobody enforces look like protection.
    if enforced == Some(false) {
        tell_not_enforced(&control.address);
    }
    if args.output.json {
        print_json(&Added {
            added,
            already_there,
            enforced,
            rules: views,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = Out::stdout();
    match already_there {
        0 => out.line(format_args!("added: {}", plural(added, "rule")))?,
        known => out.line(format_args!(
            "added: {}; {known} {} there already",
            plural(added, "rule"),
            if known == 1 { "was" } else { "were" }
        ))?,
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Whether the broker enforces rules. Who may add rules may be denied seeing them, and is told nothing.
async fn are_enforced(control: &mut Control) -> Option<bool> {
    // Nothing of interest but whether they are enforced.
    let filter = Some(v1::RuleFilter {
        principal: Some(String::new()),
        ..v1::RuleFilter::default()
    });
    let listed = control.access.list_rules(v1::ListRulesRequest { filter });
    Some(listed.await.ok()?.into_inner().enforced)
}

/// The user that a principal is; `None` for everybody and for roles.
fn user_in(principal: &str) -> Option<&str> {
    let user = principal.strip_prefix("User:")?;
    (user != ANY).then_some(user)
}

/// The roles that the user is a member of, as principals. Who may not see them is told nothing.
async fn roles_of(control: &mut Control, user: &str) -> Option<Vec<String>> {
    let listed = control.access.list_roles(v1::ListRolesRequest {}).await;
    let roles = listed.ok()?.into_inner().roles.into_iter();
    let of_it = roles.filter(|role| role.members.iter().any(|member| member == user));
    Some(of_it.map(|role| format!("Role:{}", role.name)).collect())
}

/// What still names a user: how many rules, and which roles, as principals. Who may not see them is told nothing.
pub(crate) async fn naming(control: &mut Control, user: &str) -> Option<(usize, Vec<String>)> {
    let filter = Some(v1::RuleFilter {
        principal: Some(format!("User:{user}")),
        ..v1::RuleFilter::default()
    });
    let listed = control.access.list_rules(v1::ListRulesRequest { filter });
    let rules = listed.await.ok()?.into_inner().rules.len();
    Some((rules, roles_of(control, user).await?))
}

fn tell_not_enforced(address: &str) {
    say(&format!(
        "note: the broker at {address} does not enforce rules: acl.enabled is false there"
    ));
}

async fn list(args: ListArgs) -> Outcome {
    let mut control = args.connect.control().await?;
    let mut rules = Vec::new();
    let mut enforced = true;
    for filter in args.filter.filters(true) {
        let request = v1::ListRulesRequest {
            filter: Some(filter),
        };
        let answer = control.access.list_rules(request).await;
        let answer = answer.map_err(|s| refused(&s))?.into_inner();
        enforced &= answer.enforced;
        for rule in answer.rules {
            // Two things may share a rule.
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
    }
    let views: Vec<_> = rules.into_iter().map(RuleView::new).collect();
    if !enforced {
        tell_not_enforced(&control.address);
    }
    if let Some(user) = args.filter.principal.as_deref().and_then(user_in) {
        let roles = roles_of(&mut control, user).await.unwrap_or_default();
        if !roles.is_empty() {
            let first = &roles[0];
            say(&format!(
                "note: rules about {} are about User:{user} as well: `kera acl list --principal {first}`",
                roles.join(", ")
            ));
        }
    }
    if args.output.json {
        print_json(&views)?;
    } else {
        table(&views).print("no rules; `kera acl add` makes some")?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn remove(args: RemoveArgs) -> Outcome {
    let filters = args.filter.filters(false);
    if filters == [v1::RuleFilter::default()] {
        confirm("all", "rules of access, all of them", args.yes)?;
    } else {
        confirm("rules", "rules that fit", args.yes)?;
    }
    let mut control = args.connect.control().await?;
    let request = v1::RemoveRulesRequest { filters };
    let removed = control.access.remove_rules(request).await;
    let removed = removed
        .map_err(|s| not_made(&s, "kera acl list"))?
        .into_inner()
        .rules;
    let views: Vec<_> = removed.into_iter().map(RuleView::new).collect();
    if args.output.json {
        print_json(&views)?;
    } else {
        table(&views).print("no rule fits; nothing was removed")?;
    }
    Ok(ExitCode::SUCCESS)
}
