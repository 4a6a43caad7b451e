//! Users with passwords: what is kept of them as this broker knows it, and proofs of who a client is.
//!
//! Users lie in the metadata store, all in one record, and every broker has all of them in memory: whoever tries
//! passwords costs no reads of the store.

mod alter;
mod basic;
mod bearer;
mod first_user;
mod native;
mod oauth;
mod plain;
mod session;

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use kera_metadata::{User, UserCredential, UsersRecord};
use kera_protocol::login::BUSY;
use kera_rpc::scram::{Credential, Exchange, ITERATIONS, Mechanism};
use parking_lot::Mutex;
use ring::hmac;
use tokio::sync::Semaphore;

use crate::audit::{Audit, Peer};
use crate::config::{AuthConfig, Listener, SaslMechanism};
use crate::metrics::{Counter, Family, Labels};
use crate::unheard::Source;

pub use kera_rpc::scram;

pub(crate) use basic::NotProved;
pub(crate) use bearer::Asker;
pub(crate) use first_user::make_first_user;
pub(crate) use native::{begins_with_proof, prove};
use plain::told;

pub(crate) use oauth::Oauth;
pub use oauth::{TokenMessage, TokenRefusal};

pub use alter::{Change, NewCredential, alter, list};
pub use session::{Proof, Session};

/// Passwords of PLAIN that are derived at a time, each for some milliseconds of one core, and those that wait for that.
const DERIVED_AT_ONCE: usize = 1;
const WAITING: usize = 64;
/// Those of one address: whoever tries passwords keeps nobody else's from being looked at.
const WAITING_OF_ONE: usize = 8;
/// What salts of text are made of.
const TEXT: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
/// As `kera user create` makes them, where there is nobody to look like.
const FIRST_LOOK: Look = Look {
    salt_bytes: 24,
    is_text: false,
    iterations: *ITERATIONS.start(),
};

/// The users as they are asked for.
#[derive(Default)]
struct Known {
    users: HashMap<String, User>,
    /// Of what unknown users are answered.
    secret: Vec<u8>,
    /// What passwords look like, each look once.
    looks: BTreeSet<Look>,
    revision: u64,
}

/// What a client learns of a user's password before it has logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Look {
    salt_bytes: usize,
    /// The salt is digits and letters, as Kafka's tools make it.
    is_text: bool,
    iterations: u32,
}

impl Look {
    fn of(one: &UserCredential) -> Self {
        let mut salt = one.salt.iter();
        Self {
            salt_bytes: one.salt.len(),
            is_text: salt.all(|byte| TEXT.contains(byte)),
            iterations: one.iterations,
        }
    }
}

impl Known {
    fn of(record: &UsersRecord) -> Self {
        let users = record.users.iter();
        let credentials = record.users.iter().flat_map(|user| &user.credentials);
        Self {
            users: users
                .map(|user| (user.name.clone(), user.clone()))
                .collect(),
            secret: record.secret.clone(),
            looks: credentials.map(Look::of).collect(),
            revision: record.revision,
        }
    }

    /// What is kept of a user's password, and whether it is a user's. Of whoever is no user there is something as well,
    /// the same at every broker: nobody learns by asking who is one.
    fn credential(&self, name: &str, mechanism: Mechanism) -> (Credential, bool) {
        let credentials = self.users.get(name).map(|user| user.credentials.as_slice());
        let mut credentials = credentials.unwrap_or_default().iter();
        match credentials.find(|one| one.mechanism == mechanism.number()) {
            Some(one) => (credential_of(one), true),
            None => (self.invented(name, mechanism), false),
        }
    }

    fn invented(&self, name: &str, mechanism: Mechanism) -> Credential {
        let key = hmac::Key::new(hmac::HMAC_SHA512, &self.secret);
        let of = |what: &str| {
            let text = format!("{what} {mechanism} {name}");
            hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
        };
        let cut = |mut bytes: Vec<u8>, length: usize| {
            bytes.truncate(length);
            bytes
        };
        // Each name has its look, which stays when users come and go: only if the last of that look goes it has another.
        let liked = |look: &&Look| of(&format!("{look:?}"));
        let look = self.looks.iter().max_by_key(liked).unwrap_or(&FIRST_LOOK);
        let mut salt = cut(of("salt"), look.salt_bytes);
        if look.is_text {
            let text = |byte: &mut u8| *byte = TEXT[usize::from(*byte) % TEXT.len()];
            salt.iter_mut().for_each(text);
        }
        Credential {
            salt,
            iterations: look.iterations.max(1),
            stored_key: cut(of("stored"), mechanism.key_bytes()),
            server_key: cut(of("server"), mechanism.key_bytes()),
        }
    }
}

