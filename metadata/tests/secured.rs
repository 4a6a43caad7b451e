//! An etcd that wants TLS, one that wants a password, and one of three members.
#![cfg(feature = "etcd")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kera_metadata::*;
use kera_testkit::certificates::Certificates;
use support::etcd::{Etcd, Trio, base64};
use support::*;
use uuid::Uuid;

const OPTIONS: EtcdOptions = EtcdOptions {
    timeout: Duration::from_secs(60),
    server_operations: 128,
    under_way: 16,
    queue_operations: 1 << 18,
};
/// Short, so that what cannot be reached is soon known to be so.
const HASTY: EtcdOptions = EtcdOptions {
    timeout: Duration::from_secs(3),
    ..OPTIONS
};

/// How etcd calls the renewal of a lease.
const KEEP_ALIVE: &str = "LeaseKeepAlive";
/// Whatever takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// What an open that must fail says: at once where etcd refuses it, and otherwise when its time is up.
fn refusal(address: &str, access: &EtcdAccess, options: EtcdOptions) -> String {
    let refused = EtcdStore::open_with(address, access, options);
    refused.err().expect("it must fail").to_string()
}

#[test]
fn with_tls_it_is_reached_by_who_trusts_it_and_is_trusted() {
    let Some(made) = Certificates::make() else {
        return;
    };
    let Some(etcd) = Etcd::with("https", &made.flags()) else {
        return;
    };
    let access = EtcdAccess {
        ca: Some(made.path("ca.pem")),
        certificate: Some(made.path("client.pem")),
        key: Some(made.path("client.key")),
        ..EtcdAccess::default()
    };
    let address = etcd.address();
    let id = EtcdStore::init_with(&address, &access, OPTIONS).unwrap();
    let store = EtcdStore::open_with(&address, &access, OPTIONS).unwrap();
    assert_eq!(store.cluster(), id);
    store.create_stream(stream("a"), 1).unwrap();
    assert_eq!(store.load().unwrap().streams.len(), 1);

    // Each says which key to set.
    let plain = refusal(&address, &EtcdAccess::default(), HASTY);
    assert!(plain.contains("cluster.store_ca"), "{plain}");
    let other = EtcdAccess {
        ca: Some(made.path("other.pem")),
        ..access.clone()
    };
    let untrusted = refusal(&address, &other, HASTY);
    assert!(
        untrusted.contains("cluster.store_ca must be"),
        "{untrusted}"
    );
    let nobody = EtcdAccess {
        certificate: None,
        key: None,
        ..access.clone()
    };
    let unknown = refusal(&address, &nobody, HASTY);
    assert!(unknown.contains("cluster.store_certificate"), "{unknown}");
    let half = EtcdAccess {
        key: None,
        ..access.clone()
    };
    let half = refusal(&address, &half, HASTY);
    assert!(half.contains("set both"), "{half}");
    let missing = EtcdAccess {
        ca: Some(made.path("nowhere.pem")),
        ..access
    };
    let missing = refusal(&address, &missing, HASTY);
    assert!(missing.contains("nowhere.pem"), "{missing}");
}

fn password(dir: &Path, text: &str) -> PathBuf {
    let path = dir.join("password");
    fs::write(&path, text).unwrap();
    path
}

