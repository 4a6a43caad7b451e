//! TLS as clients use it: whom they trust, who they are, and what an error means for people.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    AlertDescription, CertificateError, CipherSuite, ClientConfig, Error, InvalidMessage,
    RootCertStore,
};
use tokio::net::TcpStream;

use crate::cause::cause_of;
use crate::login::LoginError;
use crate::small_file::{self, Takes};
use crate::stream::{FRAMES, HTTP1, HTTP2, Stream, TlsFailure};

/// In advice, the setting of the authorities that a client trusts: clients in other languages put their own words in its place,
pub const NAME_CA: &str = "(--tls-ca FILE or KERA_TLS_CA)";
/// how it is left out,
pub const LEAVE_CA_OUT: &str = "(leave --tls-ca and KERA_TLS_CA out)";
/// and the setting of a client's own certificate.
pub const NAME_CERTIFICATE: &str = "(--tls-cert and --tls-key)";

/// The largest file that is read: all of a system's authorities have some hundred KiB.
const MOST_BYTES: usize = 8 << 20;
/// What advice begins with, wherever it turns up among the causes of an error.
pub(crate) const MARK: &str = "TLS: ";

/// What an error says about TLS or a proof of who the client is, if that is why it came.
pub fn reason_in(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(refused) = LoginError::of(error) {
        return Some(refused.to_string());
    }
    let mut cause = Some(error);
    while let Some(error) = cause {
        let text = error.to_string();
        if let Some(at) = text.find(MARK) {
            return Some(text[at..].to_owned());
        }
        cause = error.source();
    }
    None
}

/// A broker answers a client without TLS as one that wants TLS.
#[derive(Debug, thiserror::Error)]
#[error(
    "{MARK}the broker wants TLS at this address; name the authority that signed its certificate {NAME_CA}"
)]
pub(crate) struct WantsTls;

/// Why one side refuses the other in TLS, if that is among the causes of an error: not what breaks in a session.
pub(crate) fn refusal_in(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(wants) = cause_of::<WantsTls>(error) {
        return Some(wants.to_string());
    }
    let failure = cause_of::<TlsFailure>(error)?;
    is_refusal(&failure.error).then(|| failure.to_string())
}

fn is_refusal(error: &Error) -> bool {
    use AlertDescription as A;
    matches!(
        error,
        Error::InvalidCertificate(_)
            | Error::PeerIncompatible(_)
            | Error::InvalidMessage(InvalidMessage::InvalidContentType)
            | Error::AlertReceived(
                A::CertificateRequired
                    | A::UnknownCA
                    | A::BadCertificate
                    | A::CertificateExpired
                    | A::CertificateRevoked
                    | A::CertificateUnknown
                    | A::AccessDenied
                    | A::DecryptError
                    | A::ProtocolVersion
                    | A::HandshakeFailure
            )
    )
}

/// Files of a client, all in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificates of the authorities that sign brokers' certificates.
    pub ca: PathBuf,
    /// The client's own certificate, if brokers ask for one.
    pub certificate: Option<PathBuf>,
    /// The private key of that certificate.
    pub key: Option<PathBuf>,
}

/// How a client connects to brokers with TLS. Cheap to clone.
#[derive(Clone)]
pub struct ClientTls {
    frames: Arc<ClientConfig>,
    calls: Arc<ClientConfig>,
    pages: Arc<ClientConfig>,
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").finish_non_exhaustive()
    }
}

/// Why a client's files cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(String);

