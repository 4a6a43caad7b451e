//! A cluster on three machines, by the commands of docs/operations.md, one after the other.

use std::time::Instant;

use serde_json::Value;

use crate::common::{Finished, PATIENCE, finish, http, kera, machine};
use crate::machines::{Addresses, Machine};
use crate::read;
use crate::tools::find;

const SECTION: &str = "\n### Setting them up\n";
const STREAM: [&str; 5] = ["stream", "create", "clicks", "--replicas", "3"];

/// The commands of the section that are for systemd, block by block.
fn blocks() -> Vec<Vec<String>> {
    let document = read("docs/operations.md");
    let (_, section) = document.split_once(SECTION).expect("there is a section");
    let section = section.split("\n### ").next().unwrap_or_default();
    let blocks = section.split("```sh\n").skip(1).map(|block| {
        let (commands, _) = block.split_once("```").expect("a block ends");
        commands.lines().map(str::to_owned).collect::<Vec<_>>()
    });
    let others = |block: &Vec<String>| !block[0].starts_with("docker");
    blocks.take_while(others).collect()
}

/// A file of machine 1, as its reader makes it that of machine `number`.
fn made_own(line: &str, number: u32) -> String {
    let rack = ["a", "b", "c"][number as usize - 1];
    match line {
        _ if line.starts_with("ETCD_INITIAL_CLUSTER=") => line.to_owned(),
        "ETCD_NAME=etcd1" => format!("ETCD_NAME=etcd{number}"),
        "KERA_CLUSTER_BROKER_ID=1" => format!("KERA_CLUSTER_BROKER_ID={number}"),
        "KERA_CLUSTER_RACK=a" => format!("KERA_CLUSTER_RACK={rack}"),
        _ => line.replace("10.0.0.1:", &format!("10.0.0.{number}:")),
    }
}

fn client(words: &[&str], input: &[u8]) -> Finished {
    let mut command = kera();
    command.args(words);
    finish(command, input)
}

/// Runs a command of a client until it succeeds, and its answer is as it is to be.
fn until(words: &[&str], input: &[u8], wanted: impl Fn(&Finished) -> bool) -> Finished {
    let begin = Instant::now();
    loop {
        let finished = client(words, input);
        if wanted(&finished) {
            return finished;
        }
        let said = format!("{}{}", finished.text(), finished.stderr);
        assert!(begin.elapsed() < PATIENCE, "kera {words:?}: {said}");
    }
}

#[test]
fn the_steps_of_the_document_make_one_cluster_of_three_machines() {
    const NAME: &str = "the_steps_of_the_document_make_one_cluster_of_three_machines";
    if find("etcd").is_none() {
        return machine::skip(NAME, "needs etcd (Debian: etcd-server)");
    }
    let mut addresses = Addresses::default();
    let mut machines: Vec<Machine> = (1..=3).map(Machine::new).collect();
    // On one of them a broker works alone.
    for line in [
        "sudo apt install ./target/package/kera_*.deb",
        "sudo systemctl enable --now kera",
    ] {
        machines[0].command(line, &mut addresses);
    }
    let mut status = None;
    for block in blocks() {
        if block[0].starts_with("kera ") {
            let line = addresses.within(1, &block[0]);
            let words: Vec<&str> = line.split(' ').skip(1).collect();
            status = ends(&words).or(status);
            continue;
        }
        // That broker's directory is in the way there only.
        let only_first = block.iter().any(|line| line.contains("kera.alone"));
        let concerned = if only_first { 1 } else { 3 };
        for machine in &mut machines[..concerned] {
            for line in &block {
                machine.command(line, &mut addresses);
            }
            if block.iter().any(|line| line.contains("member.env")) {
                for file in ["/etc/kera/member.env", "/etc/default/etcd"] {
                    machine.edit(file, |line| made_own(line, machine.number));
                }
            }
        }
        if block.iter().any(|line| line.ends_with(" etcd")) {
            for machine in &mut machines {
                machine.has_started("etcd", &mut addresses);
            }
        }
    }
    let status = status.expect("the document looks at the cluster");

    // One etcd of three, beside what the package left.
    for machine in &machines {
        let members = addresses.of(machine.number, &format!("10.0.0.{}:2380", machine.number));
        let answer = http::get(&members, "/members");
        let (_, body) = answer.split_once("\r\n\r\n").expect("head and body");
        let members: Value = serde_json::from_str(body).expect("JSON");
        let names = members.as_array().expect("members").iter();
        let mut names: Vec<_> = names.filter_map(|member| member["name"].as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["etcd1", "etcd2", "etcd3"]);
        assert!(machine.path("/var/lib/etcd/default/member").is_dir());
    }
    // And one system of three brokers.
    let bootstrap = status.rsplit(' ').next().unwrap_or_default();
    until(
        &[&STREAM[..], &["--if-not-exists", "--bootstrap", bootstrap]].concat(),
        b"",
        succeeds,
    );
    let at = |number: u32, addresses: &mut Addresses| {
        addresses.of(number, &format!("10.0.0.{number}:7600"))
    };
    let first = at(1, &mut addresses);
    let produced = client(
        &["produce", "clicks", "-q", "--bootstrap", &first],
        b"one\n",
    );
    assert!(produced.status.success(), "{}", produced.stderr);
    let third = at(3, &mut addresses);
    let words = [
        "consume",
        "clicks",
        "--from",
        "earliest",
        "--max",
        "1",
        "--bootstrap",
        &third,
    ];
    assert_eq!(until(&words, b"", succeeds).text().trim(), "one");

    // What the last step started starts again: its directory is that of this cluster's broker.
    machines[0].command("sudo systemctl restart kera", &mut addresses);
    ends(&status.split(' ').collect::<Vec<_>>());
}

fn succeeds(finished: &Finished) -> bool {
    finished.status.success()
}

/// Runs a command of the document as somebody does who waits for its end; what it was, if it looks at the cluster.
fn ends(words: &[&str]) -> Option<String> {
    if words.starts_with(&["cluster", "init"]) {
        // Run again where etcd did not answer in time, as it then says.
        until(words, b"", |made| {
            succeeds(made) || made.stderr.contains("already")
        });
        return None;
    }
    until(&[words, &["--json"]].concat(), b"", |status| {
        let Ok(status) = serde_json::from_str::<Value>(&status.text()) else {
            return false;
        };
        let brokers = status["brokers"].as_array().map(Vec::as_slice);
        let numbers = brokers.unwrap_or_default().iter();
        let numbers: Vec<_> = numbers.filter_map(|b| b["broker_id"].as_u64()).collect();
        numbers == [1, 2, 3]
    });
    Some(words.join(" "))
}
