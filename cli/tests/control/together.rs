//! Brokers on loopback that share an etcd.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::command::finish_within;
use crate::common::place::Place;
use crate::common::{Broker, Finished, PATIENCE, kera};
use crate::etcd::Etcd;

/// Brokers 1, 2, ... over one etcd.
pub struct Together {
    brokers: Vec<Broker>,
    lease: String,
    /// Of brokers that are added from now on.
    pub flags: Vec<&'static str>,
    places: Vec<Place>,
    etcd: Etcd,
}

impl Together {
    /// So many brokers, with leases so long, which serve when this returns; `None`, and said so, where there
    /// is no etcd.
    pub fn start(brokers: u32, lease: &str) -> Option<Self> {
        let mut cluster = Self {
            brokers: Vec::new(),
            lease: lease.to_owned(),
            flags: Vec::new(),
            places: Vec::new(),
            etcd: Etcd::start()?,
        };
        let init = cluster.attempt(&["cluster", "init", "--cluster", &cluster.store()]);
        assert!(init.status.success(), "{}", init.stderr);
        for _ in 0..brokers {
            cluster.add();
        }
        Some(cluster)
    }

    /// The store, as brokers are told it.
    pub fn store(&self) -> String {
        format!("etcd://{}", self.etcd.endpoint())
    }

    /// One more broker, under the next number.
    pub fn add(&mut self) {
        let place = Place::new();
        let mine = place.flags(self.brokers.len() + 1, ["--cluster", &self.store()]);
        let mut flags: Vec<_> = mine.iter().map(String::as_str).collect();
        flags.extend(["--cluster-lease", &self.lease]);
        flags.extend(&self.flags);
        self.brokers.push(Broker::with(&flags));
        self.places.push(place);
        // The others hear of it, and of who is controller, by the store, in their own time.
        let all = self.brokers.len();
        for broker in &self.brokers {
            let words = ["cluster", "status", "--json"];
            self.until_told(
                || broker.attempt(&words, b""),
                |status| {
                    let known = status["brokers"].as_array().into_iter().flatten();
                    let known = known.filter(|one| one["address"] != "").count();
                    known == all && status["controller"].is_u64()
                },
            );
        }
    }

    pub fn address(&self, number: u32) -> &str {
        self.brokers[number as usize - 1].address()
    }

    pub fn broker(&mut self, number: u32) -> &mut Broker {
        &mut self.brokers[number as usize - 1]
    }

    /// Where clients begin: at any of the brokers.
    pub fn bootstrap(&self) -> String {
        Broker::bootstrap(&self.brokers)
    }

    /// Runs a client command that may ask any broker.
    fn command(&self, words: &[&str], input: &[u8]) -> Finished {
        self.command_within(words, input, PATIENCE)
    }

    fn command_within(&self, words: &[&str], input: &[u8], patience: Duration) -> Finished {
        let bootstrap: Vec<_> = self.brokers.iter().map(Broker::address).collect();
        let mut command = kera();
        command.args(words);
        if !bootstrap.is_empty() {
            command.env("KERA_BOOTSTRAP", bootstrap.join(","));
        }
        finish_within(command, input, patience)
    }

    /// Runs a client command, however it ends.
    pub fn attempt(&self, words: &[&str]) -> Finished {
        self.command(words, b"")
    }

    /// Runs a client command with `--json`, which must succeed; its answer.
    pub fn json(&self, words: &[&str]) -> Value {
        let words: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
        let finished = self.attempt(&words);
        let ok = finished.status.success();
        assert!(ok, "kera {}: {}", words.join(" "), finished.stderr);
        serde_json::from_slice(&finished.stdout).expect("JSON")
    }

    /// Runs a client command that tells of its steps, with `--json`, which must succeed; its lines. What
    /// moves meanwhile takes its time.
    pub fn steps(&self, words: &[&str]) -> Vec<Value> {
        let words: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
        let finished = self.command_within(&words, b"", PATIENCE * 5);
        let ok = finished.status.success();
        assert!(ok, "kera {}: {}", words.join(" "), finished.stderr);
        steps_of(&finished.text())
    }

