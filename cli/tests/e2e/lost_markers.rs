//! Markers of transactions that a loss of power takes: written again without an operator, or, where nobody knows how a
//! transaction ended, ended by one.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kera_producer::{Producer, Record, Transactions};
use kera_testkit::{machine, namespaces};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::common::{Broker, PATIENCE, home};

/// A broker on a machine that loses its power when the test says so.
struct Machine {
    broker: Broker,
    boot: PathBuf,
    /// What lies on its disk.
    kept: TempDir,
    data: PathBuf,
    /// The file that is kept.
    newest: PathBuf,
    _home: TempDir,
}

impl Machine {
    /// `None`, and said so, where a process cannot be told another boot id. It may break a rule.
    fn start(rule: Option<&str>) -> Option<Self> {
        if let Some(reason) = namespaces::lacking() {
            machine::skip_this(&reason);
            return None;
        }
        let home = home();
        let (boot, data) = (home.path().join("boot_id"), home.path().join("data"));
        fs::write(&boot, format!("{}\n", Uuid::new_v4())).expect("a file");
        let mount = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
        let mut within = ["unshare", "--mount", "--", "sh", "-c", mount]
            .map(str::to_owned)
            .to_vec();
        within.push(boot.to_str().expect("a path is text").to_owned());
        if let Some(rule) = rule {
            within.extend(["env".to_owned(), format!("KERA_BROKEN_RULE={rule}")]);
        }
        // Nothing is flushed that is only written.
        let broker = Broker::on_within(within, &data, &["--storage-flush-interval", "1h"]);
        Some(Self {
            broker,
            boot,
            kept: tempfile::tempdir_in(home.path()).expect("a directory"),
            data,
            newest: PathBuf::new(),
            _home: home,
        })
    }

    /// What a stream has on the disk now is what a loss of power leaves of it.
    fn flushed(&mut self, stream: &str) {
        let id = self.broker.json(&["stream", "describe", stream])["id"]
            .as_str()
            .expect("text")
            .to_owned();
        // Of its one lane: earlier ones are closed, and flushed.
        let newest = files_below(&self.data, &id).into_iter().max();
        let newest = newest.expect("a stream has files");
        fs::copy(&newest, self.kept.path().join("kept")).expect("a copy");
        self.newest = newest;
    }

    /// Power is lost, and comes back.
    fn lose_power(&mut self) {
        self.broker.kill();
        fs::write(&self.boot, format!("{}\n", Uuid::new_v4())).expect("a file");
        fs::copy(self.kept.path().join("kept"), &self.newest).expect("it is put back");
        self.broker.restart();
    }

    /// What counts, in order; none of what was aborted is ever among it.
    fn read(&self) -> Vec<u32> {
        let told = self.broker.run(&["consume", "s"]);
        let read: Vec<u32> = told
            .lines()
            .map(|line| line.parse().expect("a number"))
            .collect();
        let aborted = |number: &u32| number % 100 >= 50;
        assert!(!read.iter().any(aborted), "aborted records count: {read:?}");
        read
    }

    /// Waits until this is all that counts.
    fn reads(&self, expected: &[u32]) {
        let begin = Instant::now();
        loop {
            let read = self.read();
            if read == expected {
                return;
            }
            assert!(expected.starts_with(&read), "{read:?}");
            assert!(
                begin.elapsed() < PATIENCE,
                "readers wait at {read:?}: {}",
                self.broker.log()
            );
        }
    }

    fn list(&self, all: bool) -> Value {
        let words: &[&str] = match all {
            true => &["transaction", "list", "--all"],
            false => &["transaction", "list"],
        };
        self.broker.json(words)
    }

    /// Waits until all has ended that is known.
    fn all_ends(&self) {
        let begin = Instant::now();
        while self.list(false) != json!([]) {
            assert!(begin.elapsed() < PATIENCE, "{}", self.list(false));
        }
    }
}

/// All files below a folder in whose path there is this.
fn files_below(folder: &Path, part: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => found.extend(files_below(&path, part)),
            false if path.to_string_lossy().contains(part) => found.push(path),
            false => {}
        }
    }
    found
}

async fn producer(broker: &Broker, id: &str) -> Producer {
    let producer = Producer::builder()
        .bootstrap(broker.address())
        .stream("s")
        .transactional_id(id)
        .transaction_timeout(Duration::from_secs(600));
    producer.build().await.expect("a producer")
}

/// Appends to a transaction and waits until it is stored; numbers whose last two digits are 50 and more are to be aborted.
async fn append(
    transaction: &kera_producer::Transaction<'_>,
    producer: &Producer,
    numbers: std::ops::Range<u32>,
) {
    for number in numbers {
        let text = number.to_string();
        let appended = transaction.append(&Record::of_value(text.as_bytes()));
        drop(appended.expect("room"));
    }
    producer.flush().await.expect("it is stored");
}

fn expected(ranges: &[std::ops::Range<u32>]) -> Vec<u32> {
    ranges.iter().cloned().flatten().collect()
}

