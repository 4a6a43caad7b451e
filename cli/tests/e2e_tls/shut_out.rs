//! Clients that TLS keeps out: they are told at once where waiting is of no use, and what to do.

use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use kera_consumer::{ConsumeError, Consumer, Reader};
use kera_producer::{BuildError, Producer};
use kera_protocol::v1;
use kera_rpc::{
    Client, ClientOptions, ClientTls, ConnectOptions, ConnectionError, RetryPolicy, RpcError,
};

use crate::certificates::{Authority, Files};
use crate::common::{Broker, PATIENCE, finish, kera};

const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// A client that would try again for an hour, and trusts `authority`, if it is to use TLS.
fn client(bootstrap: &str, authority: Option<&Authority>) -> Client {
    let tls = authority.map(|one| {
        let tls = ClientTls::from_pem(one.pem.as_bytes(), None);
        tls.expect("an authority's certificate")
    });
    let connect = ConnectOptions {
        tls,
        ..ConnectOptions::default()
    };
    let retry = RetryPolicy::within(Duration::from_secs(3600));
    Client::new(bootstrap, ClientOptions { retry, connect }).expect("an address")
}

type Attempt<'a> = Pin<Box<dyn Future<Output = Result<(), RpcError>> + 'a>>;

/// What a client is told.
async fn told(attempt: Attempt<'_>) -> String {
    let told = tokio::time::timeout(PATIENCE, attempt).await;
    let Err(error) = told.expect("it is told at once") else {
        panic!("it is let in");
    };
    let is_tls = matches!(error, RpcError::Connection(ConnectionError::Tls { .. }));
    assert!(is_tls && !error.is_retryable(), "{error:?}");
    error.to_string()
}

fn of_consume(error: ConsumeError) -> RpcError {
    match error {
        ConsumeError::Rpc(error) => error,
        other => panic!("{other}"),
    }
}

async fn list(client: &Client) -> Result<(), RpcError> {
    let listed = client.call(v1::ListStreamsRequest::default());
    listed.await.map(drop)
}

async fn produce(client: Client) -> Result<(), RpcError> {
    let built = Producer::builder().client(client).stream("s").build().await;
    built.map(drop).map_err(|error| match error {
        BuildError::Rpc(error) => error,
        other => panic!("{other}"),
    })
}

async fn consume(client: Client) -> Result<(), RpcError> {
    let consumer = Consumer::builder().client(client).stream("s").group("g");
    consumer.open().await.map(drop).map_err(of_consume)
}

async fn read(client: Client) -> Result<(), RpcError> {
    let reader = Reader::builder().client(client).stream("s");
    reader.open().await.map(drop).map_err(of_consume)
}

/// One that does not get in.
struct Case<'a> {
    address: &'a str,
    authority: Option<&'a Authority>,
    ca: Option<&'a Path>,
    /// What it is told.
    told: &'a [&'a str],
}

