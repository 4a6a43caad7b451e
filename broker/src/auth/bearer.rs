//! Tokens over HTTP, RFC 6750: `Authorization: Bearer`, in every request.
//!
//! One that was right counts for [`KEPT_FOR`] from the same address without being checked again, and never longer than until its
//! end: each check is a line in the audit log.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use parking_lot::Mutex;

use super::basic::NotProved;
use super::{Auth, Busy, Place};
use crate::audit::Peer;
use crate::config::Listener;

/// As the audit log and the metrics name it.
pub(super) const NAME: &str = "BEARER";
/// A token that was right is not checked again for so long.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// So many of them.
const KEPT: usize = 1024;

/// Who asks over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    /// The user.
    pub(crate) user: Arc<str>,
    /// When the token ends by which it is that; `None` for a password.
    pub(crate) until: Option<Instant>,
}

struct Right {
    /// It is checked again from then on.
    kept_until: Instant,
    user: Arc<str>,
    ends: Instant,
}

/// Tokens that were right a moment ago, by what [stands](super::basic::Proved::digest) for them.
#[derive(Default)]
pub(super) struct ProvedTokens(Mutex<HashMap<[u8; 32], Right>>);

impl ProvedTokens {
    fn find(&self, digest: &[u8; 32], now: Instant) -> Option<Asker> {
        let right = self.0.lock();
        let known = right.get(digest).filter(|known| now < known.kept_until)?;
        Some(Asker {
            user: known.user.clone(),
            until: Some(known.ends),
        })
    }

    fn keep(&self, digest: [u8; 32], user: Arc<str>, ends: Instant, now: Instant) {
        let mut right = self.0.lock();
        if right.len() >= KEPT {
            right.retain(|_, known| now < known.kept_until);
        }
        if right.len() < KEPT {
            let known = Right {
                kept_until: ends.min(now + KEPT_FOR),
                user,
                ends,
            };
            right.insert(digest, known);
        }
    }
}

impl Auth {
    /// True if requests over HTTP may bring tokens: what only listeners with names take is for their clients.
    pub(crate) fn takes_tokens(&self) -> bool {
        self.oauth.is_some() && self.has_tokens
    }

    /// Who sends a request to `http.listen` from `host`, by a password or, where tokens are taken, by a token.
    ///
    /// # Errors
    /// [`NotProved`], with what the client is told.
    pub(crate) async fn prove_http(
        &self,
        host: IpAddr,
        headers: &HeaderMap,
    ) -> Result<Asker, NotProved> {
        match token(headers).filter(|_| self.takes_tokens()) {
            Some(token) => self.prove_bearer(host, token).await,
            None => {
                let user = self.prove_basic(host, headers).await?;
                Ok(Asker { user, until: None })
            }
        }
    }

    async fn prove_bearer(&self, host: IpAddr, token: &[u8]) -> Result<Asker, NotProved> {
        let peer = Peer {
            via: Listener::Http.into(),
            host,
        };
        let digest = self.proved.digest(host, "", token);
        let known = digest.and_then(|digest| self.proved_tokens.find(&digest, Instant::now()));
        if let Some(known) = known {
            return Ok(known);
        }
        let Ok(token) = std::str::from_utf8(token) else {
            self.count(NAME, false);
            let why = "authentication failed: the Authorization header has no token".to_owned();
            return Err(NotProved::Wrong(self.refused(peer, NAME, "", why)));
        };
        // A token with an unknown key waits for keys.
        let Ok(_place) = Place::take(&self.waiting, host.into()).ok_or(Busy) else {
            let why = "authentication failed: the broker checks too many tokens of this address; try again in a moment";
            return Err(NotProved::Busy(self.refused(
                peer,
                NAME,
                "",
                why.to_owned(),
            )));
        };
        let checked = self.check_token(peer, NAME, token, None).await;
        let (user, remaining) = checked.map_err(|refusal| NotProved::Wrong(refusal.why))?;
        let now = Instant::now();
        let ends = now + remaining;
        if let Some(digest) = digest {
            self.proved_tokens.keep(digest, user.clone(), ends, now);
        }
        self.note_proved(peer, NAME, &user);
        Ok(Asker {
            user,
            until: Some(ends),
        })
    }
}

/// The token of a request, if its only `Authorization` is of this scheme.
fn token(headers: &HeaderMap) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer";
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (Some(header), None) = (all.next(), all.next()) else {
        return None;
    };
    let (scheme, token) = header.as_bytes().split_at_checked(SCHEME.len())?;
    let is_bearer = scheme.eq_ignore_ascii_case(SCHEME) && token.first() == Some(&b' ');
    is_bearer.then(|| token.trim_ascii())
}

#[cfg(test)]
#[path = "bearer_tests.rs"]
mod tests;
