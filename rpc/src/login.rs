//! How a client proves who it is with a user's password, before anything else on a connection.
//!
//! The messages of SASL go both ways ahead of the hello of frames and of HTTP/2's preface, and within TLS where there is
//! some: [`kera_protocol::login`] has their form.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use kera_protocol::login::{
    MAX_MESSAGE, REPLY_HEAD_BYTES, Status, first, next, passes, read_length, read_reply_head,
};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

use crate::cause::cause_of;
use crate::refusals::Refusals;
use crate::scram::{self, Mechanism, Salted, ScramError};

/// Bytes of the longest password.
pub const MOST_PASSWORD_BYTES: u64 = 1024;

/// Why there is no password where one was looked for.
#[derive(Debug, thiserror::Error)]
pub enum PasswordError {
    /// It was not read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// It has so many bytes.
    #[error("the password has {0} bytes; 1 to {MOST_PASSWORD_BYTES} are taken")]
    Length(usize),
}

/// The password in the first line of a file.
///
/// # Errors
/// [`PasswordError`].
pub fn password_in_file(file: &Path) -> Result<String, PasswordError> {
    password_in(std::fs::File::open(file)?)
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
#[error("user {user} is not let in: {reason}")]
pub struct LoginError {
    /// The user's name.
    pub user: Arc<str>,
    /// What the broker says, or what is wrong with its answer, and what to do.
    pub reason: Arc<str>,
    /// True if the same login may succeed later.
    pub is_retryable: bool,
}

impl LoginError {
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
    /// A token that somebody has made whom the broker trusts. Kafka's clients alone have some.
    OauthBearer,
}

impl SaslMechanism {
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

    /// The mechanism with passwords of a name in SASL, in any case.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::WITH_PASSWORDS.into_iter();
        all.find(|one| one.name().eq_ignore_ascii_case(name))
    }

    /// Its number in the native protocol, if it is there; those of SCRAM are Kafka's.
    pub fn number(self) -> Option<u16> {
        match self {
            Self::Plain => Some(0),
            Self::Scram(mechanism) => Some(mechanism.number().into()),
            Self::OauthBearer => None,
        }
    }

    /// The mechanism of a number.
    pub fn of_number(number: u16) -> Option<Self> {
        let mut all = Self::WITH_PASSWORDS.into_iter();
        all.find(|one| one.number() == Some(number))
    }
}

impl fmt::Display for SaslMechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A user's name and password, as a client uses them. Cheap to clone.
#[derive(Clone)]
pub struct Login {
    user: Arc<str>,
    password: Arc<[u8]>,
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
            password: password.as_bytes().into(),
            mechanism: SaslMechanism::Scram(Mechanism::Sha512),
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
        let Some(number) = self.mechanism.number() else {
            let name = self.mechanism.name();
            let why = format!("a password does not go with {name}; choose another mechanism");
            return Err(Unproved::Refused(why));
        };
        let SaslMechanism::Scram(mechanism) = self.mechanism else {
            let message = [b"\0", self.user.as_bytes(), b"\0", &self.password].concat();
            stream.write_all(&first(number, &message)).await?;
            return match receive(stream).await? {
                (Status::Proved, _) => Ok(None),
                _ => Err(strange()),
            };
        };
        let (exchange, message) = scram::Client::begin(mechanism, &self.user, &self.password)?;
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

/// Reads a message whose length comes first.
///
/// # Errors
/// The stream's; `InvalidData` for a message that is too long.
pub async fn read_message(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    let Some(length) = read_length(length) else {
        let text = format!("a message of a proof has at most {MAX_MESSAGE} bytes");
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
    let message = read_message(stream).await?;
    let told = String::from_utf8_lossy(&message);
    match status {
        Status::Refused if passes(&told) => Err(Unproved::Later(told.into_owned())),
        Status::Refused => Err(Unproved::Refused(format!(
            "{told}; check the user's name and password, and the mechanism"
        ))),
        _ => Ok((status, message)),
    }
}

/// What came is no answer to a proof.
fn strange() -> Unproved {
    Unproved::Refused(
        "the broker takes no password at this address; connect without a user (leave --user and KERA_USER out), or have the broker's auth.listeners name native; if the broker wants TLS, name the authority that signed its certificate (--tls-ca FILE or KERA_TLS_CA)".to_owned(),
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
        ] {
            assert_eq!((mechanism.number(), mechanism.name()), (Some(number), name));
            assert_eq!(SaslMechanism::of_number(number), Some(mechanism));
            assert_eq!(SaslMechanism::named(&name.to_lowercase()), Some(mechanism));
        }
        assert_eq!(SaslMechanism::of_number(3), None);
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