fn credential_of(one: &UserCredential) -> Credential {
    Credential {
        salt: one.salt.clone(),
        iterations: one.iterations,
        stored_key: one.stored_key.clone(),
        server_key: one.server_key.clone(),
    }
}

/// Why a password was not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{BUSY}; try again in a moment, or use SCRAM, which costs it next to nothing")]
pub struct Busy;

/// Who the users are, and how clients prove it.
pub struct Auth {
    /// How long a proof by a password counts; `None`: as long as the connection.
    max_reauth: Option<Duration>,
    known: ArcSwap<Known>,
    derives: Arc<Semaphore>,
    waits: Arc<Semaphore>,
    /// How many wait, by address.
    waiting: Mutex<HashMap<Source, usize>>,
    /// Passwords of HTTP that were right a moment ago.
    proved: basic::Proved,
    /// The same of tokens.
    proved_tokens: bearer::ProvedTokens,
    /// Proofs of who a client is, by mechanism and result.
    pub(crate) authentications: Family<Labels, Counter>,
    audit: Arc<Audit>,
    /// What tokens are checked with.
    oauth: Option<Arc<Oauth>>,
    /// `auth.mechanisms` has OAUTHBEARER.
    has_tokens: bool,
}

/// A place among the passwords of one address that wait.
struct Place<'a> {
    waiting: &'a Mutex<HashMap<Source, usize>>,
    source: Source,
}

impl<'a> Place<'a> {
    fn take(waiting: &'a Mutex<HashMap<Source, usize>>, source: Source) -> Option<Self> {
        let mut counted = waiting.lock();
        let mine = counted.entry(source).or_default();
        if *mine >= WAITING_OF_ONE {
            return None;
        }
        *mine += 1;
        Some(Self { waiting, source })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut counted = self.waiting.lock();
        if let Some(mine) = counted.get_mut(&self.source) {
            *mine -= 1;
            if *mine == 0 {
                counted.remove(&self.source);
            }
        }
    }
}

fn labels(mechanism: &str, is_right: bool) -> Labels {
    let result = if is_right { "success" } else { "failure" };
    vec![
        ("mechanism", mechanism.to_lowercase()),
        ("result", result.to_owned()),
    ]
}

impl Auth {
    /// As configured, with the users that are recorded; counts in `authentications`.
    pub(crate) fn new(
        config: &AuthConfig,
        recorded: Option<&UsersRecord>,
        authentications: Family<Labels, Counter>,
        audit: Arc<Audit>,
    ) -> Self {
        let auth = Self {
            max_reauth: Some(config.max_reauth).filter(|time| !time.is_zero()),
            known: ArcSwap::from_pointee(recorded.map(Known::of).unwrap_or_default()),
            derives: Arc::new(Semaphore::new(DERIVED_AT_ONCE)),
            waits: Arc::new(Semaphore::new(WAITING)),
            waiting: Mutex::default(),
            proved: basic::Proved::default(),
            proved_tokens: bearer::ProvedTokens::default(),
            authentications,
            audit,
            oauth: None,
            has_tokens: config.mechanisms.contains(&SaslMechanism::OauthBearer),
        };
        if !config.listeners.is_empty() {
            // All there is to count, from the start.
            let mechanisms = config.mechanisms.iter().map(|one| one.name());
            let asks_http = config.listeners.contains(&Listener::Http);
            let over_http = [(basic::NAME, true), (bearer::NAME, auth.has_tokens)].into_iter();
            let over_http = over_http.filter(|(_, is_taken)| asks_http && *is_taken);
            auth.count_from_zero(mechanisms.chain(over_http.map(|(name, _)| name)));
        }
        auth
    }

    /// Counts proofs by these mechanisms from the start, also those that addresses with a name have of their own.
    pub(crate) fn counting(self, mechanisms: &[SaslMechanism]) -> Self {
        self.count_from_zero(mechanisms.iter().map(|one| one.name()));
        self
    }

