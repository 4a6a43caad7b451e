//! Clients that log in by tokens of an issuer: OAUTHBEARER.

use std::process::{Command, Stdio};
use std::time::Instant;

use kera_testkit::command::lines_of;
use kera_testkit::issuer::{AUDIENCE, Issuer};
use kera_testkit::{Broker, PATIENCE};
use serde_json::json;

use super::logins::{counted, proofs_and_connections, send};
use crate::common::agent::Agent;
use crate::common::{Kind, kcat, tools, until};

/// A broker that asks for tokens of `issuer`, every two seconds anew.
fn broker(issuer: &Issuer) -> Broker {
    let (name, keys) = (issuer.name(), issuer.keys());
    let flags = [
        ["--kafka-listen", "127.0.0.1:0"],
        ["--http-listen", "127.0.0.1:0"],
        ["--auth-listeners", "kafka"],
        ["--auth-mechanisms", "OAUTHBEARER"],
        ["--oauth-issuer", &name],
        ["--oauth-audience", AUDIENCE],
        ["--oauth-keys", &keys],
        ["--auth-max-reauth", "2s"],
    ];
    let broker = Broker::with(flags.as_flattened());
    let create = ["stream", "create", "orders", "--streamlets", "1"];
    broker.run(&[&create[..], &["--lane-by", "key"]].concat());
    until("keys are asked for", || {
        (issuer.asked().1 > 0).then_some(())
    });
    broker
}

#[test]
fn java_gets_a_token_and_proves_anew_who_it_is() {
    if !Kind::Java.is_here("java_gets_a_token_and_proves_anew_who_it_is") {
        return;
    }
    let issuer = Issuer::start("ann", 3600);
    let broker = broker(&issuer);
    let mut command = tools::java_command(&tools::java("java", "java", &[]));
    command.arg(format!(
        "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={}",
        issuer.tokens()
    ));
    command.arg("kera.Agent");
    let mut client = Agent::start(command);
    let config = json!({
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": issuer.tokens(),
        // The default one has to have jose4j on the class path.
        "sasl.oauthbearer.jwt.validator.class": "org.apache.kafka.common.security.oauthbearer.ClientJwtValidator",
        "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required clientId=\"ann\" clientSecret=\"secret\";",
    });
    let open = json!({
        "op": "producer", "producer": "p", "bootstrap": broker.kafka(), "linger_ms": 0, "config": config,
    });
    let opened = crate::common::agent::Client::answer(&mut client, &open);
    assert_eq!(opened["ok"], json!({}), "{opened}: {}", broker.log());
    assert!(send(&mut client)["offset"].is_u64(), "{}", broker.log());
    let (proofs, connections) = proofs_and_connections(&broker);
    let mut sent = 1;
    until("further logins over the same connections", || {
        let place = send(&mut client);
        assert_eq!(place["offset"], json!(sent), "{place}: {}", broker.log());
        sent += 1;
        let now = proofs_and_connections(&broker);
        (now.0 - proofs >= now.1 - connections + 2).then_some(())
    });
    let failures = "kera_authentications_total{mechanism=\"oauthbearer\",result=\"failure\"}";
    assert!(issuer.asked().0 > 0);
    assert_eq!(counted(&broker, failures), 0, "{}", broker.log());
}

#[test]
fn librdkafka_without_a_signature_is_told_why_and_goes() {
    if !kcat::is_here("librdkafka_without_a_signature_is_told_why_and_goes") {
        return;
    }
    let issuer = Issuer::start("ann", 600);
    let broker = broker(&issuer);
    let mut command = Command::new("kcat");
    // Cargo's has a librdkafka without SASL.
    command.env_remove("LD_LIBRARY_PATH");
    // It asks until it is ended.
    command.args(["-b", broker.kafka(), "-L", "-m", "600"]);
    for setting in [
        "security.protocol=sasl_plaintext",
        "sasl.mechanism=OAUTHBEARER",
        "enable.sasl.oauthbearer.unsecure.jwt=true",
        "sasl.oauthbearer.config=principal=ann",
    ] {
        command.args(["-X", setting]);
    }
    command.stderr(Stdio::piped()).stdout(Stdio::null());
    let mut asking = command.spawn().expect("kcat can be started");
    let lines = lines_of(asking.stderr.take().expect("a pipe"));
    let mut said = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE
        && let Ok(line) = lines.recv_timeout(PATIENCE)
    {
        let is_why = line.contains("\"none\" is not among oauth.algorithms");
        said.push(line);
        if is_why {
            break;
        }
    }
    asking.kill().and_then(|()| asking.wait()).expect("it ends");
    let last = said.last().map_or("", |line| line);
    assert!(last.contains("oauth.algorithms"), "{said:?}");
    let failures = "kera_authentications_total{mechanism=\"oauthbearer\",result=\"failure\"}";
    assert!(counted(&broker, failures) > 0, "{}", broker.log());
}
