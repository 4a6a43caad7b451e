//! SCRAM, by which a client proves that it knows a password and a broker that it knows what was made of it, and neither
//! tells the other: RFC 5802, with the hashes of RFC 7677 and of SHA-512.
//!
//! Names and passwords are taken as their UTF-8 bytes, as Kafka's clients take them, and not prepared by RFC 4013.
//!
//! ```
//! use kera_rpc::scram::{Client, Credential, Exchange, Mechanism};
//!
//! let mechanism = Mechanism::Sha256;
//! let stored = Credential::of_password(mechanism, b"pencil", b"salt of the user".to_vec(), 4096).unwrap();
//! let (client, first) = Client::begin(mechanism, "ann", b"pencil").unwrap();
//! let known = |user: &str| (user == "ann").then(|| stored.clone()).map(|one| (one, true)).unwrap();
//! let (exchange, challenge) = Exchange::begin(mechanism, first.as_bytes(), known).unwrap();
//! let (client, proof) = client.answer(challenge.as_bytes()).unwrap();
//! let (user, signature) = exchange.end(proof.as_bytes()).unwrap();
//! assert_eq!(user, "ann");
//! client.end(signature.as_bytes()).unwrap();
//! ```

use std::fmt;
use std::num::NonZeroU32;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac, pbkdf2};

/// Fewest and most rounds of a password's derivation, as at Kafka: fewer are guessed too soon, more would let a client
/// have others calculate for long.
pub const ITERATIONS: std::ops::RangeInclusive<u32> = 4096..=16_384;
/// Most bytes of a user's name.
pub const MAX_NAME: usize = 255;
/// Most bytes of a message: a name, two nonces and a proof, generously.
const MAX_MESSAGE: usize = 4096;
const NONCE_BYTES: usize = 24;
/// Of a salt that is drawn here.
const SALT_BYTES: usize = 24;

/// Which hash is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mechanism {
    /// SCRAM-SHA-256.
    Sha256,
    /// SCRAM-SHA-512.
    Sha512,
}

impl Mechanism {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Sha256, Self::Sha512];

    /// Its name in SASL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "SCRAM-SHA-256",
            Self::Sha512 => "SCRAM-SHA-512",
        }
    }

    /// The mechanism of a name in SASL, in any case.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|one| one.name().eq_ignore_ascii_case(name))
    }

    /// Kafka's number.
    pub fn number(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha512 => 2,
        }
    }

    /// The mechanism of Kafka's number.
    pub fn of_number(number: u32) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|one| u32::from(one.number()) == number)
    }

    /// Bytes of its hash, and so of every key.
    pub fn key_bytes(self) -> usize {
        self.digest().output_len()
    }

    fn digest(self) -> &'static digest::Algorithm {
        match self {
            Self::Sha256 => &digest::SHA256,
            Self::Sha512 => &digest::SHA512,
        }
    }

    fn mac(self, key: &[u8], message: &[u8]) -> Vec<u8> {
        let algorithm = match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha512 => hmac::HMAC_SHA512,
        };
        let tag = hmac::sign(&hmac::Key::new(algorithm, key), message);
        tag.as_ref().to_vec()
    }

    fn hash(self, message: &[u8]) -> Vec<u8> {
        digest::digest(self.digest(), message).as_ref().to_vec()
    }

    /// What is made of a password, salt and number of rounds: the one secret that clients need beside the password.
    pub fn salted(self, password: &[u8], salt: &[u8], iterations: NonZeroU32) -> Vec<u8> {
        let algorithm = match self {
            Self::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
            Self::Sha512 => pbkdf2::PBKDF2_HMAC_SHA512,
        };
        let mut salted = vec![0; self.key_bytes()];
        pbkdf2::derive(algorithm, iterations, salt, password, &mut salted);
        salted
    }

    /// The same with a salt that is drawn for it: the salt, and what is made.
    ///
    /// # Errors
    /// [`ScramError::NoRandom`].
    pub fn salted_anew(self, password: &str, iterations: u32) -> Result<(Vec<u8>, Vec<u8>)> {
        let salt = random::<SALT_BYTES>()?.to_vec();
        let rounds = NonZeroU32::new(iterations).unwrap_or(NonZeroU32::MIN);
        let salted = self.salted(password.as_bytes(), &salt, rounds);
        Ok((salt, salted))
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a broker keeps of a password: enough to check a proof, and not enough to make one.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// Random bytes of the user's own.
    pub salt: Vec<u8>,
    /// Rounds of the derivation.
    pub iterations: u32,
    /// The hash of the key that the client proves to have.
    pub stored_key: Vec<u8>,
    /// The key that the broker proves to have.
    pub server_key: Vec<u8>,
}

