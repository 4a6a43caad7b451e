//! Files are damaged between kills: what was acknowledged is read or reported, and no ordinal serves twice.
//!
//! `KERA_CRASH_ROUNDS` and `KERA_CRASH_SEED` as for the other loops. Not harmed is what nothing can tell from a
//! write that the kill cut short: the last bytes of the newest file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use crate::common::Broker;
use crate::{number, rounds};

const STREAM: &str = "harmed";
/// Bytes at the end of a file's data that are left alone.
const TAIL: u64 = 12 * 1024;
const PAGE: u64 = 4096;

/// A group as the broker describes it.
#[derive(Clone, Debug)]
struct Group {
    id: u64,
    first: u64,
    end: u64,
    bytes: u64,
}

fn groups(broker: &Broker) -> Vec<Group> {
    let described = broker.json(&["stream", "describe", STREAM]);
    let lane = &described["lane_descriptions"][0];
    let groups = lane["groups"].as_array().expect("groups");
    let number = |group: &Value, name: &str| group[name].as_u64().expect("a number");
    let groups = groups.iter().map(|group| Group {
        id: number(group, "group"),
        first: number(group, "first_ordinal"),
        end: number(group, "end_ordinal"),
        bytes: number(group, "bytes"),
    });
    groups.collect()
}

fn file_of(dir: &Path, group: u64) -> PathBuf {
    dir.join(format!("{group:016}.0.log"))
}

/// What can be read of a group, by ordinal, and what stood in the way.
fn read(broker: &Broker, group: &Group) -> (BTreeMap<u64, String>, Option<String>) {
    let from = format!("ordinal:{}", group.first);
    let most = (group.end - group.first).to_string();
    let words = ["consume", STREAM, "--streamlet", "0", "--lane", "0"];
    let words = [&words[..], &["--from", &from, "--max", &most]].concat();
    let words = [&words[..], &["--format", "jsonl"]].concat();
    let finished = broker.attempt(&words, b"");
    let mut found = BTreeMap::new();
    for line in finished.text().lines() {
        let record: Value = serde_json::from_str(line).expect("each line is JSON");
        let ordinal = record["ordinal"].as_u64().expect("an ordinal");
        let value = record["value"].as_str().expect("a value").to_owned();
        if ordinal < group.end {
            found.insert(ordinal, value);
        }
    }
    let error = (!finished.status.success()).then_some(finished.stderr);
    (found, error)
}

/// Does something to a file whose data ends at `bytes`; says what.
fn harm(file: &Path, bytes: u64, rng: &mut StdRng) -> String {
    let open = || {
        let file = File::options().read(true).write(true).open(file);
        file.expect("the file can be opened")
    };
    // It may have been cut short in an earlier round.
    let there = fs::metadata(file).expect("it is there").len();
    let bytes = bytes.min(there);
    let whole = bytes.saturating_sub(TAIL);
    match rng.random_range(0..5) {
        0 => {
            fs::remove_file(file).expect("the file can be removed");
            "removed".to_owned()
        }
        1 => {
            let len = rng.random_range(0..bytes.max(1));
            open().set_len(len).expect("the file can be cut");
            format!("cut to {len}")
        }
        2 => {
            let len = open().metadata().expect("a file").len();
            let zeros = vec![0; len as usize];
            open().write_all_at(&zeros, 0).expect("it can be written");
            "zeroed".to_owned()
        }
        3 if whole >= PAGE => {
            let at = rng.random_range(0..whole / PAGE) * PAGE;
            let zeros = [0; PAGE as usize];
            open().write_all_at(&zeros, at).expect("it can be written");
            format!("a page zeroed at {at}")
        }
        _ if whole > 0 => {
            let (at, bit) = (rng.random_range(0..whole), rng.random_range(0..8));
            let mut byte = [0];
            open().read_exact_at(&mut byte, at).expect("it can be read");
            byte[0] ^= 1 << bit;
            open().write_all_at(&byte, at).expect("it can be written");
            format!("bit {bit} of byte {at} flipped")
        }
        _ => {
            fs::remove_file(file).expect("the file can be removed");
            "removed".to_owned()
        }
    }
}

#[test]
fn written_files_harmed_between_kills_are_told_of() {
    harm_loop("written", rounds().div_ceil(2));
}

#[test]
fn synced_files_harmed_between_kills_are_told_of() {
    harm_loop("synced", rounds().div_ceil(3));
}

