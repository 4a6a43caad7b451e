//! The README's walks, as somebody new would take them: its commands by a shell, one section after the other in
//! one terminal and each in one of its own. Only the ports are others, and measurements are shorter.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::command::finish_within;
use crate::common::ports::Reserved;
use crate::common::{PATIENCE, home, machine};
use crate::read;
use crate::tools::find;

const FIRST: &str = "Five minutes";
const CLUSTER: &str = "Three brokers, one of them killed";
const KAFKA: &str = "Kafka clients";
const SECURED: &str = "Users and passwords";
const FAST: &str = "How fast";
/// Of the first broker, of etcd, of brokers that share it and of one with a Kafka listener, as the README has
/// them.
const PORTS: [&str; 15] = [
    "7600", "7501", "7502", "7610", "7611", "7612", "7620", "7621", "7622", "7630", "7631", "7632",
    "7700", "7780", "9092",
];

/// The blocks of commands of a section.
fn blocks(section: &str) -> Vec<String> {
    let readme = read("README.md");
    let heading = format!("\n## {section}\n");
    let (_, section) = readme.split_once(&heading).expect("the README has a walk");
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut blocks = Vec::new();
    for block in section.split("```sh\n").skip(1) {
        let (commands, _) = block.split_once("```").expect("a block ends");
        blocks.push(commands.to_owned());
    }
    blocks
}

/// `76${n}0` stands for a port of each broker: written out, as functions of the shell do.
fn with_ports(commands: &str, ports: &[Reserved]) -> String {
    let mut out = String::new();
    let pairs = || PORTS.iter().zip(ports);
    for (name, port) in pairs() {
        let number = port.address().rsplit(':').next().unwrap_or_default();
        let _ = writeln!(out, "p{name}={number}");
    }
    let mut commands = commands.to_owned();
    for last in ["0", "1", "2"] {
        let indirect = format!("$(eval echo \\$p76${{n}}{last})");
        commands = commands.replace(&format!("76${{n}}{last}"), &indirect);
    }
    for (name, _) in pairs() {
        commands = commands.replace(&format!("127.0.0.1:{name}"), &format!("127.0.0.1:$p{name}"));
    }
    out + &commands
}

