//! Who a client is, by SASL: proofs, what is answered to those that prove nothing, and users by Kafka's own requests.

mod anything;
mod audit;
#[path = "../common/mod.rs"]
mod common;
mod named;
mod objectives;
mod shares;
mod tokens;

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::alter_user_scram_credentials_request::{
    ScramCredentialDeletion, ScramCredentialUpsertion,
};
use kafka_protocol::messages::{
    AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse, ApiKey,
    ApiVersionsRequest, ApiVersionsResponse, DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse, MetadataRequest, MetadataResponse,
    SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse,
};
use kafka_protocol::protocol::StrBytes;
use kera_broker::access;
use kera_broker::auth::scram::{Client as Scram, Mechanism};
use kera_broker::auth::{self, Change, NewCredential};
use kera_broker::config::{BrokerConfig, Listener, SaslMechanism};
use kera_metadata::access::{ANY, Kind, Operation, Pattern, Permission};
use kera_metadata::{Rule, StreamConfig};
use tokio::io::AsyncWriteExt;

use common::{Client, World};

const ROUNDS: u32 = 4096;

fn asking(config: &mut BrokerConfig) {
    config.auth.listeners = vec![Listener::Kafka];
    config.auth.mechanisms = SaslMechanism::WITH_PASSWORDS.to_vec();
}

