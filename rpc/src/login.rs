//! How a client proves who it is with a user's password or a token, before anything else on a connection.
//!
//! The messages of SASL go both ways ahead of the hello of frames and of HTTP/2's preface, and within TLS where there is
//! some: [`kera_protocol::login`] has their form.

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kera_protocol::login::{
    MAX_MESSAGE, OAUTHBEARER, REPLY_HEAD_BYTES, Status, first, next, passes, read_length,
    read_reply_head,
};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

use crate::cause::cause_of;
use crate::refusals::Refusals;
use crate::scram::{self, Mechanism, Salted, ScramError};
use crate::small_file::{self, Takes};
use crate::tokens::TokenSource;

/// Bytes of the longest password.
pub const MOST_PASSWORD_BYTES: u64 = 1024;

/// Why there is no password where one was looked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PasswordError {
    /// It was not read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// It has so many bytes.
    #[error("the password has {0} bytes; 1 to {MOST_PASSWORD_BYTES} are taken")]
    Length(usize),
}

/// The password in the first line of a file, or of what comes out of a pipe.
///
/// # Errors
/// [`PasswordError`].
pub fn password_in_file(file: &Path) -> Result<String, PasswordError> {
    let most = MOST_PASSWORD_BYTES as usize + 1;
    let text = small_file::read(file, most, Takes::Pipes)?;
    password_in(&text[..])
}

/// The password in the first line of what is read.
///
/// # Errors
/// [`PasswordError`].
pub fn password_in(input: impl Read) -> Result<String, PasswordError> {
    let mut text = String::new();
    input
        .take(MOST_PASSWORD_BYTES + 2)
        .read_to_string(&mut text)?;
    let line = text.lines().next().unwrap_or_default();
    if line.is_empty() || line.len() as u64 > MOST_PASSWORD_BYTES {
        return Err(PasswordError::Length(line.len()));
    }
    Ok(line.to_owned())
}

/// A broker does not let a user in.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{} is not let in: {reason}", who(.user))]
#[non_exhaustive]
pub struct LoginError {
    /// The user's name; empty with a token, which has it.
    pub user: Arc<str>,
    /// What the broker says, or what is wrong with its answer, and what to do.
    pub reason: Arc<str>,
    /// True if the same login may succeed later.
    pub is_retryable: bool,
}

impl LoginError {
    /// A user, "" with a token, is not let in.
    pub fn new(user: impl Into<Arc<str>>, reason: impl Into<Arc<str>>, is_retryable: bool) -> Self {
        Self {
            user: user.into(),
            reason: reason.into(),
            is_retryable,
        }
    }

    /// Who is not let in, for people.
    pub(crate) fn who(&self) -> String {
        who(&self.user)
    }

    /// The same with what cannot go on because of it.
    #[must_use]
    pub fn which_stops(self, what: &str) -> Self {
        Self {
            reason: format!("{}; {what} stops", self.reason).into(),
            ..self
        }
    }

    /// The refused login among the causes of an error, if that is why it came.
    pub fn of<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Self> {
        cause_of(error)
    }
}

/// Who a login is of, for people, by the user's name; a token has none.
fn who(user: &str) -> String {
    match user {
        "" => "the holder of this token".to_owned(),
        user => format!("user {user}"),
    }
}

/// Why a proof came to nothing.
enum Unproved {
    Stream(io::Error),
    Refused(String),
    /// The broker says that it would take another attempt.
    Later(String),
}

impl From<io::Error> for Unproved {
    fn from(error: io::Error) -> Self {
        Self::Stream(error)
    }
}

impl From<ScramError> for Unproved {
    fn from(error: ScramError) -> Self {
        Self::Refused(error.to_string())
    }
}

/// A way to prove who one is, of SASL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SaslMechanism {
    /// The password itself.
    Plain,
    /// A proof of knowing it.
    Scram(Mechanism),
    /// A token that somebody has made whom the broker trusts.
    OauthBearer,
}

impl SaslMechanism {
    /// All of them.
    const ALL: [Self; 4] = [
        Self::Scram(Mechanism::Sha256),
        Self::Scram(Mechanism::Sha512),
        Self::Plain,
        Self::OauthBearer,
    ];
    /// Those that prove to know a password.
    pub const WITH_PASSWORDS: [Self; 3] = [
        Self::Scram(Mechanism::Sha256),
        Self::Scram(Mechanism::Sha512),
        Self::Plain,
    ];

    /// Its name in SASL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::Scram(mechanism) => mechanism.name(),
            Self::OauthBearer => "OAUTHBEARER",
        }
    }

    /// The mechanism of a name in SASL, in any case.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|one| one.name().eq_ignore_ascii_case(name))
    }

    /// Its number in the native protocol; those of SCRAM are Kafka's.
    pub fn number(self) -> u16 {
        match self {
            Self::Plain => 0,
            Self::Scram(mechanism) => mechanism.number().into(),
            Self::OauthBearer => OAUTHBEARER,
        }
    }

    /// The mechanism of a number.
    pub fn of_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.number() == number)
    }
}

