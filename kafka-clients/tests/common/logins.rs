//! A broker that asks Kafka's clients over TLS who they are, and what each client is told to get in.

use std::fs;
use std::path::PathBuf;

use kera_testkit::issuer::{AUDIENCE, Issuer};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Kind, PATIENCE, command, home, kera, until};

/// How a client can prove who it is.
pub const MECHANISMS: [&str; 4] = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"];

/// The user whom the broker makes, who may do everything. The issuer's clients get tokens for it too.
pub const ADMIN: &str = "admin";
const PASSWORD: &str = "admin's; a long \"secret\"";

/// A Java property: Kafka's client gets tokens nowhere else.
pub fn allowed(tokens: &str) -> String {
    format!("-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens}")
}

/// A broker with TLS at its listener for Kafka's clients, and all ways of logging in.
pub struct Secured {
    pub broker: kera_testkit::Broker,
    pub issuer: Issuer,
    home: TempDir,
}

impl Secured {
    /// With more flags of `kera serve`.
    pub fn start(more: &[&str]) -> Self {
        let home = home();
        let at = |name: &str| path(&home, name).display().to_string();
        let mut certificates = kera();
        certificates.args(["certificate", "dev", &at("certs")]);
        command::run(certificates, b"", PATIENCE);
        fs::write(at("password"), PASSWORD).expect("a file can be written");
        let issuer = Issuer::start(ADMIN, 3600);
        let flags = [
            ["--kafka-listen", "127.0.0.1:0"],
            ["--http-listen", "127.0.0.1:0"],
            ["--tls-listeners", "kafka"],
            ["--tls-certificate", &at("certs/server.pem")],
            ["--tls-key", &at("certs/server-key.pem")],
            ["--auth-listeners", "kafka"],
            ["--auth-mechanisms", &MECHANISMS.join(",")],
            ["--auth-first-user", ADMIN],
            ["--auth-first-user-password-file", &at("password")],
            ["--oauth-issuer", &issuer.name()],
            ["--oauth-audience", AUDIENCE],
            ["--oauth-keys", &issuer.keys()],
        ];
        let flags = [flags.as_flattened(), more].concat();
        let broker = kera_testkit::Broker::with(&flags);
        until("keys are asked for", || {
            (issuer.asked().1 > 0).then_some(())
        });
        Self {
            broker,
            issuer,
            home,
        }
    }

    /// A path in a directory that is the test's own.
    pub fn path(&self, name: &str) -> String {
        path(&self.home, name).display().to_string()
    }

    fn ca(&self) -> String {
        self.path("certs/ca.pem")
    }

    /// Settings by which Java's client logs in with a user's password.
    pub fn java(&self, mechanism: &str, user: &str, password: &str) -> Value {
        let module = match mechanism {
            "PLAIN" => "plain.PlainLoginModule",
            _ => "scram.ScramLoginModule",
        };
        let quoted = password.replace('"', "\\\"");
        self.java_with(mechanism, &format!("org.apache.kafka.common.security.{module} required username=\"{user}\" password=\"{quoted}\";"))
    }

    /// The same with tokens from a URL, which may be that of a file.
    pub fn java_tokens(&self, url: &str) -> Value {
        let login = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required clientId=\"id\" clientSecret=\"secret\";";
        let mut settings = self.java_with("OAUTHBEARER", login);
        settings["sasl.login.callback.handler.class"] =
            json!("org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler");
        settings["sasl.oauthbearer.token.endpoint.url"] = json!(url);
        // The default one has to have jose4j on the class path.
        settings["sasl.oauthbearer.jwt.validator.class"] =
            json!("org.apache.kafka.common.security.oauthbearer.ClientJwtValidator");
        settings
    }

    fn java_with(&self, mechanism: &str, login: &str) -> Value {
        json!({
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.ca(),
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": login,
        })
    }

    /// Settings by which Java's client logs in as the admin.
    pub fn java_admin(&self, mechanism: &str) -> Value {
        match mechanism {
            "OAUTHBEARER" => self.java_tokens(&self.issuer.tokens()),
            _ => self.java(mechanism, ADMIN, PASSWORD),
        }
    }

    /// What a request for a producer or a consumer of `kind` has, to log in as the admin.
    pub fn admin(&self, kind: Kind, mechanism: &str) -> Value {
        match kind {
            Kind::Java | Kind::Java3 => json!({"config": self.java_admin(mechanism)}),
            Kind::Librdkafka | Kind::Confluent => {
                let proof = match mechanism {
                    "OAUTHBEARER" => json!({
                        "sasl.oauthbearer.method": "oidc",
                        "sasl.oauthbearer.client.id": "id",
                        "sasl.oauthbearer.client.secret": "secret",
                        "sasl.oauthbearer.token.endpoint.url": self.issuer.tokens(),
                    }),
                    _ => json!({"sasl.username": ADMIN, "sasl.password": PASSWORD}),
                };
                let mut config = json!({
                    "security.protocol": "SASL_SSL",
                    "ssl.ca.location": self.ca(),
                    "sasl.mechanism": mechanism,
                });
                merge(&mut config, proof);
                json!({"config": config})
            }
            _ => {
                let claims = self.issuer.claims(ADMIN, 3600);
                json!({"login": {
                    "ca": self.ca(), "mechanism": mechanism, "user": ADMIN, "password": PASSWORD,
                    "token": self.issuer.sign(&claims),
                }})
            }
        }
    }
}

fn path(home: &TempDir, name: &str) -> PathBuf {
    home.path().join(name)
}

/// Adds the fields of an object to another.
pub fn merge(into: &mut Value, fields: Value) {
    let into = into.as_object_mut().expect("an object");
    into.extend(fields.as_object().expect("an object").clone());
}
