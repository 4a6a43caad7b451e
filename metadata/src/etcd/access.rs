//! Who a broker is to etcd, and how it knows that it talks to etcd: TLS, and a user with a password.
//!
//! Certificates are read when the store is opened. The password is read whenever etcd is told it, so a new
//! one needs no restart: etcd hands out a token for it, which is asked for anew when etcd has forgotten it.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use parking_lot::Mutex;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::client::CallError;
use crate::error::MetadataError;

/// How an etcd is reached that wants TLS, or a user and a password. The default is neither.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdAccess {
    /// The certificate of the authority that etcd's own is signed by, in PEM. With it all connections are
    /// made with TLS.
    pub ca: Option<PathBuf>,
    /// This broker's certificate, in PEM, where etcd asks for one; needs `key`.
    pub certificate: Option<PathBuf>,
    /// The certificate's private key, in PEM.
    pub key: Option<PathBuf>,
    /// The user, where etcd's authentication is enabled; needs `password_file`.
    pub user: Option<String>,
    /// A file with the user's password. A newline at its end does not belong to it.
    pub password_file: Option<PathBuf>,
    /// How these files are read.
    pub reads: ReadFile,
}

/// Reads a small file. What is no file, or lies on a server that does not answer, may keep who reads it for ever; this crate
/// has no threads for that, so whoever opens a store says how.
#[derive(Clone, Copy)]
pub struct ReadFile(pub fn(&Path) -> io::Result<Vec<u8>>);

impl Default for ReadFile {
    fn default() -> Self {
        Self(|path| fs::read(path))
    }
}

impl fmt::Debug for ReadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadFile")
    }
}

/// What is read is the same.
impl PartialEq for ReadFile {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ReadFile {}

/// [`EtcdAccess`], checked, and the token that stands for the password.
pub(super) struct Access {
    tls: Option<ClientTlsConfig>,
    /// It has a certificate of its own.
    certified: bool,
    user: Option<(String, PathBuf)>,
    reads: ReadFile,
    token: Mutex<Option<Token>>,
}

/// What stands for the password in calls.
pub(super) type Token = MetadataValue<Ascii>;

impl Access {
    /// # Errors
    /// What contradicts itself, or cannot be read, as invalid.
    pub(super) fn new(access: &EtcdAccess) -> Result<Self, MetadataError> {
        let reads = access.reads;
        let tls = match (&access.ca, &access.certificate, &access.key) {
            (None, None, None) => None,
            (None, ..) => {
                return Err(invalid(
                    "a certificate for etcd is set and no authority: set cluster.store_ca to the certificate that etcd's own is signed by",
                ));
            }
            (Some(ca), None, None) => Some(trusting(ca, reads)?),
            (Some(ca), Some(certificate), Some(key)) => {
                let (certificate, key) = (
                    read("cluster.store_certificate", certificate, reads)?,
                    read("cluster.store_key", key, reads)?,
                );
                Some(trusting(ca, reads)?.identity(Identity::from_pem(certificate, key)))
            }
            (Some(_), ..) => {
                return Err(invalid(
                    "a certificate for etcd and its key belong together: set both cluster.store_certificate and cluster.store_key, or neither",
                ));
            }
        };
        let user = match (&access.user, &access.password_file) {
            (None, None) => None,
            (Some(user), Some(file)) => {
                password(file, reads)?;
                Some((user.clone(), file.clone()))
            }
            _ => {
                return Err(invalid(
                    "a user of etcd and a password belong together: set both cluster.store_user and cluster.store_password_file, or neither",
                ));
            }
        };
        Ok(Self {
            tls,
            certified: access.certificate.is_some(),
            user,
            reads,
            token: Mutex::default(),
        })
    }

    /// How connections are made, if with TLS.
    pub(super) fn tls(&self) -> Option<&ClientTlsConfig> {
        self.tls.as_ref()
    }

