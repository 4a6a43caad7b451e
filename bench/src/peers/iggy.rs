//! Apache Iggy: a server that someone has put on the PATH, as no registry has one; its configuration
//! in `bench/peers/iggy`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kera_testkit::program::undisturbed;
use toml::Table;

use super::Started;
use super::child::{Process, pause};
use crate::iggy::{Connection, PASSWORD, USER};
use crate::measure::machine::first_line_of;
use crate::scenario::{Broker, ClientPath};

const PROGRAM: &str = "iggy-server";
/// Those that speak the protocol of the client here.
const VERSIONS: &str = "0.8.";
const CONFIGURATION: &str = include_str!("../../peers/iggy/iggy.toml");
/// How long it may take until it answers.
const START: Duration = Duration::from_secs(60);
/// How long a topic may take until its records are told.
const SERVED: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The server, and its version.
pub(super) fn find() -> Result<(PathBuf, String)> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program = find_in(&path).with_context(|| {
        format!(
            "there is no {PROGRAM} on the PATH, and no registry has it: build that of a release \
             {VERSIONS}x of https://github.com/apache/iggy with cargo"
        )
    })?;
    let said = first_line_of(&program.to_string_lossy(), &["--version"]).unwrap_or_default();
    let version = version(&said)?.to_owned();
    Ok((program, version))
}

/// The first file of that name that can be run.
fn find_in(path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(path)
        .map(|folder| folder.join(PROGRAM))
        .find(|program| {
            fs::metadata(program)
                .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        })
}

/// The version in what the server says of itself, if it is one that can be spoken to.
fn version(said: &str) -> Result<&str> {
    let version = said.split_whitespace().next_back().unwrap_or_default();
    ensure!(
        version.starts_with(VERSIONS),
        "{PROGRAM} says that it is `{said}`; others than {VERSIONS}x speak another protocol"
    );
    Ok(version)
}

/// Variables of a server for a mode; each stands for a key of the configuration.
fn settings(broker: Broker) -> &'static [(&'static str, &'static str)] {
    const SAVE_EACH: (&str, &str) = ("IGGY_SYSTEM_PARTITION_MESSAGES_REQUIRED_TO_SAVE", "1");
    const SYNC: (&str, &str) = ("IGGY_SYSTEM_PARTITION_ENFORCE_FSYNC", "true");
    match broker {
        Broker::IggyMemory => &[],
        Broker::IggySynced => &[SAVE_EACH, SYNC],
        _ => &[SAVE_EACH],
    }
}

/// Starts a server on a directory, empty or as an earlier one left it.
pub(super) fn start(broker: Broker, data: &Path) -> Result<Started> {
    let (program, version) = find()?;
    let configuration = data.join("iggy.toml");
    fs::write(&configuration, CONFIGURATION)?;
    let store = data.join("store");
    // An earlier server's would name its port.
    let told = store.join("runtime/current_config.toml");
    let _ = fs::remove_file(&told);
    let settings = settings(broker);
    let mut command = undisturbed(Command::new(program), "IGGY_");
    command
        .current_dir(data)
        .env("IGGY_CONFIG_PATH", &configuration)
        // It would look for a file of variables in every folder above.
        .env("IGGY_ENV_PATH", "/dev/null")
        .env("IGGY_SYSTEM_PATH", &store)
        .env("IGGY_ROOT_USERNAME", USER)
        .env("IGGY_ROOT_PASSWORD", PASSWORD)
        .envs(settings.iter().copied());
    let mut process = Process::start(command, data.join("broker.log"), false)?;
    let address = wait_until_up(&mut process, &told);
    let address = address.with_context(|| process.log_tail())?;
    let mut remarks = String::new();
    for (name, value) in settings {
        remarks.push_str(&format!("# {name}={value}\n"));
    }
    Ok(Started {
        process,
        addresses: [(ClientPath::Iggy, address)].into(),
        version,
        configuration: format!("{remarks}{CONFIGURATION}"),
    })
}

/// Waits until the server has said which port it took, and lets someone log in there.
fn wait_until_up(process: &mut Process, told: &Path) -> Result<String> {
    let begin = Instant::now();
    loop {
        // The file may be there before its text.
        let text = fs::read_to_string(told).unwrap_or_default();
        let why = match address(&text) {
            Some(address) => match Connection::open(&address) {
                Ok(_) => return Ok(address),
                Err(error) => format!("{error:#}"),
            },
            None => "it does not say where it listens".to_owned(),
        };
        if process.ended() {
            bail!("the Iggy server ended at once");
        }
        ensure!(
            begin.elapsed() < START,
            "no Iggy server answers after {START:?} ({why})"
        );
        pause(LOOK_EVERY);
    }
}

