use axum::http::HeaderValue;
use kera_testkit::issuer::{AUDIENCE, Key, now};
use serde_json::json;

use super::*;
use crate::audit::Audit;
use crate::config::{BrokerConfig, SaslMechanism};
use crate::metrics::Family;

const HERE: [u8; 4] = [192, 0, 2, 1];

fn with(headers: &[&str]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for header in headers {
        let value = HeaderValue::from_str(header).expect("a header can have it");
        map.append(AUTHORIZATION, value);
    }
    map
}

fn auth(keys: &[&Key]) -> Auth {
    let mut config = BrokerConfig::default();
    config.auth.listeners = vec![Listener::Http];
    config.auth.mechanisms = vec![SaslMechanism::OauthBearer];
    config.oauth.issuer = Some("https://issuer.example".to_owned());
    config.oauth.audience = vec![AUDIENCE.to_owned()];
    let auth = Auth::new(&config.auth, None, Family::default(), Audit::off());
    let auth = auth.with_tokens(&config.oauth, config.takes_tokens());
    let keys: Vec<_> = keys.iter().map(|key| key.public()).collect();
    auth.have_keys(json!({"keys": keys}).to_string().as_bytes());
    auth
}

fn token(key: &Key, life: i64) -> String {
    let end = now() as i64 + life;
    let claims =
        json!({"iss": "https://issuer.example", "aud": AUDIENCE, "sub": "ann", "exp": end});
    key.sign(&claims)
}

fn counted(auth: &Auth, is_right: bool) -> u64 {
    let labels = crate::auth::labels(NAME, is_right);
    auth.authentications.get_or_create_owned(&labels).get()
}

#[test]
fn a_token_is_what_one_header_of_its_scheme_has() {
    for (headers, found) in [
        (&["Bearer a.b.c"][..], Some("a.b.c")),
        (&["bEARER   a.b.c  "], Some("a.b.c")),
        (&["Bearer "], Some("")),
        (&["Bearer"], None),
        (&["Bearera.b.c"], None),
        (&["Basic a.b.c"], None),
        (&[""], None),
        (&[], None),
        (&["Bearer a", "Bearer a"], None),
    ] {
        let found = found.map(str::as_bytes);
        assert_eq!(super::token(&with(headers)), found, "{headers:?}");
    }
}

#[tokio::test]
async fn a_right_token_is_checked_once_for_an_address_and_counts_until_its_end() {
    let (key, other) = (Key::es256("a"), Key::es256("a"));
    let auth = auth(&[&key]);
    let right = with(&[&format!("Bearer {}", token(&key, 600))]);
    let prove = async |host: [u8; 4], headers: &HeaderMap| {
        let proved = auth.prove_http(host.into(), headers).await;
        proved.map(|asker| (asker.user, asker.until.is_some()))
    };
    for _ in 0..3 {
        assert_eq!(prove(HERE, &right).await, Ok(("ann".into(), true)));
    }
    assert_eq!(counted(&auth, true), 1);
    // Another address proves it for itself: the audit log names both.
    assert!(prove([192, 0, 2, 2], &right).await.is_ok());
    assert_eq!(counted(&auth, true), 2);
    for (wrong, why) in [
        (token(&key, -3600), "has expired"),
        (token(&other, 600), "signature is wrong"),
        ("a.b".to_owned(), "no signed JSON web token"),
        (String::new(), "no signed JSON web token"),
    ] {
        let refused = prove(HERE, &with(&[&format!("Bearer {wrong}")])).await;
        let Err(NotProved::Wrong(told)) = refused else {
            panic!("{refused:?}");
        };
        assert!(told.contains(why), "{told}");
        assert!(wrong.is_empty() || !told.contains(&wrong), "{told}");
    }
    assert_eq!(counted(&auth, false), 4);
    // Passwords count beside them, and nobody has one here.
    let refused = prove(HERE, &with(&["Basic YW5uOnNlY3JldA=="])).await;
    assert!(matches!(refused, Err(NotProved::Wrong(_))), "{refused:?}");
}

#[tokio::test]
async fn where_tokens_are_not_taken_none_is() {
    let config = BrokerConfig::default().auth;
    let auth = Auth::new(&config, None, Family::default(), Audit::off());
    let key = Key::es256("a");
    let right = with(&[&format!("Bearer {}", token(&key, 600))]);
    let refused = auth.prove_http(HERE.into(), &right).await;
    let Err(NotProved::Wrong(told)) = refused else {
        panic!("{refused:?}");
    };
    assert!(told.contains("and no other"), "{told}");
}

#[tokio::test]
async fn one_address_has_no_more_checks_at_a_time_than_of_passwords() {
    let key = Key::es256("a");
    let auth = auth(&[&key]);
    let here: IpAddr = HERE.into();
    let places: Vec<_> = std::iter::from_fn(|| Place::take(&auth.waiting, here.into())).collect();
    let right = with(&[&format!("Bearer {}", token(&key, 600))]);
    let refused = auth.prove_http(here, &right).await;
    assert!(matches!(refused, Err(NotProved::Busy(_))), "{refused:?}");
    assert!(auth.prove_http([192, 0, 2, 2].into(), &right).await.is_ok());
    drop(places);
    assert!(auth.prove_http(here, &right).await.is_ok());
}

#[test]
fn what_is_kept_ends_and_is_bounded() {
    let proved = ProvedTokens::default();
    let (now, one) = (Instant::now(), [1; 32]);
    let hour = now + Duration::from_secs(3600);
    proved.keep(one, "ann".into(), hour, now);
    let found = proved.find(&one, now).expect("it is kept");
    assert_eq!((&*found.user, found.until), ("ann", Some(hour)));
    assert_eq!(proved.find(&one, now + KEPT_FOR), None);
    // Never longer than the token counts.
    let second = now + Duration::from_secs(1);
    proved.keep([2; 32], "ann".into(), second, now);
    assert!(proved.find(&[2; 32], now).is_some());
    assert_eq!(proved.find(&[2; 32], second), None);
    let digest = |n: usize| {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&n.to_le_bytes());
        digest
    };
    (0..2 * KEPT).for_each(|n| proved.keep(digest(n), "ann".into(), hour, now));
    assert_eq!(proved.0.lock().len(), KEPT);
    // Those that have ended make room.
    let later = now + KEPT_FOR;
    proved.keep(digest(9999), "ann".into(), hour, later);
    assert!(proved.find(&digest(9999), later).is_some());
    assert_eq!(proved.0.lock().len(), 1);
}