/// What TLS calculates with. AES-128-GCM comes first, and the client's order counts: its ten rounds take less time than the
/// fourteen of AES-256-GCM, and nobody breaks either.
fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    let is_first = |suite: CipherSuite| {
        matches!(
            suite,
            CipherSuite::TLS13_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
        )
    };
    let suites = &mut provider.cipher_suites;
    suites.sort_by_key(|suite| !is_first(suite.suite()));
    provider
}

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`] names the file that cannot be used.
    pub fn from_files(files: &TlsFiles) -> Result<Self, TlsError> {
        let ca = read(&files.ca)?;
        let identity = match (&files.certificate, &files.key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            (Some(_), None) => {
                let text = "a client's certificate is given without its private key; give both";
                return Err(TlsError(text.to_owned()));
            }
            (None, Some(_)) => {
                let text = "a client's private key is given without its certificate; give both";
                return Err(TlsError(text.to_owned()));
            }
        };
        let identity = identity.as_ref().map(|(one, other)| (&one[..], &other[..]));
        Self::from_pem(&ca, identity)
    }

    /// Trusts the authorities in `ca`, and has an identity of certificate and private key if one is given; all in PEM.
    ///
    /// # Errors
    /// [`TlsError`] says what cannot be used.
    pub fn from_pem(ca: &[u8], identity: Option<(&[u8], &[u8])>) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        let of_ca = |reason: String| TlsError(format!("the file of authorities {reason}"));
        for authority in certificates(ca).map_err(of_ca)? {
            roots
                .add(authority)
                .map_err(|error| of_ca(format!("holds a certificate of no authority: {error}")))?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|error| TlsError(error.to_string()))?
            .with_root_certificates(roots);
        let mut calls = match identity {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate).map_err(|reason| {
                    TlsError(format!("the client's certificate file {reason}"))
                })?;
                let key = private_key(key)
                    .map_err(|reason| TlsError(format!("the client's key file {reason}")))?;
                config.with_client_auth_cert(chain, key).map_err(|error| {
                    TlsError(format!(
                        "the client's certificate and private key do not go together: {error}"
                    ))
                })?
            }
        };
        calls.alpn_protocols = vec![HTTP2.to_vec()];
        let mut frames = calls.clone();
        frames.alpn_protocols = vec![FRAMES.to_vec()];
        let mut pages = calls.clone();
        pages.alpn_protocols = vec![HTTP1.to_vec()];
        Ok(Self {
            frames: Arc::new(frames),
            calls: Arc::new(calls),
            pages: Arc::new(pages),
        })
    }

    /// A handshake with the broker at `address` over `socket`, for frames.
    ///
    /// # Errors
    /// The socket's, or why one of the two refused the other.
    pub async fn frames(&self, socket: TcpStream, address: &str) -> std::io::Result<Stream> {
        Stream::connect(socket, self.frames.clone(), name_of(address)?).await
    }

    /// The same without resuming an earlier session, in which no certificate is looked at.
    ///
    /// # Errors
    /// As [`frames`](Self::frames).
    pub async fn frames_anew(&self, socket: TcpStream, address: &str) -> std::io::Result<Stream> {
        let mut config = ClientConfig::clone(&self.frames);
        config.resumption = Resumption::disabled();
        Stream::connect(socket, Arc::new(config), name_of(address)?).await
    }

    /// The same with a broker's HTTP address.
    ///
    /// # Errors
    /// As [`frames`](Self::frames).
    pub async fn pages(&self, socket: TcpStream, address: &str) -> std::io::Result<Stream> {
        Stream::connect(socket, self.pages.clone(), name_of(address)?).await
    }

    /// The same for gRPC.
    pub(crate) async fn http2(&self, socket: TcpStream, address: &str) -> std::io::Result<Stream> {
        Stream::connect(socket, self.calls.clone(), name_of(address)?).await
    }
}

/// Who a broker at HOST:PORT must prove to be.
fn name_of(address: &str) -> std::io::Result<ServerName<'static>> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_owned()).map_err(|_| {
        std::io::Error::other(format!("{host} is no name that a certificate can have"))
    })
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let shown = path.display();
    let contents = small_file::read(path, MOST_BYTES, Takes::Files).map_err(|error| {
        TlsError(format!(
            "cannot read {shown}: {error}; check the path and its permissions"
        ))
    })?;
    match contents.len() > MOST_BYTES {
        true => Err(TlsError(format!(
            "{shown} has more bytes than any certificates; name a file in PEM"
        ))),
        false => Ok(contents),
    }
}

/// The certificates in PEM, at least one.
///
/// # Errors
/// What is wrong with them, to follow a file's name.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err("holds no certificate; name one in PEM (BEGIN CERTIFICATE)".to_owned()),
        Err(_) => Err("is no valid PEM; name a certificate in PEM (BEGIN CERTIFICATE)".to_owned()),
    }
}

/// The private key in PEM.
///
/// # Errors
/// As [`certificates`].
pub fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| {
        "holds no private key in PEM that is not encrypted; name one (BEGIN PRIVATE KEY)".to_owned()
    })
}

/// What a client is told of a failed TLS session.
pub(crate) fn advice(error: &Error) -> String {
    use AlertDescription as A;
    use CertificateError as C;
    match error {
        // By another key of the same name, as that of an authority that was made anew.
        Error::InvalidCertificate(C::UnknownIssuer | C::BadSignature) => format!(
            "the broker's certificate is signed by an authority that is not trusted here; name that authority's certificate {NAME_CA}"
        ),
        Error::InvalidCertificate(C::NotValidForNameContext {
            expected,
            presented,
        }) => format!(
            "the broker's certificate is not for {}, its names are {}; connect by one of these, or have the broker get a certificate with that name",
            expected.to_str(),
            names(presented)
        ),
        Error::InvalidCertificate(C::Expired | C::ExpiredContext { .. }) => {
            "the broker's certificate has expired; have it replaced, and check this machine's clock"
                .to_owned()
        }
        Error::InvalidCertificate(C::NotValidYet | C::NotValidYetContext { .. }) => {
            "the broker's certificate is not valid yet; check this machine's clock".to_owned()
        }
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => format!(
            "the broker does not speak TLS at this address; connect without {LEAVE_CA_OUT}, or have it listen with TLS"
        ),
        Error::AlertReceived(A::CertificateRequired) => format!(
            "the broker wants a certificate of this client; name one with its key {NAME_CERTIFICATE}"
        ),
        Error::AlertReceived(
            A::UnknownCA
            | A::BadCertificate
            | A::CertificateExpired
            | A::CertificateUnknown
            | A::AccessDenied
            | A::DecryptError,
        ) => format!(
            "the broker refuses the certificate of this client, or wants one and got none; name one that an authority of the broker's tls.client_ca has signed {NAME_CERTIFICATE}"
        ),
        other => other.to_string(),
    }
}

/// `DnsName("localhost")` and the like, as people write them.
fn names(presented: &[String]) -> String {
    if presented.is_empty() {
        return "none".to_owned();
    }
    let plain = presented.iter().map(|name| {
        let quoted = name.split('"').nth(1);
        quoted.unwrap_or_else(|| name.split(['(', ')']).nth(1).unwrap_or(name))
    });
    plain.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheapest_cipher_is_asked_for_first() {
        let suites = provider().cipher_suites;
        let before = ring::default_provider().cipher_suites;
        assert_eq!(suites.len(), before.len());
        assert_eq!(suites[0].suite(), CipherSuite::TLS13_AES_128_GCM_SHA256);
    }
}
