//! Public keys as issuers of tokens publish them: a JSON web key set, RFC 7517.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;

use crate::config::TokenAlgorithm;

/// Most bytes of a key set, and most keys that are kept of it.
pub(super) const MAX_KEY_SET: usize = 256 << 10;
const MAX_KEYS: usize = 256;

#[derive(Deserialize)]
struct Written {
    keys: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct WrittenKey {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    used_for: Option<String>,
    alg: Option<String>,
    n: Option<String>,
    e: Option<String>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

enum Numbers {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256 { point: Vec<u8> },
}

/// A key that signatures are checked with.
pub(super) struct TokenKey {
    id: Option<String>,
    /// The only algorithm it is for, if it says so.
    algorithm: Option<TokenAlgorithm>,
    numbers: Numbers,
}

/// A number as it is checked with: some issuers write a zero for its sign before it.
fn without_zeros(number: &[u8]) -> Vec<u8> {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number[zeros..].to_vec()
}

impl TokenKey {
    /// The key if it is one for signatures that the broker knows. Issuers publish others beside them.
    fn of(written: WrittenKey) -> Option<Self> {
        let bytes = |text: Option<String>| URL_SAFE_NO_PAD.decode(text?).ok();
        if written.used_for.is_some_and(|one| one != "sig") {
            return None;
        }
        let algorithm = match &written.alg {
            Some(name) => Some(TokenAlgorithm::named(name)?),
            None => None,
        };
        let numbers = match &*written.kty {
            "RSA" => Numbers::Rsa {
                n: without_zeros(&bytes(written.n)?),
                e: without_zeros(&bytes(written.e)?),
            },
            "EC" if written.crv.as_deref() == Some("P-256") => {
                let (x, y) = (bytes(written.x)?, bytes(written.y)?);
                if (x.len(), y.len()) != (32, 32) {
                    return None;
                }
                let point = [&[4], &x[..], &y[..]].concat();
                Numbers::P256 { point }
            }
            _ => return None,
        };
        Some(Self {
            id: written.kid,
            algorithm,
            numbers,
        })
    }

    fn fits(&self, algorithm: TokenAlgorithm) -> bool {
        let kind = matches!(
            (&self.numbers, algorithm),
            (
                Numbers::Rsa { .. },
                TokenAlgorithm::Rs256 | TokenAlgorithm::Ps256
            ) | (Numbers::P256 { .. }, TokenAlgorithm::Es256)
        );
        kind && self.algorithm.is_none_or(|only| only == algorithm)
    }

    /// True if the holder of the private key has signed `message` so. The key [fits](Self::fits).
    pub(super) fn has_signed(
        &self,
        algorithm: TokenAlgorithm,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        let rsa = match algorithm {
            TokenAlgorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            TokenAlgorithm::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
            TokenAlgorithm::Es256 => {
                let Numbers::P256 { point } = &self.numbers else {
                    return false;
                };
                let key = UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point);
                return key.verify(message, signature).is_ok();
            }
        };
        let Numbers::Rsa { n, e } = &self.numbers else {
            return false;
        };
        let key = RsaPublicKeyComponents { n, e };
        key.verify(rsa, message, signature).is_ok()
    }
}

/// The keys of an issuer.
pub(super) struct KeySet(Vec<TokenKey>);

impl KeySet {
    /// Reads a key set. Keys of other kinds are left out.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn read(text: &[u8]) -> Result<Self, String> {
        if text.len() > MAX_KEY_SET {
            return Err(format!(
                "the key set has more than {} KiB",
                MAX_KEY_SET >> 10
            ));
        }
        let written: Written = serde_json::from_slice(text)
            .map_err(|error| format!("what is there is no JSON web key set: {error}"))?;
        let keys = written.keys.into_iter();
        let keys = keys.filter_map(|key| TokenKey::of(serde_json::from_value(key).ok()?));
        let keys: Vec<_> = keys.take(MAX_KEYS + 1).collect();
        match keys.len() {
            0 => Err("the key set has no key for RS256, ES256 or PS256".to_owned()),
            1..=MAX_KEYS => Ok(Self(keys)),
            _ => Err(format!("the key set has more than {MAX_KEYS} keys")),
        }
    }

    /// The key of that id for that algorithm. Without an id: the only one for the algorithm.
    pub(super) fn find(&self, id: Option<&str>, algorithm: TokenAlgorithm) -> Option<&TokenKey> {
        let mut fitting = self.0.iter().filter(|key| key.fits(algorithm));
        match id {
            Some(id) => fitting.find(|key| key.id.as_deref() == Some(id)),
            None => fitting.next().filter(|_| fitting.next().is_none()),
        }
    }
}