    fn count_from_zero<'a>(&self, mechanisms: impl Iterator<Item = &'a str>) {
        for mechanism in mechanisms {
            for is_right in [true, false] {
                let labels = labels(mechanism, is_right);
                drop(self.authentications.get_or_create_owned(&labels));
            }
        }
    }

    /// Takes in what is recorded, unless something newer is known.
    pub(crate) fn take(&self, record: &UsersRecord) {
        let new = Arc::new(Known::of(record));
        self.known.rcu(|known| match known.revision < new.revision {
            true => new.clone(),
            false => known.clone(),
        });
    }

    /// What is kept of a user. It changes with the password: who logged in before has to log in again then.
    pub(crate) fn kept_of(&self, user: &str) -> Option<User> {
        self.known.load().users.get(user).cloned()
    }

    /// Takes a client's first message of SCRAM: the exchange and what to answer.
    ///
    /// # Errors
    /// What the client is told: it is none.
    pub fn begin(
        &self,
        peer: Peer,
        mechanism: Mechanism,
        message: &[u8],
    ) -> Result<(Exchange, String), String> {
        let known = self.known.load();
        let begun = Exchange::begin(mechanism, message, |user| known.credential(user, mechanism));
        begun.map_err(|error| {
            let name = SaslMechanism::Scram(mechanism).name();
            self.refused(peer, name, "", told(&error))
        })
    }

    /// Takes a client's last message of SCRAM: who it is, and what to answer once it is [let in](Self::let_in).
    ///
    /// # Errors
    /// What the client is told.
    pub fn end(
        &self,
        peer: Peer,
        exchange: Exchange,
        message: &[u8],
    ) -> Result<(Proof, String), String> {
        let mechanism = SaslMechanism::Scram(exchange.mechanism());
        let user = exchange.user().to_owned();
        match exchange.end(message) {
            Ok((user, signature)) => {
                let user = user.into();
                Ok((Proof::endless(user, mechanism), signature))
            }
            Err(error) => {
                self.count(mechanism.name(), false);
                Err(self.refused(peer, mechanism.name(), &user, told(&error)))
            }
        }
    }

    /// Whether this is a user's password. Takes as long for whoever is no user.
    ///
    /// # Errors
    /// [`Busy`].
    pub async fn is_password(
        &self,
        from: IpAddr,
        user: &str,
        password: &[u8],
    ) -> Result<bool, Busy> {
        let _place = Place::take(&self.waiting, from.into()).ok_or(Busy)?;
        let _waits = self.waits.clone().try_acquire_owned().map_err(|_| Busy)?;
        // Never closed.
        let turn = self
            .derives
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| Busy)?;
        let (mechanism, credential, is_known) = {
            let known = self.known.load();
            let all = Mechanism::ALL.map(|one| (one, known.credential(user, one)));
            let there = all.iter().find(|(_, (_, is_known))| *is_known);
            let (mechanism, (credential, is_known)) = there.unwrap_or(&all[0]).clone();
            (mechanism, credential, is_known)
        };
        let password = password.to_vec();
        let derived = tokio::task::spawn_blocking(move || {
            // Held as long as it works: the client may be gone.
            let _turn = turn;
            credential.is_of(mechanism, &password)
        });
        let is_right = derived.await.unwrap_or_else(|error| {
            tracing::error!(%error, "a password could not be checked");
            false
        });
        Ok(is_right && is_known)
    }

    /// A client has proved who it is.
    fn note_proved(&self, peer: Peer, mechanism: &str, user: &str) {
        self.count(mechanism, true);
        self.audit.login(peer, mechanism, user, Ok(()));
    }

    /// Writes into the audit log that a client was not let in, and gives back why: what the client is told.
    pub fn refused(&self, peer: Peer, mechanism: &str, user: &str, why: String) -> String {
        self.audit.login(peer, mechanism, user, Err(&why));
        why
    }

    fn count(&self, mechanism: &str, is_right: bool) {
        let labels = labels(mechanism, is_right);
        self.authentications.get_or_create_owned(&labels).inc();
    }
}

