//! `kera config`, and how `kera serve` reads its configuration.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, Subcommand};
use kera_broker::config::{
    ConfigError, Exposure, GONE, KEYS, Key, Listener, RENAMED, Resolved, Sources, default_data_dir,
    store_reach,
};
use serde::Serialize;

use crate::failure::{Failure, Outcome};
use crate::output::{Out, OutputArgs, paragraph, print_bytes, print_json, say};

/// `kera config ...`
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a configuration file without starting anything.
    Check(CheckArgs),
    /// Print the configuration a broker would run with, and where each value comes from.
    Print(PrintArgs),
}

/// Arguments of `kera config check`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera config check kera.toml
  kera config check /etc/kera/kera.toml --env-file /etc/kera/member.env

Every problem is printed with its line, and what is most likely not meant as a warning. Of each listener it says whom \
it lets in, and to what; one that lets in everybody who can connect is a problem, unless `insecure` names it. So is, \
with users, rules or TLS, an etcd on another machine without TLS or without a proof of who the broker is. A file that all brokers of a \
cluster have in common lacks what each has to itself: it is checked as if cluster.broker_id were given, and that is \
said. Exit status: 0 if the file is good, 2 if not.")]
pub(crate) struct CheckArgs {
    /// The file to check.
    file: PathBuf,
    /// Check it with the variables of this file as well, as systemd's EnvironmentFile= gives them
    #[arg(long, value_name = "FILE")]
    env_file: Vec<PathBuf>,
}

/// Arguments of `kera config print`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kera config print > kera.toml
  kera config print --config kera.toml --memory-pool 4GiB
  KERA_SERVER_LISTEN=0.0.0.0:7600 kera config print --json")]
pub(crate) struct PrintArgs {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// The configuration of a broker as given on the command line: a file, and a flag for each key.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigArgs {
    file: Option<PathBuf>,
    flags: Vec<(String, String)>,
}

const HEADING: &str = "Configuration (each flag sets one key; see `kera config print`)";

/// The flags' names; clap wants them to live as long as the program.
static FLAGS: LazyLock<Vec<String>> = LazyLock::new(|| KEYS.iter().map(Key::flag).collect());

static GONE_FLAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let flag = |(name, _): &(&str, &str)| name.replace(['.', '_'], "-");
    GONE.iter().map(flag).collect()
});

static FORMER_FLAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let flag = |(name, _): &(&str, &str)| name.replace(['.', '_'], "-");
    RENAMED.iter().map(flag).collect()
});

impl Args for ConfigArgs {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .short('c')
            .value_name("FILE")
            .env("KERA_CONFIG")
            .hide_env_values(true)
            .value_parser(clap::value_parser!(PathBuf))
            .help("Read this TOML file");
        let mut command = command.arg(file);
        for (key, flag) in KEYS.iter().zip(FLAGS.iter()) {
            let doc = key.paragraph();
            let first = doc.split_inclusive(". ").next().unwrap_or(&doc);
            let mut help = first.trim_end().trim_end_matches('.').to_owned();
            if key.name != "data_dir" {
                help.push_str(&format!(" [default: {}]", key.default));
            }
            let mut arg = Arg::new(key.name)
                .long(flag.as_str())
                .value_name(placeholder(key))
                .action(if is_list(key) {
                    ArgAction::Append
                } else {
                    ArgAction::Set
                })
                .help(help)
                .long_help(format!(
                    "{doc}\n\n{}{} [default: {}] [env: {}]",
                    key.form,
                    match key.limits_text().as_str() {
                        "" => String::new(),
                        limits => format!(", {limits}"),
                    },
                    if key.name == "data_dir" {
                        "see above"
                    } else {
                        key.default
                    },
                    key.env(),
                ))
                .help_heading(HEADING);
            if let Some(short) = key.short_flag() {
                arg = arg.visible_alias(short);
            }
            if key.form.starts_with("`true`") {
                arg = arg.num_args(0..=1).default_missing_value("true");
            }
            command = command.arg(arg);
        }
        // Named, so that whoever used them is told what to do instead.
        for ((name, _), flag) in GONE.iter().zip(GONE_FLAGS.iter()) {
            let arg = Arg::new(*name).long(flag.as_str()).hide(true);
            let short = name.rsplit('.').next().unwrap_or(name);
            command = command.arg(arg.alias(short).action(ArgAction::Append));
        }
        // Accepted with a warning until the next version.
        for ((name, _), flag) in RENAMED.iter().zip(FORMER_FLAGS.iter()) {
            command = command.arg(Arg::new(*name).long(flag.as_str()).hide(true));
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// A list may also be given one by one: `--kafka-listen A --kafka-listen B` is `--kafka-listen A,B`.
fn is_list(key: &Key) -> bool {
    key.form.contains("several with commas")
}

fn placeholder(key: &Key) -> &'static str {
    match key.form.split([',', ';', ' ']).next() {
        Some("size") => "SIZE",
        Some("duration") => "DURATION",
        Some("number") => "N",
        Some("directory") => "DIR",
        Some("`host:port`") => "HOST:PORT",
        Some("`true`") if is_list(key) => "NAMES",
        Some("`true`") => "BOOL",
        Some("name") => "NAME",
        _ => "VALUE",
    }
}

impl FromArgMatches for ConfigArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.file = matches.get_one::<PathBuf>("config").cloned();
        let names = KEYS.iter().map(|key| key.name);
        let names = names.chain(GONE.iter().map(|(name, _)| *name));
        let names = names.chain(RENAMED.iter().map(|(name, _)| *name));
        self.flags = names
            .filter_map(|name| {
                let given: Vec<&str> = matches
                    .get_many::<String>(name)?
                    .map(String::as_str)
                    .collect();
                Some((name.to_owned(), given.join(",")))
            })
            .collect();
        Ok(())
    }
}