impl fmt::Display for SaslMechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a client proves who it is by.
#[derive(Clone)]
enum Secret {
    Password(Arc<[u8]>),
    Tokens(TokenSource),
}

/// A user's name and password, or where tokens come from, as a client uses them. Cheap to clone.
#[derive(Clone)]
pub struct Login {
    /// Empty with tokens, which have it.
    user: Arc<str>,
    secret: Secret,
    mechanism: SaslMechanism,
    known: Arc<Mutex<Known>>,
}

/// What is known of a login from earlier connections.
#[derive(Default)]
struct Known {
    /// What the last challenge had the client calculate, some milliseconds long: later connections need not.
    salted: Option<Salted>,
    refusals: Refusals,
}

impl fmt::Debug for Login {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("user", &self.user)
            .field("mechanism", &self.mechanism)
            .finish_non_exhaustive()
    }
}

impl Login {
    /// A user with a password, who proves to know it by SCRAM-SHA-512.
    pub fn new(user: &str, password: &str) -> Self {
        Self {
            user: user.into(),
            secret: Secret::Password(password.as_bytes().into()),
            mechanism: SaslMechanism::Scram(Mechanism::Sha512),
            known: Arc::default(),
        }
    }

    /// The user that the token in a file names, by OAUTHBEARER. The file is read for each connection. A broker ends a connection
    /// when its token ends, so put each new token in the place of the old one. It is sent as it is, so use TLS.
    pub fn with_token_file(path: impl Into<PathBuf>) -> Self {
        Self::of_tokens(TokenSource::of_file(path.into()))
    }

    /// The same with tokens that `get` gives, for each connection one. It may block.
    pub fn with_tokens(get: impl Fn() -> io::Result<String> + Send + Sync + 'static) -> Self {
        Self::of_tokens(TokenSource::new(get))
    }

    fn of_tokens(tokens: TokenSource) -> Self {
        Self {
            user: "".into(),
            secret: Secret::Tokens(tokens),
            mechanism: SaslMechanism::OauthBearer,
            known: Arc::default(),
        }
    }

    /// The same by another mechanism.
    pub fn with_mechanism(self, mechanism: SaslMechanism) -> Self {
        Self {
            mechanism,
            known: Arc::default(),
            ..self
        }
    }

    /// Proves it to the broker at the other end of `stream`, on which nothing was said.
    ///
    /// # Errors
    /// The stream's; `PermissionDenied` with a [`LoginError`] if the broker refuses or is not believed. That is retryable
    /// where the broker says that it is busy, and for 10 s after a broker has taken this login before.
    pub async fn prove(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let unproved = match self.exchange(stream).await {
            Ok(salted) => {
                let mut known = self.known.lock();
                known.salted = salted;
                known.refusals.taken();
                return Ok(());
            }
            Err(unproved) => unproved,
        };
        let (reason, is_retryable) = match unproved {
            Unproved::Stream(error) => return Err(error),
            Unproved::Later(reason) => (reason, true),
            Unproved::Refused(reason) => {
                (reason, self.known.lock().refusals.refused(Instant::now()))
            }
        };
        let error = LoginError {
            user: self.user.clone(),
            reason: reason.into(),
            is_retryable,
        };
        Err(io::Error::new(io::ErrorKind::PermissionDenied, error))
    }

