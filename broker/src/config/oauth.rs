//! Kinds of keys about tokens.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use axum::http::Uri;

use super::kinds::{Directory, Kind, Limits};

/// An algorithm of signatures with a public key. `none` and those with a shared secret do not exist here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenAlgorithm {
    /// RSA, PKCS #1 v1.5, SHA-256.
    Rs256,
    /// RSA, PSS, SHA-256.
    Ps256,
    /// ECDSA on P-256, SHA-256.
    Es256,
}

impl TokenAlgorithm {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Rs256, Self::Es256, Self::Ps256];

    /// Its name in the head of a token.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Ps256 => "PS256",
            Self::Es256 => "ES256",
        }
    }

    /// The algorithm of such a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}

/// Where the public keys are that tokens are signed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file.
    File(PathBuf),
    /// A server: `https`, or `http` on this machine.
    Server(Uri),
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Server(uri) => uri.fmt(f),
        }
    }
}

/// Text, if there is some: `Option<String>`.
pub(super) enum TextOrOff {}

impl Kind for TextOrOff {
    type Value = Option<String>;
    const FORM: &'static str = "text, or `off`";

    fn parse(text: &str, _: &Limits) -> Result<Option<String>, String> {
        match text.trim() {
            "off" => Ok(None),
            "" => Err("is empty; write what tokens have, or `off`".into()),
            other => Ok(Some(other.to_owned())),
        }
    }

    fn show(value: &Option<String>) -> String {
        value.clone().unwrap_or_else(|| "off".into())
    }
}

/// The name of a claim: `String`.
pub(super) enum ClaimName {}

impl Kind for ClaimName {
    type Value = String;
    const FORM: &'static str = "name of a claim";

    fn parse(text: &str, _: &Limits) -> Result<String, String> {
        match text.trim() {
            "" => Err("is empty; name a claim of tokens, such as sub".into()),
            name => Ok(name.to_owned()),
        }
    }

    fn show(value: &String) -> String {
        value.clone()
    }
}

/// Texts: `Vec<String>`, empty for `off`.
pub(super) enum Texts {}

impl Kind for Texts {
    type Value = Vec<String>;
    const FORM: &'static str =
        "text, several with commas between them (in a file also a list), or `off`";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<Vec<String>, String> {
        let text = text.trim();
        if text.is_empty() || text == "off" {
            return Ok(Vec::new());
        }
        let parts: Vec<_> = text.split(',').map(|part| part.trim().to_owned()).collect();
        match parts.iter().any(String::is_empty) {
            true => Err("has an empty part; take the comma out".into()),
            false => Ok(parts),
        }
    }

    fn show(value: &Vec<String>) -> String {
        match value.is_empty() {
            true => "off".to_owned(),
            false => value.join(","),
        }
    }
}

/// Algorithms: `Vec<TokenAlgorithm>`.
pub(super) enum Algorithms {}

impl Kind for Algorithms {
    type Value = Vec<TokenAlgorithm>;
    const FORM: &'static str =
        "`RS256`, `ES256` and `PS256`, with commas between them (in a file also a list)";
    const LIST: bool = true;

    fn parse(text: &str, _: &Limits) -> Result<Vec<TokenAlgorithm>, String> {
        let mut algorithms = Vec::new();
        for part in text.split(',').map(str::trim) {
            let algorithm = TokenAlgorithm::named(part).ok_or_else(|| {
                format!("`{part}` is no algorithm of tokens; write RS256, ES256 or PS256")
            })?;
            if !algorithms.contains(&algorithm) {
                algorithms.push(algorithm);
            }
        }
        Ok(algorithms)
    }

    fn show(value: &Vec<TokenAlgorithm>) -> String {
        let names: Vec<_> = value.iter().map(|one| one.name()).collect();
        names.join(",")
    }
}

/// Where keys are: `Option<KeySource>`.
pub(super) enum KeysAt {}

impl Kind for KeysAt {
    type Value = Option<KeySource>;
    const FORM: &'static str =
        "file, `https://` URL, `http://` URL with a loopback address or `localhost`, or `off`";

    fn parse(text: &str, limits: &Limits) -> Result<Option<KeySource>, String> {
        let text = text.trim();
        if text == "off" {
            return Ok(None);
        }
        if text.is_empty() {
            return Err("is empty; name a file or a URL, or write `off`".into());
        }
        if !text.contains("://") {
            return Directory::parse(text, limits).map(|path| Some(KeySource::File(path)));
        }
        let uri: Uri = text
            .parse()
            .map_err(|error| format!("`{text}` is no URL: {error}"))?;
        // The URL is shown by config and log.
        if uri
            .authority()
            .is_some_and(|all| all.as_str().contains('@'))
        {
            return Err("has a user or a password, which everybody could read; key sets are public, take it out".into());
        }
        let host = uri.host().unwrap_or_default();
        match uri.scheme_str() {
            Some("https") if !host.is_empty() => Ok(Some(KeySource::Server(uri))),
            Some("http") if is_loopback(host) => Ok(Some(KeySource::Server(uri))),
            Some("http") => Err(format!(
                "`{text}` has no TLS: whoever is on the way could send keys of their own; write https, or a loopback address"
            )),
            _ => Err(format!("`{text}` is neither https nor http")),
        }
    }

    fn show(value: &Option<KeySource>) -> String {
        value
            .as_ref()
            .map_or_else(|| "off".into(), KeySource::to_string)
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_by_tls_or_from_this_machine() {
        let parse = |text| KeysAt::parse(text, &Limits::NONE);
        for text in [
            "https://issuer.example/jwks",
            "http://127.0.0.1:8080/jwks",
            "http://[::1]/k",
            "/etc/kera/jwks.json",
            "off",
        ] {
            assert_eq!(KeysAt::show(&parse(text).unwrap()), text);
        }
        for wrong in [
            "",
            "http://issuer.example/jwks",
            "http://127.0.0.1.example/k",
            "ftp://localhost/k",
            "https://ann:secret@issuer.example/jwks",
            "http://localhost@issuer.example/jwks",
            "https://",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_algorithm_lets_tokens_be_made_of_a_public_key() {
        let parse = |text| Algorithms::parse(text, &Limits::NONE);
        let all = TokenAlgorithm::ALL.to_vec();
        assert_eq!(parse("RS256,ES256, PS256,RS256").unwrap(), all);
        assert_eq!(Algorithms::show(&all), "RS256,ES256,PS256");
        for wrong in ["none", "HS256", "rs256", ""] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let texts = |text| Texts::parse(text, &Limits::NONE);
        assert_eq!(texts("a, b").unwrap(), ["a", "b"]);
        assert!(texts("a,").is_err());
        assert!(texts("off").unwrap().is_empty());
    }
}
