//! Brokers that share an etcd: what they tell of themselves and their peers, and configurations that
//! cannot be.

use kera_metadata::{EtcdOptions, EtcdStore};

use crate::common::http::get;
use crate::common::ports::Reserved;
pub use crate::common::shared_memory as shared;
use crate::common::{Broker, Finished, finish, home, kera};
use crate::etcd::Etcd;

/// What a store without replicas takes of its memory: its seals, and the room to store more of them.
pub const SEALS: u64 = 32 << 10;

/// Flags of a broker among others, with its store in `shared`.
pub fn flags<'a>(id: &'a str, listen: &'a str, shared: &'a str) -> Vec<&'a str> {
    let (store, quota) = (
        ["--replica-store-shared-dir", shared],
        ["--replica-store-memory-bytes", "16MiB"],
    );
    let me = ["--broker-id", id, "--replication-listen", listen];
    [&me[..], &store, &quota].concat()
}

/// An etcd with an empty cluster in it; `None`, and said so, where there is none.
pub fn cluster() -> Option<Etcd> {
    let etcd = Etcd::start()?;
    let made = EtcdStore::init(&etcd.address(), EtcdOptions::default());
    made.expect("the cluster is made");
    Some(etcd)
}

/// Two brokers on this machine that know each other, and what they need as long as they run.
struct Pair {
    one: Broker,
    two: Broker,
    _etcd: Etcd,
    _shared: [tempfile::TempDir; 2],
    _ports: [Reserved; 3],
}

impl Pair {
    /// `None`, and said so, where there is no etcd.
    fn start(more: &[&str]) -> Option<Self> {
        let etcd = cluster()?;
        let store = etcd.address();
        let ports = [Reserved::new(), Reserved::new(), Reserved::new()];
        let dirs = [shared(), shared()];
        let [a, b, http] = [0, 1, 2].map(|at: usize| ports[at].address().to_owned());
        let paths = [0, 1].map(|at: usize| dirs[at].path().display().to_string());
        // Longer than a test: one that is killed is still known.
        let both = ["--cluster", &store, "--cluster-lease", "5m"];
        let mut first = flags("1", &a, &paths[0]);
        first.extend(["--http-listen", &http]);
        let first = [&first[..], &both, more].concat();
        let second = [&flags("2", &b, &paths[1])[..], &both, more].concat();
        let pair = Self {
            one: Broker::with(&first),
            two: Broker::with(&second),
            _etcd: etcd,
            _shared: dirs,
            _ports: ports,
        };
        let knows_one = |told: &serde_json::Value| {
            let peers = told["cluster"]["peers"].as_array();
            peers.is_some_and(|peers| peers.len() == 1)
        };
        pair.one.until(&["broker", "describe"], knows_one);
        Some(pair)
    }

    fn http(&self) -> &str {
        self._ports[2].address()
    }
}

#[test]
fn brokers_describe_each_other() {
    let Some(mut pair) = Pair::start(&["--allow-same-host"]) else {
        return;
    };
    let one = pair.one.json(&["broker", "describe"]);
    let two = pair.two.json(&["broker", "describe"]);
    assert_eq!(
        (&one["broker_id"], &two["broker_id"]),
        (&1.into(), &2.into())
    );
    let peer = &one["cluster"]["peers"][0];
    assert_eq!(peer["id"], 2, "{one:#}");
    assert_eq!(peer["reachable"], true, "{one:#}");
    assert_eq!(peer["same_host"], true, "{one:#}");
    assert_eq!(
        peer["host"], two["cluster"]["host"],
        "both name this machine"
    );
    assert_eq!(peer["address"], two["cluster"]["replication"]);
    assert_eq!(peer["store_id"], two["cluster"]["backup"]["store_id"]);
    assert_eq!(peer["free_bytes"], (16 << 20) - SEALS);
    let backup = &one["cluster"]["backup"];
    assert_eq!(backup["memory_bytes"], 16 << 20, "{one:#}");
    assert_eq!(backup["memory_used_bytes"], SEALS);
    assert_eq!(backup["copies_open"], 0);
    let used = |transport: &&serde_json::Value| transport["used"] == true;
    let transports = one["cluster"]["transports"].as_array().expect("a list");
    let used: Vec<_> = transports.iter().filter(used).map(|t| &t["name"]).collect();
    assert_eq!(used, ["tcp"], "{one:#}");

    let text = pair.one.run(&["broker", "describe"]);
    for said in [
        "broker 1 at",
        "transport      tcp;",
        "rdma not usable: ",
        "32.0 KiB of 16.0 MiB",
        "reachable, 16.0 MiB free",
    ] {
        assert!(text.contains(said), "`{said}` is not in\n{text}");
    }
    let metrics = get(pair.http(), "/metrics");
    for said in [
        "kera_replica_store_memory_limit_bytes 16777216",
        // As it was called before.
        "kera_backup_memory_limit_bytes 16777216",
        "kera_replica_store_replicas{state=\"open\"} 0",
        "kera_replica_store_refusals_total{reason=\"no_room\"} 0",
        "kera_peer_down{peer=\"2\"} 0",
        "kera_peer_shipped_bytes_total{peer=\"2\"} 0",
    ] {
        assert!(metrics.contains(said), "`{said}` is not in\n{metrics}");
    }

    pair.two.kill();
    let one = pair.one.json(&["broker", "describe"]);
    let peer = &one["cluster"]["peers"][0];
    assert_eq!(peer["reachable"], false, "{one:#}");
    assert!(
        peer["store_id"].is_null() && peer["free_bytes"].is_null(),
        "{one:#}"
    );
    let listed = pair.one.run(&["broker", "list"]);
    assert!(listed.contains("SILENT"), "{listed}");
    pair.two.restart();
    pair.one.until(&["broker", "list"], |listed| {
        listed[1]["broker_id"] == 2 && listed[1]["silent"].is_null()
    });
    let stopped = pair.one.stop();
    assert!(stopped.success(), "{stopped}: {}", pair.one.log());
}

