//! Tokens of an issuer, right and wrong ones, and keys that come, change and stay away.

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kera_testkit::issuer::{AUDIENCE, Issuer, Key, now};
use serde_json::{Value, json};

use super::*;
use crate::audit::Audit;
use crate::config::{BrokerConfig, KeySource, Listener, TokenAlgorithm};
use crate::metrics::Family;

const ISSUER: &str = "https://issuer.example";

fn config() -> OauthConfig {
    OauthConfig {
        issuer: Some(ISSUER.to_owned()),
        audience: vec!["other".to_owned(), AUDIENCE.to_owned()],
        ..BrokerConfig::default().oauth
    }
}

fn claims() -> Value {
    json!({"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": now() + 600})
}

fn set(keys: &[Value]) -> Vec<u8> {
    json!({"keys": keys}).to_string().into_bytes()
}

fn checked(config: &OauthConfig, key: &Key, token: &str) -> Result<Claimed, Unproved> {
    let keys = KeySet::read(&set(&[key.public()])).unwrap();
    token::check(config, &keys, token, now())
}

fn reason(unproved: Result<Claimed, Unproved>) -> String {
    match unproved.expect_err("it is refused") {
        Unproved::UnknownKey(why) | Unproved::Invalid(_, why) | Unproved::Scope(_, why) => why,
    }
}

#[test]
fn tokens_of_each_algorithm_prove_who_a_user_is() {
    for key in [
        Key::es256("a"),
        Key::rsa("a", "RS256"),
        Key::rsa("a", "PS256"),
    ] {
        let token = key.sign(&claims());
        let claimed = checked(&config(), &key, &token).unwrap();
        assert_eq!(claimed.user, "ann");
        // The skew is 30 s.
        assert!((620..=631).contains(&claimed.remaining.as_secs()));
        let mut others = config();
        let is_other = |one: &TokenAlgorithm| one.name() != key.algorithm();
        others.algorithms.retain(is_other);
        let why = reason(checked(&others, &key, &token));
        assert!(why.contains("oauth.algorithms"), "{why}");
        // Signed by another key of that name.
        let forged = match key.algorithm() {
            "ES256" => Key::es256("a"),
            algorithm => Key::rsa("a", algorithm),
        };
        let why = reason(checked(&config(), &key, &forged.sign(&claims())));
        assert!(why.contains("signature is wrong"), "{why}");
        // With the claims of another token.
        let mut parts: Vec<_> = token.split('.').collect();
        let mut bob = claims();
        bob["sub"] = "bob".into();
        let other = key.sign(&bob);
        parts[1] = other.split('.').nth(1).unwrap();
        let why = reason(checked(&config(), &key, &parts.join(".")));
        assert!(why.contains("signature is wrong"), "{why}");
    }
}

#[test]
fn a_zero_before_the_numbers_of_a_key_changes_nothing() {
    let key = Key::rsa("a", "RS256");
    let mut public = key.public();
    for name in ["n", "e"] {
        let number = public[name]
            .as_str()
            .and_then(|n| URL_SAFE_NO_PAD.decode(n).ok());
        let padded = [&[0], &number.expect("a number")[..]].concat();
        public[name] = URL_SAFE_NO_PAD.encode(padded).into();
    }
    let keys = KeySet::read(&set(&[public])).expect("keys");
    let checked = token::check(&config(), &keys, &key.sign(&claims()), now());
    assert!(checked.is_ok(), "{}", reason(checked));
}

