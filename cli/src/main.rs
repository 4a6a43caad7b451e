//! `kera`: the broker, its clients and its tools in one binary.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod acl;
mod bench;
mod broker;
mod calibrate;
mod certificate;
mod cluster;
mod completions;
mod config;
mod connect;
mod consume;
mod demo;
mod failure;
mod group;
mod interrupts;
mod man;
mod members;
mod notify;
mod output;
mod parse;
mod pin;
mod produce;
mod quota;
mod replica_store;
mod role;
mod segment;
mod serve;
mod stream;
mod top;
mod transaction;
mod user;
mod version;
mod waits;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::Outcome;

/// Kera: a stream-ingestion broker, its clients and its tools in one binary.
#[derive(Debug, Parser)]
#[command(
    name = "kera",
    version = version::version(),
    max_term_width = 110,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Examples:
  kera demo                                   watch a broker at work, killed on the way
  kera serve                                  start a broker on 127.0.0.1:7600
  kera stream create clicks --streamlets 2    make a stream
  echo 'hello' | kera produce clicks          send a record
  kera consume clicks                         read it back

Exit status: 0 on success, 1 when the command failed, 2 when it was not understood."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a broker.
    Serve(serve::ServeArgs),
    /// Keep replicas for brokers, and nothing else.
    #[command(alias = "backup")]
    ReplicaStore(replica_store::ReplicaStoreArgs),
    /// Create, list, describe, change and delete streams.
    #[command(subcommand)]
    Stream(stream::StreamCommand),
    /// Send records from a file or standard input to a stream.
    Produce(produce::ProduceArgs),
    /// Read records of a stream.
    Consume(consume::ConsumeArgs),
    /// List, describe, reset and delete consumer groups.
    #[command(subcommand)]
    Group(group::GroupCommand),
    /// Pin positions of a stream, so that retention spares what a job still needs.
    #[command(subcommand)]
    Pin(pin::PinCommand),
    /// List, describe and abort transactions of producers.
    #[command(subcommand)]
    Transaction(transaction::TransactionCommand),
    /// Say who may do what, where brokers enforce it.
    #[command(subcommand)]
    Acl(acl::AclCommand),
    /// Name users together, so that rules can be about all of them.
    #[command(subcommand)]
    Role(role::RoleCommand),
    /// Make, list and delete users with passwords.
    #[command(subcommand)]
    User(user::UserCommand),
    /// Limit how much clients may do.
    #[command(subcommand)]
    Quota(quota::QuotaCommand),
    /// Look into a group file's segments, also without a broker.
    #[command(subcommand)]
    Segment(segment::SegmentCommand),
    /// Measure throughput and latency.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Measure what a broker can do, for latency objectives.
    Calibrate(calibrate::CalibrateArgs),
    /// Ask a broker about itself, or have it leave.
    #[command(subcommand)]
    Broker(broker::BrokerCommand),
    /// Prepare, show and balance brokers that share a metadata store.
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Show streams, groups and brokers as they change.
    Top(top::TopArgs),
    /// Check and print configurations.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Make certificates for trying TLS out.
    #[command(subcommand)]
    Certificate(certificate::CertificateCommand),
    /// Watch a broker at work: real records, many consumers, a crash on the way, every record checked.
    Demo(demo::DemoArgs),
    /// Print completions for a shell.
    Completions(completions::CompletionsArgs),
    /// Print manual pages.
    Man(man::ManArgs),
}

