//! The command line and the client crates over TLS, and what they say where it fails.

use std::path::Path;

use crate::certificates::{Authority, Files};
use crate::common::{Broker, Finished, finish, kera};
use kera_rpc::{ClientTls, ConnectOptions, DataConnection, TlsFiles};

const CA: &str = "KERA_TLS_CA";
const CERTIFICATE: &str = "KERA_TLS_CLIENT_CERT";
const KEY: &str = "KERA_TLS_CLIENT_KEY";
const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// Runs a command against a broker, with what it is to know of TLS in its environment.
fn run(broker: &Broker, tls: &[(&str, &Path)], words: &[&str], input: &[u8]) -> Finished {
    let mut command = kera();
    command.args(words).env("KERA_BOOTSTRAP", broker.address());
    for (name, path) in tls {
        command.env(name, path);
    }
    finish(command, input)
}

fn succeeds(finished: Finished) -> String {
    assert!(finished.status.success(), "{}", finished.stderr);
    finished.text()
}

#[test]
fn what_is_produced_is_consumed_with_a_certificate_on_both_sides() {
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let files = Files::new(&servers.server(&NAMES), Some(&clients));
    let mut broker = files.broker("native", &["--tls-client-auth", "required"]);
    let ann = clients.client("ann");
    let ca = files.write("ca.pem", &servers.pem);
    let (certificate, key) = (
        files.write("ann.pem", &ann.certificate),
        files.write("ann-key.pem", &ann.key),
    );
    let tls = [
        (CA, ca.as_path()),
        (CERTIFICATE, certificate.as_path()),
        (KEY, key.as_path()),
    ];
    succeeds(run(
        &broker,
        &tls,
        &["stream", "create", "clicks", "--streamlets", "2"],
        b"",
    ));
    // 40 MB: more than any buffer on the way takes.
    let lines: Vec<String> = (0..4000_usize)
        .map(|number| format!("{number}-{}", "x".repeat(number * 13 % 20_000)))
        .collect();
    let input = lines.join("\n") + "\n";
    succeeds(run(
        &broker,
        &tls,
        &["produce", "clicks", "-q"],
        input.as_bytes(),
    ));
    let mut expected: Vec<&str> = lines.iter().map(String::as_str).collect();
    expected.sort_unstable();
    for words in [
        &["consume", "clicks"][..],
        &["consume", "clicks", "--group", "g"],
    ] {
        let text = succeeds(run(&broker, &tls, words, b""));
        let mut read: Vec<&str> = text.lines().collect();
        read.sort_unstable();
        assert!(read == expected, "{words:?}: {} lines", read.len());
        broker.kill();
        broker.restart();
    }
    succeeds(run(&broker, &tls, &["group", "describe", "g"], b""));
    succeeds(run(&broker, &tls, &["broker", "describe"], b""));
    let bench = ["bench", "e2e", "load", "--records", "10000", "--no-disk"];
    succeeds(run(&broker, &tls, &bench, b""));
    // As flags.
    let path = |path: &Path| path.display().to_string();
    let (ca, certificate, key) = (path(&ca), path(&certificate), path(&key));
    let flags = [
        "--tls-ca",
        &ca,
        "--tls-cert",
        &certificate,
        "--tls-key",
        &key,
    ];
    succeeds(run(
        &broker,
        &[],
        &[&["stream", "list"], &flags[..]].concat(),
        b"",
    ));
}