/// Rounds as they may be asked for.
pub(crate) fn rounds(iterations: u32) -> Option<NonZeroU32> {
    let allowed = Some(iterations).filter(|count| ITERATIONS.contains(count));
    allowed.and_then(NonZeroU32::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::BrokerConfig;

    fn record() -> UsersRecord {
        let mechanism = Mechanism::Sha512;
        let made = Credential::of_password(mechanism, b"right", vec![1; 16], 8192).unwrap();
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
            revision: 1,
        }
    }

    #[test]
    fn who_is_no_user_looks_like_one_and_the_same_each_time() {
        let (one, other) = (Known::of(&record()), Known::of(&record()));
        for mechanism in Mechanism::ALL {
            let (nobody, is_known) = one.credential("nobody", mechanism);
            assert!(!is_known);
            assert_eq!(nobody, other.credential("nobody", mechanism).0);
            assert_ne!(nobody.salt, one.credential("somebody", mechanism).0.salt);
            assert_eq!((nobody.salt.len(), nobody.iterations), (16, 8192));
        }
        assert_eq!(
            Known::default()
                .credential("ann", Mechanism::Sha512)
                .0
                .salt
                .len(),
            24
        );
        let (ann, is_known) = one.credential("ann", Mechanism::Sha512);
        assert!(is_known && ann.is_of(Mechanism::Sha512, b"right"));
        assert!(
            !one.credential("ann", Mechanism::Sha256).1,
            "no password for that"
        );
    }

    #[test]
    fn salts_and_rounds_do_not_tell_who_is_a_user() {
        let mut record = record();
        let add = |record: &mut UsersRecord, name: &str, salt: &[u8], iterations| {
            let mechanism = Mechanism::Sha512.number();
            let one = UserCredential {
                mechanism,
                salt: salt.to_vec(),
                iterations,
                ..record.users[0].credentials[0].clone()
            };
            record.users.push(User {
                name: name.to_owned(),
                credentials: vec![one],
            });
        };
        add(&mut record, "bob", &[200; 24], 8192);
        add(&mut record, "joe", b"1abc2zzz9k8j7h6g5f4d3s2a10", 4096);
        let known = Known::of(&record);
        let look = |known: &Known, name: &str| {
            let (made, is_known) = known.credential(name, Mechanism::Sha512);
            assert!(!is_known, "{name}");
            let is_text = made.salt.iter().all(u8::is_ascii_alphanumeric);
            (made.salt.len(), is_text, made.iterations)
        };
        let names: Vec<_> = (0..60).map(|n| format!("nobody-{n}")).collect();
        let looks: Vec<_> = names.iter().map(|name| look(&known, name)).collect();
        let distinct: BTreeSet<_> = looks.iter().copied().collect();
        let users = [(16, false, 8192), (24, false, 8192), (26, true, 4096)];
        assert_eq!(distinct, users.into());
        // Asked again, the answers are the same, although a user was added.
        add(&mut record, "sue", &[201; 24], 8192);
        let later = Known::of(&record);
        let again: Vec<_> = names.iter().map(|name| look(&later, name)).collect();
        assert_eq!(looks, again);
    }

    fn asking() -> AuthConfig {
        AuthConfig {
            listeners: vec![Listener::Kafka],
            mechanisms: SaslMechanism::WITH_PASSWORDS.to_vec(),
            ..BrokerConfig::default().auth
        }
    }

    #[tokio::test]
    async fn a_password_counts_whatever_it_is_kept_for() {
        let auth = Auth::new(&asking(), Some(&record()), Family::default(), Audit::off());
        let (here, there) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        assert_eq!(auth.is_password(here, "ann", b"right").await, Ok(true));
        assert_eq!(auth.is_password(here, "ann", b"wrong").await, Ok(false));
        assert_eq!(auth.is_password(here, "bob", b"right").await, Ok(false));
        // One address has its part of the places, and no more.
        let take = || Place::take(&auth.waiting, here.into());
        let places: Vec<_> = std::iter::from_fn(take).collect();
        assert_eq!(places.len(), WAITING_OF_ONE);
        assert_eq!(auth.is_password(here, "ann", b"right").await, Err(Busy));
        assert_eq!(auth.is_password(there, "ann", b"right").await, Ok(true));
        drop(places);
        assert!(auth.waiting.lock().is_empty());
        // All places are taken: nobody waits without bound.
        let _all = auth.waits.clone().acquire_many_owned(WAITING as u32).await;
        assert_eq!(auth.is_password(here, "ann", b"right").await, Err(Busy));
    }

    #[test]
    fn older_news_of_users_is_not_taken() {
        let auth = Auth::new(&asking(), Some(&record()), Family::default(), Audit::off());
        let none = |revision| UsersRecord {
            users: Vec::new(),
            secret: Vec::new(),
            revision,
        };
        auth.take(&none(1));
        assert!(auth.known.load().users.contains_key("ann"));
        auth.take(&none(2));
        assert!(auth.known.load().users.is_empty());
    }
}
