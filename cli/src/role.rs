//! `kera role`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use kera_protocol::v1;
use serde::Serialize;

use crate::acl::{RuleView, table as table_of_rules};
use crate::connect::{ConnectArgs, not_made, refused};
use crate::failure::Outcome;
use crate::output::{Out, OutputArgs, Table, plural, print_json};
use crate::stream::confirm;

/// `kera role ...`
#[derive(Debug, Subcommand)]
pub(crate) enum RoleCommand {
    /// Make a role.
    Create(MembersArgs),
    /// Add members to a role.
    Add(MembersArgs),
    /// Take members out of a role.
    Remove(MembersArgs),
    /// List the roles and their members.
    List(ListArgs),
    /// Delete a role.
    Delete(DeleteArgs),
}

/// Arguments of `kera role create`, `add` and `remove`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera role create analysts User:ann User:bob
  kera acl add --allow Role:analysts --consumer --stream-prefix sales. --group-prefix sales.
  kera role add analysts User:cy
  kera role remove analysts User:bob

A rule about Role:NAME is about each of its members, as if it named that user; also one that denies. Members are \
users by their names, whether they come with a password, a certificate or a token. A role has no roles as members.")]
pub(crate) struct MembersArgs {
    /// The role's name, without `Role:`
    #[arg(value_name = "NAME")]
    role: String,
    /// Users, such as User:ann
    #[arg(value_name = "USER")]
    members: Vec<String>,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera role list`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera role list
  kera role list --member User:ann --json")]
pub(crate) struct ListArgs {
    /// Only roles that this user is a member of
    #[arg(long, value_name = "USER")]
    member: Option<String>,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera role delete`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  kera role delete analysts --with-rules --yes")]
pub(crate) struct DeleteArgs {
    /// The role's name
    #[arg(value_name = "NAME")]
    role: String,
    /// Remove the rules that name it, too; without this it is deleted only if there are none
    #[arg(long)]
    with_rules: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `kera role`.
pub(crate) async fn run(command: RoleCommand) -> Outcome {
    match command {
        RoleCommand::Create(args) => alter(args, Act::Create).await,
        RoleCommand::Add(args) => alter(args, Act::Add).await,
        RoleCommand::Remove(args) => alter(args, Act::Remove).await,
        RoleCommand::List(args) => list(args).await,
        RoleCommand::Delete(args) => delete(args).await,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    Create,
    Add,
    Remove,
}

#[derive(Serialize)]
struct RoleView {
    name: String,
    /// With `User:`.
    members: Vec<String>,
    /// How many rules name it.
    rules: u32,
}

impl RoleView {
    fn new(role: v1::AccessRole) -> Self {
        let members = role.members.into_iter();
        Self {
            name: role.name,
            members: members.map(|name| format!("User:{name}")).collect(),
            rules: role.rules,
        }
    }
}

/// What a change of members has done.
#[derive(Serialize)]
struct Changed {
    role: RoleView,
    added: u32,
    removed: u32,
}

async fn alter(args: MembersArgs, act: Act) -> Outcome {
    let mut control = args.connect.control().await?;
    let (add, remove) = match act {
        Act::Create | Act::Add => (args.members, Vec::new()),
        Act::Remove => (Vec::new(), args.members),
    };
    let request = v1::AlterRoleRequest {
        name: args.role,
        only_new: act == Act::Create,
        only_known: act != Act::Create,
        add,
        remove,
    };
    let altered = control.access.alter_role(request).await;
    let altered = altered
        .map_err(|s| not_made(&s, "kera role list"))?
        .into_inner();
    let changed = Changed {
        role: RoleView::new(altered.role.unwrap_or_default()),
        added: altered.added,
        removed: altered.removed,
    };
    if args.output.json {
        print_json(&changed)?;
        return Ok(ExitCode::SUCCESS);
    }
    let name = &changed.role.name;
    let members = plural(changed.role.members.len() as u64, "member");
    let mut out = Out::stdout();
    match act {
        Act::Create => out.line(format_args!("created: role {name}, {members}"))?,
        Act::Add => out.line(format_args!(
            "added {} to role {name}, which has {members}",
            changed.added
        ))?,
        Act::Remove => out.line(format_args!(
            "removed {} from role {name}, which has {members}",
            changed.removed
        ))?,
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

async fn list(args: ListArgs) -> Outcome {
    let mut control = args.connect.control().await?;
    let listed = control.access.list_roles(v1::ListRolesRequest {}).await;
    let roles = listed.map_err(|s| refused(&s))?.into_inner().roles;
    let mut views: Vec<_> = roles.into_iter().map(RoleView::new).collect();
    if let Some(member) = args.member {
        let member = match member.starts_with("User:") {
            true => member,
            false => format!("User:{member}"),
        };
        views.retain(|view| view.members.contains(&member));
    }
    if args.output.json {
        print_json(&views)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["role", "rules", "members"]);
    for view in views {
        table.row([view.name, view.rules.to_string(), view.members.join(" ")]);
    }
    table.print("no roles; `kera role create` makes one")?;
    Ok(ExitCode::SUCCESS)
}

/// What was deleted.
#[derive(Serialize)]
struct Deleted {
    deleted: RoleView,
    rules: Vec<RuleView>,
}

async fn delete(args: DeleteArgs) -> Outcome {
    confirm(&args.role, "role", args.yes)?;
    let mut control = args.connect.control().await?;
    let request = v1::DeleteRoleRequest {
        name: args.role,
        with_rules: args.with_rules,
    };
    let deleted = control.access.delete_role(request).await;
    let deleted = deleted
        .map_err(|s| not_made(&s, "kera role list"))?
        .into_inner();
    let view = Deleted {
        deleted: RoleView::new(deleted.role.unwrap_or_default()),
        rules: deleted.rules.into_iter().map(RuleView::new).collect(),
    };
    if args.output.json {
        print_json(&view)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = Out::stdout();
    out.line(format_args!("deleted: role {}", view.deleted.name))?;
    out.flush()?;
    if !view.rules.is_empty() {
        table_of_rules(&view.rules).print("")?;
    }
    Ok(ExitCode::SUCCESS)
}
