//! TLS on the way to replicas: brokers prove to each other who they are, and nobody else gets there.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use kera_replication::ids::{BrokerId, ProcessId};
use kera_replication::transport::tcp::{HELLO_MAGIC, LinkOptions, TcpTransport};
use kera_replication::transport::{CallError, LinkError, Reply, Request, Transport};
use kera_rpc::ClientTls;

use crate::certificates::{Authority, Identity};
use crate::cluster::{Trio, records};
use crate::common::PATIENCE;
use crate::tells;

const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];
const STORE: BrokerId = BrokerId(2);

/// What a client with `tls` gets of the replica store at `address`: over a control call, and over a link.
fn asks(address: &str, tls: Option<ClientTls>) -> (Result<Reply, CallError>, Option<LinkError>) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let transport = TcpTransport::new(BrokerId(1), LinkOptions::default());
        transport.use_tls(tls);
        transport.set_address(STORE, address).expect("an address");
        let told = transport.call(STORE, Request::Describe).await;
        // Not the process that runs there: a store that listens says so.
        let link = transport.connect(STORE, ProcessId(1)).await;
        (told, link.err())
    })
}

fn client(authority: &Authority, identity: Option<&Identity>) -> ClientTls {
    let own = identity.map(|own| (own.certificate.as_bytes(), own.key.as_bytes()));
    ClientTls::from_pem(authority.pem.as_bytes(), own).expect("files of a client")
}

#[test]
fn replicas_are_written_and_read_with_tls_by_brokers_alone() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let broker = |_| ours.broker_named(&NAMES, "broker");
    let flags = [
        ["--acl-enabled", "true"],
        ["--acl-super-users", "User:broker"],
        ["--tls-client-auth", "requested"],
    ];
    let Some(mut trio) = Trio::with(&ours, broker, "native,cluster", flags.as_flattened()) else {
        return;
    };
    let create = ["stream", "create", "clicks", "--streamlets", "3"];
    trio.run(0, &[&create[..], &["--replicas", "3"]].concat(), b"");
    let input: String = (0..300).map(|number| format!("{number}\n")).collect();
    trio.run(1, &["produce", "clicks", "-q"], input.as_bytes());

    let address = trio.replicas_at(0).to_owned();
    let (told, link) = asks(&address, Some(client(&ours, Some(&broker(1)))));
    assert!(matches!(told, Ok(Reply::Description(_))), "{told:?}");
    assert_eq!(link, Some(LinkError::OtherProcess(STORE)));
    // Certificates that ours signed for somebody else, that another authority signed for a broker, none, and no TLS.
    let strangers = [
        Some(client(&ours, Some(&ours.client("ann")))),
        Some(client(&ours, Some(&other.broker_named(&NAMES, "broker")))),
        Some(client(&ours, None)),
        None,
    ];
    for (number, stranger) in strangers.into_iter().enumerate() {
        let (told, link) = asks(&address, stranger);
        assert!(told.is_err(), "stranger {number}: {told:?}");
        let refused = matches!(
            link,
            Some(LinkError::Unreachable { .. } | LinkError::Broken { .. })
        );
        assert!(refused, "stranger {number}: {link:?}");
    }
    tells(&trio.brokers[0], "is not among acl.super_users");
    // Not a word to who does not speak TLS, but that it failed.
    let mut plain = TcpStream::connect(&address).expect("the broker accepts");
    plain.set_read_timeout(Some(PATIENCE)).expect("an option");
    plain.write_all(&HELLO_MAGIC).expect("it is sent");
    let mut answer = Vec::new();
    match plain.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
    const ALERT: u8 = 0x15;
    assert!(answer.is_empty() || answer[0] == ALERT, "{answer:?}");

    // Whoever takes over reads replicas.
    trio.brokers[0].kill();
    trio.until(2, &["stream", "describe", "clicks", "--json"], |told| {
        records(told) == 300
    });
}
