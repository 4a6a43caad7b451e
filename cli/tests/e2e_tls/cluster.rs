//! Brokers that share a store and have TLS at their native listeners: they call each other with TLS, and prove who
//! they are.

use std::path::{Path, PathBuf};
use std::time::Instant;

use kera_metadata::{EtcdOptions, EtcdStore};
use kera_testkit::etcd::Etcd;
use serde_json::Value;

use crate::certificates::{Authority, Files, Identity};
use crate::common::place::{Place, start_each};
use crate::common::ports::Reserved;
use crate::common::{Broker, Finished, PATIENCE, finish, kera};
use crate::tells;

const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// Brokers 1 to 3 and their etcd.
pub struct Trio {
    pub brokers: Vec<Broker>,
    files: Vec<Files>,
    ca: PathBuf,
    etcd: Etcd,
    places: Vec<Place>,
}

impl Trio {
    /// Waits until each of the three knows of the others.
    fn until_all_live(&self) {
        self.until(0, &["cluster", "status", "--json"], |status| {
            let brokers = status["brokers"].as_array();
            brokers.is_some_and(|all| all.len() == 3)
        });
    }

    /// Makes a stream of which each of them owns a streamlet and holds the replicas.
    fn create_clicks(&self) {
        let words = "stream create clicks --streamlets 3 --replicas 3";
        let words: Vec<&str> = words.split(' ').collect();
        self.run(0, &words, b"");
    }

    /// Where replicas come to the broker with this number.
    pub fn replicas_at(&self, number: usize) -> &str {
        self.places[number].replicas_at()
    }

    /// The metadata store.
    pub fn store(&self) -> String {
        self.etcd.address()
    }

    /// Has the store answer nobody, or go on.
    pub fn pause_store(&self, paused: bool) {
        self.etcd.pause(paused);
    }

    /// Replaces certificate and key of a broker.
    pub fn put(&self, at: usize, identity: &Identity) {
        self.files[at].put(identity);
    }

    /// Replaces one of a broker's files.
    pub fn write(&self, at: usize, name: &str, text: &str) {
        self.files[at].write(name, text);
    }

    /// Whose certificates `signer` gives to each broker; all trust `authority`. `None`, and said so, where there is
    /// no etcd.
    fn start(
        authority: &Authority,
        signer: impl Fn(usize) -> bool,
        other: &Authority,
    ) -> Option<Self> {
        let identity = |number| match signer(number) {
            true => authority.broker(&NAMES),
            false => other.broker(&NAMES),
        };
        let required = ["--tls-client-auth", "required"];
        Self::with(authority, identity, "native", &required)
    }

    /// Brokers with these certificates, which trust `authority`; `listeners` have TLS.
    pub fn with(
        authority: &Authority,
        identity: impl Fn(usize) -> Identity,
        listeners: &str,
        more: &[&str],
    ) -> Option<Self> {
        Self::with_each(authority, identity, listeners, |_| {
            more.iter().copied().map(str::to_owned).collect()
        })
    }

    /// The same, each with more flags of its own.
    pub fn with_each(
        authority: &Authority,
        identity: impl Fn(usize) -> Identity,
        listeners: &str,
        more: impl Fn(usize) -> Vec<String>,
    ) -> Option<Self> {
        let etcd = Etcd::start()?;
        let made = EtcdStore::init(&etcd.address(), EtcdOptions::default());
        made.expect("the cluster is made");
        let store = etcd.address();
        let (mut files, mut ca) = (Vec::new(), PathBuf::new());
        // So long that nothing is taken over because of its end.
        let lease = ["--cluster-lease", "60s"];
        let (brokers, places) = start_each(3, ["--cluster", &store], &lease, |number, flags| {
            let of_broker = Files::new(&identity(number), Some(authority));
            ca = of_broker.write("ca.pem", &authority.pem);
            let ca = text(&ca);
            let tls = ["--tls-broker-ca", &ca, "--tls-reload-interval", "100ms"];
            let more = more(number);
            let more: Vec<_> = more.iter().map(String::as_str).collect();
            let broker = of_broker.broker(listeners, &[flags, &tls, &more].concat());
            files.push(of_broker);
            broker
        });
        Some(Self {
            brokers,
            files,
            ca,
            etcd,
            places,
        })
    }

    /// Runs a command at one broker, with a broker's own certificate.
    pub fn attempt(&self, at: usize, words: &[&str], input: &[u8]) -> Finished {
        let files = &self.files[0];
        let mut command = kera();
        command
            .args(words)
            .env("KERA_BOOTSTRAP", self.brokers[at].address())
            .env("KERA_TLS_CA", &self.ca)
            .env("KERA_TLS_CLIENT_CERT", files.path("certificate.pem"))
            .env("KERA_TLS_CLIENT_KEY", files.path("key.pem"));
        finish(command, input)
    }

    /// As [`attempt`](Self::attempt), until it succeeds: brokers hear of each other when they do.
    pub fn run(&self, at: usize, words: &[&str], input: &[u8]) -> String {
        let begin = Instant::now();
        loop {
            let finished = self.attempt(at, words, input);
            if finished.status.success() {
                return finished.text();
            }
            assert!(begin.elapsed() < PATIENCE, "{words:?}: {}", finished.stderr);
        }
    }

    pub fn until(&self, at: usize, words: &[&str], wanted: impl Fn(&Value) -> bool) {
        let begin = Instant::now();
        loop {
            let told = self.run(at, words, b"");
            let told: Value = serde_json::from_str(&told).expect("JSON");
            if wanted(&told) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "{words:?}: {told:#}");
        }
    }
}

/// The records of all streamlets that are served.
pub fn records(described: &Value) -> u64 {
    let lanes = described["lane_descriptions"].as_array();
    let lanes = lanes.map(Vec::as_slice).unwrap_or_default();
    lanes
        .iter()
        .filter_map(|lane| lane["records"].as_u64())
        .sum()
}

