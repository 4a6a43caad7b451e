//! Clients that prove who they are by a token of an issuer: OAUTHBEARER, RFC 7628, as Kafka has it (KIP-255, KIP-768).

mod fetch;
mod keys;
mod message;
#[cfg(test)]
mod oauth_tests;
mod token;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::{Auth, Proof};
use crate::audit::Peer;
use crate::clock::wall_ms;
use crate::config::{OauthConfig, SaslMechanism};
use keys::KeySet;
use token::{Claimed, Unproved};

pub use message::TokenMessage;

/// How often an unknown key may have the keys fetched: strangers can name as many as they like.
const ASKED_EVERY: Duration = Duration::from_secs(60);
/// How long a login waits for that.
const WAITS: Duration = Duration::from_secs(2);
/// Pauses between attempts that fail: the first, and the longest.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_secs(10);

/// What a client with a wrong token is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRefusal {
    /// In JSON, as the document has it. The client answers, and fails then.
    pub challenge: String,
    /// For people.
    pub why: String,
}

/// What is asked of tokens, and the keys that they are checked with.
pub(crate) struct Oauth {
    config: OauthConfig,
    keys: ArcSwapOption<KeySet>,
    /// The last attempt to fetch them failed.
    is_stale: AtomicBool,
    /// When an unknown key had them fetched.
    asked: Mutex<Option<Instant>>,
    wanted: Notify,
    /// True from then until they are fetched, or cannot be.
    is_asked: watch::Sender<bool>,
}

impl Oauth {
    fn new(config: OauthConfig) -> Self {
        Self {
            config,
            keys: ArcSwapOption::empty(),
            is_stale: AtomicBool::new(false),
            asked: Mutex::default(),
            wanted: Notify::new(),
            is_asked: watch::channel(false).0,
        }
    }

    /// True while the keys cannot be fetched. Those that are known count on.
    pub(crate) fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::Relaxed)
    }

    /// Fetches the keys, at once and from then on. Does not end by itself.
    pub(crate) async fn keep(self: Arc<Self>) {
        let Some(source) = &self.config.keys else {
            return;
        };
        let mut retry = RETRY_FIRST;
        loop {
            let fetched = fetch::key_set(source, self.config.keys_ca.as_deref()).await;
            let pause = match fetched {
                Ok(keys) => {
                    self.keys.store(Some(Arc::new(keys)));
                    if self.is_stale.swap(false, Ordering::Relaxed) {
                        tracing::info!("the keys of {source} are there again");
                    }
                    retry = RETRY_FIRST;
                    self.config.keys_refresh
                }
                Err(why) => {
                    // Told once, until it is over.
                    if !self.is_stale.swap(true, Ordering::Relaxed) {
                        let until = match self.keys.load().is_some() {
                            true => "those that are known count on",
                            false => "no token is taken until they are there",
                        };
                        tracing::warn!(
                            "no keys to check tokens with from {source} (oauth.keys): {why}; {until}, and the broker tries again"
                        );
                    }
                    let pause = retry;
                    retry = (retry * 2).min(RETRY_MOST);
                    pause
                }
            };
            self.is_asked.send_replace(false);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.wanted.notified() => {}
            }
        }
    }

    /// Has the keys fetched because of one that is not known, unless that was so a moment ago, and waits for it a while.
    async fn fetched_anew(&self) {
        {
            let mut asked = self.asked.lock();
            if asked.is_none_or(|last| last.elapsed() >= ASKED_EVERY) {
                *asked = Some(Instant::now());
                self.is_asked.send_replace(true);
                self.wanted.notify_one();
            }
        }
        let mut is_asked = self.is_asked.subscribe();
        let done = is_asked.wait_for(|is_asked| !is_asked);
        // Whatever has come of it: the token is looked at again.
        let _ = tokio::time::timeout(WAITS, done).await;
    }

    fn check_now(&self, token: &str) -> Result<Claimed, Unproved> {
        let keys = self.keys.load();
        let keys = keys.as_deref().ok_or_else(|| {
            Unproved::UnknownKey("the broker has no keys of the issuer yet; try again".to_owned())
        })?;
        token::check(&self.config, keys, token, wall_ms() / 1000)
    }

    async fn check(&self, token: &str) -> Result<Claimed, Unproved> {
        match self.check_now(token) {
            Err(Unproved::UnknownKey(_)) => {
                self.fetched_anew().await;
                self.check_now(token)
            }
            checked => checked,
        }
    }
}