impl ConfigArgs {
    /// Considers file, environment and flags; a wrong configuration is a usage failure.
    pub(crate) fn resolve(&self) -> Result<Resolved, Failure> {
        let sources = Sources {
            file: self.file.clone(),
            flags: self.flags.clone(),
            ..Sources::from_environment()
        };
        sources.resolve().map_err(usage)
    }

    /// As [`resolve`](Self::resolve), of a process that opens these listeners; it is a usage failure as well if
    /// anyone on the network could use one of them, or its etcd undoes what it protects, and `insecure` does not name it.
    pub(crate) fn resolve_to_open(&self, opened: &[Listener]) -> Result<Resolved, Failure> {
        let resolved = self.resolve()?;
        resolved.refuse_open(opened).map_err(usage)?;
        Ok(resolved)
    }
}

fn usage(error: ConfigError) -> Failure {
    Failure::Usage(error.to_string())
}

/// Runs `kera config`.
pub(crate) fn run(command: &ConfigCommand) -> Outcome {
    match command {
        ConfigCommand::Check(args) => check(args),
        ConfigCommand::Print(args) => print(args),
    }
}

fn check(args: &CheckArgs) -> Outcome {
    // Only the file: what happens to be in the environment says nothing about it.
    let mut environment = Vec::new();
    for file in &args.env_file {
        environment.extend(variables(file)?);
    }
    let mut sources = Sources {
        file: Some(args.file.clone()),
        environment,
        ..Sources::default()
    };
    let resolved = match sources.resolve() {
        Ok(resolved) => resolved,
        Err(error) => {
            // What is common to all brokers has no number of one of them.
            let number = ("cluster.broker_id".to_owned(), "1".to_owned());
            sources.flags.push(number);
            let resolved = sources.resolve().map_err(|_| usage(error))?;
            say(
                "note: cluster.broker_id is not in it, as each broker has its own: give it as KERA_CLUSTER_BROKER_ID, as --broker-id, or here with --env-file",
            );
            resolved
        }
    };
    for warning in &resolved.warnings {
        say(&format!("warning: {warning}"));
    }
    resolved.refuse_open(&Listener::ALL).map_err(usage)?;
    let mut out = Out::stdout();
    out.line(format_args!("{}: good", args.file.display()))?;
    for exposure in Exposure::all(&resolved.config) {
        out.line(paragraph(&exposure.to_string()))?;
    }
    if let Some(reach) = store_reach(&resolved.config) {
        out.line(paragraph(&reach))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The variables that a file gives to a service, a line each: NAME=VALUE, with quotes or without.
fn variables(path: &Path) -> Result<Vec<(String, String)>, Failure> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Usage(format!("{shown}: cannot be read: {error}")))?;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        let Some((name, value)) = line.split_once('=') else {
            return Err(Failure::Usage(format!(
                "{shown}:{number}: \"{line}\" sets nothing; write NAME=VALUE"
            )));
        };
        let quoted = ['"', '\'']
            .into_iter()
            .find_map(|quote| value.trim().strip_prefix(quote)?.strip_suffix(quote));
        let value = quoted.unwrap_or(value.trim());
        found.push((name.trim().to_owned(), value.to_owned()));
    }
    Ok(found)
}

#[derive(Serialize)]
struct Entry {
    key: &'static str,
    value: String,
    from: String,
    default: String,
    env: String,
    flag: String,
    about: String,
}

fn print(args: &PrintArgs) -> Outcome {
    let resolved = args.config.resolve()?;
    for warning in &resolved.warnings {
        say(&format!("warning: {warning}"));
    }
    if args.output.json {
        let entries: Vec<Entry> = KEYS
            .iter()
            .map(|key| Entry {
                key: key.name,
                value: resolved.value(key),
                from: resolved.origin(key).to_string(),
                default: match key.name {
                    "data_dir" => default_data_dir().display().to_string(),
                    _ => key.default.to_owned(),
                },
                env: key.env(),
                flag: format!("--{}", key.flag()),
                about: key.paragraph(),
            })
            .collect();
        print_json(&entries)?;
    } else {
        print_bytes(resolved.to_toml().as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(arguments: &[&str]) -> Result<Vec<(String, String)>, clap::Error> {
        let command = ConfigArgs::augment_args(Command::new("serve"));
        let matches = command.try_get_matches_from(arguments)?;
        Ok(ConfigArgs::from_arg_matches(&matches)?.flags)
    }

    #[test]
    fn lists_may_be_given_one_by_one_and_other_keys_only_once() {
        let (first, second) = ("127.0.0.1:1", "127.0.0.1:2,127.0.0.1:3");
        let given = flags(&["serve", "--kafka-listen", first, "--kafka-listen", second]).unwrap();
        let expected = ("kafka.listen".to_owned(), format!("{first},{second}"));
        assert_eq!(given, [expected]);
        for gone in ["--peers", "--cluster-peers"] {
            // What it is told is the configuration's to say.
            let given = flags(&["serve", gone, "2@a:1"]).unwrap();
            assert_eq!(given, [("cluster.peers".to_owned(), "2@a:1".to_owned())]);
        }
        let twice = flags(&["serve", "--listen", "a:1", "--listen", "a:2"]);
        assert_eq!(
            twice.unwrap(),
            [("server.listen".to_owned(), "a:1,a:2".to_owned())]
        );
        let twice = flags(&["serve", "--rack", "a", "--rack", "b"]);
        assert!(twice.is_err());
    }
}
