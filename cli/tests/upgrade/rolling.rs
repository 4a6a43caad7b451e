//! Three brokers that are upgraded one after the other while a producer writes.

use std::io::Write;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use kera_metadata::{
    ClusterStore, Compare, EtcdOptions, EtcdStore, Key, MetadataStore, Transaction, Write as Put,
};
use kera_testkit::command::{ended_within, run};
use kera_testkit::etcd::Etcd;
use kera_testkit::place::{Place, start_each};
use kera_testkit::program::{earlier_binary, undisturbed};
use kera_testkit::{PATIENCE, finish};

use crate::common::Broker;
use crate::{kera, lines, read};

struct Trio {
    brokers: Vec<Broker>,
    etcd: Etcd,
    _places: Vec<Place>,
}

impl Trio {
    /// Of the earlier program, over a store that it made.
    fn start(program: &std::path::Path) -> Option<Self> {
        let etcd = Etcd::start()?;
        let store = etcd.address();
        let mut init = undisturbed(std::process::Command::new(program), "KERA_");
        init.args(["cluster", "init", "--cluster", &store]);
        run(init, b"", PATIENCE);
        let more = ["--cluster-lease", "2s", "--cluster-repair-interval", "1s"];
        let (brokers, places) = start_each(3, ["--cluster", &store], &more, |_, flags| {
            // The names that the earlier program knows; the present one takes them as well.
            let earlier = |flag: &&str| flag.replace("--replica-store-", "--backup-");
            let flags: Vec<_> = flags.iter().map(earlier).collect();
            let flags: Vec<_> = flags.iter().map(String::as_str).collect();
            Broker::of(program, &flags)
        });
        Some(Self {
            brokers,
            etcd,
            _places: places,
        })
    }

    fn bootstrap(&self) -> String {
        Broker::bootstrap(&self.brokers)
    }

    /// As an operator does it: waits until the plan says that a broker may be restarted, and restarts it.
    fn replace(&mut self, broker: usize, program: Option<&std::path::Path>) {
        self.settles();
        assert!(self.brokers[broker].stop().success());
        self.brokers[broker].set_program(program);
        self.brokers[broker].restart();
    }

    /// Waits until `kera broker restart-plan` has nothing to wait for.
    #[expect(
        clippy::disallowed_methods,
        reason = "nobody tells when all replicas are there"
    )]
    fn settles(&self) {
        let begin = Instant::now();
        loop {
            let mut plan = kera();
            plan.args(["broker", "restart-plan"]);
            plan.env("KERA_BOOTSTRAP", self.bootstrap());
            let finished = finish(plan, b"");
            if finished.status.success() {
                return;
            }
            let said = finished.text() + &finished.stderr;
            assert!(begin.elapsed() < 2 * PATIENCE, "it stays at: {said}");
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }
}

/// A producer that writes until it is told to end.
struct Load {
    child: Child,
    ends: Arc<AtomicBool>,
    writing: JoinHandle<usize>,
}

impl Load {
    fn start(bootstrap: &str) -> Self {
        let mut produce = kera();
        produce
            .args([
                "produce",
                "clicks",
                "-q",
                "--rate",
                "2000/s",
                "--key-separator",
                ",",
            ])
            .args(["--batch-size", "2KiB"])
            .env("KERA_BOOTSTRAP", bootstrap)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = produce.spawn().expect("a producer can be started");
        let stdin = child.stdin.take().expect("standard input is piped");
        let ends = Arc::new(AtomicBool::new(false));
        let until = ends.clone();
        let writing = std::thread::spawn(move || write(stdin, &until));
        Self {
            child,
            ends,
            writing,
        }
    }

    /// Every record is acknowledged; how many those are.
    fn end(self) -> usize {
        self.ends.store(true, Ordering::Relaxed);
        let written = self.writing.join().expect("lines are written");
        let finished = ended_within(self.child, PATIENCE, "the producer");
        assert!(finished.status.success(), "{}", finished.stderr);
        written
    }
}