    /// What to do about a connection that failed so, if that has to do with TLS.
    pub(super) fn advice(&self, failure: &str) -> Option<&'static str> {
        let failure = failure.to_ascii_lowercase();
        let has = |words: &[&str]| words.iter().any(|word| failure.contains(word));
        let closed = [
            "broken pipe",
            "connection closed",
            "connection reset",
            "fatal alert",
        ];
        let advice = match (&self.tls, self.certified) {
            (None, _) if has(&closed) || has(&["http2 error", "frame with invalid size"]) => {
                "if etcd speaks TLS there, set cluster.store_ca"
            }
            (Some(_), _) if has(&["peer certificate"]) => {
                "cluster.store_ca must be the authority of etcd's certificate, and that must name the host of cluster.store"
            }
            (Some(_), _) if has(&["corrupt message", "contenttype"]) => {
                "if etcd speaks no TLS there, leave out cluster.store_ca"
            }
            (Some(_), false) if has(&closed) => {
                "if etcd asks for a certificate, set cluster.store_certificate and cluster.store_key"
            }
            _ => return None,
        };
        Some(advice)
    }

    /// True if calls need a token.
    pub(super) fn has_user(&self) -> bool {
        self.user.is_some()
    }

    /// The token there is.
    pub(super) fn token(&self) -> Option<Token> {
        self.token.lock().clone()
    }

    /// Takes note of a token that etcd has given out.
    pub(super) fn set_token(&self, token: &str) -> Result<Token, CallError> {
        let token: Token = token
            .parse()
            .map_err(|_| CallError::Lost("etcd's token is no text".to_owned()))?;
        *self.token.lock() = Some(token.clone());
        Ok(token)
    }

    /// The token is of no use any more: the next call asks for another.
    pub(super) fn forget_token(&self) {
        *self.token.lock() = None;
    }

    /// The user's name and password as they are now.
    pub(super) fn credentials(&self) -> Result<Option<(String, String)>, CallError> {
        let Some((user, file)) = &self.user else {
            return Ok(None);
        };
        let password = password(file, self.reads);
        let password = password.map_err(|error| CallError::NotSent(error.to_string()))?;
        Ok(Some((user.clone(), password)))
    }
}

/// True if etcd refused a call for its token: nothing came of it, and another token may do.
pub(super) fn is_stale(detail: &str) -> bool {
    detail.contains("invalid auth token") || detail.contains("revision of auth store is old")
}

/// What to do about a refusal that has to do with who may do what, if it does.
pub(super) fn advice(detail: &str) -> Option<&'static str> {
    let known = [
        (
            "user name is empty",
            "it wants a user: set cluster.store_user and cluster.store_password_file",
        ),
        (
            "invalid user ID or password",
            "check cluster.store_user and the file cluster.store_password_file",
        ),
        (
            "authentication is not enabled",
            "it has no users: leave out cluster.store_user and cluster.store_password_file, or enable its authentication",
        ),
        (
            "permission denied",
            "grant the user of cluster.store_user a role that may read and write the keys of the cluster's prefix",
        ),
    ];
    let found = known.iter().find(|(said, _)| detail.contains(said));
    found.map(|(_, advice)| *advice)
}

fn trusting(ca: &Path, reads: ReadFile) -> Result<ClientTlsConfig, MetadataError> {
    let ca = Certificate::from_pem(read("cluster.store_ca", ca, reads)?);
    Ok(ClientTlsConfig::new().ca_certificate(ca))
}

fn password(file: &Path, reads: ReadFile) -> Result<String, MetadataError> {
    let name = "cluster.store_password_file";
    let text = String::from_utf8(read(name, file, reads)?);
    let text = text.map_err(|_| invalid(format!("{name}: {} is no text", file.display())))?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

fn read(key: &str, path: &Path, reads: ReadFile) -> Result<Vec<u8>, MetadataError> {
    (reads.0)(path).map_err(|error| {
        invalid(format!(
            "{key}: {} cannot be read: {error}; give the path of a PEM file, or of a file with the password, that the broker's user may read",
            path.display()
        ))
    })
}

fn invalid(text: impl Into<String>) -> MetadataError {
    MetadataError::invalid(text.into())
}