fn text(path: &Path) -> String {
    path.to_str().expect("a path of the build").to_owned()
}

/// Brokers, and whoever has a certificate, come to the first native address; clients with passwords to another one, without TLS.
#[test]
fn clients_of_another_native_address_are_told_it_of_all_brokers() {
    let authority = Authority::new("all");
    let plain: Vec<_> = (0..3).map(|_| Reserved::new()).collect();
    let flags = |number: usize| {
        let listen = format!("plain={}", plain[number - 1].address());
        let flags = [
            ["--tls-client-auth", "required"],
            ["--listen", &*listen],
            ["--listeners-protocols", "plain=SASL_PLAINTEXT"],
            ["--listeners-mechanisms", "plain=SCRAM-SHA-512"],
        ];
        flags
            .as_flattened()
            .iter()
            .copied()
            .map(str::to_owned)
            .collect()
    };
    let identity = |_| authority.broker(&NAMES);
    let Some(trio) = Trio::with_each(&authority, identity, "native", flags) else {
        return;
    };
    let password = trio.files[0].write("password", "long secret\n");
    trio.run(0, &["user", "create", "ann"], b"long secret\n");
    trio.until_all_live();
    trio.create_clicks();
    // Without TLS nobody gets on at the other address, so who gets on was told this one.
    let ask = |at: usize, words: &[&str], input: &[u8]| {
        let begin = Instant::now();
        loop {
            let mut command = kera();
            command
                .args(words)
                .env("KERA_BOOTSTRAP", plain[at].address())
                .env("KERA_USER", "ann")
                .env("KERA_USER_PASSWORD_FILE", &password);
            let finished = finish(command, input);
            if finished.status.success() {
                return finished.text();
            }
            // A broker hears of a user, and of a stream's owners, when it does.
            assert!(begin.elapsed() < PATIENCE, "{words:?}: {}", finished.stderr);
        }
    };
    let listed = ask(1, &["stream", "list"], b"");
    assert!(listed.contains("clicks"), "{listed}");
    let input: String = (0..300).map(|number| format!("{number}\n")).collect();
    ask(1, &["produce", "clicks", "-q"], input.as_bytes());
    for at in 0..3 {
        let group = format!("group-{at}");
        let read = ask(at, &["consume", "clicks", "--group", &group], b"");
        assert_eq!(read.lines().count(), 300);
        let status = ask(at, &["cluster", "status", "--json"], b"");
        for (number, one) in plain.iter().enumerate() {
            let first = trio.brokers[number].address();
            assert!(
                status.contains(one.address()) && !status.contains(first),
                "{status}"
            );
        }
    }
    // And who came in by the other address goes on there.
    let read = trio.run(2, &["consume", "clicks", "--group", "proven"], b"");
    assert_eq!(read.lines().count(), 300);
    let status = trio.run(2, &["cluster", "status", "--json"], b"");
    assert!(
        plain.iter().all(|one| !status.contains(one.address())),
        "{status}"
    );
}

#[test]
fn brokers_with_tls_serve_what_others_own_and_take_over_from_who_is_gone() {
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let Some(mut trio) = Trio::start(&first, |_| true, &second) else {
        return;
    };
    trio.until_all_live();
    trio.create_clicks();
    let input: String = (0..300).map(|number| format!("{number}\n")).collect();
    trio.run(1, &["produce", "clicks", "-q"], input.as_bytes());
    // Each asks the other two for what they own, and for groups that they coordinate.
    for at in 0..3 {
        trio.until(at, &["stream", "describe", "clicks", "--json"], |told| {
            records(told) == 300
        });
        let group = format!("group-{at}");
        let read = trio.run(at, &["consume", "clicks", "--group", &group], b"");
        assert_eq!(read.lines().count(), 300);
        for other in 0..3 {
            trio.run(other, &["group", "describe", &group], b"");
        }
    }
    // Certificates of another authority, one broker after the other: each is taken, also for calls.
    let both = format!("{}{}", first.pem, second.pem);
    for files in &trio.files {
        files.write("ca.pem", &both);
        files.write("client-ca.pem", &both);
    }
    for broker in &trio.brokers {
        tells(broker, "the files of [tls] have changed");
    }
    for files in &trio.files {
        files.put(&second.broker(&NAMES));
    }
    for files in &trio.files {
        files.write("ca.pem", &second.pem);
        files.write("client-ca.pem", &second.pem);
    }
    for at in 0..3 {
        trio.until(at, &["stream", "describe", "clicks", "--json"], |told| {
            records(told) == 300
        });
    }
    // Its lease goes on for long: that it is gone is seen at the connection to it.
    trio.brokers[2].kill();
    trio.until(0, &["stream", "describe", "clicks", "--json"], |told| {
        records(told) == 300
    });
    // Where it owned nothing, that was told before anybody noticed.
    let begin = Instant::now();
    let told = |broker: &Broker| broker.log().contains("nobody listens there any more");
    while !trio.brokers[..2].iter().any(told) {
        assert!(begin.elapsed() < PATIENCE, "{}", trio.brokers[0].log());
    }
}

#[test]
fn a_broker_whose_certificate_others_do_not_trust_is_told_of_with_the_reason() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let Some(trio) = Trio::start(&ours, |number| number != 3, &other) else {
        return;
    };
    trio.until_all_live();
    let begin = Instant::now();
    trio.create_clicks();
    loop {
        let told = trio.attempt(0, &["stream", "describe", "clicks"], b"");
        let text = format!("{}{}", told.text(), told.stderr);
        if text.contains("TLS: ") && text.contains("broker 3") {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{text}");
    }
}