#[test]
fn what_the_head_asks_for_is_looked_at_first() {
    let key = Key::es256("a");
    for (head, told) in [
        (json!({"alg": "none"}), "algorithm \"none\""),
        (json!({"alg": "HS256", "kid": "a"}), "algorithm \"HS256\""),
        (json!({"alg": "ES256", "kid": "b"}), "unknown key \"b\""),
        (json!({"alg": "RS256", "kid": "a"}), "unknown key \"a\""),
        (json!({"alg": "ES256", "kid": "a", "crit": ["b64"]}), "crit"),
        (json!({"kid": "a"}), "no signed JSON web token"),
    ] {
        let why = reason(checked(&config(), &key, &key.sign_with(&head, &claims())));
        assert!(why.contains(told), "{why}");
    }
    let token = key.sign(&claims());
    let (unsigned, _) = token.rsplit_once('.').unwrap();
    for (wrong, told) in [
        ("", "no signed JSON web token"),
        ("a.b.c", "no signed JSON web token"),
        (unsigned, "no signed JSON web token"),
        (&*format!("{token}.x"), "no signed JSON web token"),
        (&*format!("{unsigned}."), "signature is wrong"),
    ] {
        let why = reason(checked(&config(), &key, wrong));
        assert!(why.contains(told), "{wrong}: {why}");
    }
    // Without a name of a key there must be one alone.
    let nameless = key.sign_with(&json!({"alg": "ES256"}), &claims());
    assert!(checked(&config(), &key, &nameless).is_ok());
    let two = set(&[key.public(), Key::es256("b").public()]);
    let keys = KeySet::read(&two).unwrap();
    let why = reason(token::check(&config(), &keys, &nameless, now()));
    assert!(why.contains("names no key"), "{why}");
}

#[test]
fn claims_are_what_the_broker_asks_for() {
    let key = Key::es256("a");
    let with = |name: &str, value: Value| {
        let mut claims = claims();
        claims[name] = value;
        checked(&config(), &key, &key.sign(&claims))
    };
    for (name, value, told) in [
        ("iss", json!("https://issuer.example/"), "another issuer"),
        ("iss", Value::Null, "another issuer"),
        ("aud", json!("somebody"), "another audience"),
        ("aud", Value::Null, "another audience"),
        ("aud", json!([]), "another audience"),
        ("exp", json!(now() - 40), "has expired"),
        ("exp", json!("tomorrow"), "no time"),
        ("exp", json!(-1), "no time"),
        ("nbf", json!(now() + 60), "not valid yet"),
        ("nbf", json!({}), "no time"),
        ("sub", Value::Null, "no usable name in sub"),
        ("sub", json!(""), "no usable name in sub"),
        ("sub", json!("*"), "no usable name in sub"),
        ("sub", json!("ANONYMOUS"), "no usable name in sub"),
        ("sub", json!("a\nb"), "no usable name in sub"),
        ("sub", json!("x".repeat(257)), "no usable name in sub"),
    ] {
        let why = reason(with(name, value.clone()));
        assert!(why.contains(told), "{name} {value}: {why}");
    }
    let mut endless = claims();
    endless.as_object_mut().unwrap().remove("exp");
    let why = reason(checked(&config(), &key, &key.sign(&endless)));
    assert!(why.contains("no end"), "{why}");
    for (name, value) in [
        ("aud", json!(["x", AUDIENCE])),
        ("exp", json!(now() - 20)),
        ("exp", json!(1e300)),
        ("nbf", json!(now() + 20)),
    ] {
        assert!(with(name, value.clone()).is_ok(), "{name} {value}");
    }
    let none = OauthConfig {
        issuer: None,
        ..config()
    };
    let mut nobody = claims();
    nobody.as_object_mut().unwrap().remove("iss");
    let why = reason(checked(&none, &key, &key.sign(&nobody)));
    assert!(why.contains("another issuer"), "{why}");

    let other = OauthConfig {
        user_claim: "azp".to_owned(),
        scope: Some("streams".to_owned()),
        scope_claim: "scp".to_owned(),
        ..config()
    };
    let mut claims = claims();
    claims["azp"] = "robot".into();
    let scoped = |scopes: Value, claims: &mut Value| {
        claims["scp"] = scopes;
        checked(&other, &key, &key.sign(claims))
    };
    for wrong in [json!("streams2 x"), json!(["x"]), Value::Null] {
        let why = reason(scoped(wrong, &mut claims));
        assert!(why.contains("oauth.scope"), "{why}");
    }
    for right in [json!("x streams"), json!(["x", "streams"])] {
        assert_eq!(scoped(right, &mut claims).unwrap().user, "robot");
    }
}