/// HOST:PORT in the configuration that the server says it has.
fn address(configuration: &str) -> Option<String> {
    let configuration: Table = configuration.parse().ok()?;
    let address = configuration.get("tcp")?.get("address")?.as_str()?;
    let taken = !address.ends_with(":0");
    taken.then(|| address.to_owned())
}

/// Makes a topic.
pub(super) fn create(address: &str, topic: &str, partitions: u32) -> Result<()> {
    Connection::open(address)?.create(topic, partitions)
}

/// Deletes a topic.
pub(super) fn delete(address: &str, topic: &str) -> Result<()> {
    Connection::open(address)?.delete(topic)
}

/// Waits until the first and the last partition can be read, with records in one of them at least.
pub(super) fn wait_until_served(address: &str, topic: &str, partitions: u32) -> Result<()> {
    let begin = Instant::now();
    let mut connection = Connection::open(address)?;
    loop {
        let mut there = false;
        for partition in [0, partitions.saturating_sub(1)] {
            let mut polled = connection.poll(topic, partition, 0, 1)?;
            there |= polled.next()?.is_some();
        }
        if there {
            return Ok(());
        }
        ensure!(
            begin.elapsed() < SERVED,
            "it is empty, even after {SERVED:?}"
        );
        pause(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iggy::scripted::Scripted;

    #[test]
    fn a_server_is_looked_for_where_programs_are() {
        let folder = tempfile::tempdir().unwrap();
        let (empty, full) = (folder.path().join("a"), folder.path().join("b"));
        for folder in [&empty, &full] {
            fs::create_dir(folder).unwrap();
        }
        let program = full.join(PROGRAM);
        fs::write(&program, "#!/bin/sh\n").unwrap();
        let path = std::env::join_paths([&empty, &full]).unwrap();
        let permit = |mode| fs::set_permissions(&program, fs::Permissions::from_mode(mode));
        permit(0o644).unwrap();
        assert_eq!(find_in(&path), None, "it cannot be run");
        permit(0o755).unwrap();
        assert_eq!(find_in(&path), Some(program.clone()));
        assert_eq!(find_in(empty.as_os_str()), None);
    }

    #[test]
    fn a_server_of_another_protocol_is_refused() {
        assert_eq!(version("server 0.8.0").unwrap(), "0.8.0");
        for said in ["", "server 0.9.0", "iggy-server 0.80.1"] {
            let error = version(said).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn where_the_server_listens_is_read() {
        let told = "[http]\naddress = \"127.0.0.1:3000\"\n[tcp]\naddress = \"127.0.0.1:4321\"\n";
        assert_eq!(address(told), Some("127.0.0.1:4321".to_owned()));
        // As long as it is written.
        let cut = &told[..told.len() - 3];
        for odd in ["", "[tcp]", cut, &told.replace("4321", "0")] {
            assert_eq!(address(odd), None, "{odd}");
        }
    }

    #[test]
    fn every_mode_has_its_settings_and_the_configuration_tells_of_them() {
        let all = [Broker::IggyMemory, Broker::Iggy, Broker::IggySynced].map(settings);
        assert_eq!(all.map(<[_]>::len), [0, 1, 2]);
        for (name, value) in all[2] {
            assert!(CONFIGURATION.contains(&format!("{name}={value}")), "{name}");
        }
        let configuration: Table = CONFIGURATION.parse().unwrap();
        for unused in ["http", "quic", "websocket"] {
            assert_eq!(configuration[unused]["enabled"].as_bool(), Some(false));
        }
        // Nobody else's port is taken.
        let address = configuration["tcp"]["address"].as_str();
        assert_eq!(address, Some("127.0.0.1:0"));
    }

    #[test]
    fn a_topic_is_served_once_there_is_something_in_it() {
        let server = Scripted::start(usize::MAX);
        create(server.address(), "t", 3).unwrap();
        let mut batch = crate::iggy::Batch::default();
        batch.push(None, b"value");
        let mut connection = Connection::open(server.address()).unwrap();
        connection.send("t", 2, &batch).unwrap();
        connection.acknowledged().unwrap();
        wait_until_served(server.address(), "t", 3).unwrap();
        delete(server.address(), "t").unwrap();
        assert!(wait_until_served(server.address(), "t", 3).is_err());
    }
}
