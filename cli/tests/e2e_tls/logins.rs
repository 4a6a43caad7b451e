//! Native clients with passwords over TLS, beside those with certificates.

use std::path::Path;

use kera_testkit::issuer::{AUDIENCE, Issuer};

use crate::certificates::{Authority, Files};
use crate::cluster::Trio;
use crate::common::http;
use crate::common::ports::Reserved;
use crate::common::{Broker, Finished, finish, kera};
use crate::reload::until;

const PASSWORD: &str = "long secret";
const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// Runs a command with TLS, and who it is to be: variables of its environment.
fn attempt(broker: &Broker, ca: &Path, who: &[(&str, &Path)], words: &[&str]) -> Finished {
    let mut command = kera();
    command
        .args(words)
        .env("KERA_BOOTSTRAP", broker.address())
        .env("KERA_TLS_CA", ca)
        .envs(who.iter().copied());
    let input = match words[0] {
        "user" => PASSWORD,
        _ => "one\n",
    };
    finish(command, input.as_bytes())
}

fn user(password: &Path) -> [(&'static str, &Path); 2] {
    [
        ("KERA_USER", Path::new("ann")),
        ("KERA_USER_PASSWORD_FILE", password),
    ]
}

fn certificate(files: &Files) -> [(&'static str, std::path::PathBuf); 2] {
    [
        ("KERA_TLS_CLIENT_CERT", files.path("certificate.pem")),
        ("KERA_TLS_CLIENT_KEY", files.path("key.pem")),
    ]
}

#[test]
fn a_token_in_a_file_gets_a_command_in_over_tls() {
    let (servers, issuer) = (Authority::new("servers"), Issuer::start("ann", 600));
    let files = Files::new(&servers.server(&NAMES), None);
    let (name, keys) = (issuer.name(), issuer.keys());
    let flags = [
        ["--auth-listeners", "native"],
        ["--auth-mechanisms", "OAUTHBEARER"],
        ["--oauth-issuer", &name],
        ["--oauth-audience", AUDIENCE],
        ["--oauth-keys", &keys],
    ];
    let broker = files.broker("native", flags.as_flattened());
    let ca = files.write("ca.pem", &servers.pem);
    let token = files.write("token", &issuer.sign(&issuer.claims("ann", 600)));
    let with = |token| [("KERA_TOKEN_FILE", token as &Path)];
    let list = ["stream", "list"];
    // A slow machine may need more time for the keys than a login waits.
    until("the token is taken", &broker, || {
        attempt(&broker, &ca, &with(&token), &list).status.success()
    });
    let late = files.write("late", &issuer.sign(&issuer.claims("ann", 0)));
    // The skew is 30 s.
    let taken = attempt(&broker, &ca, &with(&late), &list);
    assert!(taken.status.success(), "{}", taken.stderr);
    let wrong = files.write("wrong", "a.b.c");
    let refused = attempt(&broker, &ca, &with(&wrong), &list);
    let told = refused.stderr.contains("no signed JSON web token");
    assert!(!refused.status.success() && told, "{}", refused.stderr);
    let mut command = kera();
    command.args(list).arg("--token-file").arg(&token);
    let refused = finish(command, b"");
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("use TLS"), "{}", refused.stderr);
}

#[test]
fn a_password_or_a_certificate_gets_a_client_in_over_tls() {
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let files = Files::new(&servers.server(&NAMES), Some(&clients));
    let metrics = Reserved::new();
    let broker = files.broker(
        "native",
        &[
            "--tls-client-auth",
            "requested",
            "--auth-listeners",
            "native",
            "--auth-mechanisms",
            "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
            "--http-listen",
            metrics.address(),
        ],
    );
    let ca = files.write("ca.pem", &servers.pem);
    let (right, wrong) = (
        files.write("right", PASSWORD),
        files.write("wrong", "guess"),
    );
    let of_admin = Files::new(&clients.client("admin"), None);
    let proven = certificate(&of_admin);
    let proven = proven
        .each_ref()
        .map(|(name, path)| (*name, path.as_path()));
    let succeeds = |who: &[(&str, &Path)], words: &[&str]| {
        let finished = attempt(&broker, &ca, who, words);
        assert!(finished.status.success(), "{words:?}: {}", finished.stderr);
    };
    // The first user is made by who has a certificate.
    succeeds(&proven, &["user", "create", "ann"]);
    succeeds(&proven, &["stream", "create", "orders"]);
    for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"] {
        let by = ["--sasl-mechanism", mechanism];
        succeeds(&user(&right), &[&["produce", "orders"], &by[..]].concat());
        succeeds(&user(&right), &[&["stream", "list"], &by[..]].concat());
        let refused = attempt(
            &broker,
            &ca,
            &user(&wrong),
            &[&["stream", "list"], &by[..]].concat(),
        );
        let told = refused.stderr.contains("the user or the password is wrong");
        assert!(!refused.status.success() && told, "{}", refused.stderr);
        let text = http::get(metrics.address(), "/metrics");
        for result in ["success", "failure"] {
            let mechanism = mechanism.to_lowercase();
            let series = format!(
                "kera_authentications_total{{mechanism=\"{mechanism}\",result=\"{result}\"}} "
            );
            let line = text.lines().find(|line| line.starts_with(&series));
            assert!(
                line.is_some_and(|line| !line.ends_with(" 0")),
                "{series}: {line:?}"
            );
        }
    }
    let nobody = attempt(&broker, &ca, &[], &["stream", "list"]);
    assert!(
        nobody.stderr.contains("asks who you are"),
        "{}",
        nobody.stderr
    );
    let nobody = attempt(&broker, &ca, &[], &["produce", "orders"]);
    assert!(
        nobody.stderr.contains("asks who you are"),
        "{}",
        nobody.stderr
    );
    // Who gives a password has to give the right one.
    let both = [&proven[..], &user(&wrong)].concat();
    let refused = attempt(&broker, &ca, &both, &["stream", "list"]);
    assert!(!refused.status.success(), "{}", refused.text());
}

