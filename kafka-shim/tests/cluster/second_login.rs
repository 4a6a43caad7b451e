//! A client that proves anew who it is while what it has produced waits for replicas.

use std::num::NonZeroU32;
use std::time::Duration;

use kafka_protocol::messages::{
    SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse,
};
use kera_broker::auth::scram::Mechanism;
use kera_broker::auth::{self, Change, NewCredential};
use kera_broker::config::{Listener, SaslMechanism};

use super::*;

/// Long enough for a login on a slow machine, and shorter than what is produced waits.
const RECEIVE: Duration = Duration::from_secs(3);
const PRODUCE: Duration = Duration::from_secs(5);
const ROUNDS: u32 = 4096;

fn handshake() -> SaslHandshakeRequest {
    SaslHandshakeRequest::default().with_mechanism(words("PLAIN"))
}

fn proof() -> SaslAuthenticateRequest {
    SaslAuthenticateRequest::default().with_auth_bytes(Bytes::from_static(b"\0ann\0right"))
}

async fn user(broker: &Broker) {
    let salt = b"sixteen bytes!!!".to_vec();
    let rounds = NonZeroU32::new(ROUNDS).unwrap();
    let salted = Mechanism::Sha256.salted(b"right", &salt, rounds);
    let credential = NewCredential {
        mechanism: Mechanism::Sha256,
        iterations: ROUNDS,
        salted,
        salt,
    };
    let change = ("ann".to_owned(), Change::Put(credential));
    let done = auth::alter(broker.shared(), &[change]).await;
    assert!(done.expect("it is stored").iter().all(Result::is_ok));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_login_has_its_time_from_the_answer_on_that_waits_behind_appends() {
    let mut cluster = Cluster::with(|config| {
        config.auth.listeners = vec![Listener::Kafka];
        config.auth.mechanisms = vec![SaslMechanism::Plain];
        config.auth.max_reauth = Duration::from_secs(600);
        config.server.receive_timeout = RECEIVE;
    })
    .await;
    cluster.topic("t").await;
    user(&cluster.brokers[0].0).await;
    let mut client = cluster.client(1).await;
    let begun: SaslHandshakeResponse = client.call(ApiKey::SaslHandshake, 1, &handshake()).await;
    assert_eq!(begun.error_code, 0);
    let first: SaslAuthenticateResponse = client.call(ApiKey::SaslAuthenticate, 2, &proof()).await;
    assert_eq!(first.error_code, 0, "{:?}", first.error_message);
    let leaders = leaders(&metadata(&mut client, "t").await);
    let mut own = leaders.iter().filter(|(_, (leader, _))| *leader == 1);
    let (partition, _) = own.next().expect("broker 1 owns a part of six");
    let (code, _) = produce(&mut client, "t", *partition, records(1)).await;
    assert_eq!(code, 0);

    // Without the two others no replica set is complete.
    let others = cluster.brokers.split_off(1);
    for (broker, _) in others {
        broker.shutdown().await;
    }
    let waiting = produce_request("t", *partition, records(1), PRODUCE);
    let produced = client.send(ApiKey::Produce, 9, &waiting).await;
    let begins = client.send(ApiKey::SaslHandshake, 1, &handshake()).await;
    let late: ProduceResponse = client.receive(ApiKey::Produce, 9, produced).await;
    let code = late.responses[0].partition_responses[0].error_code;
    let expected = ResponseError::NotEnoughReplicasAfterAppend.code();
    assert_eq!(code, expected, "it waited for all its time");
    let begun: SaslHandshakeResponse = client.receive(ApiKey::SaslHandshake, 1, begins).await;
    assert_eq!(begun.error_code, 0);
    let again: SaslAuthenticateResponse = client.call(ApiKey::SaslAuthenticate, 2, &proof()).await;
    assert_eq!(again.error_code, 0, "{:?}", again.error_message);
    assert_eq!(metadata(&mut client, "t").await.topics.len(), 1);
}
