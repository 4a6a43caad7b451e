//! A broker and an etcd that wants a password, or a certificate.

use std::fs;

use crate::certificates::Certificates;
use crate::common::place::Place;
use crate::common::ports::Reserved;
use crate::common::{Broker, Finished, finish, home, kera};
use crate::etcd::Etcd;

#[test]
fn a_cluster_is_made_and_served_at_an_etcd_that_wants_a_password() {
    let Some(etcd) = Etcd::start() else { return };
    for (path, body) in [
        ("user/add", r#"{"name":"root","password":"open sesame"}"#),
        ("role/add", r#"{"name":"root"}"#),
        ("user/grant", r#"{"user":"root","role":"root"}"#),
        ("enable", "{}"),
    ] {
        etcd.call(&format!("/v3/auth/{path}"), body);
    }
    let (dir, address) = (home(), etcd.address());
    let file = dir.path().join("password");
    fs::write(&file, "open sesame\n").expect("a file");
    let file = file.display().to_string();
    let user = [
        "--cluster-store-user",
        "root",
        "--cluster-store-password-file",
        &file,
    ];
    let init = |more: &[&str]| -> Finished {
        let mut command = kera();
        let words = ["cluster", "init", "--cluster", &address];
        command.args(words).args(more);
        finish(command, b"")
    };
    let refused = init(&[]);
    assert!(!refused.status.success());
    assert!(
        refused.stderr.contains("set cluster.store_user"),
        "{}",
        refused.stderr
    );
    let made = init(&user);
    assert!(made.status.success(), "{}", made.stderr);
    let place = Place::new();
    let flags = place.flags(1, ["--cluster", &address]);
    let flags = flags.iter().map(String::as_str);
    let flags: Vec<_> = flags.chain(user).collect();
    let broker = Broker::with(&flags);
    broker.run(&["stream", "create", "clicks", "--replicas", "1"]);
    broker.feed(&["produce", "clicks"], b"one\n");
    // It may serve before etcd has told it of itself.
    broker.until(&["cluster", "status"], |status| {
        status["brokers"][0]["broker_id"] == 1
    });
}

/// Three brokers are told the same in the three ways there are.
#[test]
fn a_certificate_for_etcd_is_named_by_flags_by_the_environment_or_in_a_file() {
    let Some(made) = Certificates::make() else {
        return;
    };
    let Some(etcd) = Etcd::with("https", &made.flags()) else {
        return;
    };
    let address = etcd.address();
    let files = ["ca.pem", "client.pem", "client.key"].map(|name| made.text(name));
    let names = ["ca", "certificate", "key"];
    let told: Vec<_> = names.into_iter().zip(&files).collect();
    let as_flags = told.iter().flat_map(|(name, file)| {
        let flag = format!("--cluster-store-{name}");
        [flag, (*file).clone()]
    });
    let as_flags: Vec<String> = as_flags.collect();
    let as_variables = told.iter().map(|(name, file)| {
        let variable = format!("KERA_CLUSTER_STORE_{}", name.to_uppercase());
        format!("{variable}={file}")
    });
    let as_variables: Vec<String> = as_variables.collect();

    let mut init = kera();
    init.args(["cluster", "init", "--cluster", &address])
        .args(&as_flags);
    let made_cluster = finish(init, b"");
    assert!(made_cluster.status.success(), "{}", made_cluster.stderr);

    let places: Vec<_> = (0..4).map(|_| Place::new()).collect();
    let flags = |n: usize| places[n - 1].flags(n, ["--cluster", &address]);

    let by_flags = [flags(1), as_flags.clone()].concat();
    let by_flags: Vec<&str> = by_flags.iter().map(String::as_str).collect();
    let first = Broker::with(&by_flags);
    let env = std::iter::once("env".to_owned()).chain(as_variables);
    let listen = Reserved::new();
    let second = Broker::within(env.collect(), listen.address(), flags(2));
    let lines = told.iter();
    let lines = lines.map(|(name, file)| format!("store_{name} = \"{file}\"\n"));
    let kept = home();
    let config = kept.path().join("kera.toml");
    let text = format!("[cluster]\n{}", lines.collect::<String>());
    fs::write(&config, text).expect("a file");
    let by_file = [
        flags(3),
        vec!["--config".into(), config.display().to_string()],
    ]
    .concat();
    let by_file: Vec<&str> = by_file.iter().map(String::as_str).collect();
    let third = Broker::with(&by_file);

    // Each is a member, and records are acknowledged by all of them.
    third.run(&[
        "stream",
        "create",
        "clicks",
        "--replicas",
        "3",
        "--streamlets",
        "3",
    ]);
    for broker in [&first, &second] {
        broker.hears_of("clicks");
    }
    second.feed(&["produce", "clicks"], b"one\n");
    assert_eq!(first.run(&["consume", "clicks"]).trim(), "one");

    // One without a certificate of its own is told what to set.
    let mut refused = kera();
    let data = kept.path().join("data").display().to_string();
    refused
        .args(["serve", "--listen", "127.0.0.1:0", "--http-listen", "off"])
        .args(["--data-dir", &data])
        .args(flags(4))
        .args(&as_flags[..2]);
    let refused = finish(refused, b"");
    assert!(!refused.status.success());
    let advice = refused.stderr.contains("cluster.store_certificate");
    assert!(advice, "{}", refused.stderr);
}