impl fmt::Debug for Credential {
    /// Without keys, which are not for logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("iterations", &self.iterations)
            .finish_non_exhaustive()
    }
}

impl Credential {
    /// Of what was [made](Mechanism::salted) of a password.
    pub fn of_salted(mechanism: Mechanism, salted: &[u8], salt: Vec<u8>, iterations: u32) -> Self {
        let client_key = mechanism.mac(salted, b"Client Key");
        Self {
            salt,
            iterations,
            stored_key: mechanism.hash(&client_key),
            server_key: mechanism.mac(salted, b"Server Key"),
        }
    }

    /// Of a password. `None` without rounds.
    pub fn of_password(
        mechanism: Mechanism,
        password: &[u8],
        salt: Vec<u8>,
        iterations: u32,
    ) -> Option<Self> {
        let salted = mechanism.salted(password, &salt, NonZeroU32::new(iterations)?);
        Some(Self::of_salted(mechanism, &salted, salt, iterations))
    }

    /// Whether this is what is kept of `password`. Takes as long as the derivation, some milliseconds.
    pub fn is_of(&self, mechanism: Mechanism, password: &[u8]) -> bool {
        let made = Self::of_password(mechanism, password, self.salt.clone(), self.iterations);
        made.is_some_and(|made| same(&made.stored_key, &self.stored_key))
    }
}

/// Compares in a time that does not tell where they differ.
fn same(one: &[u8], other: &[u8]) -> bool {
    // A MAC of both under a key that nobody knows: equal exactly if they are.
    let Ok(key) = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()) else {
        return false;
    };
    let tag = hmac::sign(&key, one);
    hmac::verify(&key, other, tag.as_ref()).is_ok()
}

/// Why an exchange ends without a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScramError {
    /// It is no message of SCRAM, or not the one that is due.
    #[error("the message is no SCRAM message, or not the one that is due")]
    Malformed,
    /// The client wants something of SCRAM that is not offered.
    #[error(
        "the client asks for channel binding, an extension or another's rights, which are not offered"
    )]
    NotOffered,
    /// The proof is not that of the password.
    #[error("the user or the password is wrong")]
    WrongProof,
    /// The broker does not have what was made of the password.
    #[error("the broker does not know the password; it may be somebody else's")]
    WrongServer,
    /// The system gives no random bytes.
    #[error("the system gives no random bytes")]
    NoRandom,
}

type Result<T> = std::result::Result<T, ScramError>;

/// A nonce, or a salt, of printable bytes.
fn random_text() -> Result<String> {
    Ok(STANDARD.encode(random::<NONCE_BYTES>()?))
}

/// Random bytes, for salts and keys.
///
/// # Errors
/// [`ScramError::NoRandom`].
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| ScramError::NoRandom)?;
    Ok(bytes)
}

fn text(message: &[u8]) -> Result<&str> {
    if message.len() > MAX_MESSAGE {
        return Err(ScramError::Malformed);
    }
    std::str::from_utf8(message).map_err(|_| ScramError::Malformed)
}

/// The value of an attribute, which begins with its letter.
fn value<'a>(attribute: Option<&'a str>, letter: &str) -> Result<&'a str> {
    let value = attribute.and_then(|attribute| attribute.strip_prefix(letter));
    value.ok_or(ScramError::Malformed)
}

fn decoded(value: &str) -> Result<Vec<u8>> {
    STANDARD.decode(value).map_err(|_| ScramError::Malformed)
}

/// A name as it stands in a message: without a comma and an equals sign.
fn escaped(name: &str) -> String {
    name.replace('=', "=3D").replace(',', "=2C")
}

fn unescaped(name: &str) -> Result<String> {
    let mut plain = String::with_capacity(name.len());
    let mut parts = name.split('=');
    plain.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let (sign, rest) = match (part.strip_prefix("2C"), part.strip_prefix("3D")) {
            (Some(rest), _) => (',', rest),
            (_, Some(rest)) => ('=', rest),
            _ => return Err(ScramError::Malformed),
        };
        plain.push(sign);
        plain.push_str(rest);
    }
    match plain.is_empty() || plain.len() > MAX_NAME || plain.contains(char::is_control) {
        true => Err(ScramError::Malformed),
        false => Ok(plain),
    }
}

/// A broker's side of an exchange, between challenge and proof.
#[derive(Debug)]
pub struct Exchange {
    mechanism: Mechanism,
    user: String,
    credential: Credential,
    /// The user is there; otherwise every proof is wrong.
    is_known: bool,
    /// What begins the client's first message, which it has to repeat.
    header: String,
    nonce: String,
    /// Both first messages, as the proof covers them.
    messages: String,
}