#[test]
fn key_sets_have_keys_for_signatures_and_an_end() {
    let key = Key::es256("a").public();
    let mut others = vec![key.clone(), key.clone(), key.clone(), json!({"kty": "oct"})];
    others[0]["use"] = "enc".into();
    others[1]["alg"] = "ES384".into();
    others[2]["x"] = "AAAA".into();
    assert!(KeySet::read(&set(&others)).is_err());
    others.push(key.clone());
    assert!(KeySet::read(&set(&others)).is_ok());
    assert!(KeySet::read(&set(&vec![key; 257])).is_err());
    for wrong in [&b"{}"[..], b"", b"[", &b" ".repeat(300 << 10)[..]] {
        assert!(KeySet::read(wrong).is_err());
    }
}

fn auth(config: OauthConfig) -> Auth {
    let mut asking = BrokerConfig::default().auth;
    asking.listeners = vec![Listener::Kafka];
    asking.mechanisms = vec![SaslMechanism::OauthBearer];
    Auth::new(&asking, None, Family::default(), Audit::off()).with_tokens(&config, true)
}

async fn login(auth: &Auth, token: &str) -> Result<Proof, TokenRefusal> {
    let message = format!("n,,\u{1}auth=Bearer {token}\u{1}\u{1}");
    let peer = Peer {
        via: Listener::Kafka.into(),
        host: IpAddr::from([127, 0, 0, 1]),
    };
    auth.prove_token(peer, message.as_bytes()).await
}

/// Logs in once the broker has the key, which a slow machine may need more time for than a login waits.
async fn login_soon(auth: &Auth, token: &str) -> Proof {
    let logged_in = async {
        loop {
            if let Ok(proof) = login(auth, token).await {
                return proof;
            }
            tokio::task::yield_now().await;
        }
    };
    let patient = tokio::time::timeout(kera_testkit::PATIENCE, logged_in).await;
    patient.expect("the token is taken")
}

fn kept(auth: &Auth) -> tokio::task::JoinHandle<()> {
    tokio::spawn(auth.oauth().unwrap().clone().keep())
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_change_are_fetched_once_and_old_ones_count_no_more() {
    let issuer = Issuer::start("ann", 600);
    let auth = auth(OauthConfig {
        issuer: Some(issuer.name()),
        keys: Some(KeySource::Server(issuer.keys().parse().unwrap())),
        ..config()
    });
    let keeping = kept(&auth);
    let oauth = auth.oauth().unwrap().clone();
    let begun = async {
        while oauth.keys.load().is_none() {
            tokio::task::yield_now().await;
        }
    };
    let begun = tokio::time::timeout(kera_testkit::PATIENCE, begun).await;
    begun.expect("keys are there");
    let old = issuer.sign(&issuer.claims("ann", 600));
    assert_eq!(&*login(&auth, &old).await.unwrap().user, "ann");
    let before = issuer.asked().1;
    issuer.rotate("second");
    let new = issuer.sign(&issuer.claims("ann", 600));
    login_soon(&auth, &new).await;
    assert_eq!(issuer.asked().1, before + 1);
    let refused = login(&auth, &old).await.unwrap_err();
    assert!(refused.why.contains("unknown key \"first\""), "{refused:?}");
    assert_eq!(refused.challenge, "{\"status\":\"invalid_token\"}");
    // However many strangers name however many keys.
    for id in 0..20 {
        let stranger = Key::es256(&id.to_string());
        let token = stranger.sign(&issuer.claims("ann", 600));
        assert!(login(&auth, &token).await.is_err());
    }
    assert_eq!(issuer.asked().1, before + 1);
    keeping.abort();
}

#[tokio::test(start_paused = true)]
async fn keys_that_stay_away_leave_those_that_are_known_and_come_later() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.json");
    let auth = auth(OauthConfig {
        keys: Some(KeySource::File(file.clone())),
        ..config()
    });
    let keeping = kept(&auth);
    let oauth = auth.oauth().unwrap().clone();
    let key = Key::es256("a");
    let refused = login(&auth, &key.sign(&claims())).await.unwrap_err();
    assert!(refused.why.contains("no keys of the issuer"), "{refused:?}");
    assert!(oauth.is_stale());
    std::fs::write(&file, set(&[key.public()])).unwrap();
    // It tries again by itself.
    while oauth.is_stale() {
        tokio::time::sleep(RETRY_MOST).await;
    }
    assert!(login(&auth, &key.sign(&claims())).await.is_ok());
    std::fs::write(&file, "not any more").unwrap();
    while !oauth.is_stale() {
        tokio::time::sleep(oauth.config.keys_refresh).await;
    }
    assert!(login(&auth, &key.sign(&claims())).await.is_ok());
    keeping.abort();
}

