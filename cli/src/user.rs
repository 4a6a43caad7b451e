//! `kera user`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use kera_protocol::v1;
use kera_rpc::scram::Mechanism;
use serde::Serialize;

use crate::acl::naming;
use crate::connect::{ConnectArgs, not_made, password_from_input, password_in, refused};
use crate::failure::{Failure, Outcome};
use crate::output::{Out, OutputArgs, Table, next, plural, print_json, print_line, say};
use crate::stream::confirm;

/// `kera user ...`
#[derive(Debug, Subcommand)]
pub(crate) enum UserCommand {
    /// Make a user, or give one another password.
    Create(CreateArgs),
    /// List the users.
    List(ListArgs),
    /// Delete a user. Connections that are open stay.
    Delete(DeleteArgs),
}

/// Arguments of `kera user create`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera user create ann --password-file ann.txt
  head -c 24 /dev/urandom | base64 | tee ann.txt | kera user create ann

The password is the first line of the file, or of standard input. It is not sent: the broker gets what SCRAM \
makes of it, for both SCRAM-SHA-256 and SCRAM-SHA-512, and keeps less. Brokers ask for it where auth.listeners \
says so.")]
pub(crate) struct CreateArgs {
    /// The user's name, without `User:`
    #[arg(value_name = "NAME", value_parser = new_name)]
    user: String,
    /// The file with the password; otherwise it is read from standard input
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Rounds of the password's derivation: the more, the longer it takes to guess
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(4096..=16384))]
    iterations: u32,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera user list`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera user list
  kera user list --json")]
pub(crate) struct ListArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `kera user delete`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  kera user delete ann --yes")]
pub(crate) struct DeleteArgs {
    /// The user's name
    #[arg(value_name = "NAME")]
    user: String,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `kera user`.
pub(crate) async fn run(command: UserCommand) -> Outcome {
    match command {
        UserCommand::Create(args) => create(args).await,
        UserCommand::List(args) => list(args).await,
        UserCommand::Delete(args) => delete(args).await,
    }
}

/// The first line of a file, or of standard input.
fn password(file: Option<&Path>) -> Result<String, Failure> {
    if let Some(file) = file {
        return password_in(file);
    }
    if std::io::stdin().is_terminal() {
        // It would be shown, and stay in the terminal's memory.
        let text = "a password is not typed here, where it would be shown; name a file with --password-file, or send it to standard input";
        return Err(Failure::Usage(text.to_owned()));
    }
    password_from_input()
}

/// What is sent of a password for one mechanism.
fn made(mechanism: Mechanism, password: &str, iterations: u32) -> Result<v1::NewPassword, Failure> {
    let made = mechanism.salted_anew(password, iterations);
    let (salt, salted) = made.map_err(|error| Failure::message(error.to_string()))?;
    Ok(v1::NewPassword {
        mechanism: mechanism.number().into(),
        iterations,
        salt: salt.into(),
        salted: salted.into(),
    })
}

/// A user `User:ann` would be `User:User:ann` to rules, roles and quotas.
fn new_name(text: &str) -> Result<String, String> {
    match text.strip_prefix("User:") {
        Some(name) => Err(format!("say the name alone: `{name}`")),
        None => Ok(text.to_owned()),
    }
}

async fn create(args: CreateArgs) -> Outcome {
    let password = password(args.password_file.as_deref())?;
    let passwords = Mechanism::ALL.map(|one| made(one, &password, args.iterations));
    let passwords = passwords.into_iter().collect::<Result<_, _>>()?;
    let mut control = args.connect.control().await?;
    let request = v1::PutUserRequest {
        name: args.user.clone(),
        passwords,
    };
    let put = control.users.put_user(request).await;
    put.map_err(|s| not_made(&s, "kera user list"))?;
    let name = &args.user;
    if args.output.json {
        let credentials = Mechanism::ALL.map(|mechanism| CredentialView {
            mechanism: mechanism.to_string(),
            iterations: args.iterations,
        });
        print_json(&Created {
            created: UserView {
                name: name.clone(),
                credentials: credentials.into(),
            },
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = Out::stdout();
    out.line(format_args!("created: user {name}"))?;
    next(
        &mut out,
        &[
            (
                format!("kera acl add --allow User:{name} --consumer --stream NAME --group NAME"),
                "let the user read a stream, where rules are enforced",
            ),
            (
                format!("kera stream list --user {name} --user-password-file FILE"),
                "try the password",
            ),
        ],
    )?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// What `kera user create` has done.
#[derive(Serialize)]
struct Created {
    created: UserView,
}

/// What `kera user delete` has done.
#[derive(Serialize)]
struct Deleted<'a> {
    deleted: &'a str,
    /// How many rules still name the user; `None` for who may not see them.
    rules: Option<usize>,
    /// The roles that it is still a member of, likewise.
    roles: Option<Vec<String>>,
}

#[derive(Serialize)]
struct UserView {
    name: String,
    credentials: Vec<CredentialView>,
}

#[derive(Serialize)]
struct CredentialView {
    mechanism: String,
    iterations: u32,
}

impl UserView {
    fn new(user: v1::UserInfo) -> Self {
        let credentials = user.credentials.into_iter().map(|one| CredentialView {
            mechanism: Mechanism::of_number(one.mechanism)
                .map_or_else(|| one.mechanism.to_string(), |known| known.to_string()),
            iterations: one.iterations,
        });
        Self {
            name: user.name,
            credentials: credentials.collect(),
        }
    }
}

async fn list(args: ListArgs) -> Outcome {
    let mut control = args.connect.control().await?;
    let listed = control.users.list_users(v1::ListUsersRequest {}).await;
    let listed = listed.map_err(|s| refused(&s))?.into_inner();
    if !listed.required {
        say(&format!(
            "note: the broker at {} asks nobody for a password: auth.listeners is off there",
            control.address
        ));
    }
    let views: Vec<_> = listed.users.into_iter().map(UserView::new).collect();
    if args.output.json {
        print_json(&views)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["user", "mechanisms", ">iterations"]);
    for view in &views {
        let names: Vec<_> = view
            .credentials
            .iter()
            .map(|one| one.mechanism.as_str())
            .collect();
        let rounds = view.credentials.first().map_or(0, |one| one.iterations);
        table.row([view.name.clone(), names.join(", "), rounds.to_string()]);
    }
    table.print("no users; `kera user create NAME` makes one")?;
    Ok(ExitCode::SUCCESS)
}

async fn delete(args: DeleteArgs) -> Outcome {
    confirm(&args.user, "user", args.yes)?;
    let mut control = args.connect.control().await?;
    let request = v1::DeleteUserRequest {
        name: args.user.clone(),
    };
    let deleted = control.users.delete_user(request).await;
    deleted.map_err(|s| not_made(&s, "kera user list"))?;
    let user = &args.user;
    let named = naming(&mut control, user).await;
    if let Some((rules, roles)) = &named
        && (*rules > 0 || !roles.is_empty())
    {
        tell_named(user, *rules, roles);
    }
    let (rules, roles) = named.unzip();
    match args.output.json {
        true => print_json(&Deleted {
            deleted: user,
            rules,
            roles,
        })?,
        false => print_line(format_args!("deleted: user {user}"))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Rules are about a name, whoever has it: whoever gets it later has them.
fn tell_named(user: &str, rules: usize, roles: &[String]) {
    let rules = (rules > 0).then(|| {
        let count = plural(rules as u64, "rule");
        format!("{count} (`kera acl remove --principal User:{user}` removes them)")
    });
    let roles = roles.iter().map(|role| {
        let name = role.strip_prefix("Role:").unwrap_or(role);
        format!("{role} (`kera role remove {name} User:{user}`)")
    });
    let named: Vec<String> = rules.into_iter().chain(roles).collect();
    say(&format!(
        "note: User:{user} is still named by {}; whoever comes by that name has what they allow",
        named.join(", ")
    ));
}