#[test]
fn brokers_of_a_cluster_get_in_by_certificates_and_users_at_each_of_them() {
    let authority = Authority::new("all");
    let flags = [
        ["--auth-listeners", "native"],
        ["--tls-client-auth", "requested"],
    ];
    let broker = |_| authority.broker_named(&NAMES, "broker");
    let Some(trio) = Trio::with(&authority, broker, "native", flags.as_flattened()) else {
        return;
    };
    let files = Files::new(&authority.client("admin"), None);
    let (ca, right) = (
        files.write("ca.pem", &authority.pem),
        files.write("right", PASSWORD),
    );
    let proven = certificate(&files);
    let proven = proven
        .each_ref()
        .map(|(name, path)| (*name, path.as_path()));
    let succeeds = |number: usize, who: &[(&str, &Path)], words: &[&str]| {
        let broker = &trio.brokers[number];
        until(&words.join(" "), broker, || {
            attempt(broker, &ca, who, words).status.success()
        });
    };
    succeeds(0, &proven, &["user", "create", "ann"]);
    let create = [
        "stream",
        "create",
        "orders",
        "--streamlets",
        "3",
        "--replicas",
        "3",
    ];
    for number in 0..3 {
        let create = [&create[..], &["--if-not-exists"]].concat();
        succeeds(number, &user(&right), &create);
        succeeds(number, &user(&right), &["produce", "orders"]);
    }
    // What others own is asked of them.
    until("not all is described", &trio.brokers[2], || {
        let words = ["stream", "describe", "orders", "--json"];
        let described = attempt(&trio.brokers[2], &ca, &user(&right), &words);
        let described = serde_json::from_str(&described.text()).expect("JSON");
        crate::cluster::records(&described) == 3
    });
}