impl Exchange {
    /// Who the client says it is.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// How it proves it.
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// About how many bytes of memory it takes while the client calculates.
    pub fn held(&self) -> usize {
        let credential = &self.credential;
        let keys =
            credential.salt.len() + credential.stored_key.len() + credential.server_key.len();
        let texts = self.messages.len() + self.nonce.len() + self.header.len() + self.user.len();
        size_of::<Self>() + keys + texts
    }

    /// Takes the client's first message; what to answer. `find` has the credential of a user, and whether the user is
    /// there: of one that is not it has another that looks like one.
    ///
    /// # Errors
    /// [`ScramError`].
    pub fn begin(
        mechanism: Mechanism,
        message: &[u8],
        find: impl FnOnce(&str) -> (Credential, bool),
    ) -> Result<(Self, String)> {
        let own = random_text()?;
        Self::begin_with(mechanism, message, &own, find)
    }

    fn begin_with(
        mechanism: Mechanism,
        message: &[u8],
        own_nonce: &str,
        find: impl FnOnce(&str) -> (Credential, bool),
    ) -> Result<(Self, String)> {
        let message = text(message)?;
        let mut parts = message.splitn(3, ',');
        let (binding, other, bare) = (parts.next(), parts.next(), parts.next());
        let (Some(binding), Some(other), Some(bare)) = (binding, other, bare) else {
            return Err(ScramError::Malformed);
        };
        match binding {
            "n" | "y" => {}
            _ if binding.starts_with("p=") => return Err(ScramError::NotOffered),
            _ => return Err(ScramError::Malformed),
        }
        let mut attributes = bare.split(',');
        let user = match attributes.next() {
            // What must be understood and is not.
            Some(first) if first.starts_with("m=") => return Err(ScramError::NotOffered),
            first => unescaped(value(first, "n=")?)?,
        };
        let theirs = value(attributes.next(), "r=")?;
        let is_printable = |nonce: &str| nonce.bytes().all(|byte| byte.is_ascii_graphic());
        if theirs.is_empty() || !is_printable(theirs) {
            return Err(ScramError::Malformed);
        }
        if attributes.next().is_some() {
            return Err(ScramError::NotOffered);
        }
        // Somebody else's rights: nobody may have them but their owner.
        if !other.is_empty() && unescaped(value(Some(other), "a=")?)? != user {
            return Err(ScramError::NotOffered);
        }
        let (credential, is_known) = find(&user);
        let nonce = format!("{theirs}{own_nonce}");
        let salt = STANDARD.encode(&credential.salt);
        let challenge = format!("r={nonce},s={salt},i={}", credential.iterations);
        let exchange = Self {
            mechanism,
            user,
            is_known,
            header: format!("{binding},{other},"),
            messages: format!("{bare},{challenge}"),
            nonce,
            credential,
        };
        Ok((exchange, challenge))
    }

    /// Takes the client's proof: the user, and what proves the broker to the client.
    ///
    /// # Errors
    /// [`ScramError`].
    pub fn end(self, message: &[u8]) -> Result<(String, String)> {
        let message = text(message)?;
        let (without_proof, proof) = message.rsplit_once(",p=").ok_or(ScramError::Malformed)?;
        let mut attributes = without_proof.split(',');
        let header = decoded(value(attributes.next(), "c=")?)?;
        let nonce = value(attributes.next(), "r=")?;
        if header != self.header.as_bytes() || attributes.next().is_some() {
            return Err(ScramError::Malformed);
        }
        // librdkafka before 2.2 puts its own part before it once more, and Kafka's brokers look at the end alone. The part
        // that is new in each exchange is there.
        if !nonce.ends_with(&self.nonce) {
            // Somebody repeats what was said in another exchange.
            return Err(ScramError::WrongProof);
        }
        let mechanism = self.mechanism;
        let proof = decoded(proof)?;
        if proof.len() != mechanism.key_bytes() {
            return Err(ScramError::Malformed);
        }
        let covered = format!("{},{without_proof}", self.messages);
        let signature = mechanism.mac(&self.credential.stored_key, covered.as_bytes());
        let key: Vec<u8> = proof.iter().zip(&signature).map(|(a, b)| a ^ b).collect();
        let is_right = same(&mechanism.hash(&key), &self.credential.stored_key);
        if !(is_right && self.is_known) {
            return Err(ScramError::WrongProof);
        }
        let own = mechanism.mac(&self.credential.server_key, covered.as_bytes());
        Ok((self.user, format!("v={}", STANDARD.encode(own))))
    }
}

