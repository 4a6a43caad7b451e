//! HTTP's Basic authentication, RFC 7617: name and password in every request.
//!
//! To derive a password anew for each request would cost milliseconds, so one that was right counts for [`KEPT_FOR`] from
//! the same address without that, unless users change meanwhile. What is wrong is never kept.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kera_rpc::scram::ScramError;
use parking_lot::Mutex;
use ring::hmac;
use ring::rand::SystemRandom;
use tokio::sync::Mutex as Turn;

use super::Auth;
use super::plain::{MAX_PLAIN, told};
use crate::audit::Peer;
use crate::config::Listener;

/// As the audit log and the metrics name it.
pub(super) const NAME: &str = "BASIC";
/// A password that was right is not derived again for so long.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// So many of them.
const KEPT: usize = 1024;
/// Longest header: the scheme, and [`MAX_PLAIN`] bytes in base64.
const MAX_HEADER: usize = 16 + MAX_PLAIN.div_ceil(3) * 4;

/// Why nobody has proved to be somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotProved {
    /// The request has no name and password, or wrong ones: what the client is told.
    Wrong(String),
    /// Too many passwords are being checked.
    Busy(String),
}

/// Stands for an address, a name and a password, under a key that nobody knows: what is kept tells none of them.
type Digest = [u8; 32];

struct Right {
    until: Instant,
    /// The revision of the users that it was checked against.
    revision: u64,
}

/// Passwords that were right a moment ago.
pub(super) struct Proved {
    /// `None`: the system has no randomness, and nothing is kept.
    key: Option<hmac::Key>,
    right: Mutex<HashMap<Digest, Right>>,
    /// Requests that bring the same password at once wait for one derivation.
    under_way: Mutex<HashMap<Digest, Arc<Turn<()>>>>,
}

impl Default for Proved {
    fn default() -> Self {
        Self {
            key: hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok(),
            right: Mutex::default(),
            under_way: Mutex::default(),
        }
    }
}

impl Proved {
    pub(super) fn digest(&self, host: IpAddr, user: &str, password: &[u8]) -> Option<Digest> {
        let mut context = hmac::Context::with_key(self.key.as_ref()?);
        let host = match host.to_canonical() {
            IpAddr::V4(host) => host.to_ipv6_mapped(),
            IpAddr::V6(host) => host,
        };
        context.update(&host.octets());
        context.update(&user.len().to_le_bytes());
        context.update(user.as_bytes());
        context.update(password);
        context.sign().as_ref().try_into().ok()
    }

    fn is_right(&self, digest: &Digest, revision: u64, now: Instant) -> bool {
        let right = self.right.lock();
        let known = right.get(digest);
        known.is_some_and(|known| now < known.until && known.revision == revision)
    }

    fn keep(&self, digest: Digest, revision: u64, now: Instant) {
        let mut right = self.right.lock();
        if right.len() >= KEPT {
            right.retain(|_, known| now < known.until && known.revision == revision);
        }
        if right.len() < KEPT {
            let until = now + KEPT_FOR;
            right.insert(digest, Right { until, revision });
        }
    }

    /// The turn of all requests with this password.
    fn turn(&self, digest: Digest) -> Arc<Turn<()>> {
        let mut under_way = self.under_way.lock();
        under_way.retain(|_, turn| Arc::strong_count(turn) > 1);
        under_way.entry(digest).or_default().clone()
    }
}

impl Auth {
    /// The user whose name and password a request to `http.listen` brings from `host`.
    ///
    /// # Errors
    /// [`NotProved`], with what the client is told.
    pub(crate) async fn prove_basic(
        &self,
        host: IpAddr,
        headers: &HeaderMap,
    ) -> Result<Arc<str>, NotProved> {
        let peer = Peer {
            via: Listener::Http.into(),
            host,
        };
        let (user, password) = match read(headers) {
            Ok(Some(read)) => read,
            // Browsers begin so, and are no attempt to get in.
            Ok(None) => {
                let or_token = match self.takes_tokens() {
                    true => ", or a token (Bearer)",
                    false => "",
                };
                let why = format!(
                    "the broker asks who you are: send a user's name and password (HTTP's Basic authentication){or_token}"
                );
                return Err(NotProved::Wrong(why));
            }
            Err(why) => {
                self.count(NAME, false);
                let why = format!("authentication failed: {why}");
                return Err(NotProved::Wrong(self.refused(peer, NAME, "", why)));
            }
        };
        let digest = self.proved.digest(host, &user, &password);
        let is_right = |digest: &Digest| {
            let revision = self.known.load().revision;
            self.proved.is_right(digest, revision, Instant::now())
        };
        if digest.as_ref().is_some_and(is_right) {
            return Ok(user.into());
        }
        let turn = digest.map(|digest| self.proved.turn(digest));
        let _turn = match &turn {
            Some(turn) => Some(turn.lock().await),
            None => None,
        };
        if digest.as_ref().is_some_and(is_right) {
            return Ok(user.into());
        }
        // Users that change from here on make it count for nothing.
        let revision = self.known.load().revision;
        let before = self.kept_of(&user);
        let checked = self.is_password(host, &user, &password).await;
        let is_right = checked.map_err(|_| {
            let why = "authentication failed: the broker checks too many passwords; try again in a moment";
            NotProved::Busy(self.refused(peer, NAME, &user, why.to_owned()))
        })?;
        if !is_right {
            self.count(NAME, false);
            let why = told(&ScramError::WrongProof);
            return Err(NotProved::Wrong(self.refused(peer, NAME, &user, why)));
        }
        if self.kept_of(&user) != before {
            let why = "authentication failed: the user has just been changed; try again";
            let why = self.refused(peer, NAME, &user, why.to_owned());
            return Err(NotProved::Busy(why));
        }
        if let Some(digest) = digest {
            self.proved.keep(digest, revision, Instant::now());
        }
        self.note_proved(peer, NAME, &user);
        Ok(user.into())
    }
}

/// Name and password of a request, if it has some.
fn read(headers: &HeaderMap) -> Result<Option<(String, Vec<u8>)>, &'static str> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let Some(header) = all.next() else {
        return Ok(None);
    };
    if all.next().is_some() {
        return Err("the request has several Authorization headers");
    }
    let header = header.as_bytes();
    if header.len() > MAX_HEADER {
        return Err("the Authorization header is too long");
    }
    let scheme = header.split(|byte| *byte == b' ').next();
    let scheme = scheme.unwrap_or_default();
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return Err("the broker takes HTTP's Basic authentication, and no other");
    }
    let malformed = "the Authorization header has no name and password";
    let token = header[scheme.len()..].trim_ascii();
    let mut user = STANDARD.decode(token).map_err(|_| malformed)?;
    let colon = user.iter().position(|byte| *byte == b':');
    let password = user.split_off(colon.ok_or(malformed)?);
    let user = String::from_utf8(user).map_err(|_| malformed)?;
    let password = &password[1..];
    if user.is_empty() || password.is_empty() || user.contains(char::is_control) {
        return Err(malformed);
    }
    Ok(Some((user, password.to_vec())))
}

#[cfg(test)]
#[path = "basic_tests.rs"]
mod tests;