#[tokio::test(start_paused = true)]
async fn a_file_of_keys_that_is_replaced_is_read_once_a_minute_at_most() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.json");
    let replace = |key: &Key| {
        let new = dir.path().join("new");
        std::fs::write(&new, set(&[key.public()])).unwrap();
        std::fs::rename(&new, &file).unwrap();
    };
    let [first, second, third] = ["a", "b", "c"].map(Key::es256);
    replace(&first);
    let auth = auth(OauthConfig {
        keys: Some(KeySource::File(file.clone())),
        ..config()
    });
    let keeping = kept(&auth);
    let oauth = auth.oauth().unwrap().clone();
    while oauth.keys.load().is_none() {
        tokio::task::yield_now().await;
    }
    replace(&second);
    // Nobody has asked for the new key yet.
    assert!(login(&auth, &first.sign(&claims())).await.is_ok());
    assert!(login(&auth, &second.sign(&claims())).await.is_ok());
    let refused = login(&auth, &first.sign(&claims())).await.unwrap_err();
    assert!(refused.why.contains("unknown key \"a\""), "{refused:?}");
    replace(&third);
    tokio::time::advance(ASKED_EVERY - Duration::from_secs(1)).await;
    assert!(login(&auth, &third.sign(&claims())).await.is_err());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(login(&auth, &third.sign(&claims())).await.is_ok());
    // The old one counts no more once the file is read by itself, too.
    replace(&first);
    tokio::time::sleep(oauth.config.keys_refresh * 2).await;
    assert!(login(&auth, &first.sign(&claims())).await.is_ok());
    keeping.abort();
}

#[tokio::test]
async fn a_token_gives_nobody_elses_rights() {
    let auth = auth(config());
    let key = Key::es256("a");
    let keys = KeySet::read(&set(&[key.public()])).unwrap();
    auth.oauth().unwrap().keys.store(Some(Arc::new(keys)));
    let peer = Peer {
        via: Listener::Kafka.into(),
        host: IpAddr::from([127, 0, 0, 1]),
    };
    for (name, is_in) in [("ann", true), ("bob", false)] {
        let token = key.sign(&claims());
        let message = format!("n,a={name},\u{1}auth=Bearer {token}\u{1}\u{1}");
        let proof = auth.prove_token(peer, message.as_bytes()).await;
        assert_eq!(proof.is_ok(), is_in, "{proof:?}");
    }
    let none = auth.prove_token(peer, b"n,,").await.unwrap_err();
    assert_eq!(none.challenge, "{\"status\":\"invalid_request\"}");
    // The lower of both times counts.
    let proof = login(&auth, &key.sign(&claims())).await.unwrap();
    let session = auth.let_in(peer, proof, None).unwrap();
    assert!(session.lifetime.is_some_and(|life| life.as_secs() <= 630));
}
