//! How a client proves who it is with a user's password, before anything else on a connection.
//!
//! The messages of SASL go both ways ahead of the hello of frames and of HTTP/2's preface, and within TLS where there is
//! some: [`kera_protocol::login`] has their form.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use kera_protocol::login::{
    MAX_MESSAGE, REPLY_HEAD_BYTES, Status, first, next, read_length, read_reply_head,
};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::scram::{self, Mechanism, Salted};

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

/// What advice begins with, wherever it turns up among the causes of an error.
pub(crate) const MARK: &str = "authentication: ";

/// A way to prove who one is, of SASL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SaslMechanism {
    /// The password itself.
    Plain,
    /// A proof of knowing it.
    Scram(Mechanism),
}

impl SaslMechanism {
    /// All of them.
    pub const ALL: [Self; 3] = [
        Self::Scram(Mechanism::Sha256),
        Self::Scram(Mechanism::Sha512),
        Self::Plain,
    ];

    /// Its name in SASL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::Scram(mechanism) => mechanism.name(),
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

/// A user's name and password, as a client uses them. Cheap to clone.
#[derive(Clone)]
pub struct Login {
    user: Arc<str>,
    password: Arc<[u8]>,
    mechanism: SaslMechanism,
    /// What the last challenge had the client calculate, some milliseconds long: later connections need not.
    salted: Arc<Mutex<Option<Salted>>>,
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
            salted: Arc::default(),
        }
    }

    /// The same by another mechanism.
    pub fn with_mechanism(self, mechanism: SaslMechanism) -> Self {
        Self {
            mechanism,
            salted: Arc::default(),
            ..self
        }
    }

    /// Proves it to the broker at the other end of `stream`, on which nothing was said.
    ///
    /// # Errors
    /// The stream's, and why the broker refuses or is not believed.
    pub async fn prove(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let number = self.mechanism.number();
        let SaslMechanism::Scram(mechanism) = self.mechanism else {
            let message = [b"\0", self.user.as_bytes(), b"\0", &self.password].concat();
            stream.write_all(&first(number, &message)).await?;
            return match receive(stream).await? {
                (Status::Proved, _) => Ok(()),
                _ => Err(strange()),
            };
        };
        let begun = scram::Client::begin(mechanism, &self.user, &self.password);
        let (exchange, message) = begun.map_err(failed)?;
        stream.write_all(&first(number, message.as_bytes())).await?;
        let (Status::GoesOn, challenge) = receive(stream).await? else {
            return Err(strange());
        };
        let known = self.salted.lock().clone();
        let answered = exchange.answer_knowing(&challenge, known);
        let (exchange, proof, salted) = answered.map_err(failed)?;
        stream.write_all(&next(proof.as_bytes())).await?;
        let (Status::Proved, signature) = receive(stream).await? else {
            return Err(strange());
        };
        exchange.end(&signature).map_err(failed)?;
        *self.salted.lock() = Some(salted);
        Ok(())
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
async fn receive(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(Status, Vec<u8>)> {
    let mut head = [0; REPLY_HEAD_BYTES];
    if let Err(error) = stream.read_exact(&mut head).await {
        return Err(match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => strange(),
            _ => error,
        });
    }
    let status = read_reply_head(&head).ok_or_else(strange)?;
    let message = read_message(stream).await?;
    match status {
        Status::Refused => Err(failed(String::from_utf8_lossy(&message))),
        _ => Ok((status, message)),
    }
}

fn failed(reason: impl fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{MARK}{reason}"))
}

/// What came is no answer to a proof.
fn strange() -> io::Error {
    failed(
        "the broker takes no password at this address; connect without a user (leave --user and KERA_USER out), or have the broker's auth.listeners name native; if the broker wants TLS, name the authority that signed its certificate (--tls-ca FILE or KERA_TLS_CA)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_those_of_the_document() {
        for (mechanism, number, name) in [
            (SaslMechanism::Plain, 0, "PLAIN"),
            (SaslMechanism::Scram(Mechanism::Sha256), 1, "SCRAM-SHA-256"),
            (SaslMechanism::Scram(Mechanism::Sha512), 2, "SCRAM-SHA-512"),
        ] {
            assert_eq!((mechanism.number(), mechanism.name()), (number, name));
            assert_eq!(SaslMechanism::of_number(number), Some(mechanism));
            assert_eq!(SaslMechanism::named(&name.to_lowercase()), Some(mechanism));
        }
        assert_eq!(SaslMechanism::of_number(3), None);
    }

    #[test]
    fn a_password_is_in_no_text() {
        let login = Login::new("ann", "open sesame");
        assert!(!format!("{login:?}").contains("sesame"));
    }
}