/// The pipe takes as much as the producer sends.
fn write(mut stdin: ChildStdin, ends: &AtomicBool) -> usize {
    let mut written = 0;
    while !ends.load(Ordering::Relaxed) {
        for line in lines(written..written + 50) {
            writeln!(stdin, "{line}").expect("the producer reads");
        }
        written += 50;
    }
    written
}

#[test]
fn brokers_are_upgraded_one_by_one_under_load_and_back_and_nothing_is_lost() {
    let Some(earlier) = earlier_binary() else {
        return;
    };
    let Some(mut trio) = Trio::start(earlier) else {
        return;
    };
    let create = [
        "stream",
        "create",
        "clicks",
        "--streamlets",
        "3",
        "--replicas",
        "3",
    ];
    let small = [
        "--min-insync-replicas",
        "2",
        "--segment-size",
        "64KiB",
        "--segments-per-group",
        "2",
    ];
    trio.brokers[0].until(&["cluster", "status"], |told| {
        told["brokers"].as_array().is_some_and(|all| all.len() == 3)
    });
    trio.brokers[0].run(&[&create[..], &small].concat());
    let load = Load::start(&trio.bootstrap());
    let finalize = ["cluster", "finalize", "--yes"];
    for broker in 0..3 {
        trio.replace(broker, None);
        if broker == 0 {
            let said = trio.brokers[0].refused(&finalize);
            assert!(
                said.contains("broker 2") && !said.contains("broker 1"),
                "{said}"
            );
            let status = trio.brokers[0].run(&["cluster", "status"]);
            assert!(
                status.contains("an upgrade is under way, 1 of 3"),
                "{status}"
            );
        }
    }
    // Back with one of them, and forward again.
    trio.replace(1, Some(earlier));
    trio.replace(1, None);
    trio.settles();
    let said = trio.brokers[2].refused(&[
        "stream",
        "create",
        "tables",
        "--cleanup",
        "compact",
        "--replicas",
        "1",
    ]);
    assert!(said.contains("kera cluster finalize"), "{said}");
    let status = trio.brokers[2].run(&["cluster", "status"]);
    assert!(status.contains("run `kera cluster finalize`"), "{status}");
    // One that was drained and stopped before its update owns and holds nothing, and is waited for all the same.
    let store = EtcdStore::open(&trio.etcd.address(), EtcdOptions::default());
    let store = store.expect("it opens");
    let mut drained = store.brokers().expect("they are read")[0].clone();
    drained.id = 4;
    drained.store_id = uuid::Uuid::from_u128(4);
    drained.version = "0.0.1".to_owned();
    let is_new = vec![Compare::revision(Key::Broker(4), 0)];
    let put = Transaction::new(is_new, vec![Put::PutBroker(drained)]);
    store.commit(put).expect("it is recorded");
    let said = trio.brokers[1].refused(&finalize);
    assert!(said.contains("broker 4 is away"), "{said}");
    let without = [&finalize[..], &["--without-brokers", "4"]].concat();
    assert_eq!(trio.brokers[1].json(&without)["version"], 7);
    let written = load.end();
    assert!(written > 0);
    assert_eq!(read(&trio.brokers[0], "clicks"), lines(0..written));
    // All of them have heard of it.
    for (n, broker) in trio.brokers.iter().enumerate() {
        broker.until(&["cluster", "status"], |told| told["cluster_version"] == 7);
        let name = format!("tables{n}");
        broker.run(&[
            "stream",
            "create",
            &name,
            "--cleanup",
            "compact",
            "--replicas",
            "1",
        ]);
    }

    // A later program finalizes a later version while one of this program is at work: it ends, and says why.
    let mut settings = store.settings(None).expect("it is read");
    settings.cluster_version = 99;
    let compare = Compare::revision(Key::Settings(None), settings.revision);
    let put = Transaction::new(vec![compare], vec![Put::PutSettings(settings)]);
    store.commit(put).expect("it is recorded");
    for broker in &mut trio.brokers {
        let said = broker.ended();
        assert!(said.contains("finalized as version 99"), "{said}");
    }
    let ended = finish(trio.brokers[0].command(), b"");
    assert!(
        ended.stderr.contains("the cluster is of version 99"),
        "{}",
        ended.stderr
    );
}
