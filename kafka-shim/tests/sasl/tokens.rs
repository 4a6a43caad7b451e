//! Tokens of an issuer over the wire: OAUTHBEARER.

use kera_testkit::issuer::{AUDIENCE, Issuer};

use super::*;

pub fn asks_for_tokens(config: &mut BrokerConfig, issuer: &Issuer) {
    asking(config);
    config.auth.mechanisms.push(SaslMechanism::OauthBearer);
    config.oauth.issuer = Some(issuer.name());
    config.oauth.audience = vec![AUDIENCE.to_owned()];
    let keys = issuer.keys().parse().unwrap();
    config.oauth.keys = Some(kera_broker::config::KeySource::Server(keys));
    config.oauth.clock_skew = Duration::ZERO;
}

async fn token(client: &mut Client, token: &str) -> SaslAuthenticateResponse {
    assert_eq!(handshake(client, "OAUTHBEARER").await.error_code, 0);
    let message = format!("n,,\u{1}auth=Bearer {token}\u{1}\u{1}");
    send(client, 2, message.as_bytes()).await
}

/// A broker that has the keys: a slow machine may need more time for that than a login waits.
async fn world_with_keys(issuer: &Issuer) -> World {
    let world = World::with(|config| asks_for_tokens(config, issuer)).await;
    has_keys(&world, issuer).await;
    world
}

/// Waits until a token is taken.
pub async fn has_keys(world: &World, issuer: &Issuer) {
    let right = issuer.sign(&issuer.claims("ann", 600));
    let begin = Instant::now();
    loop {
        let mut client = world.client().await;
        if token(&mut client, &right).await.auth_bytes.is_empty() {
            return;
        }
        assert!(begin.elapsed() < common::PATIENCE, "no token is taken");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_lets_its_user_in_until_it_ends() {
    let issuer = Issuer::start("ann", 600);
    let world = world_with_keys(&issuer).await;
    let life = |answer: &SaslAuthenticateResponse| answer.session_lifetime_ms;

    let mut client = world.client().await;
    let in_ten = issuer.sign(&issuer.claims("ann", 600));
    let first = token(&mut client, &in_ten).await;
    assert_eq!(first.error_code, 0, "{:?}", first.error_message);
    assert!(first.auth_bytes.is_empty());
    assert!((1..=600_000).contains(&life(&first)), "{}", life(&first));
    assert_eq!(topics(&mut client).await, 0);
    // A new token of the same user takes the place of the old.
    let in_twenty = issuer.sign(&issuer.claims("ann", 1200));
    let second = token(&mut client, &in_twenty).await;
    assert!((600_001..=1_200_000).contains(&life(&second)));
    // One of another user does not.
    let mut client = world.client().await;
    assert_eq!(token(&mut client, &in_ten).await.error_code, 0);
    let bob = issuer.sign(&issuer.claims("bob", 600));
    let refused = token(&mut client, &bob).await;
    let why = refused.error_message.unwrap_or_default();
    assert!(why.contains("keeps its user"), "{why}");
    assert!(client.closed().await);

    // Its end is that of the session: it is served, and then it is not.
    let mut client = world.client().await;
    let short = issuer.sign(&issuer.claims("ann", 3));
    assert_eq!(token(&mut client, &short).await.error_code, 0);
    let ask = MetadataRequest::default().with_topics(None);
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < common::PATIENCE, "it is still served");
        let sent = client.try_send(ApiKey::Metadata, 9, &ask).await;
        if sent.is_err() || client.frame().await.is_err() {
            break;
        }
    }
    let mut late = world.client().await;
    let challenged = token(&mut late, &short).await;
    assert_eq!(challenged.auth_bytes, "{\"status\":\"invalid_token\"}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_is_answered_by_a_challenge_and_then_by_the_reason() {
    let issuer = Issuer::start("ann", 600);
    let world = world_with_keys(&issuer).await;
    let mut elsewhere = issuer.claims("ann", 600);
    elsewhere["aud"] = "elsewhere".into();
    let expired = {
        let mut claims = issuer.claims("ann", 0);
        claims["exp"] = (kera_testkit::issuer::now() - 5).into();
        claims
    };
    for (claims, told) in [(elsewhere, "another audience"), (expired, "has expired")] {
        let wrong = issuer.sign(&claims);
        let mut client = world.client().await;
        let challenged = token(&mut client, &wrong).await;
        assert_eq!(
            (challenged.error_code, challenged.session_lifetime_ms),
            (0, 0)
        );
        assert_eq!(
            &challenged.auth_bytes[..],
            b"{\"status\":\"invalid_token\"}"
        );
        let failed = send(&mut client, 2, b"\x01").await;
        let code = ResponseError::SaslAuthenticationFailed.code();
        assert_eq!(failed.error_code, code);
        let why = failed.error_message.unwrap_or_default();
        assert!(why.contains(told) && !why.contains(&wrong), "{why}");
        assert!(client.closed().await);
    }
    // A client that sends another request instead gets nothing either.
    let mut client = world.client().await;
    token(&mut client, "a.b.c").await;
    let right = issuer.sign(&issuer.claims("ann", 600));
    let message = format!("n,,\u{1}auth=Bearer {right}\u{1}\u{1}");
    let failed = send(&mut client, 2, message.as_bytes()).await;
    assert_ne!(failed.error_code, 0);
    assert!(client.closed().await);
    let mut client = world.client().await;
    token(&mut client, "a.b.c").await;
    let ask = MetadataRequest::default();
    client.send(ApiKey::Metadata, 9, &ask).await;
    assert!(client.closed().await);
}