/// A client's side of an exchange.
#[derive(Debug)]
pub struct Client<S = First> {
    mechanism: Mechanism,
    state: S,
}

/// What was made of a password for a challenge, by which later challenges are answered at once.
#[derive(Clone)]
pub struct Salted {
    salt: Vec<u8>,
    iterations: NonZeroU32,
    bytes: Vec<u8>,
}

impl fmt::Debug for Salted {
    /// Without what is as good as the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Salted").finish_non_exhaustive()
    }
}

/// The first message was sent.
pub struct First {
    password: Vec<u8>,
    nonce: String,
    bare: String,
}

impl fmt::Debug for First {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("First").finish_non_exhaustive()
    }
}

/// The proof was sent.
#[derive(Debug)]
pub struct Proven {
    signature: Vec<u8>,
}

impl Client<First> {
    /// Begins an exchange, with the message to send first.
    ///
    /// # Errors
    /// [`ScramError::NoRandom`].
    pub fn begin(mechanism: Mechanism, user: &str, password: &[u8]) -> Result<(Self, String)> {
        let nonce = random_text()?;
        Ok(Self::begin_with(mechanism, user, password, nonce))
    }

    fn begin_with(
        mechanism: Mechanism,
        user: &str,
        password: &[u8],
        nonce: String,
    ) -> (Self, String) {
        let bare = format!("n={},r={nonce}", escaped(user));
        let first = format!("n,,{bare}");
        let state = First {
            password: password.to_vec(),
            nonce,
            bare,
        };
        (Self { mechanism, state }, first)
    }

    /// Takes the broker's challenge, and proves to know the password.
    ///
    /// # Errors
    /// [`ScramError`]; also for so many rounds that the broker would only have the client calculate.
    pub fn answer(self, challenge: &[u8]) -> Result<(Client<Proven>, String)> {
        let (proven, proof, _) = self.answer_knowing(challenge, None)?;
        Ok((proven, proof))
    }

    /// As [`answer`](Self::answer), with what an earlier exchange of the same user and mechanism made of the password;
    /// derived again where the challenge has another salt or other rounds. Also what to keep for the next one.
    ///
    /// # Errors
    /// As [`answer`](Self::answer).
    pub fn answer_knowing(
        self,
        challenge: &[u8],
        known: Option<Salted>,
    ) -> Result<(Client<Proven>, String, Salted)> {
        let challenge = text(challenge)?;
        let mut attributes = challenge.split(',');
        let nonce = value(attributes.next(), "r=")?;
        let salt = decoded(value(attributes.next(), "s=")?)?;
        let iterations = value(attributes.next(), "i=")?.parse().ok();
        let iterations = iterations.filter(|count: &u32| ITERATIONS.contains(count));
        let iterations = iterations.and_then(NonZeroU32::new);
        let iterations = iterations.ok_or(ScramError::Malformed)?;
        let First {
            password,
            nonce: own,
            bare,
        } = self.state;
        if !nonce.starts_with(&own) || nonce.len() == own.len() {
            return Err(ScramError::Malformed);
        }
        let mechanism = self.mechanism;
        let fits = |one: &Salted| one.salt == salt && one.iterations == iterations;
        let salted = known.filter(fits).unwrap_or_else(|| Salted {
            bytes: mechanism.salted(&password, &salt, iterations),
            salt,
            iterations,
        });
        let client_key = mechanism.mac(&salted.bytes, b"Client Key");
        let header = STANDARD.encode("n,,");
        let without_proof = format!("c={header},r={nonce}");
        let covered = format!("{bare},{challenge},{without_proof}");
        let signature = mechanism.mac(&mechanism.hash(&client_key), covered.as_bytes());
        let proof: Vec<u8> = client_key
            .iter()
            .zip(&signature)
            .map(|(a, b)| a ^ b)
            .collect();
        let server_key = mechanism.mac(&salted.bytes, b"Server Key");
        let proven = Client {
            mechanism,
            state: Proven {
                signature: mechanism.mac(&server_key, covered.as_bytes()),
            },
        };
        let proof = format!("{without_proof},p={}", STANDARD.encode(proof));
        Ok((proven, proof, salted))
    }
}

impl Client<Proven> {
    /// Takes what proves the broker.
    ///
    /// # Errors
    /// [`ScramError::WrongServer`] if it does not.
    pub fn end(self, message: &[u8]) -> Result<()> {
        let signature = decoded(value(Some(text(message)?), "v=")?)?;
        match same(&signature, &self.state.signature) {
            true => Ok(()),
            false => Err(ScramError::WrongServer),
        }
    }
}

#[cfg(test)]
#[path = "scram_tests.rs"]
mod tests;