fn harm_loop(ack: &str, rounds: u64) {
    let seed = number("KERA_CRASH_SEED").unwrap_or_else(|| rand::rng().random());
    eprintln!("{ack}, files harmed: {rounds} rounds, KERA_CRASH_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut broker = Broker::start();
    let words = ["stream", "create", STREAM, "--ack", ack];
    let sizes = ["--segment-size", "64KiB", "--segments-per-group", "2"];
    broker.run(&[&words[..], &sizes[..]].concat());
    let id = broker.json(&["stream", "describe", STREAM])["id"].clone();
    let streams = broker.data_dir().join("streams");
    let dir = streams.join(id.as_str().expect("an id")).join("0");
    // Whatever was seen at an ordinal, ever.
    let mut seen: BTreeMap<u64, String> = BTreeMap::new();
    let mut lost = 0;
    for round in 0..rounds {
        let input: String = (0..1500)
            .map(|n| format!("{round}-{n}-{}\n", "x".repeat(80)))
            .collect();
        let produce = ["produce", STREAM, "-q", "--batch-size", "2KiB"];
        broker.feed(&produce, input.as_bytes());
        let mut there: BTreeMap<u64, String> = BTreeMap::new();
        let before = groups(&broker);
        // One that was harmed earlier may not be readable any more, which was told then.
        for group in before.iter().filter(|g| file_of(&dir, g.id).exists()) {
            there.extend(read(&broker, group).0);
        }
        for value in input.lines() {
            assert!(there.values().any(|found| found == value), "acknowledged");
        }
        note(&mut seen, &there);

        // Killed while more comes.
        let address = broker.address().to_owned();
        let mut load = crate::common::kera();
        load.args(["produce", STREAM, "-q", "--batch-size", "2KiB"]);
        load.args(["--bootstrap", &address]).stdin(Stdio::piped());
        load.stdout(Stdio::null()).stderr(Stdio::null());
        let mut load = load.spawn().expect("a command can be started");
        let mut stdin = load.stdin.take().expect("its input");
        let feeding = std::thread::spawn(move || {
            let mut n = 0;
            while writeln!(stdin, "load-{round}-{n}-{}", "y".repeat(80)).is_ok() && n < 200_000 {
                n += 1;
            }
        });
        // As long as a command takes.
        broker.run(&["stream", "list"]);
        broker.kill();
        load.kill().expect("a command can be killed");
        load.wait().expect("a command can be waited for");
        feeding.join().expect("it ends");

        let harmed = before.choose(&mut rng).expect("a group").clone();
        let path = file_of(&dir, harmed.id);
        let how = match path.exists() {
            true => harm(&path, harmed.bytes, &mut rng),
            false => "it was gone already".to_owned(),
        };
        let log_before = broker.log().len();
        broker.restart();
        let log = broker.log()[log_before..].to_owned();
        let name = path.file_name().expect("a name").to_string_lossy();
        let told = |line: &str| line.contains("damaged:") && line.contains(&*name);
        let mut told = log.lines().any(told);

        let mut left: BTreeMap<u64, String> = BTreeMap::new();
        for group in groups(&broker) {
            if !file_of(&dir, group.id).exists() {
                continue;
            }
            let (found, error) = read(&broker, &group);
            told |= group.id == harmed.id && error.is_some();
            left.extend(found);
        }
        note(&mut seen, &left);
        let missing: Vec<u64> = there
            .keys()
            .filter(|ordinal| !left.contains_key(ordinal))
            .copied()
            .collect();
        eprintln!(
            "round {round}: {harmed:?} {how}, {} records lost, told: {told}",
            missing.len()
        );
        let case = format!("round {round}, seed {seed}: {harmed:?} {how}\n{log}");
        let of_group = harmed.first..harmed.end;
        assert!(
            missing.iter().all(|ordinal| of_group.contains(ordinal)),
            "{missing:?} are lost with it: {case}"
        );
        assert!(
            missing.is_empty() || told,
            "{} records are lost without a word: {case}",
            missing.len()
        );
        lost += missing.len();
    }
    println!(
        "crash loop: {ack}, {rounds} kills, {} records, {lost} lost with harmed files and told, none twice, seed {seed}",
        seen.len()
    );
}

/// No ordinal stands for two records.
fn note(seen: &mut BTreeMap<u64, String>, found: &BTreeMap<u64, String>) {
    for (ordinal, value) in found {
        let before = seen.entry(*ordinal).or_insert_with(|| value.clone());
        assert_eq!(before, value, "ordinal {ordinal} serves twice");
    }
}
