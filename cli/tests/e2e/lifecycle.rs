//! Starting and stopping.

use std::path::Path;
use std::time::Duration;

use kera_producer::{Producer, Record};

use crate::common::{Broker, Finished, finish, home, kera};

/// Starts a broker that cannot start, and waits for its end.
fn serve(listen: &str, data_dir: &Path) -> Finished {
    let mut serve = kera();
    serve
        .args(["serve", "--listen", listen, "--http-listen", "off"])
        .arg("--data-dir")
        .arg(data_dir);
    finish(serve, b"")
}

#[test]
fn a_second_broker_on_the_same_directory_is_refused() {
    let mut broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    let finished = serve("127.0.0.1:0", broker.data_dir());
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let directory = broker.data_dir().display().to_string();
    assert!(finished.stderr.contains(&directory), "{}", finished.stderr);
    assert!(
        finished.stderr.contains(&broker.pid().to_string()),
        "it names the other process: {}",
        finished.stderr
    );
    assert_eq!(finished.text(), "", "it never listened");
    // The first one does not notice; and its death frees the directory.
    broker.feed(&["produce", "s", "-q"], b"one\n");
    broker.kill();
    broker.restart();
    assert_eq!(broker.run(&["consume", "s"]), "one\n");
}

#[test]
fn an_address_beyond_loopback_is_refused_before_anything_starts_unless_that_is_meant() {
    let home = home();
    let file = home.path().join("file");
    std::fs::write(&file, "").expect("a file can be written");
    // A data directory that is none, so that what is accepted ends, too.
    let attempt = |words: &[&str]| {
        let mut command = kera();
        command.args(words).arg("--data-dir").arg(&file);
        finish(command, b"")
    };
    let etcd = ["--cluster", "etcd://127.0.0.1:1", "--broker-id", "1"];
    let serve = ["serve", "--listen", "127.0.0.1:0", "--http-listen", "off"];
    let store = ["replica-store", "--http-listen", "off"];
    let beyond = "192.0.2.1:0";
    for (process, flags, listener) in [
        (
            &["serve", "--http-listen", "off"][..],
            &["--listen", beyond][..],
            "native",
        ),
        (&serve, &["--kafka-listen", beyond], "kafka"),
        (
            &["serve", "--listen", "127.0.0.1:0"],
            &["--http-listen", beyond],
            "http",
        ),
        (
            &serve,
            &[&etcd[..], &["--replication-listen", beyond]].concat(),
            "cluster",
        ),
        (
            &store,
            &[&etcd[..], &["--replication-listen", beyond]].concat(),
            "cluster",
        ),
    ] {
        let words = [process, flags].concat();
        let refused = attempt(&words);
        assert_eq!(
            refused.status.code(),
            Some(2),
            "{words:?}: {}",
            refused.stderr
        );
        let told = format!("--insecure {listener}");
        assert!(
            refused.stderr.contains("is beyond loopback") && refused.stderr.contains(&told),
            "{words:?}: {}",
            refused.stderr
        );
        for accepted in [&["--insecure"][..], &["--insecure", listener]] {
            let words = [&words[..], accepted].concat();
            let tried = attempt(&words);
            assert_eq!(tried.status.code(), Some(1), "{words:?}: {}", tried.stderr);
        }
        let other = if listener == "http" { "native" } else { "http" };
        let words = [&words[..], &["--insecure", other]].concat();
        assert_eq!(attempt(&words).status.code(), Some(2), "{words:?}");
    }
}

#[test]
fn an_etcd_elsewhere_without_tls_is_refused_where_clients_are_asked_who_they_are() {
    let home = home();
    let file = home.path().join("kera.toml");
    let text = "[http]\nlisten = \"off\"\n[kafka]\nlisten = \"127.0.0.1:0\"\n";
    std::fs::write(&file, text).expect("a file can be written");
    let etcd = ["--cluster", "etcd://192.0.2.1:2379", "--broker-id", "1"];
    let users = ["--auth-listeners", "kafka"];
    let attempt = |process: &[&str]| {
        let mut command = kera();
        command.args(process).args(etcd).args(users);
        // A data directory that is none, so that what is accepted ends, too.
        command.arg("--config").arg(&file);
        command.arg("--data-dir").arg(&file);
        finish(command, b"")
    };
    let says_what_to_do = |finished: &Finished| {
        assert_eq!(finished.status.code(), Some(2), "{}", finished.stderr);
        for part in [
            "cluster.store: etcd://192.0.2.1:2379 is not on this machine",
            "set cluster.store_ca",
            "--insecure etcd",
        ] {
            assert!(finished.stderr.contains(part), "{}", finished.stderr);
        }
    };
    for process in ["serve", "replica-store"] {
        says_what_to_do(&attempt(&[process]));
        let accepted = attempt(&[process, "--insecure=etcd"]);
        assert_eq!(accepted.status.code(), Some(1), "{}", accepted.stderr);
    }

    let environment = home.path().join("member.env");
    let check = |more: &str| {
        let store = "KERA_CLUSTER_STORE=etcd://192.0.2.1:2379\nKERA_CLUSTER_BROKER_ID=1\n";
        let text = format!("{store}{more}");
        std::fs::write(&environment, text).expect("a file can be written");
        let mut command = kera();
        command.args(["config", "check"]).arg(&file);
        command.arg("--env-file").arg(&environment);
        finish(command, b"")
    };
    says_what_to_do(&check("KERA_AUTH_LISTENERS=kafka\n"));
    for accepted in ["etcd", "true"] {
        let more = format!("KERA_AUTH_LISTENERS=kafka\nKERA_INSECURE={accepted}\n");
        let good = check(&more);
        assert!(good.status.success(), "{}", good.stderr);
        let warned = good.stderr.contains("warning: as insecure says");
        assert!(warned, "{}", good.stderr);
    }
    // Without users nothing is protected.
    let open = check("");
    assert!(open.status.success(), "{}", open.stderr);
    let reach = "cluster.store etcd://192.0.2.1:2379, not on this machine, without TLS, as nobody";
    let told = open.text();
    let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains(reach), "{told}");
}