/// Removes the shared memory of brokers that were killed, which their logs name.
fn remove_copies(folder: &Path) {
    for broker in 1..=3 {
        let log = fs::read_to_string(folder.join(format!("broker-{broker}.log")));
        let log = log.unwrap_or_default();
        let words = log.split_whitespace();
        let named = words.filter_map(|word| word.strip_prefix("store="));
        for path in named.filter(|path| path.starts_with("/dev/shm/kera-")) {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Runs commands by a shell, with other ports, in an empty directory and without a variable of Kera's; what they
/// wrote to standard output and to standard error.
fn walk(script: &str) -> (String, String) {
    let ports: Vec<Reserved> = PORTS.iter().map(|_| Reserved::new()).collect();
    let home = home();
    let script = format!(
        "set -e
trap 'kill -9 $(jobs -p) 2>/dev/null || true; wait' EXIT
export KERA_REPLICA_STORE_MEMORY_BYTES=64MiB
{script}"
    );
    let script = with_ports(&script, &ports);
    let kera = Path::new(env!("CARGO_BIN_EXE_kera"));
    let path = std::env::var("PATH").unwrap_or_default();
    let folder = kera.parent().expect("it is in a folder").display();
    // It ends the brokers too, if it must.
    let longest = PATIENCE * 3;
    let seconds = (longest.as_secs() - 10).to_string();
    let mut shell = Command::new("timeout");
    shell
        .args(["--kill-after=5", &seconds, "bash", "-c", &script])
        .current_dir(home.path())
        .env("PATH", format!("{folder}:{path}"));
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"KERA_") {
            shell.env_remove(name);
        }
    }
    let finished = finish_within(shell, b"", longest);
    remove_copies(home.path());
    let (said, log) = (finished.text(), finished.stderr);
    assert!(finished.status.success(), "{said}\n{log}");
    (said, log)
}

fn has(test: &str, programs: &[&str]) -> bool {
    let lacking = programs.iter().find(|program| find(program).is_none());
    if let Some(program) = lacking {
        machine::skip(test, &format!("needs {program} (see scripts/needs.sh)"));
    }
    lacking.is_none()
}

/// The section on Kafka's clients; it may follow any other in the same terminal.
fn kafka() -> String {
    let blocks = blocks(KAFKA);
    let [block] = blocks.as_slice() else {
        panic!("the section has {} blocks", blocks.len());
    };
    format!("{block}\nkill %%\nwait || true\n")
}

#[test]
fn the_walk_of_the_readme_ends_as_it_says() {
    if !has(
        "the_walk_of_the_readme_ends_as_it_says",
        &["bash", "etcd", "kcat"],
    ) {
        return;
    }
    let blocks = blocks(CLUSTER);
    let [start, walk_on, end] = blocks.as_slice() else {
        panic!("the walk has {} blocks", blocks.len());
    };
    let (said, log) = walk(&format!(
        "{start}
{walk_on}
{end}
echo and then
{}",
        // In the terminal in which all that was done.
        kafka()
    ));
    assert!(log.contains("1,000,000 records acknowledged"), "{log}");
    let (cluster, kafka) = said.split_once("and then\n").expect("both sections");
    assert_eq!(
        cluster.trim().lines().last(),
        Some("1000000"),
        "{said}\n{log}"
    );
    assert!(cluster.contains("NOT HEALTHY"), "{said}");
    assert_eq!(kafka.matches("/pay").count(), 2, "{said}\n{log}");
}

#[test]
fn each_other_section_of_the_readme_stands_on_its_own() {
    let needed = ["bash", "kcat"];
    if !has(
        "each_other_section_of_the_readme_stands_on_its_own",
        &needed,
    ) {
        return;
    }
    let (said, log) = walk(&kafka());
    assert_eq!(said.matches("/pay").count(), 2, "{said}\n{log}");
    let secured = blocks(SECURED).concat();
    let (said, log) = walk(&format!("{secured}\nkill %%\nwait || true\n"));
    for expected in ["created: user ann", "only for ann", "nobody else gets in"] {
        assert!(said.contains(expected), "no {expected} in {said}\n{log}");
    }
    assert!(log.contains("asks who you are"), "{log}");
    let blocks = blocks(FIRST);
    let [start, first, shared, more] = blocks.as_slice() else {
        panic!("the walk has {} blocks", blocks.len());
    };
    // What builds it and finds it is done; the broker has a terminal of its own.
    let serve = start.lines().find(|line| line.starts_with("kera serve"));
    let serve = serve
        .expect("a broker is started")
        .replace("kera serve", "kera serve --listen 127.0.0.1:7600");
    let (follow, look) = shared.split_once('\n').expect("two commands");
    let fast = self::blocks(FAST).concat();
    // A tenth of a second of each, and not the records of ten.
    let fast = fast.replace("10M", "10k").replace("1M", "10k");
    let (said, log) = walk(&format!(
        "{serve} > serve.log 2>&1 &
export KERA_BOOTSTRAP=127.0.0.1:7600
until kera stream list > /dev/null 2>&1; do sleep 0.1; done
{first}
{follow} > followed 2>&1 &
until grep -q /pay followed; do sleep 0.1; done
{look}
{more}
kera segment inspect kera-data/streams/*/*/*.log
kera segment inspect kera-data/streams/*/*/*.log --json > inspected
grep -q '^\\[' inspected
{fast}"
    ));
    for expected in ["/cart", "billing", "clicks", "sound", "latency"] {
        assert!(said.contains(expected), "no {expected} in {said}\n{log}");
    }
}
