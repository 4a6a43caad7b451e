//! The README's walk with three brokers, as somebody new would take it: its commands by a shell, one of
//! the brokers killed. Only the ports are others, and the commands wait where a person looks.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::command::finish_within;
use crate::common::ports::Reserved;
use crate::common::{PATIENCE, home, machine};
use crate::read;
use crate::tools::find;

const SECTION: &str = "\n## Three brokers, one of them killed\n";
/// Of etcd and of brokers, as the README has them.
const PORTS: [&str; 11] = [
    "7501", "7502", "7610", "7611", "7612", "7620", "7621", "7622", "7630", "7631", "7632",
];

/// The blocks of commands of the section.
fn blocks() -> Vec<String> {
    let readme = read("README.md");
    let (_, section) = readme.split_once(SECTION).expect("the README has a walk");
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

#[test]
fn the_walk_of_the_readme_ends_as_it_says() {
    const NAME: &str = "the_walk_of_the_readme_ends_as_it_says";
    if find("etcd").is_none() || find("bash").is_none() {
        machine::skip(NAME, "needs bash and etcd (Debian: etcd-server)");
        return;
    }
    let blocks = blocks();
    let [start, walk] = blocks.as_slice() else {
        panic!("the walk has {} blocks", blocks.len());
    };
    let ports: Vec<Reserved> = PORTS.iter().map(|_| Reserved::new()).collect();
    let home = home();
    let script = format!(
        "set -e
trap 'kill -9 $(jobs -p) 2>/dev/null; wait' EXIT
export KERA_BACKUP_MEMORY_BYTES=64MiB
{start}
until [ \"$(kera cluster status --json 2>/dev/null | grep -c '\"address\"')\" = 3 ]; do sleep 0.1; done
{walk}"
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
    assert!(log.contains("1,000,000 records acknowledged"), "{log}");
    assert_eq!(said.trim().lines().last(), Some("1000000"), "{said}\n{log}");
}