/// Has etcd ask for users: root, kera who may do what a broker does, and guest who may do nothing.
fn enable_users(etcd: &Etcd) {
    for (path, body) in [
        ("user/add", r#"{"name":"root","password":"of all evil"}"#),
        ("role/add", r#"{"name":"root"}"#),
        ("user/grant", r#"{"user":"root","role":"root"}"#),
        ("user/add", r#"{"name":"kera","password":"open sesame"}"#),
        ("user/add", r#"{"name":"guest","password":"open sesame"}"#),
        ("role/add", r#"{"name":"kera"}"#),
        ("user/grant", r#"{"user":"kera","role":"kera"}"#),
    ] {
        etcd.call(&format!("/v3/auth/{path}"), body);
    }
    let (from, to) = (base64(b"/kera/"), base64(b"/kera0"));
    let body = format!(
        r#"{{"name":"kera","perm":{{"permType":"READWRITE","key":"{from}","range_end":"{to}"}}}}"#
    );
    etcd.call("/v3/auth/role/grant", &body);
    etcd.call("/v3/auth/enable", "{}");
}

fn user(name: &str, password_file: &Path) -> EtcdAccess {
    EtcdAccess {
        user: Some(name.to_owned()),
        password_file: Some(password_file.to_owned()),
        ..EtcdAccess::default()
    }
}

#[test]
fn with_users_it_is_reached_by_the_one_that_may() {
    let Some(etcd) = Etcd::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    enable_users(&etcd);
    let address = etcd.address();
    let file = password(dir.path(), "open sesame\n");
    let user = |name: &str| user(name, &file);
    let nobody = refusal(&address, &EtcdAccess::default(), OPTIONS);
    assert!(nobody.contains("set cluster.store_user"), "{nobody}");
    let guest = refusal(&address, &user("guest"), OPTIONS);
    assert!(guest.contains("grant the user"), "{guest}");

    let id = EtcdStore::init_with(&address, &user("kera"), OPTIONS).unwrap();
    let store = EtcdStore::open_with(&address, &user("kera"), OPTIONS).unwrap();
    assert_eq!(store.cluster(), id);
    let mut watch = store.watch(store.load().unwrap().revision);
    let incarnation = Incarnation {
        store_id: Uuid::from_u128(1),
        boot_id: Uuid::from_u128(1),
    };
    let live = LiveBroker::new(1, incarnation);
    let seat = store.join(live, Duration::from_secs(60)).unwrap();
    let (made, _) = store.create_stream(stream("a"), 1).unwrap();
    // The lease first, which is no record.
    let told = std::iter::from_fn(|| watch.blocking_recv());
    let mut told = told.map(|told| told.expect("nothing was forgotten").changes);
    assert!(told.any(|changes| !changes.is_empty()));

    // Started again it has forgotten every token, and nobody notices.
    etcd.restart();
    store.create_stream(stream("b"), 1).unwrap();
    let streams = store.load().unwrap().streams;
    assert!(streams.iter().any(|stream| stream.id == made.id) && streams.len() == 2);
    drop(seat);

    // A password that is wrong says so; a new one is taken up without a restart.
    password(dir.path(), "close sesame");
    let wrong = refusal(&address, &user("kera"), OPTIONS);
    assert!(wrong.contains("cluster.store_password_file"), "{wrong}");
}

/// Waits until a lease was renewed so often.
#[expect(
    clippy::disallowed_methods,
    reason = "etcd counts renewals and tells nobody of them"
)]
fn renewed(etcd: &Etcd, times: u64) {
    let (before, begun) = (etcd.begun(KEEP_ALIVE), Instant::now());
    while etcd.begun(KEEP_ALIVE) < before + times {
        assert!(begun.elapsed() < PATIENCE, "the lease is not renewed");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_lease_is_renewed_without_telling_the_password_again() {
    let Some(etcd) = Etcd::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    enable_users(&etcd);
    let (address, file) = (etcd.address(), password(dir.path(), "open sesame"));
    EtcdStore::init_with(&address, &user("kera", &file), OPTIONS).unwrap();
    let store = EtcdStore::open_with(&address, &user("kera", &file), OPTIONS).unwrap();
    let incarnation = Incarnation {
        store_id: Uuid::from_u128(1),
        boot_id: Uuid::from_u128(1),
    };
    let seat = store
        .join(LiveBroker::new(1, incarnation), Duration::from_secs(3))
        .unwrap();
    renewed(&etcd, 1);
    // Nobody could tell it now.
    password(dir.path(), "close sesame");
    renewed(&etcd, 5);
    // What etcd has forgotten it is told again.
    password(dir.path(), "open sesame");
    etcd.restart();
    renewed(&etcd, 3);
    store.create_stream(stream("a"), 1).unwrap();
    drop(seat);
}

#[test]
fn of_three_members_the_leader_may_go() {
    let Some(mut trio) = Trio::start() else {
        return;
    };
    let address = trio.address();
    EtcdStore::init(&address, OPTIONS).unwrap();
    let store = EtcdStore::open(&address, OPTIONS).unwrap();
    let mut watch = store.watch(store.load().unwrap().revision);
    let mut names = Vec::new();
    for round in 0..3 {
        let name = format!("s{round}");
        store.create_stream(stream(&name), 1).unwrap();
        names.push(name);
        let led = trio.kill_leader();
        // The others elect one; what was recorded is there, and changes go on.
        let name = format!("after{round}");
        store.create_stream(stream(&name), 1).unwrap();
        names.push(name);
        let image = store.load().unwrap();
        let mut found: Vec<_> = image.streams.iter().map(|s| s.name.clone()).collect();
        found.sort();
        let mut wanted = names.clone();
        wanted.sort();
        assert_eq!(found, wanted);
        trio.restart(led);
    }
    let mut seen = 0;
    while seen < names.len() {
        let changes = watch.blocking_recv().expect("the watch goes on");
        let changes = changes.expect("nothing was forgotten").changes;
        let streams = |change: &&Change| matches!(change.record, Some(Record::Stream(_)));
        seen += changes.iter().filter(streams).count();
    }
}
