//! Listeners for Kafka's clients, as the command line sets them up.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use kera_testkit::http::get;

use crate::common::{Broker, PATIENCE, finish, home, kera};

/// The addresses at which the broker said that it serves Kafka's clients.
pub(crate) fn addresses(log: &str) -> Vec<String> {
    let lines = log
        .lines()
        .filter(|line| line.contains("serving Kafka clients"));
    let address = |line: &str| {
        let (_, rest) = line.split_once("address=")?;
        rest.split_whitespace().next().map(str::to_owned)
    };
    lines.filter_map(address).collect()
}

/// Asks for the versions of the APIs in the oldest form: length, API 18, version 0, correlation 7, no client id.
const ASK_VERSIONS: [u8; 14] = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff];

/// Asks for the versions of the APIs, and returns the error code.
pub(crate) fn ask_versions(address: &str) -> i16 {
    let mut stream = TcpStream::connect(address).expect("the broker listens");
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("a socket has a timeout");
    stream
        .write_all(&ASK_VERSIONS)
        .expect("a request can be sent");
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).expect("there is a reply");
    assert_eq!(reply[4..8], [0, 0, 0, 7]);
    i16::from_be_bytes([reply[8], reply[9]])
}

#[test]
fn each_address_serves_and_is_described_with_what_it_advertises() {
    let broker = Broker::with(&[
        "--kafka-listen",
        "127.0.0.1:0,127.0.0.1:0",
        "--kafka-advertise",
        "one.example:9092,two.example:9093",
    ]);
    // The listeners of Kafka's clients are announced before the broker's own.
    let addresses = addresses(&broker.log());
    assert_eq!(addresses.len(), 2, "{}", broker.log());
    for address in &addresses {
        assert_eq!(ask_versions(address), 0);
    }
    let described = broker.run(&["broker", "describe"]);
    let expected = "127.0.0.1:0 as one.example:9092, 127.0.0.1:0 as two.example:9093";
    assert!(described.contains(expected), "{described}");
    let described = broker.json(&["broker", "describe"]);
    assert_eq!(described["kafka"][1]["advertised"], "two.example:9093");
}

#[test]
fn without_an_address_there_is_no_listener() {
    let broker = Broker::start();
    assert_eq!(addresses(&broker.log()), Vec::<String>::new());
    let described = broker.run(&["broker", "describe"]);
    let line = described.lines().find(|line| line.contains("Kafka"));
    assert!(
        line.is_some_and(|line| line.ends_with(" off")),
        "{described}"
    );
}

#[test]
fn settings_that_contradict_each_other_are_refused_before_anything_starts() {
    let home = home();
    for (flags, said) in [
        (["--kafka-advertise", "a:9092"], "kafka.listen is off"),
        (["--kafka-listen", "localhost"], "localhost:9092"),
        (["--kafka-listen", "PLAINTEXT://:9092"], "leave out"),
    ] {
        let mut serve = kera();
        serve.arg("serve").arg("--data-dir").arg(home.path());
        serve.args(flags);
        let finished = finish(serve, b"");
        assert_eq!(finished.status.code(), Some(2), "{}", finished.stderr);
        assert!(finished.stderr.contains(said), "{}", finished.stderr);
    }
}

#[test]
fn a_kafka_port_in_use_is_named_with_its_key() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let home = home();
    let mut serve = kera();
    serve
        .args(["serve", "--listen", "127.0.0.1:0", "--http-listen", "off"])
        .args(["--kafka-listen", &address, "--data-dir"])
        .arg(home.path());
    let finished = finish(serve, b"");
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains(&address), "{}", finished.stderr);
    assert!(finished.stderr.contains("kafka"), "{}", finished.stderr);
}

#[test]
fn many_bad_connections_are_few_lines_of_the_log() {
    let broker = Broker::with(&["--kafka-listen", "127.0.0.1:0"]);
    let address = addresses(&broker.log()).remove(0);
    for _ in 0..200 {
        let mut stream = TcpStream::connect(&address).expect("the broker listens");
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a socket has a timeout");
        // A request of a negative length.
        stream.write_all(&[0xff; 14]).expect("bytes can be sent");
        let ended = stream.read(&mut [0; 1]);
        assert!(matches!(ended, Ok(0) | Err(_)), "the connection goes on");
    }
    let log = broker.log();
    let lines = log
        .matches("closing the connection of a Kafka client")
        .count();
    assert!((1..100).contains(&lines), "{lines} lines:\n{log}");
}

/// It reads what it is answered, so that nothing bounds it but how fast it is served.
#[test]
fn a_client_that_never_pauses_holds_up_nobody() {
    let any = "127.0.0.1:0";
    let flags = ["--http-listen", any, "--kafka-listen", any];
    // All connections have one thread.
    let broker = Broker::with(&[&flags[..], &["--runtime-threads", "1"]].concat());
    let address = addresses(&broker.log()).remove(0);
    let client = TcpStream::connect(&address).expect("the broker listens");
    let end = || client.try_clone().expect("a socket has two ends");
    let (mut asks, mut answers) = (end(), end());
    let asking = thread::spawn(move || {
        let many = ASK_VERSIONS.repeat(1_000);
        while asks.write_all(&many).is_ok() {}
    });
    let (began, begins) = mpsc::sync_channel(1);
    let reading = thread::spawn(move || {
        let mut read = vec![0; 1 << 20];
        while answers.read(&mut read).is_ok_and(|read| read > 0) {
            // One word of it is enough.
            let _ = began.try_send(());
        }
    });
    for _ in 0..10 {
        begins.recv_timeout(PATIENCE).expect("it is answered");
        let ready = get(broker.http(), "/readyz");
        assert!(ready.contains("ready"), "{ready}");
    }
    client.shutdown(Shutdown::Both).expect("it ends");
    asking.join().expect("it has asked");
    reading.join().expect("it has read");
}