/// Why a broker's address is of no use for control calls, and for data.
fn errors(address: &str, tls: &[(&str, &Path)]) -> [String; 2] {
    let mut command = kera();
    command
        .args(["stream", "list"])
        .env("KERA_BOOTSTRAP", address);
    for (name, path) in tls {
        command.env(name, path);
    }
    let finished = finish(command, b"");
    assert_eq!(finished.status.code(), Some(1), "{}", finished.text());
    let file = |wanted: &str| {
        let found = tls.iter().find(|(name, _)| *name == wanted);
        found.map(|(_, path)| path.to_path_buf())
    };
    let tls = file(CA).map(|ca| {
        let files = TlsFiles {
            ca,
            certificate: file(CERTIFICATE),
            key: file(KEY),
        };
        ClientTls::from_files(&files).expect("files that can be used")
    });
    let options = ConnectOptions {
        tls,
        ..ConnectOptions::default()
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let connected = runtime.block_on(DataConnection::connect(address, &options, None));
    let error = connected.expect_err("it is refused");
    [finished.stderr, error.to_string()]
}

#[test]
fn errors_say_what_to_do() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let ann = other.client("ann");
    let files = Files::new(&ours.server(&["localhost", "kera.example"]), None);
    let ca = (CA, &*files.write("ca.pem", &ours.pem));
    let wrong_ca = (CA, &*files.write("other.pem", &other.pem));
    let certificate = (CERTIFICATE, &*files.write("ann.pem", &ann.certificate));
    let key = (KEY, &*files.write("ann-key.pem", &ann.key));
    let says = |address: &str, tls: &[(&str, &Path)], what: &str| {
        for said in errors(address, tls) {
            assert!(said.contains(what), "{tls:?}: {said}");
        }
    };
    let named = files.broker("native", &[]);
    let address = named.address().replace("127.0.0.1", "localhost");
    says(
        &address,
        &[wrong_ca],
        "name that authority's certificate (--tls-ca FILE or KERA_TLS_CA)",
    );
    says(
        &address,
        &[],
        "name the authority that signed its certificate (--tls-ca FILE or KERA_TLS_CA)",
    );
    says(
        named.address(),
        &[ca],
        "is not for 127.0.0.1, its names are localhost, kera.example; connect by one of these",
    );
    let expired = Files::new(&ours.expired(&NAMES), None).broker("native", &[]);
    says(
        expired.address(),
        &[ca],
        "the broker's certificate has expired; have it replaced",
    );
    let plain = Broker::start();
    says(
        plain.address(),
        &[ca],
        "the broker does not speak TLS at this address; connect without",
    );
    let choosy = Files::new(&ours.server(&NAMES), Some(&ours));
    let choosy = choosy.broker("native", &["--tls-client-auth", "required"]);
    says(choosy.address(), &[ca], "(--tls-cert and --tls-key)");
    says(
        choosy.address(),
        &[ca, certificate, key],
        "(--tls-cert and --tls-key)",
    );
    // Files that are no such files, and half of what is needed.
    let refused = |tls: &[(&str, &Path)], what: &str| {
        let finished = run(&named, tls, &["stream", "list"], b"");
        assert_eq!(finished.status.code(), Some(2), "{}", finished.stderr);
        assert!(finished.stderr.contains(what), "{}", finished.stderr);
    };
    refused(&[(CA, key.1)], "holds no certificate");
    refused(
        &[(CA, Path::new("/nowhere.pem"))],
        "cannot read /nowhere.pem",
    );
    refused(&[ca, certificate], "--tls-key");
    refused(&[ca, (CERTIFICATE, ca.1), key], "do not go together");
}

/// What a command says of a pipe that nobody writes into, in place of a file that it needs.
#[test]
fn a_file_that_never_comes_holds_no_command() {
    let servers = Authority::new("servers");
    let files = Files::new(&servers.server(&NAMES), None);
    let broker = files.broker("native", &[]);
    let ca = files.write("ca.pem", &servers.pem);
    let pipe = files.path("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, mode, 0).expect("a pipe");
    let named = pipe.display().to_string();
    let tls = [(CA, ca.as_path())];
    let list = ["stream", "list"];
    for (words, why) in [
        (&["--token-file", &named][..], "no regular file"),
        (
            &["--user", "ann", "--user-password-file", &named],
            "nobody writes into",
        ),
    ] {
        let failed = run(&broker, &tls, &[&list, words].concat(), b"");
        let told = failed.stderr.contains(&named) && failed.stderr.contains(why);
        assert!(!failed.status.success() && told, "{}", failed.stderr);
    }
    let failed = run(&broker, &[(CA, pipe.as_path())], &list, b"");
    let told = failed.stderr.contains(&named) && failed.stderr.contains("no regular file");
    assert!(!failed.status.success() && told, "{}", failed.stderr);
}
