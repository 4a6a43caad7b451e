use std::time::Duration;

use super::*;

fn file(text: &str) -> Result<Resolved, ConfigError> {
    Sources::default().resolve_with(Some((Path::new("kera.toml"), text)))
}

fn message(result: Result<Resolved, ConfigError>) -> String {
    result.unwrap_err().to_string()
}

fn pairs(values: &[(&str, &str)]) -> Vec<(String, String)> {
    values
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn flag_before_environment_before_file_before_default() {
    let text = "[server]\nmax_connections = 10\nlisten = \"0.0.0.0:1\"\nidle_timeout = \"1m\"\n";
    let sources = Sources {
        file: None,
        environment: pairs(&[
            ("KERA_SERVER_LISTEN", "0.0.0.0:2"),
            ("KERA_SERVER_IDLE_TIMEOUT", "2m"),
        ]),
        flags: pairs(&[("server.listen", "0.0.0.0:3")]),
    };
    let resolved = sources
        .resolve_with(Some((Path::new("kera.toml"), text)))
        .unwrap();
    let config = &resolved.config;
    assert_eq!(config.server.listen, "0.0.0.0:3".into());
    assert_eq!(config.server.idle_timeout, Duration::from_secs(120));
    assert_eq!(config.server.max_connections, 10);
    assert_eq!(config.server.max_frame_bytes, 16 << 20);

    let origin = |name: &str| resolved.origin(Key::find(name).unwrap()).to_string();
    assert_eq!(origin("server.listen"), "flag --server-listen");
    assert_eq!(
        origin("server.idle_timeout"),
        "environment variable KERA_SERVER_IDLE_TIMEOUT"
    );
    assert_eq!(origin("server.max_connections"), "kera.toml:2");
    assert_eq!(origin("server.max_frame_bytes"), "default");
}

#[test]
fn unknown_keys_are_refused_with_a_hint_and_a_line() {
    assert_eq!(
        message(file("\n[server]\nlistn = \"x:1\"\n")),
        "kera.toml:3: unknown key `server.listn`; did you mean `server.listen`?"
    );
    assert_eq!(
        message(file("[sever]\nlisten = \"x:1\"\n")),
        "kera.toml:1: unknown section `[sever]`; did you mean `[server]`?"
    );
    assert_eq!(
        message(file("flush_interval = \"1s\"\n")),
        "kera.toml:1: unknown key `flush_interval`; did you mean `storage.flush_interval`?"
    );
    assert_eq!(
        message(file("[log]\ncolour_of_the_sky = 1\n")),
        "kera.toml:2: unknown key `log.colour_of_the_sky`; `kera config print` lists every key"
    );
    for (line, here) in [
        (
            "max_connections_per_ip = 5",
            "Kafka's max.connections.per.ip is called `server.max_connections_per_address` here",
        ),
        (
            "\"max.connection.creation.rate\" = 5",
            "Kafka's max.connection.creation.rate is called `server.connection_creation_rate` here",
        ),
    ] {
        let (section, at_top) = (
            message(file(&format!("[server]\n{line}\n"))),
            message(file(line)),
        );
        assert!(section.ends_with(here), "{section}");
        assert!(at_top.ends_with(here), "{at_top}");
    }
    let unknown_section = message(file("[zebra]\nx = 1\n"));
    assert!(
        unknown_section.contains("the sections are [server]"),
        "{unknown_section}"
    );
}

#[test]
fn wrong_values_name_the_key_and_every_problem_is_listed() {
    let text = "data_dir = 5.5\n[memory]\npool = \"1mib\"\nidle_release = 10\n[storage]\nengine = \"fast\"\n";
    let message = message(file(text));
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines.len(), 4, "{message}");
    assert!(lines[0].starts_with("kera.toml:1: data_dir: wrong type of value; write directory"));
    assert!(lines[1].starts_with("kera.toml:3: memory.pool: `1mib` is not a size"));
    assert!(lines[2].starts_with("kera.toml:4: memory.idle_release: `10` has no unit"));
    assert!(lines[3].starts_with("kera.toml:6: storage.engine: `fast` is not a choice"));
}

#[test]
fn a_size_may_be_a_plain_number_and_limits_hold() {
    let resolved = file("[memory]\npool = 16777216\n").unwrap();
    assert_eq!(resolved.config.memory.pool, 16 << 20);
    assert_eq!(
        message(file("[memory]\npool = 16777215\n")),
        "kera.toml:2: memory.pool: 16777215B is out of range; use 16MiB to 64TiB"
    );
}