async fn shut_out(case: &Case<'_>) {
    let address = case.address;
    let of = || client(address, case.authority);
    let (listing, data) = (of(), of());
    let attempts: [Attempt<'_>; 5] = [
        Box::pin(list(&listing)),
        Box::pin(produce(of())),
        Box::pin(consume(of())),
        Box::pin(read(of())),
        Box::pin(async { data.data(address).await.map(drop) }),
    ];
    for attempt in attempts {
        let text = told(attempt).await;
        let to = format!("cannot connect to broker {address}: TLS: ");
        assert!(text.starts_with(&to), "{text}");
        assert!(case.told.iter().all(|part| text.contains(part)), "{text}");
    }
    for words in [
        &["produce", "s", "-q"][..],
        &["consume", "s", "--group", "g"],
        &["consume", "s", "--follow"],
    ] {
        let mut command = kera();
        command.args(words).env("KERA_BOOTSTRAP", address);
        if let Some(ca) = case.ca {
            command.env("KERA_TLS_CA", ca);
        }
        let finished = finish(command, b"one\n");
        assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
        let says = finished.stderr;
        let is_told = case.told.iter().all(|part| says.contains(part));
        assert!(is_told && !says.contains("try again"), "{words:?}: {says}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_pass_is_told_at_once_with_what_to_do() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let named = Files::new(&ours.server(&["localhost", "kera.example"]), None);
    let ca = named.write("ca.pem", &ours.pem);
    let wrong_ca = named.write("other.pem", &other.pem);
    let expired = Files::new(&ours.expired(&NAMES), None);
    let choosy = Files::new(&ours.server(&NAMES), Some(&ours));
    let named_broker = named.broker("native", &[]);
    let expired_broker = expired.broker("native", &[]);
    let choosy_broker = choosy.broker("native", &["--tls-client-auth", "required"]);
    let plain_broker = Broker::start();
    let localhost = named_broker.address().replace("127.0.0.1", "localhost");
    let trusting = |address, told| Case {
        address,
        authority: Some(&ours),
        ca: Some(&ca),
        told,
    };
    let name_ca = "(--tls-ca FILE or KERA_TLS_CA)";
    for case in [
        Case {
            address: &localhost,
            authority: Some(&other),
            ca: Some(&wrong_ca),
            told: &[
                "is signed by an authority that is not trusted here",
                name_ca,
            ],
        },
        Case {
            address: &localhost,
            authority: None,
            ca: None,
            told: &["wants TLS at this address", name_ca],
        },
        trusting(
            named_broker.address(),
            &["is not for 127.0.0.1, its names are localhost, kera.example"],
        ),
        trusting(expired_broker.address(), &["has expired; have it replaced"]),
        trusting(
            plain_broker.address(),
            &["does not speak TLS at this address; connect without"],
        ),
        trusting(choosy_broker.address(), &["(--tls-cert and --tls-key)"]),
    ] {
        Box::pin(shut_out(&case)).await;
    }

    // Others of the list are asked.
    let good = Files::new(&ours.server(&NAMES), None);
    let good_broker = good.broker("native", &[]);
    let all = format!("{},{}", named_broker.address(), good_broker.address());
    let client = client(&all, Some(&ours));
    list(&client).await.expect("one of them is trusted");
    let data = client.data(named_broker.address()).await;
    let error = data.expect_err("the name is still a wrong one");
    assert!(error.is_retryable(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reads_waits_a_while_for_a_new_certificate_and_is_told() {
    let ours = Authority::new("ours");
    let good = ours.server(&NAMES);
    let files = Files::new(&good, None);
    let ca = files.write("ca.pem", &ours.pem);
    let mut broker = files.broker("native", &[]);
    let address = broker.address().to_owned();
    let run = |words: &[&str], input: &[u8]| {
        let mut command = kera();
        let command_with = command.args(words).env("KERA_BOOTSTRAP", &address);
        command_with.env("KERA_TLS_CA", &ca);
        let finished = finish(command, input);
        assert!(finished.status.success(), "{words:?}: {}", finished.stderr);
    };
    run(&["stream", "create", "clicks"], b"");
    let reader = Reader::builder().client(client(&address, Some(&ours)));
    let mut reader = reader.stream("clicks").open().await.expect("it is let in");
    run(&["produce", "clicks", "-q"], b"one\n");
    let read = reader.next_batch().await.expect("it reads");
    assert_eq!(read.expect("a batch").records().count(), 1);

    files.put(&ours.expired(&NAMES));
    broker.kill();
    broker.restart();
    let next = async { reader.next_batch().await.map(drop).map_err(of_consume) };
    let text = told(Box::pin(next)).await;
    assert!(text.contains("has expired"), "{text}");
    assert!(text.ends_with("reading stream clicks stops"), "{text}");
    // With a good one it goes on.
    files.put(&good);
    broker.kill();
    broker.restart();
    run(&["produce", "clicks", "-q"], b"two\n");
    let goes_on = async {
        loop {
            match reader.next_batch().await.map_err(of_consume) {
                Ok(batch) => return batch.expect("a batch").records().count(),
                Err(error) => assert!(error.is_shut_out(), "{error}"),
            }
        }
    };
    let read = tokio::time::timeout(PATIENCE, goes_on).await;
    assert_eq!(read.expect("it goes on"), 1);
}
