//! `kera cluster init` that cannot do what it is asked for.

use crate::certificates::Certificates;
use crate::common::ports::Reserved;
use crate::common::{finish, kera};
use crate::etcd::Etcd;

/// What a `kera cluster init` that must fail says.
fn refused(address: &str, more: &[&str]) -> String {
    let mut command = kera();
    command
        .args(["cluster", "init", "--cluster", address])
        .args(more);
    let finished = finish(command, b"");
    assert_eq!(finished.status.code(), Some(1), "{}", finished.text());
    assert!(finished.stdout.is_empty(), "{}", finished.text());
    finished.stderr
}

fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
}

#[test]
fn an_etcd_that_is_not_there_is_named_and_what_to_check() {
    let nobody = Reserved::new();
    let address = format!("etcd://{}", nobody.address());
    let said = refused(&address, &[]);
    says(
        &said,
        &["no cluster was made", &address, "check that it runs"],
    );
    assert!(!said.contains("tried again"), "{said}");
}

#[test]
fn a_cluster_that_is_there_is_named_and_left() {
    let Some(etcd) = Etcd::start() else { return };
    let address = etcd.address();
    let mut init = kera();
    init.args(["cluster", "init", "--json", "--cluster", &address]);
    let made = finish(init, b"");
    assert!(made.status.success(), "{}", made.stderr);
    let made: serde_json::Value = serde_json::from_str(&made.text()).expect("JSON");
    let id = made["cluster"].as_str().expect("an id");
    let said = refused(&address, &[]);
    says(
        &said,
        &[
            "no cluster was made",
            &address,
            id,
            "kera serve --cluster",
            "another path",
        ],
    );

    // What somebody else keeps under that name is named as well.
    etcd.put("/beside/cluster", "a bunch of grapes");
    let said = refused(&format!("{address}/beside"), &[]);
    says(
        &said,
        &[
            "no cluster was made",
            "/beside/cluster",
            "choose another path",
        ],
    );
}

#[test]
fn wrong_certificates_are_told_apart() {
    let Some(made) = Certificates::make() else {
        return;
    };
    let Some(etcd) = Etcd::with("https", &made.flags()) else {
        return;
    };
    let address = etcd.address();
    let (ca, other) = (made.text("ca.pem"), made.text("other.pem"));
    let nowhere = made.text("nowhere.pem");
    let cases: [(&[&str], &str); 4] = [
        (&[], "set cluster.store_ca"),
        (&["--cluster-store-ca", &other], "cluster.store_ca must be"),
        (
            &["--cluster-store-ca", &ca],
            "set cluster.store_certificate",
        ),
        (&["--cluster-store-ca", &nowhere], "nowhere.pem"),
    ];
    // Each waits for etcd as long as it may.
    std::thread::scope(|scope| {
        for (flags, advice) in cases {
            let address = &address;
            scope.spawn(move || says(&refused(address, flags), &[advice]));
        }
    });
}