/// Two transactions end, one each way, and power takes both markers, again and again. The producers go on at once, and one of
/// them changes its mind: what it ends decides about nothing but itself.
#[test]
fn markers_that_power_took_are_written_again_before_anything_else_ends() {
    let Some(mut machine) = Machine::start(None) else {
        return;
    };
    machine.broker.run(&["stream", "create", "s"]);
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let one = producer(&machine.broker, "one").await;
        let other = producer(&machine.broker, "other").await;
        let mut counts = Vec::new();
        for round in 0..4_u32 {
            let base = round * 100;
            // The one that commits now aborted before: a marker of this transaction for the one before would be seen.
            let (commits, aborts) = match round % 2 {
                0 => (&one, &other),
                _ => (&other, &one),
            };
            let hasty = aborts.transaction().await.expect("it begins");
            let text = (base + 70).to_string();
            drop(
                hasty
                    .append(&Record::of_value(text.as_bytes()))
                    .expect("room"),
            );
            hasty.abort().await.expect("it is aborted");
            let kept = commits.transaction().await.expect("it begins");
            let dropped = aborts.transaction().await.expect("it begins");
            append(&kept, commits, base..base + 10).await;
            append(&dropped, aborts, base + 50..base + 60).await;
            machine.flushed("s");
            kept.commit().await.expect("it is committed");
            dropped.abort().await.expect("it is aborted");
            machine.all_ends();
            counts.push(base..base + 10);
            machine.reads(&expected(&counts));
            machine.lose_power();
        }
        machine.reads(&expected(&counts));
    });
}

/// A broker that keeps no ends, as before they were kept: what power made open again is known to nobody, is listed, and ends
/// by hand.
#[test]
fn a_transaction_that_nobody_knows_is_listed_and_ends_by_hand() {
    let Some(mut machine) = Machine::start(Some("ends_forgotten")) else {
        return;
    };
    machine.broker.run(&["stream", "create", "s"]);
    let runtime = Runtime::new().expect("a runtime");
    let known = runtime.block_on(async {
        let kept = producer(&machine.broker, "kept").await;
        let first = kept.transaction().await.expect("it begins");
        append(&first, &kept, 0..10).await;
        machine.flushed("s");
        first.commit().await.expect("it is committed");
        machine.all_ends();
        machine.lose_power();
        let prepared = producer(&machine.broker, "prepared").await;
        let second = prepared.transaction().await.expect("it begins");
        append(&second, &prepared, 10..20).await;
        let handle = second.prepare().await.expect("it is prepared");
        handle.expect("it has records")
    });
    let broker = &machine.broker;
    let listed = machine.list(false);
    let listed = listed.as_array().expect("a list");
    assert_eq!(listed.len(), 2, "{listed:?}");
    assert_eq!(listed[0]["transactional_id"], "prepared");
    assert_eq!(listed[1]["state"], "Lost");
    assert!(listed[1].get("transactional_id").is_none());
    let at = &listed[1]["partitions"];
    assert_eq!(
        (&at[0]["stream"], &at[0]["first_ordinal"]),
        (&json!("s"), &json!(0))
    );
    assert!(at[0]["waiting_records"].as_u64() > Some(0), "{at}");
    let lost = listed[1]["producer_id"].to_string();
    let shown = broker.run(&["transaction", "list"]);
    assert!(
        shown.contains(&format!("end --producer {lost} --abort")),
        "{shown}"
    );

    let refused = |words: &[&str], why: &str| {
        let told = broker.refused(&[&["transaction", "end"], words].concat());
        assert!(told.contains(why), "{words:?}: {told}");
    };
    let other = known.producer.to_string();
    for (words, why) in [
        (["prepared", "--commit"], "add --yes"),
        (["prepared", "--yes"], "--commit"),
    ] {
        let told = broker.attempt(&[&["transaction", "end"], &words[..]].concat(), b"");
        assert!(told.stderr.contains(why), "{}", told.stderr);
        assert_eq!(told.status.code(), Some(2));
    }
    refused(&["nobody", "--commit", "--yes"], "no transactional id");
    refused(&["kept", "--commit", "--yes"], "nothing to end");
    refused(
        &["--producer", &other, "--abort", "--yes"],
        "known to its coordinator",
    );
    refused(
        &["--producer", &i64::MAX.to_string(), "--abort", "--yes"],
        "nothing to end",
    );
    let memory = broker.refused(&["stream", "alter", "s", "--ack", "memory"]);
    assert!(memory.contains("2 transactions are open"), "{memory}");
    assert_eq!(machine.read(), Vec::<u32>::new());

    let end = [
        "transaction",
        "end",
        "--producer",
        &lost,
        "--stream",
        "s",
        "--partition",
        "0",
        "--commit",
        "--yes",
    ];
    let told = broker.json(&end);
    assert_eq!(
        (&told["outcome"], &told["ended"][0]["state"]),
        (&json!("committed"), &json!("Lost"))
    );
    let all: Vec<u32> = (0..20).collect();
    machine.reads(&all[..10]);
    let end = ["transaction", "end", "prepared", "--commit", "--yes"];
    for repeated in [false, true] {
        let told = broker.json(&end);
        assert_eq!(
            (&told["outcome"], &told["repeated"]),
            (&json!("committed"), &json!(repeated))
        );
    }
    machine.reads(&all);
    refused(&["prepared", "--abort", "--yes"], "that stays");
    assert_eq!(machine.list(false), json!([]));
    // A client with the handle gets the same answer.
    runtime.block_on(async {
        let client = kera_rpc::Client::connect_to(broker.address()).expect("an address");
        let told = Transactions::new(client).commit(&known).await;
        told.expect("it is committed");
    });
    broker.run(&["stream", "alter", "s", "--ack", "memory"]);
}