impl Command {
    fn run(self) -> Outcome {
        match self {
            Command::Serve(args) => serve::run(&args),
            Command::ReplicaStore(args) => replica_store::run(&args),
            Command::Stream(command) => client(stream::run(command)),
            Command::Produce(args) => client(produce::run(args)),
            Command::Consume(args) => client(consume::run(args)),
            Command::Group(command) => client(group::run(command)),
            Command::Pin(command) => client(pin::run(command)),
            Command::Transaction(command) => client(transaction::run(command)),
            Command::Acl(command) => client(acl::run(command)),
            Command::Role(command) => client(role::run(command)),
            Command::User(command) => client(user::run(command)),
            Command::Quota(command) => client(quota::run(command)),
            Command::Segment(command) => segment::run(command),
            Command::Bench(command) => runtime(bench::run(command)),
            Command::Calibrate(args) => runtime(calibrate::run(args)),
            Command::Broker(command) => client(broker::run(command)),
            Command::Cluster(command) => client(cluster::run(command)),
            Command::Top(args) => runtime(top::run(args)),
            Command::Config(command) => config::run(&command),
            Command::Certificate(command) => certificate::run(command),
            Command::Demo(args) => runtime(demo::run(args)),
            Command::Completions(args) => completions::run::<Cli>(&args),
            Command::Man(args) => man::run::<Cli>(&args),
        }
    }
}

/// Runs a command that says what it waits for.
fn client(command: impl Future<Output = Outcome>) -> Outcome {
    waits::say();
    runtime(command)
}

/// Runs a client command on a runtime of its own.
fn runtime(command: impl Future<Output = Outcome>) -> Outcome {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(command)
}

fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_help_with_examples() {
        fn walk(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(
                command.get_about().is_some(),
                "{path} says nothing about itself"
            );
            if command.get_subcommands().next().is_none() {
                let help = command
                    .get_after_help()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                assert!(help.contains("Example"), "{path} shows no example");
                // Lines of a paragraph are broken by the width of the terminal alone, or they come out ragged.
                let is_prose = |line: &&str| !line.is_empty() && !line.starts_with(' ');
                let lines: Vec<&str> = help.lines().collect();
                for pair in lines.windows(2) {
                    let is_broken = is_prose(&pair[0]) && is_prose(&pair[1]);
                    assert!(!is_broken, "{path} breaks a paragraph at `{}`", pair[1]);
                }
            }
            for inner in command
                .get_subcommands()
                .filter(|inner| inner.get_name() != "help")
            {
                walk(inner, &path);
            }
        }
        walk(&Cli::command(), "");
    }

    #[test]
    fn a_user_is_made_by_the_name_alone() {
        let parsed = |name| Cli::try_parse_from(["kera", "user", "create", name]);
        assert!(parsed("ann").is_ok());
        let error = parsed("User:ann").unwrap_err().to_string();
        assert!(error.contains("say the name alone: `ann`"), "{error}");
    }

    #[test]
    fn examples_in_help_parse() {
        fn examples(command: &clap::Command, found: &mut Vec<String>) {
            if let Some(help) = command.get_after_help() {
                found.extend(
                    help.to_string()
                        .lines()
                        .filter_map(|line| line.strip_prefix("  "))
                        .map(|line| line.split("  ").next().unwrap_or(line).trim().to_owned()),
                );
            }
            for inner in command.get_subcommands() {
                examples(inner, found);
            }
        }
        let mut found = Vec::new();
        examples(&Cli::command(), &mut found);
        let mut checked = 0;
        for example in found {
            // Only the part that runs kera itself: what stands before a pipe or after one is not ours.
            for part in example.split('|') {
                let words: Vec<&str> = part
                    .split_whitespace()
                    .take_while(|word| !word.starts_with(['>', '<']))
                    .collect();
                let words: Vec<&str> = words
                    .into_iter()
                    .skip_while(|word| word.contains('=') && !word.starts_with("kera"))
                    .collect();
                if words.first() != Some(&"kera") {
                    continue;
                }
                let words = words.iter().map(|word| word.trim_matches('\''));
                if let Err(error) = Cli::try_parse_from(words) {
                    panic!("the example `{example}` is not understood: {error}");
                }
                checked += 1;
            }
        }
        assert!(checked > 20, "only {checked} examples were found");
    }
}
