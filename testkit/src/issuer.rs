//! An issuer of tokens: keys, tokens signed with them, and a server at which clients get tokens and brokers keys.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PSS_SHA256,
    RsaEncoding, RsaKeyPair,
};
use serde_json::{Value, json};

use crate::PATIENCE;

/// For whom the tokens are.
pub const AUDIENCE: &str = "kera";

enum Pair {
    Es256(EcdsaKeyPair),
    Rsa(RsaKeyPair, &'static str),
}

/// A key that signs tokens.
pub struct Key {
    id: String,
    pair: Pair,
}

fn base64url(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Seconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("it is later than that").as_secs()
}

impl Key {
    pub fn es256(id: &str) -> Self {
        let (how, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let made = EcdsaKeyPair::generate_pkcs8(how, &random).expect("a key");
        let pair = EcdsaKeyPair::from_pkcs8(how, made.as_ref(), &random).expect("a key");
        Self {
            id: id.to_owned(),
            pair: Pair::Es256(pair),
        }
    }

    /// One of RSA, made by the `openssl` program, for RS256 or PS256.
    pub fn rsa(id: &str, algorithm: &'static str) -> Self {
        let mut command = Command::new("openssl");
        command.args(["genpkey", "-algorithm", "RSA"]);
        let made = command.args(["-pkeyopt", "rsa_keygen_bits:2048"]).output();
        let made = made.expect("openssl makes a key").stdout;
        // In DER some versions write the key alone, without PKCS #8 around it.
        let text = String::from_utf8(made).expect("PEM is text");
        let lines = text.lines().filter(|line| !line.starts_with("-----"));
        let made = STANDARD.decode(lines.collect::<String>());
        let made = made.expect("PEM has base64");
        let pair = RsaKeyPair::from_pkcs8(&made).expect("a key");
        Self {
            id: id.to_owned(),
            pair: Pair::Rsa(pair, algorithm),
        }
    }

    pub fn algorithm(&self) -> &'static str {
        match &self.pair {
            Pair::Es256(_) => "ES256",
            Pair::Rsa(_, algorithm) => algorithm,
        }
    }

    /// Its public part, as key sets have it.
    pub fn public(&self) -> Value {
        match &self.pair {
            Pair::Es256(pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                let (x, y) = (base64url(x), base64url(y));
                json!({"kty": "EC", "crv": "P-256", "use": "sig", "kid": self.id, "x": x, "y": y})
            }
            Pair::Rsa(pair, _) => {
                let public: PublicKeyComponents<Vec<u8>> = pair.public().into();
                let (n, e) = (base64url(public.n), base64url(public.e));
                json!({"kty": "RSA", "use": "sig", "kid": self.id, "n": n, "e": e})
            }
        }
    }

    /// A token with these claims.
    pub fn sign(&self, claims: &Value) -> String {
        let head = json!({"alg": self.algorithm(), "typ": "JWT", "kid": self.id});
        self.sign_with(&head, claims)
    }

    /// The same with a head of one's own.
    pub fn sign_with(&self, head: &Value, claims: &Value) -> String {
        let parts = [head, claims].map(|part| base64url(part.to_string()));
        let signed = parts.join(".");
        let (message, random) = (signed.as_bytes(), SystemRandom::new());
        let signature = match &self.pair {
            Pair::Es256(pair) => {
                let made = pair.sign(&random, message).expect("a signature");
                made.as_ref().to_vec()
            }
            Pair::Rsa(pair, algorithm) => {
                let how: &dyn RsaEncoding = match *algorithm {
                    "PS256" => &RSA_PSS_SHA256,
                    _ => &RSA_PKCS1_SHA256,
                };
                let mut made = vec![0; pair.public().modulus_len()];
                pair.sign(how, &random, message, &mut made)
                    .expect("a signature");
                made
            }
        };
        format!("{signed}.{}", base64url(signature))
    }
}

struct Served {
    key: Key,
    /// Whom clients get tokens for, and for how many seconds.
    user: String,
    life: u64,
    tokens: u64,
    key_sets: u64,
}

/// An issuer at an address of this machine. Its server ends with the test's process.
pub struct Issuer {
    address: SocketAddr,
    served: Arc<Mutex<Served>>,
}

impl Issuer {
    /// One whose clients get tokens for `user` that count `life` seconds.
    pub fn start(user: &str, life: u64) -> Self {
        let listening = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listening.local_addr().expect("an address");
        let served = Arc::new(Mutex::new(Served {
            key: Key::es256("first"),
            user: user.to_owned(),
            life,
            tokens: 0,
            key_sets: 0,
        }));
        let this = Self {
            address,
            served: served.clone(),
        };
        let issuer = this.name();
        std::thread::spawn(move || {
            for socket in listening.incoming().flatten() {
                // A client that goes away is its own affair.
                let _ = answer(socket, &issuer, &served);
            }
        });
        this
    }

    /// What tokens have as `iss`.
    pub fn name(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where brokers get its keys.
    pub fn keys(&self) -> String {
        format!("http://{}/keys", self.address)
    }

    /// Where clients get tokens.
    pub fn tokens(&self) -> String {
        format!("http://{}/token", self.address)
    }

    /// How many tokens, and how many key sets, were asked for.
    pub fn asked(&self) -> (u64, u64) {
        let served = self.served.lock().expect("no test has failed in it");
        (served.tokens, served.key_sets)
    }

    /// Signs with another key from now on; the old one is published no more.
    pub fn rotate(&self, id: &str) {
        self.served.lock().expect("no test has failed in it").key = Key::es256(id);
    }

    /// Claims that a broker takes, for `life` seconds from now.
    pub fn claims(&self, user: &str, life: u64) -> Value {
        claims(&self.name(), user, life)
    }

    /// A token with these claims.
    pub fn sign(&self, claims: &Value) -> String {
        let served = self.served.lock().expect("no test has failed in it");
        served.key.sign(claims)
    }
}

fn claims(issuer: &str, user: &str, life: u64) -> Value {
    let now = now();
    json!({"iss": issuer, "aud": AUDIENCE, "sub": user, "scope": "streams", "iat": now, "exp": now + life})
}

fn answer(mut socket: TcpStream, issuer: &str, served: &Mutex<Served>) -> std::io::Result<()> {
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    let head = loop {
        let read = socket.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        request.extend_from_slice(&buffer[..read]);
        let end = request.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = end {
            break end + 4;
        }
    };
    let text = String::from_utf8_lossy(&request[..head]).to_lowercase();
    let length = text.lines().find_map(|line| {
        let value = line.strip_prefix("content-length:")?;
        value.trim().parse::<usize>().ok()
    });
    let mut rest = (head + length.unwrap_or_default()).saturating_sub(request.len());
    while rest > 0 {
        match socket.read(&mut buffer)? {
            0 => return Ok(()),
            read => rest = rest.saturating_sub(read),
        }
    }
    let body = {
        let mut served = served.lock().expect("no test has failed in it");
        if text.starts_with("post /token") {
            served.tokens += 1;
            let token = served.key.sign(&claims(issuer, &served.user, served.life));
            json!({"access_token": token, "token_type": "Bearer", "expires_in": served.life})
        } else {
            served.key_sets += 1;
            json!({"keys": [served.key.public()]})
        }
    };
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    socket.write_all(&[head, body].concat().into_bytes())
}