#[test]
fn text_that_is_no_toml_names_the_line() {
    let message = message(file("[server]\nlisten = \n"));
    assert!(
        message.starts_with("kera.toml:2: not valid TOML: "),
        "{message}"
    );
    assert!(file("[server]\nlisten = \"a:1\"\nlisten = \"b:1\"\n").is_err());
}

#[test]
fn keys_that_contradict_each_other_are_found() {
    let message = message(file("[consumers]\nsession_default = \"10m\"\n"));
    assert_eq!(
        message,
        "kera.toml:2: consumers.session_default: is above consumers.session_max; lower it or raise the maximum"
    );
    assert!(file("[server]\nmax_frame_bytes = \"32MiB\"\n").is_err());
}

#[test]
fn a_slip_in_a_variable_is_a_warning_and_foreign_ones_are_left_alone() {
    let sources = Sources {
        environment: pairs(&[
            ("KERA_SERVER_LISTN", "0.0.0.0:2"),
            ("KERA_SERVICE_HOST", "10.0.0.1"),
            ("KERA_BOOTSTRAP", "x:1"),
        ]),
        ..Sources::default()
    };
    let resolved = sources.resolve().unwrap();
    assert_eq!(
        resolved.warnings,
        ["environment variable KERA_SERVER_LISTN sets nothing; did you mean KERA_SERVER_LISTEN?"]
    );
}

#[test]
fn a_missing_file_is_named() {
    let sources = Sources {
        file: Some("/nowhere/kera.toml".into()),
        ..Sources::default()
    };
    let message = message(sources.resolve());
    assert!(
        message.starts_with("cannot read the configuration file /nowhere/kera.toml: "),
        "{message}"
    );
}

#[test]
fn bad_environment_values_name_the_variable() {
    let sources = Sources {
        environment: pairs(&[("KERA_MEMORY_POOL", "lots")]),
        ..Sources::default()
    };
    let message = message(sources.resolve());
    assert!(
        message.starts_with("environment variable KERA_MEMORY_POOL: memory.pool: `lots`"),
        "{message}"
    );
}

#[test]
fn settings_are_accepted_under_their_former_names() {
    let text = "[backup]\nmax_copies = 7\nmemory_bytes = \"2MiB\"\n\
        [replica_store]\nmemory_bytes = \"3MiB\"\n";
    let sources = Sources {
        file: None,
        environment: pairs(&[("KERA_BACKUP_MAX_STREAMLETS", "9")]),
        flags: pairs(&[("backup.disk_dir", "/a")]),
    };
    let resolved = sources
        .resolve_with(Some((Path::new("kera.toml"), text)))
        .unwrap();
    let store = &resolved.config.replica_store;
    assert_eq!((store.max_replicas, store.max_streamlets), (7, 9));
    // Beside the new name the former one means nothing.
    assert_eq!(store.memory_bytes, 3 << 20);
    assert_eq!(store.disk_dir.as_deref(), Some(Path::new("/a")));
    let said = |text: &str| resolved.warnings.iter().any(|told| told.contains(text));
    assert!(
        said("kera.toml:2: backup.max_copies is replica_store.max_replicas now"),
        "{:?}",
        resolved.warnings
    );
    assert!(said(
        "environment variable KERA_BACKUP_MAX_STREAMLETS: backup.max_streamlets is"
    ));
    assert!(said(
        "flag --backup-disk-dir: backup.disk_dir is replica_store.disk_dir now"
    ));
    assert_eq!(resolved.warnings.len(), 4);
    // A flag by its former name comes before a file by the new one.
    let sources = Sources {
        flags: pairs(&[("backup.memory_bytes", "4MiB")]),
        ..Sources::default()
    };
    let resolved = sources
        .resolve_with(Some((Path::new("kera.toml"), text)))
        .unwrap();
    assert_eq!(resolved.config.replica_store.memory_bytes, 4 << 20);

    let wrong = message(file("[backup]\nmax_copies = 0\nsize = 1\n"));
    assert!(wrong.contains("replica_store.max_replicas"), "{wrong}");
    assert!(wrong.contains("unknown key `backup.size`"), "{wrong}");
}
