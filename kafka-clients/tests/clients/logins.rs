//! Clients that prove anew who they are while they work (KIP-368), and one whose user is deleted meanwhile.

use kera_testkit::http;
use serde_json::{Value, json};

use crate::common::agent::Client;
use crate::common::{Kind, until};

/// A broker that asks Kafka's clients who they are, every two seconds anew.
fn broker() -> kera_testkit::Broker {
    let flags = [
        ["--kafka-listen", "127.0.0.1:0"],
        ["--http-listen", "127.0.0.1:0"],
        ["--auth-listeners", "kafka"],
        ["--auth-mechanisms", "SCRAM-SHA-512,PLAIN"],
        ["--auth-max-reauth", "2s"],
    ];
    let broker = kera_testkit::Broker::with(flags.as_flattened());
    broker.feed(&["user", "create", "ann"], b"right");
    let create = ["stream", "create", "orders", "--streamlets", "1"];
    broker.run(&[&create[..], &["--lane-by", "key"]].concat());
    broker
}

/// What `/metrics` says of series that begin so, summed up.
pub fn counted(broker: &kera_testkit::Broker, series: &str) -> u64 {
    let text = http::get(broker.http(), "/metrics");
    let lines = text.lines().filter(|line| line.starts_with(series));
    let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    counts.sum()
}

/// Proofs that clients have begun, and connections that were opened for them: each begins with ApiVersions.
pub fn proofs_and_connections(broker: &kera_testkit::Broker) -> (u64, u64) {
    let of = |api: &str| {
        counted(
            broker,
            &format!("kera_kafka_requests_total{{api=\"{api}\"}}"),
        )
    };
    (of("SaslHandshake"), of("ApiVersions"))
}

pub fn send(client: &mut dyn Client) -> Value {
    let send =
        json!({"op": "send", "producer": "p", "topic": "orders", "records": [{"value": "6b"}]});
    client.answer(&send)["ok"][0].clone()
}

/// Works as ann over several proofs with each of the connections that there are, until ann is no user any more.
fn works_on_until_the_user_is_gone(name: &str, kind: Kind, config: &Value) {
    if !kind.is_here(name) {
        return;
    }
    let broker = broker();
    let mut client = kind.open();
    let open = json!({
        "op": "producer", "producer": "p", "bootstrap": broker.kafka(), "linger_ms": 0, "max_block_ms": 5000,
        "config": config,
    });
    assert_eq!(client.answer(&open)["ok"], json!({}));
    assert!(send(&mut *client)["offset"].is_u64(), "{}", broker.log());
    let (proofs, connections) = proofs_and_connections(&broker);
    let mut sent = 1;
    until("several proofs more than connections", || {
        let place = send(&mut *client);
        assert_eq!(place["offset"], json!(sent), "{place}: {}", broker.log());
        sent += 1;
        let now = proofs_and_connections(&broker);
        (now.0 - proofs >= now.1 - connections + 2).then_some(())
    });
    let failures = "kera_authentications_total{mechanism=";
    let failed = || {
        let text = http::get(broker.http(), "/metrics");
        let mut lines = text.lines().filter(|line| line.starts_with(failures));
        lines.any(|line| line.contains("\"failure\"") && !line.ends_with(" 0"))
    };
    assert!(!failed());
    broker.run(&["user", "delete", "ann", "--yes"]);
    until("a record is refused", || {
        send(&mut *client)["error"].is_string().then_some(())
    });
    assert!(failed(), "{}", broker.log());
}

#[test]
fn java_proves_anew_who_it_is() {
    let jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"ann\" password=\"right\";";
    let config = json!({
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": jaas,
        "request.timeout.ms": "3000",
        "delivery.timeout.ms": "5000",
    });
    works_on_until_the_user_is_gone("java_proves_anew_who_it_is", Kind::Java, &config);
}

#[test]
fn librdkafka_proves_anew_who_it_is() {
    // Cargo's is built without what SCRAM needs.
    let config = json!({
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": "right",
    });
    works_on_until_the_user_is_gone(
        "librdkafka_proves_anew_who_it_is",
        Kind::Librdkafka,
        &config,
    );
}
