//! The Java client of `connectors/java-client`: its own suite against a broker.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::common::{Broker, command, machine};

/// With an empty cache Maven downloads its plugins first.
const BUILD: Duration = Duration::from_secs(300);

fn workspace() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn is_there(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .output()
        .is_ok_and(|told| told.status.success())
}

#[test]
fn the_java_client_administers_and_reads() {
    for program in ["java", "javac", "mvn"] {
        if !is_there(program) {
            machine::skip("the Java client", &format!("{program} is not installed"));
            return;
        }
    }
    let project = workspace().join("connectors/java-client");
    let build = tempfile::tempdir().expect("a directory");
    let class_path = build.path().join("class-path");
    let mut maven = Command::new("mvn");
    maven
        .args(["--batch-mode", "--quiet", "--no-transfer-progress"])
        .arg("--file")
        .arg(project.join("pom.xml"))
        .arg(format!("-Dagent.build={}", build.path().display()))
        .args(["test-compile", "dependency:build-classpath"])
        .arg(format!("-Dmdep.outputFile={}", class_path.display()));
    command::run(maven, b"", BUILD);
    let jars = std::fs::read_to_string(&class_path).expect("Maven wrote the class path");

    let broker = Broker::start();
    broker.run(&["stream", "create", "s", "--streamlets", "1", "--lanes", "1"]);
    let records: String = (0..20).map(|n| format!("{n}\n")).collect();
    broker.feed(&["produce", "s"], records.as_bytes());
    // The vectors have only blocks that are stored; these are compressed.
    let long: String = (0..20)
        .map(|n| format!("{}{n}\n", "long".repeat(50)))
        .collect();
    for codec in ["gzip", "snappy", "lz4", "zstd"] {
        broker.run(&[
            "stream",
            "create",
            codec,
            "--streamlets",
            "1",
            "--lanes",
            "1",
        ]);
        broker.feed(&["produce", codec, "--compression", codec], long.as_bytes());
    }
    let at = build.path().display();
    let mut suite = Command::new("java");
    suite
        .arg("-cp")
        .arg(format!("{at}/classes:{at}/test-classes:{}", jars.trim()))
        .arg("io.kera.client.Suite")
        .arg(workspace().join("protocol/tests/vectors/wire.txt"))
        .arg(broker.address());
    assert_eq!(command::run(suite, b"", BUILD), "passed\n");
}
