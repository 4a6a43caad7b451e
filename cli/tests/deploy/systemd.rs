//! The unit of systemd: what systemd says of it, and a broker under what it allows.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use kera_broker::config::BrokerConfig;

use crate::common::{PATIENCE, home, machine};
use crate::process::Process;
use crate::read;
use crate::sandbox::{Allowed, IO_URING, spawn};
use crate::settings::{check_environment, check_file};
use crate::tools::{run, wanted};

const UNIT: &str = "deploy/systemd/kera.service";
/// What a broker of a cluster has beside it.
const CLUSTER: &str = "deploy/systemd/cluster.conf";
/// What `systemd-analyze security` may find the unit exposed by, in tenths: 13 with systemd 252, of
/// which 11 are the network and `/proc`, which a broker needs.
const EXPOSURE: &str = "15";

/// The values of a setting of the unit, each time that it is set.
fn settings(unit: &str, name: &str) -> Vec<String> {
    let lines = unit.lines().filter_map(|line| line.split_once('='));
    lines
        .filter(|(key, _)| *key == name)
        .map(|(_, value)| value.to_owned())
        .collect()
}

fn setting(name: &str) -> String {
    let mut values = settings(&read(UNIT), name);
    assert_eq!(values.len(), 1, "{name}: {values:?}");
    values.remove(0)
}

#[test]
fn systemd_understands_the_unit_and_finds_it_hardened() {
    const NAME: &str = "systemd_understands_the_unit_and_finds_it_hardened";
    let Some(analyze) = wanted(NAME, "systemd-analyze") else {
        return;
    };
    let home = home();
    let path = home.path().join("kera.service");
    // The program is where packages put it; here it is where cargo does.
    let unit = read(UNIT).replace("/usr/bin/kera", env!("CARGO_BIN_EXE_kera"));
    fs::write(&path, &unit).expect("a unit");
    let verify = |path: &Path| {
        let mut command = Command::new(&analyze);
        command.args(["--man=no", "verify"]).arg(path);
        run(command)
    };
    let verdict = verify(&path);
    // What it does not understand it warns of, and calls that good.
    assert!(verdict.good && verdict.said.is_empty(), "{}", verdict.said);

    let security = |path: &Path| {
        let mut command = Command::new(&analyze);
        command
            .args(["--no-pager", "security", "--offline=true"])
            .arg(format!("--threshold={EXPOSURE}"))
            .arg(path);
        run(command)
    };
    let verdict = security(&path);
    assert!(verdict.good, "{}", verdict.said);

    // Both are seen to mind.
    fs::write(&path, unit.replace("KillMode=mixed", "KillMood=mixed")).expect("a unit");
    assert!(verify(&path).said.contains("KillMood"));
    let soft = unit
        .replace("NoNewPrivileges=yes", "")
        .replace("CapabilityBoundingSet=\n", "");
    fs::write(&path, soft).expect("a unit");
    assert!(!security(&path).good);
}

#[test]
fn systemd_understands_the_unit_of_a_clusters_broker() {
    const NAME: &str = "systemd_understands_the_unit_of_a_clusters_broker";
    let Some(analyze) = wanted(NAME, "systemd-analyze") else {
        return;
    };
    let home = home();
    let path = home.path().join("kera.service");
    let unit = read(UNIT).replace("/usr/bin/kera", env!("CARGO_BIN_EXE_kera"));
    fs::write(&path, &unit).expect("a unit");
    let beside = home.path().join("kera.service.d");
    fs::create_dir(&beside).expect("a folder");
    let verify = |text: &str| {
        fs::write(beside.join("cluster.conf"), text).expect("a file");
        let mut command = Command::new(&analyze);
        command.args(["--man=no", "verify"]).arg(&path);
        run(command)
    };
    let file = read(CLUSTER);
    let verdict = verify(&file);
    assert!(verdict.good && verdict.said.is_empty(), "{}", verdict.said);
    let wrong = file.replace("EnvironmentFile=", "EnvironmentFail=");
    assert!(verify(&wrong).said.contains("EnvironmentFail"));
    assert_eq!(settings(&file, "EnvironmentFile"), ["/etc/kera/member.env"]);
}