fn words(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// What is sent of a password.
fn made(mechanism: Mechanism, password: &str) -> NewCredential {
    let salt = b"sixteen bytes!!!".to_vec();
    let rounds = NonZeroU32::new(ROUNDS).unwrap();
    NewCredential {
        mechanism,
        iterations: ROUNDS,
        salted: mechanism.salted(password.as_bytes(), &salt, rounds),
        salt,
    }
}

async fn user(world: &World, name: &str, password: &str) {
    let changes = Mechanism::ALL.map(|one| (name.to_owned(), Change::Put(made(one, password))));
    let done = auth::alter(world.broker.shared(), &changes).await;
    assert!(done.expect("it is stored").iter().all(Result::is_ok));
}

async fn handshake(client: &mut Client, mechanism: &str) -> SaslHandshakeResponse {
    let request = SaslHandshakeRequest::default().with_mechanism(words(mechanism));
    client.call(ApiKey::SaslHandshake, 1, &request).await
}

async fn send(client: &mut Client, version: i16, message: &[u8]) -> SaslAuthenticateResponse {
    let message = Bytes::copy_from_slice(message);
    let request = SaslAuthenticateRequest::default().with_auth_bytes(message);
    client
        .call(ApiKey::SaslAuthenticate, version, &request)
        .await
}

/// Plays SCRAM; the last error, 0 if the client is in.
async fn scram(client: &mut Client, mechanism: Mechanism, user: &str, password: &str) -> i16 {
    proof(client, mechanism, user, password).await.error_code
}

/// Plays SCRAM; the last answer.
async fn proof(
    client: &mut Client,
    mechanism: Mechanism,
    user: &str,
    password: &str,
) -> SaslAuthenticateResponse {
    assert_eq!(handshake(client, mechanism.name()).await.error_code, 0);
    let begun = Scram::begin(mechanism, user, password.as_bytes()).unwrap();
    let (mine, first) = begun;
    let challenge = send(client, 2, first.as_bytes()).await;
    if challenge.error_code != 0 {
        return challenge;
    }
    assert_eq!(challenge.session_lifetime_ms, 0, "half way");
    let (mine, proof) = mine.answer(&challenge.auth_bytes).unwrap();
    let last = send(client, 2, proof.as_bytes()).await;
    if last.error_code == 0 {
        mine.end(&last.auth_bytes)
            .expect("the broker knows the password");
    }
    last
}

async fn plain(client: &mut Client, message: &[u8]) -> i16 {
    assert_eq!(handshake(client, "PLAIN").await.error_code, 0);
    send(client, 0, message).await.error_code
}

async fn topics(client: &mut Client) -> usize {
    let all = MetadataRequest::default().with_topics(None);
    let reply: MetadataResponse = client.call(ApiKey::Metadata, 9, &all).await;
    reply
        .topics
        .iter()
        .filter(|topic| !topic.is_internal)
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_knows_a_password_is_in_and_is_who_the_user_is() {
    let world = World::with(|config| {
        asking(config);
        config.acl.enabled = true;
        config.acl.super_users = vec!["User:root".to_owned()];
    })
    .await;
    world.create("orders", StreamConfig::default());
    user(&world, "ann", "right").await;
    user(&world, "bob", "right").await;
    let rule = Rule {
        kind: Kind::Stream,
        name: "orders".to_owned(),
        pattern: Pattern::Literal,
        principal: "User:ann".to_owned(),
        host: ANY.to_owned(),
        operation: Operation::Describe,
        permission: Permission::Allow,
    };
    access::add(world.broker.shared(), &[rule]).await.unwrap();
    for mechanism in Mechanism::ALL {
        let mut client = world.client().await;
        assert_eq!(scram(&mut client, mechanism, "ann", "right").await, 0);
        assert_eq!(topics(&mut client).await, 1, "ann may see it");
        let mut client = world.client().await;
        assert_eq!(scram(&mut client, mechanism, "bob", "right").await, 0);
        assert_eq!(topics(&mut client).await, 0, "bob may not");
    }
    let mut client = world.client().await;
    assert_eq!(plain(&mut client, b"\0ann\0right").await, 0);
    assert_eq!(topics(&mut client).await, 1);
    let mut client = world.client().await;
    assert_eq!(plain(&mut client, b"ann\0ann\0right").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_proves_nothing_is_told_the_same_and_goes() {
    let world = World::with(asking).await;
    user(&world, "ann", "right").await;
    let failed = ResponseError::SaslAuthenticationFailed.code();
    for mechanism in Mechanism::ALL {
        for (name, password) in [("ann", "wrong"), ("nobody", "right"), ("nobody", "wrong")] {
            let mut client = world.client().await;
            let code = scram(&mut client, mechanism, name, password).await;
            assert_eq!(code, failed, "{mechanism} {name}");
            assert!(client.closed().await);
        }
    }
    let wrong: [&[u8]; 8] = [
        b"\0ann\0wrong",
        b"\0nobody\0right",
        b"bob\0ann\0right",
        b"\0ann\0",
        b"\0\0right",
        b"ann\0right",
        b"\0ann\0right\0",
        b"\0\xff\0right",
    ];
    for message in wrong {
        let mut client = world.client().await;
        assert_eq!(plain(&mut client, message).await, failed, "{message:?}");
        assert!(client.closed().await);
    }
    let challenge = |name: &'static str| {
        let world = &world;
        async move {
            let mut client = world.client().await;
            handshake(&mut client, "SCRAM-SHA-256").await;
            let first = format!("n,,n={name},r=abc");
            let told = send(&mut client, 1, first.as_bytes()).await;
            let told = String::from_utf8(told.auth_bytes.to_vec()).unwrap();
            told.split_once(",s=").unwrap().1.to_owned()
        }
    };
    // Salt and rounds of whoever is no user are the same each time, as those of users are.
    assert_eq!(challenge("nobody").await, challenge("nobody").await);
    assert_ne!(challenge("nobody").await, challenge("somebody").await);
    assert!(challenge("nobody").await.ends_with(&format!(",i={ROUNDS}")));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_else_is_answered_before_and_what_is_long_is_not_read() {
    let world = World::with(asking).await;
    user(&world, "ann", "right").await;
    let mut client = world.client().await;
    client
        .send(ApiKey::Metadata, 9, &MetadataRequest::default())
        .await;
    assert!(client.closed().await);

    let mut client = world.client().await;
    let versions = ApiVersionsRequest::default();
    let told: ApiVersionsResponse = client.call(ApiKey::ApiVersions, 0, &versions).await;
    assert!(told.api_keys.iter().any(|api| api.api_key == 36));
    let unsupported = handshake(&mut client, "GSSAPI").await;
    let code = ResponseError::UnsupportedSaslMechanism.code();
    assert_eq!(unsupported.error_code, code);
    assert_eq!(unsupported.mechanisms.len(), 3);
    assert!(client.closed().await);

    // Half way a client is no further than before.
    let mut client = world.client().await;
    handshake(&mut client, "SCRAM-SHA-256").await;
    send(&mut client, 1, b"n,,n=ann,r=abc").await;
    client
        .send(ApiKey::Metadata, 9, &MetadataRequest::default())
        .await;
    assert!(client.closed().await);

    let mut old = world.client().await;
    let request = SaslHandshakeRequest::default().with_mechanism(words("PLAIN"));
    let told: SaslHandshakeResponse = old.call(ApiKey::SaslHandshake, 0, &request).await;
    assert_eq!(told.error_code, ResponseError::UnsupportedVersion.code());
    assert!(old.closed().await);

    let illegal = ResponseError::IllegalSaslState.code();
    let mut client = world.client().await;
    handshake(&mut client, "PLAIN").await;
    assert_eq!(handshake(&mut client, "PLAIN").await.error_code, illegal);
    assert!(client.closed().await);
    let mut client = world.client().await;
    assert_eq!(
        send(&mut client, 1, b"\0ann\0right").await.error_code,
        illegal
    );
    assert!(client.closed().await);

    // A stranger asks what the broker understands, and not without end.
    let mut client = world.client().await;
    for _ in 0..32 {
        let _: ApiVersionsResponse = client.call(ApiKey::ApiVersions, 0, &versions).await;
    }
    client.send(ApiKey::ApiVersions, 0, &versions).await;
    assert!(client.closed().await);

    let mut client = world.client().await;
    let claimed = (64 << 10) + 1;
    client.stream.write_i32(claimed).await.unwrap();
    client.stream.write_all(&[0, 36, 0, 1]).await.unwrap();
    assert!(client.closed().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_takes_too_long_goes() {
    let world = World::with(|config| {
        asking(config);
        // Long enough for one that the machine holds up on its way in.
        config.server.receive_timeout = Duration::from_secs(2);
    })
    .await;
    user(&world, "ann", "right").await;
    let mut quick = world.client().await;
    let code = scram(&mut quick, Mechanism::Sha512, "ann", "right").await;
    assert_eq!(code, 0);
    let mut silent = world.client().await;
    let mut half = world.client().await;
    handshake(&mut half, "SCRAM-SHA-512").await;
    let closed = tokio::join!(silent.closed(), half.closed());
    assert_eq!(closed, (true, true));
    // It was there before them.
    assert_eq!(topics(&mut quick).await, 0, "it may stay");
}

/// One whose proofs count so long, with the users ann and bob.
async fn world_for(max_reauth: Duration) -> World {
    let world = World::with(|config| {
        asking(config);
        config.auth.max_reauth = max_reauth;
    })
    .await;
    for name in ["ann", "bob"] {
        user(&world, name, "right").await;
    }
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proof_that_counts_for_a_time_is_renewed_by_the_same_user_and_mechanism_alone() {
    let world = world_for(Duration::from_secs(600)).await;
    let (sha256, sha512) = (Mechanism::Sha256, Mechanism::Sha512);
    let failed = ResponseError::SaslAuthenticationFailed.code();
    for (mechanism, name, password, told) in [
        (sha256, "ann", "right", None),
        (sha256, "bob", "right", Some("keeps its user")),
        (sha512, "ann", "right", Some("keeps its mechanism")),
        (sha256, "ann", "wrong", Some("authentication failed")),
    ] {
        let mut client = world.client().await;
        let first = proof(&mut client, sha256, "ann", "right").await;
        assert_eq!((first.error_code, first.session_lifetime_ms), (0, 600_000));
        assert_eq!(topics(&mut client).await, 0);
        let again = proof(&mut client, mechanism, name, password).await;
        let Some(told) = told else {
            assert_eq!((again.error_code, again.session_lifetime_ms), (0, 600_000));
            assert_eq!(topics(&mut client).await, 0, "it goes on");
            continue;
        };
        assert_eq!(again.error_code, failed);
        let why = again.error_message.unwrap_or_default();
        assert!(why.contains(told), "{why}");
        assert!(client.closed().await);
    }

    // Version 0 has no field for the time.
    let mut client = world.client().await;
    assert_eq!(plain(&mut client, b"\0ann\0right").await, 0);
    assert_eq!(plain(&mut client, b"\0ann\0right").await, 0);

    // On the way to the next proof it may ask for nothing.
    let mut client = world.client().await;
    assert_eq!(scram(&mut client, sha256, "ann", "right").await, 0);
    assert_eq!(handshake(&mut client, "PLAIN").await.error_code, 0);
    let ask = MetadataRequest::default();
    client.send(ApiKey::Metadata, 9, &ask).await;
    assert!(client.closed().await);

    // Nor without a handshake before it.
    let mut client = world.client().await;
    assert_eq!(scram(&mut client, sha256, "ann", "right").await, 0);
    let illegal = ResponseError::IllegalSaslState.code();
    let skipped = send(&mut client, 2, b"\0ann\0right").await;
    assert_eq!(skipped.error_code, illegal);
    assert!(client.closed().await);

    // As with Kafka not twice in a second, of which a slow machine may need more.
    loop {
        let mut client = world.client().await;
        assert_eq!(scram(&mut client, sha256, "ann", "right").await, 0);
        let begin = Instant::now();
        assert_eq!(scram(&mut client, sha256, "ann", "right").await, 0);
        let code = handshake(&mut client, sha256.name()).await.error_code;
        if begin.elapsed() < Duration::from_secs(1) {
            assert_eq!(code, illegal);
            assert!(client.closed().await);
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proof_that_counts_no_more_ends_a_connection_that_does_not_renew_it() {
    let world = world_for(Duration::from_secs(2)).await;
    let mut idle = world.client().await;
    let mut gone = world.client().await;
    let mut client = world.client().await;
    for (client, message) in [
        (&mut idle, b"\0ann\0right"),
        (&mut gone, b"\0bob\0right"),
        (&mut client, b"\0ann\0right"),
    ] {
        assert_eq!(plain(client, message).await, 0);
    }
    let begin = Instant::now();
    let ask = MetadataRequest::default().with_topics(None);
    loop {
        assert!(begin.elapsed() < common::PATIENCE, "it is still served");
        let sent = client.try_send(ApiKey::Metadata, 9, &ask).await;
        if sent.is_err() || client.frame().await.is_err() {
            break;
        }
    }
    // One that is idle stays, and goes on once it has proved anew who it is.
    assert_eq!(plain(&mut idle, b"\0ann\0right").await, 0);
    // Who is no user any more does not.
    let delete = [("bob".to_owned(), Change::Delete(None))];
    let done = auth::alter(world.broker.shared(), &delete).await;
    assert!(done.expect("it is stored").iter().all(Result::is_ok));
    let failed = ResponseError::SaslAuthenticationFailed.code();
    assert_eq!(plain(&mut gone, b"\0bob\0right").await, failed);
    assert!(gone.closed().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proof_counts_as_long_as_the_connection_unless_there_is_a_time_for_it() {
    let world = world_for(Duration::ZERO).await;
    let mut client = world.client().await;
    let mechanism = Mechanism::Sha256;
    let first = proof(&mut client, mechanism, "ann", "right").await;
    assert_eq!((first.error_code, first.session_lifetime_ms), (0, 0));
    let again = handshake(&mut client, mechanism.name()).await;
    assert_eq!(again.error_code, ResponseError::IllegalSaslState.code());
    assert!(client.closed().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nobody_asks_there_is_nothing_to_prove() {
    let world = World::start().await;
    let mut client = world.client().await;
    let refused = handshake(&mut client, "PLAIN").await;
    assert_eq!(refused.error_code, ResponseError::IllegalSaslState.code());
    assert!(client.closed().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn users_are_made_seen_and_deleted_by_kafkas_requests_and_outlive_a_restart() {
    let world = World::start().await;
    let mut client = world.client().await;
    let put = |name: &str, one: NewCredential| {
        ScramCredentialUpsertion::default()
            .with_name(words(name))
            .with_mechanism(one.mechanism.number() as i8)
            .with_iterations(one.iterations as i32)
            .with_salt(one.salt.into())
            .with_salted_password(one.salted.into())
    };
    let few = NewCredential {
        iterations: 100,
        ..made(Mechanism::Sha256, "p")
    };
    let request = AlterUserScramCredentialsRequest::default().with_upsertions(vec![
        put("ann", made(Mechanism::Sha256, "right")),
        put("ann", made(Mechanism::Sha512, "other")),
        put("bob", few),
        put("", made(Mechanism::Sha256, "p")),
        put("cat", made(Mechanism::Sha256, "p")),
        put("cat", made(Mechanism::Sha256, "q")),
    ]);
    let api = ApiKey::AlterUserScramCredentials;
    let reply: AlterUserScramCredentialsResponse = client.call(api, 0, &request).await;
    let told: Vec<_> = reply
        .results
        .iter()
        .map(|one| (one.user.as_str(), one.error_code))
        .collect();
    let unacceptable = ResponseError::UnacceptableCredential.code();
    let twice = ResponseError::DuplicateResource.code();
    assert_eq!(
        told,
        [
            ("ann", 0),
            ("bob", unacceptable),
            ("", unacceptable),
            ("cat", twice)
        ]
    );

    let World { broker, dir, .. } = world;
    broker.shutdown().await;
    let world = World::at(dir, asking).await;
    let mut client = world.client().await;
    assert_eq!(
        scram(&mut client, Mechanism::Sha256, "ann", "right").await,
        0
    );
    let all = DescribeUserScramCredentialsRequest::default().with_users(None);
    let api = ApiKey::DescribeUserScramCredentials;
    let reply: DescribeUserScramCredentialsResponse = client.call(api, 0, &all).await;
    assert_eq!(reply.results.len(), 1);
    assert_eq!(reply.results[0].credential_infos.len(), 2);

    let deletion = |name: &str, mechanism| {
        ScramCredentialDeletion::default()
            .with_name(words(name))
            .with_mechanism(mechanism)
    };
    let request = AlterUserScramCredentialsRequest::default()
        .with_deletions(vec![deletion("ann", 1), deletion("nobody", 1)]);
    let api = ApiKey::AlterUserScramCredentials;
    let reply: AlterUserScramCredentialsResponse = client.call(api, 0, &request).await;
    let codes: Vec<_> = reply.results.iter().map(|one| one.error_code).collect();
    assert_eq!(codes, [0, ResponseError::ResourceNotFound.code()]);
    let mut again = world.client().await;
    assert_ne!(
        scram(&mut again, Mechanism::Sha256, "ann", "right").await,
        0
    );
    let mut again = world.client().await;
    assert_eq!(
        scram(&mut again, Mechanism::Sha512, "ann", "other").await,
        0
    );
}