#[test]
fn brokers_of_one_machine_are_told_that_they_hold_no_copies_together() {
    let Some(pair) = Pair::start(&[]) else {
        return;
    };
    let log = pair.one.log();
    let warned = log.lines().find(|line| line.contains("run on one machine"));
    let warned = warned.unwrap_or_else(|| panic!("no warning in {log}"));
    assert!(warned.contains("cluster.allow_same_host"), "{warned}");
    let text = pair.one.run(&["broker", "describe"]);
    assert!(text.contains("(this one: no replicas)"), "{text}");
}

#[test]
fn a_broker_without_a_number_works_alone() {
    let broker = Broker::start();
    let described = broker.json(&["broker", "describe"]);
    assert_eq!(described["broker_id"], 1);
    assert!(described["cluster"].is_null(), "{described:#}");
    let listed = broker.json(&["broker", "list"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed:#}");
}

/// Runs `kera serve` with `flags`, which cannot work.
fn serve(flags: &[&str]) -> Finished {
    let home = home();
    let mut serve = kera();
    serve
        .args(["serve", "--listen", "127.0.0.1:0", "--http-listen", "off"])
        .arg("--data-dir")
        .arg(home.path())
        .args(flags);
    finish(serve, b"")
}

#[test]
fn configurations_that_cannot_be_are_refused_before_anything_starts() {
    let me = ["--broker-id", "1"];
    for (flags, said) in [
        (["--peers", "2@10.0.0.2:7601"], "cluster.peers is gone"),
        (["--cluster-peers", "2@a:1"], "`kera cluster import`"),
        (["--cluster", "10.0.0.2:2379"], "is no store"),
        (["--replication-listen", "here"], "is not an address"),
        (["--cluster-host", "a b"], "is not a machine's name"),
    ] {
        let finished = serve(&[&me[..], &flags].concat());
        assert_eq!(finished.status.code(), Some(2), "{}", finished.stderr);
        assert!(finished.stderr.contains(said), "{}", finished.stderr);
        assert_eq!(finished.text(), "", "it never listened");
    }
    let finished = serve(&["--cluster", "etcd://10.0.0.2:2379"]);
    assert_eq!(finished.status.code(), Some(2), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("set cluster.broker_id"),
        "{}",
        finished.stderr
    );

    let home = home();
    let file = home.path().join("kera.toml");
    std::fs::write(&file, "[cluster]\nbroker_id = 1\nstor = \"off\"\n").expect("a file");
    let mut check = kera();
    check.args(["config", "check"]).arg(&file);
    let finished = finish(check, b"");
    assert_eq!(finished.status.code(), Some(2));
    assert!(
        finished.stderr.contains("did you mean `cluster.store`?"),
        "{}",
        finished.stderr
    );
}

#[test]
fn what_the_machine_cannot_give_is_named_with_what_to_set() {
    let Some(etcd) = cluster() else { return };
    let store = etcd.address();
    let dir = shared();
    let path = dir.path().display().to_string();
    let flags = [
        &flags("1", "127.0.0.1:0", &path)[..],
        &["--cluster", &store],
    ]
    .concat();
    let mut large = flags.clone();
    large[7] = "1TiB";
    let finished = serve(&large);
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    for said in [
        "replica_store.memory_bytes is 1TiB",
        "--shm-size=1TiB",
        &path,
    ] {
        assert!(finished.stderr.contains(said), "{}", finished.stderr);
    }
    let mut rdma = flags;
    rdma.extend(["--cluster-transport", "rdma"]);
    let finished = serve(&rdma);
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("use auto or tcp"),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_data_directory_stays_with_its_number() {
    let mut broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    broker.stop();
    let mut other = broker.command();
    other.args(["--broker-id", "2"]);
    let finished = finish(other, b"");
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(
        finished
            .stderr
            .contains("is that of broker 1, and this broker has number 2"),
        "{}",
        finished.stderr
    );
    // A broker without a number is number 1.
    broker.set_flags(&["--broker-id", "1"]);
    broker.restart();
    assert!(broker.run(&["stream", "list"]).contains('s'));
}