/// A file of `NAME=value`, as systemd reads it; with what is commented out, too.
fn environment(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().map(|line| line.trim_start_matches("# "));
    lines
        .filter_map(|line| line.split_once('='))
        .filter(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[test]
fn the_files_of_a_clusters_broker_agree() {
    let file = read("deploy/systemd/cluster.toml");
    let own = environment(&read("deploy/systemd/member.env"));
    check_environment(own.iter().map(|(name, value)| (&**name, &**value)));
    // The file is whole once the broker has its number.
    check_file(&file.replace("[cluster]", "[cluster]\nbroker_id = 1"));
    let file: toml::Table = file.parse().expect("TOML");
    let one: toml::Table = read("deploy/systemd/kera.toml").parse().expect("TOML");
    assert_eq!(file["data_dir"], one["data_dir"]);
}

#[test]
fn the_unit_agrees_with_the_broker() {
    let config = BrokerConfig::default();
    let drain = config.server.drain_timeout;
    let stop = setting("TimeoutStopSec");
    let stop: u64 = stop.trim_end_matches('s').parse().expect("seconds");
    assert!(
        // Handing over, draining, and as long again for the rest.
        Duration::from_secs(stop) >= drain * 3,
        "SIGKILL comes before the groups are closed"
    );
    assert_eq!(setting("Type"), "notify");
    assert_eq!(setting("StateDirectory"), "kera");
    let file: toml::Table = read("deploy/systemd/kera.toml").parse().expect("TOML");
    assert_eq!(file["data_dir"].as_str(), Some("/var/lib/kera"));
    let exec = setting("ExecStart");
    assert_eq!(exec, "/usr/bin/kera serve --config /etc/kera/kera.toml");
    assert_eq!(setting("ConfigurationDirectory"), "kera");
    let user = read("deploy/systemd/kera.sysusers");
    let line = format!("\nu {} ", setting("User"));
    assert!(user.contains(&line), "sysusers makes another user: {user}");

    let files: u64 = setting("LimitNOFILE").parse().expect("a number");
    let locked = setting("LimitMEMLOCK");
    let locked: u64 = locked.trim_end_matches('M').parse().expect("MiB");
    let needs = kera_broker::machine::Needs::of(&config, "uring");
    assert!(files >= needs.open_files && locked << 20 >= needs.locked_bytes);
}

/// What the unit's `SystemCallFilter=` lines allow.
fn allowed(analyze: &Path) -> Allowed {
    let mut names = group(analyze, "@default");
    for value in settings(&read(UNIT), "SystemCallFilter") {
        let (denied, list) = match value.strip_prefix('~') {
            Some(list) => (true, list),
            None => (false, value.as_str()),
        };
        for word in list.split_whitespace() {
            let meant = group(analyze, word);
            if denied {
                names.retain(|name| !meant.contains(name));
            } else {
                names.extend(meant);
            }
        }
    }
    Allowed::names(names.iter().map(String::as_str))
}

/// The calls of a group of systemd's; a name that is no group stands for itself.
fn group(analyze: &Path, name: &str) -> BTreeSet<String> {
    if !name.starts_with('@') {
        return BTreeSet::from([name.to_owned()]);
    }
    let mut command = Command::new(analyze);
    command.args(["--no-pager", "syscall-filter", name]);
    let verdict = run(command);
    assert!(verdict.good, "{}", verdict.said);
    let words = verdict.stdout.lines().skip(1).map(str::trim);
    let words = words.filter(|word| !word.is_empty() && !word.starts_with('#'));
    words.flat_map(|word| group(analyze, word)).collect()
}

/// Does with a broker what uses most of the system: all three promises, memory that is given back,
/// reads from files, both kinds of clients' listeners, a restart's worth of closing.
pub fn exercise(process: &Process) {
    for ack in ["memory", "written", "synced"] {
        process.run(
            &["stream", "create", ack, "--ack", ack, "--lanes", "2"],
            b"",
        );
        process.run(&["produce", ack, "-q"], b"one\ntwo\n");
        let read = process.run(&["consume", ack, "--from", "earliest", "--max", "2"], b"");
        assert_eq!(read.lines().count(), 2, "{ack}: {read}");
    }
    assert_eq!(process.get("/readyz").0, 200);
    process.run(&["stream", "delete", "memory", "--yes"], b"");
}

#[test]
fn a_broker_works_under_the_filter_of_the_unit() {
    const NAME: &str = "a_broker_works_under_the_filter_of_the_unit";
    let Some(analyze) = wanted(NAME, "systemd-analyze") else {
        return;
    };
    let allowed = allowed(&analyze);
    assert!(allowed.has("io_uring_enter") && !allowed.has("mount") && !allowed.has("setuid"));
    let Some(process) = Process::start(|command| spawn(command, &allowed)) else {
        machine::skip(
            NAME,
            "needs linux-libc-dev, for the numbers of system calls",
        );
        return;
    };
    exercise(&process);
    let log = process.log();
    let engine = if kernel_grants_io_uring() {
        "uring"
    } else {
        "blocking"
    };
    assert!(log.contains(&format!("engine=\"{engine}\"")), "{log}");
    let status = process.stop();
    assert!(status.success(), "{status}");

    // Without io_uring it works too, and says what to set.
    let less = allowed.without(&IO_URING);
    let process = Process::start(|command| spawn(command, &less)).expect("as before");
    exercise(&process);
    let log = process.log();
    assert!(log.contains("engine=\"blocking\""), "{log}");
    let told = log
        .lines()
        .filter(|line| line.contains("io_uring is refused"));
    assert_eq!(told.count(), 1, "{log}");
    assert!(process.stop().success());
}

/// Whether a broker that nothing restrains has io_uring on this machine.
fn kernel_grants_io_uring() -> bool {
    Process::free().log().contains("engine=\"uring\"")
}

#[test]
fn a_service_manager_hears_when_the_broker_serves_and_when_it_stops() {
    let home = home();
    let path = home.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    manager
        .set_read_timeout(Some(PATIENCE))
        .expect("a timeout can be set");
    let heard = || {
        let mut bytes = [0; 512];
        let length = manager.recv(&mut bytes).expect("the broker tells");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let process = Process::start(|mut command| {
        let child = command.env("NOTIFY_SOCKET", &path).spawn();
        Some(child.expect("it can be started"))
    })
    .expect("it is started");
    assert_eq!(heard(), "STATUS=recovering\n");
    let ready = format!("READY=1\nSTATUS=serving on {}\n", process.address);
    assert_eq!(heard(), ready);
    assert!(process.stop().success());
    assert_eq!(heard(), "STOPPING=1\nSTATUS=draining\n");
}

#[test]
fn limits_that_are_short_are_told_at_start() {
    let process = Process::after("ulimit -n 300");
    let log = process.log();
    let told: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("LimitNOFILE="))
        .collect();
    assert_eq!(told.len(), 1, "{log}");
    assert!(told[0].contains("only 300 files"), "{}", told[0]);
    exercise(&process);
    assert!(process.stop().success());
}