/// Threads of the broker that are not stopped.
fn running_threads(broker: &Broker) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", broker.pid())).expect("its threads");
    let states = tasks.map(|task| {
        let stat = task.expect("a thread").path().join("stat");
        std::fs::read_to_string(stat).expect("the state of a thread")
    });
    // After the name, which is in brackets.
    let is_stopped = |stat: &str| {
        let after = stat.rsplit_once(") ");
        after.is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    states.filter(|stat| !is_stopped(stat)).collect()
}

#[test]
fn a_broker_that_is_paused_stands_still_when_the_test_goes_on() {
    let mut broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    for _ in 0..200 {
        broker.pause(true);
        assert_eq!(running_threads(&broker), [""; 0]);
        broker.pause(false);
    }
    // It is as it was: it answers, and its end is still to be waited for.
    broker.feed(&["produce", "s", "-q"], b"one\n");
    assert!(broker.stop().success());
}

#[test]
fn a_port_in_use_is_named() {
    let broker = Broker::start();
    let home = home();
    let finished = serve(broker.address(), home.path());
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(
        finished.stderr.contains(broker.address()),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_directory_of_something_else_is_left_alone() {
    let home = home();
    std::fs::write(home.path().join("thesis.txt"), "years of work").expect("a file is written");
    let finished = serve("127.0.0.1:0", home.path());
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("thesis.txt"),
        "{}",
        finished.stderr
    );
    let left: Vec<_> = std::fs::read_dir(home.path())
        .expect("the directory can be read")
        .map(|entry| entry.expect("an entry").file_name())
        .filter(|name| name != "LOCK")
        .collect();
    assert_eq!(left, ["thesis.txt"]);
}

#[test]
fn sigterm_stops_an_idle_broker() {
    let mut broker = Broker::start();
    broker.run(&["stream", "create", "s"]);
    broker.feed(&["produce", "s", "-q"], b"one\n");
    let status = broker.stop();
    assert!(status.success(), "{status}: {}", broker.log());
    broker.restart();
    assert_eq!(broker.run(&["consume", "s"]), "one\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_loses_nothing_of_a_stream_of_appends() {
    let mut broker = Broker::start();
    broker.run(&[
        "stream",
        "create",
        "s",
        "--lanes",
        "2",
        "--segment-size",
        "256KiB",
    ]);
    let producer = Producer::builder()
        .bootstrap(broker.address())
        .stream("s")
        .deadline(Duration::from_secs(60))
        .build()
        .await
        .expect("a producer can be built");
    let mut deliveries = Vec::new();
    for round in 0..3_u32 {
        for n in 0..20_000_u32 {
            let key = (n % 100).to_le_bytes();
            let value = (round * 20_000 + n).to_le_bytes();
            let record = Record::keyed(&key, &value);
            deliveries.push(
                producer
                    .append_wait(&record)
                    .await
                    .expect("a record is taken"),
            );
        }
        // Much of it is under way now.
        let status = tokio::task::block_in_place(|| broker.stop());
        assert!(status.success(), "{status}");
        tokio::task::block_in_place(|| broker.restart());
    }
    let mut places = std::collections::BTreeSet::new();
    for delivery in deliveries {
        let place = delivery.await.expect("every record is stored in the end");
        assert!(places.insert((place.streamlet, place.lane, place.ordinal)));
    }
    producer.close().await.expect("a producer can be closed");
    let read = tokio::task::block_in_place(|| broker.attempt(&["consume", "s", "-f", "raw"], b""));
    let mut values: Vec<u32> = read
        .stdout
        .chunks(4)
        .map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")))
        .collect();
    values.sort_unstable();
    assert!(
        values == (0..60_000).collect::<Vec<_>>(),
        "{} values",
        values.len()
    );
}
