//! The files with TLS, users and rules: brokers start by them, and let in who has a password, over TLS, and nobody else.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Finished, finish, home, kera};
use crate::compose::variables;
use crate::process::Process;
use crate::settings::check_environment;
use crate::{read, yaml};

const COMPOSE: &str = "deploy/compose/secured.yaml";
const SYSTEMD: &str = "deploy/systemd/secured.toml";

/// What lies beside a broker: certificates, and the password of its first user.
struct Secrets(TempDir);

impl Secrets {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// By the words of the compose file's service, or others.
    fn new(words: &[String]) -> Self {
        let secrets = Self(home());
        fs::write(secrets.path("password"), "long, secret = 1").expect("a file");
        // A service that starts again finds what it has made.
        for _ in 0..2 {
            let mut command = kera();
            for word in words {
                command.arg(word.replace("/var/lib/kera/certs", &secrets.text("certs")));
            }
            let made = finish(command, b"");
            assert!(made.status.success(), "{}", made.stderr);
        }
        secrets
    }

    /// A command at a broker: over TLS, as a user, or not.
    fn ask(&self, at: &str, tls: bool, user: bool) -> Finished {
        let mut command = kera();
        command.args(["stream", "list"]).env("KERA_BOOTSTRAP", at);
        if tls {
            command.env("KERA_TLS_CA", self.path("certs/ca.pem"));
        }
        if user {
            command
                .env("KERA_USER", "admin")
                .env("KERA_USER_PASSWORD_FILE", self.path("password"));
        }
        finish(command, b"")
    }

    /// Who has a password gets in, over TLS, and nobody else does.
    fn check(&self, broker: &Process) {
        let known = self.ask(&broker.address, true, true);
        assert!(known.status.success(), "{}\n{}", known.stderr, broker.log());
        for (tls, user, why) in [(true, false, "who you are"), (false, true, "TLS")] {
            let refused = self.ask(&broker.address, tls, user);
            assert!(!refused.status.success(), "{}", refused.text());
            assert!(refused.stderr.contains(why), "{why}: {}", refused.stderr);
        }
    }
}

/// Whether a broker would start with a file.
fn config_check(file: &Path, more: &[&str]) -> Finished {
    let mut check = kera();
    check.args(["config", "check"]).arg(file).args(more);
    finish(check, b"")
}

/// That a broker would start with it, and not if it asked nobody at some listener.
fn opens_for_users_alone(file: &Path, text: &str, auth: &str, more: &[&str]) {
    fs::write(file, text).expect("a file");
    let opens = config_check(file, more);
    assert!(opens.status.success(), "{}", opens.stderr);
    let said = format!("{}{}", opens.text(), opens.stderr);
    // At each of its three listeners; probes are for everybody.
    assert_eq!(said.matches("users with a password").count(), 3, "{said}");
    assert!(text.contains(auth), "{text}");
    fs::write(file, text.replace(auth, "[auth]\n")).expect("a file");
    let refused = config_check(file, more);
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
}

#[test]
fn the_secured_compose_file_starts_a_broker_for_users_alone() {
    let compose = yaml(&read(COMPOSE));
    let services = &compose["services"];
    let words = services["certificates"]["command"].as_array();
    let words = words.expect("words").iter().filter_map(Value::as_str);
    let words: Vec<_> = words.map(str::to_owned).collect();
    let secrets = Secrets::new(&words);
    let broker = &services["broker"];
    let of_file = variables(broker);
    check_environment(
        of_file
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str())),
    );
    assert!(!of_file.contains_key("KERA_INSECURE"));
    // Where compose mounts what the first service has made, and the password.
    let mounts = broker["volumes"].as_array().expect("volumes");
    assert!(
        mounts
            .iter()
            .any(|mount| mount == "certificates:/etc/kera/tls:ro")
    );
    assert_eq!(broker["secrets"][0], "admin-password");
    let here: BTreeMap<_, _> = of_file
        .into_iter()
        .map(|(name, value)| {
            let value = value.replace("/etc/kera/tls/certs", &secrets.text("certs"));
            (
                name,
                value.replace("/run/secrets/admin-password", &secrets.text("password")),
            )
        })
        .collect();
    let (file, env) = (secrets.path("kera.toml"), secrets.path("all.env"));
    fs::write(&file, "").expect("a file");
    // Where the image listens.
    let mut lines = "KERA_SERVER_LISTEN=0.0.0.0:7600\nKERA_HTTP_LISTEN=0.0.0.0:7680\n".to_owned();
    let of_clients = ["KERA_TLS_CA", "KERA_USER", "KERA_USER_PASSWORD_FILE"];
    for (name, value) in here
        .iter()
        .filter(|(name, _)| !of_clients.contains(&name.as_str()))
    {
        lines.push_str(&format!("{name}={value}\n"));
    }
    fs::write(&env, &lines).expect("a file");
    let more = ["--env-file", env.to_str().expect("text")];
    let opens = config_check(&file, &more);
    assert!(opens.status.success(), "{}", opens.stderr);
    fs::write(
        &env,
        lines.replace("KERA_AUTH_LISTENERS=native,kafka,http\n", ""),
    )
    .expect("a file");
    let refused = config_check(&file, &more);
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);

    let process = Process::start(|mut command| {
        // Clients of this test go where it listens, at addresses without names.
        let of_addresses =
            |name: &str| name.ends_with("_ADVERTISE") || name.contains("_LISTENERS_PROTO");
        let set = here.iter().filter(|(name, _)| !of_addresses(name));
        command.envs(set);
        Some(command.spawn().expect("it can be started"))
    });
    secrets.check(&process.expect("it is started"));
}

#[test]
fn the_secured_file_for_systemd_starts_a_broker_for_users_alone() {
    let words = ["certificate", "dev", "/var/lib/kera/certs", "--if-needed"];
    let secrets = Secrets::new(&words.map(str::to_owned));
    let text = read(SYSTEMD)
        .replace(
            "/etc/kera/tls/certificate.pem",
            &secrets.text("certs/server.pem"),
        )
        .replace(
            "/etc/kera/tls/key.pem",
            &secrets.text("certs/server-key.pem"),
        )
        .replace("/etc/kera/admin-password", &secrets.text("password"));
    let file = secrets.path("kera.toml");
    let auth = "[auth]\nlisteners = [\"native\", \"kafka\", \"http\"]\n";
    opens_for_users_alone(&file, &text, auth, &[]);
    // Clients of this test go where it listens.
    let told = |line: &&str| !line.starts_with("advertise");
    let text: Vec<_> = text.lines().filter(told).collect();
    fs::write(&file, text.join("\n")).expect("a file");
    let process = Process::start(|mut command| {
        command.arg("--config").arg(&file);
        Some(command.spawn().expect("it can be started"))
    });
    secrets.check(&process.expect("it is started"));
}