    /// The cluster's status, whoever tells it.
    pub fn status(&self) -> Value {
        self.until(|_| true)
    }

    /// Asks for the cluster's status until it is as it is to be.
    pub fn until(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        self.until_told(|| self.attempt(&["cluster", "status", "--json"]), wanted)
    }

    /// The same of its plan.
    pub fn until_plan(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        self.until_told(|| self.attempt(&["cluster", "plan", "--json"]), wanted)
    }

    /// The same of any command's answer.
    pub fn until_json(&self, words: &[&str], wanted: impl Fn(&Value) -> bool) -> Value {
        let words: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
        self.until_told(|| self.attempt(&words), wanted)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "nobody tells when another broker has heard of something"
    )]
    fn until_told(&self, ask: impl Fn() -> Finished, wanted: impl Fn(&Value) -> bool) -> Value {
        let begin = Instant::now();
        loop {
            let finished = ask();
            let found = serde_json::from_slice::<Value>(&finished.stdout);
            if let Some(found) = found.ok().filter(&wanted) {
                return found;
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "the cluster stays at {} {}",
                finished.text(),
                finished.stderr
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Makes a stream with so many copies, small groups, and enough of them for a copy at most brokers.
    pub fn create(&self, stream: &str, streamlets: u32, replicas: u32) {
        self.create_with(stream, streamlets, replicas, &[]);
    }

    /// The same, where no group begins without a broker that is slow to answer.
    pub fn create_whole(&self, stream: &str, streamlets: u32, replicas: u32) {
        let all = replicas.to_string();
        self.create_with(
            stream,
            streamlets,
            replicas,
            &["--min-insync-replicas", &all],
        );
    }

    fn create_with(&self, stream: &str, streamlets: u32, replicas: u32, more: &[&str]) {
        let (streamlets, replicas) = (streamlets.to_string(), replicas.to_string());
        let words = ["stream", "create", stream, "--streamlets", &streamlets];
        let small = ["--segment-size", "64KiB", "--segments-per-group", "4"];
        let copies = ["--replicas", &replicas];
        self.json(&[&words[..], &copies, &small, more].concat());
    }

    /// The number of a streamlet's owner.
    pub fn owner_of(&self, stream: &str, streamlet: usize) -> u32 {
        let described = self.json(&["stream", "describe", stream]);
        let owner = described["owners"][streamlet]["owner"].as_str();
        let owner = owner.expect("an owner has an address");
        let at = self.brokers.iter().position(|b| b.address() == owner);
        at.expect("a broker of this cluster") as u32 + 1
    }

    /// Sends lines and waits until all are acknowledged.
    pub fn produce(&self, stream: &str, lines: &[String]) {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let words = ["produce", stream, "--quiet", "--batch-size", "4KiB"];
        let finished = self.command(&words, text.as_bytes());
        assert!(finished.status.success(), "{}", finished.stderr);
    }

    /// All lines of a stream.
    pub fn consume(&self, stream: &str) -> Vec<String> {
        let finished = self.attempt(&["consume", stream]);
        assert!(finished.status.success(), "{}", finished.stderr);
        finished.text().lines().map(str::to_owned).collect()
    }
}

/// Lines of JSON, of which the last and only that is the end.
pub fn steps_of(text: &str) -> Vec<Value> {
    let lines = text.lines().map(serde_json::from_str);
    let lines: Vec<Value> = lines.collect::<Result<_, _>>().expect("lines of JSON");
    let (last, before) = lines.split_last().expect("at least the end");
    assert_eq!(last["event"], "end", "{text}");
    assert!(before.iter().all(|line| line["event"] == "step"), "{text}");
    lines
}

/// Lines that tell their place.
pub fn lines(range: std::ops::Range<usize>) -> Vec<String> {
    range
        .map(|n| format!("{n:08} {}", "x".repeat(90)))
        .collect()
}

/// In order: streamlets are read side by side.
pub fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort_unstable();
    lines
}
