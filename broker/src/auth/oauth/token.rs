//! Tokens: JSON web tokens with a signature, RFC 7519, and what the broker asks of their claims.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::keys::KeySet;
use crate::access::ANONYMOUS;
use crate::config::{OauthConfig, TokenAlgorithm};

/// Most bytes of a user's name.
const MAX_NAME: usize = 256;
/// The longest that a token counts: times beyond are as good as endless.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// What a token proves.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Claimed {
    pub(super) user: String,
    /// How much longer.
    pub(super) remaining: Duration,
}

/// Why a token proves nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unproved {
    /// No key of that name is known; the issuer may have a new one.
    UnknownKey(String),
    /// Of this user, as far as that is proved; and why.
    Invalid(String, String),
    /// The token is good for something else.
    Scope(String, String),
}

impl Unproved {
    fn invalid(why: impl Into<String>) -> Self {
        Self::Invalid(String::new(), why.into())
    }
}

#[derive(Deserialize)]
struct Head {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

fn decode(part: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(part).ok()
}

/// Checks a token at `now`, seconds since 1970.
pub(super) fn check(
    config: &OauthConfig,
    keys: &KeySet,
    token: &str,
    now: u64,
) -> Result<Claimed, Unproved> {
    let malformed = || Unproved::invalid("the token is no signed JSON web token");
    let mut parts = token.split('.');
    let (Some(head), Some(claims), Some(signature), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(malformed());
    };
    let signed = &token[..head.len() + 1 + claims.len()];
    let head = decode(head).ok_or_else(malformed)?;
    let head: Head = serde_json::from_slice(&head).map_err(|_| malformed())?;
    if head.crit.is_some() {
        return Err(Unproved::invalid(
            "the token asks for an extension (crit) that the broker does not know",
        ));
    }
    let algorithm = TokenAlgorithm::named(&head.alg);
    let Some(algorithm) = algorithm.filter(|one| config.algorithms.contains(one)) else {
        let why = format!(
            "the token's algorithm {:?} is not among oauth.algorithms",
            short(&head.alg)
        );
        return Err(Unproved::invalid(why));
    };
    let Some(key) = keys.find(head.kid.as_deref(), algorithm) else {
        let id = head.kid.as_deref().map(short);
        let why = match id {
            Some(id) => format!("unknown key {id:?} for {}", algorithm.name()),
            None => format!(
                "the token names no key, and the issuer has not exactly one for {}",
                algorithm.name()
            ),
        };
        return Err(Unproved::UnknownKey(why));
    };
    let signature = decode(signature).ok_or_else(malformed)?;
    if !key.has_signed(algorithm, signed.as_bytes(), &signature) {
        return Err(Unproved::invalid("the token's signature is wrong"));
    }
    let claims = decode(claims).ok_or_else(malformed)?;
    let claims = serde_json::from_slice(&claims).map_err(|_| malformed())?;
    of_claims(config, &claims, now)
}

/// The begin of what a stranger wrote.
fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

/// A time in seconds, if there is one.
fn time(claims: &Map<String, Value>, name: &str) -> Result<Option<f64>, String> {
    let Some(value) = claims.get(name) else {
        return Ok(None);
    };
    let number = value.as_f64().filter(|time| *time >= 0.0);
    match number {
        Some(time) => Ok(Some(time)),
        None => Err(format!("the token's {name} is no time")),
    }
}

/// Texts of a claim that is one or a list of them.
fn texts<'a>(claims: &'a Map<String, Value>, name: &str) -> Vec<&'a str> {
    match claims.get(name) {
        Some(Value::String(one)) => vec![one.as_str()],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

fn of_claims(
    config: &OauthConfig,
    claims: &Map<String, Value>,
    now: u64,
) -> Result<Claimed, Unproved> {
    let user = claims.get(&config.user_claim).and_then(Value::as_str);
    let is_name = |name: &&str| {
        // Rules mean all users, and whoever has proved nothing, by these two.
        let is_taken = matches!(*name, "*" | ANONYMOUS);
        let fits = !name.is_empty() && name.len() <= MAX_NAME;
        fits && !is_taken && !name.chars().any(char::is_control)
    };
    let Some(user) = user.filter(is_name) else {
        let why = format!("the token has no usable name in {}", config.user_claim);
        return Err(Unproved::invalid(why));
    };
    let invalid = |why: String| Err(Unproved::Invalid(user.to_owned(), why));
    let issuer = claims.get("iss").and_then(Value::as_str);
    if issuer.is_none() || issuer != config.issuer.as_deref() {
        return invalid("the token is of another issuer than oauth.issuer".to_owned());
    }
    let mut meant = texts(claims, "aud").into_iter();
    if !meant.any(|one| config.audience.iter().any(|mine| mine == one)) {
        return invalid("the token is for another audience than oauth.audience".to_owned());
    }
    let times = (
        time(claims, "exp"),
        time(claims, "nbf"),
        time(claims, "iat"),
    );
    let (end, begin) = match times {
        (Ok(Some(end)), Ok(begin), Ok(_)) => (end, begin),
        (Ok(None), ..) => return invalid("the token has no end (exp)".to_owned()),
        (Err(why), ..) | (_, Err(why), _) | (_, _, Err(why)) => return invalid(why),
    };
    let (now, skew) = (now as f64, config.clock_skew.as_secs_f64());
    if begin.is_some_and(|begin| now + skew < begin) {
        return invalid("the token is not valid yet (nbf); look at the clocks".to_owned());
    }
    let remaining = (end + skew - now).min(LONGEST.as_secs_f64());
    if remaining <= 0.0 {
        let since = now - end;
        return invalid(format!("the token has expired {since:.0} s ago"));
    }
    if let Some(wanted) = &config.scope {
        let has = texts(claims, &config.scope_claim);
        let mut has = has.iter().flat_map(|one| one.split(' '));
        if !has.any(|one| one == wanted) {
            let why = format!("the token has not the scope {wanted:?} of oauth.scope");
            return Err(Unproved::Scope(user.to_owned(), why));
        }
    }
    Ok(Claimed {
        user: user.to_owned(),
        remaining: Duration::from_secs_f64(remaining),
    })
}
