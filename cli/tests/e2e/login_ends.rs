//! Readers and members of groups whose user is deleted, or gets another password, while they read.

use std::time::Duration;

use kera_consumer::{ConsumeError, Consumer, Reader, Start};
use kera_rpc::{
    Client, ClientOptions, ConnectOptions, ConnectionError, Login, RetryPolicy, RpcError,
};

use crate::common::PATIENCE;
use crate::logins::{PASSWORD, world};

/// A client that would try again for an hour.
fn client(bootstrap: &str, user: &str, password: &str) -> Client {
    let connect = ConnectOptions {
        login: Some(Login::new(user, password)),
        ..ConnectOptions::default()
    };
    let retry = RetryPolicy::within(Duration::from_secs(3600));
    Client::new(bootstrap, ClientOptions { retry, connect }).expect("an address")
}

/// That a read ends since `user` is not let in any more, and says what stops.
async fn ends<T>(read: impl Future<Output = Result<T, ConsumeError>>, address: &str, user: &str) {
    let read = tokio::time::timeout(PATIENCE, read).await;
    let Err(error) = read.expect("it is told in time") else {
        panic!("{user} goes on reading");
    };
    let ConsumeError::Rpc(RpcError::Connection(ConnectionError::Login { .. })) = &error else {
        panic!("{error:?}");
    };
    assert!(!error.is_retryable(), "{error:?}");
    let text = error.to_string();
    let who = format!("broker {address} does not let user {user} in: ");
    assert!(text.starts_with(&who), "{text}");
    assert!(text.contains("the user or the password is wrong"), "{text}");
    assert!(text.ends_with("reading stream orders stops"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reads_is_told_that_the_user_is_not_let_in_any_more() {
    let mut world = world(&[]);
    let address = world.broker.address().to_owned();
    world.run("admin", &["user", "create", "bob"], PASSWORD.as_bytes());
    world.run("ann", &["stream", "create", "orders"], b"");
    let reader = |user| {
        let builder = Reader::builder().client(client(&address, user, PASSWORD));
        builder.stream("orders").open()
    };
    let mut ann = reader("ann").await.expect("ann is let in");
    let mut bob = reader("bob").await.expect("bob is let in");
    // Has read everything that there is to read.
    let builder = Reader::builder().client(client(&address, "ann", PASSWORD));
    let done = builder.stream("orders").follow(false).open().await;
    let mut done = done.expect("ann is let in");
    let member = Consumer::builder().client(client(&address, "ann", PASSWORD));
    let member = member.stream("orders").group("g").start(Start::Earliest);
    let mut member = member.open().await.expect("ann is let in");

    world.run("ann", &["produce", "orders", "-q"], b"one\n");
    for reader in [&mut ann, &mut bob] {
        let batch = reader.next_batch().await.expect("it reads");
        assert_eq!(batch.expect("a batch").records().count(), 1);
    }
    member.next_batch().await.expect("it reads");
    assert!(done.next_batch().await.expect("it reads").is_none());
    // Open connections stay what they are; the next ones are refused.
    world.run("admin", &["user", "delete", "ann", "--yes"], b"");
    world.run("admin", &["user", "create", "bob"], b"another one");
    world.broker.kill();
    world.broker.restart();
    tokio::join!(
        ends(ann.next_batch(), &address, "ann"),
        ends(bob.next_batch(), &address, "bob"),
        ends(member.next_batch(), &address, "ann"),
    );
    assert!(done.next_batch().await.expect("it has ended").is_none());
    // The user is there again, and a reader that is asked again goes on.
    world.run("admin", &["user", "create", "ann"], PASSWORD.as_bytes());
    world.run("ann", &["produce", "orders", "-q"], b"two\n");
    let goes_on = async {
        loop {
            match ann.next_batch().await {
                Ok(batch) => return batch.expect("a batch").records().count(),
                Err(error) => assert!(!error.is_retryable(), "{error}"),
            }
        }
    };
    let read = tokio::time::timeout(PATIENCE, goes_on).await;
    assert_eq!(read.expect("it goes on"), 1);
}

#[tokio::test]
async fn a_login_is_refused_for_good_once_all_brokers_of_the_list_refuse_it() {
    let (one, other) = (world(&[]), world(&[]));
    other.run("admin", &["user", "create", "bob"], PASSWORD.as_bytes());
    let list = format!("{},{}", one.broker.address(), other.broker.address());
    for (user, is_final) in [("bob", false), ("nobody", true)] {
        let client = client(&list, user, PASSWORD);
        for _ in 0..2 {
            let refused = client.data(one.broker.address()).await;
            let error = refused.expect_err("it does not know the user");
            let is_login = matches!(error, RpcError::Connection(ConnectionError::Login { .. }));
            assert!(is_login && error.is_retryable() != is_final, "{error}");
        }
    }
}