impl Auth {
    /// The same with tokens, if [`OAUTHBEARER`](SaslMechanism::OauthBearer) `is_offered` at any listener.
    pub(crate) fn with_tokens(self, config: &OauthConfig, is_offered: bool) -> Self {
        let oauth = is_offered.then(|| Arc::new(Oauth::new(config.clone())));
        Self { oauth, ..self }
    }

    /// What tokens are checked with.
    pub(crate) fn oauth(&self) -> Option<&Arc<Oauth>> {
        self.oauth.as_ref()
    }

    /// Takes a message of OAUTHBEARER from a client: who it is, to be [let in](Self::let_in). Waits at most 2 s, for keys.
    ///
    /// # Errors
    /// What the client is told.
    pub async fn prove_token(&self, peer: Peer, message: &[u8]) -> Result<Proof, TokenRefusal> {
        let mechanism = SaslMechanism::OauthBearer;
        let Some(message) = TokenMessage::read(message) else {
            let why = "the message is no OAUTHBEARER message";
            let told = json!({"status": "invalid_request"});
            return Err(self.token_refused(peer, mechanism.name(), "", (told, why.to_owned())));
        };
        let checked = self.check_token(peer, mechanism.name(), message.token, message.acts_as);
        let (user, remaining) = checked.await?;
        Ok(Proof {
            user,
            mechanism,
            remaining: Some(remaining),
        })
    }

    /// Whose token it is, which came by this mechanism, and how much longer it counts. Waits at most 2 s, for keys.
    ///
    /// # Errors
    /// What the client is told.
    pub(super) async fn check_token(
        &self,
        peer: Peer,
        mechanism: &str,
        token: &str,
        acts_as: Option<&str>,
    ) -> Result<(Arc<str>, Duration), TokenRefusal> {
        let refused =
            |told, user: &str, why| self.token_refused(peer, mechanism, user, (told, why));
        let Some(oauth) = &self.oauth else {
            let why = "the broker takes no tokens".to_owned();
            return Err(refused(json!({"status": "invalid_request"}), "", why));
        };
        let invalid = json!({"status": "invalid_token"});
        match oauth.check(token).await {
            Ok(claimed) if acts_as.is_none_or(|name| name == claimed.user) => {
                Ok((claimed.user.into(), claimed.remaining))
            }
            // Nobody has another's rights.
            Ok(claimed) => {
                let why = "the client names another user than its token".to_owned();
                Err(refused(invalid, &claimed.user, why))
            }
            Err(Unproved::UnknownKey(why)) => Err(refused(invalid, "", why)),
            Err(Unproved::Invalid(user, why)) => Err(refused(invalid, &user, why)),
            Err(Unproved::Scope(user, why)) => {
                let scope = oauth.config.scope.as_deref();
                let told = json!({"status": "insufficient_scope", "scope": scope});
                Err(refused(told, &user, why))
            }
        }
    }

    fn token_refused(
        &self,
        peer: Peer,
        mechanism: &str,
        user: &str,
        (told, why): (serde_json::Value, String),
    ) -> TokenRefusal {
        self.count(mechanism, false);
        let why = format!("authentication failed: {why}");
        TokenRefusal {
            challenge: told.to_string(),
            why: self.refused(peer, mechanism, user, why),
        }
    }

    /// Knows the keys of a key set.
    #[cfg(test)]
    pub(super) fn have_keys(&self, set: &[u8]) {
        let keys = KeySet::read(set).expect("a key set");
        let oauth = self.oauth.as_ref().expect("tokens are taken");
        oauth.keys.store(Some(Arc::new(keys)));
    }
}