    /// What SCRAM calculated.
    async fn exchange(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> Result<Option<Salted>, Unproved> {
        let number = self.mechanism.number();
        let (mechanism, password) = match (&self.secret, self.mechanism) {
            (Secret::Password(password), SaslMechanism::Scram(mechanism)) => (mechanism, password),
            (Secret::Password(password), SaslMechanism::Plain) => {
                let message = [b"\0", self.user.as_bytes(), b"\0", password].concat();
                return send_whole(stream, &first(number, &message)).await;
            }
            (Secret::Tokens(tokens), SaslMechanism::OauthBearer) => {
                let message = tokens.message().await.map_err(Unproved::Refused)?;
                return send_whole(stream, &first(number, &message)).await;
            }
            _ => {
                let why = "OAUTHBEARER goes with tokens, and other mechanisms with passwords";
                return Err(Unproved::Refused(why.to_owned()));
            }
        };
        let (exchange, message) = scram::Client::begin(mechanism, &self.user, password)?;
        stream.write_all(&first(number, message.as_bytes())).await?;
        let (Status::GoesOn, challenge) = receive(stream).await? else {
            return Err(strange());
        };
        let known = self.known.lock().salted.clone();
        let (exchange, proof, salted) = exchange.answer_knowing(&challenge, known)?;
        stream.write_all(&next(proof.as_bytes())).await?;
        let (Status::Proved, signature) = receive(stream).await? else {
            return Err(strange());
        };
        exchange.end(&signature)?;
        Ok(Some(salted))
    }
}

/// Sends a proof that is one message.
async fn send_whole(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    message: &[u8],
) -> Result<Option<Salted>, Unproved> {
    stream.write_all(message).await?;
    match receive(stream).await? {
        (Status::Proved, _) => Ok(None),
        _ => Err(strange()),
    }
}

/// Reads a message of at most `most` bytes whose length comes first.
///
/// # Errors
/// The stream's; `InvalidData` for a message that is too long.
pub async fn read_message(
    stream: &mut (impl AsyncRead + Unpin),
    most: usize,
) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    let Some(length) = read_length(length, most) else {
        let text = format!("a message of a proof has at most {most} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    };
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

/// A broker's message. A refusal is an error.
async fn receive(stream: &mut (impl AsyncRead + Unpin)) -> Result<(Status, Vec<u8>), Unproved> {
    let mut head = [0; REPLY_HEAD_BYTES];
    if let Err(error) = stream.read_exact(&mut head).await {
        return Err(Unproved::Stream(match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                let text =
                    "the connection ended while the client logged in; the broker may be stopping";
                io::Error::new(error.kind(), text)
            }
            _ => error,
        }));
    }
    let status = read_reply_head(&head).ok_or_else(strange)?;
    let message = read_message(stream, MAX_MESSAGE).await?;
    let told = String::from_utf8_lossy(&message);
    match status {
        Status::Refused if passes(&told) => Err(Unproved::Later(told.into_owned())),
        Status::Refused => Err(Unproved::Refused(format!(
            "{told}; check the user's name and password, or the token, and the mechanism"
        ))),
        _ => Ok((status, message)),
    }
}

/// What came is no answer to a proof.
fn strange() -> Unproved {
    Unproved::Refused(
        "the broker takes no password at this address, and no token; connect without a user (leave --user, --token-file and their variables out), or have the broker's auth.listeners name native; if the broker wants TLS, name the authority that signed its certificate (--tls-ca FILE or KERA_TLS_CA)".to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kera_protocol::login::{BUSY, FULL, reply};

    use super::*;
    use crate::refusals::PATIENCE;

    #[test]
    fn numbers_and_names_are_those_of_the_document() {
        for (mechanism, number, name) in [
            (SaslMechanism::Plain, 0, "PLAIN"),
            (SaslMechanism::Scram(Mechanism::Sha256), 1, "SCRAM-SHA-256"),
            (SaslMechanism::Scram(Mechanism::Sha512), 2, "SCRAM-SHA-512"),
            (SaslMechanism::OauthBearer, 3, "OAUTHBEARER"),
        ] {
            assert_eq!((mechanism.number(), mechanism.name()), (number, name));
            assert_eq!(SaslMechanism::of_number(number), Some(mechanism));
            assert_eq!(SaslMechanism::named(&name.to_lowercase()), Some(mechanism));
        }
        assert_eq!(SaslMechanism::of_number(4), None);
    }

    /// What a client is told at whose proof a broker says `told`, and whether it may try again.
    async fn refused(login: &Login, told: &[u8]) -> (String, bool) {
        let (mut client, mut broker) = tokio::io::duplex(1 << 12);
        broker.write_all(told).await.unwrap();
        broker.shutdown().await.unwrap();
        let error = login.prove(&mut client).await.unwrap_err();
        let error = LoginError::of(&error).expect("the login is why");
        assert_eq!(&*error.user, "ann");
        (error.reason.to_string(), error.is_retryable)
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_final_unless_the_broker_is_busy_or_the_login_was_good_a_moment_ago() {
        let login = Login::new("ann", "open sesame").with_mechanism(SaslMechanism::Plain);
        let wrong = reply(Status::Refused, b"authentication failed: wrong");
        let busy = format!("authentication failed: {BUSY}");
        let busy = reply(Status::Refused, busy.as_bytes());
        let (text, is_retryable) = refused(&login, &wrong).await;
        assert!(
            text.contains("failed: wrong; check") && !is_retryable,
            "{text}"
        );
        assert!(refused(&login, &busy).await.1);
        let (text, is_retryable) = refused(&login, &[0x15, 3, 1, 0, 2, 2, 70]).await;
        assert!(
            text.contains("takes no password") && !is_retryable,
            "{text}"
        );

        let (mut client, mut broker) = tokio::io::duplex(1 << 12);
        let proved = reply(Status::Proved, b"");
        broker.write_all(&proved).await.unwrap();
        login.prove(&mut client).await.unwrap();
        assert!(refused(&login.clone(), &wrong).await.1, "clones know it");
        tokio::time::advance(PATIENCE - Duration::from_millis(1)).await;
        assert!(refused(&login, &wrong).await.1);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!refused(&login, &wrong).await.1);
        // Long after that one is late once more.
        tokio::time::advance(PATIENCE).await;
        assert!(refused(&login, &wrong).await.1);
        assert!(refused(&login, &busy).await.1);
        let full = format!("{FULL}: 4 connections");
        let full = reply(Status::Refused, full.as_bytes());
        assert!(refused(&Login::new("ann", "x"), &full).await.1);

        // The broker may be stopping.
        let (mut client, broker) = tokio::io::duplex(1 << 12);
        drop(broker);
        let error = login.prove(&mut client).await.unwrap_err();
        assert!(LoginError::of(&error).is_none(), "{error}");
    }

    #[test]
    fn a_password_is_in_no_text() {
        let login = Login::new("ann", "open sesame");
        assert!(!format!("{login:?}").contains("sesame"));
    }
}
