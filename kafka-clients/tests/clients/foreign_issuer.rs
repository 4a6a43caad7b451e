//! Tokens of an issuer that is not ours: what its makers think a token looks like, our broker takes.

use std::fs::{self, File};
use std::net::TcpStream;
use std::process::Child;

use kera_testkit::command::killed;
use kera_testkit::ports::Reserved;
use kera_testkit::{Broker, http};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::logins::{counted, send};
use crate::common::agent::Client;
use crate::common::{Kind, PATIENCE, command, home, kera, tools, until};

/// What a client asks for, and gets a token for the broker.
const RIGHT: &str = "orders";
/// What a client asks for, and gets a token for somebody else.
const WRONG: &str = "invoices";
const AUDIENCE: &str = "kera";

/// mock-oauth2-server, as a process.
struct Issuer {
    address: String,
    home: TempDir,
    child: Option<Child>,
}

impl Issuer {
    fn start() -> Self {
        let address = Reserved::for_ever();
        let (host, port) = address.split_once(':').expect("HOST:PORT");
        let home = home();
        let claims = |scope: &str, audience: &str| json!({"requestParam": "scope", "match": scope, "claims": {"sub": "ann", "aud": [audience]}});
        let config = json!({
            "httpServer": {"type": "NettyWrapper"},
            "tokenCallbacks": [{
                "issuerId": "shop", "tokenExpiry": 600,
                "requestMappings": [claims(RIGHT, AUDIENCE), claims(WRONG, "somebody-else")],
            }],
        });
        let mut command = tools::java_command(&tools::java("issuer", "issuer", &[]));
        command
            .arg("no.nav.security.mock.oauth2.StandaloneMockOAuth2ServerKt")
            .envs([("SERVER_HOSTNAME", host), ("SERVER_PORT", port)])
            .env("JSON_CONFIG", config.to_string());
        let log = File::create(home.path().join("log")).expect("a file can be made");
        command.stdout(log.try_clone().expect("a file")).stderr(log);
        let child = command.spawn().expect("Java can be started");
        let this = Self {
            address,
            home,
            child: Some(child),
        };
        until("the issuer listens", || {
            TcpStream::connect(&this.address).ok()
        });
        this
    }

    fn name(&self) -> String {
        format!("http://{}/shop", self.address)
    }

    fn at(&self, path: &str) -> String {
        format!("{}/{path}", self.name())
    }

    /// A file beside its log.
    fn file(&self, name: &str) -> String {
        self.home.path().join(name).display().to_string()
    }

    /// A token as a program gets it that knows the client's secret.
    fn token(&self, scope: &str) -> String {
        let headers = "Content-Type: application/x-www-form-urlencoded\r\n";
        let asked = format!(
            "grant_type=client_credentials&client_id=ann&client_secret=secret&scope={scope}"
        );
        // The name by which it is asked is the one that it gives itself in the token.
        let at = self.address.as_str();
        let answer = http::post_as(at, at, "/shop/token", headers, &asked);
        let body = answer.split_once("\r\n\r\n").expect("a head and a body").1;
        let (begin, end) = (body.find('{'), body.rfind('}'));
        let body = &body[begin.expect("JSON")..=end.expect("JSON")];
        let told: Value = serde_json::from_str(body).expect("JSON");
        let token = told["access_token"].as_str();
        token.expect("a token").to_owned()
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            killed(child);
        }
        tools::show_last_words("the issuer", &self.home.path().join("log"));
    }
}

fn java(issuer: &Issuer, scope: &str) -> Value {
    json!({
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": issuer.file("certs/ca.pem"),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": issuer.at("token"),
        // The default one has to have jose4j on the class path.
        "sasl.oauthbearer.jwt.validator.class": "org.apache.kafka.common.security.oauthbearer.ClientJwtValidator",
        "sasl.jaas.config": format!("org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required clientId=\"ann\" clientSecret=\"secret\" scope=\"{scope}\";"),
    })
}

fn librdkafka(issuer: &Issuer, scope: &str) -> Value {
    json!({
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": issuer.file("certs/ca.pem"),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "ann",
        "sasl.oauthbearer.client.secret": "secret",
        "sasl.oauthbearer.scope": scope,
        "sasl.oauthbearer.token.endpoint.url": issuer.at("token"),
    })
}

fn opened(client: &mut dyn Client, broker: &Broker, config: &Value) {
    let open = json!({
        "op": "producer", "producer": "p", "bootstrap": broker.kafka(), "linger_ms": 0, "max_block_ms": 10_000, "config": config,
    });
    let answer = client.answer(&open);
    assert_eq!(answer["ok"], json!({}), "{answer}: {}", broker.log());
}

#[test]
fn tokens_of_an_issuer_made_by_others_count() {
    let name = "tokens_of_an_issuer_made_by_others_count";
    if !Kind::Java.is_here(name) {
        return;
    }
    let issuer = Issuer::start();
    let keys = issuer.at("jwks");
    let mut certificates = kera();
    certificates.args(["certificate", "dev", &issuer.file("certs")]);
    command::run(certificates, b"", PATIENCE);
    let flags = [
        ["--kafka-listen", "127.0.0.1:0"],
        ["--http-listen", "127.0.0.1:0"],
        ["--tls-listeners", "kafka,native"],
        ["--tls-certificate", &issuer.file("certs/server.pem")],
        ["--tls-key", &issuer.file("certs/server-key.pem")],
        ["--auth-listeners", "kafka,native"],
        ["--auth-mechanisms", "OAUTHBEARER"],
        ["--oauth-issuer", &issuer.name()],
        ["--oauth-audience", AUDIENCE],
        ["--oauth-keys", &keys],
    ];
    let broker = Broker::with(flags.as_flattened());
    let kera = |scope: &str| {
        let file = issuer.file(scope);
        fs::write(&file, issuer.token(scope)).expect("a file can be written");
        let mut command = kera();
        command.args(["stream", "create", scope, "--streamlets", "1"]);
        command.args(["--lane-by", "key", "--tls-ca", &issuer.file("certs/ca.pem")]);
        command
            .env("KERA_BOOTSTRAP", broker.address())
            .env("KERA_TOKEN_FILE", file);
        command
    };
    // Kera's own programs: a token for the broker, and one for somebody else.
    command::run(kera(RIGHT), b"", PATIENCE);
    let refused = command::finish(kera(WRONG), b"");
    assert!(!refused.status.success());
    assert!(refused.stderr.contains("audience"), "{}", refused.stderr);
    let failures = "kera_authentications_total{mechanism=\"oauthbearer\",result=\"failure\"}";
    let mut sent = 0;
    for kind in [Kind::Java, Kind::Confluent] {
        if !kind.is_here(name) {
            continue;
        }
        let settings = match kind {
            Kind::Java => java,
            _ => librdkafka,
        };
        let mut client = kind.open_for(&issuer.at("token"));
        opened(&mut *client, &broker, &settings(&issuer, RIGHT));
        let place = send(&mut *client);
        assert_eq!(place["offset"], json!(sent), "{place}: {}", broker.log());
        sent += 1;
        let before = counted(&broker, failures);
        let mut client = kind.open_for(&issuer.at("token"));
        opened(&mut *client, &broker, &settings(&issuer, WRONG));
        let place = send(&mut *client);
        assert!(place["offset"].is_null(), "{place}");
        assert!(counted(&broker, failures) > before, "{}", broker.log());
    }
}
