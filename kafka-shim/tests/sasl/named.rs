//! Listeners with names, each of which lets in others.

use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kera_broker::config::{ListenerName, NamedAddress, SecurityProtocol};

use super::*;

fn name(text: &str) -> ListenerName {
    ListenerName::new(text).expect("a name")
}

/// A broker with the listeners `inner`, `outer` and `legacy`, and a client of each.
async fn world() -> (World, [Client; 3]) {
    let mechanism = |text| SaslMechanism::named(text).expect("a mechanism");
    let world = World::with(|config| {
        let names = ["inner", "outer", "legacy"].map(name);
        config.kafka.listen = names
            .clone()
            .map(|name| NamedAddress {
                name: Some(name),
                address: "127.0.0.1:0".to_owned(),
            })
            .to_vec();
        let [inner, outer, legacy] = names;
        config.listeners.protocols = vec![
            (inner, SecurityProtocol::Plaintext),
            (outer.clone(), SecurityProtocol::SaslPlaintext),
            (legacy.clone(), SecurityProtocol::SaslPlaintext),
        ];
        config.listeners.mechanisms = vec![
            (outer, mechanism("SCRAM-SHA-512")),
            (legacy, mechanism("PLAIN")),
        ];
        config.acl.enabled = true;
        config.acl.super_users = vec!["User:ann".to_owned()];
    })
    .await;
    world.topic("t", 1);
    user(&world, "ann", "right").await;
    let listeners = kera_kafka_shim::start(world.broker.shared().clone()).await;
    let addresses = listeners.expect("free ports").addresses;
    let clients = [
        Client::connect(addresses[0]).await,
        Client::connect(addresses[1]).await,
        Client::connect(addresses[2]).await,
    ];
    (world, clients)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_in_by_one_listener_is_nobody_there_and_a_user_by_another() {
    let (_world, [mut inner, mut outer, mut legacy]) = world().await;
    assert_eq!(topics(&mut inner).await, 0, "nobody may see it");
    assert_eq!(
        scram(&mut outer, Mechanism::Sha512, "ann", "right").await,
        0
    );
    assert_eq!(topics(&mut outer).await, 1, "ann may");
    assert_eq!(plain(&mut legacy, b"\0ann\0right").await, 0);
    assert_eq!(topics(&mut legacy).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mechanism_of_one_listener_is_refused_at_another() {
    let unsupported = ResponseError::UnsupportedSaslMechanism.code();
    for (at, wanted, taken) in [
        (1, "PLAIN", "SCRAM-SHA-512"),
        (1, "SCRAM-SHA-256", "SCRAM-SHA-512"),
        (2, "SCRAM-SHA-512", "PLAIN"),
    ] {
        let (_world, mut clients) = world().await;
        let answer = handshake(&mut clients[at], wanted).await;
        assert_eq!(answer.error_code, unsupported, "{wanted}");
        assert_eq!(answer.mechanisms, [words(taken)]);
        assert!(clients[at].closed().await, "it has failed");
    }
    // Nobody is let in without a login where one is asked for, and none is taken where none is.
    let (_world, [mut inner, mut outer, _]) = world().await;
    let asked = MetadataRequestTopic::default();
    let request = MetadataRequest::default().with_topics(Some(vec![asked]));
    outer.send(ApiKey::Metadata, 9, &request).await;
    assert!(outer.closed().await);
    let answer = handshake(&mut inner, "SCRAM-SHA-512").await;
    assert_eq!(answer.error_code, ResponseError::IllegalSaslState.code());
}
