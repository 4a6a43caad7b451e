use axum::http::HeaderValue;
use kera_metadata::{User, UserCredential, UsersRecord};
use kera_rpc::scram::{Credential, Mechanism};

use super::*;
use crate::audit::Audit;
use crate::config::BrokerConfig;
use crate::metrics::Family;

const HERE: [u8; 4] = [192, 0, 2, 1];

fn with(headers: &[&[u8]]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for header in headers {
        let value = HeaderValue::from_bytes(header).expect("a header can have it");
        map.append(AUTHORIZATION, value);
    }
    map
}

fn basic(text: impl AsRef<[u8]>) -> Vec<u8> {
    format!("Basic {}", STANDARD.encode(text)).into_bytes()
}

fn users(password: &[u8], revision: u64) -> UsersRecord {
    let mechanism = Mechanism::Sha512;
    let made = Credential::of_password(mechanism, password, vec![1; 16], 4096).expect("a password");
    UsersRecord {
        users: vec![User {
            name: "ann".to_owned(),
            credentials: vec![UserCredential {
                mechanism: mechanism.number(),
                salt: made.salt,
                iterations: made.iterations,
                stored_key: made.stored_key,
                server_key: made.server_key,
            }],
        }],
        secret: vec![9; 32],
        revision,
    }
}

fn auth() -> Auth {
    let mut config = BrokerConfig::default().auth;
    config.listeners = vec![Listener::Http];
    let record = users(b"se:cret", 1);
    Auth::new(&config, Some(&record), Family::default(), Audit::off())
}

async fn prove(auth: &Auth, host: impl Into<IpAddr>, header: &[u8]) -> Result<Arc<str>, NotProved> {
    auth.prove_basic(host.into(), &with(&[header])).await
}

fn successes(auth: &Auth) -> u64 {
    let labels = super::super::labels(NAME, true);
    auth.authentications.get_or_create_owned(&labels).get()
}

#[test]
fn what_is_no_name_and_password_is_refused() {
    assert_eq!(read(&HeaderMap::new()), Ok(None));
    let right = Ok(Some(("ann".to_owned(), b"se:cret".to_vec())));
    assert_eq!(read(&with(&[&basic("ann:se:cret")])), right);
    for (as_written, token) in [("bAsIc  ", ""), ("basic ", " ")] {
        let header = format!("{as_written}{}{token}", STANDARD.encode("ann:se:cret"));
        assert_eq!(read(&with(&[header.as_bytes()])), right, "{header}");
    }
    let long = [b"Basic ".to_vec(), vec![b'A'; MAX_HEADER]].concat();
    for (header, why) in [
        (&b"Bearer abc"[..], "no other"),
        (b"Basic", "no name"),
        (b"Basic ", "no name"),
        (b"", "no other"),
        (b"Basicabc", "no other"),
        (b"Basic !!!!", "no name"),
        (b"Basic YW5uOnNl\xff", "no name"),
        (b"Basic YW5uOnN", "no name"),
        (&basic("ann"), "no name"),
        (&basic(":secret"), "no name"),
        (&basic("ann:"), "no name"),
        (&basic("a\0nn:secret"), "no name"),
        (&basic("a\nnn:secret"), "no name"),
        (&basic(b"\xff\xfe:secret"), "no name"),
        (&long, "too long"),
    ] {
        let refused = read(&with(&[header])).expect_err("it is refused");
        let header = String::from_utf8_lossy(header);
        assert!(refused.contains(why), "{header}: {refused}");
    }
    let right = basic("ann:se:cret");
    let twice = read(&with(&[&right, &right])).expect_err("it is refused");
    assert!(twice.contains("several"), "{twice}");
}

#[tokio::test]
async fn a_right_password_is_derived_once_for_an_address_until_users_change() {
    let auth = auth();
    let right = basic("ann:se:cret");
    let wrong =
        NotProved::Wrong("authentication failed: the user or the password is wrong".to_owned());
    for _ in 0..3 {
        assert_eq!(prove(&auth, HERE, &right).await, Ok("ann".into()));
    }
    assert_eq!(successes(&auth), 1);
    // Another address proves it for itself: the audit log names both.
    assert_eq!(prove(&auth, [192, 0, 2, 2], &right).await, Ok("ann".into()));
    assert_eq!(successes(&auth), 2);
    for other in ["ann:se:cre", "ann:guessed", "nobody:se:cret", "Ann:se:cret"] {
        let refused = prove(&auth, HERE, &basic(other)).await;
        assert_eq!(refused, Err(wrong.clone()), "{other}");
    }
    // No way to write name and password differently stands for the same.
    let digest = |user, password: &[u8]| auth.proved.digest(HERE.into(), user, password);
    assert_ne!(digest("ann", b"x"), digest("an", b"nx"));
    auth.take(&users(b"another", 2));
    assert_eq!(prove(&auth, HERE, &right).await, Err(wrong));
    assert_eq!(
        prove(&auth, HERE, &basic("ann:another")).await,
        Ok("ann".into())
    );
}

#[tokio::test]
async fn requests_that_come_together_take_one_derivation() {
    let auth = auth();
    let right = basic("ann:se:cret");
    let asked = (0..50).map(|_| prove(&auth, HERE, &right));
    for proved in futures::future::join_all(asked).await {
        assert_eq!(proved, Ok("ann".into()));
    }
    assert_eq!(successes(&auth), 1);
    // Different ones of one address have their part of the places, and no more.
    let headers: Vec<_> = (0..50).map(|n| basic(format!("ann:guess{n}"))).collect();
    let asked = headers.iter().map(|header| prove(&auth, HERE, header));
    // None is derived before all have asked.
    let turn = auth.derives.clone().acquire_owned().await;
    let all_asked = async {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        drop(turn);
    };
    let (refused, ()) = tokio::join!(futures::future::join_all(asked), all_asked);
    let busy = |one: &&Result<_, NotProved>| matches!(one, Err(NotProved::Busy(_)));
    assert_eq!(
        refused.iter().filter(busy).count(),
        50 - super::super::WAITING_OF_ONE
    );
    assert_eq!(prove(&auth, HERE, &right).await, Ok("ann".into()));
    // Those that have ended leave nothing.
    auth.proved.turn([0; 32]);
    assert_eq!(auth.proved.under_way.lock().len(), 1);
}

#[test]
fn what_is_kept_ends_and_is_bounded() {
    let proved = Proved::default();
    let (now, one) = (Instant::now(), [1; 32]);
    proved.keep(one, 7, now);
    assert!(proved.is_right(&one, 7, now));
    assert!(!proved.is_right(&one, 8, now), "users have changed");
    assert!(!proved.is_right(&one, 7, now + KEPT_FOR));
    assert!(!proved.is_right(&[2; 32], 7, now));
    let digest = |n: usize| {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&n.to_le_bytes());
        digest
    };
    (0..2 * KEPT).for_each(|n| proved.keep(digest(n), 7, now));
    assert_eq!(proved.right.lock().len(), KEPT);
    // Those that have ended make room.
    proved.keep(digest(9999), 7, now + KEPT_FOR);
    assert!(proved.is_right(&digest(9999), 7, now + KEPT_FOR));
    assert_eq!(proved.right.lock().len(), 1);
}
