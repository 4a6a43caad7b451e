//! Each client with each way of logging in, over TLS.

use serde_json::json;

use super::logins::counted;
use crate::common::logins::{MECHANISMS, Secured, merge};
use crate::common::{Kind, until};

/// librdkafka is that of Confluent's wrapper: cargo's is built without TLS.
const KINDS: [Kind; 4] = [
    Kind::Java,
    Kind::Confluent,
    Kind::FranzGo,
    Kind::KafkaPython,
];

#[test]
fn each_client_gets_in_by_each_mechanism_over_tls() {
    let secured = Secured::start(&[]);
    let broker = &secured.broker;
    let create = ["stream", "create", "orders", "--streamlets", "1"];
    broker.run(&[&create[..], &["--lane-by", "key"]].concat());
    let bootstrap = broker.kafka();
    let mut sent = 0;
    for kind in KINDS {
        if !kind.is_here("each_client_gets_in_by_each_mechanism_over_tls") {
            continue;
        }
        let mut client = kind.open_for(&secured.issuer.tokens());
        for mechanism in MECHANISMS {
            let told = || format!("{} by {mechanism}: {}", kind.name(), broker.log());
            let successes = || {
                let mechanism = mechanism.to_lowercase();
                counted(
                    broker,
                    &format!(
                        "kera_authentications_total{{mechanism=\"{mechanism}\",result=\"success\"}}"
                    ),
                )
            };
            let before = successes();
            let mut open = json!({
                "op": "producer", "producer": mechanism, "bootstrap": bootstrap, "linger_ms": 0, "max_block_ms": 30_000,
            });
            merge(&mut open, secured.admin(kind, mechanism));
            assert_eq!(client.answer(&open)["ok"], json!({}), "{}", told());
            let send = json!({"op": "send", "producer": mechanism, "topic": "orders", "records": [{"value": "6b"}]});
            let place = client.answer(&send)["ok"][0].clone();
            assert_eq!(place["offset"], json!(sent), "{place}, {}", told());
            let mut open = json!({"op": "consumer", "consumer": mechanism, "bootstrap": bootstrap});
            merge(&mut open, secured.admin(kind, mechanism));
            assert_eq!(client.answer(&open)["ok"], json!({}), "{}", told());
            let assign = json!({"op": "assign", "consumer": mechanism, "topic": "orders", "partitions": [0], "from": sent});
            assert_eq!(client.answer(&assign)["ok"], json!({}), "{}", told());
            let poll = json!({"op": "poll", "consumer": mechanism, "wait_ms": 1000});
            let read = until("a record is read", || {
                let polled = client.answer(&poll);
                polled["ok"]["records"].get(0).cloned()
            });
            assert_eq!(read["offset"], json!(sent), "{read}, {}", told());
            sent += 1;
            assert!(successes() > before, "{}", told());
            for (op, what) in [
                ("close_producer", "producer"),
                ("close_consumer", "consumer"),
            ] {
                client.answer(&json!({"op": op, what: mechanism}));
            }
        }
    }
    let failed = MECHANISMS.map(|mechanism| {
        let mechanism = mechanism.to_lowercase();
        let series =
            format!("kera_authentications_total{{mechanism=\"{mechanism}\",result=\"failure\"}}");
        counted(broker, &series)
    });
    assert_eq!(failed, [0; 4], "{}", broker.log());
}
